/* What layers remember of the text before them, read from a model's configuration: enough to say what a
 * session's cache takes, for architectures that no engine runs as well. */
#ifndef WEIR_FMT_CACHES_H
#define WEIR_FMT_CACHES_H

#include "base/base.h"

typedef enum fmt_cache_kind {
    FMT_CACHE_FULL,
    FMT_CACHE_WINDOW,
    FMT_CACHE_LATENT,
    FMT_CACHE_STATE,
    FMT_CACHE_NONE /* a layer without attention or state; never in fmt_caches */
} fmt_cache_kind;

/* Layers that are alike. Numbers that the file does not tell are 0. */
typedef struct fmt_cache_layers {
    fmt_cache_kind kind;
    uint64_t n_layers;
    uint64_t kv_heads, head_dim, value_dim; /* FULL, WINDOW */
    uint64_t window;                        /* WINDOW */
    uint64_t latent_rank, rope_dim;         /* LATENT */
    uint64_t state_bytes;                   /* STATE */
} fmt_cache_layers;

#define FMT_MAX_CACHES 16
typedef struct fmt_caches {
    char architecture[64];
    uint32_t n;
    fmt_cache_layers items[FMT_MAX_CACHES];
    uint64_t context_tokens;
    char unknown[256]; /* "kv-heads, window"; "" where all is known */
} fmt_caches;

/* path: a config.json, a folder with one, or a .gguf file; only headers are read. Errors: NOT_FOUND, FORMAT,
 * UNSUPPORTED where the kinds of layers cannot be told. */
weir_status fmt_caches_read(base_env *env, const char *path, fmt_caches *out, weir_error *err);

#endif
