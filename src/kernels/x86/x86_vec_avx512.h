/* Vector layer of the AVX-512 kernels: sixteen lanes of 32 bits. x86_vec_avx2.h gives the same names with
 * eight lanes; the algorithms (vec_pack.h, vec_tile.h, ...) are written once over either.
 *
 * Dot products are of the four unsigned weight bytes and the four signed activation bytes of each lane:
 * exact. */
#ifndef WEIR_X86_VEC_AVX512_H
#define WEIR_X86_VEC_AVX512_H

#include "kernels/kern_math.h"

#include <immintrin.h>

#define V_NAME(x) x##_avx512 /* names of the functions made */
#define V_LANES   16
#define V_BYTES   64
/* Tiles of outputs: two vectors of rows by so many tokens. */
#define V_TILE_TOKENS 6
/* Panels of a band, for many tokens and for few. */
#define V_BAND_PANELS 4
#define V_FEW_PANELS  1
/* Tokens of a tile of float weights. */
#define V_DOT_TOKENS 6
/* The same for many tokens. */
#define V_BLOCK_ROWS   4
#define V_BLOCK_TOKENS 6
/* Attention, of six queries at once: blocks of sixteen positions; vectors of the output. */
#define V_ATTENTION_BLOCKS  4
#define V_ATTENTION_VECTORS 4
/* Weights that need all eight bits are kept as value + 128. */
#define V_WIDE_BIAS 128
/* How far before its use a packed weight is asked for, in bytes. */
#define V_PACKED_AHEAD 1024
#define V_INLINE       static inline __attribute__((always_inline, unused))
#if defined(__clang__)
#define V_UNROLL _Pragma("unroll")
#else
#define V_UNROLL _Pragma("GCC unroll 16")
#endif

typedef __m512i vi;
typedef __m512 vf;

V_INLINE vi v_loadi(const void *p)
{
    return _mm512_loadu_si512(p);
}
V_INLINE void v_storei(void *p, vi x)
{
    _mm512_storeu_si512(p, x);
}
V_INLINE vf v_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
V_INLINE void v_store(float *p, vf x)
{
    _mm512_storeu_ps(p, x);
}
V_INLINE __mmask16 v_mask(size_t n) /* n <= 16 */
{
    return (__mmask16)((1u << n) - 1);
}
V_INLINE vf v_load_n(const float *p, size_t n)
{
    return _mm512_maskz_loadu_ps(v_mask(n), p);
}
V_INLINE void v_store_n(float *p, vf x, size_t n)
{
    _mm512_mask_storeu_ps(p, v_mask(n), x);
}
V_INLINE vi v_zeroi(void)
{
    return _mm512_setzero_si512();
}
V_INLINE vf v_zero(void)
{
    return _mm512_setzero_ps();
}
V_INLINE vi v_set32(int32_t x)
{
    return _mm512_set1_epi32(x);
}
V_INLINE vi v_set16(int x)
{
    return _mm512_set1_epi16((short)x);
}
V_INLINE vi v_set8(int x)
{
    return _mm512_set1_epi8((char)x);
}
V_INLINE vf v_set(float x)
{
    return _mm512_set1_ps(x);
}
V_INLINE vi v_and(vi a, vi b)
{
    return _mm512_and_si512(a, b);
}
V_INLINE vi v_or(vi a, vi b)
{
    return _mm512_or_si512(a, b);
}
V_INLINE vi v_xor(vi a, vi b)
{
    return _mm512_xor_si512(a, b);
}
/* (a & mask) | b */
V_INLINE vi v_and_or(vi a, vi mask, vi b)
{
    return _mm512_ternarylogic_epi32(a, mask, b, 0xea);
}
/* (a & mask) | (b & ~mask) */
V_INLINE vi v_choose(vi mask, vi a, vi b)
{
    return _mm512_ternarylogic_epi32(mask, a, b, 0xca);
}
V_INLINE vi v_add32(vi a, vi b)
{
    return _mm512_add_epi32(a, b);
}
V_INLINE vi v_sub32(vi a, vi b)
{
    return _mm512_sub_epi32(a, b);
}
V_INLINE vi v_mul32(vi a, vi b)
{
    return _mm512_mullo_epi32(a, b);
}
/* Shifts take constants. */
#define v_shr32(x, n) _mm512_srli_epi32(x, n)
#define v_sar32(x, n) _mm512_srai_epi32(x, n)
#define v_shl32(x, n) _mm512_slli_epi32(x, n)
#define v_shr16(x, n) _mm512_srli_epi16(x, n)
#define v_shl16(x, n) _mm512_slli_epi16(x, n)

V_INLINE vf v_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}
V_INLINE vf v_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}
V_INLINE vf v_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}
/* c - a * b, one rounding */
V_INLINE vf v_fnma(vf a, vf b, vf c)
{
    return _mm512_fnmadd_ps(a, b, c);
}
V_INLINE vf v_float(vi x)
{
    return _mm512_cvtepi32_ps(x);
}
V_INLINE vf v_castf(vi x)
{
    return _mm512_castsi512_ps(x);
}
V_INLINE vi v_casti(vf x)
{
    return _mm512_castps_si512(x);
}
/* Shifts by a count per lane; 32 and more give 0. */
V_INLINE vi v_shrv32(vi x, vi n)
{
    return _mm512_srlv_epi32(x, n);
}
V_INLINE vi v_shlv32(vi x, vi n)
{
    return _mm512_sllv_epi32(x, n);
}
/* a < b ? yes : no, signed */
V_INLINE vi v_less32(vi a, vi b, vi yes, vi no)
{
    return _mm512_mask_blend_epi32(_mm512_cmplt_epi32_mask(a, b), no, yes);
}
/* The f16 in the low half of each lane. */
V_INLINE vf v_half(vi x)
{
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(x));
}
/* Table of 16 bytes by index bytes below 16. */
V_INLINE vi v_table(const int8_t table[16])
{
    return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)table));
}
V_INLINE vi v_lookup(vi table, vi index)
{
    return _mm512_shuffle_epi8(table, index);
}
/* Four bytes at rows[lane] + at; offsets[lane] is rows[lane] - rows[0]. */
V_INLINE vi v_gather(const uint8_t *const *rows, size_t at, vi offsets)
{
    return _mm512_i32gather_epi32(offsets, rows[0] + at, 1);
}
/* The dot products of a run of vectors: begin, then dot for each, then end. A run holds at most V_RUN_...
 * vectors, by the largest weight. V_RUN_WIDE: sums have 32 bits, so runs need no limit, and begin and end do
 * nothing. */
#define V_RUN_31   4
#define V_RUN_63   2
#define V_RUN_WIDE 1
V_INLINE vi v_run_begin(vi acc)
{
    return acc;
}
V_INLINE vi v_run_dot(vi run, vi w, vi q)
{
    return _mm512_dpbusd_epi32(run, w, q);
}
V_INLINE vi v_run_end(vi acc, vi run)
{
    (void)acc;
    return run;
}
/* One vector of wide weights, which are kept plus V_WIDE_BIAS. */
V_INLINE vi v_dot_wide(vi acc, vi w, vi q)
{
    return _mm512_dpbusd_epi32(acc, w, q);
}
/* Pairs of signed 16-bit numbers. */
V_INLINE vi v_dot16(vi acc, vi a, vi b)
{
    return _mm512_dpwssd_epi32(acc, a, b);
}
/* acc + s x scale, where s fits 16 bits and scale 15, without a sign. */
V_INLINE vi v_mla16(vi acc, vi s, vi scale)
{
    return v_dot16(acc, s, scale);
}
/* Signed weight bytes to the form that v_dot_wide takes. */
V_INLINE vi v_widen(vi w)
{
    return _mm512_xor_si512(w, _mm512_set1_epi8(-128));
}
/* Bit 4 of byte i of each lane = bit i of the lane's lowest four. */
V_INLINE vi v_fifth_bits(vi bits)
{
    const vi spread =
        _mm512_setr_epi32(0, 0x10, 0x1000, 0x1010, 0x100000, 0x100010, 0x101000, 0x101010, 0x10000000,
                          0x10000010, 0x10001000, 0x10001010, 0x10100000, 0x10100010, 0x10101000, 0x10101010);
    return _mm512_permutexvar_epi32(bits, spread);
}

/* Weights and cache values as floats: V_LANES, or n of them continued with zeros. */
V_INLINE vf v_load_f16(const uint8_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
V_INLINE vf v_load_f16_n(const uint8_t *p, size_t n)
{
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(v_mask(n), p));
}
V_INLINE vf v_load_bf16(const uint8_t *p)
{
    vi x = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p));
    return v_castf(v_shl32(x, 16));
}
/* V_LANES bytes as unsigned numbers. */
V_INLINE vi v_load_u8(const uint8_t *p)
{
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
}
V_INLINE vf v_load_bf16_n(const uint8_t *p, size_t n)
{
    vi x = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(v_mask(n), p));
    return v_castf(v_shl32(x, 16));
}
/* kern_lane_tree of sixteen lanes, kept in 16 / V_LANES vectors. */
V_INLINE float v_tree(const vf *lanes)
{
    __m256 s8 = _mm256_add_ps(_mm512_castps512_ps256(lanes[0]), _mm512_extractf32x8_ps(lanes[0], 1));
    __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
}

V_INLINE vf v_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}
V_INLINE vf v_div(vf a, vf b)
{
    return _mm512_div_ps(a, b);
}
/* a * b - c, one rounding */
V_INLINE vf v_fms(vf a, vf b, vf c)
{
    return _mm512_fmsub_ps(a, b, c);
}
/* a > b ? a : b, which is b where one is no number. */
V_INLINE vf v_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}
V_INLINE vi v_maxu32(vi a, vi b)
{
    return _mm512_max_epu32(a, b);
}
/* a < b ? yes : no */
V_INLINE vf v_less(vf a, vf b, vf yes, vf no)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), no, yes);
}
/* x is no number ? yes : no */
V_INLINE vf v_unordered(vf x, vf yes, vf no)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), no, yes);
}
/* Lanes first ... end - 1 of yes, the others of no. */
V_INLINE vf v_between(size_t first, size_t end, vf yes, vf no)
{
    return _mm512_mask_blend_ps(v_mask(end) & ~v_mask(first), no, yes);
}
/* p x 2^n, rounded once; n holds integers from -252 to 254. */
V_INLINE vf v_scale2(vf p, vf n)
{
    return _mm512_scalef_ps(p, n);
}
/* To the nearest integer, ties to even. */
V_INLINE vi v_round32(vf x)
{
    return _mm512_cvtps_epi32(x);
}
V_INLINE float v_max_lane(vf x)
{
    return _mm512_reduce_max_ps(x);
}
V_INLINE uint32_t v_maxu32_lane(vi x)
{
    return _mm512_reduce_max_epu32(x);
}
V_INLINE int32_t v_sum32_lane(vi x)
{
    return _mm512_reduce_add_epi32(x);
}
/* The low bytes of the lanes. */
V_INLINE void v_store8(int8_t *p, vi x)
{
    _mm_storeu_si128((__m128i *)(void *)p, _mm512_cvtepi32_epi8(x));
}
V_INLINE void v_store_f16(uint16_t *p, vf x)
{
    _mm256_storeu_si256((__m256i *)(void *)p, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
/* Even and odd lanes, each twice. */
V_INLINE vf v_even(vf x)
{
    return _mm512_moveldup_ps(x);
}
V_INLINE vf v_odd(vf x)
{
    return _mm512_movehdup_ps(x);
}
/* a0 b0 a1 b1 ... */
V_INLINE void v_interleave(vf a, vf b, vf out[2])
{
    const vi low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const vi high = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    out[0] = _mm512_permutex2var_ps(a, low, b);
    out[1] = _mm512_permutex2var_ps(a, high, b);
}

/* v_tree for sixteen times sixteen lanes. */
V_INLINE void v_trees(const float *lanes, float out[16])
{
    vf s4[4];
    /* Row 4 q + j goes to quarter q of s4[j]. */
    V_UNROLL for (int j = 0; j < 4; j++)
    {
        vf a = v_load(lanes + 16 * j), b = v_load(lanes + 16 * (4 + j));
        vf c = v_load(lanes + 16 * (8 + j)), d = v_load(lanes + 16 * (12 + j));
        vf x = v_add(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
        vf y = v_add(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));
        s4[j] = v_add(_mm512_shuffle_f32x4(x, y, 0x88), _mm512_shuffle_f32x4(x, y, 0xdd));
    }
    vf s2[2];
    V_UNROLL for (int j = 0; j < 2; j++)
    {
        __m512d a = _mm512_castps_pd(s4[2 * j]), b = _mm512_castps_pd(s4[2 * j + 1]);
        s2[j] = v_add(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
    }
    v_store(out, v_add(_mm512_shuffle_ps(s2[0], s2[1], 0x88), _mm512_shuffle_ps(s2[0], s2[1], 0xdd)));
}

/* Transposes 4 x 4 dwords in each quarter. */
V_INLINE void v_transpose4(vi a[4])
{
    vi t0 = _mm512_unpacklo_epi32(a[0], a[1]), t1 = _mm512_unpackhi_epi32(a[0], a[1]);
    vi t2 = _mm512_unpacklo_epi32(a[2], a[3]), t3 = _mm512_unpackhi_epi32(a[2], a[3]);
    a[0] = _mm512_unpacklo_epi64(t0, t2);
    a[1] = _mm512_unpackhi_epi64(t0, t2);
    a[2] = _mm512_unpacklo_epi64(t1, t3);
    a[3] = _mm512_unpackhi_epi64(t1, t3);
}
V_INLINE __m128i v_load128(const uint8_t *p)
{
    return _mm_loadu_si128((const __m128i *)(const void *)p);
}
V_INLINE __m256i v_load256(const uint8_t *p)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}
/* out[g], lane r: dword g of the 16 bytes at rows[r] + at. */
V_INLINE void v_load_rows16(const uint8_t *const *rows, size_t at, vi out[4])
{
    V_UNROLL for (int j = 0; j < 4; j++)
    {
        vi x = _mm512_castsi128_si512(v_load128(rows[j] + at));
        x = _mm512_inserti32x4(x, v_load128(rows[4 + j] + at), 1);
        x = _mm512_inserti32x4(x, v_load128(rows[8 + j] + at), 2);
        out[j] = _mm512_inserti32x4(x, v_load128(rows[12 + j] + at), 3);
    }
    v_transpose4(out);
}
/* out[g], lane r: dword g of the 32 bytes at rows[r] + at. */
V_INLINE void v_load_rows32(const uint8_t *const *rows, size_t at, vi out[8])
{
    vi x[4], y[4];
    V_UNROLL for (int j = 0; j < 4; j++)
    {
        x[j] = _mm512_inserti64x4(_mm512_castsi256_si512(v_load256(rows[j] + at)),
                                  v_load256(rows[4 + j] + at), 1);
        y[j] = _mm512_inserti64x4(_mm512_castsi256_si512(v_load256(rows[8 + j] + at)),
                                  v_load256(rows[12 + j] + at), 1);
    }
    v_transpose4(x);
    v_transpose4(y);
    /* Quarters of x now: rows 0-3 dword j, rows 0-3 dword 4 + j, rows 4-7 dword j, rows 4-7 dword 4 + j. */
    V_UNROLL for (int j = 0; j < 4; j++)
    {
        out[j] = _mm512_shuffle_i64x2(x[j], y[j], 0x88);
        out[4 + j] = _mm512_shuffle_i64x2(x[j], y[j], 0xdd);
    }
}

#include "x86_vec_both.h"

#endif
