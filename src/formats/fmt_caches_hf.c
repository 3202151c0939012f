/* The caches of a model from its config.json (transformers): which layers attend to everything, which slide,
 * share a latent vector, or keep a state, and in what sizes. The names of the keys are those of the
 * configuration classes; a layer that cannot be told is an error, never a guess. */
#include "fmt_caches_internal.h"
#include "fmt_hf_json.h"

#include <stdio.h>
#include <string.h>

typedef struct config {
    const fmt_hf_doc *doc;
    const json_t *text;
    const fmt_cache_defaults *defaults; /* NULL: a type that is not in the table */
    uint64_t n_layers, heads, hidden;
    fmt_cache_layers attention, state;
    weir_error *err;
} config;

/* The first of the keys that is there, 0 where none is. */
static weir_status number(const config *c, const char *const *keys, int64_t max, uint64_t *out)
{
    *out = 0;
    for (; *keys != NULL; keys++) {
        int64_t v;
        if (fmt_hf_get(c->text, *keys) == NULL) continue;
        weir_status s = fmt_hf_int(c->doc, c->text, *keys, 0, 0, max, &v, c->err);
        *out = s == WEIR_OK ? (uint64_t)v : 0;
        return s;
    }
    return WEIR_OK;
}
#define NUMBER(c, max, out, ...) number(c, (const char *const[]){__VA_ARGS__, NULL}, max, out)

static bool has(const config *c, const char *key)
{
    return fmt_hf_get(c->text, key) != NULL;
}

/* ---- sizes ---- */

static weir_status read_sizes(config *c, fmt_caches *out)
{
    const int64_t max = FMT_CACHES_MAX_SIZE;
    const fmt_cache_defaults *d = c->defaults;
    fmt_cache_layers *a = &c->attention;
    weir_status s = NUMBER(c, FMT_CACHES_MAX_LAYERS, &c->n_layers, "num_hidden_layers", "n_layer",
                           "num_layers", "n_layers");
    if (s == WEIR_OK) s = NUMBER(c, max, &c->heads, "num_attention_heads", "n_head", "n_heads");
    if (s == WEIR_OK) s = NUMBER(c, max, &c->hidden, "hidden_size", "n_embd", "d_model");
    if (s == WEIR_OK) s = NUMBER(c, max, &a->kv_heads, "num_key_value_heads", "num_kv_heads");
    if (s == WEIR_OK) s = NUMBER(c, max, &a->head_dim, "head_dim", "attention_head_dim");
    if (s == WEIR_OK)
        s = NUMBER(c, INT64_MAX, &out->context_tokens, "max_position_embeddings", "n_positions", "n_ctx");
    if (s != WEIR_OK) return s;
    if (a->kv_heads == 0 && d != NULL) a->kv_heads = d->kv_as_heads ? c->heads : d->kv_heads;
    if (a->head_dim == 0 && d != NULL) a->head_dim = d->head_dim;
    if (a->head_dim == 0 && c->heads != 0 && c->hidden % c->heads == 0) a->head_dim = c->hidden / c->heads;
    if (out->context_tokens == 0 && d != NULL) out->context_tokens = d->context;
    return WEIR_OK;
}

static weir_status read_window(config *c)
{
    bool by_default = c->defaults != NULL && strncmp(c->defaults->type, "qwen", 4) != 0, use;
    weir_status s =
        fmt_hf_bool(c->doc, c->text, "use_sliding_window", by_default || c->defaults == NULL, &use, c->err);
    if (s == WEIR_OK)
        s = NUMBER(c, INT64_MAX, &c->attention.window, "sliding_window", "sliding_window_size",
                   "attention_chunk_size");
    if (s != WEIR_OK) return s;
    bool null = json_is_null(json_object_get(c->text, "sliding_window")); /* an explicit "none" */
    if (c->attention.window == 0 && c->defaults != NULL && !null) c->attention.window = c->defaults->window;
    if (!use) c->attention.window = 0;
    return WEIR_OK;
}

/* Bytes of a recurrent layer's state, 0 where the numbers are not there. */
static weir_status read_state(config *c)
{
    const int64_t max = FMT_CACHES_MAX_SIZE;
    uint64_t heads, dim, groups, state, conv, expand, values = 0, key_heads, key_dim, cached;
    weir_status s = NUMBER(c, max, &heads, "mamba_num_heads", "mamba_n_heads", "linear_num_value_heads");
    if (s == WEIR_OK) s = NUMBER(c, max, &dim, "mamba_head_dim", "mamba_d_head", "linear_value_head_dim");
    if (s == WEIR_OK) s = NUMBER(c, max, &groups, "n_groups", "mamba_n_groups");
    if (s == WEIR_OK) s = NUMBER(c, max, &state, "ssm_state_size", "mamba_d_state");
    if (s == WEIR_OK) s = NUMBER(c, max, &conv, "conv_kernel", "mamba_d_conv", "linear_conv_kernel_dim");
    if (s == WEIR_OK) s = NUMBER(c, 1024, &expand, "mamba_expand");
    if (s == WEIR_OK) s = NUMBER(c, max, &key_heads, "linear_num_key_heads");
    if (s == WEIR_OK) s = NUMBER(c, max, &key_dim, "linear_key_head_dim");
    if (s == WEIR_OK) s = NUMBER(c, max, &cached, "conv_L_cache");
    if (s != WEIR_OK) return s;
    if (key_heads != 0) /* a gated delta rule: one matrix per value head, its convolution over q, k and v */
        values = fmt_state_values(heads * dim, key_dim, 0, 1) +
                 (conv > 0 ? (conv - 1) * (2 * key_heads * key_dim + heads * dim) : 0);
    else if (heads != 0)
        values = fmt_state_values(heads * dim, state, groups, conv);
    else if (cached != 0) /* a short convolution and nothing else */
        values = (cached - 1) * c->hidden;
    else
        values = fmt_state_values(expand * c->hidden, state, 0, conv);
    c->state.state_bytes = values <= UINT64_MAX / FMT_STATE_VALUE_BYTES ? values * FMT_STATE_VALUE_BYTES : 0;
    return WEIR_OK;
}

/* ---- kinds ---- */

static weir_status cannot_tell(const config *c, const char *why, const char *word)
{
    return base_fail(c->err, WEIR_ERR_UNSUPPORTED,
                     "%s: %s%.60s; say it by options: --layers, --attention-layers, --window-layers, ...",
                     c->doc->path, why, word);
}

/* layer_types: one word for each layer. */
static weir_status kinds_by_list(const config *c, uint8_t *kinds)
{
    static const struct {
        const char *word;
        fmt_cache_kind kind;
    } words[] = {{"full_attention", FMT_CACHE_FULL},
                 {"attention", FMT_CACHE_FULL},
                 {"sliding_attention", FMT_CACHE_WINDOW},
                 {"chunked_attention", FMT_CACHE_WINDOW},
                 {"linear_attention", FMT_CACHE_STATE},
                 {"mamba", FMT_CACHE_STATE},
                 {"mamba2", FMT_CACHE_STATE},
                 {"conv", FMT_CACHE_STATE}};
    const json_t *list = fmt_hf_get(c->text, "layer_types");
    if (!json_is_array(list) || json_array_size(list) != c->n_layers)
        return base_fail(c->err, WEIR_ERR_FORMAT, "%s: \"layer_types\" is no list of %llu entries",
                         c->doc->path, (unsigned long long)c->n_layers);
    for (size_t i = 0; i < c->n_layers; i++) {
        const char *word = json_string_value(json_array_get(list, i));
        size_t k = 0, n = sizeof words / sizeof *words;
        while (k < n && (word == NULL || strcmp(word, words[k].word) != 0)) k++;
        if (k == n)
            return cannot_tell(c, "\"layer_types\" has a kind that is not known: ",
                               word != NULL && fmt_name_is_clean(word, strlen(word)) ? word : "?");
        kinds[i] = words[k].kind;
    }
    return WEIR_OK;
}

/* hybrid_override_pattern: one letter for each layer (Nemotron-H). */
static weir_status kinds_by_letters(const config *c, uint8_t *kinds)
{
    const char *letters;
    weir_status s = fmt_hf_str(c->doc, c->text, "hybrid_override_pattern", &letters, c->err);
    if (s != WEIR_OK) return s;
    if (strlen(letters) != c->n_layers)
        return base_fail(c->err, WEIR_ERR_FORMAT, "%s: \"hybrid_override_pattern\" has not %llu letters",
                         c->doc->path, (unsigned long long)c->n_layers);
    for (size_t i = 0; i < c->n_layers; i++) {
        char l = letters[i];
        if (l != 'M' && l != '*' && l != '-' && l != 'E')
            return cannot_tell(c, "\"hybrid_override_pattern\" has a letter that is not known", "");
        kinds[i] = l == 'M' ? FMT_CACHE_STATE : l == '*' ? FMT_CACHE_FULL : FMT_CACHE_NONE;
    }
    return WEIR_OK;
}

/* Attention in layers offset, offset + period, ... or in those of a list; states in all others. */
static weir_status kinds_of_hybrid(const config *c, uint8_t *kinds)
{
    uint64_t period, offset, interval;
    weir_status s = NUMBER(c, FMT_CACHES_MAX_LAYERS, &period, "attn_layer_period");
    if (s == WEIR_OK) s = NUMBER(c, FMT_CACHES_MAX_LAYERS, &offset, "attn_layer_offset");
    if (s == WEIR_OK) s = NUMBER(c, FMT_CACHES_MAX_LAYERS, &interval, "full_attention_interval");
    if (s != WEIR_OK) return s;
    if (interval != 0) period = interval, offset = interval - 1;
    const json_t *list = fmt_hf_get(c->text, "attn_layer_indices");
    if (period == 0 && !json_is_array(list)) return cannot_tell(c, "which layers attend is not told", "");
    for (size_t i = 0; i < c->n_layers; i++)
        kinds[i] = period != 0 && i % period == offset ? FMT_CACHE_FULL : FMT_CACHE_STATE;
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_int_t at = json_integer_value(json_array_get(list, i));
        if (!json_is_integer(json_array_get(list, i)) || at < 0 || (uint64_t)at >= c->n_layers)
            return base_fail(c->err, WEIR_ERR_FORMAT, "%s: \"attn_layer_indices\" names no layer",
                             c->doc->path);
        kinds[at] = FMT_CACHE_FULL;
    }
    return WEIR_OK;
}

static weir_status kinds_by_rule(const config *c, uint8_t *kinds)
{
    const fmt_cache_defaults *d = c->defaults;
    fmt_window_rule rule = d != NULL ? d->rule : FMT_WINDOW_UNKNOWN;
    uint64_t every, full;
    bool qwen = d != NULL && strncmp(d->type, "qwen", 4) == 0;
    weir_status s =
        NUMBER(c, FMT_CACHES_MAX_LAYERS, &every, "sliding_window_pattern", "_sliding_window_pattern");
    if (s == WEIR_OK) s = NUMBER(c, INT64_MAX, &full, "max_window_layers");
    if (s != WEIR_OK) return s;
    if (every != 0) rule = FMT_WINDOW_BUT_EVERY;
    if (every == 0 && d != NULL) every = d->every;
    if (qwen && !has(c, "max_window_layers")) full = 28;
    if (c->attention.window != 0 && rule == FMT_WINDOW_UNKNOWN && !qwen)
        return cannot_tell(c, "there is a sliding window, and which layers it is for is not told", "");
    for (size_t i = 0; i < c->n_layers; i++) {
        bool slides = qwen ? i >= full : fmt_window_slides(rule, every, i);
        kinds[i] = slides && c->attention.window != 0 ? FMT_CACHE_WINDOW : FMT_CACHE_FULL;
    }
    return WEIR_OK;
}

static weir_status read_kinds(const config *c, uint8_t *kinds)
{
    if (has(c, "layer_types")) return kinds_by_list(c, kinds);
    if (has(c, "hybrid_override_pattern")) return kinds_by_letters(c, kinds);
    if (has(c, "attn_layer_period") || has(c, "attn_layer_indices") || has(c, "full_attention_interval"))
        return kinds_of_hybrid(c, kinds);
    static const char *const signs[] = {"mamba_d_state", "ssm_state_size", "state_size",
                                        "block_types",   "ssm_cfg",        "time_mix_extra",
                                        "lru_width",     "rescale_every",  "layers_block_type"};
    for (size_t i = 0; i < sizeof signs / sizeof *signs; i++)
        if (has(c, signs[i]))
            return cannot_tell(c, "there are recurrent layers, but not told which: ", signs[i]);
    if (c->attention.latent_rank != 0) {
        memset(kinds, FMT_CACHE_LATENT, (size_t)c->n_layers);
        return WEIR_OK;
    }
    return kinds_by_rule(c, kinds);
}

static weir_status add_layers(config *c, const uint8_t *kinds, fmt_caches *out)
{
    weir_status s = WEIR_OK;
    const fmt_cache_layers *a = &c->attention;
    for (size_t i = 0; i < c->n_layers && s == WEIR_OK; i++) {
        fmt_cache_layers g = {.kind = (fmt_cache_kind)kinds[i]};
        bool heads = g.kind == FMT_CACHE_FULL || g.kind == FMT_CACHE_WINDOW;
        /* A latent model's listed attention layers are latent. */
        if (heads && a->latent_rank != 0) g.kind = FMT_CACHE_LATENT;
        if (g.kind == FMT_CACHE_LATENT) g.latent_rank = a->latent_rank, g.rope_dim = a->rope_dim;
        if (g.kind == FMT_CACHE_FULL || g.kind == FMT_CACHE_WINDOW)
            g.kv_heads = a->kv_heads, g.head_dim = a->head_dim, g.value_dim = a->value_dim;
        if (g.kind == FMT_CACHE_WINDOW) g.window = a->window;
        if (g.kind == FMT_CACHE_STATE) g.state_bytes = c->state.state_bytes;
        s = fmt_caches_add(out, &g, c->doc->path, c->err);
    }
    return s;
}

static weir_status read_config(config *c, fmt_caches *out)
{
    uint8_t kinds[FMT_CACHES_MAX_LAYERS];
    const char *type;
    bool both;
    const json_t *nested = fmt_hf_get(c->doc->root, "text_config");
    c->text = json_is_object(nested) ? nested : c->doc->root;
    weir_status s = fmt_hf_str(c->doc, c->text, "model_type", &type, c->err);
    if (s == WEIR_OK && type == NULL) s = fmt_hf_str(c->doc, c->doc->root, "model_type", &type, c->err);
    if (s == WEIR_OK) s = fmt_hf_bool(c->doc, c->doc->root, "is_encoder_decoder", false, &both, c->err);
    if (s != WEIR_OK) return s;
    if (both) return cannot_tell(c, "encoder and decoder keep different caches", "");
    bool clean = type != NULL && fmt_name_is_clean(type, strlen(type));
    snprintf(out->architecture, sizeof out->architecture, "%s", clean ? type : "?");
    c->defaults = fmt_cache_defaults_find(type, false);
    s = read_sizes(c, out);
    if (s == WEIR_OK) s = read_window(c);
    if (s == WEIR_OK) s = NUMBER(c, FMT_CACHES_MAX_SIZE, &c->attention.latent_rank, "kv_lora_rank");
    if (s == WEIR_OK) s = NUMBER(c, FMT_CACHES_MAX_SIZE, &c->attention.rope_dim, "qk_rope_head_dim");
    if (s == WEIR_OK) s = read_state(c);
    if (s == WEIR_OK) s = read_kinds(c, kinds);
    if (s == WEIR_OK) s = add_layers(c, kinds, out);
    if (s == WEIR_OK) fmt_caches_note_unknown(out);
    return s;
}

weir_status fmt_caches_read_hf(base_env *env, const char *folder, const char *name, fmt_caches *out,
                               weir_error *err)
{
    fmt_hf_doc doc = {0};
    config c = {.doc = &doc, .err = err};
    weir_status s = fmt_hf_doc_read(env, folder, name, &doc, err);
    if (s == WEIR_OK && doc.root == NULL)
        s = base_fail(
            err, WEIR_ERR_NOT_FOUND,
            "%s/%s is not there; a configuration is a config.json, a folder with one, or a .gguf file",
            folder, name);
    if (s == WEIR_OK) s = read_config(&c, out);
    fmt_hf_doc_finish(&doc);
    return s;
}
