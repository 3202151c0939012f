/* The table of element types. */
#include "base_dtype.h"

#include <strings.h>

static const base_dtype_info dtypes[BASE_DTYPE_LIMIT] = {
#define DTYPE_ROW(id, name, elements, bytes) [id] = {#name, elements, bytes},
    BASE_DTYPE_MAP(DTYPE_ROW)
#undef DTYPE_ROW
};

static const base_dtype_info unknown_dtype = {NULL, 0, 0};

const base_dtype_info *base_dtype_get(uint32_t id)
{
    return id < BASE_DTYPE_LIMIT ? &dtypes[id] : &unknown_dtype;
}

int base_dtype_find(const char *name)
{
    for (int id = 0; id < BASE_DTYPE_LIMIT; id++) {
        if (dtypes[id].name != NULL && strcasecmp(dtypes[id].name, name) == 0) return id;
    }
    return -1;
}

bool base_dtype_row_bytes(uint32_t id, uint64_t n, uint64_t *bytes)
{
    const base_dtype_info *info = base_dtype_get(id);
    if (info->name == NULL || n % info->block_elements != 0) return false;
    return base_mul(n / info->block_elements, info->block_bytes, bytes);
}
