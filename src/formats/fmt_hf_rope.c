/* Rotary position settings. transformers 4 has rope_theta and rope_scaling; 5 has rope_parameters, per kind
 * of layer for Gemma 3. Rules: transformers, modeling_rope_utils.py. */
#include "fmt_hf_config.h"

#include <math.h>
#include <string.h>

typedef struct rope {
    const fmt_hf_config *c;
    const json_t *o; /* the object with the scaling's settings; NULL: none */
    double factor;
    int64_t original;
} rope;

static weir_status yarn(const rope *r, weir_error *err)
{
    const fmt_hf_doc *d = r->c->doc;
    double attention, fast, slow, usual = r->factor > 1 ? 0.1 * log(r->factor) + 1 : 1;
    bool truncate;
    weir_status s = fmt_hf_num(d, r->o, "attention_factor", usual, 0, 1e6, &attention, err);
    if (s == WEIR_OK) s = fmt_hf_num(d, r->o, "beta_fast", 32, 0, 1e6, &fast, err);
    if (s == WEIR_OK) s = fmt_hf_num(d, r->o, "beta_slow", 1, 0, 1e6, &slow, err);
    if (s == WEIR_OK) s = fmt_hf_bool(d, r->o, "truncate", true, &truncate, err);
    if (s != WEIR_OK) return s;
    if (!truncate || fmt_hf_get(r->o, "mscale") != NULL || fmt_hf_get(r->o, "mscale_all_dim") != NULL)
        return base_fail(err, WEIR_ERR_UNSUPPORTED,
                         "%s: yarn with \"truncate\": false or \"mscale\" is not supported", d->path);
    /* Here the factor replaces the usual 0.1 ln(factor) + 1; GGUF's attn_factor multiplies it. */
    if (attention != usual) s = fmt_hf_put_f32(r->c, "rope.scaling.attn_factor", attention / usual, err);
    if (s == WEIR_OK) s = fmt_hf_put_f32(r->c, "rope.scaling.yarn_beta_fast", fast > 0 ? fast : 32, err);
    if (s == WEIR_OK) s = fmt_hf_put_f32(r->c, "rope.scaling.yarn_beta_slow", slow > 0 ? slow : 1, err);
    return s;
}

static weir_status put_type(const rope *r, const char *type, weir_error *err)
{
    const fmt_hf_config *c = r->c;
    base_buf key;
    base_buf_init(&key, c->m->env, BASE_TAG_METADATA);
    weir_status s = base_buf_printf(&key, err, "%s.rope.scaling.type", c->cls->gguf);
    if (s == WEIR_OK) s = fmt_model_put_str(c->m, key.data, type, strlen(type), err);
    base_buf_finish(&key);
    if (s == WEIR_OK) s = fmt_hf_put_f32(c, "rope.scaling.factor", r->factor, err);
    if (s == WEIR_OK && strcmp(type, "yarn") == 0) {
        s = fmt_hf_put_u32(c, "rope.scaling.original_context_length", r->original, err);
        if (s == WEIR_OK) s = yarn(r, err);
    }
    return s;
}

/* Llama 3's three bands have no GGUF keys (its conversion writes a tensor of factors), hence keys of our own.
 */
static weir_status put_llama3(const rope *r, weir_error *err)
{
    const fmt_hf_doc *d = r->c->doc;
    double low, high;
    weir_status s = fmt_hf_num(d, r->o, "low_freq_factor", 1, 1e-6, 1e6, &low, err);
    if (s == WEIR_OK) s = fmt_hf_num(d, r->o, "high_freq_factor", 4, 1e-6, 1e6, &high, err);
    if (s != WEIR_OK) return s;
    if (high <= low)
        return base_fail(err, WEIR_ERR_FORMAT,
                         "%s: rope scaling llama3: high_freq_factor %g is not above low_freq_factor %g",
                         d->path, high, low);
    s = fmt_model_put_f32(r->c->m, "weir.rope_llama3.factor", r->factor, err);
    if (s == WEIR_OK) s = fmt_model_put_f32(r->c->m, "weir.rope_llama3.low_freq_factor", low, err);
    if (s == WEIR_OK) s = fmt_model_put_f32(r->c->m, "weir.rope_llama3.high_freq_factor", high, err);
    if (s == WEIR_OK)
        s = fmt_model_put_u32(r->c->m, "weir.rope_llama3.original_context_length", (uint32_t)r->original,
                              err);
    return s;
}

static weir_status put_scaling(const fmt_hf_config *c, const json_t *o, weir_error *err)
{
    rope r = {.c = c, .o = o};
    const char *type;
    weir_status s =
        fmt_hf_str(c->doc, o, fmt_hf_get(o, "rope_type") != NULL ? "rope_type" : "type", &type, err);
    if (s != WEIR_OK || type == NULL || strcmp(type, "default") == 0) return s;
    bool is_linear = strcmp(type, "linear") == 0, is_yarn = strcmp(type, "yarn") == 0;
    if (!is_linear && !is_yarn && strcmp(type, "llama3") != 0)
        return base_fail(err, WEIR_ERR_UNSUPPORTED,
                         "%s: rope scaling \"%.60s\" is not supported (linear, yarn and llama3 are)",
                         c->doc->path, fmt_name_is_clean(type, strlen(type)) ? type : "?");
    s = fmt_hf_int(c->doc, o, "original_max_position_embeddings", c->context, 1, INT32_MAX, &r.original, err);
    if (s != WEIR_OK) return s;
    if (fmt_hf_get(o, "factor") == NULL && !is_yarn)
        return base_fail(err, WEIR_ERR_FORMAT, "%s: rope scaling \"%s\" without \"factor\"", c->doc->path,
                         type);
    s = fmt_hf_num(c->doc, o, "factor", (double)c->context / (double)r.original, 1e-6, 1e6, &r.factor, err);
    if (s != WEIR_OK) return s;
    return is_linear || is_yarn ? put_type(&r, type, err) : put_llama3(&r, err);
}

static weir_status theta(const fmt_hf_config *c, const json_t *o, const char *old_key, double fallback,
                         const char *to, weir_error *err)
{
    double v;
    weir_status s = fmt_hf_num(c->doc, c->text, old_key, fallback, 1e-3, 1e15, &v, err);
    if (s == WEIR_OK) s = fmt_hf_num(c->doc, o, "rope_theta", v, 1e-3, 1e15, &v, err);
    return s == WEIR_OK ? fmt_hf_put_f32(c, to, v, err) : s;
}

weir_status fmt_hf_put_rope(const fmt_hf_config *c, weir_error *err)
{
    const json_t *params = fmt_hf_get(c->text, "rope_parameters"), *local = NULL;
    const json_t *scaling = params != NULL ? params : fmt_hf_get(c->text, "rope_scaling");
    double part;
    if (scaling != NULL && !json_is_object(scaling))
        return base_fail(err, WEIR_ERR_FORMAT, "%s: the rope settings are no JSON object", c->doc->path);
    if (fmt_hf_get(scaling, "full_attention") != NULL) {
        local = fmt_hf_get(scaling, "sliding_attention");
        scaling = params = fmt_hf_get(scaling, "full_attention");
    }
    weir_status s = theta(c, params, "rope_theta", c->cls->rope_theta, "rope.freq_base", err);
    if (s == WEIR_OK && c->cls->arch == FMT_HF_GEMMA3)
        s = theta(c, local, "rope_local_base_freq", 1e4, "rope.freq_base_swa", err);
    if (s == WEIR_OK) s = fmt_hf_num(c->doc, c->text, "partial_rotary_factor", 1, 1e-3, 1, &part, err);
    if (s == WEIR_OK) s = fmt_hf_num(c->doc, params, "partial_rotary_factor", part, 1e-3, 1, &part, err);
    if (s != WEIR_OK) return s;
    int64_t n = (int64_t)(c->head_dim * part);
    if (n < 2 || n % 2 != 0)
        return base_fail(err, WEIR_ERR_FORMAT,
                         "%s: %d rotary dimensions of a head of %u, wanted an even number", c->doc->path,
                         (int)n, c->head_dim);
    s = fmt_hf_put_u32(c, "rope.dimension_count", n, err);
    return s == WEIR_OK ? put_scaling(c, scaling, err) : s;
}
