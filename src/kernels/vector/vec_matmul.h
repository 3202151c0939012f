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
/* As many tokens meet packed weights without panels; as many outputs wait for a part of a group. */
#define PACKED_DIRECT_TOKENS 6
#define INNER_TOKENS         16
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

/* What the type needs of the sums of one activation row, for k0 ... k0 + n: one of the three. */
static void prepare_sums(const quant_type *type, const char *row, size_t k, size_t k0, size_t n,
                         int32_t *start, float *shift, int16_t *pairs)
{
    if (type->block == 32) {
        const int32_t *sum = kern_act_sum(row, k, 32) + k0 / 32;
        if (type->min)
            multiply_shifts(shift, kern_act_d(row, k) + k0 / 32, sum, n / 32);
        else
            multiply_sums(start, sum, n / 32, -type->bias);
        return;
    }
    const int32_t *sum = kern_act_sum(row, k, 256) + k0 / 16;
    if (type->min) {
        pair_sums(pairs, sum, n / 256, type->sub);
    } else if (type->sub == 16) {
        multiply_sums(start, sum, n / 16, -type->bias);
    } else {
        for (size_t i = 0; i < n / 32; i++) start[i] = -type->bias * (sum[2 * i] + sum[2 * i + 1]);
    }
}
static void prepare_tokens(const quant_type *type, const char *act, size_t act_stride, size_t k, size_t k0,
                           size_t n, size_t n_tokens, tile_tokens *tokens)
{
    for (size_t t = 0; t < n_tokens; t++)
        prepare_sums(type, act + t * act_stride, k, k0, n, tokens->start[t], tokens->shift[t],
                     tokens->pairs[t]);
}

/* V_LANES rows from `row` on, in either layout; in the file's, rows beyond the last repeat it: their lanes
 * are computed and not stored. */
static void set_rows(const kern_matmul *m, size_t row, size_t n_rows, bool packed, row_set *s)
{
    int32_t at[V_LANES];
    if (packed) {
        s->lane = row % KERN_PACK_ROWS;
        s->group = (const uint8_t *)m->w + (row - s->lane) * m->row_bytes;
        return;
    }
    for (size_t r = 0; r < V_LANES; r++) {
        size_t i = r < n_rows ? r : n_rows - 1; /* n_rows may exceed V_LANES */
        s->row[r] = (const uint8_t *)m->w + (row + i) * m->row_bytes;
        at[r] = (int32_t)(i * m->row_bytes);
    }
    s->at = v_loadi(at);
    s->ahead = (const char *)s->row[0];
    s->near = V_LANES * m->row_bytes <= NEAR_BYTES;
}

/* Few tokens: each weight is used so seldom that it need not go through a panel. What the tokens need besides
 * is made once, in scratch. */
static void matmul_direct(const kern_matmul *m, const quant_type *type, size_t row_begin, size_t row_end,
                          bool packed, void *scratch)
{
    size_t n_sums = m->k / type->sub, step = packed ? DIRECT_GROUPS * KERN_PACK_ROWS : V_LANES;
    row_set s;
    direct_args a = {.n_blocks = m->k / type->block, .rows = &s, .out_stride = m->out_stride};
    for (size_t t = 0; t < m->n_tokens; t++)
        prepare_sums(type, (const char *)m->act + t * m->act_stride, m->k, 0, m->k,
                     (int32_t *)scratch + t * n_sums, (float *)scratch + t * n_sums,
                     (int16_t *)scratch + t * n_sums);
    for (size_t row = row_begin; row < row_end; row += step) {
        a.n_rows = row_end - row;
        a.bias = m->bias ? m->bias + row : NULL;
        a.n_groups = a.n_rows < step ? (a.n_rows + KERN_PACK_ROWS - 1) / KERN_PACK_ROWS : DIRECT_GROUPS;
        for (size_t g = 0; g < a.n_groups; g++)
            a.group[g] = (const uint8_t *)m->w + (row + g * KERN_PACK_ROWS) * m->row_bytes;
        for (size_t t = 0, n; t < m->n_tokens; t += n) {
            n = m->n_tokens - t < DIRECT_TOKENS ? m->n_tokens - t : DIRECT_TOKENS;
            const char *act = (const char *)m->act + t * m->act_stride;
            a.out = m->out + t * m->out_stride + row;
            a.tokens = (direct_tokens){.q = act,
                                       .d = (const char *)kern_act_d(act, m->k),
                                       .act_stride = m->act_stride,
                                       .sums_stride = n_sums,
                                       .start = (const int32_t *)scratch + t * n_sums,
                                       .shift = (const float *)scratch + t * n_sums,
                                       .pairs = (const int16_t *)scratch + t * n_sums};
            if (packed) {
                type->direct[n - 1](&a);
                continue;
            }
            set_rows(m, row, a.n_rows, false, &s);
            if (a.n_rows > V_LANES) s.ahead += V_LANES * m->row_bytes;
            type->one(&a);
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
                         bool packed, void *scratch)
{
    bool few = m->n_tokens <= FEW_TOKENS;
    size_t band = (few ? V_FEW_PANELS : V_BAND_PANELS) * V_LANES, stretch = few ? FEW_K : TILE_K;
    tile_tokens tokens;
    char *panels = scratch;
    if (m->n_tokens <= (packed ? PACKED_DIRECT_TOKENS : 1)) {
        matmul_direct(m, type, row_begin, row_end, packed, scratch);
        return;
    }
    for (size_t row = row_begin; row < row_end; row += band) {
        size_t n_rows = row_end - row < band ? row_end - row : band;
        for (size_t k0 = 0; k0 < m->k; k0 += stretch) {
            size_t n = m->k - k0 < stretch ? m->k - k0 : stretch;
            size_t panel_stride = n / type->block * type->panel_bytes;
            for (size_t r = 0; r < n_rows; r += V_LANES) {
                row_set s;
                set_rows(m, row + r, n_rows - r, packed, &s);
                type->pack[packed](&s, k0 / type->block, n / type->block,
                                   panels + r / V_LANES * panel_stride);
            }
            band_tokens(m, type, row, n_rows, k0, n, panels, panel_stride, &tokens);
        }
    }
}

/* Rows of one packed group that do not start with its first: the whole group, of which these are kept. */
static void matmul_inner_rows(const kern_matmul *m, const quant_type *type, size_t row_begin, size_t row_end,
                              void *scratch)
{
    float out[INNER_TOKENS * KERN_PACK_ROWS];
    size_t first = row_begin / KERN_PACK_ROWS * KERN_PACK_ROWS;
    kern_matmul part = *m;
    part.w = (const uint8_t *)m->w + first * m->row_bytes;
    part.bias = m->bias ? m->bias + first : NULL;
    part.out = out;
    part.out_stride = KERN_PACK_ROWS;
    for (size_t t = 0; t < m->n_tokens; t += part.n_tokens) {
        part.act = (const char *)m->act + t * m->act_stride;
        part.n_tokens = m->n_tokens - t < INNER_TOKENS ? m->n_tokens - t : INNER_TOKENS;
        matmul_quant(&part, type, 0, row_end - first, true, scratch);
        for (size_t i = 0; i < part.n_tokens; i++)
            memcpy(m->out + (t + i) * m->out_stride + row_begin, out + i * KERN_PACK_ROWS + row_begin - first,
                   (row_end - row_begin) * sizeof(float));
    }
}

/* Packed rows first: what a first group is cut into, then whole ones. */
static void matmul_layouts(const kern_matmul *m, const quant_type *type, size_t row_begin, size_t row_end,
                           void *scratch)
{
    size_t packed_end = row_end < m->packed_rows ? row_end : m->packed_rows;
    if (row_begin < packed_end && row_begin % KERN_PACK_ROWS != 0) {
        size_t end = (row_begin / KERN_PACK_ROWS + 1) * KERN_PACK_ROWS;
        if (end > packed_end) end = packed_end;
        matmul_inner_rows(m, type, row_begin, end, scratch);
        row_begin = end;
    }
    if (row_begin < packed_end) {
        matmul_quant(m, type, row_begin, packed_end, true, scratch);
        row_begin = packed_end;
    }
    if (row_begin < row_end) matmul_quant(m, type, row_begin, row_end, false, scratch);
}

void V_NAME(kern_matmul)(const kern_matmul *m, size_t row_begin, size_t row_end, void *scratch)
{
    const quant_type *type = quant_type_of(m->dtype);
    if (m->k == 0 || m->row_bytes > INT32_MAX / V_LANES)
        kern_ref_matmul(m, row_begin, row_end, scratch);
    else if (type)
        matmul_layouts(m, type, row_begin, row_end, scratch);
    else if (kern_act_for(m->dtype) == KERN_ACT_F32 && m->n_tokens < MANY_FLOAT_TOKENS)
        matmul_floats(m, row_begin, row_end);
    else if (kern_act_for(m->dtype) == KERN_ACT_F32)
        matmul_float_blocks(m, row_begin, row_end, scratch);
}

#endif
