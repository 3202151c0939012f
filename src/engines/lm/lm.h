/* The one public header of the language-model engine: llama, qwen2, qwen3, gemma3.
 *
 * From a model file's description it reads the hyperparameters, checks that every tensor is there with the
 * right shape, registers the weights as units (one per decoder layer, one for the head), and builds programs.
 */
#ifndef WEIR_LM_H
#define WEIR_LM_H

#include "base/base.h"
#include "formats/formats.h"
#include "graph/graph.h"
#include "memory/memory.h"

typedef struct lm_model lm_model;

typedef struct lm_hparams {
    const char *arch; /* "llama", "qwen2", "qwen3", "gemma3" */
    uint32_t n_layers, n_vocab, hidden, ffn;
    uint32_t n_heads, n_kv_heads, head_dim;
    uint32_t context_tokens; /* what the model was trained for */
    uint32_t window;         /* 0: no sliding-window layers */
    bool tied;               /* head = embedding table */
    uint64_t n_params;
} lm_hparams;

/* m must outlive the result. Errors: UNSUPPORTED, MISSING_TENSOR, FORMAT, each naming key or tensor, wanted
 * and there. */
weir_status lm_model_create(base_env *env, const fmt_model *m, lm_model **out, weir_error *err);
void lm_model_destroy(lm_model *lm); /* takes NULL */
const lm_hparams *lm_model_hparams(const lm_model *lm);
mem_component *lm_model_component(const lm_model *lm); /* owned by the model */

/* Positions a layer's cache must hold: all of the context, or for sliding-window layers window + max_rows,
 * rounded up to 16. */
uint32_t lm_kv_capacity(const lm_model *lm, uint32_t layer, uint32_t context_tokens, uint32_t max_rows);
/* Bytes of one sequence's caches on a device. */
uint64_t lm_kv_bytes(const lm_model *lm, const dev_device *dev, uint32_t kv_dtype, uint32_t context_tokens,
                     uint32_t max_rows);

/* One sequence's caches for all layers (tag KV). */
typedef struct lm_kv lm_kv;
weir_status lm_kv_create(base_env *env, const lm_model *lm, const dev_device *dev, uint32_t kv_dtype,
                         uint32_t context_tokens, uint32_t max_rows, lm_kv **out, weir_error *err);
/* In the memory of a device; the source outlives the caches. NULL: as above. */
weir_status lm_kv_create_on(base_env *env, const lm_model *lm, const dev_device *dev, mem_source *source,
                            uint32_t kv_dtype, uint32_t context_tokens, uint32_t max_rows, lm_kv **out,
                            weir_error *err);
void lm_kv_destroy(lm_kv *kv); /* takes NULL */
const dev_kv *lm_kv_layer(const lm_kv *kv, uint32_t layer);

/* The program for passes of up to options->max_rows rows; graph_result gives logits of n_vocab floats. */
weir_status lm_program_create(base_env *env, lm_model *lm, dev_device *dev, const graph_options *options,
                              graph_program **out, weir_error *err);

#endif
