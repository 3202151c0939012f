/* Layouts of activations and caches that the CPU's kernels and the device kernels of kernels/gpu share;
 * entries of a dev_table. */
#ifndef WEIR_DEV_LAYOUT_H
#define WEIR_DEV_LAYOUT_H

#include "devices/device.h"

uint32_t dev_kern_act_form(const dev_device *device, uint32_t dtype);
size_t dev_kern_act_row_bytes(const dev_device *device, uint32_t dtype, size_t k);
/* UINT64_MAX for both where the product overflows. */
void dev_kern_kv_bytes(const dev_device *device, uint32_t dtype, uint32_t capacity, uint32_t n_kv_heads,
                       uint32_t head_dim, uint64_t *k_bytes, uint64_t *v_bytes);

#endif
