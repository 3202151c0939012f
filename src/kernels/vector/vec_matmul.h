/* Quantized matrix products: packs a band of rows over a stretch of k, then runs tiles over all tokens. The
 * sums of unfinished outputs wait in the output itself, so scratch does not grow with k or the number of
 * tokens, and stretches change no bit: each output's chain goes on where it stopped. */
#ifndef WEIR_VEC_MATMUL_H
#define WEIR_VEC_MATMUL_H

#include "vec_internal.h"
#include "vec_types.h"
#include "vec_dot_blocks.h"

/* Few tokens: narrow bands and short stretches that stay in the first cache on their way from memory. Many:
 * each packed weight is used for every token, so pack as much as the second cache likes. */
#define FEW_TOKENS        6
#define FEW_K             512
#define NEAR_BYTES        (20u << 10)
#define MANY_FLOAT_TOKENS 8
static_assert((size_t)V_BAND_PANELS * (TILE_K / 256) * PANEL_256_MIN <= KERN_SCRATCH_MIN,
              "a band fits scratch");
static_assert((size_t)V_BAND_PANELS * (TILE_K / 32) * PANEL_32_MIN <= KERN_SCRATCH_MIN,
              "a band fits scratch");

/* out[i] = factor x in[i] */
static void multiply_sums(int32_t *out, const int32_t *in, size_t n, int32_t factor)
{
    size_t i = 0;
    for (; i + V_LANES <= n; i += V_LANES) v_storei(out + i, v_mul32(v_loadi(in + i), v_set32(factor)));
    for (; i < n; i++) out[i] = factor * in[i];
}
static void multiply_shifts(float *out, const float *d, const int32_t *sum, size_t n)
{
    size_t i = 0;
    for (; i + V_LANES <= n; i += V_LANES) v_store(out + i, v_mul(v_load(d + i), v_float(v_loadi(sum + i))));
    for (; i < n; i++) out[i] = d[i] * (float)sum[i];
}
/* Sums of 16 elements, 16 per block, to int16 in the order of PAIRS. 32 x 127 fits easily. */
static void pair_sums(int16_t *out, const int32_t *sum, size_t n_blocks, int sub)
{
    for (size_t i = 0; i < 4 * n_blocks; i += sub / 16) {
        v_store_pairs(out, sum + 4 * i, sub == 32);
        out += 4;
    }
}

/* The parts of tile_tokens that the type needs, for k0 ... k0 + n of n_tokens rows. */
static void prepare_tokens(const quant_type *type, const char *act, size_t act_stride, size_t k, size_t k0,
                           size_t n, size_t n_tokens, tile_tokens *tokens)
{
    for (size_t t = 0; t < n_tokens; t++) {
        const char *row = act + t * act_stride;
        if (type->block == 32) {
            const int32_t *sum = kern_act_sum(row, k, 32) + k0 / 32;
            if (type->min)
                multiply_shifts(tokens->shift[t], kern_act_d(row, k) + k0 / 32, sum, n / 32);
            else
                multiply_sums(tokens->start[t], sum, n / 32, -type->bias);
            continue;
        }
        const int32_t *sum = kern_act_sum(row, k, 256) + k0 / 16;
        if (type->min) {
            pair_sums(tokens->pairs[t], sum, n / 256, type->sub);
        } else if (type->sub == 16) {
            multiply_sums(tokens->start[t], sum, n / 16, -type->bias);
        } else {
            for (size_t i = 0; i < n / 32; i++)
                tokens->start[t][i] = -type->bias * (sum[2 * i] + sum[2 * i + 1]);
        }
    }
}

/* Rows beyond the last repeat it: their lanes are computed and not stored. */
static void set_rows(const kern_matmul *m, size_t row, size_t n_rows, row_set *s)
{
    int32_t at[V_LANES];
    for (size_t r = 0; r < V_LANES; r++) {
        size_t i = r < n_rows ? r : n_rows - 1; /* n_rows may exceed V_LANES */
        s->row[r] = (const uint8_t *)m->w + (row + i) * m->row_bytes;
        at[r] = (int32_t)(i * m->row_bytes);
    }
    s->at = v_loadi(at);
    s->ahead = (const char *)s->row[0];
    s->near = V_LANES * m->row_bytes <= NEAR_BYTES;
}

/* One token: each weight is used once, so it need not be packed. */
static void matmul_one(const kern_matmul *m, const quant_type *type, size_t row_begin, size_t row_end)
{
    tile_tokens tokens;
    tile_args a = {.act_stride = m->act_stride, .tokens = &tokens, .out_stride = m->out_stride};
    for (size_t row = row_begin; row < row_end; row += V_LANES) {
        row_set s;
        a.n_rows = row_end - row;
        a.out = m->out + row;
        set_rows(m, row, a.n_rows, &s);
        if (a.n_rows > V_LANES) s.ahead += V_LANES * m->row_bytes;
        for (size_t k0 = 0; k0 < m->k; k0 += TILE_K) {
            size_t n = m->k - k0 < TILE_K ? m->k - k0 : TILE_K;
            if (row == row_begin || m->k > TILE_K) prepare_tokens(type, m->act, 0, m->k, k0, n, 1, &tokens);
            a.q = (const char *)m->act + k0;
            a.d = (const char *)(kern_act_d(m->act, m->k) + k0 / type->block);
            a.n_blocks = n / type->block;
            a.first = k0 == 0;
            a.bias = m->bias && k0 + n == m->k ? m->bias + row : NULL;
            type->direct(&s, k0 / type->block, &a);
        }
    }
}

/* All tokens with the packed band of rows [row, row + n_rows) over k0 ... k0 + n. */
static void band_tokens(const kern_matmul *m, const quant_type *type, size_t row, size_t n_rows, size_t k0,
                        size_t n, const char *panels, size_t panel_stride, tile_tokens *tokens)
{
    static const size_t shapes[TILE_SHAPES] = {1, 2, 4, 6};
    tile_args a = {.panel_stride = panel_stride,
                   .act_stride = m->act_stride,
                   .tokens = tokens,
                   .n_blocks = n / type->block,
                   .out_stride = m->out_stride,
                   .first = k0 == 0};
    for (size_t t = 0; t < m->n_tokens;) {
        int shape = TILE_SHAPES - 1;
        while (shapes[shape] > m->n_tokens - t || !type->tiles[shape]) shape--;
        const char *act = (const char *)m->act + t * m->act_stride;
        prepare_tokens(type, act, m->act_stride, m->k, k0, n, shapes[shape], tokens);
        a.q = act + k0;
        a.d = (const char *)(kern_act_d(act, m->k) + k0 / type->block);
        for (size_t r = 0; r < n_rows;) {
            bool two = n_rows - r > V_LANES;
            a.panel = panels + r / V_LANES * panel_stride;
            a.out = m->out + t * m->out_stride + row + r;
            a.bias = m->bias && k0 + n == m->k ? m->bias + row + r : NULL;
            a.n_rows = n_rows - r;
            type->tiles[shape + (two ? TILE_SHAPES : 0)](&a);
            r += two ? 2 * V_LANES : V_LANES;
        }
        t += shapes[shape];
    }
}

static void matmul_quant(const kern_matmul *m, const quant_type *type, size_t row_begin, size_t row_end,
                         void *scratch)
{
    bool few = m->n_tokens <= FEW_TOKENS;
    size_t band = (few ? V_FEW_PANELS : V_BAND_PANELS) * V_LANES, stretch = few ? FEW_K : TILE_K;
    tile_tokens tokens;
    char *panels = scratch;
    for (size_t row = row_begin; row < row_end; row += band) {
        size_t n_rows = row_end - row < band ? row_end - row : band;
        for (size_t k0 = 0; k0 < m->k; k0 += stretch) {
            size_t n = m->k - k0 < stretch ? m->k - k0 : stretch;
            size_t panel_stride = n / type->block * type->panel_bytes;
            for (size_t r = 0; r < n_rows; r += V_LANES) {
                row_set s;
                set_rows(m, row + r, n_rows - r, &s);
                type->pack(&s, k0 / type->block, n / type->block, panels + r / V_LANES * panel_stride);
            }
            band_tokens(m, type, row, n_rows, k0, n, panels, panel_stride, &tokens);
        }
    }
}

void V_NAME(kern_matmul)(const kern_matmul *m, size_t row_begin, size_t row_end, void *scratch)
{
    const quant_type *type = quant_type_of(m->dtype);
    if (m->k == 0 || m->row_bytes > INT32_MAX / V_LANES || m->packed_rows > 0)
        kern_ref_matmul(m, row_begin, row_end, scratch);
    else if (type && m->n_tokens == 1)
        matmul_one(m, type, row_begin, row_end);
    else if (type)
        matmul_quant(m, type, row_begin, row_end, scratch);
    else if (kern_act_for(m->dtype) == KERN_ACT_F32 && m->n_tokens < MANY_FLOAT_TOKENS)
        matmul_floats(m, row_begin, row_end);
    else if (kern_act_for(m->dtype) == KERN_ACT_F32)
        matmul_float_blocks(m, row_begin, row_end, scratch);
}

#endif
