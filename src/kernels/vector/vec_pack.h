/* Packs weight blocks of V_LANES rows into panels, the form in which tiles (vec_tile.h) read them. Written
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
 * Bytes are unsigned: the value plus the type's bias (vec_types.h). */
#ifndef WEIR_VEC_PACK_H
#define WEIR_VEC_PACK_H

#include "kernels/kern_blocks.h"

typedef struct row_set {
    const uint8_t *row[V_LANES];
    vi at;             /* row[r] - row[0] */
    const char *ahead; /* what comes next in memory */
    bool near;         /* bring it into the first cache; else it would only push out what is needed */
} row_set;

#define PANEL_32      (9 * V_BYTES)
#define PANEL_32_MIN  (10 * V_BYTES)
#define PANEL_256     ((2 + 64 + 16) * V_BYTES)     /* sub-blocks of 16 */
#define PANEL_256_MIN ((2 + 64 + 16 + 8) * V_BYTES) /* the same with minima */
#define PANEL_K32     ((2 + 64 + 8) * V_BYTES)      /* sub-blocks of 32 */
#define PANEL_K32_MIN ((2 + 64 + 8 + 4) * V_BYTES)

/* Four bytes of each row. */
V_INLINE vi gather(const row_set *s, size_t at)
{
    return v_gather(s->row, at, s->at);
}
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

/* ---- blocks of 32 ---- */
typedef struct block_32 {
    vf d, m;
    vi w[8];
} block_32;

V_INLINE void nibbles(const row_set *s, size_t at, vi w[8])
{
    const vi low = v_set8(15);
    v_load_rows16(s->row, at, w);
    V_UNROLL for (int g = 0; g < 4; g++)
    {
        w[4 + g] = v_and(v_shr16(w[g], 4), low);
        w[g] = v_and(w[g], low);
    }
}
V_INLINE void fives(const row_set *s, size_t at, vi high, vi w[8])
{
    nibbles(s, at, w);
    V_UNROLL for (int g = 0; g < 8; g++) w[g] = v_or(w[g], v_fifth_bits(v_right(high, 4 * g)));
}
V_INLINE void levels(const row_set *s, size_t at, vi table, vi w[8])
{
    nibbles(s, at, w);
    V_UNROLL for (int g = 0; g < 8; g++) w[g] = v_lookup(table, w[g]);
}
V_INLINE void scale_and_min(const row_set *s, size_t at, block_32 *b)
{
    vi dm = gather(s, at);
    b->d = v_half(dm);
    b->m = v_half(v_shr32(dm, 16));
}

V_INLINE void block_q8_0(const row_set *s, size_t at, block_32 *b)
{
    b->d = v_half(gather(s, at));
    v_load_rows32(s->row, at + 2, b->w);
    V_UNROLL for (int g = 0; g < 8; g++) b->w[g] = v_widen(b->w[g]);
}
V_INLINE void block_q4_0(const row_set *s, size_t at, block_32 *b)
{
    b->d = v_half(gather(s, at));
    nibbles(s, at + 2, b->w);
}
V_INLINE void block_q4_1(const row_set *s, size_t at, block_32 *b)
{
    scale_and_min(s, at, b);
    nibbles(s, at + 4, b->w);
}
V_INLINE void block_q5_0(const row_set *s, size_t at, block_32 *b)
{
    b->d = v_half(gather(s, at));
    fives(s, at + 6, gather(s, at + 2), b->w);
}
V_INLINE void block_q5_1(const row_set *s, size_t at, block_32 *b)
{
    scale_and_min(s, at, b);
    fives(s, at + 8, gather(s, at + 4), b->w);
}
V_INLINE void block_iq4_nl(const row_set *s, size_t at, block_32 *b)
{
    b->d = v_half(gather(s, at));
    levels(s, at + 2, v_widen(v_table(kern_iq4_values)), b->w);
}
V_INLINE void block_mxfp4(const row_set *s, size_t at, block_32 *b)
{
    vi e = v_and(gather(s, at), v_set32(255));
    /* kern_e8m0_half: subnormal for e = 0 and 1. */
    vi normal = v_shl32(v_sub32(e, v_set32(1)), 23), tiny = v_shlv32(v_set32(0x00200000), e);
    b->d = v_castf(v_less32(e, v_set32(2), tiny, normal));
    levels(s, at + 1, v_widen(v_table(kern_mxfp4_values)), b->w);
}

/* How a set of rows meets one token: either through a panel or, where a weight is used only once, straight
 * from the vectors that would have been stored. */
typedef struct token_32 {
    const char *q;
    const float *d;
    const int32_t *start; /* tile_tokens, vec_tile.h */
    const float *shift;
    vf acc;
} token_32;

V_INLINE void store_32(const block_32 *b, const bool min, char *panel)
{
    v_store((float *)(void *)panel, b->d);
    if (min) v_store((float *)(void *)(panel + V_BYTES), b->m);
    V_UNROLL for (int g = 0; g < 8; g++) v_storei(panel + ((min ? 2 : 1) + g) * V_BYTES, b->w[g]);
}
V_INLINE vi broadcast_4(const char *q)
{
    int32_t x;
    memcpy(&x, q, sizeof x);
    return v_set32(x);
}
/* s += the products of n vectors; run: vectors per run, 0 for wide weights. */
V_INLINE vi dot_few(vi s, const vi *w, const char *q, const int n, const int run)
{
    vi other = v_zeroi(); /* two chains: one is slow */
    v_four four = v_load_four(q);
    V_UNROLL for (int g = 0; g < n; g += 2)
    {
        if (g == 4) four = v_load_four(q + 16);
        v_group a = v_take(four, g % 4), b = v_take(four, g % 4 + 1);
        if (run == 0) {
            s = v_dot_wide(s, w[g], a);
            other = v_dot_wide(other, w[g + 1], b);
        } else if (V_RUN_WIDE) {
            s = v_run_dot(s, w[g], a);
            if (n <= 4)
                s = v_run_dot(s, w[g + 1], b);
            else
                other = v_run_dot(other, w[g + 1], b);
        } else {
            if (g % run == 0) other = v_run_begin(other);
            other = v_run_dot(v_run_dot(other, w[g], a), w[g + 1], b);
            if ((g + 2) % run == 0) s = v_run_end(s, other);
        }
    }
    return run == 0 || (V_RUN_WIDE && n > 4) ? v_add32(s, other) : s;
}
V_INLINE void meet_32(const block_32 *b, token_32 *t, const bool min, const int run)
{
    vi s = dot_few(min ? v_zeroi() : v_set32(*t->start++), b->w, t->q, 8, run);
    t->acc = v_fma(v_mul(b->d, v_set(*t->d++)), v_float(s), t->acc);
    if (min) t->acc = v_fma(b->m, v_set(*t->shift++), t->acc);
    t->q += 32;
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

/* Where the parts of a block of 256 go: to a panel, or straight to one token. */
typedef struct sink_256 {
    char *panel; /* NULL: to the token */
    const char *q;
    const int32_t *start;
    const int16_t *pairs;
    vf d, dmin;
    vi isum, msum;
} sink_256;

V_INLINE void sink_put(sink_256 *out, vi x)
{
    v_storei(out->panel, x);
    out->panel += V_BYTES;
}
V_INLINE void sink_scales(sink_256 *out, const bool direct, vf d, vf dmin)
{
    out->d = d;
    out->dmin = dmin;
    if (direct) return;
    sink_put(out, v_casti(d));
    sink_put(out, v_casti(dmin));
}
/* The minima in bytes 0 ... 3 of each lane as PAIRS (0, 2), (1, 3). */
V_INLINE void sink_minima(sink_256 *out, const bool direct, vi x)
{
    const vi even = v_set32(0x00ff00ff);
    vi a = v_and(x, even), b = v_and(v_shr16(x, 8), even);
    if (direct) {
        out->msum = v_dot16(out->msum, a, broadcast_4((const char *)out->pairs));
        out->msum = v_dot16(out->msum, b, broadcast_4((const char *)(out->pairs + 2)));
        out->pairs += 4;
    } else {
        sink_put(out, a);
        sink_put(out, b);
    }
}
/* Sub-block j, of 4 n elements, in any order; biased: its sum starts at start[j]. run as in dot_few. */
V_INLINE void sink_sub(sink_256 *out, const bool direct, const int j, vi scale, const vi *w, const int n,
                       const bool biased, const int run)
{
    if (direct) {
        vi s = dot_few(biased ? v_set32(out->start[j]) : v_zeroi(), w, out->q + 4 * n * j, n, run);
        out->isum = v_add32(out->isum, v_mul32(s, scale));
    } else {
        char *panel = out->panel + j * (1 + n) * V_BYTES;
        v_storei(panel, scale);
        V_UNROLL for (int g = 0; g < n; g++) v_storei(panel + (1 + g) * V_BYTES, w[g]);
    }
}

V_INLINE void block_q2_k(const row_set *s, size_t at, sink_256 *out, const bool direct)
{
    const vi low = v_set8(15), two = v_set8(3);
    vi dm = gather(s, at + 80), scale[4], x[8], w[4];
    sink_scales(out, direct, v_half(dm), v_half(v_shr32(dm, 16)));
    v_load_rows16(s->row, at, scale);
    V_UNROLL for (int i = 0; i < 4; i++) sink_minima(out, direct, v_and(v_shr16(scale[i], 4), low));
    V_UNROLL for (int h = 0; h < 2; h++)
    {
        v_load_rows32(s->row, at + 16 + 32 * (size_t)h, x);
        V_UNROLL for (int j = 0; j < 8; j++)
        {
            V_UNROLL for (int g = 0; g < 4; g++) w[g] = v_and(v_right(x[4 * (j % 2) + g], j / 2 * 2), two);
            vi sub = v_and(lane_byte(scale[2 * h + j / 4], j % 4), v_set32(15));
            sink_sub(out, direct, 8 * h + j, sub, w, 4, false, V_RUN_31);
        }
    }
}
V_INLINE void block_q3_k(const row_set *s, size_t at, sink_256 *out, const bool direct)
{
    const vi low = v_set8(15), two = v_set8(3), third = v_set8(4), top = v_set8(0x30);
    vi x[8], mask[8], p[4], scale[4], w[4];
    /* Scales and d are the last 14 bytes: two bytes more are read before them. */
    v_load_rows16(s->row, at + 94, p);
    vi a = v_or(v_shr32(p[0], 16), v_shl32(p[1], 16)), b = v_or(v_shr32(p[1], 16), v_shl32(p[2], 16));
    vi c = v_or(v_shr32(p[2], 16), v_shl32(p[3], 16));
    scale[0] = v_and_or(a, low, v_and(v_shl32(c, 4), top));
    scale[1] = v_and_or(b, low, v_and(v_shl32(c, 2), top));
    scale[2] = v_and_or(v_shr32(a, 4), low, v_and(c, top));
    scale[3] = v_and_or(v_shr32(b, 4), low, v_and(v_shr32(c, 2), top));
    sink_scales(out, direct, v_half(v_shr32(p[3], 16)), v_zero());
    v_load_rows32(s->row, at, mask);
    V_UNROLL for (int h = 0; h < 2; h++)
    {
        v_load_rows32(s->row, at + 32 + 32 * (size_t)h, x);
        V_UNROLL for (int j = 0; j < 8; j++)
        {
            V_UNROLL for (int g = 0; g < 4; g++)
            {
                const int i = 4 * (j % 2) + g;
                vi high = v_and(v_shift(mask[i], 2 - (4 * h + j / 2)), third);
                w[g] = v_and_or(v_right(x[i], j / 2 * 2), two, high);
            }
            vi sub = v_sub32(lane_byte(scale[2 * h + j / 4], j % 4), v_set32(32));
            sink_sub(out, direct, 8 * h + j, sub, w, 4, true, V_RUN_63);
        }
    }
}

/* Q4_K, Q5_K: d, dmin and the packed scales are the block's first 16 bytes. */
V_INLINE void k_scales(const row_set *s, size_t at, sink_256 *out, const bool direct, vi scale[2])
{
    const vi six = v_set8(63), low = v_set8(15), top = v_set8(0x30);
    vi h[4];
    v_load_rows16(s->row, at, h);
    scale[0] = v_and(h[1], six);
    scale[1] = v_and_or(h[3], low, v_and(v_shr16(h[1], 2), top));
    sink_scales(out, direct, v_half(h[0]), v_half(v_shr32(h[0], 16)));
    sink_minima(out, direct, v_and(h[2], six));
    sink_minima(out, direct, v_and_or(v_shr16(h[3], 4), low, v_and(v_shr16(h[2], 2), top)));
}
V_INLINE void block_q4_k(const row_set *s, size_t at, sink_256 *out, const bool direct)
{
    const vi low = v_set8(15);
    vi scale[2], x[8], w[8];
    k_scales(s, at, out, direct, scale);
    V_UNROLL for (int h = 0; h < 4; h++)
    {
        v_load_rows32(s->row, at + 16 + 32 * (size_t)h, x);
        V_UNROLL for (int g = 0; g < 8; g++) w[g] = v_and(x[g], low);
        sink_sub(out, direct, 2 * h, lane_byte(scale[h / 2], h % 2 * 2), w, 8, false, V_RUN_31);
        V_UNROLL for (int g = 0; g < 8; g++) w[g] = v_and(v_shr16(x[g], 4), low);
        sink_sub(out, direct, 2 * h + 1, lane_byte(scale[h / 2], h % 2 * 2 + 1), w, 8, false, V_RUN_31);
    }
}
V_INLINE void block_q5_k(const row_set *s, size_t at, sink_256 *out, const bool direct)
{
    const vi low = v_set8(15), fifth = v_set8(16);
    vi scale[2], x[8], high[8], w[8];
    k_scales(s, at, out, direct, scale);
    v_load_rows32(s->row, at + 16, high);
    V_UNROLL for (int h = 0; h < 4; h++)
    {
        v_load_rows32(s->row, at + 48 + 32 * (size_t)h, x);
        V_UNROLL for (int g = 0; g < 8; g++)
        {
            w[g] = v_and_or(x[g], low, v_and(v_shift(high[g], 4 - 2 * h), fifth));
        }
        sink_sub(out, direct, 2 * h, lane_byte(scale[h / 2], h % 2 * 2), w, 8, false, V_RUN_31);
        V_UNROLL for (int g = 0; g < 8; g++)
        {
            w[g] = v_and_or(v_shr16(x[g], 4), low, v_and(v_shift(high[g], 3 - 2 * h), fifth));
        }
        sink_sub(out, direct, 2 * h + 1, lane_byte(scale[h / 2], h % 2 * 2 + 1), w, 8, false, V_RUN_31);
    }
}
V_INLINE void block_q6_k(const row_set *s, size_t at, sink_256 *out, const bool direct)
{
    const vi low = v_set8(15), two = v_set8(0x33);
    vi scale[4], x[2][8], high[2][8], w[4];
    sink_scales(out, direct, v_half(v_shr32(gather(s, at + 206), 16)), v_zero());
    v_load_rows16(s->row, at + 192, scale);
    V_UNROLL for (int h = 0; h < 2; h++)
    {
        v_load_rows32(s->row, at + 64 * (size_t)h, x[0]);
        v_load_rows32(s->row, at + 64 * (size_t)h + 32, x[1]);
        v_load_rows32(s->row, at + 128 + 32 * (size_t)h, high[0]);
        V_UNROLL for (int g = 0; g < 8; g++)
        {
            /* Two bits each at 0 and 4, clear above: shifted left by 4 only the first pair stays in the byte.
             */
            high[1][g] = v_and(v_shr32(high[0][g], 2), two);
            high[0][g] = v_and(high[0][g], two);
        }
        V_UNROLL for (int step = 0; step < 8; step++)
        {
            const int j =
                step % 4 * 2 + step / 4; /* the even ones first: then half of the vectors are done with */
            V_UNROLL for (int g = 0; g < 4; g++)
            {
                const int i = 4 * (j % 2) + g;
                vi nibble = x[j / 2 % 2][i], top = high[j / 2 % 2][i];
                w[g] = v_choose(low, j < 4 ? nibble : v_shr32(nibble, 4), j < 4 ? v_shl32(top, 4) : top);
            }
            sink_sub(out, direct, 8 * h + j, lane_signed_byte(scale[2 * h + j / 4], j % 4), w, 4, true,
                     V_RUN_63);
        }
    }
}
V_INLINE void block_iq4_xs(const row_set *s, size_t at, sink_256 *out, const bool direct)
{
    const vi table = v_widen(v_table(kern_iq4_values));
    vi h[4], w[8];
    v_load_rows16(s->row, at, h);
    sink_scales(out, direct, v_half(h[0]), v_zero());
    V_UNROLL for (int j = 0; j < 8; j++)
    {
        vi low = v_and(v_right(h[1], 4 * j), v_set32(15));
        vi high = v_shl32(v_and(v_right(h[0], 16 + 2 * j), v_set32(3)), 4);
        levels(s, at + 8 + 16 * (size_t)j, table, w);
        sink_sub(out, direct, j, v_sub32(v_or(low, high), v_set32(32)), w, 8, true, 0);
    }
}

#endif
