/* What makes one kernel text OpenCL C 1.2, CUDA (NVRTC) and C. The build joins the headers of this folder
 * into one string (kern_gpu_begin, kern_gpu_source in kernels.h); lines that include each other are left out
 * there.
 *
 * A kernel:
 *
 *     GPU_KERNEL scale_add(GPU_PTR(x), GPU_PTR(y), gpu_u32 gap, float s, gpu_u32 n)
 *     {
 *         gpu_u32 i = GPU_X;
 *         if (i >= n) return;
 *         GPU_GLOBAL float *to = GPU_AT(float, y);
 *         to[i] = GPU_FMA(s, GPU_AT(const float, x)[i * gap], to[i]);
 *     }
 *
 * GPU_PTR declares two parameters, a buffer and an offset in bytes, since OpenCL knows no sums of buffers and
 * numbers outside of kernels; a device address is handed over as both. GPU_X may be beyond what was asked
 * for.
 *
 * Arithmetic: nothing is contracted, GPU_FMA is the fused operation, gpu_div and gpu_sqrt (gpu_math.h) round
 * as IEEE 754 says on every device. As C, GPU_X and GPU_Y are variables that a loop sets. */
#ifndef GPU_BEGIN_H
#define GPU_BEGIN_H

#if defined(__OPENCL_VERSION__) || defined(__OPENCL_C_VERSION__)

#pragma OPENCL FP_CONTRACT OFF
#define GPU_KERNEL       __kernel void
#define GPU_FN           static inline __attribute__((always_inline))
#define GPU_GLOBAL       __global
#define GPU_CONSTANT     __constant
#define GPU_X            ((gpu_u32)get_global_id(0))
#define GPU_Y            ((gpu_u32)get_global_id(1))
#define GPU_FMA(a, b, c) fma((float)(a), (float)(b), (float)(c))
#define GPU_BITS(x)      as_uint((float)(x))
#define GPU_FLOAT(b)     as_float((uint)(b))
#define GPU_UNROLL
typedef ulong gpu_u64;

#elif defined(__CUDACC__) || defined(__CUDACC_RTC__) || defined(__CUDA__)

#define GPU_KERNEL extern "C" __global__ void
#define GPU_FN     static __device__ __forceinline__
#define GPU_GLOBAL
#define GPU_CONSTANT     static __device__ const
#define GPU_X            ((gpu_u32)(blockIdx.x * blockDim.x + threadIdx.x))
#define GPU_Y            ((gpu_u32)(blockIdx.y * blockDim.y + threadIdx.y))
#define GPU_FMA(a, b, c) __fmaf_rn(a, b, c)
#define GPU_BITS(x)      __float_as_uint(x)
#define GPU_FLOAT(b)     __uint_as_float(b)
#define GPU_UNROLL       _Pragma("unroll")
typedef unsigned long long gpu_u64;

#else

#include <math.h>
#include <stdint.h>
#include <string.h>
#define GPU_AS_C   1
#define GPU_KERNEL static __attribute__((unused)) void
#define GPU_FN     static inline __attribute__((unused))
#define GPU_GLOBAL
#define GPU_CONSTANT     static const
#define GPU_X            gpu_c_x
#define GPU_Y            gpu_c_y
#define GPU_FMA(a, b, c) fmaf(a, b, c)
#define GPU_BITS(x)      gpu_c_bits(x)
#define GPU_FLOAT(b)     gpu_c_float(b)
#define GPU_UNROLL
typedef uint64_t gpu_u64;
static uint32_t gpu_c_x __attribute__((unused)), gpu_c_y __attribute__((unused));
static inline uint32_t gpu_c_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
static inline float gpu_c_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

#endif

typedef unsigned char gpu_u8;
typedef signed char gpu_i8;
typedef unsigned short gpu_u16;
typedef unsigned int gpu_u32;

#define GPU_PTR(name)      GPU_GLOBAL gpu_u8 *name, gpu_u64 name##_at
#define GPU_AT(type, name) ((GPU_GLOBAL type *)(name + name##_at))

#endif
