/* Matrix products with float weights (F32, F16, BF16): sixteen lanes along k, as docs/numerics.md orders
 * them. A tile is R weight rows by T tokens whose lanes all live in registers, since one lane's chain of fma
 * is slow and only many of them together fill the machine. */
#ifndef WEIR_VEC_DOT_H
#define WEIR_VEC_DOT_H

#include "kernels/kern_blocks.h"
#include "vec_internal.h"

#define DOT_PARTS (16 / V_LANES)

typedef struct dot_args {
    const uint8_t *const *w; /* R rows */
    const char *x;           /* token 0 */
    size_t act_stride, k;
    float (*out)[8]; /* [T][R] */
} dot_args;

typedef void dot_fn(const dot_args *a);

V_INLINE vf dot_weights(const uint32_t dtype, const uint8_t *w, size_t i)
{
    if (dtype == BASE_F32) return v_load((const float *)(const void *)(w + 4 * i));
    return dtype == BASE_F16 ? v_load_f16(w + 2 * i) : v_load_bf16(w + 2 * i);
}
V_INLINE vf dot_weights_n(const uint32_t dtype, const uint8_t *w, size_t i, size_t n)
{
    if (dtype == BASE_F32) return v_load_n((const float *)(const void *)(w + 4 * i), n);
    return dtype == BASE_F16 ? v_load_f16_n(w + 2 * i, n) : v_load_bf16_n(w + 2 * i, n);
}
V_INLINE const float *dot_x(const dot_args *a, int t)
{
    return (const float *)(const void *)(a->x + (size_t)t * a->act_stride);
}

V_INLINE void dot_tile(const dot_args *a, const uint32_t dtype, const int R, const int T)
{
    vf acc[8][V_DOT_TOKENS][DOT_PARTS];
    size_t i = 0;
    V_UNROLL for (int r = 0; r < R; r++)
    {
        V_UNROLL for (int t = 0; t < T; t++)
        {
            V_UNROLL for (int p = 0; p < DOT_PARTS; p++) acc[r][t][p] = v_zero();
        }
    }
    for (; i + 16 <= a->k; i += 16) {
        V_UNROLL for (int p = 0; p < DOT_PARTS; p++)
        {
            vf w[8];
            V_UNROLL for (int r = 0; r < R; r++) w[r] = dot_weights(dtype, a->w[r], i + p * V_LANES);
            V_UNROLL for (int t = 0; t < T; t++)
            {
                vf x = v_load(dot_x(a, t) + i + p * V_LANES);
                V_UNROLL for (int r = 0; r < R; r++) acc[r][t][p] = v_fma(w[r], x, acc[r][t][p]);
            }
        }
    }
    if (i < a->k) {
        V_UNROLL for (int p = 0; p < DOT_PARTS; p++)
        {
            size_t at = i + p * V_LANES, n = a->k > at ? a->k - at : 0;
            if (n > V_LANES) n = V_LANES;
            V_UNROLL for (int t = 0; t < T; t++)
            {
                vf x = v_load_n(dot_x(a, t) + at, n);
                V_UNROLL for (int r = 0; r < R; r++)
                {
                    acc[r][t][p] = v_fma(dot_weights_n(dtype, a->w[r], at, n), x, acc[r][t][p]);
                }
            }
        }
    }
    V_UNROLL for (int t = 0; t < T; t++)
    {
        V_UNROLL for (int r = 0; r < R; r++) a->out[t][r] = v_tree(acc[r][t]);
    }
}

#define DOT(type, dtype, R, T)                                                                               \
    static void dot_##type##_##R##x##T(const dot_args *a)                                                    \
    {                                                                                                        \
        dot_tile(a, dtype, R, T);                                                                            \
    }
#if V_LANES == 16
#define DOT_SET(type, dtype)                                                                                 \
    DOT(type, dtype, 8, 1)                                                                                   \
    DOT(type, dtype, 8, 2)                                                                                   \
    DOT(type, dtype, 4, 4)                                                                                   \
    DOT(type, dtype, 4, 6)
#define DOT_NAMES(type)                                                                                      \
    {                                                                                                        \
        {8, 1, dot_##type##_8x1}, {8, 2, dot_##type##_8x2}, {4, 4, dot_##type##_4x4},                        \
        {                                                                                                    \
            4, 6, dot_##type##_4x6                                                                           \
        }                                                                                                    \
    }
#else
#define DOT_SET(type, dtype)                                                                                 \
    DOT(type, dtype, 4, 1)                                                                                   \
    DOT(type, dtype, 2, 2)                                                                                   \
    DOT(type, dtype, 2, 3)
#define DOT_NAMES(type)                                                                                      \
    {                                                                                                        \
        {4, 1, dot_##type##_4x1}, {2, 2, dot_##type##_2x2},                                                  \
        {                                                                                                    \
            2, 3, dot_##type##_2x3                                                                           \
        }                                                                                                    \
    }
#endif
#define DOT_SHAPES (V_LANES == 16 ? 4 : 3)

typedef struct dot_shape {
    size_t rows, tokens;
    dot_fn *fn;
} dot_shape;

DOT_SET(f32, BASE_F32)
DOT_SET(f16, BASE_F16)
DOT_SET(bf16, BASE_BF16)
static const dot_shape dot_f32[] = DOT_NAMES(f32);
static const dot_shape dot_f16[] = DOT_NAMES(f16);
static const dot_shape dot_bf16[] = DOT_NAMES(bf16);

/* Rows beyond the last repeat it and are not stored. */
static void dot_rows(const kern_matmul *m, const dot_shape *shape, size_t row, size_t n_rows, size_t token)
{
    const uint8_t *w[8];
    float out[V_DOT_TOKENS][8];
    for (size_t r = 0; r < shape->rows; r++)
        w[r] = (const uint8_t *)m->w + (row + (r < n_rows ? r : n_rows - 1)) * m->row_bytes;
    dot_args a = {w, (const char *)m->act + token * m->act_stride, m->act_stride, m->k, out};
    shape->fn(&a);
    if (n_rows > shape->rows) n_rows = shape->rows;
    for (size_t t = 0; t < shape->tokens; t++) {
        float *to = m->out + (token + t) * m->out_stride + row;
        for (size_t r = 0; r < n_rows; r++) to[r] = m->bias ? out[t][r] + m->bias[row + r] : out[t][r];
    }
}

/* Bands of 8 rows against all tokens: the band stays in the first cache. */
static void matmul_floats(const kern_matmul *m, size_t row_begin, size_t row_end)
{
    const dot_shape *shapes = m->dtype == BASE_F32 ? dot_f32 : m->dtype == BASE_F16 ? dot_f16 : dot_bf16;
    for (size_t row = row_begin; row < row_end; row += 8) {
        size_t n_rows = row_end - row < 8 ? row_end - row : 8;
        for (size_t t = 0; t < m->n_tokens;) {
            const dot_shape *shape = &shapes[DOT_SHAPES - 1];
            while (shape->tokens > m->n_tokens - t) shape--;
            for (size_t r = 0; r < n_rows; r += shape->rows) dot_rows(m, shape, row + r, n_rows - r, t);
            t += shape->tokens;
        }
    }
}

#endif
