/* Matrix products with float weights for many tokens. The order of additions is that of vec_dot.h, the order
 * of work is not: a band of rows is widened to floats once per stretch of k and serves a group of tokens; all
 * lanes of the band and the group wait in scratch between stretches, sixteen floats per output.
 *
 *   scratch:  weights [BLOCK_ROWS][BLOCK_K] floats | lanes [BLOCK_TOKENS][BLOCK_ROWS][16] floats */
#ifndef WEIR_VEC_DOT_BLOCKS_H
#define WEIR_VEC_DOT_BLOCKS_H

#include "vec_dot.h"

#define BLOCK_ROWS   16
#define BLOCK_K      512
#define BLOCK_TOKENS 96
static_assert(sizeof(float) * BLOCK_ROWS * (BLOCK_K + BLOCK_TOKENS * 16) <= KERN_SCRATCH_MIN, "scratch");

typedef struct block_args {
    const float *w; /* first row, BLOCK_K apart */
    const char *x;  /* first token, at the stretch */
    size_t act_stride;
    size_t n;     /* elements of the stretch */
    float *lanes; /* of the first token and row */
    bool first;   /* lanes start from +0 */
} block_args;

typedef void block_fn(const block_args *a);

V_INLINE vf block_x(const block_args *a, int t, size_t i, size_t n)
{
    const float *x = (const float *)(const void *)(a->x + (size_t)t * a->act_stride) + i;
    return n == V_LANES ? v_load(x) : v_load_n(x, n);
}
V_INLINE void block_step(const block_args *a, size_t i, size_t n, vf acc[V_BLOCK_ROWS][V_BLOCK_TOKENS],
                         const int T)
{
    vf w[V_BLOCK_ROWS];
    V_UNROLL for (int r = 0; r < V_BLOCK_ROWS; r++) w[r] = v_load(a->w + r * BLOCK_K + i);
    V_UNROLL for (int t = 0; t < T; t++)
    {
        vf x = block_x(a, t, i, n);
        V_UNROLL for (int r = 0; r < V_BLOCK_ROWS; r++) acc[r][t] = v_fma(w[r], x, acc[r][t]);
    }
}
/* Lanes p x V_LANES ... of V_BLOCK_ROWS x T outputs. */
V_INLINE void block_part(const block_args *a, const int p, const int T)
{
    vf acc[V_BLOCK_ROWS][V_BLOCK_TOKENS];
    V_UNROLL for (int r = 0; r < V_BLOCK_ROWS; r++)
    {
        V_UNROLL for (int t = 0; t < T; t++)
        {
            acc[r][t] = a->first ? v_zero() : v_load(a->lanes + (t * BLOCK_ROWS + r) * 16 + p * V_LANES);
        }
    }
    size_t i = (size_t)p * V_LANES;
    for (; i + V_LANES <= a->n; i += 16) block_step(a, i, V_LANES, acc, T);
    /* The last group of sixteen goes on with zeros, in all its lanes. */
    if (i / 16 * 16 < a->n) block_step(a, i, i < a->n ? a->n - i : 0, acc, T);
    V_UNROLL for (int r = 0; r < V_BLOCK_ROWS; r++)
    {
        V_UNROLL for (int t = 0; t < T; t++)
        {
            v_store(a->lanes + (t * BLOCK_ROWS + r) * 16 + p * V_LANES, acc[r][t]);
        }
    }
}
#define BLOCK(T)                                                                                             \
    static void block_##T(const block_args *a)                                                               \
    {                                                                                                        \
        V_UNROLL for (int p = 0; p < DOT_PARTS; p++) block_part(a, p, T);                                    \
    }
BLOCK(1)
BLOCK(2)
BLOCK(4)
BLOCK(6)

/* Widens n elements of the band's rows from k0 on; a last group of sixteen is filled with zeros. */
V_INLINE void widen_rows(const kern_matmul *m, const uint32_t dtype, size_t row, size_t n_rows, size_t k0,
                         size_t n, float *out)
{
    for (size_t r = 0; r < BLOCK_ROWS; r++, out += BLOCK_K) {
        const uint8_t *w = (const uint8_t *)m->w + (row + (r < n_rows ? r : n_rows - 1)) * m->row_bytes;
        size_t i = 0;
        for (; i + V_LANES <= n; i += V_LANES) v_store(out + i, dot_weights(dtype, w, k0 + i));
        for (; i < (n + 15) / 16 * 16; i += V_LANES)
            v_store(out + i, dot_weights_n(dtype, w, k0 + i, i < n ? n - i : 0));
    }
}

static void block_tokens(const block_args *all, size_t n_rows, size_t n_tokens)
{
    static const struct {
        size_t tokens;
        block_fn *fn;
    } shapes[] = {{1, block_1}, {2, block_2}, {4, block_4}, {6, block_6}};
    block_args a = *all;
    for (size_t t = 0; t < n_tokens;) {
        int shape = 3;
        while (shapes[shape].tokens > n_tokens - t) shape--;
        for (size_t r = 0; r < n_rows; r += V_BLOCK_ROWS) {
            a.w = all->w + r * BLOCK_K;
            a.lanes = all->lanes + (t * BLOCK_ROWS + r) * 16;
            shapes[shape].fn(&a);
        }
        t += shapes[shape].tokens;
        a.x = all->x + t * a.act_stride;
    }
}

static void matmul_float_blocks(const kern_matmul *m, size_t row_begin, size_t row_end, void *scratch)
{
    float *w = scratch, *lanes = w + BLOCK_ROWS * BLOCK_K;
    for (size_t row = row_begin; row < row_end; row += BLOCK_ROWS) {
        size_t n_rows = row_end - row < BLOCK_ROWS ? row_end - row : BLOCK_ROWS;
        for (size_t t0 = 0; t0 < m->n_tokens; t0 += BLOCK_TOKENS) {
            size_t n_tokens = m->n_tokens - t0 < BLOCK_TOKENS ? m->n_tokens - t0 : BLOCK_TOKENS;
            const char *x = (const char *)m->act + t0 * m->act_stride;
            for (size_t k0 = 0; k0 < m->k; k0 += BLOCK_K) {
                size_t n = m->k - k0 < BLOCK_K ? m->k - k0 : BLOCK_K;
                if (m->dtype == BASE_F32)
                    widen_rows(m, BASE_F32, row, n_rows, k0, n, w);
                else if (m->dtype == BASE_F16)
                    widen_rows(m, BASE_F16, row, n_rows, k0, n, w);
                else
                    widen_rows(m, BASE_BF16, row, n_rows, k0, n, w);
                block_args a = {w, x + k0 * sizeof(float), m->act_stride, n, lanes, k0 == 0};
                block_tokens(&a, n_rows, n_tokens);
            }
            for (size_t t = 0; t < n_tokens; t++) {
                float out[BLOCK_ROWS], *to = m->out + (t0 + t) * m->out_stride + row;
                v_trees(lanes + t * BLOCK_ROWS * 16, out);
                for (size_t r = 0; r < n_rows; r++) to[r] = m->bias ? out[r] + m->bias[row + r] : out[r];
            }
        }
    }
}

#endif
