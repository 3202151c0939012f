/* Packs weight blocks of V_LANES rows into panels, the form in which tiles (x86_tile.h) read them. Written
 * over a vector layer, which must be included first.
 *
 * A panel has the rows in lanes. Of a block of 32 elements:
 *
 *     float scale[V_LANES]; (types with a minimum: float min[V_LANES];) then 8 vectors: lane r of vector g
 * holds the weight bytes 4 g ... 4 g + 3 of row r.
 *
 * Of a block of 256 elements:
 *
 *     float d[V_LANES], dmin[V_LANES]; (minima: pairs of int16 per lane, in the order of PAIRS below);
 *     then per sub-block: int32 scale[V_LANES], and its 8 (4) vectors of weight bytes.
 *
 * Bytes are unsigned: the value plus the type's bias (x86_types.h). */
#ifndef WEIR_X86_PACK_H
#define WEIR_X86_PACK_H

#include "kernels/kern_blocks.h"

typedef struct row_set {
    const uint8_t *row[V_LANES];
    vi at; /* row[r] - row[0] */
} row_set;

typedef void pack_fn(const row_set *s, size_t block, size_t n, char *panel);

#define PANEL_32      (9 * V_BYTES)
#define PANEL_32_MIN  (10 * V_BYTES)
#define PANEL_256     ((2 + 64 + 16) * V_BYTES)     /* sub-blocks of 16 */
#define PANEL_256_MIN ((2 + 64 + 16 + 8) * V_BYTES) /* the same with minima */
#define PANEL_K32     ((2 + 64 + 8) * V_BYTES)      /* sub-blocks of 32 */
#define PANEL_K32_MIN ((2 + 64 + 8 + 4) * V_BYTES)

/* By a count that is constant after inlining. */
V_INLINE vi v_right(vi x, int n)
{
    return v_shrv32(x, v_set32(n));
}
/* Left by n, or right by -n. */
V_INLINE vi v_shift(vi x, int n)
{
    return n > 0 ? v_shlv32(x, v_set32(n)) : n < 0 ? v_shrv32(x, v_set32(-n)) : x;
}

V_INLINE void panel_put(char **panel, vi x)
{
    v_storei(*panel, x);
    *panel += V_BYTES;
}
V_INLINE void panel_putf(char **panel, vf x)
{
    panel_put(panel, v_casti(x));
}

/* ---- blocks of 32 ---- */
V_INLINE void put_nibbles(const row_set *s, size_t at, char *panel)
{
    const vi low = v_set8(15);
    vi x[4];
    v_load_rows16(s->row, at, x);
    V_UNROLL for (int g = 0; g < 4; g++)
    {
        v_storei(panel + g * V_BYTES, v_and(x[g], low));
        v_storei(panel + (4 + g) * V_BYTES, v_and(v_shr16(x[g], 4), low));
    }
}
V_INLINE void put_fives(const row_set *s, size_t at, vi high, char *panel)
{
    const vi low = v_set8(15);
    vi x[4];
    v_load_rows16(s->row, at, x);
    V_UNROLL for (int g = 0; g < 4; g++)
    {
        vi a = v_fifth_bits(v_right(high, 4 * g)), b = v_fifth_bits(v_right(high, 16 + 4 * g));
        v_storei(panel + g * V_BYTES, v_and_or(x[g], low, a));
        v_storei(panel + (4 + g) * V_BYTES, v_and_or(v_shr16(x[g], 4), low, b));
    }
}
V_INLINE void put_table(const row_set *s, size_t at, vi table, char *panel)
{
    const vi low = v_set8(15);
    vi x[4];
    v_load_rows16(s->row, at, x);
    V_UNROLL for (int g = 0; g < 4; g++)
    {
        v_storei(panel + g * V_BYTES, v_lookup(table, v_and(x[g], low)));
        v_storei(panel + (4 + g) * V_BYTES, v_lookup(table, v_and(v_shr16(x[g], 4), low)));
    }
}

V_INLINE void block_q8_0(const row_set *s, size_t at, char *panel)
{
    vi x[8];
    panel_putf(&panel, v_half(v_gather(s->row[0] + at, s->at)));
    v_load_rows32(s->row, at + 2, x);
    V_UNROLL for (int g = 0; g < 8; g++) v_storei(panel + g * V_BYTES, v_widen(x[g]));
}
V_INLINE void block_q4_0(const row_set *s, size_t at, char *panel)
{
    panel_putf(&panel, v_half(v_gather(s->row[0] + at, s->at)));
    put_nibbles(s, at + 2, panel);
}
V_INLINE void block_q4_1(const row_set *s, size_t at, char *panel)
{
    vi dm = v_gather(s->row[0] + at, s->at);
    panel_putf(&panel, v_half(dm));
    panel_putf(&panel, v_half(v_shr32(dm, 16)));
    put_nibbles(s, at + 4, panel);
}
V_INLINE void block_q5_0(const row_set *s, size_t at, char *panel)
{
    panel_putf(&panel, v_half(v_gather(s->row[0] + at, s->at)));
    put_fives(s, at + 6, v_gather(s->row[0] + at + 2, s->at), panel);
}
V_INLINE void block_q5_1(const row_set *s, size_t at, char *panel)
{
    vi dm = v_gather(s->row[0] + at, s->at);
    panel_putf(&panel, v_half(dm));
    panel_putf(&panel, v_half(v_shr32(dm, 16)));
    put_fives(s, at + 8, v_gather(s->row[0] + at + 4, s->at), panel);
}
V_INLINE void block_iq4_nl(const row_set *s, size_t at, char *panel)
{
    panel_putf(&panel, v_half(v_gather(s->row[0] + at, s->at)));
    put_table(s, at + 2, v_widen(v_table(kern_iq4_values)), panel);
}
V_INLINE void block_mxfp4(const row_set *s, size_t at, char *panel)
{
    vi e = v_and(v_gather(s->row[0] + at, s->at), v_set32(255));
    /* kern_e8m0_half: subnormal for e = 0 and 1. */
    vi normal = v_shl32(v_sub32(e, v_set32(1)), 23), tiny = v_shlv32(v_set32(0x00200000), e);
    panel_put(&panel, v_less32(e, v_set32(2), tiny, normal));
    put_table(s, at + 1, v_widen(v_table(kern_mxfp4_values)), panel);
}

/* ---- blocks of 256 ---- */
/* Byte k of each lane. */
V_INLINE vi lane_byte(vi x, int k)
{
    return v_and(v_right(x, 8 * k), v_set32(255));
}
V_INLINE vi lane_signed_byte(vi x, int k)
{
    return v_sar32(v_shift(x, 24 - 8 * k), 24);
}
/* The minima in bytes 0 ... 3 of each lane as PAIRS (0, 2), (1, 3). */
V_INLINE void put_min_pairs(char **panel, vi x)
{
    const vi even = v_set32(0x00ff00ff);
    panel_put(panel, v_and(x, even));
    panel_put(panel, v_and(v_shr16(x, 8), even));
}

V_INLINE void block_q2_k(const row_set *s, size_t at, char *panel)
{
    const vi low = v_set8(15), two = v_set8(3);
    vi dm = v_gather(s->row[0] + at + 80, s->at), scale[4], x[8];
    panel_putf(&panel, v_half(dm));
    panel_putf(&panel, v_half(v_shr32(dm, 16)));
    v_load_rows16(s->row, at, scale);
    V_UNROLL for (int i = 0; i < 4; i++) put_min_pairs(&panel, v_and(v_shr16(scale[i], 4), low));
    for (int h = 0; h < 2; h++) {
        v_load_rows32(s->row, at + 16 + 32 * (size_t)h, x);
        V_UNROLL for (int j = 0; j < 8; j++)
        {
            panel_put(&panel, v_and(lane_byte(scale[2 * h + j / 4], j % 4), v_set32(15)));
            V_UNROLL for (int g = 0; g < 4; g++)
            {
                panel_put(&panel, v_and(v_right(x[4 * (j % 2) + g], j / 2 * 2), two));
            }
        }
    }
}
V_INLINE void block_q3_k(const row_set *s, size_t at, char *panel)
{
    const vi low = v_set8(15), two = v_set8(3), third = v_set8(4), top = v_set8(0x30);
    vi x[8], mask[8], p[4], scale[4];
    /* Scales and d are the last 14 bytes: two bytes more are read before them. */
    v_load_rows16(s->row, at + 94, p);
    vi a = v_or(v_shr32(p[0], 16), v_shl32(p[1], 16)), b = v_or(v_shr32(p[1], 16), v_shl32(p[2], 16));
    vi c = v_or(v_shr32(p[2], 16), v_shl32(p[3], 16));
    scale[0] = v_or(v_and(a, low), v_and(v_shl32(c, 4), top));
    scale[1] = v_or(v_and(b, low), v_and(v_shl32(c, 2), top));
    scale[2] = v_or(v_and(v_shr32(a, 4), low), v_and(c, top));
    scale[3] = v_or(v_and(v_shr32(b, 4), low), v_and(v_shr32(c, 2), top));
    panel_putf(&panel, v_half(v_shr32(p[3], 16)));
    panel_putf(&panel, v_zero());
    v_load_rows32(s->row, at, mask);
    for (int h = 0; h < 2; h++) {
        v_load_rows32(s->row, at + 32 + 32 * (size_t)h, x);
        V_UNROLL for (int j = 0; j < 8; j++)
        {
            panel_put(&panel, v_sub32(lane_byte(scale[2 * h + j / 4], j % 4), v_set32(32)));
            V_UNROLL for (int g = 4 * (j % 2); g < 4 * (j % 2) + 4; g++)
            {
                vi high = v_and(v_shift(mask[g], 2 - (4 * h + j / 2)), third);
                panel_put(&panel, v_and_or(v_right(x[g], j / 2 * 2), two, high));
            }
        }
    }
}

/* Q4_K, Q5_K: d, dmin and the packed scales are the block's first 16 bytes. */
V_INLINE void put_k_scales(const row_set *s, size_t at, char **panel, vi scale[2])
{
    const vi six = v_set8(63), low = v_set8(15), top = v_set8(0x30);
    vi h[4];
    v_load_rows16(s->row, at, h);
    scale[0] = v_and(h[1], six);
    scale[1] = v_and_or(h[3], low, v_and(v_shr16(h[1], 2), top));
    panel_putf(panel, v_half(h[0]));
    panel_putf(panel, v_half(v_shr32(h[0], 16)));
    put_min_pairs(panel, v_and(h[2], six));
    put_min_pairs(panel, v_and_or(v_shr16(h[3], 4), low, v_and(v_shr16(h[2], 2), top)));
}
V_INLINE void block_q4_k(const row_set *s, size_t at, char *panel)
{
    const vi low = v_set8(15);
    vi scale[2], x[8];
    put_k_scales(s, at, &panel, scale);
    V_UNROLL for (int h = 0; h < 4; h++)
    {
        v_load_rows32(s->row, at + 16 + 32 * (size_t)h, x);
        panel_put(&panel, lane_byte(scale[h / 2], h % 2 * 2));
        V_UNROLL for (int g = 0; g < 8; g++) panel_put(&panel, v_and(x[g], low));
        panel_put(&panel, lane_byte(scale[h / 2], h % 2 * 2 + 1));
        V_UNROLL for (int g = 0; g < 8; g++) panel_put(&panel, v_and(v_shr16(x[g], 4), low));
    }
}
V_INLINE void block_q5_k(const row_set *s, size_t at, char *panel)
{
    const vi low = v_set8(15), fifth = v_set8(16);
    vi scale[2], x[8], high[8];
    put_k_scales(s, at, &panel, scale);
    v_load_rows32(s->row, at + 16, high);
    V_UNROLL for (int h = 0; h < 4; h++)
    {
        v_load_rows32(s->row, at + 48 + 32 * (size_t)h, x);
        panel_put(&panel, lane_byte(scale[h / 2], h % 2 * 2));
        V_UNROLL for (int g = 0; g < 8; g++)
        {
            panel_put(&panel, v_and_or(x[g], low, v_and(v_shift(high[g], 4 - 2 * h), fifth)));
        }
        panel_put(&panel, lane_byte(scale[h / 2], h % 2 * 2 + 1));
        V_UNROLL for (int g = 0; g < 8; g++)
        {
            panel_put(&panel, v_and_or(v_shr16(x[g], 4), low, v_and(v_shift(high[g], 3 - 2 * h), fifth)));
        }
    }
}
V_INLINE void block_q6_k(const row_set *s, size_t at, char *panel)
{
    const vi low = v_set8(15), top = v_set8(0x30);
    vi scale[4], x[2][8], high[8];
    panel_putf(&panel, v_half(v_shr32(v_gather(s->row[0] + at + 206, s->at), 16)));
    panel_putf(&panel, v_zero());
    v_load_rows16(s->row, at + 192, scale);
    for (int h = 0; h < 2; h++) {
        v_load_rows32(s->row, at + 64 * (size_t)h, x[0]);
        v_load_rows32(s->row, at + 64 * (size_t)h + 32, x[1]);
        v_load_rows32(s->row, at + 128 + 32 * (size_t)h, high);
        V_UNROLL for (int j = 0; j < 8; j++)
        {
            panel_put(&panel, lane_signed_byte(scale[2 * h + j / 4], j % 4));
            V_UNROLL for (int g = 4 * (j % 2); g < 4 * (j % 2) + 4; g++)
            {
                vi nibble = v_shift(x[j / 2 % 2][g], j < 4 ? 0 : -4);
                panel_put(&panel, v_and_or(nibble, low, v_and(v_shift(high[g], 4 - j / 2 * 2), top)));
            }
        }
    }
}
V_INLINE void block_iq4_xs(const row_set *s, size_t at, char *panel)
{
    const vi table = v_widen(v_table(kern_iq4_values));
    vi h[4];
    v_load_rows16(s->row, at, h);
    panel_putf(&panel, v_half(h[0]));
    panel_putf(&panel, v_zero());
    V_UNROLL for (int j = 0; j < 8; j++)
    {
        vi low = v_and(v_right(h[1], 4 * j), v_set32(15));
        vi high = v_shl32(v_and(v_right(h[0], 16 + 2 * j), v_set32(3)), 4);
        panel_put(&panel, v_sub32(v_or(low, high), v_set32(32)));
        put_table(s, at + 8 + 16 * (size_t)j, table, panel);
        panel += 8 * V_BYTES;
    }
}

#define PACK(type, block_bytes, panel_bytes)                                                                 \
    static void pack_##type(const row_set *s, size_t block, size_t n, char *panel)                           \
    {                                                                                                        \
        for (size_t i = 0; i < n; i++)                                                                       \
            block_##type(s, (block + i) * (block_bytes), panel + i * (panel_bytes));                         \
    }
PACK(q8_0, 34, PANEL_32)
PACK(q4_0, 18, PANEL_32)
PACK(q4_1, 20, PANEL_32_MIN)
PACK(q5_0, 22, PANEL_32)
PACK(q5_1, 24, PANEL_32_MIN)
PACK(iq4_nl, 18, PANEL_32)
PACK(mxfp4, 17, PANEL_32)
PACK(q2_k, 84, PANEL_256_MIN)
PACK(q3_k, 110, PANEL_256)
PACK(q4_k, 144, PANEL_K32_MIN)
PACK(q5_k, 176, PANEL_K32_MIN)
PACK(q6_k, 210, PANEL_256)
PACK(iq4_xs, 136, PANEL_K32)
#undef PACK

#endif
