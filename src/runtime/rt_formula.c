/* Capacity from plain numbers: what a session's caches take by kind of layer (R14.3), and how many sessions
 * fit (R14.4). Every product and sum is checked; the formulas and their sources stand in weir.h. */
#include "rt_internal.h"

#include <inttypes.h>
#include <string.h>

/* Bytes of a run of values: whole blocks. */
typedef struct cell {
    uint64_t values, bytes;
    bool block; /* takes its bytes for fewer values too; else they are a fraction */
} cell;

static const char *const KINDS[] = {"full", "window", "latent", "state"};

void weir_formula_init(weir_formula *f)
{
    *f = (weir_formula){.struct_size = sizeof *f, .key_type = "F16"};
}

/* "2", "0.5", "1.0625": bytes per value as a fraction of whole numbers. */
static bool parse_decimal(const char *text, cell *out)
{
    enum { MAX_DIGITS = 9 };
    uint64_t n = 0, scale = 1;
    int digits = 0;
    bool point = false;
    for (const char *p = text; *p != '\0'; p++) {
        if (*p == '.' && !point && digits > 0) {
            point = true;
            continue;
        }
        if (*p < '0' || *p > '9' || ++digits > MAX_DIGITS) return false;
        n = 10 * n + (uint64_t)(*p - '0');
        if (point) scale *= 10;
    }
    *out = (cell){.values = scale, .bytes = n};
    return n > 0 && (!point || scale > 1);
}

static weir_status parse_type(const char *text, const char *what, cell *out, weir_error *err)
{
    int id = base_dtype_find(text);
    if (id >= 0) {
        const base_dtype_info *info = base_dtype_get((uint32_t)id);
        *out = (cell){.values = info->block_elements, .bytes = info->block_bytes, .block = true};
        return WEIR_OK;
    }
    if (parse_decimal(text, out)) return WEIR_OK;
    return base_fail(
        err, WEIR_ERR_INVALID_ARGUMENT,
        "the %s type \"%.15s\" is neither a type (F16, BF16, F32, Q8_0, Q4_0, ...) nor bytes per "
        "value above 0, such as 2 or 0.5",
        what, text);
}

static weir_status too_large(const char *what, weir_error *err)
{
    return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                     "%s is more than 64 bits hold; the numbers cannot be right", what);
}

/* n rounded up to a multiple of step (0: 1). */
static bool round_up(uint64_t n, uint64_t step, uint64_t *out)
{
    if (step <= 1 || n % step == 0) {
        *out = n;
        return true;
    }
    return base_add(n, step - n % step, out);
}

static bool row_bytes(uint64_t n, const cell *c, uint64_t *out)
{
    if (c->values == 1) return base_mul(n, c->bytes, out);
    uint64_t whole = n / c->values, rest = n % c->values, part;
    if (!base_mul(rest, c->bytes, &part)) return false;
    part = c->block ? (rest != 0 ? c->bytes : 0) : (part + c->values - 1) / c->values;
    return base_mul(whole, c->bytes, out) && base_add(*out, part, out);
}

static weir_status need(uint32_t i, const weir_cache_layers *g, const char *what, uint64_t value,
                        weir_error *err)
{
    if (value != 0) return WEIR_OK;
    return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                     "layers of kind %s (entry %" PRIu32 "): %s is missing or 0", KINDS[g->kind], i, what);
}

/* Bytes per token of one layer; 0 for a state. */
static weir_status token_bytes(uint32_t i, const weir_cache_layers *g, const cell *key, const cell *value,
                               uint64_t *out, weir_error *err)
{
    uint64_t n_keys, n_values, values;
    weir_status s;
    *out = 0;
    if (g->kind == WEIR_CACHE_STATE) return need(i, g, "the bytes of a state", g->state_bytes, err);
    if (g->kind == WEIR_CACHE_LATENT) {
        s = need(i, g, "the latent rank", g->latent_rank, err);
        if (s != WEIR_OK) return s;
        if (!base_add(g->latent_rank, g->rope_dim, &n_keys) || !row_bytes(n_keys, key, out))
            return too_large("a token's latent vector", err);
        return WEIR_OK;
    }
    s = need(i, g, "the number of KV heads", g->n_kv_heads, err);
    if (s == WEIR_OK) s = need(i, g, "the head dimension", g->head_dim, err);
    if (s == WEIR_OK && g->kind == WEIR_CACHE_WINDOW) s = need(i, g, "the window", g->window, err);
    if (s != WEIR_OK) return s;
    uint64_t value_dim = g->value_dim != 0 ? g->value_dim : g->head_dim;
    if (!base_mul(g->n_kv_heads, g->head_dim, &n_keys) || !base_mul(g->n_kv_heads, value_dim, &n_values) ||
        !row_bytes(n_keys, key, out) || !row_bytes(n_values, value, &values) || !base_add(*out, values, out))
        return too_large("a token's keys and values", err);
    return WEIR_OK;
}

static weir_status bill(const weir_formula *f, uint32_t i, uint64_t ctx_tokens, const cell *key,
                        const cell *value, weir_cache_bill *out, weir_error *err)
{
    const weir_cache_layers *g = &f->caches[i];
    if ((unsigned)g->kind > WEIR_CACHE_STATE)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "entry %" PRIu32 " is of no known kind (%d)", i,
                         (int)g->kind);
    weir_status s = need(i, g, "the number of layers", g->n_layers, err);
    *out = (weir_cache_bill){.kind = g->kind, .n_layers = g->n_layers};
    if (s == WEIR_OK) s = token_bytes(i, g, key, value, &out->bytes_per_layer_token, err);
    if (s != WEIR_OK) return s;
    uint64_t layer = g->state_bytes;
    if (g->kind != WEIR_CACHE_STATE) {
        out->tokens = g->kind == WEIR_CACHE_WINDOW && g->window < ctx_tokens ? g->window : ctx_tokens;
        if (!round_up(out->tokens, f->page_tokens, &out->tokens))
            return too_large("the context, rounded up to pages,", err);
        if (!base_mul(out->tokens, out->bytes_per_layer_token, &layer))
            return too_large("a layer's cache", err);
    }
    if (!round_up(layer, f->align_bytes, &layer) || !base_mul(layer, g->n_layers, &out->bytes))
        return too_large("the cache of all layers", err);
    return WEIR_OK;
}

static weir_status bills(const weir_formula *f, uint64_t ctx_tokens, weir_formula_result *r, weir_error *err)
{
    cell key, value;
    const char *value_type = f->value_type[0] != '\0' ? f->value_type : f->key_type;
    weir_status s = parse_type(f->key_type, "cache", &key, err);
    if (s == WEIR_OK) s = parse_type(value_type, "values' cache", &value, err);
    r->kv_bytes = 0;
    for (uint32_t i = 0; i < f->n_caches && s == WEIR_OK; i++) {
        s = bill(f, i, ctx_tokens, &key, &value, &r->bills[i], err);
        if (s == WEIR_OK && !base_add(r->kv_bytes, r->bills[i].bytes, &r->kv_bytes))
            s = too_large("the cache of all layers", err);
    }
    r->n_bills = f->n_caches;
    return s;
}

/* R14.4 */
static weir_status count_sessions(const weir_formula *f, weir_formula_result *r, weir_error *err)
{
    uint64_t others;
    if (!base_add(r->kv_bytes, f->workspace_bytes, &r->session_bytes))
        return too_large("cache and workspace of a session", err);
    if (f->total_bytes == 0) {
        if (f->system_bytes != 0 || f->weight_bytes != 0)
            return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                             "system and weights are given, but no total memory to take them from");
        return WEIR_OK;
    }
    if (!base_add(f->system_bytes, f->weight_bytes, &others)) return too_large("system and weights", err);
    r->free_bytes = f->total_bytes > others ? f->total_bytes - others : 0;
    r->sessions = r->free_bytes / r->session_bytes; /* above 0: every cache is */
    if (r->sessions == 0 && (!base_add(others, r->session_bytes, &others) || others < f->total_bytes ||
                             (r->missing_bytes = others - f->total_bytes) == 0))
        return too_large("what one session needs", err);
    return WEIR_OK;
}

weir_status weir_formula_evaluate(const weir_formula *f, weir_formula_result *out, weir_error *err)
{
    weir_error local;
    err = rt_error(err, &local);
    if (!RT_IS(weir_formula, f, err)) return err->code;
    if (f->n_caches == 0 || f->n_caches > WEIR_MAX_CACHES)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                         "there are %" PRIu32 " kinds of layers; 1 to %d can be added up", f->n_caches,
                         WEIR_MAX_CACHES);
    if (f->ctx_tokens == 0)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "the context is missing or 0 tokens");
    if (f->ctx_tokens == UINT64_MAX) return too_large("the context", err);
    if (memchr(f->key_type, 0, sizeof f->key_type) == NULL ||
        memchr(f->value_type, 0, sizeof f->value_type) == NULL)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "a cache type's name has no end");
    weir_formula_result r = {.struct_size = sizeof r}, more;
    weir_status s = bills(f, f->ctx_tokens + 1, &more, err);
    if (s == WEIR_OK) s = bills(f, f->ctx_tokens, &r, err);
    if (s == WEIR_OK) s = count_sessions(f, &r, err);
    if (s != WEIR_OK) return s;
    r.next_token_bytes = more.kv_bytes - r.kv_bytes;
    *out = r;
    return WEIR_OK;
}

_Static_assert((int)WEIR_CACHE_FULL == (int)FMT_CACHE_FULL && (int)WEIR_CACHE_STATE == (int)FMT_CACHE_STATE &&
                   WEIR_MAX_CACHES == FMT_MAX_CACHES,
               "kinds are handed through");

weir_status weir_formula_read(weir_context *c, const char *path, weir_formula *f, weir_error *err)
{
    weir_error local;
    err = rt_error(err, &local);
    fmt_caches found;
    if (!RT_IS(weir_formula, f, err)) return err->code;
    weir_status s = base_path_is_url(path) ? rt_network_set(c, err) : WEIR_OK;
    if (s == WEIR_OK) s = fmt_caches_read(c->env, path, &found, err);
    if (s != WEIR_OK) return s;
    f->n_caches = found.n;
    for (uint32_t i = 0; i < found.n; i++) {
        const fmt_cache_layers *g = &found.items[i];
        f->caches[i] = (weir_cache_layers){
            .kind = (weir_cache_kind)g->kind,
            .n_layers = g->n_layers,
            .n_kv_heads = g->kv_heads,
            .head_dim = g->head_dim,
            .value_dim = g->value_dim,
            .window = g->window,
            .latent_rank = g->latent_rank,
            .rope_dim = g->rope_dim,
            .state_bytes = g->state_bytes,
        };
    }
    memcpy(f->architecture, found.architecture, sizeof f->architecture);
    memcpy(f->unknown, found.unknown, sizeof f->unknown);
    f->trained_ctx_tokens = found.context_tokens;
    return WEIR_OK;
}
