/* What makes a GGUF file a packed one, and what is wrong with it: a packed file is of use only to the layout
 * that it was written for, so everything that could be of another one is refused by name. */
#include "fmt_pack.h"

#include <inttypes.h>
#include <string.h>

#define AGAIN "; pack it again from the original with this version of Weir"

static uint64_t add_le(uint64_t digest, uint64_t v, size_t bytes)
{
    unsigned char p[8];
    for (size_t i = 0; i < bytes; i++) p[i] = (unsigned char)(v >> 8 * i);
    return base_hash(digest, p, bytes);
}

uint64_t fmt_pack_digest_begin(void)
{
    return add_le(add_le(BASE_HASH_SEED, FMT_PACK_VERSION, 4), FMT_PACK_ROWS, 4);
}

uint64_t fmt_pack_digest_add(uint64_t digest, const fmt_tensor *t, uint32_t type_id)
{
    size_t len = strlen(t->name);
    digest = base_hash(add_le(digest, len, 8), t->name, len);
    digest = add_le(digest, t->n_dims, 4);
    for (uint32_t i = 0; i < t->n_dims; i++) digest = add_le(digest, t->dims[i], 8);
    return add_le(add_le(digest, type_id, 4), t->offset, 8);
}

/* A key that must be there with this type. */
static weir_status read_key(const fmt_values *values, const char *key, fmt_type type, const char *path,
                            uint64_t *out, weir_error *err)
{
    const fmt_value *v = fmt_values_find(values, key);
    if (v == NULL)
        return base_fail(err, WEIR_ERR_FORMAT, "%s: a packed file without the metadata key %s: damaged" AGAIN,
                         path, key);
    if (v->type != type)
        return base_fail(err, WEIR_ERR_FORMAT, "%s: metadata key \"%s\" is of type %s, wanted %s" AGAIN, path,
                         key, fmt_type_name(v->type), fmt_type_name(type));
    *out = v->v.u;
    return WEIR_OK;
}

weir_status fmt_pack_read(fmt_pack *p, const fmt_values *values, uint64_t alignment, const char *path,
                          weir_error *err)
{
    uint64_t version = 0, rows = 0;
    *p = (fmt_pack){.found = fmt_pack_digest_begin()};
    p->packed = fmt_values_find(values, FMT_PACK_KEY_VERSION) != NULL ||
                fmt_values_find(values, FMT_PACK_KEY_ROWS) != NULL ||
                fmt_values_find(values, FMT_PACK_KEY_DIGEST) != NULL;
    if (!p->packed) return WEIR_OK;
    weir_status s = read_key(values, FMT_PACK_KEY_VERSION, FMT_U32, path, &version, err);
    if (s != WEIR_OK) return s;
    if (version != FMT_PACK_VERSION)
        return base_fail(err, WEIR_ERR_UNSUPPORTED,
                         "%s: packed in version %" PRIu64 " of the layout (%s), this Weir reads %u" AGAIN,
                         path, version, FMT_PACK_KEY_VERSION, FMT_PACK_VERSION);
    s = read_key(values, FMT_PACK_KEY_ROWS, FMT_U32, path, &rows, err);
    if (s == WEIR_OK) s = read_key(values, FMT_PACK_KEY_DIGEST, FMT_U64, path, &p->digest, err);
    if (s != WEIR_OK) return s;
    if (rows != FMT_PACK_ROWS)
        return base_fail(err, WEIR_ERR_UNSUPPORTED,
                         "%s: packed in groups of %" PRIu64 " rows (%s), this Weir reads groups of %u" AGAIN,
                         path, rows, FMT_PACK_KEY_ROWS, FMT_PACK_ROWS);
    if (alignment % FMT_PACK_ALIGNMENT != 0)
        return base_fail(err, WEIR_ERR_FORMAT,
                         "%s: a packed file with general.alignment %" PRIu64 ", wanted %u: damaged" AGAIN,
                         path, alignment, FMT_PACK_ALIGNMENT);
    return WEIR_OK;
}

weir_status fmt_pack_entry(fmt_pack *p, fmt_tensor *t, const char *path, uint64_t entry, weir_error *err)
{
    if (p->packed) p->found = fmt_pack_digest_add(p->found, t, t->dtype);
    if ((t->dtype & ~0xffu) != FMT_PACK_TYPE) return WEIR_OK;
    if (!p->packed)
        return base_fail(err, WEIR_ERR_FORMAT,
                         "%s: tensor \"%.200s\" (entry at offset %" PRIu64
                         ") is packed (type id %u), but the file does not say how (%s): damaged or put "
                         "together from others" AGAIN,
                         path, t->name, entry, t->dtype, FMT_PACK_KEY_VERSION);
    uint32_t dtype = t->dtype - FMT_PACK_TYPE;
    const base_dtype_info *info = base_dtype_get(dtype);
    if (info->name == NULL || info->block_elements == 1)
        return base_fail(err, WEIR_ERR_UNSUPPORTED,
                         "%s: tensor \"%.200s\" (entry at offset %" PRIu64
                         ") has the packed type id %u, which Weir does not run" AGAIN,
                         path, t->name, entry, t->dtype);
    t->dtype = dtype;
    t->packed = true;
    return WEIR_OK;
}

weir_status fmt_pack_check_tensor(const fmt_tensor *t, const char *path, uint64_t entry, weir_error *err)
{
    if (!t->packed || (t->n_dims == 2 && t->dims[1] >= FMT_PACK_ROWS)) return WEIR_OK;
    return base_fail(err, WEIR_ERR_FORMAT,
                     "%s: tensor \"%.200s\" (entry at offset %" PRIu64
                     ") is packed, but no matrix of at least %u rows: damaged" AGAIN,
                     path, t->name, entry, FMT_PACK_ROWS);
}

weir_status fmt_pack_check_digest(const fmt_pack *p, const char *path, weir_error *err)
{
    if (!p->packed || p->found == p->digest) return WEIR_OK;
    return base_fail(err, WEIR_ERR_FORMAT,
                     "%s: the tensor table is not the one that was packed (digest %016" PRIx64
                     ", the file says %016" PRIx64 "): damaged or put together from others" AGAIN,
                     path, p->found, p->digest);
}
