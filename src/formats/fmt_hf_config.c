/* config.json of the supported classes as GGUF metadata. Every number is checked for type and range here, and
 * what would change the results without our knowing it (quantization, another activation, attention in both
 * directions) is refused. */
#include "fmt_hf_config.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define MAX_LAYERS 4096
#define MAX_SIZE   (1 << 24) /* widths, vocabulary, heads */

static const fmt_hf_class CLASSES[] = {
    {"LlamaForCausalLM", "llama", "llama", FMT_HF_LLAMA, false, 32000, 4096, 11008, 32, 32, 0, 0, 2048, 0,
     1e4},
    {"MistralForCausalLM", "mistral", "llama", FMT_HF_LLAMA, false, 32000, 4096, 14336, 32, 32, 8, 0, 131072,
     4096, 1e4},
    {"Qwen2ForCausalLM", "qwen2", "qwen2", FMT_HF_QWEN2, false, 151936, 4096, 22016, 32, 32, 32, 0, 32768,
     4096, 1e4},
    {"Qwen3ForCausalLM", "qwen3", "qwen3", FMT_HF_QWEN3, false, 151936, 4096, 22016, 32, 32, 32, 128, 32768,
     4096, 1e4},
    {"Gemma3ForCausalLM", "gemma3_text", "gemma3", FMT_HF_GEMMA3, false, 262208, 2304, 9216, 26, 8, 4, 256,
     131072, 4096, 1e6},
    {"Gemma3ForConditionalGeneration", "gemma3", "gemma3", FMT_HF_GEMMA3, true, 262208, 2304, 9216, 26, 8, 4,
     256, 131072, 4096, 1e6},
};

weir_status fmt_hf_put_u32(const fmt_hf_config *c, const char *key, int64_t v, weir_error *err)
{
    base_buf b;
    base_buf_init(&b, c->m->env, BASE_TAG_METADATA);
    weir_status s = base_buf_printf(&b, err, "%s.%s", c->cls->gguf, key);
    if (s == WEIR_OK) s = fmt_model_put_u32(c->m, b.data, (uint32_t)v, err);
    base_buf_finish(&b);
    return s;
}

weir_status fmt_hf_put_f32(const fmt_hf_config *c, const char *key, double v, weir_error *err)
{
    base_buf b;
    base_buf_init(&b, c->m->env, BASE_TAG_METADATA);
    weir_status s = base_buf_printf(&b, err, "%s.%s", c->cls->gguf, key);
    if (s == WEIR_OK) s = fmt_model_put_f32(c->m, b.data, v, err);
    base_buf_finish(&b);
    return s;
}

/* A positive size, added under `to`. */
static weir_status size_key(const fmt_hf_config *c, const char *from, int64_t fallback, int64_t max,
                            const char *to, uint32_t *out, weir_error *err)
{
    int64_t v;
    weir_status s = fmt_hf_int(c->doc, c->text, from, fallback, 1, max, &v, err);
    if (s != WEIR_OK) return s;
    if (out != NULL) *out = (uint32_t)v;
    return fmt_hf_put_u32(c, to, v, err);
}

static weir_status find_class(const fmt_hf_doc *d, const fmt_hf_class **out, weir_error *err)
{
    const json_t *list = fmt_hf_get(d->root, "architectures");
    const char *name = json_string_value(json_array_get(list, 0));
    const char *type = json_string_value(fmt_hf_get(d->root, "model_type"));
    for (size_t i = 0; i < sizeof CLASSES / sizeof *CLASSES; i++) {
        bool same = name != NULL ? strcmp(name, CLASSES[i].name) == 0
                                 : type != NULL && strcmp(type, CLASSES[i].model_type) == 0;
        if (!same) continue;
        *out = &CLASSES[i];
        return WEIR_OK;
    }
    if (name == NULL) name = type;
    if (name == NULL)
        return base_fail(err, WEIR_ERR_FORMAT,
                         "%s: neither \"architectures\" nor \"model_type\" says what model it is", d->path);
    return base_fail(
        err, WEIR_ERR_UNSUPPORTED,
        "%s: architecture \"%.100s\" is not supported (Llama, Mistral, Qwen2, Qwen3 and Gemma3 are)", d->path,
        fmt_name_is_clean(name, strlen(name)) ? name : "?");
}

static weir_status refuse_unknown_ways(const fmt_hf_config *c, weir_error *err)
{
    bool gemma = c->cls->arch == FMT_HF_GEMMA3, both_ways;
    const char *key = gemma ? "hidden_activation" : "hidden_act", *act;
    const char *wanted = gemma ? "gelu_pytorch_tanh" : "silu";
    if (fmt_hf_get(c->doc->root, "quantization_config") != NULL ||
        fmt_hf_get(c->text, "quantization_config") != NULL)
        return base_fail(
            err, WEIR_ERR_UNSUPPORTED,
            "%s: \"quantization_config\": quantized safetensors are not supported; use the original weights "
            "or a GGUF file",
            c->doc->path);
    weir_status s = fmt_hf_str(c->doc, c->text, key, &act, err);
    if (s != WEIR_OK) return s;
    if (act != NULL && strcmp(act, wanted) != 0)
        return base_fail(err, WEIR_ERR_UNSUPPORTED, "%s: \"%s\" is \"%.100s\", only \"%s\" is supported",
                         c->doc->path, key, fmt_name_is_clean(act, strlen(act)) ? act : "?", wanted);
    s = fmt_hf_bool(c->doc, c->text, "use_bidirectional_attention", false, &both_ways, err);
    if (s == WEIR_OK && both_ways)
        s = base_fail(err, WEIR_ERR_UNSUPPORTED, "%s: \"use_bidirectional_attention\" is not supported",
                      c->doc->path);
    return s;
}

static weir_status put_sizes(fmt_hf_config *c, weir_error *err)
{
    const fmt_hf_class *k = c->cls;
    uint32_t hidden, kv_heads;
    double eps;
    weir_status s = size_key(c, "num_hidden_layers", k->layers, MAX_LAYERS, "block_count", &c->layers, err);
    if (s == WEIR_OK)
        s = size_key(c, "max_position_embeddings", k->context, INT32_MAX, "context_length", &c->context, err);
    if (s == WEIR_OK) s = size_key(c, "hidden_size", k->hidden, MAX_SIZE, "embedding_length", &hidden, err);
    if (s == WEIR_OK)
        s = size_key(c, "intermediate_size", k->ffn, MAX_SIZE, "feed_forward_length", NULL, err);
    if (s == WEIR_OK) s = size_key(c, "vocab_size", k->vocab, MAX_SIZE, "vocab_size", NULL, err);
    if (s == WEIR_OK)
        s = size_key(c, "num_attention_heads", k->heads, MAX_SIZE, "attention.head_count", &c->heads, err);
    if (s != WEIR_OK) return s;
    s = size_key(c, "num_key_value_heads", k->kv_heads != 0 ? k->kv_heads : c->heads, MAX_SIZE,
                 "attention.head_count_kv", &kv_heads, err);
    if (s != WEIR_OK) return s;
    if (c->heads % kv_heads != 0)
        return base_fail(err, WEIR_ERR_FORMAT, "%s: %u heads are no multiple of %u key-value heads",
                         c->doc->path, c->heads, kv_heads);
    int64_t head_dim = k->head_dim != 0 ? k->head_dim : hidden / c->heads;
    bool given = k->head_dim != 0 || fmt_hf_get(c->text, "head_dim") != NULL;
    if (!given && hidden % c->heads != 0)
        return base_fail(err, WEIR_ERR_FORMAT,
                         "%s: hidden_size %u is no multiple of %u heads, and there is no head_dim",
                         c->doc->path, hidden, c->heads);
    s = fmt_hf_int(c->doc, c->text, "head_dim", head_dim, 1, MAX_SIZE, &head_dim, err);
    c->head_dim = (uint32_t)head_dim;
    if (s == WEIR_OK) s = fmt_hf_put_u32(c, "attention.key_length", head_dim, err);
    if (s == WEIR_OK) s = fmt_hf_put_u32(c, "attention.value_length", head_dim, err);
    if (s == WEIR_OK) s = fmt_hf_num(c->doc, c->text, "rms_norm_eps", 1e-6, 0, 1, &eps, err);
    return s == WEIR_OK ? fmt_hf_put_f32(c, "attention.layer_norm_rms_epsilon", eps, err) : s;
}

/* layer_types: "sliding_attention" or "full_attention" for each layer. */
static weir_status read_layer_types(const fmt_hf_config *c, const json_t *types, uint8_t *slides,
                                    weir_error *err)
{
    if (!json_is_array(types) || json_array_size(types) != c->layers)
        return base_fail(err, WEIR_ERR_FORMAT, "%s: \"layer_types\" is no list of %u entries", c->doc->path,
                         c->layers);
    for (uint32_t i = 0; i < c->layers; i++) {
        const char *t = json_string_value(json_array_get(types, i));
        slides[i] = t != NULL && strcmp(t, "sliding_attention") == 0;
        if (!slides[i] && (t == NULL || strcmp(t, "full_attention") != 0))
            return base_fail(
                err, WEIR_ERR_UNSUPPORTED,
                "%s: \"layer_types\" entry %u is neither \"sliding_attention\" nor \"full_attention\"",
                c->doc->path, i);
    }
    return WEIR_OK;
}

/* Which layers slide when there are no layer_types; the rules are those of the configuration classes. */
static weir_status derive_layer_types(const fmt_hf_config *c, uint8_t *slides, weir_error *err)
{
    int64_t every, full;
    weir_status s = fmt_hf_int(c->doc, c->text, "sliding_window_pattern", 6, 1, MAX_LAYERS, &every, err);
    if (s == WEIR_OK) s = fmt_hf_int(c->doc, c->text, "max_window_layers", 28, 0, INT32_MAX, &full, err);
    if (s != WEIR_OK) return s;
    for (uint32_t i = 0; i < c->layers; i++) {
        if (c->cls->arch == FMT_HF_GEMMA3)
            slides[i] = (i + 1) % every != 0;
        else
            slides[i] = c->cls->arch == FMT_HF_LLAMA || i >= full; /* Mistral: all; Qwen: the last ones */
    }
    return WEIR_OK;
}

static weir_status put_window(const fmt_hf_config *c, weir_error *err)
{
    bool gemma = c->cls->arch == FMT_HF_GEMMA3,
         qwen = c->cls->arch == FMT_HF_QWEN2 || c->cls->arch == FMT_HF_QWEN3;
    bool use = true, any = false;
    int64_t window;
    weir_status s = WEIR_OK;
    if (c->cls->window == 0) return WEIR_OK;
    if (qwen) s = fmt_hf_bool(c->doc, c->text, "use_sliding_window", false, &use, err);
    /* An explicit null means none; an absent key means the class's default. */
    if (json_is_null(json_object_get(c->text, "sliding_window"))) use = false;
    if (s == WEIR_OK)
        s = fmt_hf_int(c->doc, c->text, "sliding_window", c->cls->window, 1, INT32_MAX, &window, err);
    if (s != WEIR_OK || !use) return s;
    uint8_t *slides = base_alloc(c->m->env, BASE_TAG_METADATA, c->layers, err);
    if (slides == NULL) return err->code;
    const json_t *types = c->cls->arch == FMT_HF_LLAMA ? NULL : fmt_hf_get(c->text, "layer_types");
    s = types != NULL ? read_layer_types(c, types, slides, err) : derive_layer_types(c, slides, err);
    for (uint32_t i = 0; i < c->layers; i++) any = any || slides[i];
    base_buf key;
    base_buf_init(&key, c->m->env, BASE_TAG_METADATA);
    if (s == WEIR_OK) s = base_buf_printf(&key, err, "%s.attention.sliding_window_pattern", c->cls->gguf);
    if (s == WEIR_OK && (any || gemma)) {
        s = fmt_hf_put_u32(c, "attention.sliding_window", window, err);
        if (s == WEIR_OK)
            s = fmt_model_put_array(c->m, key.data, FMT_BOOL, c->layers, slides, c->layers, err);
    }
    base_buf_finish(&key);
    base_free(c->m->env, slides);
    return s;
}

static weir_status put_gemma3(const fmt_hf_config *c, weir_error *err)
{
    static const char *const caps[] = {"attn_logit_softcapping", "final_logit_softcapping"};
    double scalar, cap;
    weir_status s = fmt_hf_num(c->doc, c->text, "query_pre_attn_scalar", 256, 1e-6, 1e9, &scalar, err);
    if (s == WEIR_OK) s = fmt_hf_put_f32(c, "attention.scale", 1.0 / sqrt(scalar), err);
    for (size_t i = 0; i < 2 && s == WEIR_OK; i++) {
        s = fmt_hf_num(c->doc, c->text, caps[i], 0, 0, 1e9, &cap, err);
        if (s == WEIR_OK && cap > 0) s = fmt_hf_put_f32(c, caps[i], cap, err);
    }
    /* Gemma's norms multiply by 1 + weight; GGUF's conversion adds the 1 to the weights, these files do not.
     */
    return s == WEIR_OK ? fmt_model_put_f32(c->m, "weir.norm_offset", 1, err) : s;
}

/* An explicit "no": a missing head is then no tied one. */
static weir_status put_own_head(const fmt_hf_config *c, weir_error *err)
{
    bool tied;
    weir_status s = fmt_hf_bool(c->doc, c->text, "tie_word_embeddings", true, &tied, err);
    return s == WEIR_OK && !tied ? fmt_model_put_u32(c->m, "weir.own_head", 1, err) : s;
}

weir_status fmt_hf_put_config(fmt_model *m, const fmt_hf_doc *doc, fmt_hf_arch *arch, weir_error *err)
{
    fmt_hf_config c = {.m = m, .doc = doc, .text = doc->root};
    weir_status s = find_class(doc, &c.cls, err);
    if (s != WEIR_OK) return s;
    if (c.cls->nested) {
        c.text = fmt_hf_get(doc->root, "text_config");
        if (!json_is_object(c.text))
            return base_fail(err, WEIR_ERR_FORMAT, "%s: there is no \"text_config\"", doc->path);
    }
    *arch = c.cls->arch;
    s = fmt_model_put_str(m, "general.architecture", c.cls->gguf, strlen(c.cls->gguf), err);
    if (s == WEIR_OK) s = refuse_unknown_ways(&c, err);
    if (s == WEIR_OK) s = put_sizes(&c, err);
    if (s == WEIR_OK) s = put_own_head(&c, err);
    if (s == WEIR_OK) s = put_window(&c, err);
    if (s == WEIR_OK) s = fmt_hf_put_rope(&c, err);
    if (s == WEIR_OK && c.cls->arch == FMT_HF_GEMMA3) s = put_gemma3(&c, err);
    /* GGUF's conversion reorders the rows of llama's q and k for pairs (2i, 2i+1); here they are as trained.
     */
    if (s == WEIR_OK) s = fmt_model_put_str(m, "weir.rope_style", "neox", 4, err);
    return s;
}
