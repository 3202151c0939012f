/* Weights on a device, in the file's layout (kern_blocks.h says what lies where). A block is read by parts of
 * sixteen elements; `type` is a constant in every call, so that each kernel keeps its own case only. Nothing
 * is assumed of the alignment of weights. */
#ifndef GPU_BLOCKS_H
#define GPU_BLOCKS_H

#include "gpu_math.h"

/* Type ids of base_dtype.h. */
#define GPU_F32    0
#define GPU_F16    1
#define GPU_Q4_0   2
#define GPU_Q4_1   3
#define GPU_Q5_0   6
#define GPU_Q5_1   7
#define GPU_Q8_0   8
#define GPU_Q2_K   10
#define GPU_Q3_K   11
#define GPU_Q4_K   12
#define GPU_Q5_K   13
#define GPU_Q6_K   14
#define GPU_IQ4_NL 20
#define GPU_IQ4_XS 23
#define GPU_BF16   30
#define GPU_MXFP4  39

GPU_CONSTANT gpu_i8 gpu_iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                          1,    13,   25,  38,  53,  69,  89,  113};
GPU_CONSTANT gpu_i8 gpu_mxfp4_values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

GPU_FN gpu_u32 gpu_block_elements(const int type)
{
    return (type >= GPU_Q2_K && type <= GPU_Q6_K) || type == GPU_IQ4_XS ? 256 : 32;
}
GPU_FN gpu_u32 gpu_block_bytes(const int type)
{
    switch (type) {
    case GPU_Q4_0:
    case GPU_IQ4_NL: return 18;
    case GPU_Q4_1: return 20;
    case GPU_Q5_0: return 22;
    case GPU_Q5_1: return 24;
    case GPU_Q8_0: return 34;
    case GPU_Q2_K: return 84;
    case GPU_Q3_K: return 110;
    case GPU_Q4_K: return 144;
    case GPU_Q5_K: return 176;
    case GPU_Q6_K: return 210;
    case GPU_IQ4_XS: return 136;
    default: return 17; /* MXFP4 */
    }
}
GPU_FN int gpu_block_has_min(const int type)
{
    return type == GPU_Q4_1 || type == GPU_Q5_1 || type == GPU_Q2_K || type == GPU_Q4_K || type == GPU_Q5_K;
}

GPU_FN float gpu_block_d(const int type, GPU_GLOBAL const gpu_u8 *b)
{
    switch (type) {
    case GPU_Q2_K: return gpu_half_at(b + 80);
    case GPU_Q3_K: return gpu_half_at(b + 108);
    case GPU_Q6_K: return gpu_half_at(b + 208);
    case GPU_MXFP4: return GPU_FLOAT(b[0] < 2 ? 0x00200000u << b[0] : (gpu_u32)(b[0] - 1) << 23);
    default: return gpu_half_at(b);
    }
}
GPU_FN float gpu_block_m(const int type, GPU_GLOBAL const gpu_u8 *b)
{
    return gpu_half_at(type == GPU_Q2_K ? b + 82 : b + 2);
}

/* Elements 16 part .. 16 part + 15 as integers. */
GPU_FN void gpu_block_w(const int type, GPU_GLOBAL const gpu_u8 *b, gpu_u32 part, int *w)
{
    gpu_u32 j = part / 2 % 4,
            at = 16 * (part % 2); /* of types of 256: which 32 of its 128, and where in it */
    gpu_u32 high = 0, shift = 4 * part;
    GPU_GLOBAL const gpu_u8 *q = b, *h = b;
    switch (type) {
    case GPU_Q8_0: q = b + 2 + 16 * part; break;
    case GPU_Q4_0:
    case GPU_IQ4_NL: q = b + 2; break;
    case GPU_Q4_1: q = b + 4; break;
    case GPU_Q5_0:
        q = b + 6;
        high = gpu_u32_at(b + 2) >> 16 * part;
        break;
    case GPU_Q5_1:
        q = b + 8;
        high = gpu_u32_at(b + 4) >> 16 * part;
        break;
    case GPU_MXFP4: q = b + 1; break;
    case GPU_Q2_K: q = b + 16 + 32 * (part / 8) + at; break;
    case GPU_Q3_K:
        q = b + 32 + 32 * (part / 8) + at;
        h = b + at;
        break;
    case GPU_Q4_K: q = b + 16 + 32 * (part / 4) + at; break;
    case GPU_Q5_K:
        q = b + 48 + 32 * (part / 4) + at;
        h = b + 16 + at;
        break;
    case GPU_Q6_K:
        q = b + 64 * (part / 8) + 32 * (j % 2) + at;
        h = b + 128 + 32 * (part / 8) + at;
        break;
    default: q = b + 8 + 16 * (part / 2); break; /* IQ4_XS */
    }
    if (type == GPU_Q4_K || type == GPU_Q5_K) shift = 4 * (part / 2 % 2);
    if (type == GPU_IQ4_XS) shift = 4 * (part % 2);
    GPU_UNROLL for (gpu_u32 i = 0; i < 16; i++)
    {
        switch (type) {
        case GPU_Q8_0: w[i] = (gpu_i8)q[i]; break;
        case GPU_Q4_0: w[i] = (int)(q[i] >> shift & 15) - 8; break;
        case GPU_Q4_1: w[i] = q[i] >> shift & 15; break;
        case GPU_Q5_0: w[i] = (int)((q[i] >> shift & 15) | (high >> i & 1) << 4) - 16; break;
        case GPU_Q5_1: w[i] = (int)((q[i] >> shift & 15) | (high >> i & 1) << 4); break;
        case GPU_IQ4_NL:
        case GPU_IQ4_XS: w[i] = gpu_iq4_values[q[i] >> shift & 15]; break;
        case GPU_MXFP4: w[i] = gpu_mxfp4_values[q[i] >> shift & 15]; break;
        case GPU_Q2_K: w[i] = q[i] >> 2 * j & 3; break;
        case GPU_Q3_K: w[i] = (int)(q[i] >> 2 * j & 3) - ((h[i] >> part / 2 & 1) != 0 ? 0 : 4); break;
        case GPU_Q4_K: w[i] = q[i] >> shift & 15; break;
        case GPU_Q5_K: w[i] = (int)((q[i] >> shift & 15) | (h[i] >> part / 2 & 1) << 4); break;
        default: w[i] = (int)((q[i] >> j / 2 * 4 & 15) | (h[i] >> 2 * j & 3) << 4) - 32; break; /* Q6_K */
        }
    }
}

/* Scale and minimum of a part of a block of 256. */
GPU_FN int gpu_block_scale(const int type, GPU_GLOBAL const gpu_u8 *b, gpu_u32 part)
{
    gpu_u32 j = part / 2;
    switch (type) {
    case GPU_Q2_K: return b[part] & 15;
    case GPU_Q3_K: {
        GPU_GLOBAL const gpu_u8 *s = b + 96;
        gpu_u32 low = part < 8 ? s[part] & 15 : s[part - 8] >> 4;
        return (int)(low | (s[8 + part % 4] >> part / 4 * 2 & 3) << 4) - 32;
    }
    case GPU_Q4_K:
    case GPU_Q5_K: {
        GPU_GLOBAL const gpu_u8 *s = b + 4;
        return j < 4 ? s[j] & 63 : (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
    }
    case GPU_Q6_K: return (gpu_i8)b[192 + part];
    case GPU_IQ4_XS: {
        gpu_u32 low = b[4 + j / 2] >> j % 2 * 4 & 15;
        return (int)(low | (gpu_u16_at(b + 2) >> 2 * j & 3) << 4) - 32;
    }
    default: return 1;
    }
}
GPU_FN int gpu_block_min(const int type, GPU_GLOBAL const gpu_u8 *b, gpu_u32 part)
{
    gpu_u32 j = part / 2;
    GPU_GLOBAL const gpu_u8 *s = b + 4;
    if (type == GPU_Q2_K) return b[part] >> 4;
    return j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | (s[j] >> 6) << 4;
}

GPU_FN gpu_u32 gpu_float_bytes(const int type)
{
    return type == GPU_F32 ? 4 : 2;
}
GPU_FN float gpu_float_w(const int type, GPU_GLOBAL const gpu_u8 *p)
{
    if (type == GPU_F32) return GPU_FLOAT(gpu_u32_at(p));
    if (type == GPU_BF16) return GPU_FLOAT(gpu_u16_at(p) << 16);
    return gpu_half_at(p);
}

/* Every weight type; GPU_EACH_BLOCK: those in blocks. X(TYPE) */
#define GPU_EACH_FLOAT(X) X(F32) X(F16) X(BF16)
#define GPU_EACH_BLOCK(X)                                                                                    \
    X(Q4_0)                                                                                                  \
    X(Q4_1) X(Q5_0) X(Q5_1) X(Q8_0) X(Q2_K) X(Q3_K) X(Q4_K) X(Q5_K) X(Q6_K) X(IQ4_NL) X(IQ4_XS) X(MXFP4)

#endif
