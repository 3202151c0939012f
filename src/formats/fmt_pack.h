/* Packed files, private to formats: GGUF whose quantized matrices lie in the kernels' own layout (kernels.h,
 * docs/numerics.md), made by `weir pack`. Besides the model's own metadata such a file has
 *
 *   general.alignment  4096, so that tensors begin on blocks that can be read directly
 *   weir.pack.version  u32, of the layout
 *   weir.pack.rows     u32, rows of a group
 *   weir.pack.digest   u64, of the tensor table
 *
 * and packed tensors have type ids that nobody else knows, so that other programs refuse the file. */
#ifndef WEIR_FMT_PACK_H
#define WEIR_FMT_PACK_H

#include "fmt_store.h"

#define FMT_PACK_KEY_VERSION "weir.pack.version"
#define FMT_PACK_KEY_ROWS    "weir.pack.rows"
#define FMT_PACK_KEY_DIGEST  "weir.pack.digest"
/* A packed tensor's type id is this plus the id of its rows' type; the last byte holds the latter. */
#define FMT_PACK_TYPE      0x57500000u
#define FMT_PACK_ALIGNMENT 4096u

/* What a file says of its packing. */
typedef struct fmt_pack {
    bool packed;
    uint64_t digest; /* as the file has it */
    uint64_t found;  /* of the entries so far */
} fmt_pack;

/* From the metadata, before the tensor table. UNSUPPORTED for other layouts, FORMAT for damage. */
weir_status fmt_pack_read(fmt_pack *p, const fmt_values *values, uint64_t alignment, const char *path,
                          weir_error *err);
/* One entry, whose dtype is the file's type id and offset still relative: counts it and turns a packed type's
 * id into dtype and `packed`. entry: where it stands in the file. */
weir_status fmt_pack_entry(fmt_pack *p, fmt_tensor *t, const char *path, uint64_t entry, weir_error *err);
/* What can be said once a packed tensor's size is known. */
weir_status fmt_pack_check_tensor(const fmt_tensor *t, const char *path, uint64_t entry, weir_error *err);
/* After the last entry. */
weir_status fmt_pack_check_digest(const fmt_pack *p, const char *path, weir_error *err);

/* The digest of no entries, and with one more: its name, type id, dimensions and offset. */
uint64_t fmt_pack_digest_begin(void);
uint64_t fmt_pack_digest_add(uint64_t digest, const fmt_tensor *t, uint32_t type_id);

#endif
