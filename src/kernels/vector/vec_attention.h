/* The cache's writer, and attention: query heads that share a cache head go together.
 *
 * Scores have sixteen positions side by side, as the cache keeps K: one fma per element of the head and block
 * of positions. The value sum has elements of the head side by side, and the positions one after the other.
 */
#ifndef WEIR_VEC_ATTENTION_H
#define WEIR_VEC_ATTENTION_H

#include "vec_internal.h"
#include "vec_math.h"

#define ATT_PARTS  (16 / V_LANES)
#define ATT_HEADS  V_ATTENTION_HEADS
#define ATT_BLOCKS V_ATTENTION_BLOCKS
#define ATT_CHUNK  4 /* vectors of the output at once */

static_assert(V_ATTENTION_HEADS <= KERN_ATTENTION_HEADS, "scratch has room for so many heads");

static void store_k(const kern_kv *kv, size_t at, const float *x, size_t n)
{
    uint16_t half[V_LANES];
    if (kv->dtype == BASE_F32) {
        for (size_t i = 0; i < n; i++) ((float *)kv->k)[(at + i) * 16] = x[i];
        return;
    }
    v_store_f16(half, v_load_n(x, n));
    for (size_t i = 0; i < n; i++) ((uint16_t *)kv->k)[at * 16 + i * 16] = half[i];
}
void V_NAME(kern_kv_store)(const kern_kv *kv, uint32_t n_kv_heads, uint32_t head_dim, uint32_t position,
                           const float *k, const float *v)
{
    size_t slot = position % kv->capacity, n = (size_t)n_kv_heads * head_dim, i = 0;
    size_t k_block = slot / 16 * n * 16 + slot % 16;
    kern_kv at = *kv;
    at.k = (char *)kv->k + k_block * (kv->dtype == BASE_F16 ? 2 : 4);
    for (i = 0; i < n; i += V_LANES) store_k(&at, i, k + i, n - i < V_LANES ? n - i : V_LANES);
    if (kv->dtype == BASE_F32) {
        memcpy((float *)kv->v + slot * n, v, n * sizeof(float));
        return;
    }
    uint16_t *out = (uint16_t *)kv->v + slot * n;
    for (i = 0; i + V_LANES <= n; i += V_LANES) v_store_f16(out + i, v_load(v + i));
    if (i < n) {
        uint16_t half[V_LANES];
        v_store_f16(half, v_load_n(v + i, n - i));
        memcpy(out + i, half, (n - i) * sizeof half[0]);
    }
}

/* One group of heads of one cache head. Scores and weights of head h stand at e + h * e_stride; index 0 is
 * position base, a multiple of 16 at or below first. */
typedef struct att_group {
    const kern_attention *a;
    uint32_t head, n_heads, kv_head;
    uint32_t base;
    float *q; /* [n_heads][head_dim], scaled */
    float *e;
    size_t e_stride;
    vf sum[ATT_HEADS];
} att_group;

V_INLINE vf att_load(const bool half, const void *cache, size_t i)
{
    if (half) return v_load_f16((const uint8_t *)cache + 2 * i);
    return v_load((const float *)cache + i);
}
V_INLINE vf att_load_n(const bool half, const void *cache, size_t i, size_t n)
{
    if (half) return v_load_f16_n((const uint8_t *)cache + 2 * i, n);
    return v_load_n((const float *)cache + i, n);
}

/* Scores of B blocks of sixteen positions from position on. */
V_INLINE void score_blocks(const att_group *g, uint32_t position, const bool half, const int H, const int B)
{
    const kern_attention *a = g->a;
    vf s[ATT_HEADS][ATT_BLOCKS][ATT_PARTS];
    size_t k[ATT_BLOCKS];
    V_UNROLL for (int b = 0; b < B; b++)
    {
        size_t block = (position + 16 * (uint32_t)b) % a->kv->capacity / 16;
        k[b] = (block * a->n_kv_heads + g->kv_head) * a->head_dim * 16;
        V_UNROLL for (int h = 0; h < H; h++)
        {
            V_UNROLL for (int p = 0; p < ATT_PARTS; p++) s[h][b][p] = v_zero();
        }
    }
    for (uint32_t d = 0; d < a->head_dim; d++) {
        V_UNROLL for (int b = 0; b < B; b++)
        {
            V_UNROLL for (int p = 0; p < ATT_PARTS; p++)
            {
                vf x = att_load(half, a->kv->k, k[b] + d * 16 + p * V_LANES);
                V_UNROLL for (int h = 0; h < H; h++)
                {
                    s[h][b][p] = v_fma(v_set(g->q[(uint32_t)h * a->head_dim + d]), x, s[h][b][p]);
                }
            }
        }
    }
    V_UNROLL for (int h = 0; h < H; h++)
    {
        float *e = g->e + (size_t)h * g->e_stride + (position - g->base);
        V_UNROLL for (int b = 0; b < B; b++)
        {
            V_UNROLL for (int p = 0; p < ATT_PARTS; p++) v_store(e + 16 * b + p * V_LANES, s[h][b][p]);
        }
    }
}
V_INLINE void score_all(const att_group *g, const bool half, const int H)
{
    uint32_t position = g->base;
    for (; position + 16 * (ATT_BLOCKS - 1) <= g->a->last; position += 16 * ATT_BLOCKS)
        score_blocks(g, position, half, H, ATT_BLOCKS);
    for (; position <= g->a->last; position += 16) score_blocks(g, position, half, H, 1);
}

/* Scores to weights e, 0 outside first ... last; returns their sum in all lanes. */
static vf weigh(const kern_attention *a, uint32_t base, float *e)
{
    const vf lowest = v_castf(v_set32((int32_t)0xff800000)), cap = v_set(a->softcap);
    const size_t first = a->first - base, end = (size_t)a->last - base + 1;
    vf top = lowest, lanes[ATT_PARTS];
    for (size_t i = 0; i < end; i += V_LANES) {
        vf s = v_load(e + i);
        if (a->softcap != 0.0f) s = v_mul(cap, v_tanh(v_div(s, cap)));
        size_t from = first > i ? first - i : 0, to = end - i < V_LANES ? end - i : V_LANES;
        s = v_between(from < V_LANES ? from : V_LANES, to, s, lowest);
        v_store(e + i, s);
        top = v_max(s, top);
    }
    const vf max = v_set(v_max_lane(top));
    for (int p = 0; p < ATT_PARTS; p++) lanes[p] = v_zero();
    for (size_t i = 0; i < end; i += V_LANES) {
        size_t from = first > i ? first - i : 0, to = end - i < V_LANES ? end - i : V_LANES;
        vf x = v_exp(v_sub(v_load(e + i), max));
        x = v_between(from < V_LANES ? from : V_LANES, to, x, v_zero());
        v_store(e + i, x);
        lanes[i / V_LANES % ATT_PARTS] = v_add(lanes[i / V_LANES % ATT_PARTS], x);
    }
    return v_set(v_tree(lanes));
}

/* Positions [from, to) of one segment, which do not wrap around the cache: acc += e[p] x v[p][d ...]. */
V_INLINE void value_run(const att_group *g, uint32_t from, uint32_t to, uint32_t d,
                        vf acc[ATT_HEADS][ATT_CHUNK], const bool half, const int H, const int C,
                        size_t n_tail)
{
    const kern_attention *a = g->a;
    const size_t stride = (size_t)a->n_kv_heads * a->head_dim;
    size_t v = from % a->kv->capacity * stride + (size_t)g->kv_head * a->head_dim + d;
    for (const float *e = g->e + (from - g->base), *end = g->e + (to - g->base); e < end; e++, v += stride) {
        V_UNROLL for (int c = 0; c < C; c++)
        {
            vf x = n_tail ? att_load_n(half, a->kv->v, v, n_tail)
                          : att_load(half, a->kv->v, v + (size_t)c * V_LANES);
            V_UNROLL for (int h = 0; h < H; h++) acc[h][c] =
                v_fma(v_set(e[(size_t)h * g->e_stride]), x, acc[h][c]);
        }
    }
}
/* C vectors of the output from element d on; n_tail: the only one has so many elements, 0: all are full. */
V_INLINE void value_chunk(const att_group *g, uint32_t d, const bool half, const int H, const int C,
                          size_t n_tail)
{
    const kern_attention *a = g->a;
    vf total[ATT_HEADS][ATT_CHUNK], acc[ATT_HEADS][ATT_CHUNK];
    V_UNROLL for (int h = 0; h < H; h++)
    {
        V_UNROLL for (int c = 0; c < C; c++) total[h][c] = acc[h][c] = v_zero();
    }
    for (uint32_t from = a->first; from <= a->last;) {
        uint32_t segment = KERN_ATTENTION_SEGMENT - from % KERN_ATTENTION_SEGMENT;
        uint32_t n = a->last - from + 1, wrap = a->kv->capacity - from % a->kv->capacity;
        if (n > segment) n = segment;
        if (n > wrap) n = wrap;
        value_run(g, from, from + n, d, acc, half, H, C, n_tail);
        from += n;
        if (from % KERN_ATTENTION_SEGMENT != 0 && from <= a->last) continue;
        V_UNROLL for (int h = 0; h < H; h++)
        {
            V_UNROLL for (int c = 0; c < C; c++)
            {
                total[h][c] = v_add(total[h][c], acc[h][c]);
                acc[h][c] = v_zero();
            }
        }
    }
    V_UNROLL for (int h = 0; h < H; h++)
    {
        float *out = a->out + (size_t)(g->head + (uint32_t)h) * a->head_dim + d;
        V_UNROLL for (int c = 0; c < C; c++)
        {
            vf x = v_div(total[h][c], g->sum[h]);
            if (n_tail)
                v_store_n(out, x, n_tail);
            else
                v_store(out + c * V_LANES, x);
        }
    }
}
V_INLINE void attend(att_group *g, const bool half, const int H)
{
    const uint32_t head_dim = g->a->head_dim;
    uint32_t d = 0;
    score_all(g, half, H);
    for (int h = 0; h < H; h++) g->sum[h] = weigh(g->a, g->base, g->e + (size_t)h * g->e_stride);
    for (; d + ATT_CHUNK * V_LANES <= head_dim; d += ATT_CHUNK * V_LANES)
        value_chunk(g, d, half, H, ATT_CHUNK, 0);
    for (; d + V_LANES <= head_dim; d += V_LANES) value_chunk(g, d, half, H, 1, 0);
    if (d < head_dim) value_chunk(g, d, half, H, 1, head_dim - d);
}
#define ATTEND(H)                                                                                            \
    static void attend_f16_##H(att_group *g)                                                                 \
    {                                                                                                        \
        attend(g, true, H);                                                                                  \
    }                                                                                                        \
    static void attend_f32_##H(att_group *g)                                                                 \
    {                                                                                                        \
        attend(g, false, H);                                                                                 \
    }
ATTEND(1)
ATTEND(2)
#if V_ATTENTION_HEADS == 4
ATTEND(3)
ATTEND(4)
#endif

static void attend_group(att_group *g)
{
    bool half = g->a->kv->dtype == BASE_F16;
    switch (g->n_heads) {
    case 1: half ? attend_f16_1(g) : attend_f32_1(g); return;
    case 2: half ? attend_f16_2(g) : attend_f32_2(g); return;
#if V_ATTENTION_HEADS == 4
    case 3: half ? attend_f16_3(g) : attend_f32_3(g); return;
    case 4: half ? attend_f16_4(g) : attend_f32_4(g); return;
#endif
    default: return;
    }
}

void V_NAME(kern_attention)(const kern_attention *a, uint32_t head_begin, uint32_t head_end, void *scratch)
{
    const uint32_t shared = a->n_heads / a->n_kv_heads;
    att_group g = {.a = a, .base = a->first / 16 * 16};
    /* At most sixteen more than the positions, rounded up: first and last may both cut a block. */
    g.e_stride = ((size_t)a->last - g.base) / 16 * 16 + 16;
    g.e = scratch;
    g.q = g.e + ATT_HEADS * g.e_stride;
    for (uint32_t head = head_begin; head < head_end; head += g.n_heads) {
        g.head = head;
        g.kv_head = head / shared;
        g.n_heads = (g.kv_head + 1) * shared - head;
        if (g.n_heads > head_end - head) g.n_heads = head_end - head;
        if (g.n_heads > ATT_HEADS) g.n_heads = ATT_HEADS;
        for (size_t i = 0; i < (size_t)g.n_heads * a->head_dim; i++)
            g.q[i] = a->q[(size_t)head * a->head_dim + i] * a->scale;
        attend_group(&g);
    }
}

#endif
