/* Takes weight blocks of V_LANES rows apart, from the file's layout or from packed groups (kern_blocks.h),
 * and packs them into panels, the form in which tiles (vec_tile.h) read them, or lets them meet tokens at
 * once. Written over a vector layer, which must be included first.
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

/* V_LANES rows of a weight. */
typedef struct row_set {
    const uint8_t *group; /* packed: the group they are in, and the first one's place in it */
    size_t lane;
    const uint8_t *row[V_LANES]; /* else: their starts */
    vi at;                       /* row[r] - row[0] */
    const char *ahead;           /* what comes next in memory */
    bool near; /* bring it into the first cache; else it would only push out what is needed */
} row_set;

/* One block of each of them. */
typedef struct block_at {
    const row_set *rows;   /* file's layout: at byte `at` of each row */
    const uint8_t *column; /* packed: the block column of sixteen rows; the first row is `lane` */
    size_t at, lane;
    const uint8_t *next; /* packed: the block column that is asked for meanwhile */
    bool packed;         /* constant after inlining */
} block_at;

#define PANEL_32      (9 * V_BYTES)
#define PANEL_32_MIN  (10 * V_BYTES)
#define PANEL_256     ((2 + 64 + 16) * V_BYTES)     /* sub-blocks of 16 */
#define PANEL_256_MIN ((2 + 64 + 16 + 8) * V_BYTES) /* the same with minima */
#define PANEL_K32     ((2 + 64 + 8) * V_BYTES)      /* sub-blocks of 32 */
#define PANEL_K32_MIN ((2 + 64 + 8 + 4) * V_BYTES)

/* Four bytes of each row, at byte o of the block. */
V_INLINE vi word(const block_at *b, size_t o)
{
    if (b->packed) {
        const uint8_t *p = b->column + 16 * o + 4 * b->lane;
        /* Requests are spread over the work: all at once they would wait for one another, and the work for
         * them. Vectors that share a line leave it to packed_block. */
        if (V_BYTES == 64) __builtin_prefetch(b->next + 16 * o, 0, 3);
        return v_loadi(p);
    }
    return v_gather(b->rows->row, b->at + o, b->rows->at);
}
/* Words at o, o + 4, ... */
V_INLINE void words4(const block_at *b, size_t o, vi out[4])
{
    if (!b->packed) {
        v_load_rows16(b->rows->row, b->at + o, out);
        return;
    }
    V_UNROLL for (size_t g = 0; g < 4; g++) out[g] = word(b, o + 4 * g);
}
V_INLINE void words8(const block_at *b, size_t o, vi out[8])
{
    if (!b->packed) {
        v_load_rows32(b->rows->row, b->at + o, out);
        return;
    }
    V_UNROLL for (size_t g = 0; g < 8; g++) out[g] = word(b, o + 4 * g);
}
V_INLINE const uint8_t *packed_half(const block_at *b, size_t o)
{
    return b->column + 16 * o + 2 * b->lane;
}
/* Asks for the halves at o of the block ahead, where they fill a line that no word shares. */
V_INLINE void ask_halves(const block_at *b, size_t o)
{
    if (b->packed && V_BYTES == 64) __builtin_prefetch(b->next + 16 * o, 0, 3);
}
/* The half at o. In the file's layout four bytes are read, of which none may lie behind the block's end. */
V_INLINE vf half(const block_at *b, size_t o)
{
    if (b->packed) return v_load_f16(packed_half(b, o));
    return o == 0 ? v_half(word(b, 0)) : v_half(v_shr32(word(b, o - 2), 16));
}
/* Those at o and o + 2. */
V_INLINE void halves(const block_at *b, size_t o, vf *first, vf *second)
{
    if (b->packed) {
        ask_halves(b, o);
        *first = half(b, o);
        *second = half(b, o + 2);
    } else {
        vi x = word(b, o);
        *first = v_half(x);
        *second = v_half(v_shr32(x, 16));
    }
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

V_INLINE void nibbles(const block_at *s, size_t o, vi w[8])
{
    const vi low = v_set8(15);
    words4(s, o, w);
    V_UNROLL for (int g = 0; g < 4; g++)
    {
        w[4 + g] = v_and(v_shr16(w[g], 4), low);
        w[g] = v_and(w[g], low);
    }
}
V_INLINE void fives(const block_at *s, size_t o, vi high, vi w[8])
{
    nibbles(s, o, w);
    V_UNROLL for (int g = 0; g < 8; g++) w[g] = v_or(w[g], v_fifth_bits(v_right(high, 4 * g)));
}
V_INLINE void levels(const block_at *s, size_t o, vi table, vi w[8])
{
    nibbles(s, o, w);
    V_UNROLL for (int g = 0; g < 8; g++) w[g] = v_lookup(table, w[g]);
}
V_INLINE void block_q8_0(const block_at *s, block_32 *b)
{
    b->d = half(s, 0);
    words8(s, 2, b->w);
    V_UNROLL for (int g = 0; g < 8; g++) b->w[g] = v_widen(b->w[g]);
}
V_INLINE void block_q4_0(const block_at *s, block_32 *b)
{
    b->d = half(s, 0);
    nibbles(s, 2, b->w);
}
V_INLINE void block_q4_1(const block_at *s, block_32 *b)
{
    halves(s, 0, &b->d, &b->m);
    nibbles(s, 4, b->w);
}
V_INLINE void block_q5_0(const block_at *s, block_32 *b)
{
    b->d = half(s, 0);
    fives(s, 6, word(s, 2), b->w);
}
V_INLINE void block_q5_1(const block_at *s, block_32 *b)
{
    halves(s, 0, &b->d, &b->m);
    fives(s, 8, word(s, 4), b->w);
}
V_INLINE void block_iq4_nl(const block_at *s, block_32 *b)
{
    b->d = half(s, 0);
    levels(s, 2, v_widen(v_table(kern_iq4_values)), b->w);
}
V_INLINE void block_mxfp4(const block_at *s, block_32 *b)
{
    vi e = s->packed ? v_load_u8(s->column + s->lane) : v_and(word(s, 0), v_set32(255));
    /* kern_e8m0_half: subnormal for e = 0 and 1. */
    vi normal = v_shl32(v_sub32(e, v_set32(1)), 23), tiny = v_shlv32(v_set32(0x00200000), e);
    b->d = v_castf(v_less32(e, v_set32(2), tiny, normal));
    levels(s, 1, v_widen(v_table(kern_mxfp4_values)), b->w);
}

/* Up to DIRECT_TOKENS tokens that blocks meet without a panel: where a weight is used only so many times,
 * straight from the vectors that would have been stored. Activation rows stand act_stride bytes apart, what
 * is made from their sums (vec_matmul.h) sums_stride numbers. All of the current block. */
#define DIRECT_TOKENS 4
typedef struct direct_tokens {
    const char *q, *d;
    size_t act_stride, sums_stride;
    const int32_t *start; /* -bias x (sum of q), per (sub-)block */
    const float *shift;   /* Q4_1, Q5_1: dx x (float)sum */
    const int16_t *pairs; /* Q2_K, Q4_K, Q5_K: sums of the sub-blocks, in the order of PAIRS */
} direct_tokens;

V_INLINE vf direct_scale(const direct_tokens *k, int t)
{
    float x;
    memcpy(&x, k->d + (size_t)t * k->act_stride, sizeof x);
    return v_set(x);
}

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
V_INLINE void meet_32(const block_32 *b, const direct_tokens *k, vf *acc, const int T, const bool min,
                      const int run)
{
    V_UNROLL for (int t = 0; t < T; t++)
    {
        size_t at = (size_t)t * k->sums_stride;
        vi s = min ? v_zeroi() : v_set32(k->start[at]);
        s = dot_few(s, b->w, k->q + (size_t)t * k->act_stride, 8, run);
        acc[t] = v_fma(v_mul(b->d, direct_scale(k, t)), v_float(s), acc[t]);
        if (min) acc[t] = v_fma(b->m, v_set(k->shift[at]), acc[t]);
    }
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

/* Where the parts of a block of 256 go: to a panel (T = 0), or straight to T tokens. */
typedef struct sink_256 {
    char *panel;
    direct_tokens to;
    vf d, dmin;
    vi isum[DIRECT_TOKENS], msum[DIRECT_TOKENS];
} sink_256;

V_INLINE void sink_put(sink_256 *out, vi x)
{
    v_storei(out->panel, x);
    out->panel += V_BYTES;
}
V_INLINE void sink_scales(sink_256 *out, const int T, vf d, vf dmin)
{
    out->d = d;
    out->dmin = dmin;
    if (T > 0) return;
    sink_put(out, v_casti(d));
    sink_put(out, v_casti(dmin));
}
/* The minima 4 i ... 4 i + 3 in bytes 0 ... 3 of each lane as PAIRS (0, 2), (1, 3). */
V_INLINE void sink_minima(sink_256 *out, const int T, const int i, vi x)
{
    const vi even = v_set32(0x00ff00ff);
    vi a = v_and(x, even), b = v_and(v_shr16(x, 8), even);
    if (T == 0) {
        sink_put(out, a);
        sink_put(out, b);
    }
    V_UNROLL for (int t = 0; t < T; t++)
    {
        const int16_t *pairs = out->to.pairs + (size_t)t * out->to.sums_stride + 4 * i;
        vi sum = i == 0 ? v_zeroi() : out->msum[t];
        sum = v_dot16(sum, a, broadcast_4((const char *)pairs));
        out->msum[t] = v_dot16(sum, b, broadcast_4((const char *)(pairs + 2)));
    }
}
/* What is known of a sub-block: it has no bias; its sum starts at start[j]; no bias, weights of at most 15
 * and no negative scale, so that a sum over sixteen elements fits 16 bits (16 x 15 x 127). */
typedef enum sub_kind { SUB_PLAIN, SUB_BIASED, SUB_LOW } sub_kind;

/* Sub-block j, of 4 n elements, the first being 0. run as in dot_few. */
V_INLINE void sink_sub(sink_256 *out, const int T, const int j, vi scale, const vi *w, const int n,
                       const sub_kind kind, const int run)
{
    if (T == 0) {
        char *panel = out->panel + j * (1 + n) * V_BYTES;
        v_storei(panel, scale);
        V_UNROLL for (int g = 0; g < n; g++) v_storei(panel + (1 + g) * V_BYTES, w[g]);
    }
    V_UNROLL for (int t = 0; t < T; t++)
    {
        const char *q = out->to.q + (size_t)t * out->to.act_stride + 4 * n * j;
        vi isum = j == 0 ? v_zeroi() : out->isum[t];
        if (kind == SUB_LOW) {
            V_UNROLL for (int g = 0; g < n; g += 4)
            {
                isum = v_mla16(isum, dot_few(v_zeroi(), w + g, q + 4 * g, 4, run), scale);
            }
        } else {
            vi s = v_zeroi();
            if (kind == SUB_BIASED) s = v_set32(out->to.start[(size_t)t * out->to.sums_stride + (size_t)j]);
            isum = v_add32(isum, v_mul32(dot_few(s, w, q, n, run), scale));
        }
        out->isum[t] = isum;
    }
}

/* One block more of each output. */
V_INLINE void meet_256(const sink_256 *in, vf *acc, const int T, const bool min)
{
    V_UNROLL for (int t = 0; t < T; t++)
    {
        vf dx = direct_scale(&in->to, t);
        acc[t] = v_fma(v_mul(in->d, dx), v_float(in->isum[t]), acc[t]);
        if (min) acc[t] = v_fnma(v_mul(in->dmin, dx), v_float(in->msum[t]), acc[t]);
    }
}

V_INLINE void block_q2_k(const block_at *s, sink_256 *out, const int T)
{
    const vi low = v_set8(15), two = v_set8(3);
    vi scale[4], x[8], w[4];
    vf d, dmin;
    halves(s, 80, &d, &dmin);
    sink_scales(out, T, d, dmin);
    words4(s, 0, scale);
    V_UNROLL for (int i = 0; i < 4; i++) sink_minima(out, T, i, v_and(v_shr16(scale[i], 4), low));
    V_UNROLL for (int h = 0; h < 2; h++)
    {
        words8(s, 16 + 32 * (size_t)h, x);
        V_UNROLL for (int j = 0; j < 8; j++)
        {
            V_UNROLL for (int g = 0; g < 4; g++) w[g] = v_and(v_right(x[4 * (j % 2) + g], j / 2 * 2), two);
            vi sub = v_and(lane_byte(scale[2 * h + j / 4], j % 4), v_set32(15));
            sink_sub(out, T, 8 * h + j, sub, w, 4, SUB_LOW, V_RUN_31);
        }
    }
}
V_INLINE void block_q3_k(const block_at *s, sink_256 *out, const int T)
{
    const vi low = v_set8(15), two = v_set8(3), third = v_set8(4), top = v_set8(0x30);
    vi x[8], mask[8], p[4], scale[4], w[4], a, b, c;
    vf d;
    if (s->packed) {
        a = word(s, 96), b = word(s, 100), c = word(s, 104);
        ask_halves(s, 108);
        d = half(s, 108);
    } else {
        /* Scales and d are the last 14 bytes: two bytes more are read before them. */
        words4(s, 94, p);
        a = v_or(v_shr32(p[0], 16), v_shl32(p[1], 16));
        b = v_or(v_shr32(p[1], 16), v_shl32(p[2], 16));
        c = v_or(v_shr32(p[2], 16), v_shl32(p[3], 16));
        d = v_half(v_shr32(p[3], 16));
    }
    scale[0] = v_and_or(a, low, v_and(v_shl32(c, 4), top));
    scale[1] = v_and_or(b, low, v_and(v_shl32(c, 2), top));
    scale[2] = v_and_or(v_shr32(a, 4), low, v_and(c, top));
    scale[3] = v_and_or(v_shr32(b, 4), low, v_and(v_shr32(c, 2), top));
    sink_scales(out, T, d, v_zero());
    words8(s, 0, mask);
    V_UNROLL for (int h = 0; h < 2; h++)
    {
        words8(s, 32 + 32 * (size_t)h, x);
        V_UNROLL for (int j = 0; j < 8; j++)
        {
            V_UNROLL for (int g = 0; g < 4; g++)
            {
                const int i = 4 * (j % 2) + g;
                vi high = v_and(v_shift(mask[i], 2 - (4 * h + j / 2)), third);
                w[g] = v_and_or(v_right(x[i], j / 2 * 2), two, high);
            }
            vi sub = v_sub32(lane_byte(scale[2 * h + j / 4], j % 4), v_set32(32));
            sink_sub(out, T, 8 * h + j, sub, w, 4, SUB_BIASED, V_RUN_63);
        }
    }
}

/* Q4_K, Q5_K: d, dmin and the packed scales are the block's first 16 bytes. */
V_INLINE void k_scales(const block_at *s, sink_256 *out, const int T, vi scale[2])
{
    const vi six = v_set8(63), low = v_set8(15), top = v_set8(0x30);
    vi h[4];
    vf d, dmin;
    if (s->packed) {
        halves(s, 0, &d, &dmin);
        V_UNROLL for (size_t i = 1; i < 4; i++) h[i] = word(s, 4 * i);
    } else {
        words4(s, 0, h);
        d = v_half(h[0]);
        dmin = v_half(v_shr32(h[0], 16));
    }
    scale[0] = v_and(h[1], six);
    scale[1] = v_and_or(h[3], low, v_and(v_shr16(h[1], 2), top));
    sink_scales(out, T, d, dmin);
    sink_minima(out, T, 0, v_and(h[2], six));
    sink_minima(out, T, 1, v_and_or(v_shr16(h[3], 4), low, v_and(v_shr16(h[2], 2), top)));
}
V_INLINE void block_q4_k(const block_at *s, sink_256 *out, const int T)
{
    const vi low = v_set8(15);
    vi scale[2], x[8], w[8];
    k_scales(s, out, T, scale);
    V_UNROLL for (int h = 0; h < 4; h++)
    {
        words8(s, 16 + 32 * (size_t)h, x);
        V_UNROLL for (int g = 0; g < 8; g++) w[g] = v_and(x[g], low);
        sink_sub(out, T, 2 * h, lane_byte(scale[h / 2], h % 2 * 2), w, 8, SUB_LOW, V_RUN_31);
        V_UNROLL for (int g = 0; g < 8; g++) w[g] = v_and(v_shr16(x[g], 4), low);
        sink_sub(out, T, 2 * h + 1, lane_byte(scale[h / 2], h % 2 * 2 + 1), w, 8, SUB_LOW, V_RUN_31);
    }
}
V_INLINE void block_q5_k(const block_at *s, sink_256 *out, const int T)
{
    const vi low = v_set8(15), fifth = v_set8(16);
    vi scale[2], x[8], high[8], w[8];
    k_scales(s, out, T, scale);
    words8(s, 16, high);
    V_UNROLL for (int h = 0; h < 4; h++)
    {
        words8(s, 48 + 32 * (size_t)h, x);
        V_UNROLL for (int g = 0; g < 8; g++)
        {
            w[g] = v_and_or(x[g], low, v_and(v_shift(high[g], 4 - 2 * h), fifth));
        }
        sink_sub(out, T, 2 * h, lane_byte(scale[h / 2], h % 2 * 2), w, 8, SUB_PLAIN, V_RUN_31);
        V_UNROLL for (int g = 0; g < 8; g++)
        {
            w[g] = v_and_or(v_shr16(x[g], 4), low, v_and(v_shift(high[g], 3 - 2 * h), fifth));
        }
        sink_sub(out, T, 2 * h + 1, lane_byte(scale[h / 2], h % 2 * 2 + 1), w, 8, SUB_PLAIN, V_RUN_31);
    }
}
V_INLINE void block_q6_k(const block_at *s, sink_256 *out, const int T)
{
    const vi low = v_set8(15), two = v_set8(0x33);
    vi scale[4], x[2][8], high[2][8], w[4];
    ask_halves(s, 208);
    sink_scales(out, T, half(s, 208), v_zero());
    words4(s, 192, scale);
    V_UNROLL for (int h = 0; h < 2; h++)
    {
        const size_t ql = 64 * (size_t)h, qh = 128 + 32 * (size_t)h;
        if (!s->packed) {
            words8(s, ql, x[0]);
            words8(s, ql + 32, x[1]);
            words8(s, qh, high[0]);
        }
        /* The even sub-blocks first: then half of the vectors are done with. */
        V_UNROLL for (int odd = 0; odd < 2; odd++)
        {
            V_UNROLL for (int i = 4 * odd; i < 4 * odd + 4; i++)
            {
                if (s->packed) {
                    x[0][i] = word(s, ql + 4 * (size_t)i);
                    x[1][i] = word(s, ql + 32 + 4 * (size_t)i);
                    high[0][i] = word(s, qh + 4 * (size_t)i);
                }
                /* Two bits each at 0 and 4, clear above: shifted left by 4 only the first pair stays in the
                 * byte. */
                high[1][i] = v_and(v_shr32(high[0][i], 2), two);
                high[0][i] = v_and(high[0][i], two);
            }
            V_UNROLL for (int j = odd; j < 8; j += 2)
            {
                V_UNROLL for (int g = 0; g < 4; g++)
                {
                    vi nibble = x[j / 2 % 2][4 * odd + g], top = high[j / 2 % 2][4 * odd + g];
                    w[g] = v_choose(low, j < 4 ? nibble : v_shr32(nibble, 4), j < 4 ? v_shl32(top, 4) : top);
                }
                sink_sub(out, T, 8 * h + j, lane_signed_byte(scale[2 * h + j / 4], j % 4), w, 4, SUB_BIASED,
                         V_RUN_63);
            }
        }
    }
}
V_INLINE void block_iq4_xs(const block_at *s, sink_256 *out, const int T)
{
    const vi table = v_widen(v_table(kern_iq4_values));
    vi h[4], w[8];
    if (s->packed) {
        h[1] = word(s, 4);
        ask_halves(s, 0);
        h[0] = v_casti(v_load_bf16(packed_half(s, 2))); /* two bytes, to the upper half */
        sink_scales(out, T, half(s, 0), v_zero());
    } else {
        words4(s, 0, h);
        sink_scales(out, T, v_half(h[0]), v_zero());
    }
    V_UNROLL for (int j = 0; j < 8; j++)
    {
        vi low = v_and(v_right(h[1], 4 * j), v_set32(15));
        vi high = v_shl32(v_and(v_right(h[0], 16 + 2 * j), v_set32(3)), 4);
        levels(s, 8 + 16 * (size_t)j, table, w);
        sink_sub(out, T, j, v_sub32(v_or(low, high), v_set32(32)), w, 8, SUB_BIASED, 0);
    }
}

#endif
