/* Matrix products, quantizing and dequantizing (docs/numerics.md). One item is one row of a weight with one
 * or GPU_TOKENS tokens: x is the row, y the group of tokens. */
#ifndef GPU_MATMUL_H
#define GPU_MATMUL_H

#include "gpu_blocks.h"

#define GPU_TOKENS 8

/* What one product is; a call's arguments in one place. */
typedef struct gpu_product {
    GPU_GLOBAL const gpu_u8 *w, *act;
    GPU_GLOBAL float *out;
    GPU_GLOBAL const float *bias;
    gpu_u64 w_stride, act_stride, out_stride; /* bytes, bytes, floats */
    gpu_u32 k, n_rows, n_tokens, has_bias;
} gpu_product;

/* Tokens behind the last one repeat it and are not stored. */
GPU_FN gpu_u64 gpu_token_at(const gpu_product *p, gpu_u32 token)
{
    return (token < p->n_tokens ? token : p->n_tokens - 1) * p->act_stride;
}
GPU_FN void gpu_product_store(const gpu_product *p, gpu_u32 row, gpu_u32 token, float value)
{
    if (token < p->n_tokens) p->out[token * p->out_stride + row] = p->has_bias ? value + p->bias[row] : value;
}

GPU_FN void gpu_matmul_blocks(const int type, const int tokens, const gpu_product *p)
{
    const gpu_u32 elements = gpu_block_elements(type), parts = elements / 16;
    const int large = elements == 256, has_min = gpu_block_has_min(type);
    gpu_u32 row = GPU_X, token = GPU_Y * tokens, k = p->k;
    if (row >= p->n_rows) return;
    GPU_GLOBAL const gpu_u8 *b = p->w + row * p->w_stride;
    float acc[GPU_TOKENS];
    gpu_u64 at[GPU_TOKENS];
    for (int t = 0; t < tokens; t++) {
        acc[t] = 0.0f;
        at[t] = gpu_token_at(p, token + t);
    }
    for (gpu_u32 e = 0; e < k; e += elements, b += gpu_block_bytes(type)) {
        int isum[GPU_TOKENS], msum[GPU_TOKENS];
        for (int t = 0; t < tokens; t++) isum[t] = msum[t] = 0;
        for (gpu_u32 part = 0; part < parts; part++) {
            int w[16];
            int scale = gpu_block_scale(type, b, part),
                min = large && has_min ? gpu_block_min(type, b, part) : 0;
            gpu_block_w(type, b, part, w);
            for (int t = 0; t < tokens; t++) {
                GPU_GLOBAL const gpu_i8 *q = (GPU_GLOBAL const gpu_i8 *)(p->act + at[t]) + e + 16 * part;
                int dot = 0;
                GPU_UNROLL for (int i = 0; i < 16; i++) dot += w[i] * q[i];
                isum[t] += large ? scale * dot : dot;
                if (large && has_min)
                    msum[t] += min * ((GPU_GLOBAL const int *)(p->act + at[t] + k + k / 64))[e / 16 + part];
            }
        }
        float d = gpu_block_d(type, b), m = has_min ? gpu_block_m(type, b) : 0.0f;
        for (int t = 0; t < tokens; t++) {
            float dx = ((GPU_GLOBAL const float *)(p->act + at[t] + k))[e / elements];
            acc[t] = GPU_FMA(d * dx, (float)isum[t], acc[t]);
            if (has_min && large) acc[t] = GPU_FMA(-(m * dx), (float)msum[t], acc[t]);
            if (has_min && !large) {
                int sum = ((GPU_GLOBAL const int *)(p->act + at[t] + k + k / 8))[e / 32];
                acc[t] = GPU_FMA(m, dx * (float)sum, acc[t]);
            }
        }
    }
    for (int t = 0; t < tokens; t++) gpu_product_store(p, row, token + t, acc[t]);
}

GPU_FN void gpu_matmul_floats(const int type, const int tokens, const gpu_product *p)
{
    const gpu_u32 bytes = gpu_float_bytes(type);
    gpu_u32 row = GPU_X, token = GPU_Y * tokens, k = p->k;
    if (row >= p->n_rows) return;
    GPU_GLOBAL const gpu_u8 *w = p->w + row * p->w_stride;
    for (int t = 0; t < tokens; t++) {
        GPU_GLOBAL const float *x = (GPU_GLOBAL const float *)(p->act + gpu_token_at(p, token + t));
        float lane[16];
        gpu_u32 i = 0;
        for (int l = 0; l < 16; l++) lane[l] = 0.0f;
        for (; i + 16 <= k; i += 16)
            GPU_UNROLL for (gpu_u32 l = 0; l < 16; l++) lane[l] =
                GPU_FMA(gpu_float_w(type, w + (i + l) * bytes), x[i + l], lane[l]);
        if (i < k)
            for (gpu_u32 l = 0; l < 16; l++) {
                int there = i + l < k; /* the row goes on with zeros */
                float a = there ? gpu_float_w(type, w + (i + l) * bytes) : 0.0f, b = there ? x[i + l] : 0.0f;
                lane[l] = GPU_FMA(a, b, lane[l]);
            }
        gpu_product_store(p, row, token + t, gpu_lane_tree(lane));
    }
}

#define GPU_MATMUL_PARAMETERS                                                                                \
    GPU_PTR(w), gpu_u64 w_stride, gpu_u32 k, GPU_PTR(act), gpu_u64 act_stride, gpu_u32 n_tokens,             \
        GPU_PTR(out), gpu_u64 out_stride, GPU_PTR(bias), gpu_u32 has_bias, gpu_u32 n_rows
#define GPU_MATMUL_PRODUCT                                                                                   \
    gpu_product p;                                                                                           \
    p.w = GPU_AT(const gpu_u8, w), p.act = GPU_AT(const gpu_u8, act), p.out = GPU_AT(float, out);            \
    p.bias = GPU_AT(const float, bias), p.has_bias = has_bias;                                               \
    p.w_stride = w_stride, p.act_stride = act_stride, p.out_stride = out_stride;                             \
    p.k = k, p.n_rows = n_rows, p.n_tokens = n_tokens;
#define GPU_MATMUL_KERNELS(TYPE, form)                                                                       \
    GPU_KERNEL weir_matmul_##TYPE(GPU_MATMUL_PARAMETERS)                                                     \
    {                                                                                                        \
        GPU_MATMUL_PRODUCT                                                                                   \
        gpu_matmul_##form(GPU_##TYPE, 1, &p);                                                                \
    }                                                                                                        \
    GPU_KERNEL weir_matmuls_##TYPE(GPU_MATMUL_PARAMETERS)                                                    \
    {                                                                                                        \
        GPU_MATMUL_PRODUCT                                                                                   \
        gpu_matmul_##form(GPU_##TYPE, GPU_TOKENS, &p);                                                       \
    }
#define GPU_MATMUL_OF_BLOCKS(TYPE) GPU_MATMUL_KERNELS(TYPE, blocks)
#define GPU_MATMUL_OF_FLOATS(TYPE) GPU_MATMUL_KERNELS(TYPE, floats)
GPU_EACH_BLOCK(GPU_MATMUL_OF_BLOCKS)
GPU_EACH_FLOAT(GPU_MATMUL_OF_FLOATS)

/* ---- rows of a weight to floats: x is the block (the element of float types), y the row ---- */
GPU_FN void gpu_dequant_block(const int type, GPU_GLOBAL const gpu_u8 *b, float factor, GPU_GLOBAL float *y)
{
    const gpu_u32 elements = gpu_block_elements(type);
    const int has_min = gpu_block_has_min(type);
    float d = gpu_block_d(type, b), m = has_min ? gpu_block_m(type, b) : 0.0f;
    for (gpu_u32 part = 0; part < elements / 16; part++) {
        int w[16];
        float scale = d, min = m;
        gpu_block_w(type, b, part, w);
        if (elements == 256) scale = d * (float)gpu_block_scale(type, b, part);
        if (elements == 256 && has_min) min = m * (float)gpu_block_min(type, b, part);
        for (int i = 0; i < 16; i++) {
            float v = scale * (float)w[i];
            if (has_min) v = elements == 256 ? v - min : v + min;
            y[16 * part + i] = factor != 1.0f ? v * factor : v;
        }
    }
}

#define GPU_DEQUANT_PARAMETERS                                                                               \
    GPU_PTR(src), gpu_u64 src_stride, GPU_PTR(out), gpu_u64 out_stride, gpu_u32 cols, float factor
#define GPU_DEQUANT_OF_BLOCKS(TYPE)                                                                          \
    GPU_KERNEL weir_dequant_##TYPE(GPU_DEQUANT_PARAMETERS)                                                   \
    {                                                                                                        \
        gpu_u32 x = GPU_X, elements = gpu_block_elements(GPU_##TYPE);                                        \
        if (x >= cols / elements) return;                                                                    \
        gpu_dequant_block(GPU_##TYPE,                                                                        \
                          GPU_AT(const gpu_u8, src) + GPU_Y * src_stride + x * gpu_block_bytes(GPU_##TYPE),  \
                          factor, GPU_AT(float, out) + GPU_Y * out_stride + x * elements);                   \
    }
#define GPU_DEQUANT_OF_FLOATS(TYPE)                                                                          \
    GPU_KERNEL weir_dequant_##TYPE(GPU_DEQUANT_PARAMETERS)                                                   \
    {                                                                                                        \
        gpu_u32 x = GPU_X;                                                                                   \
        if (x >= cols) return;                                                                               \
        float v = gpu_float_w(GPU_##TYPE, GPU_AT(const gpu_u8, src) + GPU_Y * src_stride +                   \
                                              x * gpu_float_bytes(GPU_##TYPE));                              \
        GPU_AT(float, out)[GPU_Y * out_stride + x] = factor != 1.0f ? v * factor : v;                        \
    }
GPU_EACH_BLOCK(GPU_DEQUANT_OF_BLOCKS)
GPU_EACH_FLOAT(GPU_DEQUANT_OF_FLOATS)

/* ---- activations to Q32 (per_d = 32) or Q256: x is the block, y the row ---- */
GPU_KERNEL weir_quantize(GPU_PTR(src), gpu_u64 src_stride, GPU_PTR(out), gpu_u64 out_stride, gpu_u32 k,
                         gpu_u32 per_d)
{
    gpu_u32 block = GPU_X, top = 0, per_sum = per_d == 32 ? 32 : 16;
    if (block >= k / per_d) return;
    GPU_GLOBAL const float *x = GPU_AT(const float, src) + GPU_Y * src_stride + block * per_d;
    GPU_GLOBAL gpu_u8 *row = GPU_AT(gpu_u8, out) + GPU_Y * out_stride;
    GPU_GLOBAL gpu_i8 *q = (GPU_GLOBAL gpu_i8 *)row + block * per_d;
    GPU_GLOBAL float *d = (GPU_GLOBAL float *)(row + k) + block;
    GPU_GLOBAL int *sums = (GPU_GLOBAL int *)(row + k + k / per_d * 4) + block * (per_d / per_sum);
    for (gpu_u32 i = 0; i < per_d; i++) {
        gpu_u32 bits = GPU_BITS(x[i]) & 0x7fffffffu;
        if (bits > top) top = bits;
    }
    float amax = GPU_FLOAT(top), inv = gpu_div(127.0f, amax), scale = gpu_div(amax, 127.0f);
    int zero = top >= 0x7f800000u || GPU_BITS(inv) == 0x7f800000u;
    if (zero) scale = top >= 0x7f800000u ? GPU_NAN : 0.0f;
    *d = scale;
    for (gpu_u32 s = 0; s < per_d / per_sum; s++) {
        int sum = 0;
        for (gpu_u32 i = s * per_sum; i < (s + 1) * per_sum; i++) {
            int v = zero ? 0 : (int)gpu_round_even(x[i] * inv);
            q[i] = (gpu_i8)v;
            sum += v;
        }
        sums[s] = sum;
    }
}

#endif
