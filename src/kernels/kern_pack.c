/* Packed weights: groups of sixteen rows (kernels.h, and kern_blocks.h for the layout), to and from the
 * file's layout. Plain copies of elements: reading rows one after the other and writing a block column that
 * stays in the first cache is fast enough for loading, and the same on every machine. */
#include "kern_blocks.h"
#include "kern_tables.h"

#define ROWS KERN_PACK_ROWS

/* A run of elements of one size. */
typedef struct field {
    uint8_t size, count; /* bytes of one, how many; size 0 ends a list */
} field;

#define MAX_FIELDS 5
typedef struct layout {
    uint32_t dtype;
    field fields[MAX_FIELDS]; /* in the block's order */
} layout;

static const layout layouts[] = {
    {BASE_Q8_0, {{2, 1}, {4, 8}}},          {BASE_Q4_0, {{2, 1}, {4, 4}}},
    {BASE_Q4_1, {{2, 2}, {4, 4}}},          {BASE_Q5_0, {{2, 1}, {4, 1 + 4}}},
    {BASE_Q5_1, {{2, 2}, {4, 1 + 4}}},      {BASE_IQ4_NL, {{2, 1}, {4, 4}}},
    {BASE_MXFP4, {{1, 1}, {4, 4}}},         {BASE_Q2_K, {{4, 4 + 16}, {2, 2}}},
    {BASE_Q3_K, {{4, 8 + 16 + 3}, {2, 1}}}, {BASE_Q4_K, {{2, 2}, {4, 3 + 32}}},
    {BASE_Q5_K, {{2, 2}, {4, 3 + 8 + 32}}}, {BASE_Q6_K, {{4, 32 + 16 + 4}, {2, 1}}},
    {BASE_IQ4_XS, {{2, 2}, {4, 1 + 32}}},
};

static const layout *layout_of(uint32_t dtype)
{
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++)
        if (layouts[i].dtype == dtype) return &layouts[i];
    return NULL;
}

bool kern_can_pack(uint32_t dtype)
{
    return layout_of(dtype) != NULL;
}

/* n elements of `size` bytes, dst_step and src_step bytes apart. */
static inline void copy_elements(uint8_t *dst, size_t dst_step, const uint8_t *src, size_t src_step, size_t n,
                                 size_t size)
{
    for (size_t i = 0; i < n; i++) memcpy(dst + i * dst_step, src + i * src_step, size);
}

/* One row's block from its place in a block column, or to it. */
static inline void move_block(const layout *l, uint8_t *column, unsigned row, uint8_t *block, bool pack)
{
    for (const field *f = l->fields; f->size != 0; f++) {
        uint8_t *side = column + row * f->size; /* elements ROWS x size apart */
        size_t size = f->size, n = f->count;
        /* The sizes as constants, so that each copy is one instruction. */
        if (size == 4 && pack)
            copy_elements(side, ROWS * 4, block, 4, n, 4);
        else if (size == 4)
            copy_elements(block, 4, side, ROWS * 4, n, 4);
        else if (size == 2 && pack)
            copy_elements(side, ROWS * 2, block, 2, n, 2);
        else if (size == 2)
            copy_elements(block, 2, side, ROWS * 2, n, 2);
        else if (pack)
            copy_elements(side, ROWS, block, 1, n, 1);
        else
            copy_elements(block, 1, side, ROWS, n, 1);
        column += ROWS * size * n;
        block += size * n;
    }
}

void kern_pack(uint32_t dtype, const void *src, size_t row_bytes, void *dst)
{
    const layout *l = layout_of(dtype);
    size_t bytes = base_dtype_get(dtype)->block_bytes;
    for (size_t at = 0; at + bytes <= row_bytes; at += bytes)
        for (unsigned r = 0; r < ROWS; r++)
            move_block(l, (uint8_t *)dst + at * ROWS, r, (uint8_t *)(uintptr_t)src + r * row_bytes + at,
                       true);
}

void kern_unpack(uint32_t dtype, const void *src, size_t row_bytes, void *dst)
{
    for (unsigned r = 0; r < ROWS; r++)
        kern_unpack_row(dtype, src, row_bytes, r, (uint8_t *)dst + r * row_bytes);
}

void kern_unpack_row(uint32_t dtype, const void *group, size_t row_bytes, unsigned row, void *dst)
{
    const layout *l = layout_of(dtype);
    size_t bytes = base_dtype_get(dtype)->block_bytes;
    for (size_t at = 0; at + bytes <= row_bytes; at += bytes)
        move_block(l, (uint8_t *)(uintptr_t)group + at * ROWS, row, (uint8_t *)dst + at, false);
}

void kern_unpack_block(uint32_t dtype, const uint8_t *group, size_t block, unsigned row, uint8_t *dst)
{
    size_t bytes = base_dtype_get(dtype)->block_bytes;
    move_block(layout_of(dtype), (uint8_t *)(uintptr_t)group + block * bytes * ROWS, row, dst, false);
}
