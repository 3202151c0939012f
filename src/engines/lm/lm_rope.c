/* Frequencies of the rotary embedding: inv_freq[i] = base^(-2i / n_rot), changed by the model's scaling.
 *
 *   linear  all frequencies / factor (Chen et al., arXiv 2306.15595)
 *   yarn    slow ones / factor, fast ones as they are, a ramp between; keys longer by mscale (Peng et al.,
 *           arXiv 2309.00071)
 *   llama3  slow ones / factor, fast ones as they are, a smooth step between; GGUF files carry the divisors
 *           as the tensor rope_freqs.weight (Llama 3.1's configuration)
 *
 * gemma3's sliding layers have frequencies of their own, without scaling. */
#include "lm_internal.h"

#include <math.h>
#include <string.h>

#define TWO_PI 6.283185307179586

static const char *path_of(const lm_model *lm)
{
    return base_file_path(fmt_model_file(lm->file, 0));
}

static weir_status allocate(lm_model *lm, lm_rope *rope, uint32_t n_rot, double base, weir_error *err)
{
    rope->inv_freq = base_alloc_array(lm->env, BASE_TAG_METADATA, n_rot / 2, sizeof(double), err);
    if (rope->inv_freq == NULL) return err != NULL ? err->code : WEIR_ERR_OUT_OF_MEMORY;
    rope->n_rot = n_rot;
    rope->mscale = 1.0;
    for (uint32_t i = 0; i < n_rot / 2; i++) rope->inv_freq[i] = kern_pow(base, -2.0 * i / n_rot);
    return WEIR_OK;
}

static void scale_linear(lm_rope *rope, double factor)
{
    for (uint32_t i = 0; i < rope->n_rot / 2; i++) rope->inv_freq[i] /= factor;
}

/* The pair (as a fraction) that turns `turns` times over the original context. */
static double pair_with_turns(const lm_rope *rope, double turns, double context, double base)
{
    return rope->n_rot * kern_log(context / (turns * TWO_PI)) / (2 * kern_log(base));
}

static weir_status scale_yarn(lm_model *lm, lm_rope *rope, double base, double factor, weir_error *err)
{
    double fast, slow, attn, context, low, high, span;
    weir_status status = lm_key_f64(lm, "rope.scaling.yarn_beta_fast", 32, 1e-3, 1e6, &fast, err);

    if (status == WEIR_OK) status = lm_key_f64(lm, "rope.scaling.beta_fast", fast, 1e-3, 1e6, &fast, err);
    if (status == WEIR_OK) status = lm_key_f64(lm, "rope.scaling.yarn_beta_slow", 1, 1e-3, 1e6, &slow, err);
    if (status == WEIR_OK) status = lm_key_f64(lm, "rope.scaling.beta_slow", slow, 1e-3, 1e6, &slow, err);
    if (status == WEIR_OK) status = lm_key_f64(lm, "rope.scaling.attn_factor", 1, 1e-3, 1e3, &attn, err);
    if (status == WEIR_OK)
        status = lm_key_f64(lm, "rope.scaling.original_context_length", lm->hp.context_tokens, 1, 1e10,
                            &context, err);
    if (status != WEIR_OK) return status;
    low = fmax(0, floor(pair_with_turns(rope, fast, context, base)));
    high = fmin(rope->n_rot - 1, ceil(pair_with_turns(rope, slow, context, base)));
    span = fmax(high - low, 0.001);
    for (uint32_t i = 0; i < rope->n_rot / 2; i++) {
        double ramp = fmin(1, fmax(0, (i - low) / span)); /* 0: as it is, 1: divided by the factor */

        rope->inv_freq[i] = rope->inv_freq[i] / factor * ramp + rope->inv_freq[i] * (1 - ramp);
    }
    rope->mscale = attn * (factor > 1 ? 1 + 0.1 * kern_log(factor) : 1);
    return WEIR_OK;
}

static weir_status scale_by_tensor(lm_model *lm, lm_rope *rope, const fmt_tensor *t, weir_error *err)
{
    float divisors[LM_MAX_HEAD_DIM / 2];
    uint32_t n = rope->n_rot / 2;
    weir_status status;

    if (t->dtype != BASE_F32 || t->n_dims != 1 || t->dims[0] != n)
        return base_fail(err, WEIR_ERR_MISSING_TENSOR,
                         "%s: the tensor rope_freqs.weight has %llu elements of type %s; wanted %u of F32",
                         path_of(lm), (unsigned long long)t->dims[0], base_dtype_get(t->dtype)->name, n);
    status = base_file_read(fmt_model_file(lm->file, t->file), t->offset, divisors, n * sizeof(float), err);
    if (status != WEIR_OK) return status;
    for (uint32_t i = 0; i < n; i++) {
        if (!(divisors[i] > 0) || !isfinite(divisors[i]))
            return base_fail(err, WEIR_ERR_FORMAT,
                             "%s: element %u of rope_freqs.weight is %g; wanted more "
                             "than 0",
                             path_of(lm), i, (double)divisors[i]);
        rope->inv_freq[i] /= divisors[i];
    }
    return WEIR_OK;
}

static weir_status llama3_key(const lm_model *lm, const char *key, double fallback, double *out,
                              weir_error *err)
{
    weir_status status = fmt_get_f64(lm->file, key, fallback, out, err);

    if (status == WEIR_OK && !(*out > 0 && *out < 1e12))
        return base_fail(err, WEIR_ERR_FORMAT, "%s: the key %s is %g; wanted more than 0", path_of(lm), key,
                         *out);
    return status;
}

static weir_status scale_llama3(lm_model *lm, lm_rope *rope, weir_error *err)
{
    double factor, low, high, context;
    weir_status status = llama3_key(lm, "weir.rope_llama3.factor", 8, &factor, err);

    if (status == WEIR_OK) status = llama3_key(lm, "weir.rope_llama3.low_freq_factor", 1, &low, err);
    if (status == WEIR_OK) status = llama3_key(lm, "weir.rope_llama3.high_freq_factor", 4, &high, err);
    if (status == WEIR_OK)
        status = llama3_key(lm, "weir.rope_llama3.original_context_length", 8192, &context, err);
    if (status != WEIR_OK) return status;
    for (uint32_t i = 0; i < rope->n_rot / 2; i++) {
        double turns = context * rope->inv_freq[i] / TWO_PI; /* over the original context */
        double keep = high > low ? (turns - low) / (high - low) : 1;

        if (turns < low) keep = 0;
        if (turns > high) keep = 1;
        rope->inv_freq[i] = rope->inv_freq[i] / factor * (1 - keep) + rope->inv_freq[i] * keep;
    }
    return WEIR_OK;
}

/* The scaling that the metadata names, on the rope of the layers that see all positions. */
static weir_status scale_by_keys(lm_model *lm, lm_rope *rope, double base, weir_error *err)
{
    const char *type;
    double factor;
    weir_status status = lm_key_str(lm, "rope.scaling.type", &type, err);

    if (status == WEIR_OK) status = lm_key_f64(lm, "rope.scale_linear", 1, 1e-6, 1e6, &factor, err);
    if (status == WEIR_OK) status = lm_key_f64(lm, "rope.scaling.factor", factor, 0, 1e6, &factor, err);
    if (status != WEIR_OK) return status;
    if (factor == 0) factor = 1;
    /* Old files give a factor without a type and mean linear. */
    if (type == NULL || strcmp(type, "linear") == 0) {
        scale_linear(rope, factor);
        return WEIR_OK;
    }
    if (strcmp(type, "none") == 0 || strcmp(type, "llama3") == 0) return WEIR_OK;
    if (strcmp(type, "yarn") == 0) return scale_yarn(lm, rope, base, factor, err);
    return base_fail(err, WEIR_ERR_UNSUPPORTED,
                     "%s: rope scaling \"%.32s\"; supported are none, linear, yarn and llama3", path_of(lm),
                     type);
}

weir_status lm_rope_read(lm_model *lm, weir_error *err)
{
    const fmt_tensor *divisors = fmt_model_find_tensor(lm->file, "rope_freqs.weight");
    double base, local_base;
    uint32_t n_rot;
    weir_status status =
        lm_key_u32(lm, "rope.dimension_count", lm->hp.head_dim, 2, lm->hp.head_dim, &n_rot, err);

    if (status == WEIR_OK) status = lm_key_f64(lm, "rope.freq_base", 10000, 1.001, 1e15, &base, err);
    if (status == WEIR_OK)
        status = lm_key_f64(lm, "rope.local_freq_base", 10000, 1.001, 1e15, &local_base, err);
    if (status == WEIR_OK)
        status = lm_key_f64(lm, "rope.freq_base_swa", local_base, 1.001, 1e15, &local_base, err);
    if (status != WEIR_OK) return status;
    if (n_rot % 2 != 0)
        return base_fail(err, WEIR_ERR_FORMAT, "%s: %u rotated elements per head; wanted an even number",
                         path_of(lm), n_rot);
    status = allocate(lm, &lm->rope[0], n_rot, base, err);
    if (status == WEIR_OK && lm->local_rope) status = allocate(lm, &lm->rope[1], n_rot, local_base, err);
    if (status == WEIR_OK) status = scale_by_keys(lm, &lm->rope[0], base, err);
    if (status != WEIR_OK) return status;
    if (divisors != NULL) return scale_by_tensor(lm, &lm->rope[0], divisors, err);
    if (fmt_model_find_value(lm->file, "weir.rope_llama3.factor") != NULL)
        return scale_llama3(lm, &lm->rope[0], err);
    return WEIR_OK;
}
