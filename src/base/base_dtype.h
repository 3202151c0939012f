/* Element types of tensors. The numbers are GGUF's own type ids (ggml documentation, docs/gguf.md), so
 * that a file's id is an index here; ids that Weir does not run are absent from the table. */
#ifndef WEIR_BASE_DTYPE_H
#define WEIR_BASE_DTYPE_H

#include "base_error.h"

/* X(id, NAME, block_elements, block_bytes) */
#define BASE_DTYPE_MAP(X)                                                                                    \
    X(0, F32, 1, 4)                                                                                          \
    X(1, F16, 1, 2)                                                                                          \
    X(2, Q4_0, 32, 18)                                                                                       \
    X(3, Q4_1, 32, 20)                                                                                       \
    X(6, Q5_0, 32, 22)                                                                                       \
    X(7, Q5_1, 32, 24)                                                                                       \
    X(8, Q8_0, 32, 34)                                                                                       \
    X(10, Q2_K, 256, 84)                                                                                     \
    X(11, Q3_K, 256, 110)                                                                                    \
    X(12, Q4_K, 256, 144)                                                                                    \
    X(13, Q5_K, 256, 176)                                                                                    \
    X(14, Q6_K, 256, 210)                                                                                    \
    X(20, IQ4_NL, 32, 18)                                                                                    \
    X(23, IQ4_XS, 256, 136)                                                                                  \
    X(24, I8, 1, 1)                                                                                          \
    X(26, I32, 1, 4)                                                                                         \
    X(30, BF16, 1, 2)                                                                                        \
    X(39, MXFP4, 32, 17)

typedef enum base_dtype {
#define BASE_DTYPE_ENUM(id, name, elements, bytes) BASE_##name = id,
    BASE_DTYPE_MAP(BASE_DTYPE_ENUM)
#undef BASE_DTYPE_ENUM
        BASE_DTYPE_LIMIT = 40
} base_dtype;

typedef struct base_dtype_info {
    const char *name; /* NULL: id not supported */
    uint32_t block_elements;
    uint32_t block_bytes;
} base_dtype_info;

/* Info of any id; name is NULL for an unknown one. Never NULL itself. */
const base_dtype_info *base_dtype_get(uint32_t id);
/* The id of a name ("Q4_K", case-insensitive), or -1. */
int base_dtype_find(const char *name);
/* Bytes of a row of n elements; false when n is no multiple of the block or the result overflows. */
bool base_dtype_row_bytes(uint32_t id, uint64_t n, uint64_t *bytes);

#endif
