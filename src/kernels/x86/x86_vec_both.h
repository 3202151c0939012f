/* What is the same in both x86 vector layers; included at their ends. */
#ifndef WEIR_X86_VEC_BOTH_H
#define WEIR_X86_VEC_BOTH_H

#include <immintrin.h>

/* Sixteen bytes of activations, as four groups of four; a group meets all lanes. */
typedef const char *v_four;
typedef vi v_group;
V_INLINE v_four v_load_four(const char *q)
{
    return q;
}
V_INLINE v_group v_take(v_four x, int g)
{
    int32_t group;
    memcpy(&group, x + 4 * g, sizeof group);
    return v_set32(group);
}

/* Sum of n bytes, 16 or 32. */
V_INLINE int32_t v_sum_bytes(const int8_t *q, const int n)
{
    const __m128i ones8 = _mm_set1_epi8(1), ones16 = _mm_set1_epi16(1);
    __m128i s = _mm_setzero_si128();
    for (int j = 0; j < n; j += 16) {
        __m128i x = _mm_loadu_si128((const __m128i *)(const void *)(q + j));
        s = _mm_add_epi32(s, _mm_madd_epi16(_mm_maddubs_epi16(ones8, x), ones16));
    }
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
    return _mm_cvtsi128_si32(s);
}

/* Four sums (halves: eight, added two by two) as int16 in the order 0, 2, 1, 3. */
V_INLINE void v_store_pairs(int16_t *out, const int32_t *sum, const bool halves)
{
    const __m128i order = _mm_setr_epi8(0, 1, 8, 9, 4, 5, 12, 13, -1, -1, -1, -1, -1, -1, -1, -1);
    __m128i s = _mm_loadu_si128((const __m128i *)(const void *)sum);
    if (halves) s = _mm_hadd_epi32(s, _mm_loadu_si128((const __m128i *)(const void *)(sum + 4)));
    _mm_storel_epi64((__m128i *)(void *)out, _mm_shuffle_epi8(s, order));
}

#endif
