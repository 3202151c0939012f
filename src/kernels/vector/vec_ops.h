/* Everything that is neither a matrix product nor attention: quantizing, norm, rotation, elementwise
 * functions, the cache's writer. */
#ifndef WEIR_VEC_OPS_H
#define WEIR_VEC_OPS_H

#include "vec_internal.h"
#include "vec_math.h"

#define OPS_PARTS (16 / V_LANES)

/* ---- quantizing activations ---- */
V_INLINE void quantize_block(const float *x, const int n, int8_t *q, float *d)
{
    const vi magnitude = v_set32(0x7fffffff);
    vi top = v_zeroi();
    for (int i = 0; i < n; i += V_LANES) top = v_maxu32(top, v_and(v_casti(v_load(x + i)), magnitude));
    uint32_t bits = v_maxu32_lane(top);
    float amax = kern_from_bits(bits), inv = KERN_Q_LIMIT / amax;
    if (bits >= 0x7f800000u || kern_to_bits(inv) == 0x7f800000u) {
        *d = bits >= 0x7f800000u ? kern_from_bits(0x7fc00000u) : 0.0f;
        memset(q, 0, (size_t)n);
        return;
    }
    *d = amax / KERN_Q_LIMIT;
    for (int i = 0; i < n; i += V_LANES) v_store8(q + i, v_round32(v_mul(v_load(x + i), v_set(inv))));
}
/* Sums of each n bytes. */
V_INLINE void sum_groups(const int8_t *q, size_t n_groups, const int n, int32_t *sum)
{
    for (size_t i = 0; i < n_groups; i++) sum[i] = v_sum_bytes(q + i * (size_t)n, n);
}
void V_NAME(kern_quantize)(kern_act act, const float *x, size_t k, void *dst)
{
    int8_t *q = dst;
    float *d = (float *)(void *)((char *)dst + k);
    if (act == KERN_ACT_F32) {
        memcpy(dst, x, k * sizeof(float));
    } else if (act == KERN_ACT_Q32) {
        for (size_t b = 0; b < k / 32; b++) quantize_block(x + 32 * b, 32, q + 32 * b, &d[b]);
        sum_groups(q, k / 32, 32, (int32_t *)(void *)(d + k / 32));
    } else if (act == KERN_ACT_Q256) {
        for (size_t b = 0; b < k / 256; b++) quantize_block(x + 256 * b, 256, q + 256 * b, &d[b]);
        sum_groups(q, k / 16, 16, (int32_t *)(void *)(d + k / 256));
    }
}

/* ---- norm and rotation ---- */
void V_NAME(kern_rms_norm)(const float *x, const float *w, float w_offset, float eps, size_t n, float *y)
{
    vf lanes[OPS_PARTS];
    size_t i = 0;
    for (int p = 0; p < OPS_PARTS; p++) lanes[p] = v_zero();
    for (; i + 16 <= n; i += 16)
        for (int p = 0; p < OPS_PARTS; p++) {
            vf v = v_load(x + i + p * V_LANES);
            lanes[p] = v_fma(v, v, lanes[p]);
        }
    for (int p = 0; i < n; i += V_LANES, p++) { /* squares are never -0: adding zeros changes nothing */
        vf v = v_load_n(x + i, n - i < V_LANES ? n - i : V_LANES);
        lanes[p] = v_fma(v, v, lanes[p]);
    }
    const vf inv = v_set(1.0f / sqrtf(v_tree(lanes) / (float)n + eps)), offset = v_set(w_offset);
    for (i = 0; i + V_LANES <= n; i += V_LANES)
        v_store(y + i, v_mul(v_mul(v_load(x + i), inv), v_add(v_load(w + i), offset)));
    if (i < n)
        v_store_n(y + i, v_mul(v_mul(v_load_n(x + i, n - i), inv), v_add(v_load_n(w + i, n - i), offset)),
                  n - i);
}

static void rotate_one(float *pa, float *pb, float cosine, float sine)
{
    float a = *pa, b = *pb;
    *pa = fmaf(a, cosine, -(b * sine));
    *pb = fmaf(a, sine, b * cosine);
}
static void rotate_halves(float *head, size_t half, const float *table)
{
    size_t i = 0;
    for (; i + V_LANES <= half; i += V_LANES) {
        vf a = v_load(head + i), b = v_load(head + half + i), c = v_load(table + i),
           s = v_load(table + half + i);
        v_store(head + i, v_fms(a, c, v_mul(b, s)));
        v_store(head + half + i, v_fma(a, s, v_mul(b, c)));
    }
    for (; i < half; i++) rotate_one(head + i, head + half + i, table[i], table[half + i]);
}
/* Pairs side by side: the fused factor is the first of a pair in both results, the rounded one the second. */
static void rotate_pairs(float *head, size_t half, const float *table)
{
    size_t i = 0;
    for (; i + V_LANES <= half; i += V_LANES) {
        vf c = v_load(table + i), s = v_load(table + half + i), fused[2], rounded[2];
        v_interleave(c, s, fused);
        v_interleave(v_negate(s), c, rounded);
        for (int j = 0; j < 2; j++) {
            float *p = head + 2 * i + j * V_LANES;
            vf x = v_load(p);
            v_store(p, v_fma(v_even(x), fused[j], v_mul(v_odd(x), rounded[j])));
        }
    }
    for (; i < half; i++) rotate_one(head + 2 * i, head + 2 * i + 1, table[i], table[half + i]);
}
void V_NAME(kern_rope)(float *x, size_t n_heads, size_t head_dim, size_t n_rot, const float *table, bool neox)
{
    for (size_t h = 0; h < n_heads; h++) {
        if (neox)
            rotate_halves(x + h * head_dim, n_rot / 2, table);
        else
            rotate_pairs(x + h * head_dim, n_rot / 2, table);
    }
}

/* ---- elementwise ---- */
V_INLINE vf glu_at(const bool silu, vf gate, vf up)
{
    return v_mul(silu ? v_silu(gate) : v_gelu(gate), up);
}
V_INLINE void glu_all(const bool silu, const float *gate, const float *up, size_t n, float *y)
{
    size_t i = 0;
    for (; i + V_LANES <= n; i += V_LANES) v_store(y + i, glu_at(silu, v_load(gate + i), v_load(up + i)));
    if (i < n) v_store_n(y + i, glu_at(silu, v_load_n(gate + i, n - i), v_load_n(up + i, n - i)), n - i);
}
void V_NAME(kern_glu)(kern_glu kind, const float *gate, const float *up, size_t n, float *y)
{
    if (kind == KERN_GLU_SILU)
        glu_all(true, gate, up, n, y);
    else
        glu_all(false, gate, up, n, y);
}
void V_NAME(kern_add)(const float *a, const float *b, size_t n, float *y)
{
    size_t i = 0;
    for (; i + V_LANES <= n; i += V_LANES) v_store(y + i, v_add(v_load(a + i), v_load(b + i)));
    if (i < n) v_store_n(y + i, v_add(v_load_n(a + i, n - i), v_load_n(b + i, n - i)), n - i);
}
void V_NAME(kern_scale)(float *x, size_t n, float s)
{
    size_t i = 0;
    for (; i + V_LANES <= n; i += V_LANES) v_store(x + i, v_mul(v_load(x + i), v_set(s)));
    if (i < n) v_store_n(x + i, v_mul(v_load_n(x + i, n - i), v_set(s)), n - i);
}
V_INLINE vf softcap_at(vf x, vf cap)
{
    return v_mul(cap, v_tanh(v_div(x, cap)));
}
void V_NAME(kern_softcap)(float *x, size_t n, float cap)
{
    const vf c = v_set(cap);
    size_t i = 0;
    for (; i + V_LANES <= n; i += V_LANES) v_store(x + i, softcap_at(v_load(x + i), c));
    if (i < n) v_store_n(x + i, softcap_at(v_load_n(x + i, n - i), c), n - i);
}

float V_NAME(kern_softmax)(const float *x, size_t n, float inv_temperature, float *p)
{
    const vf lowest = v_castf(v_set32((int32_t)0xff800000)), factor = v_set(inv_temperature);
    vf top = lowest, lanes[OPS_PARTS];
    size_t i = 0;
    for (; i + V_LANES <= n; i += V_LANES) top = v_max(v_load(x + i), top);
    if (i < n) top = v_max(v_between(0, n - i, v_load_n(x + i, n - i), lowest), top);
    const vf max = v_set(v_max_lane(top));
    for (int j = 0; j < OPS_PARTS; j++) lanes[j] = v_zero();
    for (i = 0; i + V_LANES <= n; i += V_LANES) {
        vf e = v_exp(v_mul(v_sub(v_load(x + i), max), factor));
        v_store(p + i, e);
        lanes[i / V_LANES % OPS_PARTS] = v_add(lanes[i / V_LANES % OPS_PARTS], e);
    }
    if (i < n) {
        vf e = v_exp(v_mul(v_sub(v_load_n(x + i, n - i), max), factor));
        v_store_n(p + i, e, n - i);
        lanes[i / V_LANES % OPS_PARTS] =
            v_add(lanes[i / V_LANES % OPS_PARTS], v_between(0, n - i, e, v_zero()));
    }
    return v_tree(lanes);
}

#endif
