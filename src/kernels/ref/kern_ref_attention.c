/* The key-value cache and attention: the definition (docs/numerics.md). */
#include "kernels/kern_math.h"
#include "kernels/kern_tables.h"

/* Where element d of a cache head lies (kernels.h, kern_kv). */
static size_t k_index(uint32_t slot, uint32_t n_kv_heads, uint32_t head_dim, uint32_t head, uint32_t d)
{
    return (((size_t)(slot / 16) * n_kv_heads + head) * head_dim + d) * 16 + slot % 16;
}
static size_t v_index(uint32_t slot, uint32_t n_kv_heads, uint32_t head_dim, uint32_t head, uint32_t d)
{
    return ((size_t)slot * n_kv_heads + head) * head_dim + d;
}

static float cache_load(const void *cache, uint32_t dtype, size_t i)
{
    return dtype == BASE_F16 ? kern_f16_value(((const uint16_t *)cache)[i]) : ((const float *)cache)[i];
}
static void cache_store(void *cache, uint32_t dtype, size_t i, float x)
{
    if (dtype == BASE_F16)
        ((uint16_t *)cache)[i] = kern_f16_from_f32(x);
    else
        ((float *)cache)[i] = x;
}

void kern_ref_kv_store(const kern_kv *kv, uint32_t n_kv_heads, uint32_t head_dim, uint32_t position,
                       const float *k, const float *v)
{
    uint32_t slot = position % kv->capacity;
    for (uint32_t h = 0; h < n_kv_heads; h++)
        for (uint32_t d = 0; d < head_dim; d++) {
            size_t i = (size_t)h * head_dim + d;
            cache_store(kv->k, kv->dtype, k_index(slot, n_kv_heads, head_dim, h, d), k[i]);
            cache_store(kv->v, kv->dtype, v_index(slot, n_kv_heads, head_dim, h, d), v[i]);
        }
}

static float score(const kern_attention *a, const float *q, uint32_t kv_head, uint32_t position)
{
    uint32_t slot = position % a->kv->capacity;
    float s = 0.0f;
    for (uint32_t d = 0; d < a->head_dim; d++) {
        size_t i = k_index(slot, a->n_kv_heads, a->head_dim, kv_head, d);
        s = fmaf(q[d] * a->scale, cache_load(a->kv->k, a->kv->dtype, i), s);
    }
    return a->softcap != 0.0f ? a->softcap * kern_tanhf(s / a->softcap) : s;
}

/* sum over positions of e[p - first] x v[p][d], one chain per segment. */
static float weighted_value(const kern_attention *a, const float *e, uint32_t kv_head, uint32_t d)
{
    float total = 0.0f, acc = 0.0f;
    for (uint32_t p = a->first;; p++) {
        size_t i = v_index(p % a->kv->capacity, a->n_kv_heads, a->head_dim, kv_head, d);
        acc = fmaf(e[p - a->first], cache_load(a->kv->v, a->kv->dtype, i), acc);
        if (p == a->last) return total + acc;
        if ((p + 1) % KERN_ATTENTION_SEGMENT == 0) {
            total += acc;
            acc = 0.0f;
        }
    }
}

static void attend_head(const kern_attention *a, uint32_t head, float *e)
{
    uint32_t kv_head = head / (a->n_heads / a->n_kv_heads);
    uint32_t n = a->last - a->first + 1;
    const float *q = a->q + (size_t)head * a->head_dim;
    float lane[16] = {0.0f};
    float max = -kern_from_bits(0x7f800000u);
    for (uint32_t i = 0; i < n; i++) {
        e[i] = score(a, q, kv_head, a->first + i);
        max = e[i] > max ? e[i] : max;
    }
    for (uint32_t i = 0; i < n; i++) {
        e[i] = e[i] - max < KERN_ATTENTION_LOW ? 0.0f : kern_expf(e[i] - max);
        lane[(a->first + i) % 16] += e[i];
    }
    float sum = kern_lane_tree(lane);
    for (uint32_t d = 0; d < a->head_dim; d++)
        a->out[(size_t)head * a->head_dim + d] = weighted_value(a, e, kv_head, d) / sum;
}

void kern_ref_attention(const kern_attention *a, uint32_t head_begin, uint32_t head_end, void *scratch)
{
    for (uint32_t r = 0; r < a->n_rows; r++) {
        kern_attention row = *a; /* as if it were the only one */
        row.q += r * a->q_stride;
        row.out += r * a->out_stride;
        row.first = kern_attention_first(a, r);
        row.last += r;
        for (uint32_t h = head_begin; h < head_end; h++) attend_head(&row, h, scratch);
    }
}

/* ---- the same in steps ---- */

void kern_ref_attention_scores(const kern_attention_cut *c, uint32_t head_begin, uint32_t head_end,
                               uint32_t segment, void *scratch)
{
    const kern_attention *a = &c->a;
    uint32_t from, to;
    (void)scratch;
    kern_cut_range(c, segment, &from, &to);
    for (uint32_t h = head_begin; h < head_end; h++) {
        const float *q = a->q + (size_t)h * a->head_dim;
        float *e = c->e + h * c->e_stride, max = -kern_from_bits(0x7f800000u);
        for (uint32_t p = from; p < to; p++) {
            float s = score(a, q, h / (a->n_heads / a->n_kv_heads), p);
            e[p - kern_cut_base(c)] = s;
            max = s > max ? s : max;
        }
        c->top[(size_t)h * c->n_segments + segment] = max;
    }
}

void kern_ref_attention_values(const kern_attention_cut *c, uint32_t head_begin, uint32_t head_end,
                               uint32_t segment, void *scratch)
{
    kern_attention part = c->a; /* one segment, so that its sum is that of one chain */
    uint32_t end;
    (void)scratch;
    kern_cut_range(c, segment, &part.first, &end);
    part.last = end - 1;
    for (uint32_t h = head_begin; h < head_end; h++) {
        float *e = c->e + h * c->e_stride + (part.first - kern_cut_base(c));
        float *sums = kern_cut_sums(c, segment, h), max = kern_cut_top(c, h);
        for (uint32_t i = 0; i < end - part.first; i++)
            e[i] = e[i] - max < KERN_ATTENTION_LOW ? 0.0f : kern_expf(e[i] - max);
        for (uint32_t d = 0; d < part.head_dim; d++)
            sums[d] = weighted_value(&part, e, h / (part.n_heads / part.n_kv_heads), d);
    }
}

void kern_ref_attention_finish(const kern_attention_cut *c, uint32_t head_begin, uint32_t head_end)
{
    const kern_attention *a = &c->a;
    for (uint32_t h = head_begin; h < head_end; h++) {
        const float *e = c->e + h * c->e_stride;
        float lane[16] = {0.0f};
        for (uint32_t p = a->first; p <= a->last; p++) lane[p % 16] += e[p - kern_cut_base(c)];
        float sum = kern_lane_tree(lane);
        for (uint32_t d = 0; d < a->head_dim; d++) {
            float total = 0.0f;
            for (uint32_t s = 0; s < c->n_segments; s++) total += kern_cut_sums(c, s, h)[d];
            a->out[(size_t)h * a->head_dim + d] = total / sum;
        }
    }
}
