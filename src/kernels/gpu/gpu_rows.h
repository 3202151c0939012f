/* Norm, rotation and elementwise operations on a device (docs/numerics.md). Strides are in floats. */
#ifndef GPU_ROWS_H
#define GPU_ROWS_H

#include "gpu_math.h"

/* Lanes of sums of squares: x is the lane, y the norm: number first + y, `per_row` of them in a row. */
GPU_KERNEL weir_norm_lanes(GPU_PTR(a), gpu_u64 stride, gpu_u32 group, gpu_u32 per_row, gpu_u32 first,
                           GPU_PTR(lanes))
{
    gpu_u32 lane = GPU_X, norm = first + GPU_Y;
    if (lane >= 16) return;
    GPU_GLOBAL const float *x = GPU_AT(const float, a) + norm / per_row * stride + norm % per_row * group;
    float sum = 0.0f;
    for (gpu_u32 i = lane; i < group; i += 16) sum = GPU_FMA(x[i], x[i], sum);
    GPU_AT(float, lanes)[GPU_Y * 16 + lane] = sum;
}

/* x is the element of the group. out may be a. */
GPU_KERNEL weir_norm(GPU_PTR(a), gpu_u64 stride, gpu_u32 group, gpu_u32 per_row, gpu_u32 first,
                     GPU_PTR(lanes), GPU_PTR(w), float offset, float eps, GPU_PTR(out), gpu_u64 out_stride)
{
    gpu_u32 i = GPU_X, norm = first + GPU_Y;
    float lane[16];
    if (i >= group) return;
    for (int l = 0; l < 16; l++) lane[l] = GPU_AT(const float, lanes)[GPU_Y * 16 + l];
    float inv = gpu_div(1.0f, gpu_sqrt(gpu_div(gpu_lane_tree(lane), (float)group) + eps));
    float x = GPU_AT(const float, a)[norm / per_row * stride + norm % per_row * group + i];
    GPU_AT(float, out)
    [norm / per_row * out_stride + norm % per_row * group + i] =
        (x * inv) * (GPU_AT(const float, w)[i] + offset);
}

/* x is head x n_rot / 2 + pair. */
GPU_KERNEL weir_rope(GPU_PTR(out), gpu_u64 stride, GPU_PTR(table), gpu_u64 table_stride, gpu_u32 n_heads,
                     gpu_u32 head_dim, gpu_u32 n_rot, gpu_u32 neox)
{
    gpu_u32 half_rot = n_rot / 2, head = GPU_X / half_rot, i = GPU_X % half_rot;
    if (head >= n_heads) return;
    GPU_GLOBAL float *h = GPU_AT(float, out) + GPU_Y * stride + head * head_dim;
    GPU_GLOBAL const float *t = GPU_AT(const float, table) + GPU_Y * table_stride;
    GPU_GLOBAL float *pa = neox ? h + i : h + 2 * i, *pb = neox ? h + half_rot + i : h + 2 * i + 1;
    float a = *pa, b = *pb, cosine = t[i], sine = t[half_rot + i];
    *pa = GPU_FMA(a, cosine, -(b * sine));
    *pb = GPU_FMA(a, sine, b * cosine);
}

GPU_FN float gpu_silu(float x)
{
    return gpu_div(x, 1.0f + gpu_exp(-x));
}
GPU_FN float gpu_gelu(float x)
{
    float u = 0x1.988454p-1f * (x * GPU_FMA(0.044715f * x, x, 1.0f));
    return 0.5f * x * (1.0f + gpu_tanh(u));
}
GPU_KERNEL weir_glu(GPU_PTR(gate), gpu_u64 gate_stride, GPU_PTR(up), gpu_u64 up_stride, GPU_PTR(out),
                    gpu_u64 out_stride, gpu_u32 cols, gpu_u32 gelu)
{
    if (GPU_X >= cols) return;
    float g = GPU_AT(const float, gate)[GPU_Y * gate_stride + GPU_X];
    float u = GPU_AT(const float, up)[GPU_Y * up_stride + GPU_X];
    GPU_AT(float, out)[GPU_Y * out_stride + GPU_X] = (gelu ? gpu_gelu(g) : gpu_silu(g)) * u;
}
GPU_KERNEL weir_add(GPU_PTR(a), gpu_u64 a_stride, GPU_PTR(b), gpu_u64 b_stride, GPU_PTR(out),
                    gpu_u64 out_stride, gpu_u32 cols)
{
    if (GPU_X >= cols) return;
    GPU_AT(float, out)
    [GPU_Y * out_stride + GPU_X] =
        GPU_AT(const float, a)[GPU_Y * a_stride + GPU_X] + GPU_AT(const float, b)[GPU_Y * b_stride + GPU_X];
}
GPU_KERNEL weir_scale(GPU_PTR(out), gpu_u64 stride, gpu_u32 cols, float s)
{
    if (GPU_X < cols) GPU_AT(float, out)[GPU_Y * stride + GPU_X] *= s;
}
GPU_KERNEL weir_softcap(GPU_PTR(out), gpu_u64 stride, gpu_u32 cols, float cap)
{
    if (GPU_X >= cols) return;
    GPU_GLOBAL float *y = GPU_AT(float, out) + GPU_Y * stride + GPU_X;
    *y = cap * gpu_tanh(gpu_div(*y, cap));
}
GPU_KERNEL weir_copy_rows(GPU_PTR(a), gpu_u64 stride, GPU_PTR(out), gpu_u64 out_stride, gpu_u32 cols)
{
    /* As integers: a copy keeps every bit. */
    if (GPU_X < cols)
        GPU_AT(gpu_u32, out)[GPU_Y * out_stride + GPU_X] = GPU_AT(const gpu_u32, a)[GPU_Y * stride + GPU_X];
}

#endif
