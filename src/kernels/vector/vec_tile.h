/* Tiles of a quantized matrix product: R x V_LANES rows by T tokens over a stretch of k, from panels
 * (vec_pack.h) and activation rows. Rows stand in lanes, so the sum over blocks is one fma per block and
 * output, in the order that docs/numerics.md fixes; inside a block everything is integer and exact.
 *
 *            token 0   token 1 ...
 *   rows 0  [ acc     ][ acc    ]     one vector each; a dword of activations is broadcast against
 *   rows 1  [ acc     ][ acc    ]     a vector of weight bytes, four products per lane
 *
 * Weights with a bias b are stored as w + b: the sum of products then starts at -b x (sum of q). */
#ifndef WEIR_VEC_TILE_H
#define WEIR_VEC_TILE_H

#include "vec_pack.h"

#define TILE_K 2048 /* elements of k per stretch at most */

/* What a tile needs besides the activation rows, made once per token and stretch (vec_matmul.h). */
typedef struct tile_tokens {
    int32_t start[V_TILE_TOKENS][TILE_K / 16]; /* per (sub-)block: -bias x (sum of q) */
    float shift[V_TILE_TOKENS][TILE_K / 32];   /* Q4_1, Q5_1: dx x (float)sum */
    int16_t pairs[V_TILE_TOKENS]
                 [TILE_K / 16]; /* Q2_K, Q4_K, Q5_K: sums of the sub-blocks, in the order of PAIRS */
} tile_tokens;

typedef struct tile_args {
    const char *panel;
    size_t panel_stride; /* bytes to the panel of the next V_LANES rows */
    const char *q;       /* token 0: int8 of this stretch */
    const char *d;       /* token 0: scales of this stretch */
    size_t act_stride;   /* bytes between tokens, of q and d */
    const tile_tokens *tokens;
    size_t n_blocks;
    float *out; /* first row and token */
    size_t out_stride;
    size_t n_rows;     /* written at most */
    bool first;        /* start from +0, not from out */
    const float *bias; /* of the first row; only with the last stretch */
} tile_args;

typedef void tile_fn(const tile_args *a);

V_INLINE size_t tile_rows(const tile_args *a, int r)
{
    size_t left = a->n_rows - (size_t)r * V_LANES;
    return left < V_LANES ? left : V_LANES;
}
V_INLINE void tile_begin(const tile_args *a, vf acc[2][V_TILE_TOKENS], const int R, const int T)
{
    V_UNROLL for (int r = 0; r < R; r++)
    {
        V_UNROLL for (int t = 0; t < T; t++)
        {
            const float *out = a->out + (size_t)t * a->out_stride + r * V_LANES;
            acc[r][t] = a->first ? v_zero() : v_load_n(out, tile_rows(a, r));
        }
    }
}
V_INLINE void tile_end(const tile_args *a, vf acc[2][V_TILE_TOKENS], const int R, const int T)
{
    V_UNROLL for (int r = 0; r < R; r++)
    {
        size_t n = tile_rows(a, r);
        V_UNROLL for (int t = 0; t < T; t++)
        {
            vf x = acc[r][t];
            if (a->bias) x = v_add(x, v_load_n(a->bias + r * V_LANES, n));
            v_store_n(a->out + (size_t)t * a->out_stride + r * V_LANES, x, n);
        }
    }
}
V_INLINE vf tile_scale(const tile_args *a, int t, size_t block)
{
    float x;
    memcpy(&x, a->d + (size_t)t * a->act_stride + block * sizeof x, sizeof x);
    return v_set(x);
}

/* s[r][t] += the products of n_groups x 4 elements. run as in dot_few. */
V_INLINE void tile_dots(const tile_args *a, const char *w, const char *q, vi s[2][V_TILE_TOKENS],
                        const int n_groups, const int R, const int T, const int run)
{
    vi part[2][V_TILE_TOKENS];
    v_four four[V_TILE_TOKENS];
    V_UNROLL for (int g = 0; g < n_groups; g++)
    {
        vi x[2];
        if (g % 4 == 0) {
            V_UNROLL for (int t = 0; t < T; t++) four[t] = v_load_four(q + (size_t)t * a->act_stride + g * 4);
        }
        V_UNROLL for (int r = 0; r < R; r++) x[r] = v_loadi(w + (size_t)r * a->panel_stride + g * V_BYTES);
        V_UNROLL for (int t = 0; t < T; t++)
        {
            v_group y = v_take(four[t], g % 4);
            V_UNROLL for (int r = 0; r < R; r++)
            {
                if (run == 0) {
                    s[r][t] = v_dot_wide(s[r][t], x[r], y);
                    continue;
                }
                part[r][t] = v_run_dot(g % run == 0 ? v_run_begin(s[r][t]) : part[r][t], x[r], y);
                if ((g + 1) % run == 0) s[r][t] = v_run_end(s[r][t], part[r][t]);
            }
        }
    }
}

V_INLINE void tile_32(const tile_args *a, const int R, const int T, const bool min, const int run)
{
    const int head = min ? 2 : 1;
    vf acc[2][V_TILE_TOKENS];
    tile_begin(a, acc, R, T);
    const char *panel = a->panel, *q = a->q;
    for (size_t b = 0; b < a->n_blocks; b++) {
        vi s[2][V_TILE_TOKENS];
        V_UNROLL for (int t = 0; t < T; t++)
        {
            vi start = min ? v_zeroi() : v_set32(a->tokens->start[t][b]);
            V_UNROLL for (int r = 0; r < R; r++) s[r][t] = start;
        }
        tile_dots(a, panel + head * V_BYTES, q, s, 8, R, T, run);
        V_UNROLL for (int t = 0; t < T; t++)
        {
            vf dx = tile_scale(a, t, b);
            V_UNROLL for (int r = 0; r < R; r++)
            {
                vf dw = v_castf(v_loadi(panel + (size_t)r * a->panel_stride));
                acc[r][t] = v_fma(v_mul(dw, dx), v_float(s[r][t]), acc[r][t]);
                if (min) {
                    vf mw = v_castf(v_loadi(panel + (size_t)r * a->panel_stride + V_BYTES));
                    acc[r][t] = v_fma(mw, v_set(a->tokens->shift[t][b]), acc[r][t]);
                }
            }
        }
        panel += (head + 8) * V_BYTES;
        q += 32;
    }
    tile_end(a, acc, R, T);
}

/* Products of the minima with the sums of the sub-blocks. */
V_INLINE vi tile_minima(const char *minima, const int16_t *pairs, const int n)
{
    vi sum = v_zeroi();
    V_UNROLL for (int i = 0; i < n; i++)
    {
        sum = v_dot16(sum, v_loadi(minima + i * V_BYTES), broadcast_4((const char *)(pairs + 2 * i)));
    }
    return sum;
}
/* isum += s x the sub-block's scale; low: as SUB_LOW. */
V_INLINE void tile_scaled(const tile_args *a, const char *w, vi s[2][V_TILE_TOKENS],
                          vi isum[2][V_TILE_TOKENS], const int R, const int T, const bool low)
{
    V_UNROLL for (int r = 0; r < R; r++)
    {
        vi scale = v_loadi(w + (size_t)r * a->panel_stride);
        V_UNROLL for (int t = 0; t < T; t++)
        {
            isum[r][t] =
                low ? v_mla16(isum[r][t], s[r][t], scale) : v_add32(isum[r][t], v_mul32(s[r][t], scale));
        }
    }
}
V_INLINE void tile_256(const tile_args *a, const int R, const int T, const int sub, const bool min,
                       const bool low, const int run)
{
    const int n_sub = 256 / sub, n_groups = sub / 4, n_pairs = min ? n_sub / 2 : 0;
    vf acc[2][V_TILE_TOKENS];
    tile_begin(a, acc, R, T);
    const char *panel = a->panel, *q = a->q;
    for (size_t b = 0; b < a->n_blocks; b++) {
        const char *w = panel + (2 + n_pairs) * V_BYTES;
        vi isum[2][V_TILE_TOKENS];
        V_UNROLL for (int t = 0; t < T; t++)
        {
            V_UNROLL for (int r = 0; r < R; r++) isum[r][t] = v_zeroi();
        }
        for (int j = 0; j < n_sub; j++) {
            vi s[2][V_TILE_TOKENS];
            V_UNROLL for (int t = 0; t < T; t++)
            {
                vi start = min ? v_zeroi() : v_set32(a->tokens->start[t][b * (size_t)n_sub + (size_t)j]);
                V_UNROLL for (int r = 0; r < R; r++) s[r][t] = start;
            }
            tile_dots(a, w + V_BYTES, q, s, low ? 4 : n_groups, R, T, run);
            tile_scaled(a, w, s, isum, R, T, low);
            if (low && n_groups > 4) {
                V_UNROLL for (int t = 0; t < T; t++)
                {
                    V_UNROLL for (int r = 0; r < R; r++) s[r][t] = v_zeroi();
                }
                tile_dots(a, w + 5 * V_BYTES, q + 16, s, 4, R, T, run);
                tile_scaled(a, w, s, isum, R, T, low);
            }
            w += (1 + n_groups) * V_BYTES;
            q += sub;
        }
        V_UNROLL for (int t = 0; t < T; t++)
        {
            vf dx = tile_scale(a, t, b);
            V_UNROLL for (int r = 0; r < R; r++)
            {
                const char *head = panel + (size_t)r * a->panel_stride;
                acc[r][t] = v_fma(v_mul(v_castf(v_loadi(head)), dx), v_float(isum[r][t]), acc[r][t]);
                if (min) {
                    vi msum =
                        tile_minima(head + 2 * V_BYTES, a->tokens->pairs[t] + b * (size_t)n_sub, n_pairs);
                    vf dm = v_mul(v_castf(v_loadi(head + V_BYTES)), dx);
                    acc[r][t] = v_fnma(dm, v_float(msum), acc[r][t]);
                }
            }
        }
        panel += (2 + n_pairs + n_sub * (1 + n_groups)) * V_BYTES;
    }
    tile_end(a, acc, R, T);
}

/* One function per shape. Sets are indexed by (R - 1) x 4 + shape of T: 1, 2, 4, 6 tokens; as many
 * of these as V_TILE_TOKENS allows. */
#define TILE(name, R, T, call)                                                                               \
    static void tile_##name##_##R##x##T(const tile_args *a)                                                  \
    {                                                                                                        \
        const int n_rows = R, n_tokens = T;                                                                  \
        call;                                                                                                \
    }
#if V_TILE_TOKENS >= 4
#define TILE_SET(name, call)                                                                                 \
    TILE(name, 1, 1, call)                                                                                   \
    TILE(name, 1, 2, call)                                                                                   \
    TILE(name, 1, 4, call)                                                                                   \
    TILE(name, 2, 1, call)                                                                                   \
    TILE(name, 2, 2, call)                                                                                   \
    TILE(name, 2, 4, call)
#define TILE_NAMES(name)                                                                                     \
    tile_##name##_1x1, tile_##name##_1x2, tile_##name##_1x4, NULL, tile_##name##_2x1, tile_##name##_2x2,     \
        tile_##name##_2x4, NULL
#if V_TILE_TOKENS >= 6
#define TILE_SET_6(name, call)                                                                               \
    TILE_SET(name, call)                                                                                     \
    TILE(name, 1, 6, call)                                                                                   \
    TILE(name, 2, 6, call)
#define TILE_NAMES_6(name)                                                                                   \
    tile_##name##_1x1, tile_##name##_1x2, tile_##name##_1x4, tile_##name##_1x6, tile_##name##_2x1,           \
        tile_##name##_2x2, tile_##name##_2x4, tile_##name##_2x6
#endif
#else
#define TILE_SET(name, call)                                                                                 \
    TILE(name, 1, 1, call)                                                                                   \
    TILE(name, 1, 2, call)                                                                                   \
    TILE(name, 2, 1, call)                                                                                   \
    TILE(name, 2, 2, call)
#define TILE_NAMES(name)                                                                                     \
    tile_##name##_1x1, tile_##name##_1x2, NULL, NULL, tile_##name##_2x1, tile_##name##_2x2, NULL, NULL
#endif
#if V_TILE_TOKENS < 6
#define TILE_SET_6   TILE_SET
#define TILE_NAMES_6 TILE_NAMES
#endif
#define TILE_SHAPES 4

TILE_SET_6(plain, tile_32(a, n_rows, n_tokens, false, V_RUN_31))
TILE_SET_6(wide, tile_32(a, n_rows, n_tokens, false, 0))
TILE_SET_6(min, tile_32(a, n_rows, n_tokens, true, V_RUN_31))
TILE_SET(k16, tile_256(a, n_rows, n_tokens, 16, false, false, V_RUN_63))
TILE_SET(k16_min, tile_256(a, n_rows, n_tokens, 16, true, true, V_RUN_31))
TILE_SET(k32_low, tile_256(a, n_rows, n_tokens, 32, true, true, V_RUN_31))
TILE_SET(k32_min, tile_256(a, n_rows, n_tokens, 32, true, false, V_RUN_31))
TILE_SET(k32_wide, tile_256(a, n_rows, n_tokens, 32, false, false, 0))

static tile_fn *const tile_plain[] = {TILE_NAMES_6(plain)};
static tile_fn *const tile_wide[] = {TILE_NAMES_6(wide)};
static tile_fn *const tile_min[] = {TILE_NAMES_6(min)};
static tile_fn *const tile_k16[] = {TILE_NAMES(k16)};
static tile_fn *const tile_k16_min[] = {TILE_NAMES(k16_min)};
static tile_fn *const tile_k32_low[] = {TILE_NAMES(k32_low)};
static tile_fn *const tile_k32_min[] = {TILE_NAMES(k32_min)};
static tile_fn *const tile_k32_wide[] = {TILE_NAMES(k32_wide)};

#endif
