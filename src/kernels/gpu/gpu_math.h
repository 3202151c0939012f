/* Numbers on a device, step by step as docs/numerics.md and kern_math.h say: division, root, exp, tanh,
 * halves.
 *
 * GPU_EXACT_DIVIDE: the device's own division and root round as IEEE 754 says. Without it both are made of
 * integers: slower, and the same bits. */
#ifndef GPU_MATH_H
#define GPU_MATH_H

#include "gpu_begin.h"

#define GPU_INFINITY GPU_FLOAT(0x7f800000u)
#define GPU_NAN      GPU_FLOAT(0x7fc00000u)

/* Highest set bit of x > 0. */
GPU_FN gpu_u32 gpu_top_bit(gpu_u64 x)
{
    gpu_u32 n = 0;
    for (gpu_u32 step = 32; step != 0; step >>= 1)
        if (x >> step != 0) {
            x >>= step;
            n += step;
        }
    return n;
}

/* m x 2^e for m > 0, rounded to the nearest float, ties to even; sticky: the number is a little larger than
 * that. m has at least 26 bits where sticky is set. */
GPU_FN gpu_u32 gpu_round_bits(gpu_u64 m, int e, gpu_u32 sticky)
{
    int top = (int)gpu_top_bit(m) + e; /* the number is 2^top or more, below 2^(top + 1) */
    int last = top < -126 ? -149 : top - 23;
    int drop = last - e; /* bits that are rounded away */
    if (top > 127) return 0x7f800000u;
    if (drop <= 0) {
        m <<= -drop;
    } else if (drop > 62) {
        return 0;
    } else {
        gpu_u64 rest = m & (((gpu_u64)1 << drop) - 1), middle = (gpu_u64)1 << (drop - 1);
        m >>= drop;
        if (rest > middle || (rest == middle && (sticky != 0 || (m & 1) != 0))) m++;
    }
    /* With its leading bit the mantissa adds one to the exponent field; so does a carry. */
    if (top < -126) return (gpu_u32)m;
    return ((gpu_u32)(top + 126) << 23) + (gpu_u32)m;
}

GPU_FN int gpu_exponent(gpu_u32 bits)
{
    int e = (int)(bits >> 23 & 0xffu);
    return (e == 0 ? 1 : e) - 150;
}
GPU_FN gpu_u64 gpu_mantissa(gpu_u32 bits)
{
    return (bits & 0x7fffffu) | ((bits & 0x7f800000u) != 0 ? 0x800000u : 0u);
}

GPU_FN float gpu_soft_div(float x, float y)
{
    gpu_u32 a = GPU_BITS(x), b = GPU_BITS(y), sign = (a ^ b) & 0x80000000u;
    a &= 0x7fffffffu;
    b &= 0x7fffffffu;
    if (a > 0x7f800000u || b > 0x7f800000u || (a == b && (a == 0 || a == 0x7f800000u))) return GPU_NAN;
    if (a == 0x7f800000u || b == 0) return GPU_FLOAT(sign | 0x7f800000u);
    if (a == 0 || b == 0x7f800000u) return GPU_FLOAT(sign);
    gpu_u64 ma = gpu_mantissa(a), mb = gpu_mantissa(b);
    int up = 62 - (int)gpu_top_bit(ma);
    gpu_u64 n = ma << up, q = n / mb;
    return GPU_FLOAT(sign | gpu_round_bits(q, gpu_exponent(a) - gpu_exponent(b) - up, n != q * mb));
}

GPU_FN float gpu_soft_sqrt(float x)
{
    gpu_u32 a = GPU_BITS(x);
    if ((a & 0x7fffffffu) == 0) return x;
    if (a > 0x7f800000u) return GPU_NAN; /* NaN and everything negative */
    if (a == 0x7f800000u) return x;
    gpu_u64 m = gpu_mantissa(a);
    int e = gpu_exponent(a), up = 60 - (int)gpu_top_bit(m);
    if ((e - up) % 2 != 0) up++;
    m <<= up;
    gpu_u64 root = 0;
    for (gpu_u64 bit = (gpu_u64)1 << 31; bit != 0; bit >>= 1)
        if ((root | bit) * (root | bit) <= m) root |= bit;
    return GPU_FLOAT(gpu_round_bits(root, (e - up) / 2, root * root != m));
}

GPU_FN float gpu_div(float x, float y)
{
#if defined(__CUDACC__) || defined(__CUDACC_RTC__) || defined(__CUDA__)
    return __fdiv_rn(x, y);
#elif defined(GPU_EXACT_DIVIDE) || defined(GPU_AS_C)
    return x / y;
#else
    return gpu_soft_div(x, y);
#endif
}
GPU_FN float gpu_sqrt(float x)
{
#if defined(__CUDACC__) || defined(__CUDACC_RTC__) || defined(__CUDA__)
    return __fsqrt_rn(x);
#elif defined(GPU_AS_C)
    return sqrtf(x);
#elif defined(GPU_EXACT_DIVIDE)
    return sqrt(x);
#else
    return gpu_soft_sqrt(x);
#endif
}

/* ---- halves ---- */
GPU_FN float gpu_half(gpu_u32 h)
{
    gpu_u32 sign = (h & 0x8000u) << 16, rest = h & 0x7fffu;
    if (rest >= 0x7c00u)
        return GPU_FLOAT(sign | 0x7f800000u | (rest > 0x7c00u ? 0x400000u : 0u) | (rest & 0x3ffu) << 13);
    if (rest < 0x400u) return GPU_FLOAT(sign | GPU_BITS((float)rest * 0x1p-24f));
    return GPU_FLOAT(sign | ((rest << 13) + (112u << 23)));
}

GPU_FN gpu_u32 gpu_to_half(float x)
{
    gpu_u32 bits = GPU_BITS(x), sign = bits >> 16 & 0x8000u, rest = bits & 0x7fffffffu;
    if (rest > 0x7f800000u) return sign | 0x7e00u | (rest >> 13 & 0x3ffu);
    if (rest >= 0x477ff000u) return sign | 0x7c00u;
    if (rest < 0x38800000u) return sign | (GPU_BITS(GPU_FLOAT(rest) + 0.5f) - 0x3f000000u);
    rest += 0xfffu + (rest >> 13 & 1u);
    return sign | ((rest >> 13) - (112u << 10));
}

GPU_FN gpu_u32 gpu_u16_at(GPU_GLOBAL const gpu_u8 *p)
{
    return (gpu_u32)p[0] | (gpu_u32)p[1] << 8;
}
GPU_FN gpu_u32 gpu_u32_at(GPU_GLOBAL const gpu_u8 *p)
{
    return (gpu_u32)p[0] | (gpu_u32)p[1] << 8 | (gpu_u32)p[2] << 16 | (gpu_u32)p[3] << 24;
}
GPU_FN float gpu_half_at(GPU_GLOBAL const gpu_u8 *p)
{
    return gpu_half(gpu_u16_at(p));
}

/* ---- exp, tanh ---- */
GPU_FN float gpu_round_even(float x)
{
    return (x + 0x1.8p23f) - 0x1.8p23f;
}
GPU_FN float gpu_exp(float x)
{
    if (x != x) return x;
    if (x < -104.0f) return 0.0f;
    if (x > 0x1.62e42ep+6f) return GPU_INFINITY;
    float n = gpu_round_even(x * 0x1.715476p+0f);
    float r = GPU_FMA(n, -0x1.62e43p-1f, x);
    r = GPU_FMA(n, 0x1.05c61p-29f, r);
    float p = 0x1.6a4b38p-10f;
    p = GPU_FMA(p, r, 0x1.12398ep-7f);
    p = GPU_FMA(p, r, 0x1.5558b2p-5f);
    p = GPU_FMA(p, r, 0x1.555492p-3f);
    p = GPU_FMA(p, r, 0x1.fffffcp-2f);
    p = GPU_FMA(p, r, 1.0f);
    p = GPU_FMA(p, r, 1.0f);
    int a = (int)n >> 1, b = (int)n - a;
    return p * GPU_FLOAT((gpu_u32)(a + 127) << 23) * GPU_FLOAT((gpu_u32)(b + 127) << 23);
}
GPU_FN float gpu_tanh(float x)
{
    gpu_u32 sign = GPU_BITS(x) & 0x80000000u;
    float a = GPU_FLOAT(GPU_BITS(x) & 0x7fffffffu);
    if (x != x) return x;
    if (a < 0.625f) {
        float t = x * x;
        float p = -0x1.7574f8p-8f;
        p = GPU_FMA(p, t, 0x1.520c26p-6f);
        p = GPU_FMA(p, t, -0x1.b837ep-5f);
        p = GPU_FMA(p, t, 0x1.1107p-3f);
        p = GPU_FMA(p, t, -0x1.555532p-2f);
        return GPU_FMA(x * t, p, x);
    }
    float y = a >= 9.02f ? 1.0f : 1.0f - gpu_div(2.0f, gpu_exp(2.0f * a) + 1.0f);
    return GPU_FLOAT(GPU_BITS(y) | sign);
}

/* Sixteen lanes by the tree of docs/numerics.md. */
GPU_FN float gpu_lane_tree(const float *lane)
{
    float s0 = (lane[0] + lane[8]) + (lane[4] + lane[12]), s1 = (lane[1] + lane[9]) + (lane[5] + lane[13]);
    float s2 = (lane[2] + lane[10]) + (lane[6] + lane[14]), s3 = (lane[3] + lane[11]) + (lane[7] + lane[15]);
    return (s0 + s2) + (s1 + s3);
}

#endif
