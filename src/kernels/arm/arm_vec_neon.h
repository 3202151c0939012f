/* Vector layer of the NEON kernels: four lanes of 32 bits; the same names as x86/x86_vec_avx512.h, which see.
 *
 * Dot products are sdot's, of four signed bytes by four signed bytes in each lane, so weights keep the values
 * that the unsigned ones have below 64 and wide ones stay signed. FPCR is as the system sets it: to nearest
 * even, denormals kept. */
#ifndef WEIR_ARM_VEC_NEON_H
#define WEIR_ARM_VEC_NEON_H

#include "kernels/kern_math.h"

#include <arm_neon.h>

#define V_NAME(x) x##_neon
#define V_LANES   4
#define V_BYTES   16
/* 2 x 4 sums of floats, as many of integers, and what they come from fit the 32 registers. */
#define V_TILE_TOKENS       4
#define V_BAND_PANELS       16
#define V_FEW_PANELS        2
#define V_DOT_TOKENS        3
#define V_BLOCK_ROWS        4
#define V_BLOCK_TOKENS      6
#define V_ATTENTION_BLOCKS  1
#define V_ATTENTION_VECTORS 4
#define V_WIDE_BIAS         0
/* How far before its use a packed weight is asked for, in bytes. */
#define V_PACKED_AHEAD 1024
#define V_INLINE       static inline __attribute__((always_inline, unused))
#if defined(__clang__)
#define V_UNROLL _Pragma("unroll")
#else
#define V_UNROLL _Pragma("GCC unroll 16")
#endif

typedef int32x4_t vi;
typedef float32x4_t vf;

V_INLINE vi v_from8(int8x16_t x)
{
    return vreinterpretq_s32_s8(x);
}
V_INLINE int8x16_t v_to8(vi x)
{
    return vreinterpretq_s8_s32(x);
}
V_INLINE vi v_fromu32(uint32x4_t x)
{
    return vreinterpretq_s32_u32(x);
}
V_INLINE uint32x4_t v_tou32(vi x)
{
    return vreinterpretq_u32_s32(x);
}

V_INLINE vi v_loadi(const void *p)
{
    return v_from8(vld1q_s8(p));
}
V_INLINE void v_storei(void *p, vi x)
{
    vst1q_s8(p, v_to8(x));
}
V_INLINE vf v_load(const float *p)
{
    return vld1q_f32(p);
}
V_INLINE void v_store(float *p, vf x)
{
    vst1q_f32(p, x);
}
V_INLINE vi v_zeroi(void)
{
    return vdupq_n_s32(0);
}
V_INLINE vf v_zero(void)
{
    return vdupq_n_f32(0.0f);
}
V_INLINE vi v_set32(int32_t x)
{
    return vdupq_n_s32(x);
}
V_INLINE vi v_set8(int x)
{
    return v_from8(vdupq_n_s8((int8_t)x));
}
V_INLINE vf v_set(float x)
{
    return vdupq_n_f32(x);
}
/* All bits of the first n lanes. */
V_INLINE uint32x4_t v_mask(size_t n)
{
    static const uint32_t lane[4] = {0, 1, 2, 3};
    return vcgtq_u32(vdupq_n_u32((uint32_t)n), vld1q_u32(lane));
}
/* n is at most V_LANES here, and may be 0: not a byte behind may be touched. */
V_INLINE vf v_load_n(const float *p, size_t n)
{
    vf x = vdupq_n_f32(0.0f);
    if (n >= 4) return vld1q_f32(p);
    if (n >= 2) {
        x = vcombine_f32(vld1_f32(p), vdup_n_f32(0.0f));
        return n == 3 ? vld1q_lane_f32(p + 2, x, 2) : x;
    }
    return n == 1 ? vld1q_lane_f32(p, x, 0) : x;
}
V_INLINE void v_store_n(float *p, vf x, size_t n)
{
    if (n >= 4)
        vst1q_f32(p, x);
    else if (n >= 2)
        vst1_f32(p, vget_low_f32(x));
    if (n == 1) vst1q_lane_f32(p, x, 0);
    if (n == 3) vst1q_lane_f32(p + 2, x, 2);
}
V_INLINE vi v_and(vi a, vi b)
{
    return vandq_s32(a, b);
}
V_INLINE vi v_or(vi a, vi b)
{
    return vorrq_s32(a, b);
}
V_INLINE vi v_xor(vi a, vi b)
{
    return veorq_s32(a, b);
}
/* (a & mask) | b */
V_INLINE vi v_and_or(vi a, vi mask, vi b)
{
    return vorrq_s32(vandq_s32(a, mask), b);
}
/* (a & mask) | (b & ~mask) */
V_INLINE vi v_choose(vi mask, vi a, vi b)
{
    return vbslq_s32(v_tou32(mask), a, b);
}
V_INLINE vi v_add32(vi a, vi b)
{
    return vaddq_s32(a, b);
}
V_INLINE vi v_sub32(vi a, vi b)
{
    return vsubq_s32(a, b);
}
V_INLINE vi v_mul32(vi a, vi b)
{
    return vmulq_s32(a, b);
}
/* Shifts take constants from 1 on. */
#define v_shr32(x, n) v_fromu32(vshrq_n_u32(v_tou32(x), n))
#define v_sar32(x, n) vshrq_n_s32(x, n)
#define v_shl32(x, n) vshlq_n_s32(x, n)
#define v_shr16(x, n) vreinterpretq_s32_u16(vshrq_n_u16(vreinterpretq_u16_s32(x), n))
/* Shifts by a count per lane, below 32; more gives anything. */
V_INLINE vi v_shrv32(vi x, vi n)
{
    return v_fromu32(vshlq_u32(v_tou32(x), vnegq_s32(n)));
}
V_INLINE vi v_shlv32(vi x, vi n)
{
    return vshlq_s32(x, n);
}
/* a < b ? yes : no, signed */
V_INLINE vi v_less32(vi a, vi b, vi yes, vi no)
{
    return vbslq_s32(vcltq_s32(a, b), yes, no);
}
V_INLINE vf v_add(vf a, vf b)
{
    return vaddq_f32(a, b);
}
V_INLINE vf v_sub(vf a, vf b)
{
    return vsubq_f32(a, b);
}
V_INLINE vf v_mul(vf a, vf b)
{
    return vmulq_f32(a, b);
}
V_INLINE vf v_div(vf a, vf b)
{
    return vdivq_f32(a, b);
}
V_INLINE vf v_fma(vf a, vf b, vf c)
{
    return vfmaq_f32(c, a, b);
}
/* a * b - c, one rounding; a result of 0 has the sign that a sum has. */
V_INLINE vf v_fms(vf a, vf b, vf c)
{
    return vfmaq_f32(vnegq_f32(c), a, b);
}
/* c - a * b, one rounding */
V_INLINE vf v_fnma(vf a, vf b, vf c)
{
    return vfmsq_f32(c, a, b);
}
V_INLINE vf v_float(vi x)
{
    return vcvtq_f32_s32(x);
}
V_INLINE vf v_castf(vi x)
{
    return vreinterpretq_f32_s32(x);
}
V_INLINE vi v_casti(vf x)
{
    return vreinterpretq_s32_f32(x);
}
/* a > b ? a : b, which is b where one is no number. */
V_INLINE vf v_max(vf a, vf b)
{
    return vbslq_f32(vcgtq_f32(a, b), a, b);
}
V_INLINE vi v_maxu32(vi a, vi b)
{
    return v_fromu32(vmaxq_u32(v_tou32(a), v_tou32(b)));
}
/* a < b ? yes : no */
V_INLINE vf v_less(vf a, vf b, vf yes, vf no)
{
    return vbslq_f32(vcltq_f32(a, b), yes, no);
}
/* x is no number ? yes : no */
V_INLINE vf v_unordered(vf x, vf yes, vf no)
{
    return vbslq_f32(vceqq_f32(x, x), no, yes);
}
/* Lanes first ... end - 1 of yes, the others of no. */
V_INLINE vf v_between(size_t first, size_t end, vf yes, vf no)
{
    return vbslq_f32(vbicq_u32(v_mask(end), v_mask(first)), yes, no);
}
/* To the nearest integer, ties to even. */
V_INLINE vi v_round32(vf x)
{
    return vcvtnq_s32_f32(x);
}
/* p x 2^n, rounded once; n holds integers from -252 to 254. */
V_INLINE vf v_scale2(vf p, vf n)
{
    const vi bias = v_set32(127);
    vi i = v_round32(n), a = v_sar32(i, 1), b = v_sub32(i, a);
    p = v_mul(p, v_castf(v_shl32(v_add32(a, bias), 23)));
    return v_mul(p, v_castf(v_shl32(v_add32(b, bias), 23)));
}
/* No lane is NaN. */
V_INLINE float v_max_lane(vf x)
{
    return vmaxvq_f32(x);
}
V_INLINE uint32_t v_maxu32_lane(vi x)
{
    return vmaxvq_u32(v_tou32(x));
}
/* The low bytes of the lanes, which hold int8. */
V_INLINE void v_store8(int8_t *p, vi x)
{
    int16x4_t y = vmovn_s32(x);
    int8x8_t z = vmovn_s16(vcombine_s16(y, y));
    int32_t four = vget_lane_s32(vreinterpret_s32_s8(z), 0);
    memcpy(p, &four, sizeof four);
}
V_INLINE void v_store_f16(uint16_t *p, vf x)
{
    vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(x)));
}
/* Even and odd lanes, each twice. */
V_INLINE vf v_even(vf x)
{
    return vtrn1q_f32(x, x);
}
V_INLINE vf v_odd(vf x)
{
    return vtrn2q_f32(x, x);
}
/* a0 b0 a1 b1 ... */
V_INLINE void v_interleave(vf a, vf b, vf out[2])
{
    out[0] = vzip1q_f32(a, b);
    out[1] = vzip2q_f32(a, b);
}
/* The f16 in the low half of each lane. */
V_INLINE vf v_half(vi x)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(v_tou32(x))));
}
/* Table of 16 bytes by index bytes below 16. */
V_INLINE vi v_table(const int8_t table[16])
{
    return v_loadi(table);
}
V_INLINE vi v_lookup(vi table, vi index)
{
    return v_from8(vqtbl1q_s8(v_to8(table), vreinterpretq_u8_s32(index)));
}
/* Four bytes at rows[lane] + at. */
V_INLINE vi v_gather(const uint8_t *const *rows, size_t at, vi offsets)
{
    uint32_t x[4];
    (void)offsets;
    V_UNROLL for (int r = 0; r < 4; r++) memcpy(&x[r], rows[r] + at, sizeof x[r]);
    uint32x4_t y = vdupq_n_u32(x[0]);
    y = vsetq_lane_u32(x[1], y, 1);
    y = vsetq_lane_u32(x[2], y, 2);
    return v_fromu32(vsetq_lane_u32(x[3], y, 3));
}
/* A run adds to the sum in 32 bits; weights below 64 are the same signed and unsigned. */
#define V_RUN_31   4
#define V_RUN_63   2
#define V_RUN_WIDE 1
V_INLINE vi v_run_begin(vi acc)
{
    return acc;
}
/* Sixteen bytes of activations; a group is four of them, which sdot lets meet all lanes. The group is
 * constant after inlining. */
typedef int8x16_t v_four;
typedef struct v_group {
    v_four four;
    int g;
} v_group;
V_INLINE v_four v_load_four(const char *q)
{
    return vld1q_s8((const int8_t *)q);
}
V_INLINE v_group v_take(v_four x, int g)
{
    return (v_group){x, g};
}
V_INLINE vi v_dot_wide(vi acc, vi w, v_group q)
{
    switch (q.g) {
    case 0: return vdotq_laneq_s32(acc, v_to8(w), q.four, 0);
    case 1: return vdotq_laneq_s32(acc, v_to8(w), q.four, 1);
    case 2: return vdotq_laneq_s32(acc, v_to8(w), q.four, 2);
    default: return vdotq_laneq_s32(acc, v_to8(w), q.four, 3);
    }
}
V_INLINE vi v_run_dot(vi run, vi w, v_group q)
{
    return v_dot_wide(run, w, q);
}
V_INLINE vi v_run_end(vi acc, vi run)
{
    (void)acc;
    return run;
}
/* Pairs of signed 16-bit numbers. */
V_INLINE vi v_dot16(vi acc, vi a, vi b)
{
    int16x8_t x = vreinterpretq_s16_s32(a), y = vreinterpretq_s16_s32(b);
    int32x4_t low = vmull_s16(vget_low_s16(x), vget_low_s16(y)), high = vmull_high_s16(x, y);
    return vaddq_s32(acc, vpaddq_s32(low, high));
}
/* acc + s x scale, where s fits 16 bits and scale 15, without a sign. */
V_INLINE vi v_mla16(vi acc, vi s, vi scale)
{
    return vmlaq_s32(acc, s, scale);
}
/* Signed weight bytes to the form that v_dot_wide takes. */
V_INLINE vi v_widen(vi w)
{
    return w;
}
/* Bit 4 of byte i of each lane = bit i of the lane's lowest four. */
V_INLINE vi v_fifth_bits(vi bits)
{
    static const uint8_t first[16] = {0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12};
    const int8x16_t bit = v_to8(v_set32(0x08040201));
    int8x16_t x = vqtbl1q_s8(v_to8(bits), vld1q_u8(first));
    return vreinterpretq_s32_u8(vandq_u8(vtstq_s8(x, bit), vdupq_n_u8(16)));
}
/* Weights and cache values as floats: V_LANES, or n of them continued with zeros. */
V_INLINE vf v_load_f16(const uint8_t *p)
{
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p)));
}
V_INLINE vf v_load_f16_n(const uint8_t *p, size_t n)
{
    uint8_t x[8] = {0};
    memcpy(x, p, 2 * n);
    return v_load_f16(x);
}
V_INLINE vf v_load_bf16(const uint8_t *p)
{
    return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(p)), 16));
}
/* V_LANES bytes as unsigned numbers. */
V_INLINE vi v_load_u8(const uint8_t *p)
{
    uint32_t x;
    memcpy(&x, p, sizeof x);
    return v_fromu32(vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(x)))));
}
V_INLINE vf v_load_bf16_n(const uint8_t *p, size_t n)
{
    uint8_t x[8] = {0};
    memcpy(x, p, 2 * n);
    return v_load_bf16(x);
}
/* kern_lane_tree of sixteen lanes, kept in 16 / V_LANES vectors. */
V_INLINE float v_tree(const vf *lanes)
{
    vf s4 = v_add(v_add(lanes[0], lanes[2]), v_add(lanes[1], lanes[3]));
    return vpadds_f32(vadd_f32(vget_low_f32(s4), vget_high_f32(s4)));
}
/* v_tree for sixteen times sixteen lanes. */
V_INLINE void v_trees(const float *lanes, float out[16])
{
    for (int i = 0; i < 16; i++) {
        vf x[4];
        for (int j = 0; j < 4; j++) x[j] = v_load(lanes + 16 * i + 4 * j);
        out[i] = v_tree(x);
    }
}
/* Sum of n bytes, 16 or 32. */
V_INLINE int32_t v_sum_bytes(const int8_t *q, const int n)
{
    vi s = v_zeroi();
    for (int j = 0; j < n; j += 16) s = vdotq_s32(s, vld1q_s8(q + j), vdupq_n_s8(1));
    return vaddvq_s32(s);
}
/* Four sums (halves: eight, added two by two) as int16 in the order 0, 2, 1, 3. */
V_INLINE void v_store_pairs(int16_t *out, const int32_t *sum, const bool halves)
{
    vi s = vld1q_s32(sum);
    if (halves) s = vpaddq_s32(s, vld1q_s32(sum + 4));
    int16x4_t x = vmovn_s32(s);
    vst1_s16(out, vzip1_s16(x, vext_s16(x, x, 2)));
}

/* out[g], lane r: dword g of the 16 bytes at rows[r] + at. */
V_INLINE void v_load_rows16(const uint8_t *const *rows, size_t at, vi out[4])
{
    vi a = v_loadi(rows[0] + at), b = v_loadi(rows[1] + at);
    vi c = v_loadi(rows[2] + at), d = v_loadi(rows[3] + at);
    int64x2_t ab0 = vreinterpretq_s64_s32(vtrn1q_s32(a, b)), ab1 = vreinterpretq_s64_s32(vtrn2q_s32(a, b));
    int64x2_t cd0 = vreinterpretq_s64_s32(vtrn1q_s32(c, d)), cd1 = vreinterpretq_s64_s32(vtrn2q_s32(c, d));
    out[0] = vreinterpretq_s32_s64(vtrn1q_s64(ab0, cd0));
    out[1] = vreinterpretq_s32_s64(vtrn1q_s64(ab1, cd1));
    out[2] = vreinterpretq_s32_s64(vtrn2q_s64(ab0, cd0));
    out[3] = vreinterpretq_s32_s64(vtrn2q_s64(ab1, cd1));
}
/* out[g], lane r: dword g of the 32 bytes at rows[r] + at. */
V_INLINE void v_load_rows32(const uint8_t *const *rows, size_t at, vi out[8])
{
    v_load_rows16(rows, at, out);
    v_load_rows16(rows, at + 16, out + 4);
}

#endif
