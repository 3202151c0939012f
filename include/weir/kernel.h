/* Kernels that an engine brings for a device, and their arguments: device addresses and numbers. */
#ifndef WEIR_KERNEL_H
#define WEIR_KERNEL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum weir_arg_kind { WEIR_ARG_ADDRESS, WEIR_ARG_U32, WEIR_ARG_F32 } weir_arg_kind;
typedef struct weir_arg {
    weir_arg_kind kind;
    union {
        void *address;
        uint32_t u32;
        float f32;
    } as;
} weir_arg;
/* c: items [begin, end), on the processor and the simulated device. source: OpenCL C 1.2 with a kernel of
 * this name. Its parameters are the arguments in their order, an address as two of them (a __global pointer
 * and a ulong offset in bytes), then a uint with the number of items; the global id may lie beyond it.
 * UNSUPPORTED where a device needs the one that is NULL. Kernels and their strings stay until the manager is
 * destroyed. */
typedef struct weir_kernel {
    const char *name;
    const char *source;
    void (*c)(const weir_arg *args, size_t begin, size_t end);
} weir_kernel;

#ifdef __cplusplus
}
#endif

#endif
