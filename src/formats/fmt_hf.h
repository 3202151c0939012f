/* Hugging Face's configuration and tensor names in GGUF's words, private to formats. */
#ifndef WEIR_FMT_HF_H
#define WEIR_FMT_HF_H

#include "fmt_store.h"

typedef enum fmt_hf_arch {
    FMT_HF_NONE, /* no config.json: names stay as they are */
    FMT_HF_LLAMA,
    FMT_HF_QWEN2,
    FMT_HF_QWEN3,
    FMT_HF_GEMMA3
} fmt_hf_arch;

/* Reads config.json, generation_config.json and chat_template.jinja in m->dir, notes the tokenizer's files.
 * Without config.json nothing is added and *arch is NONE. */
weir_status fmt_hf_load(fmt_model *m, fmt_hf_arch *arch, weir_error *err);

/* GGUF's name for a tensor into buf (cap bytes); false where there is none and the name stays. */
bool fmt_hf_tensor_name(fmt_hf_arch arch, const char *name, char *buf, size_t cap);

#endif
