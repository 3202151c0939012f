/* Inside ref only: a block of any quantized type in one plain form. */
#ifndef WEIR_KERN_REF_H
#define WEIR_KERN_REF_H

#include "kernels/kern_tables.h"

/* Types of 32: value = d x w + m (m only with has_min). Types of 256: value = (d x scale) x w - (m x min),
 * scale and min of each 16 elements; types whose sub-blocks are 32 long repeat them. */
typedef struct kern_ref_block {
    float d, m;
    bool has_min;
    int8_t w[256];
    int32_t scale[16], min[16]; /* types of 256 only */
} kern_ref_block;

/* False when dtype is not a quantized type. */
bool kern_ref_unpack(uint32_t dtype, const uint8_t *src, kern_ref_block *out);

/* Elements of a block: 32, 256, 1 for float types, 0 for what is no weight type. */
size_t kern_ref_block_elements(uint32_t dtype);

#endif
