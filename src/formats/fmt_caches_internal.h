/* What the readers of caches share (private to formats). */
#ifndef WEIR_FMT_CACHES_INTERNAL_H
#define WEIR_FMT_CACHES_INTERNAL_H

#include "fmt_caches.h"

#define FMT_CACHES_MAX_LAYERS 4096
#define FMT_CACHES_MAX_SIZE   (INT64_C(1) << 24) /* heads, dimensions, ranks */

/* How an architecture mixes sliding windows with full attention where its file does not list the layers. */
typedef enum fmt_window_rule {
    FMT_WINDOW_UNKNOWN,
    FMT_WINDOW_ALL,
    FMT_WINDOW_EVEN,     /* layers 0, 2, 4, ... slide */
    FMT_WINDOW_BUT_EVERY /* all slide but every n-th, counted from 1 */
} fmt_window_rule;

/* Defaults of configurations that leave out what equals them (configuration_*.py of transformers 5.x; the
 * same names in GGUF, see ggml's docs/gguf.md). 0: must be there. */
typedef struct fmt_cache_defaults {
    const char *type; /* model_type */
    const char *gguf; /* general.architecture */
    fmt_window_rule rule;
    uint32_t every; /* for BUT_EVERY */
    uint32_t kv_heads, head_dim, window, context;
    bool kv_as_heads; /* as many KV heads as heads where they are not given */
} fmt_cache_defaults;

/* NULL: not in the table. */
const fmt_cache_defaults *fmt_cache_defaults_find(const char *type, bool gguf);

/* Does layer i slide? `every` may come from the file. */
bool fmt_window_slides(fmt_window_rule rule, uint64_t every, uint64_t i);

/* Counts one more layer, by kind and numbers. UNSUPPORTED for too many kinds. */
weir_status fmt_caches_add(fmt_caches *c, const fmt_cache_layers *layer, const char *path, weir_error *err);
/* Notes in `unknown` what is 0 and must not be. */
void fmt_caches_note_unknown(fmt_caches *c);

/* A recurrent layer's state in values: conv_kernel - 1 columns of the convolution over inner + 2 x groups x
 * state channels (groups 0: Mamba, Gu and Dao 2023; else Mamba-2, Dao and Gu 2024), and inner x state. 0
 * where a number is missing or the product is absurd. */
uint64_t fmt_state_values(uint64_t inner, uint64_t state, uint64_t groups, uint64_t conv_kernel);
/* States are kept in F32. */
#define FMT_STATE_VALUE_BYTES 4

weir_status fmt_caches_read_hf(base_env *env, const char *folder, const char *name, fmt_caches *out,
                               weir_error *err);
weir_status fmt_caches_read_gguf(base_env *env, const char *path, fmt_caches *out, weir_error *err);

#endif
