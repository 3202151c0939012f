/* Hyperparameters from a model's metadata (key names: ggml documentation, docs/gguf.md). Everything is
 * bounded here, so that products of two of them fit 64 bits everywhere else. */
#include "lm_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define MAX_HIDDEN  (1u << 20)
#define MAX_FFN     (1u << 22)
#define MAX_HEADS   4096
#define MAX_VOCAB   (1u << 24)
#define MAX_CONTEXT (1u << 30)
#define KEY_BYTES   128

static const lm_arch archs[] = {
    {.name = "llama"},
    {.name = "qwen2", .neox = true, .qkv_bias = true},
    {.name = "qwen3", .neox = true, .qk_norm = true},
    {.name = "gemma3", .neox = true, .qk_norm = true, .gemma = true},
};

static const char *full_key(const lm_model *lm, const char *key, char *buf)
{
    snprintf(buf, KEY_BYTES, "%s.%s", lm->arch->name, key);
    return buf;
}

const fmt_value *lm_key_find(const lm_model *lm, const char *key)
{
    char buf[KEY_BYTES];

    return fmt_model_find_value(lm->file, full_key(lm, key, buf));
}

weir_status lm_key_str(const lm_model *lm, const char *key, const char **out, weir_error *err)
{
    char buf[KEY_BYTES];

    return fmt_get_text(lm->file, full_key(lm, key, buf), out, err);
}

static weir_status missing_key(const lm_model *lm, const char *key, weir_error *err)
{
    return base_fail(err, WEIR_ERR_FORMAT, "%s: the key %s.%s is missing; the model cannot be built without",
                     base_file_path(fmt_model_file(lm->file, 0)), lm->arch->name, key);
}

weir_status lm_key_u32(const lm_model *lm, const char *key, uint64_t fallback, uint32_t min, uint32_t max,
                       uint32_t *out, weir_error *err)
{
    char buf[KEY_BYTES];
    uint64_t value;
    weir_status status;

    if (lm_key_find(lm, key) == NULL) {
        if (fallback == UINT64_MAX) return missing_key(lm, key, err);
        *out = (uint32_t)fallback;
        return WEIR_OK;
    }
    status = fmt_get_u64(lm->file, full_key(lm, key, buf), fallback, min, max, &value, err);
    if (status == WEIR_OK) *out = (uint32_t)value;
    return status;
}

weir_status lm_key_f64(const lm_model *lm, const char *key, double fallback, double min, double max,
                       double *out, weir_error *err)
{
    char buf[KEY_BYTES];
    double value;
    weir_status status;

    if (lm_key_find(lm, key) == NULL) {
        if (isnan(fallback)) return missing_key(lm, key, err);
        *out = fallback;
        return WEIR_OK;
    }
    status = fmt_get_f64(lm->file, full_key(lm, key, buf), fallback, &value, err);
    if (status != WEIR_OK) return status;
    if (!(value >= min && value <= max))
        return base_fail(err, WEIR_ERR_FORMAT, "%s: the key %s is %g; wanted %g to %g",
                         base_file_path(fmt_model_file(lm->file, 0)), buf, value, min, max);
    *out = value;
    return WEIR_OK;
}

static weir_status read_arch(lm_model *lm, weir_error *err)
{
    const char *path = base_file_path(fmt_model_file(lm->file, 0)), *name;
    weir_status status = fmt_get_text(lm->file, "general.architecture", &name, err);

    if (status != WEIR_OK) return status;
    if (name == NULL)
        return base_fail(err, WEIR_ERR_FORMAT,
                         "%s: the key general.architecture is missing; a safetensors model needs its "
                         "config.json beside it",
                         path);
    for (size_t i = 0; i < sizeof(archs) / sizeof(archs[0]); i++)
        if (strcmp(name, archs[i].name) == 0) lm->arch = &archs[i];
    if (lm->arch == NULL)
        return base_fail(err, WEIR_ERR_UNSUPPORTED,
                         "%s: architecture \"%.64s\"; supported are llama, qwen2, qwen3 and gemma3", path,
                         name);
    lm->hp.arch = lm->arch->name;
    return WEIR_OK;
}

static weir_status read_sizes(lm_model *lm, weir_error *err)
{
    lm_hparams *hp = &lm->hp;
    uint32_t experts = 0, value_dim = 0;
    uint64_t no = UINT64_MAX;
    weir_status status = lm_key_u32(lm, "block_count", no, 1, LM_MAX_LAYERS, &hp->n_layers, err);

    if (status == WEIR_OK) status = lm_key_u32(lm, "embedding_length", no, 1, MAX_HIDDEN, &hp->hidden, err);
    if (status == WEIR_OK) status = lm_key_u32(lm, "feed_forward_length", no, 1, MAX_FFN, &hp->ffn, err);
    if (status == WEIR_OK)
        status = lm_key_u32(lm, "attention.head_count", no, 1, MAX_HEADS, &hp->n_heads, err);
    if (status == WEIR_OK)
        status = lm_key_u32(lm, "attention.head_count_kv", hp->n_heads, 1, MAX_HEADS, &hp->n_kv_heads, err);
    if (status == WEIR_OK)
        status = lm_key_u32(lm, "attention.key_length", hp->hidden / hp->n_heads, 2, LM_MAX_HEAD_DIM,
                            &hp->head_dim, err);
    if (status == WEIR_OK)
        status = lm_key_u32(lm, "attention.value_length", hp->head_dim, 2, LM_MAX_HEAD_DIM, &value_dim, err);
    if (status == WEIR_OK)
        status = lm_key_u32(lm, "context_length", no, 1, MAX_CONTEXT, &hp->context_tokens, err);
    if (status == WEIR_OK) status = lm_key_u32(lm, "expert_count", 0, 0, UINT32_MAX, &experts, err);
    if (status != WEIR_OK) return status;
    if (experts > 0)
        return base_fail(err, WEIR_ERR_UNSUPPORTED, "%s: a mixture of %u experts is not supported",
                         base_file_path(fmt_model_file(lm->file, 0)), experts);
    if (hp->n_heads % hp->n_kv_heads != 0 || hp->head_dim % 2 != 0 || hp->head_dim < 2 ||
        hp->head_dim > LM_MAX_HEAD_DIM || value_dim != hp->head_dim)
        return base_fail(err, WEIR_ERR_UNSUPPORTED,
                         "%s: %u heads over %u key-value heads of %u (values %u); the heads must divide, and "
                         "keys and values be of one even length up to %d",
                         base_file_path(fmt_model_file(lm->file, 0)), hp->n_heads, hp->n_kv_heads,
                         hp->head_dim, value_dim, LM_MAX_HEAD_DIM);
    return WEIR_OK;
}

/* The vocabulary's size is the embedding table's, which tensors must agree with anyway. */
static weir_status read_vocab(lm_model *lm, weir_error *err)
{
    const fmt_tensor *t = fmt_model_find_tensor(lm->file, "token_embd.weight");

    if (t == NULL)
        return base_fail(err, WEIR_ERR_MISSING_TENSOR, "%s: the tensor token_embd.weight is missing",
                         base_file_path(fmt_model_file(lm->file, 0)));
    if (t->n_dims != 2 || t->dims[1] == 0 || t->dims[1] > MAX_VOCAB)
        return base_fail(err, WEIR_ERR_MISSING_TENSOR,
                         "%s: the tensor token_embd.weight is %llu x %llu; wanted %u x up to %u",
                         base_file_path(fmt_model_file(lm->file, t->file)), (unsigned long long)t->dims[0],
                         (unsigned long long)t->dims[1], lm->hp.hidden, MAX_VOCAB);
    lm->hp.n_vocab = (uint32_t)t->dims[1];
    return WEIR_OK;
}

static weir_status read_scales(lm_model *lm, weir_error *err)
{
    const lm_hparams *hp = &lm->hp;
    /* Gemma 3 27B scales by its width per head instead of the head's length; its file does not say so, and
     * llama.cpp knows it by its 62 layers. */
    double per_head = lm->arch->gemma && hp->n_layers == 62 ? (double)hp->hidden / hp->n_heads : hp->head_dim;
    double eps, scale, attn_cap, final_cap, offset = 0;
    weir_status status = lm_key_f64(lm, "attention.layer_norm_rms_epsilon", (double)NAN, 0, 1, &eps, err);

    if (status == WEIR_OK)
        status = lm_key_f64(lm, "attention.scale", 1.0 / sqrt(per_head), 1e-9, 1e9, &scale, err);
    if (status == WEIR_OK) status = lm_key_f64(lm, "attn_logit_softcapping", 0, 0, 1e9, &attn_cap, err);
    if (status == WEIR_OK) status = lm_key_f64(lm, "final_logit_softcapping", 0, 0, 1e9, &final_cap, err);
    if (status == WEIR_OK) status = fmt_get_f64(lm->file, "weir.norm_offset", 0, &offset, err);
    if (status != WEIR_OK) return status;
    if (!isfinite(offset))
        return base_fail(err, WEIR_ERR_FORMAT, "%s: the key weir.norm_offset is not finite",
                         base_file_path(fmt_model_file(lm->file, 0)));
    lm->rms_eps = (float)eps;
    lm->attn_scale = (float)scale;
    lm->attn_softcap = (float)attn_cap;
    lm->final_softcap = (float)final_cap;
    lm->norm_offset = (float)offset;
    lm->embed_scale = lm->arch->gemma ? sqrtf((float)hp->hidden) : 1.0f;
    return WEIR_OK;
}

static weir_status read_rope_style(lm_model *lm, weir_error *err)
{
    const char *style;
    weir_status status = fmt_get_text(lm->file, "weir.rope_style", &style, err);

    lm->neox = lm->arch->neox;
    if (status != WEIR_OK || style == NULL) return status;
    if (strcmp(style, "neox") != 0 && strcmp(style, "norm") != 0)
        return base_fail(err, WEIR_ERR_FORMAT, "%s: weir.rope_style is \"%.32s\"; wanted norm or neox",
                         base_file_path(fmt_model_file(lm->file, 0)), style);
    lm->neox = strcmp(style, "neox") == 0;
    return WEIR_OK;
}

weir_status lm_hparams_read(lm_model *lm, weir_error *err)
{
    weir_status status = read_arch(lm, err);

    if (status == WEIR_OK) status = read_sizes(lm, err);
    if (status == WEIR_OK) status = read_vocab(lm, err);
    if (status == WEIR_OK) status = read_scales(lm, err);
    if (status == WEIR_OK) status = read_rope_style(lm, err);
    return status;
}

/* A list with one entry per layer: not 0 where the layer slides. */
static weir_status read_pattern_list(lm_model *lm, const fmt_value *value, weir_error *err)
{
    fmt_array *a;
    weir_status status;

    if (value->v.array.count != lm->hp.n_layers)
        return base_fail(err, WEIR_ERR_FORMAT, "%s: %s has %llu entries for %u layers",
                         base_file_path(fmt_model_file(lm->file, 0)), value->key,
                         (unsigned long long)value->v.array.count, lm->hp.n_layers);
    status = fmt_array_open(lm->env, lm->file, value, &a, err);
    if (status != WEIR_OK) return status;
    for (uint32_t i = 0; i < lm->hp.n_layers && status == WEIR_OK; i++) {
        int64_t flag = 0;

        status = fmt_array_next_i64(a, &flag, err);
        lm->layers[i].sliding = flag != 0;
    }
    fmt_array_close(a);
    return status;
}

/* Which layers slide. gemma3: all but every sixth (Gemma 3 report, section 2); elsewhere all, when the file
 * gives a window at all. A number n as the pattern means: all but every n-th, 1: none but see the arch. */
weir_status lm_layer_kinds_read(lm_model *lm, weir_error *err)
{
    const fmt_value *value = lm_key_find(lm, "attention.sliding_window_pattern");
    uint32_t every = lm->arch->gemma ? 6 : 0, window;
    uint64_t fallback = lm->arch->gemma ? UINT64_MAX : 0;
    weir_status status = lm_key_u32(lm, "attention.sliding_window", fallback, 0, UINT32_MAX, &window, err);

    if (status != WEIR_OK) return status;
    lm->local_rope = lm->arch->gemma;
    if (value != NULL && value->type == FMT_ARRAY) {
        status = read_pattern_list(lm, value, err);
    } else {
        status = lm_key_u32(lm, "attention.sliding_window_pattern", every, 0, LM_MAX_LAYERS, &every, err);
        for (uint32_t i = 0; i < lm->hp.n_layers; i++)
            lm->layers[i].sliding = every == 0 || (i + 1) % every != 0;
    }
    if (window > MAX_CONTEXT) window = 0; /* wider than any context: no window */
    lm->hp.window = window;
    return status;
}
