/* The caches of a model from a GGUF header (key names: ggml documentation, docs/gguf.md). */
#include "fmt_caches_internal.h"
#include "fmt_model.h"
#include "fmt_store.h"

#include <stdio.h>
#include <string.h>

typedef struct header {
    base_env *env;
    const fmt_model *m;
    const char *path, *arch;
    weir_error *err;
} header;

static const fmt_value *find(const header *h, const char *key)
{
    char full[160];
    snprintf(full, sizeof full, "%s.%s", h->arch, key);
    return fmt_model_find_value(h->m, full);
}

/* 0 where the key is missing. */
static weir_status number(const header *h, const char *key, uint64_t max, uint64_t *out)
{
    char full[160];
    snprintf(full, sizeof full, "%s.%s", h->arch, key);
    return fmt_get_u64(h->m, full, 0, 0, max, out, h->err);
}

/* A number for all layers, or an array with one for each; *given tells whether the key is there. */
static weir_status per_layer(const header *h, const char *key, uint64_t n_layers, uint64_t *list, bool *given)
{
    const fmt_value *v = find(h, key);
    *given = v != NULL;
    memset(list, 0, (size_t)n_layers * sizeof *list);
    if (v == NULL || v->type != FMT_ARRAY) {
        uint64_t one;
        weir_status s = number(h, key, (uint64_t)FMT_CACHES_MAX_SIZE, &one);
        for (uint64_t i = 0; i < n_layers && s == WEIR_OK; i++) list[i] = one;
        return s;
    }
    if (v->v.array.count != n_layers)
        return base_fail(h->err, WEIR_ERR_FORMAT, "%s: %s has %llu entries for %llu layers", h->path, v->key,
                         (unsigned long long)v->v.array.count, (unsigned long long)n_layers);
    fmt_array *a;
    weir_status s = fmt_array_open(h->env, h->m, v, &a, h->err);
    if (s != WEIR_OK) return s;
    for (uint64_t i = 0; i < n_layers && s == WEIR_OK; i++) {
        int64_t x = 0;
        s = fmt_array_next_i64(a, &x, h->err);
        if (s == WEIR_OK && (x < 0 || x > FMT_CACHES_MAX_SIZE))
            s = base_fail(h->err, WEIR_ERR_FORMAT, "%s: %s has %lld in it", h->path, v->key, (long long)x);
        list[i] = s == WEIR_OK ? (uint64_t)x : 0;
    }
    fmt_array_close(a);
    return s;
}

typedef struct layers {
    uint64_t n;
    uint64_t kv_heads[FMT_CACHES_MAX_LAYERS], ffn[FMT_CACHES_MAX_LAYERS], slides[FMT_CACHES_MAX_LAYERS];
} layers;

/* slides[i]: not 0 where layer i has a window. */
static weir_status read_windows(const header *h, layers *l, uint64_t window)
{
    const fmt_cache_defaults *d = fmt_cache_defaults_find(h->arch, true);
    const fmt_value *v = find(h, "attention.sliding_window_pattern");
    bool given;
    if (v != NULL && v->type == FMT_ARRAY)
        return per_layer(h, "attention.sliding_window_pattern", l->n, l->slides, &given);
    uint64_t every;
    weir_status s = number(h, "attention.sliding_window_pattern", FMT_CACHES_MAX_LAYERS, &every);
    if (s != WEIR_OK) return s;
    fmt_window_rule rule = every != 0 ? FMT_WINDOW_BUT_EVERY : d != NULL ? d->rule : FMT_WINDOW_UNKNOWN;
    if (every == 0 && d != NULL) every = d->every;
    if (window != 0 && rule == FMT_WINDOW_UNKNOWN)
        return base_fail(h->err, WEIR_ERR_UNSUPPORTED,
                         "%s: %.40s has a sliding window, and which layers it is for is not told; say it by "
                         "options: --layers, --window-layers, ...",
                         h->path, h->arch);
    for (uint64_t i = 0; i < l->n; i++) l->slides[i] = window != 0 && fmt_window_slides(rule, every, i);
    return WEIR_OK;
}

static weir_status read_attention(const header *h, layers *l, fmt_cache_layers *a)
{
    uint64_t heads = 0, hidden = 0;
    const uint64_t max = (uint64_t)FMT_CACHES_MAX_SIZE;
    const fmt_value *v = find(h, "attention.head_count");
    bool one = v == NULL || v->type != FMT_ARRAY, given;
    weir_status s = one ? number(h, "attention.head_count", max, &heads) : WEIR_OK;
    if (s == WEIR_OK) s = number(h, "embedding_length", max, &hidden);
    if (s == WEIR_OK) s = number(h, "attention.key_length", max, &a->head_dim);
    if (s == WEIR_OK) s = number(h, "attention.value_length", max, &a->value_dim);
    if (s == WEIR_OK) s = number(h, "attention.sliding_window", UINT64_MAX, &a->window);
    if (s == WEIR_OK) s = number(h, "attention.kv_lora_rank", max, &a->latent_rank);
    if (s == WEIR_OK) s = number(h, "rope.dimension_count", max, &a->rope_dim);
    if (s == WEIR_OK) s = per_layer(h, "attention.head_count_kv", l->n, l->kv_heads, &given);
    if (s != WEIR_OK) return s;
    for (uint64_t i = 0; i < l->n && !given; i++) l->kv_heads[i] = heads;
    if (a->head_dim == 0 && heads != 0 && hidden % heads == 0) a->head_dim = hidden / heads;
    if (a->value_dim == a->head_dim) a->value_dim = 0;
    return WEIR_OK;
}

/* *state_bytes 0: no recurrent layers. */
static weir_status read_state(const header *h, const layers *l, uint64_t *state_bytes)
{
    const uint64_t max = (uint64_t)FMT_CACHES_MAX_SIZE;
    uint64_t inner, state, groups, conv, without = 0;
    weir_status s = number(h, "ssm.inner_size", max, &inner);
    if (s == WEIR_OK) s = number(h, "ssm.state_size", max, &state);
    if (s == WEIR_OK) s = number(h, "ssm.group_count", max, &groups);
    if (s == WEIR_OK) s = number(h, "ssm.conv_kernel", max, &conv);
    if (s != WEIR_OK) return s;
    *state_bytes = FMT_STATE_VALUE_BYTES * fmt_state_values(inner, state, groups, conv);
    for (uint64_t i = 0; i < l->n; i++) without += l->kv_heads[i] == 0;
    if (inner != 0 && without == 0)
        return base_fail(h->err, WEIR_ERR_UNSUPPORTED,
                         "%s: %.40s has recurrent layers, and which ones is not told; say it by options: "
                         "--layers, --attention-layers, --state, ...",
                         h->path, h->arch);
    return WEIR_OK;
}

static weir_status read_layers(const header *h, layers *l, fmt_caches *out)
{
    fmt_cache_layers a = {0};
    uint64_t state_bytes;
    bool given = false;
    weir_status s = number(h, "block_count", FMT_CACHES_MAX_LAYERS, &l->n);
    if (s == WEIR_OK) s = number(h, "context_length", UINT64_MAX, &out->context_tokens);
    if (s == WEIR_OK) s = read_attention(h, l, &a);
    if (s == WEIR_OK) s = read_windows(h, l, a.window);
    if (s == WEIR_OK) s = per_layer(h, "feed_forward_length", l->n, l->ffn, &given);
    if (s == WEIR_OK) s = read_state(h, l, &state_bytes);
    bool list = s == WEIR_OK && given && find(h, "feed_forward_length")->type == FMT_ARRAY;
    for (uint64_t i = 0; i < l->n && s == WEIR_OK; i++) {
        fmt_cache_layers g = {.kind = FMT_CACHE_FULL};
        if (l->kv_heads[i] == 0)
            /* Where each layer is one thing only, those with a feed-forward part keep nothing. */
            g.kind = state_bytes == 0 || (list && l->ffn[i] != 0) ? FMT_CACHE_NONE : FMT_CACHE_STATE;
        else if (a.latent_rank != 0)
            g.kind = FMT_CACHE_LATENT;
        else if (l->slides[i] != 0)
            g.kind = FMT_CACHE_WINDOW;
        if (g.kind == FMT_CACHE_FULL || g.kind == FMT_CACHE_WINDOW)
            g.kv_heads = l->kv_heads[i], g.head_dim = a.head_dim, g.value_dim = a.value_dim;
        if (g.kind == FMT_CACHE_WINDOW) g.window = a.window;
        if (g.kind == FMT_CACHE_LATENT) g.latent_rank = a.latent_rank, g.rope_dim = a.rope_dim;
        if (g.kind == FMT_CACHE_STATE) g.state_bytes = state_bytes;
        s = fmt_caches_add(out, &g, h->path, h->err);
    }
    return s;
}

weir_status fmt_caches_read_gguf(base_env *env, const char *path, fmt_caches *out, weir_error *err)
{
    fmt_model *m;
    weir_status s = fmt_model_open(env, path, &m, err);
    if (s != WEIR_OK) return s;
    header h = {.env = env, .m = m, .path = path, .err = err};
    layers *l = base_alloc(env, BASE_TAG_METADATA, sizeof *l, err);
    s = l != NULL ? fmt_get_text(m, "general.architecture", &h.arch, err) : err->code;
    if (s == WEIR_OK && (h.arch == NULL || strlen(h.arch) > 60 || !fmt_name_is_clean(h.arch, strlen(h.arch))))
        s = base_fail(err, WEIR_ERR_FORMAT, "%s: general.architecture is missing or no name", path);
    if (s == WEIR_OK) {
        snprintf(out->architecture, sizeof out->architecture, "%s", h.arch);
        s = read_layers(&h, l, out);
    }
    if (s == WEIR_OK) fmt_caches_note_unknown(out);
    base_free(env, l);
    fmt_model_close(m);
    return s;
}
