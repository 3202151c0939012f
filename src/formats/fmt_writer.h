/* Writing models: GGUF v3 and safetensors with Hugging Face side files. Used by `weir synth`, `weir pack` and
 * by tests. */
#ifndef WEIR_FMT_WRITER_H
#define WEIR_FMT_WRITER_H

#include "fmt_model.h"

typedef struct fmt_writer fmt_writer;

typedef enum fmt_writer_kind { FMT_WRITE_GGUF, FMT_WRITE_SAFETENSORS } fmt_writer_kind;

/* Values and tensors are declared first, then data is written in the order of declaration. */
weir_status fmt_writer_create(base_env *env, fmt_writer_kind kind, const char *path, fmt_writer **out,
                              weir_error *err);
void fmt_writer_destroy(fmt_writer *w); /* takes NULL; without finish the file is removed */

weir_status fmt_writer_u32(fmt_writer *w, const char *key, uint32_t value, weir_error *err);
weir_status fmt_writer_f32(fmt_writer *w, const char *key, float value, weir_error *err);
weir_status fmt_writer_bool(fmt_writer *w, const char *key, bool value, weir_error *err);
weir_status fmt_writer_str(fmt_writer *w, const char *key, const char *value, weir_error *err);
weir_status fmt_writer_array(fmt_writer *w, const char *key, fmt_type type, uint64_t count, const void *data,
                             weir_error *err); /* numbers, little-endian as in the file */
weir_status fmt_writer_str_array(fmt_writer *w, const char *key, uint64_t count, const char *const *items,
                                 const uint32_t *lens /* NULL: NUL-terminated */, weir_error *err);
/* GGUF: a pair of m as it is, nested arrays included. Arrays stay in m's file until the first data, so m must
 * stay open; those of translated metadata are INVALID_ARGUMENT. */
weir_status fmt_writer_copy(fmt_writer *w, const fmt_model *m, const fmt_value *value, weir_error *err);
/* GGUF: makes it a packed file (fmt_model.h), before any tensor: tensors may be packed and begin on whole
 * blocks. */
weir_status fmt_writer_pack(fmt_writer *w, weir_error *err);
/* dims[0] runs fastest. For safetensors only F32, F16, BF16 and I32 are possible. */
weir_status fmt_writer_tensor(fmt_writer *w, const char *name, uint32_t dtype, uint32_t n_dims,
                              const uint64_t *dims, weir_error *err);
/* A tensor whose whole groups are given packed: two dimensions, FMT_PACK_ROWS rows at least. */
weir_status fmt_writer_packed_tensor(fmt_writer *w, const char *name, uint32_t dtype, const uint64_t *dims,
                                     weir_error *err);
/* Bytes that the file will have, once everything is declared. GGUF only. */
uint64_t fmt_writer_file_bytes(const fmt_writer *w);
/* A file of that name that is there by then is left alone, and finishing fails. */
void fmt_writer_keep_existing(fmt_writer *w);
/* Appends bytes to the present tensor; goes on to the next (with padding) when it is complete. */
weir_status fmt_writer_data(fmt_writer *w, const void *data, size_t bytes, weir_error *err);
/* Checks that all data was given, writes what is left and renames into place. */
weir_status fmt_writer_finish(fmt_writer *w, weir_error *err);

#endif
