/* What a model descriptor is made of, shared by the parsers (private to formats): an arena for names, a hash
 * index over them, and the lists of values and tensors. All memory is under the tag METADATA. */
#ifndef WEIR_FMT_STORE_H
#define WEIR_FMT_STORE_H

#include "fmt_model.h"

/* Limits that no sane file reaches; they bound what a hostile one can make us hold or do. */
#define FMT_MAX_ITEMS   (1u << 20)           /* tensors, and values, of one model */
#define FMT_MAX_TEXT    (256u * 1024 * 1024) /* bytes of names and strings */
#define FMT_MAX_NAME    512u                 /* bytes of a tensor's name */
#define FMT_MAX_FILES   512u                 /* parts of a split model */
#define FMT_FILE_MEMORY UINT32_MAX           /* an array's `file` when its bytes are in fmt_model.blob */

/* Bytes that are freed together. Zeroed: empty. */
typedef struct fmt_arena_chunk fmt_arena_chunk;
typedef struct fmt_arena {
    fmt_arena_chunk *head;
    size_t used;
    uint64_t total;
} fmt_arena;

/* A copy of len bytes with a NUL behind it; NULL on failure. */
char *fmt_arena_copy(base_env *env, fmt_arena *a, const void *data, size_t len, weir_error *err);
void fmt_arena_finish(base_env *env, fmt_arena *a);

/* Open addressing over items whose first member is their name. Seeded, so that a file cannot be made to
 * collide on purpose. */
typedef struct fmt_index {
    uint32_t *slots;  /* item + 1; 0: free */
    uint64_t n_slots; /* power of two */
    uint64_t seed;
} fmt_index;

typedef struct fmt_values {
    fmt_value *items;
    uint32_t n, cap;
    fmt_index index;
} fmt_values;

typedef struct fmt_tensors {
    fmt_tensor *items;
    uint32_t n, cap;
    fmt_index index;
} fmt_tensors;

const fmt_value *fmt_values_find(const fmt_values *l, const char *key);
/* key must outlive the list. FORMAT when the key is there already; `path` is for the message. */
weir_status fmt_values_add(base_env *env, fmt_values *l, const fmt_value *v, const char *path,
                           weir_error *err);
void fmt_values_finish(base_env *env, fmt_values *l);

const fmt_tensor *fmt_tensors_find(const fmt_tensors *l, const char *name);
weir_status fmt_tensors_add(base_env *env, fmt_tensors *l, const fmt_tensor *t, const char *path,
                            weir_error *err);
void fmt_tensors_finish(base_env *env, fmt_tensors *l);

struct fmt_model {
    base_env *env;
    char *path;         /* as given to open, for messages */
    char *dir;          /* folder of the side files; NULL when there are none */
    const char *format; /* static text */
    bool packed;
    base_file **files;
    uint32_t n_files, cap_files;
    fmt_arena arena;
    fmt_values values;
    fmt_tensors tensors;
    base_buf blob; /* elements of arrays that come from no file */
};

/* Opens path as the next file of the model; its number is n_files - 1 afterwards. */
weir_status fmt_model_add_file(fmt_model *m, const char *path, weir_error *err);

/* Metadata that is translated rather than read. Keys are copied. */
weir_status fmt_model_put_u32(fmt_model *m, const char *key, uint32_t v, weir_error *err);
weir_status fmt_model_put_f32(fmt_model *m, const char *key, double v, weir_error *err);
weir_status fmt_model_put_str(fmt_model *m, const char *key, const char *text, size_t len, weir_error *err);
/* Elements as they would stand in a GGUF file (little-endian). */
weir_status fmt_model_put_array(fmt_model *m, const char *key, fmt_type type, uint64_t count,
                                const void *data, size_t bytes, weir_error *err);

/* True when every byte is printable (UTF-8 above ASCII passes): names end up in messages and as C strings. */
bool fmt_name_is_clean(const char *name, size_t len);

/* Fills t->bytes from dtype and dims. UNSUPPORTED for an unknown type (`type_text` names it), FORMAT for a
 * zero dimension, a row that is no multiple of the block, or a product that overflows. offset: where the
 * entry stands. */
weir_status fmt_tensor_size(fmt_tensor *t, const char *path, uint64_t offset, weir_error *err);

/* The extents of tensors [first, n) must not overlap; with no_gaps they must also fill [begin, end) exactly.
 */
weir_status fmt_tensors_check_extents(base_env *env, const fmt_tensors *l, uint32_t first, bool no_gaps,
                                      uint64_t begin, uint64_t end, const char *path, weir_error *err);

/* Bytes of one element of a fixed-size type; 0 for strings, arrays and unknown types. */
uint32_t fmt_type_bytes(uint32_t type);
const char *fmt_type_name(uint32_t type);

/* "dir/name" in ledger memory; NULL on failure. */
char *fmt_path_join(base_env *env, const char *dir, const char *name, weir_error *err);
/* The folder part of a path ("." when it has none). */
char *fmt_path_dir(base_env *env, const char *path, weir_error *err);
bool fmt_path_ends(const char *path, const char *suffix);

#endif
