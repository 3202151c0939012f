/* What the two files of the CPU device share. */
#ifndef WEIR_DEV_CPU_INTERNAL_H
#define WEIR_DEV_CPU_INTERNAL_H

#include "devices/device.h"
#include "kernels/kernels.h"

typedef struct dev_cpu {
    dev_device device; /* first: the table's functions get a pointer to it */
    base_env *env;
    const kern_table *kern;
    base_pool *pool; /* perhaps of others too, with more threads than ours */
    base_pool *own;  /* the same, or NULL */
    uint32_t n_threads;
    uint8_t *scratch;       /* n_threads pieces of scratch_stride bytes */
    uint64_t scratch_bytes; /* all of them */
    size_t scratch_stride;
    size_t max_k; /* what the work space was reserved for */
    uint32_t max_positions, max_head_dim;
} dev_cpu;

/* Carries out one operation whose pointers and sizes hold; see device.h. */
weir_status dev_cpu_run(dev_device *device, const dev_op *op, weir_error *err);
weir_status dev_cpu_pack(dev_device *device, uint32_t dtype, void *rows, size_t row_bytes, size_t n_groups,
                         weir_error *err);

#endif
