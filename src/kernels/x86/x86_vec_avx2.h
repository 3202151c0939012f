/* Vector layer of the AVX2 kernels: eight lanes of 32 bits; the same names as x86_vec_avx512.h, which see. */
#ifndef WEIR_X86_VEC_AVX2_H
#define WEIR_X86_VEC_AVX2_H

#include "kernels/kern_math.h"

#include <immintrin.h>

#define V_NAME(x)           x##_avx2
#define V_LANES             8
#define V_BYTES             32
#define V_TILE_TOKENS       2
#define V_BAND_PANELS       4
#define V_FEW_PANELS        1
#define V_DOT_TOKENS        3
#define V_BLOCK_ROWS        2
#define V_BLOCK_TOKENS      6
#define V_ATTENTION_BLOCKS  1
#define V_ATTENTION_VECTORS 2
/* Wide weights stay signed: their products go through |w| and the sign moved to the activation. */
#define V_WIDE_BIAS 0
/* How far before its use a packed weight is asked for, in bytes. */
#define V_PACKED_AHEAD 1024
#define V_INLINE       static inline __attribute__((always_inline, unused))
#if defined(__clang__)
#define V_UNROLL _Pragma("unroll")
#else
#define V_UNROLL _Pragma("GCC unroll 16")
#endif

typedef __m256i vi;
typedef __m256 vf;

V_INLINE vi v_loadi(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}
V_INLINE void v_storei(void *p, vi x)
{
    _mm256_storeu_si256((__m256i *)p, x);
}
V_INLINE vf v_load(const float *p)
{
    return _mm256_loadu_ps(p);
}
V_INLINE void v_store(float *p, vf x)
{
    _mm256_storeu_ps(p, x);
}
/* All bits of the first n lanes. */
V_INLINE vi v_mask(size_t n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
V_INLINE vf v_load_n(const float *p, size_t n)
{
    return _mm256_maskload_ps(p, v_mask(n));
}
V_INLINE void v_store_n(float *p, vf x, size_t n)
{
    _mm256_maskstore_ps(p, v_mask(n), x);
}
V_INLINE vi v_zeroi(void)
{
    return _mm256_setzero_si256();
}
V_INLINE vf v_zero(void)
{
    return _mm256_setzero_ps();
}
V_INLINE vi v_set32(int32_t x)
{
    return _mm256_set1_epi32(x);
}
V_INLINE vi v_set8(int x)
{
    return _mm256_set1_epi8((char)x);
}
V_INLINE vf v_set(float x)
{
    return _mm256_set1_ps(x);
}
V_INLINE vi v_and(vi a, vi b)
{
    return _mm256_and_si256(a, b);
}
V_INLINE vi v_or(vi a, vi b)
{
    return _mm256_or_si256(a, b);
}
V_INLINE vi v_xor(vi a, vi b)
{
    return _mm256_xor_si256(a, b);
}
/* (a & mask) | b */
V_INLINE vi v_and_or(vi a, vi mask, vi b)
{
    return _mm256_or_si256(_mm256_and_si256(a, mask), b);
}
/* (a & mask) | (b & ~mask) */
V_INLINE vi v_choose(vi mask, vi a, vi b)
{
    return _mm256_or_si256(_mm256_and_si256(mask, a), _mm256_andnot_si256(mask, b));
}
V_INLINE vi v_add32(vi a, vi b)
{
    return _mm256_add_epi32(a, b);
}
V_INLINE vi v_sub32(vi a, vi b)
{
    return _mm256_sub_epi32(a, b);
}
V_INLINE vi v_mul32(vi a, vi b)
{
    return _mm256_mullo_epi32(a, b);
}
/* Shifts take constants. */
#define v_shr32(x, n) _mm256_srli_epi32(x, n)
#define v_sar32(x, n) _mm256_srai_epi32(x, n)
#define v_shl32(x, n) _mm256_slli_epi32(x, n)
#define v_shr16(x, n) _mm256_srli_epi16(x, n)
/* Shifts by a count per lane; 32 and more give 0. */
V_INLINE vi v_shrv32(vi x, vi n)
{
    return _mm256_srlv_epi32(x, n);
}
V_INLINE vi v_shlv32(vi x, vi n)
{
    return _mm256_sllv_epi32(x, n);
}
/* a < b ? yes : no, signed */
V_INLINE vi v_less32(vi a, vi b, vi yes, vi no)
{
    return _mm256_blendv_epi8(no, yes, _mm256_cmpgt_epi32(b, a));
}
V_INLINE vf v_add(vf a, vf b)
{
    return _mm256_add_ps(a, b);
}
V_INLINE vf v_sub(vf a, vf b)
{
    return _mm256_sub_ps(a, b);
}
V_INLINE vf v_mul(vf a, vf b)
{
    return _mm256_mul_ps(a, b);
}
V_INLINE vf v_div(vf a, vf b)
{
    return _mm256_div_ps(a, b);
}
V_INLINE vf v_fma(vf a, vf b, vf c)
{
    return _mm256_fmadd_ps(a, b, c);
}
/* a * b - c, one rounding */
V_INLINE vf v_fms(vf a, vf b, vf c)
{
    return _mm256_fmsub_ps(a, b, c);
}
/* c - a * b, one rounding */
V_INLINE vf v_fnma(vf a, vf b, vf c)
{
    return _mm256_fnmadd_ps(a, b, c);
}
V_INLINE vf v_float(vi x)
{
    return _mm256_cvtepi32_ps(x);
}
V_INLINE vf v_castf(vi x)
{
    return _mm256_castsi256_ps(x);
}
V_INLINE vi v_casti(vf x)
{
    return _mm256_castps_si256(x);
}
/* a > b ? a : b, which is b where one is no number. */
V_INLINE vf v_max(vf a, vf b)
{
    return _mm256_max_ps(a, b);
}
V_INLINE vi v_maxu32(vi a, vi b)
{
    return _mm256_max_epu32(a, b);
}
/* a < b ? yes : no */
V_INLINE vf v_less(vf a, vf b, vf yes, vf no)
{
    return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}
/* x is no number ? yes : no */
V_INLINE vf v_unordered(vf x, vf yes, vf no)
{
    return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}
/* Lanes first ... end - 1 of yes, the others of no. */
V_INLINE vf v_between(size_t first, size_t end, vf yes, vf no)
{
    return _mm256_blendv_ps(no, yes, v_castf(_mm256_andnot_si256(v_mask(first), v_mask(end))));
}
/* To the nearest integer, ties to even. */
V_INLINE vi v_round32(vf x)
{
    return _mm256_cvtps_epi32(x);
}
/* p x 2^n, rounded once; n holds integers from -252 to 254. */
V_INLINE vf v_scale2(vf p, vf n)
{
    const vi bias = _mm256_set1_epi32(127);
    vi i = v_round32(n), a = v_sar32(i, 1), b = v_sub32(i, a);
    p = v_mul(p, v_castf(v_shl32(v_add32(a, bias), 23)));
    return v_mul(p, v_castf(v_shl32(v_add32(b, bias), 23)));
}
V_INLINE float v_max_lane(vf x)
{
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}
V_INLINE uint32_t v_maxu32_lane(vi x)
{
    __m128i m = _mm_max_epu32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0x4e));
    return (uint32_t)_mm_cvtsi128_si32(_mm_max_epu32(m, _mm_shuffle_epi32(m, 0xb1)));
}
/* The low bytes of the lanes, which hold int8. */
V_INLINE void v_store8(int8_t *p, vi x)
{
    __m128i y = _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    _mm_storel_epi64((__m128i *)(void *)p, _mm_packs_epi16(y, y));
}
V_INLINE void v_store_f16(uint16_t *p, vf x)
{
    _mm_storeu_si128((__m128i *)(void *)p, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
/* Even and odd lanes, each twice. */
V_INLINE vf v_even(vf x)
{
    return _mm256_moveldup_ps(x);
}
V_INLINE vf v_odd(vf x)
{
    return _mm256_movehdup_ps(x);
}
/* a0 b0 a1 b1 ... */
V_INLINE void v_interleave(vf a, vf b, vf out[2])
{
    vf low = _mm256_unpacklo_ps(a, b), high = _mm256_unpackhi_ps(a, b);
    out[0] = _mm256_permute2f128_ps(low, high, 0x20);
    out[1] = _mm256_permute2f128_ps(low, high, 0x31);
}
/* The f16 in the low half of each lane. */
V_INLINE vf v_half(vi x)
{
    vi low = _mm256_and_si256(x, _mm256_set1_epi32(0xffff));
    low = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, low), 0x08);
    return _mm256_cvtph_ps(_mm256_castsi256_si128(low));
}
/* Table of 16 bytes by index bytes below 16. */
V_INLINE vi v_table(const int8_t table[16])
{
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)table));
}
V_INLINE vi v_lookup(vi table, vi index)
{
    return _mm256_shuffle_epi8(table, index);
}
/* Four bytes at rows[lane] + at; offsets[lane] is rows[lane] - rows[0]. */
V_INLINE vi v_gather(const uint8_t *const *rows, size_t at, vi offsets)
{
    return _mm256_i32gather_epi32((const int *)(const void *)(rows[0] + at), offsets, 1);
}
/* A run sums pairs of products in 16 bits: 4 x (2 x 31 x 127) and 2 x (2 x 63 x 127) stay below 2^15. */
#define V_RUN_31   4
#define V_RUN_63   2
#define V_RUN_WIDE 0
V_INLINE vi v_run_begin(vi acc)
{
    (void)acc;
    return _mm256_setzero_si256();
}
V_INLINE vi v_run_dot(vi run, vi w, vi q)
{
    return _mm256_add_epi16(run, _mm256_maddubs_epi16(w, q));
}
V_INLINE vi v_run_end(vi acc, vi run)
{
    return _mm256_add_epi32(acc, _mm256_madd_epi16(run, _mm256_set1_epi16(1)));
}
/* |w| <= 128 and |q| <= 127: a pair stays below 2^15, a run of two would not. */
V_INLINE vi v_dot_wide(vi acc, vi w, vi q)
{
    vi pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(q, w));
    return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
/* Pairs of signed 16-bit numbers. */
V_INLINE vi v_dot16(vi acc, vi a, vi b)
{
    return _mm256_add_epi32(acc, _mm256_madd_epi16(a, b));
}
/* acc + s x scale, where s fits 16 bits and scale 15, without a sign. */
V_INLINE vi v_mla16(vi acc, vi s, vi scale)
{
    return v_dot16(acc, s, scale);
}
/* Signed weight bytes to the form that v_dot_wide takes. */
V_INLINE vi v_widen(vi w)
{
    return w;
}
/* Bit 4 of byte i of each lane = bit i of the lane's lowest four. */
V_INLINE vi v_fifth_bits(vi bits)
{
    const vi first =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12));
    const vi bit = _mm256_set1_epi32(0x08040201);
    vi set = _mm256_cmpeq_epi8(_mm256_and_si256(_mm256_shuffle_epi8(bits, first), bit), bit);
    return _mm256_and_si256(set, _mm256_set1_epi8(16));
}
/* Weights and cache values as floats: V_LANES, or n of them continued with zeros. */
V_INLINE vf v_load_f16(const uint8_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}
V_INLINE vf v_load_f16_n(const uint8_t *p, size_t n)
{
    uint8_t x[16] = {0};
    memcpy(x, p, 2 * n);
    return v_load_f16(x);
}
V_INLINE vf v_load_bf16(const uint8_t *p)
{
    vi x = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
    return v_castf(v_shl32(x, 16));
}
/* V_LANES bytes as unsigned numbers. */
V_INLINE vi v_load_u8(const uint8_t *p)
{
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
}
V_INLINE vf v_load_bf16_n(const uint8_t *p, size_t n)
{
    uint8_t x[16] = {0};
    memcpy(x, p, 2 * n);
    return v_load_bf16(x);
}
/* kern_lane_tree of sixteen lanes, kept in 16 / V_LANES vectors. */
V_INLINE float v_tree(const vf *lanes)
{
    __m256 s8 = _mm256_add_ps(lanes[0], lanes[1]);
    __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
}
/* v_tree for sixteen times sixteen lanes. */
V_INLINE void v_trees(const float *lanes, float out[16])
{
    for (int i = 0; i < 16; i++) {
        vf x[2] = {v_load(lanes + 16 * i), v_load(lanes + 16 * i + 8)};
        out[i] = v_tree(x);
    }
}

/* Transposes 4 x 4 dwords in each half. */
V_INLINE void v_transpose4(vi a[4])
{
    vi t0 = _mm256_unpacklo_epi32(a[0], a[1]), t1 = _mm256_unpackhi_epi32(a[0], a[1]);
    vi t2 = _mm256_unpacklo_epi32(a[2], a[3]), t3 = _mm256_unpackhi_epi32(a[2], a[3]);
    a[0] = _mm256_unpacklo_epi64(t0, t2);
    a[1] = _mm256_unpackhi_epi64(t0, t2);
    a[2] = _mm256_unpacklo_epi64(t1, t3);
    a[3] = _mm256_unpackhi_epi64(t1, t3);
}
V_INLINE __m128i v_load128(const uint8_t *p)
{
    return _mm_loadu_si128((const __m128i *)(const void *)p);
}
/* out[g], lane r: dword g of the 16 bytes at rows[r] + at. */
V_INLINE void v_load_rows16(const uint8_t *const *rows, size_t at, vi out[4])
{
    V_UNROLL for (int j = 0; j < 4; j++)
    {
        vi x = _mm256_castsi128_si256(v_load128(rows[j] + at));
        out[j] = _mm256_inserti128_si256(x, v_load128(rows[4 + j] + at), 1);
    }
    v_transpose4(out);
}
/* out[g], lane r: dword g of the 32 bytes at rows[r] + at. */
V_INLINE void v_load_rows32(const uint8_t *const *rows, size_t at, vi out[8])
{
    vi x[4], y[4];
    V_UNROLL for (int j = 0; j < 4; j++)
    {
        x[j] = v_loadi(rows[j] + at);
        y[j] = v_loadi(rows[4 + j] + at);
    }
    v_transpose4(x);
    v_transpose4(y);
    /* Halves of x now: rows 0-3 dword j, rows 0-3 dword 4 + j. */
    V_UNROLL for (int j = 0; j < 4; j++)
    {
        out[j] = _mm256_permute2x128_si256(x[j], y[j], 0x20);
        out[4 + j] = _mm256_permute2x128_si256(x[j], y[j], 0x31);
    }
}

#include "x86_vec_both.h"

#endif
