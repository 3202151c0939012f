/* The kernels of pipeline_kernels.h twice: as C functions over a range of elements, and as the text of an
 * OpenCL program. Included once, by whoever launches them. */
#ifndef PIPELINE_BOTH_H
#define PIPELINE_BOTH_H

#include "weir/kernel.h"

#include <math.h>
#include <stddef.h>

typedef unsigned int uint;
#define fma  fmaf
#define fmin fminf
#define fmax fmaxf
#define GLOBAL
#define PTR(name)          void *name
#define AT(type, name)     ((type *)name)
#define KERNEL             static void
#define ITEM(i, n)         for (uint i = first; i < n; i++)
#define PIPELINE_TEXT(...) __VA_ARGS__
static _Thread_local uint first; /* where the range that dense and blend work on begins */
#include "pipeline_kernels.h"
#undef PIPELINE_TEXT
#define PIPELINE_TEXT(...) #__VA_ARGS__
static const char source[] = "#pragma OPENCL FP_CONTRACT OFF\n"
                             "#define GLOBAL __global\n"
                             "#define KERNEL __kernel void\n"
                             "#define PTR(name) __global uchar *name, ulong name##_at\n"
                             "#define AT(type, name) ((__global type *)(name + name##_at))\n"
                             "#define ITEM(i, n) const uint i = get_global_id(0); if (i < n)\n"
#include "pipeline_kernels.h"
    ;

static void dense_c(const weir_arg *a, size_t begin, size_t end)
{
    first = (uint)begin;
    dense(a[0].as.address, a[1].as.address, a[2].as.address, a[3].as.address, a[4].as.u32, (uint)end);
}

static void blend_c(const weir_arg *a, size_t begin, size_t end)
{
    first = (uint)begin;
    blend(a[0].as.address, a[1].as.address, a[2].as.address, a[3].as.f32, a[4].as.f32, (uint)end);
}

#endif
