/* The weight types: for each, the function that packs blocks of V_LANES rows into a panel, the one that
 * multiplies them with a single token without a panel, its tiles, and what these need to know. */
#ifndef WEIR_VEC_TYPES_H
#define WEIR_VEC_TYPES_H

#include "vec_tile.h"

typedef void pack_fn(row_set *s, size_t block, size_t n, char *panel);
typedef void direct_fn(row_set *s, size_t block, const tile_args *a);

typedef struct quant_type {
    uint16_t block, block_bytes, panel_bytes;
    uint8_t sub;  /* elements per sub-block: 32, 16 */
    uint8_t bias; /* added to the weights */
    bool min;
    pack_fn *pack;
    direct_fn *direct;
    tile_fn *const *tiles;
} quant_type;

/* While a block of V_LANES rows is worked on, as many bytes of the next band come in: sixteen rows side by
 * side are too many streams for the hardware to foresee. */
V_INLINE void prefetch_ahead(row_set *s, const int bytes)
{
    if (s->near) {
        V_UNROLL for (int i = 0; i < bytes; i += 64) __builtin_prefetch(s->ahead + i, 0, 3);
    } else {
        V_UNROLL for (int i = 0; i < bytes; i += 64) __builtin_prefetch(s->ahead + i, 0, 2);
    }
    s->ahead += bytes;
}

/* Row pointers are to be read from memory for each block: there are more than registers, and compilers that
 * carry them through the loop park them in vector registers, which costs more. */
V_INLINE row_set *in_memory(row_set *s)
{
    __asm__ volatile("" : "+r"(s));
    return s;
}

V_INLINE token_32 token_32_begin(const tile_args *a, vf acc)
{
    return (token_32){a->q, (const float *)(const void *)a->d, a->tokens->start[0], a->tokens->shift[0], acc};
}
#define TYPE_32(type, block_bytes, min, run)                                                                 \
    static void pack_##type(row_set *s, size_t block, size_t n, char *panel)                                 \
    {                                                                                                        \
        for (size_t i = 0; i < n; i++) {                                                                     \
            block_32 b;                                                                                      \
            prefetch_ahead(s, V_LANES *(block_bytes));                                                       \
            block_##type(in_memory(s), (block + i) * (block_bytes), &b);                                     \
            store_32(&b, min, panel);                                                                        \
            panel += (min) ? PANEL_32_MIN : PANEL_32;                                                        \
        }                                                                                                    \
    }                                                                                                        \
    static void direct_##type(row_set *s, size_t block, const tile_args *a)                                  \
    {                                                                                                        \
        vf acc[2][V_TILE_TOKENS];                                                                            \
        tile_begin(a, acc, 1, 1);                                                                            \
        token_32 t = token_32_begin(a, acc[0][0]);                                                           \
        for (size_t i = 0; i < a->n_blocks; i++) {                                                           \
            block_32 b;                                                                                      \
            prefetch_ahead(s, V_LANES *(block_bytes));                                                       \
            block_##type(in_memory(s), (block + i) * (block_bytes), &b);                                     \
            meet_32(&b, &t, min, run);                                                                       \
        }                                                                                                    \
        acc[0][0] = t.acc;                                                                                   \
        tile_end(a, acc, 1, 1);                                                                              \
    }

#define TYPE_256(type, block_bytes, panel_bytes, sub, min)                                                   \
    static void pack_##type(row_set *s, size_t block, size_t n, char *panel)                                 \
    {                                                                                                        \
        for (size_t i = 0; i < n; i++) {                                                                     \
            sink_256 out = {.panel = panel + i * (panel_bytes)};                                             \
            prefetch_ahead(s, V_LANES *(block_bytes));                                                       \
            block_##type(in_memory(s), (block + i) * (block_bytes), &out, false);                            \
        }                                                                                                    \
    }                                                                                                        \
    static void direct_##type(row_set *s, size_t block, const tile_args *a)                                  \
    {                                                                                                        \
        vf acc[2][V_TILE_TOKENS];                                                                            \
        sink_256 out = {.q = a->q, .start = a->tokens->start[0], .pairs = a->tokens->pairs[0]};              \
        tile_begin(a, acc, 1, 1);                                                                            \
        for (size_t i = 0; i < a->n_blocks; i++) {                                                           \
            vf dx = tile_scale(a, 0, i);                                                                     \
            out.isum = out.msum = v_zeroi();                                                                 \
            prefetch_ahead(s, V_LANES *(block_bytes));                                                       \
            block_##type(in_memory(s), (block + i) * (block_bytes), &out, true);                             \
            out.q += 256;                                                                                    \
            out.start += 256 / (sub);                                                                        \
            acc[0][0] = v_fma(v_mul(out.d, dx), v_float(out.isum), acc[0][0]);                               \
            if (min) acc[0][0] = v_fnma(v_mul(out.dmin, dx), v_float(out.msum), acc[0][0]);                  \
        }                                                                                                    \
        tile_end(a, acc, 1, 1);                                                                              \
    }

TYPE_32(q8_0, 34, false, 0)
TYPE_32(q4_0, 18, false, V_RUN_31)
TYPE_32(q4_1, 20, true, V_RUN_31)
TYPE_32(q5_0, 22, false, V_RUN_31)
TYPE_32(q5_1, 24, true, V_RUN_31)
TYPE_32(iq4_nl, 18, false, 0)
TYPE_32(mxfp4, 17, false, 0)
TYPE_256(q2_k, 84, PANEL_256_MIN, 16, true)
TYPE_256(q3_k, 110, PANEL_256, 16, false)
TYPE_256(q4_k, 144, PANEL_K32_MIN, 32, true)
TYPE_256(q5_k, 176, PANEL_K32_MIN, 32, true)
TYPE_256(q6_k, 210, PANEL_256, 16, false)
TYPE_256(iq4_xs, 136, PANEL_K32, 32, false)

static const quant_type *quant_type_of(uint32_t dtype)
{
    static const quant_type q8_0 = {32,    34,        PANEL_32,    32,       V_WIDE_BIAS,
                                    false, pack_q8_0, direct_q8_0, tile_wide};
    static const quant_type q4_0 = {32, 18, PANEL_32, 32, 8, false, pack_q4_0, direct_q4_0, tile_plain};
    static const quant_type q4_1 = {32, 20, PANEL_32_MIN, 32, 0, true, pack_q4_1, direct_q4_1, tile_min};
    static const quant_type q5_0 = {32, 22, PANEL_32, 32, 16, false, pack_q5_0, direct_q5_0, tile_plain};
    static const quant_type q5_1 = {32, 24, PANEL_32_MIN, 32, 0, true, pack_q5_1, direct_q5_1, tile_min};
    static const quant_type iq4_nl = {32,    18,          PANEL_32,      32,       V_WIDE_BIAS,
                                      false, pack_iq4_nl, direct_iq4_nl, tile_wide};
    static const quant_type mxfp4 = {32,    17,         PANEL_32,     32,       V_WIDE_BIAS,
                                     false, pack_mxfp4, direct_mxfp4, tile_wide};
    static const quant_type q2_k = {256,  84,        PANEL_256_MIN, 16,          0,
                                    true, pack_q2_k, direct_q2_k,   tile_k16_min};
    static const quant_type q3_k = {256, 110, PANEL_256, 16, 4, false, pack_q3_k, direct_q3_k, tile_k16};
    static const quant_type q4_k = {256,  144,       PANEL_K32_MIN, 32,          0,
                                    true, pack_q4_k, direct_q4_k,   tile_k32_min};
    static const quant_type q5_k = {256,  176,       PANEL_K32_MIN, 32,          0,
                                    true, pack_q5_k, direct_q5_k,   tile_k32_min};
    static const quant_type q6_k = {256, 210, PANEL_256, 16, 32, false, pack_q6_k, direct_q6_k, tile_k16};
    static const quant_type iq4_xs = {256,   136,         PANEL_K32,     32,           V_WIDE_BIAS,
                                      false, pack_iq4_xs, direct_iq4_xs, tile_k32_wide};
    switch (dtype) {
    case BASE_Q8_0: return &q8_0;
    case BASE_Q4_0: return &q4_0;
    case BASE_Q4_1: return &q4_1;
    case BASE_Q5_0: return &q5_0;
    case BASE_Q5_1: return &q5_1;
    case BASE_IQ4_NL: return &iq4_nl;
    case BASE_MXFP4: return &mxfp4;
    case BASE_Q2_K: return &q2_k;
    case BASE_Q3_K: return &q3_k;
    case BASE_Q4_K: return &q4_k;
    case BASE_Q5_K: return &q5_k;
    case BASE_Q6_K: return &q6_k;
    case BASE_IQ4_XS: return &iq4_xs;
    default: return NULL;
    }
}

#endif
