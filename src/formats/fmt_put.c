/* What the parsers share to fill a descriptor: translated metadata, tensor sizes, the check that no two
 * tensors claim the same bytes. */
#include "fmt_store.h"

#include <inttypes.h>
#include <string.h>

static weir_status put(fmt_model *m, const char *key, fmt_value *v, weir_error *err)
{
    v->key = fmt_arena_copy(m->env, &m->arena, key, strlen(key), err);
    if (v->key == NULL) return err->code;
    return fmt_values_add(m->env, &m->values, v, m->path, err);
}

weir_status fmt_model_put_u32(fmt_model *m, const char *key, uint32_t v, weir_error *err)
{
    return put(m, key, &(fmt_value){.type = FMT_U32, .v.u = v}, err);
}

weir_status fmt_model_put_f32(fmt_model *m, const char *key, double v, weir_error *err)
{
    return put(m, key, &(fmt_value){.type = FMT_F32, .v.f = (float)v}, err);
}

weir_status fmt_model_put_str(fmt_model *m, const char *key, const char *text, size_t len, weir_error *err)
{
    const char *copy = fmt_arena_copy(m->env, &m->arena, text, len, err);
    if (copy == NULL) return err->code;
    return put(m, key, &(fmt_value){.type = FMT_STRING, .v.str = {copy, len}}, err);
}

weir_status fmt_model_put_array(fmt_model *m, const char *key, fmt_type type, uint64_t count,
                                const void *data, size_t bytes, weir_error *err)
{
    uint64_t offset = m->blob.len;
    weir_status s = base_buf_append(&m->blob, data, bytes, err);
    if (s != WEIR_OK) return s;
    fmt_value v = {.type = FMT_ARRAY, .v.array = {type, count, FMT_FILE_MEMORY, offset, bytes}};
    return put(m, key, &v, err);
}

weir_status fmt_tensor_size(fmt_tensor *t, const char *path, uint64_t offset, weir_error *err)
{
    const base_dtype_info *info = base_dtype_get(t->dtype);
    if (info->name == NULL)
        return base_fail(err, WEIR_ERR_UNSUPPORTED,
                         "%s: tensor \"%.200s\" (entry at offset %" PRIu64
                         ") has type id %u, which Weir does not run; "
                         "choose another quantization of the model",
                         path, t->name, offset, t->dtype);
    uint64_t rows = 1, bytes = 0;
    bool fits = true;
    for (uint32_t i = 0; i < t->n_dims; i++) {
        if (t->dims[i] == 0)
            return base_fail(err, WEIR_ERR_FORMAT,
                             "%s: tensor \"%.200s\" (entry at offset %" PRIu64 "): dimension %u is zero",
                             path, t->name, offset, i);
        if (i > 0) fits = fits && base_mul(rows, t->dims[i], &rows);
    }
    if (t->dims[0] % info->block_elements != 0)
        return base_fail(err, WEIR_ERR_FORMAT,
                         "%s: tensor \"%.200s\" (entry at offset %" PRIu64 "): rows of %" PRIu64
                         " elements, but %s comes in blocks of %u",
                         path, t->name, offset, t->dims[0], info->name, info->block_elements);
    /* The element count must fit as well: others multiply the dimensions again. */
    uint64_t elements;
    if (!fits || !base_dtype_row_bytes(t->dtype, t->dims[0], &bytes) || !base_mul(bytes, rows, &t->bytes) ||
        !base_mul(t->dims[0], rows, &elements) || elements > INT64_MAX || t->bytes > INT64_MAX)
        return base_fail(err, WEIR_ERR_FORMAT,
                         "%s: tensor \"%.200s\" (entry at offset %" PRIu64
                         "): the product of its dimensions overflows",
                         path, t->name, offset);
    return WEIR_OK;
}

/* Heap sort of item numbers by offset: no recursion, no hidden memory, n log n on any input. */
static void sift(uint32_t *order, uint32_t root, uint32_t n, const fmt_tensor *t)
{
    for (;;) {
        uint64_t child = 2 * (uint64_t)root + 1;
        if (child >= n) return;
        if (child + 1 < n && t[order[child]].offset < t[order[child + 1]].offset) child++;
        if (t[order[root]].offset >= t[order[child]].offset) return;
        uint32_t swap = order[root];
        order[root] = order[child];
        order[child] = swap;
        root = (uint32_t)child;
    }
}

static void sort_by_offset(uint32_t *order, uint32_t n, const fmt_tensor *t)
{
    for (uint32_t i = n / 2; i-- > 0;) sift(order, i, n, t);
    for (uint32_t i = n; i-- > 1;) {
        uint32_t swap = order[0];
        order[0] = order[i];
        order[i] = swap;
        sift(order, 0, i, t);
    }
}

weir_status fmt_tensors_check_extents(base_env *env, const fmt_tensors *l, uint32_t first, bool no_gaps,
                                      uint64_t begin, uint64_t end, const char *path, weir_error *err)
{
    uint32_t n = l->n - first;
    const fmt_tensor *t = n > 0 ? l->items + first : NULL;
    uint32_t *order = base_alloc_array(env, BASE_TAG_METADATA, base_max(n, 1), sizeof *order, err);
    if (order == NULL) return err->code;
    bool sorted = true;
    for (uint32_t i = 0; i < n; i++) {
        order[i] = i;
        if (i > 0 && t[i].offset < t[i - 1].offset) sorted = false;
    }
    if (!sorted) sort_by_offset(order, n, t);
    weir_status s = WEIR_OK;
    uint64_t at = begin;
    for (uint32_t i = 0; i < n && s == WEIR_OK; i++) {
        const fmt_tensor *x = &t[order[i]];
        if (x->offset < at)
            s = base_fail(
                err, WEIR_ERR_FORMAT,
                "%s: tensor \"%.200s\" at offset %" PRIu64 " overlaps \"%.200s\", which ends at %" PRIu64,
                path, x->file_name, x->offset, i > 0 ? t[order[i - 1]].file_name : "the header", at);
        else if (no_gaps && x->offset > at)
            s = base_fail(err, WEIR_ERR_FORMAT,
                          "%s: %" PRIu64 " bytes before tensor \"%.200s\" at offset %" PRIu64
                          " belong to no tensor: the file is not valid",
                          path, x->offset - at, x->file_name, x->offset);
        at = x->offset + x->bytes;
    }
    if (s == WEIR_OK && no_gaps && at != end)
        s = base_fail(err, WEIR_ERR_FORMAT,
                      "%s: the last tensor ends at offset %" PRIu64 ", but the file has %" PRIu64 " bytes",
                      path, at, end);
    base_free(env, order);
    return s;
}
