/* The key-value cache and attention on a device (docs/numerics.md); the cache's layout is that of kern_kv.
 *
 * Attention runs in four steps over `pairs` (row x heads + head, from pair_first on; y counts them), with
 * scratch of e_stride floats for each pair: scores, lanes of maxima, weights and lanes of their sums, values.
 * Row 0 is at position `last`. */
#ifndef GPU_ATTENTION_H
#define GPU_ATTENTION_H

#include "gpu_math.h"

GPU_FN float gpu_cache_load(GPU_GLOBAL const gpu_u8 *cache, gpu_u32 is_half, gpu_u64 i)
{
    if (is_half) return gpu_half(((GPU_GLOBAL const gpu_u16 *)cache)[i]);
    return ((GPU_GLOBAL const float *)cache)[i];
}
GPU_FN void gpu_cache_store(GPU_GLOBAL gpu_u8 *cache, gpu_u32 is_half, gpu_u64 i, float x)
{
    if (is_half)
        ((GPU_GLOBAL gpu_u16 *)cache)[i] = (gpu_u16)gpu_to_half(x);
    else
        ((GPU_GLOBAL float *)cache)[i] = x;
}

/* x is the element of a row of K and V, y the row; rows follow each other from `position` on. */
GPU_KERNEL weir_kv_store(GPU_PTR(a), gpu_u64 a_stride, GPU_PTR(b), gpu_u64 b_stride, GPU_PTR(k_cache),
                         GPU_PTR(v_cache), gpu_u32 is_half, gpu_u32 capacity, gpu_u32 n_kv_heads,
                         gpu_u32 head_dim, gpu_u32 position)
{
    gpu_u32 i = GPU_X, n = n_kv_heads * head_dim, slot = (position + GPU_Y) % capacity;
    if (i >= n) return;
    gpu_cache_store(GPU_AT(gpu_u8, k_cache), is_half, ((gpu_u64)(slot / 16) * n + i) * 16 + slot % 16,
                    GPU_AT(const float, a)[GPU_Y * a_stride + i]);
    gpu_cache_store(GPU_AT(gpu_u8, v_cache), is_half, (gpu_u64)slot * n + i,
                    GPU_AT(const float, b)[GPU_Y * b_stride + i]);
}

GPU_FN gpu_u32 gpu_first_position(gpu_u32 last, gpu_u32 window)
{
    return window != 0 && last >= window ? last - window + 1 : 0;
}

/* x is the position, counted from the first that the row attends to. */
GPU_KERNEL weir_attention_scores(GPU_PTR(q), gpu_u64 q_stride, GPU_PTR(k_cache), gpu_u32 is_half,
                                 gpu_u32 capacity, gpu_u32 n_heads, gpu_u32 n_kv_heads, gpu_u32 head_dim,
                                 gpu_u32 last, gpu_u32 window, float scale, float softcap, gpu_u32 pair_first,
                                 GPU_PTR(e), gpu_u32 e_stride)
{
    gpu_u32 pair = pair_first + GPU_Y, row = pair / n_heads, head = pair % n_heads;
    gpu_u32 first = gpu_first_position(last + row, window), position = first + GPU_X;
    if (GPU_X > last + row - first) return;
    gpu_u32 slot = position % capacity, kv_head = head / (n_heads / n_kv_heads);
    gpu_u64 at = ((gpu_u64)(slot / 16) * n_kv_heads + kv_head) * head_dim * 16 + slot % 16;
    GPU_GLOBAL const float *query = GPU_AT(const float, q) + row * q_stride + head * head_dim;
    float s = 0.0f;
    for (gpu_u32 d = 0; d < head_dim; d++)
        s = GPU_FMA(query[d] * scale, gpu_cache_load(GPU_AT(const gpu_u8, k_cache), is_half, at + d * 16), s);
    GPU_AT(float, e)
    [(gpu_u64)GPU_Y * e_stride + 32 + GPU_X] = softcap != 0.0f ? softcap * gpu_tanh(gpu_div(s, softcap)) : s;
}

/* A pair's scratch: sixteen maxima, sixteen sums, then scores. x is the lane. */
GPU_KERNEL weir_attention_max(gpu_u32 n_heads, gpu_u32 last, gpu_u32 window, gpu_u32 pair_first, GPU_PTR(e),
                              gpu_u32 e_stride)
{
    gpu_u32 row = (pair_first + GPU_Y) / n_heads, n = last + row - gpu_first_position(last + row, window) + 1;
    GPU_GLOBAL float *mine = GPU_AT(float, e) + (gpu_u64)GPU_Y * e_stride;
    float max = -GPU_INFINITY;
    if (GPU_X >= 16) return;
    for (gpu_u32 i = GPU_X; i < n; i += 16) max = mine[32 + i] > max ? mine[32 + i] : max;
    mine[GPU_X] = max;
}

GPU_KERNEL weir_attention_weights(gpu_u32 n_heads, gpu_u32 last, gpu_u32 window, gpu_u32 pair_first,
                                  GPU_PTR(e), gpu_u32 e_stride)
{
    gpu_u32 row = (pair_first + GPU_Y) / n_heads, first = gpu_first_position(last + row, window);
    gpu_u32 n = last + row - first + 1;
    GPU_GLOBAL float *mine = GPU_AT(float, e) + (gpu_u64)GPU_Y * e_stride;
    float max = -GPU_INFINITY, sum = 0.0f;
    if (GPU_X >= 16) return;
    for (int l = 0; l < 16; l++) max = mine[l] > max ? mine[l] : max;
    /* Lanes are counted by absolute position. */
    for (gpu_u32 i = (GPU_X + 16 - first % 16) % 16; i < n; i += 16) {
        float below = mine[32 + i] - max, weight = below < -64.0f ? 0.0f : gpu_exp(below);
        mine[32 + i] = weight;
        sum += weight;
    }
    mine[16 + GPU_X] = sum;
}

/* x is the element of the head. */
GPU_KERNEL weir_attention_values(GPU_PTR(v_cache), gpu_u32 is_half, gpu_u32 capacity, gpu_u32 n_heads,
                                 gpu_u32 n_kv_heads, gpu_u32 head_dim, gpu_u32 last, gpu_u32 window,
                                 gpu_u32 pair_first, GPU_PTR(e), gpu_u32 e_stride, GPU_PTR(out),
                                 gpu_u64 out_stride)
{
    gpu_u32 pair = pair_first + GPU_Y, row = pair / n_heads, head = pair % n_heads;
    gpu_u32 first = gpu_first_position(last + row, window), end = last + row + 1;
    GPU_GLOBAL const float *mine = GPU_AT(const float, e) + (gpu_u64)GPU_Y * e_stride;
    gpu_u64 at = head / (n_heads / n_kv_heads) * head_dim + GPU_X, step = n_kv_heads * head_dim;
    float lane[16], total = 0.0f, acc = 0.0f;
    if (GPU_X >= head_dim) return;
    for (int l = 0; l < 16; l++) lane[l] = mine[16 + l];
    for (gpu_u32 p = first, slot = first % capacity; p < end; p++) {
        acc = GPU_FMA(mine[32 + p - first],
                      gpu_cache_load(GPU_AT(const gpu_u8, v_cache), is_half, slot * step + at), acc);
        if (++slot == capacity) slot = 0;
        if ((p + 1) % 512 == 0 && p + 1 != end) {
            total += acc;
            acc = 0.0f;
        }
    }
    GPU_AT(float, out)
    [row * out_stride + head * head_dim + GPU_X] = gpu_div(total + acc, gpu_lane_tree(lane));
}

#endif
