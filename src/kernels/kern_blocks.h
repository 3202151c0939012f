/* Inside kernels only: the layout of every quantized block, and how its packed parts come out, shared by all
 * instruction sets so that a layout is written down once.
 *
 * The layouts are those of the GGUF files (ggml's block definitions; the `gguf` Python package decodes them
 * in gguf/quants.py, which tests/golden/dequant_*.bin are made with). All members are bytes: blocks lie in a
 * file at any address, and multi-byte numbers are little-endian.
 *
 * Packed weights (kernels.h): groups of sixteen rows, block column by block column, each as long as sixteen
 * blocks. Inside, every field of the block keeps its place, sixteen times as far from the start, with the
 * rows side by side element by element:
 *
 *     file:    row 0: [d][qs word 0][qs word 1] ... row 1: [d][qs word 0][qs word 1] ...
 *     packed:  [d of rows 0-15][qs word 0 of rows 0-15][qs word 1 of rows 0-15] ...
 *
 * An element at byte o of a block, z bytes long, of row r so stands at 16 o + z r. Elements are the 2-byte
 * scales and minima (d, m, dmin; IQ4_XS's scales_h), MXFP4's e as a byte, and 32-bit words of all else; the
 * table stands in kern_pack.c.
 *
 * "unpack" gives a block's integer weights in element order as int8: the signed value of types without a
 * minimum, the unsigned one (at most 31) of types with a minimum. */
#ifndef WEIR_KERN_BLOCKS_H
#define WEIR_KERN_BLOCKS_H

#include "kernels/kernels.h"

#include <assert.h>
#include <string.h>

#define KERN_QK  32u  /* elements of a small block */
#define KERN_QKK 256u /* elements of a large block */

typedef struct kern_q8_0 {
    uint8_t d[2];
    int8_t qs[32];
} kern_q8_0;

/* Nibbles of all types of 32: byte i holds element i (low) and element i + 16 (high). */
typedef struct kern_q4_0 {
    uint8_t d[2];
    uint8_t qs[16]; /* value + 8 */
} kern_q4_0;

typedef struct kern_q4_1 {
    uint8_t d[2], m[2];
    uint8_t qs[16];
} kern_q4_1;

typedef struct kern_q5_0 {
    uint8_t d[2];
    uint8_t qh[4]; /* bit i: the fifth bit of element i */
    uint8_t qs[16];
} kern_q5_0; /* value + 16 */

typedef struct kern_q5_1 {
    uint8_t d[2], m[2];
    uint8_t qh[4];
    uint8_t qs[16];
} kern_q5_1;

typedef struct kern_iq4_nl {
    uint8_t d[2];
    uint8_t qs[16]; /* indices into kern_iq4_values */
} kern_iq4_nl;

typedef struct kern_mxfp4 {
    uint8_t e;      /* exponent, bias 127 */
    uint8_t qs[16]; /* indices into kern_mxfp4_values */
} kern_mxfp4;

/* Two bits: bytes 32 h .. 32 h + 31 hold elements 128 h + 32 j + i at bits 2 j (h < 2, j < 4, i < 32). */
typedef struct kern_q2_k {
    uint8_t scales[16]; /* of 16 elements each: scale low, minimum high nibble */
    uint8_t qs[64];
    uint8_t d[2], dmin[2];
} kern_q2_k;

typedef struct kern_q3_k {
    uint8_t hmask[32]; /* bit j of byte i: element 32 j + i; clear means 4 less */
    uint8_t qs[64];    /* two bits as in Q2_K */
    uint8_t scales[12];
    uint8_t d[2];
} kern_q3_k;

/* Four bits: bytes 32 h .. 32 h + 31 hold elements 64 h + i (low) and 64 h + 32 + i (high). */
typedef struct kern_q4_k {
    uint8_t d[2], dmin[2];
    uint8_t scales[12];
    uint8_t qs[128];
} kern_q4_k;

typedef struct kern_q5_k {
    uint8_t d[2], dmin[2];
    uint8_t scales[12];
    uint8_t qh[32]; /* bit j of byte i: the fifth bit of element 32 j + i */
    uint8_t qs[128];
} kern_q5_k;

typedef struct kern_q6_k {
    uint8_t ql[128]; /* bytes 64 h + i: elements 128 h + i (low) and 128 h + 64 + i (high), i < 64 */
    uint8_t qh[64];  /* bytes 32 h + i: two high bits of elements 128 h + 32 j + i at bits 2 j */
    int8_t scales[16];
    uint8_t d[2];
} kern_q6_k; /* value + 32 */

typedef struct kern_iq4_xs {
    uint8_t d[2];
    uint8_t scales_h[2]; /* bits 2 j: two high bits of scale j */
    uint8_t scales_l[4]; /* nibble j: four low bits of scale j */
    uint8_t qs[128];     /* bytes 16 j + i: elements 32 j + i (low) and 32 j + 16 + i (high) */
} kern_iq4_xs;

static_assert(sizeof(kern_q8_0) == 34 && sizeof(kern_q4_0) == 18 && sizeof(kern_q4_1) == 20, "layout");
static_assert(sizeof(kern_q5_0) == 22 && sizeof(kern_q5_1) == 24 && sizeof(kern_iq4_nl) == 18, "layout");
static_assert(sizeof(kern_mxfp4) == 17 && sizeof(kern_q2_k) == 84 && sizeof(kern_q3_k) == 110, "layout");
static_assert(sizeof(kern_q4_k) == 144 && sizeof(kern_q5_k) == 176 && sizeof(kern_q6_k) == 210, "layout");
static_assert(sizeof(kern_iq4_xs) == 136, "layout");

/* The 16 levels of IQ4_NL and IQ4_XS, and the e2m1 numbers of MXFP4 doubled (OCP microscaling formats 1.0).
 */
static const int8_t kern_iq4_values[16] __attribute__((aligned(16), unused)) = {
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
static const int8_t kern_mxfp4_values[16]
    __attribute__((aligned(16), unused)) = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* ---- parts of an activation row (kernels.h) ---- */
static inline const int8_t *kern_act_q(const void *row)
{
    return (const int8_t *)row;
}
/* d[k / 32] of Q32, d[k / 256] of Q256. */
static inline const float *kern_act_d(const void *row, size_t k)
{
    return (const float *)((const char *)row + k);
}
/* sum[k / 32] of Q32 (per_d = 32), sum[k / 16] of Q256 (per_d = 256). */
static inline const int32_t *kern_act_sum(const void *row, size_t k, size_t per_d)
{
    return (const int32_t *)((const char *)row + k + k / per_d * sizeof(float));
}

/* ---- numbers ---- */
static inline uint16_t kern_load_u16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}
static inline uint32_t kern_load_u32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}
static inline float kern_from_bits(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}
static inline uint32_t kern_to_bits(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

/* Exact. A signalling NaN becomes quiet with its payload kept, as the conversion instructions do it. */
static inline float kern_f16_value(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, rest = h & 0x7fffu;
    if (rest >= 0x7c00u)
        return kern_from_bits(sign | 0x7f800000u | (rest > 0x7c00u ? 0x400000u : 0u) | (rest & 0x3ffu) << 13);
    /* The half's bits, moved into a float, are 2^112 times too small: one exact product puts this right, for
     * subnormal halves too. */
    return kern_from_bits(sign | kern_to_bits(kern_from_bits(rest << 13) * 0x1p112f));
}
static inline float kern_load_f16(const uint8_t *p)
{
    return kern_f16_value(kern_load_u16(p));
}
static inline float kern_bf16_value(uint16_t h)
{
    return kern_from_bits((uint32_t)h << 16);
}
/* MXFP4: 2^(e - 128), half of what the exponent says, since the table's values are doubled; e = 0, 1 are
 * subnormal. */
static inline float kern_e8m0_half(uint8_t e)
{
    return kern_from_bits(e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23);
}

/* ---- packed scales ---- */
/* Q4_K, Q5_K: eight 6-bit scales and minima. Bytes 0-3: scales 0-3, bytes 4-7: minima 0-3, whose two top bits
 * are the top bits of scales and minima 4-7; bytes 8-11: low nibbles of scales 4-7 and, above, of minima 4-7.
 */
static inline void kern_q4_k_scales(const uint8_t packed[12], uint8_t scale[8], uint8_t min[8])
{
    for (int j = 0; j < 4; j++) {
        uint8_t a = packed[j], b = packed[j + 4], c = packed[j + 8];
        scale[j] = a & 63;
        min[j] = b & 63;
        scale[j + 4] = (uint8_t)((c & 15) | (a >> 6) << 4);
        min[j + 4] = (uint8_t)(c >> 4 | (b >> 6) << 4);
    }
}
/* Q3_K: sixteen 6-bit scales, kept as value + 32. Nibbles: byte j low is scale j, high is scale j + 8 (j <
 * 8); two top bits of scale 4 g + j: byte 8 + j, bits 2 g. */
static inline void kern_q3_k_scales(const uint8_t packed[12], int8_t scale[16])
{
    for (int j = 0; j < 16; j++) {
        int low = j < 8 ? packed[j] & 15 : packed[j - 8] >> 4;
        int high = packed[8 + j % 4] >> (j / 4 * 2) & 3;
        scale[j] = (int8_t)((low | high << 4) - 32);
    }
}
static inline void kern_iq4_xs_scales(const kern_iq4_xs *b, int8_t scale[8])
{
    uint16_t high = kern_load_u16(b->scales_h);
    for (int j = 0; j < 8; j++) {
        int low = b->scales_l[j / 2] >> (j % 2 * 4) & 15;
        scale[j] = (int8_t)((low | (high >> (2 * j) & 3) << 4) - 32);
    }
}

/* ---- integer weights, in element order ---- */
static inline void kern_unpack_q4(const uint8_t qs[16], int offset, int8_t w[32])
{
    for (int i = 0; i < 16; i++) {
        w[i] = (int8_t)((qs[i] & 15) - offset);
        w[i + 16] = (int8_t)((qs[i] >> 4) - offset);
    }
}
static inline void kern_unpack_q5(const uint8_t qs[16], const uint8_t qh[4], int offset, int8_t w[32])
{
    uint32_t high = kern_load_u32(qh);
    for (int i = 0; i < 16; i++) {
        w[i] = (int8_t)(((qs[i] & 15) | (int)(high >> i & 1) << 4) - offset);
        w[i + 16] = (int8_t)((qs[i] >> 4 | (int)(high >> (i + 16) & 1) << 4) - offset);
    }
}
static inline void kern_unpack_table(const uint8_t qs[16], const int8_t table[16], int8_t w[32])
{
    for (int i = 0; i < 16; i++) {
        w[i] = table[qs[i] & 15];
        w[i + 16] = table[qs[i] >> 4];
    }
}
static inline void kern_unpack_q2_k(const uint8_t qs[64], int8_t w[256])
{
    for (int h = 0; h < 2; h++)
        for (int j = 0; j < 4; j++)
            for (int i = 0; i < 32; i++) w[128 * h + 32 * j + i] = (int8_t)(qs[32 * h + i] >> (2 * j) & 3);
}
static inline void kern_unpack_q3_k(const kern_q3_k *b, int8_t w[256])
{
    kern_unpack_q2_k(b->qs, w);
    for (int j = 0; j < 8; j++)
        for (int i = 0; i < 32; i++)
            w[32 * j + i] = (int8_t)(w[32 * j + i] - ((b->hmask[i] >> j & 1) ? 0 : 4));
}
static inline void kern_unpack_q4_k(const uint8_t qs[128], int8_t w[256])
{
    for (int h = 0; h < 4; h++)
        for (int i = 0; i < 32; i++) {
            w[64 * h + i] = (int8_t)(qs[32 * h + i] & 15);
            w[64 * h + 32 + i] = (int8_t)(qs[32 * h + i] >> 4);
        }
}
static inline void kern_unpack_q5_k(const kern_q5_k *b, int8_t w[256])
{
    kern_unpack_q4_k(b->qs, w);
    for (int j = 0; j < 8; j++)
        for (int i = 0; i < 32; i++) w[32 * j + i] = (int8_t)(w[32 * j + i] | (b->qh[i] >> j & 1) << 4);
}
static inline void kern_unpack_q6_k(const kern_q6_k *b, int8_t w[256])
{
    for (int h = 0; h < 2; h++)
        for (int j = 0; j < 4; j++)
            for (int i = 0; i < 32; i++) {
                int low = b->ql[64 * h + 32 * (j % 2) + i] >> (j / 2 * 4) & 15;
                int high = b->qh[32 * h + i] >> (2 * j) & 3;
                w[128 * h + 32 * j + i] = (int8_t)((low | high << 4) - 32);
            }
}
static inline void kern_unpack_iq4_xs(const kern_iq4_xs *b, int8_t w[256])
{
    for (int j = 0; j < 8; j++) kern_unpack_table(b->qs + 16 * j, kern_iq4_values, w + 32 * j);
}

#endif
