/* From logits to a token: repeat penalty, top-k, top-p, min-p, temperature, one random number.
 *
 * Everything is the same on every machine: exp is kern_expf, sums run in double in a fixed order, equals are
 * ordered by id. Candidates are picked best first in growing numbers, so a cut by top-p or min-p seldom sorts
 * more than a few hundred of a large vocabulary. Where nothing cuts, tokens keep the order of their ids. */
#include "rt_internal.h"

#include <math.h>
#include <string.h>

#define FIRST_CANDIDATES 256
#define CANDIDATES_STEP  8

struct rt_sampler {
    uint32_t n_vocab;
    rt_draw *draw;  /* of the pick under way */
    float *logits;  /* with the penalty */
    int32_t *order; /* candidates, best first */
};

void weir_sampling_init(weir_sampling *s)
{
    *s = (weir_sampling){.struct_size = sizeof *s, .top_p = 1.0F, .repeat_penalty = 1.0F, .repeat_last = 64};
}

uint64_t rt_sampler_bytes(uint32_t n_vocab)
{
    uint64_t one = base_align_up((uint64_t)n_vocab * sizeof(float), 4096);
    return sizeof(rt_sampler) + 64 + 2 * one;
}

weir_status rt_sampler_create(base_env *env, uint32_t n_vocab, rt_sampler **out, weir_error *err)
{
    _Static_assert(sizeof(float) == sizeof(int32_t), "both arrays have one size");
    uint64_t bytes = (uint64_t)n_vocab * sizeof(float);
    rt_sampler *s = base_alloc(env, BASE_TAG_RUNTIME, sizeof *s, err);
    if (s == NULL) return err->code;
    s->n_vocab = n_vocab;
    s->logits = base_pages_alloc(env, BASE_TAG_RUNTIME, bytes, false, err);
    if (s->logits == NULL) goto fail;
    s->order = base_pages_alloc(env, BASE_TAG_RUNTIME, bytes, false, err);
    if (s->order == NULL) goto fail;
    *out = s;
    return WEIR_OK;

fail:
    rt_sampler_destroy(env, s);
    return err->code;
}

void rt_sampler_destroy(base_env *env, rt_sampler *s)
{
    if (s == NULL) return;
    uint64_t bytes = (uint64_t)s->n_vocab * sizeof(float);
    base_pages_free(env, BASE_TAG_RUNTIME, s->order, bytes);
    base_pages_free(env, BASE_TAG_RUNTIME, s->logits, bytes);
    base_free(env, s);
}

static bool is_within(float x, float low, float high)
{
    return x >= low && x <= high; /* false for NaN */
}

weir_status rt_draw_begin(rt_draw *d, const weir_sampling *o, weir_error *err)
{
    if (!RT_IS(weir_sampling, o, err)) return err->code;
    if (!is_within(o->temperature, 0.0F, 1000.0F))
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "temperature %g is not between 0 and 1000 (--temp)",
                         (double)o->temperature);
    if (!is_within(o->top_p, 0.0F, 1.0F))
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "top-p %g is not between 0 and 1 (--top-p)",
                         (double)o->top_p);
    if (!is_within(o->min_p, 0.0F, 1.0F))
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "min-p %g is not between 0 and 1 (--min-p)",
                         (double)o->min_p);
    if (!is_within(o->repeat_penalty, 0.01F, 100.0F))
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                         "repeat penalty %g is not between 0.01 and 100 (--repeat-penalty)",
                         (double)o->repeat_penalty);
    d->options = *o;
    base_rng_seed(&d->rng, o->seed, 0);
    return WEIR_OK;
}

/* Makes each token of the last ones less likely, once however often it occurs (Keskar et al. 2019, CTRL,
 * section 4.1, with negative logits multiplied). */
static void penalize(rt_sampler *s, const float *logits, const int32_t *history, size_t n)
{
    memcpy(s->logits, logits, s->n_vocab * sizeof *logits);
    float penalty = s->draw->options.repeat_penalty;
    if (penalty == 1.0F) return;
    size_t last = (size_t)base_min(n, s->draw->options.repeat_last);
    for (const int32_t *t = history + n - last; t < history + n; t++) {
        float x = logits[*t];
        s->logits[*t] = x > 0.0F ? x / penalty : x * penalty;
    }
}

/* The largest logit's lowest id. */
static weir_status find_best(const rt_sampler *s, size_t position, int32_t *best, weir_error *err)
{
    const float *x = s->logits;
    uint32_t at = 0;
    for (uint32_t i = 0; i < s->n_vocab; i++) {
        if (!(x[i] < INFINITY))
            return base_fail(
                err, WEIR_ERR_FORMAT,
                "the logits behind position %zu are no numbers (token %u: %g): the weights are damaged "
                "or overflow; download or convert the model again",
                position, i, (double)x[i]);
        if (x[i] > x[at]) at = i;
    }
    if (!(x[at] > -INFINITY))
        return base_fail(
            err, WEIR_ERR_FORMAT,
            "all logits behind position %zu are minus infinity: the weights are damaged; download or "
            "convert the model again",
            position);
    *best = (int32_t)at;
    return WEIR_OK;
}

static bool is_worse(const float *x, int32_t a, int32_t b)
{
    return x[a] != x[b] ? x[a] < x[b] : b < a;
}

/* Sinks the root of a heap with the worst on top. */
static void sink(const float *x, int32_t *heap, uint32_t n, uint32_t at)
{
    int32_t id = heap[at];
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= n) break;
        if (child + 1 < n && is_worse(x, heap[child + 1], heap[child])) child++;
        if (!is_worse(x, heap[child], id)) break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = id;
}

/* Fills order with the best n, best first. */
static void pick_best(rt_sampler *s, uint32_t n)
{
    const float *x = s->logits;
    int32_t *heap = s->order;
    for (uint32_t i = 0; i < n; i++) heap[i] = (int32_t)i;
    for (uint32_t i = n / 2; i > 0; i--) sink(x, heap, n, i - 1);
    for (uint32_t i = n; i < s->n_vocab; i++) {
        if (!is_worse(x, heap[0], (int32_t)i)) continue;
        heap[0] = (int32_t)i;
        sink(x, heap, n, 0);
    }
    for (uint32_t left = n; left > 1; left--) {
        int32_t worst = heap[0];
        heap[0] = heap[left - 1];
        sink(x, heap, left - 1, 0);
        heap[left - 1] = worst;
    }
}

static float weight(const rt_sampler *s, int32_t id, float top, float temperature)
{
    return kern_expf((s->logits[id] - top) / temperature);
}

/* How many of the best n stay after top-p and min-p. `all` is the sum of weights that top-p is a share of. */
static uint32_t cut(const rt_sampler *s, uint32_t n, float top, double all)
{
    const weir_sampling *o = &s->draw->options;
    uint32_t kept = n;
    double sum = 0.0;
    for (uint32_t i = 0; i < n && o->top_p < 1.0F; i++) {
        sum += (double)weight(s, s->order[i], top, 1.0F);
        if (sum >= (double)o->top_p * all) {
            kept = i + 1;
            break;
        }
    }
    for (uint32_t i = 1; i < kept && o->min_p > 0.0F; i++) {
        if (weight(s, s->order[i], top, 1.0F) < o->min_p) kept = i;
    }
    return kept;
}

/* Candidates in order; 0: all of them, by id. */
static uint32_t choose_candidates(rt_sampler *s, float top)
{
    const weir_sampling *o = &s->draw->options;
    uint32_t limit = o->top_k != 0 ? (uint32_t)base_min(o->top_k, s->n_vocab) : s->n_vocab;
    bool cuts = o->top_p < 1.0F || o->min_p > 0.0F;
    if (!cuts && limit == s->n_vocab) return 0;
    double all = 0.0;
    if (limit == s->n_vocab && o->top_p < 1.0F) {
        for (uint32_t i = 0; i < s->n_vocab; i++) all += (double)weight(s, (int32_t)i, top, 1.0F);
    }
    uint64_t n = limit == s->n_vocab ? base_min(FIRST_CANDIDATES, limit) : limit;
    for (;; n = base_min(n * CANDIDATES_STEP, limit)) {
        pick_best(s, (uint32_t)n);
        if (limit < s->n_vocab && o->top_p < 1.0F) {
            for (uint32_t i = 0; i < n; i++) all += (double)weight(s, s->order[i], top, 1.0F);
        }
        uint32_t kept = cut(s, (uint32_t)n, top, all);
        if (kept < n || n == limit) return kept;
    }
}

/* By the inverse of the cumulative sum. n = 0: all tokens by id. */
static int32_t draw(rt_sampler *s, uint32_t n, float top)
{
    double u = (double)base_rng_u32(&s->draw->rng) * 0x1p-32;
    float temperature = s->draw->options.temperature;
    uint32_t count = n != 0 ? n : s->n_vocab;
    double sum = 0.0, at = 0.0;
    for (uint32_t i = 0; i < count; i++)
        sum += (double)weight(s, n != 0 ? s->order[i] : (int32_t)i, top, temperature);
    int32_t last = n != 0 ? s->order[0] : 0;
    for (uint32_t i = 0; i < count; i++) {
        int32_t id = n != 0 ? s->order[i] : (int32_t)i;
        float w = weight(s, id, top, temperature);
        if (w == 0.0F) continue;
        at += (double)w;
        last = id;
        if (at > u * sum) break;
    }
    return last;
}

weir_status rt_sampler_pick(rt_sampler *s, rt_draw *d, const float *logits, const int32_t *history,
                            size_t n_history, int32_t *token, weir_error *err)
{
    int32_t best = 0;
    s->draw = d;
    penalize(s, logits, history, n_history);
    weir_status status = find_best(s, n_history, &best, err);
    if (status != WEIR_OK) return status;
    if (s->draw->options.temperature == 0.0F) {
        *token = best;
        return WEIR_OK;
    }
    float top = s->logits[best];
    *token = draw(s, choose_candidates(s, top), top);
    return WEIR_OK;
}
