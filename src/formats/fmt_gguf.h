/* GGUF (ggml documentation, docs/gguf.md), private to formats. A file is
 *
 *   "GGUF" version(u32) n_tensors(u64) n_values(u64)
 *   values:  key, type(u32), value           key and strings: length(u64), bytes
 *   entries: name, n_dims(u32), dims(u64 each), type(u32), offset(u64, from the data's start)
 *   zeros up to the alignment; the tensors' data, each at a multiple of the alignment */
#ifndef WEIR_FMT_GGUF_H
#define WEIR_FMT_GGUF_H

#include "fmt_pack.h"
#include "fmt_reader.h"
#include "fmt_store.h"

#define FMT_GGUF_ALIGNMENT 32u /* where general.alignment is absent */

/* Reads the model whose only file so far is a GGUF file; adds the other parts of a split one. */
weir_status fmt_gguf_open(fmt_model *m, weir_error *err);

/* Reads file number `file` of m: its metadata into `values` (strings into `arena`), its tensors behind those
 * of m. *version is the format's version, *packed whether it is a packed file. */
weir_status fmt_gguf_part(fmt_model *m, uint32_t file, fmt_values *values, fmt_arena *arena,
                          uint32_t *version, bool *packed, weir_error *err);

#endif
