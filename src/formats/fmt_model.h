/* A model's files, described: GGUF v2/v3 (single or split) and safetensors (single, sharded, or a folder in
 * Hugging Face's layout).
 *
 * Memory: large arrays (vocabularies) stay in the file and are read through fmt_array_open; scalars, strings
 * up to 1 MiB and the tensor table are held, under the ledger tag METADATA. Every count, length, product and
 * offset is checked against the file before use. */
#ifndef WEIR_FMT_MODEL_H
#define WEIR_FMT_MODEL_H

#include "base/base.h"

typedef struct fmt_model fmt_model;

/* GGUF's value types (ggml documentation, docs/gguf.md). */
typedef enum fmt_type {
    FMT_U8,
    FMT_I8,
    FMT_U16,
    FMT_I16,
    FMT_U32,
    FMT_I32,
    FMT_F32,
    FMT_BOOL,
    FMT_STRING,
    FMT_ARRAY,
    FMT_U64,
    FMT_I64,
    FMT_F64
} fmt_type;

typedef struct fmt_value {
    const char *key;
    fmt_type type;
    union {
        uint64_t u; /* unsigned and bool */
        int64_t i;
        double f;
        struct {
            const char *data;
            uint64_t len;
        } str; /* NUL-terminated as well */
        struct {
            fmt_type type;
            uint64_t count;
            uint32_t file;
            uint64_t offset;
            uint64_t bytes;
        } array;
    } v;
} fmt_value;

/* Packed files (`weir pack`): the layout they are written in, the kernels' own. */
#define FMT_PACK_VERSION 1u
#define FMT_PACK_ROWS    16u

#define FMT_MAX_DIMS     4
typedef struct fmt_tensor {
    const char *name;      /* GGUF's name ("blk.0.attn_q.weight") */
    const char *file_name; /* the name in the file where that differs, else the same pointer */
    uint32_t dtype;        /* base_dtype */
    bool packed; /* whole groups of FMT_PACK_ROWS rows are packed; then n_dims is 2 and there is one at least
                  */
    uint32_t n_dims;             /* 1..4 */
    uint64_t dims[FMT_MAX_DIMS]; /* dims[0] runs fastest (the row length); unused ones are 1 */
    uint32_t file;               /* index for fmt_model_file */
    uint64_t offset;             /* absolute in that file; checked */
    uint64_t bytes;              /* dims product in blocks; checked against the file's end */
} fmt_tensor;

/* path: a .gguf file (of a split model: any part; all parts must be there), a .safetensors file, a
 * model.safetensors.index.json, or a folder with such files and config.json.
 * Errors: NOT_FOUND, PERMISSION, IO, TRUNCATED, FORMAT, UNSUPPORTED (a version, a type); each names file and
 * offset. A packed file of another version, or whose tensor table is not the one that was packed, is refused.
 */
weir_status fmt_model_open(base_env *env, const char *path, fmt_model **out, weir_error *err);
void fmt_model_close(fmt_model *m); /* takes NULL */

const char *fmt_model_format(const fmt_model *m); /* "GGUF v3", "GGUF v3 packed", "safetensors" */
bool fmt_model_is_packed(const fmt_model *m);
uint32_t fmt_model_n_files(const fmt_model *m);
base_file *fmt_model_file(const fmt_model *m, uint32_t i);

uint64_t fmt_model_n_values(const fmt_model *m);
const fmt_value *fmt_model_value(const fmt_model *m, uint64_t i);
const fmt_value *fmt_model_find_value(const fmt_model *m, const char *key); /* NULL when absent */

uint64_t fmt_model_n_tensors(const fmt_model *m);
const fmt_tensor *fmt_model_tensor(const fmt_model *m, uint64_t i);
uint64_t fmt_model_tensor_index(const fmt_model *m, const fmt_tensor *t);      /* of one of its own */
const fmt_tensor *fmt_model_find_tensor(const fmt_model *m, const char *name); /* NULL when absent; hashed */

/* Typed reads. A missing key gives `fallback`; a value of another type or out of [min, max] is FORMAT. */
weir_status fmt_get_u64(const fmt_model *m, const char *key, uint64_t fallback, uint64_t min, uint64_t max,
                        uint64_t *out, weir_error *err);
weir_status fmt_get_f64(const fmt_model *m, const char *key, double fallback, double *out, weir_error *err);
weir_status fmt_get_bool(const fmt_model *m, const char *key, bool fallback, bool *out, weir_error *err);
/* NULL when absent or no string. */
const char *fmt_get_str(const fmt_model *m, const char *key);
/* The same for keys that must not be passed over: FORMAT when the key holds something else than a string. */
weir_status fmt_get_text(const fmt_model *m, const char *key, const char **out, weir_error *err);

/* Sequential reader of an array value, through a small buffer. An array that comes from no file (translated
 * metadata) has `file` UINT32_MAX and is read the same way. Nested arrays are checked, but not offered. */
typedef struct fmt_array fmt_array;
weir_status fmt_array_open(base_env *env, const fmt_model *m, const fmt_value *value, fmt_array **out,
                           weir_error *err);
void fmt_array_close(fmt_array *a);
/* Numbers of any type, converted. Past the end: INTERNAL. */
weir_status fmt_array_next_f64(fmt_array *a, double *out, weir_error *err);
weir_status fmt_array_next_i64(fmt_array *a, int64_t *out, weir_error *err);
/* *data is valid until the next call. */
weir_status fmt_array_next_str(fmt_array *a, const char **data, uint64_t *len, weir_error *err);

/* Hugging Face folders (fmt_hf_*.c) translate config.json to GGUF's keys and tensor names. Gemma 3's local
 * rope base is "gemma3.rope.freq_base_swa"; a sliding window always comes with
 * "attention.sliding_window_pattern", an array of bools, true where the layer slides;
 * rope.scaling.attn_factor has GGUF's meaning (it multiplies 0.1 ln(factor) + 1). Keys of our own, for what
 * GGUF's conversion bakes into weights or has no key for:
 *
 * - weir.rope_style: "norm" for pairs (2i, 2i+1), "neox" for pairs (i, i + d/2).
 * - weir.norm_offset (f32): added to every RMSNorm weight (Gemma: 1).
 * - weir.rope_llama3.factor, .low_freq_factor, .high_freq_factor (f32), .original_context_length (u32):
 *   where GGUF has the tensor rope_freqs.weight.
 * - weir.eos_token_ids (array of i32): all ids that end an answer, when there are several; the first is also
 *   tokenizer.ggml.eos_token_id.
 * - weir.tokenizer_json, weir.tokenizer_config: paths of those files, when present. */
/* The folder's side files; NULL when absent. Owned by the model. */
const char *fmt_model_dir(const fmt_model *m);

#endif
