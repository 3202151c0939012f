/* safetensors (github.com/huggingface/safetensors, README "Format") and Hugging Face folders, private to
 * formats. A file is the header's length (u64), the header (JSON), the tensors' data without gaps. */
#ifndef WEIR_FMT_SAFETENSORS_H
#define WEIR_FMT_SAFETENSORS_H

#include "fmt_hf.h"
#include "fmt_reader.h"
#include "fmt_store.h"

#define FMT_SAFETENSORS_MAX_HEADER 100000000u /* the format's own limit */

/* A single .safetensors file, already file 0 of m, with the config.json beside it where there is one. The
 * name of a shard leads to the index beside it. */
weir_status fmt_safetensors_open(fmt_model *m, const char *path, weir_error *err);
/* path is a ...safetensors.index.json. */
weir_status fmt_shards_open(fmt_model *m, const char *path, weir_error *err);
/* When path is a folder with model.safetensors or its index, opens it; else *is_folder is false. NOT_FOUND
 * when only config.json is there. */
weir_status fmt_folder_open(fmt_model *m, const char *path, bool *is_folder, weir_error *err);

/* Reads the header of file number `file`, adding its tensors under GGUF's names. */
weir_status fmt_safetensors_file(fmt_model *m, uint32_t file, fmt_hf_arch arch, weir_error *err);

#endif
