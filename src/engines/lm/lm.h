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

/* ---- the caches of a sequence (lm_kv.c) ---- */

/* How caches come by their memory (R9.2, R11.1): all of the context at once; in steps of LM_KV_STEP
 * positions, from none on; or from LM_KV_STEP positions on by doubling. */
typedef enum lm_kv_growth { LM_KV_FULL, LM_KV_DYNAMIC, LM_KV_STATIC } lm_kv_growth;
#define LM_KV_STEP 512u

typedef struct lm_kv_shape {
    lm_kv_growth growth;
    uint32_t dtype;          /* F16 or F32 */
    uint32_t context_tokens; /* positions at most */
    uint32_t max_rows;       /* of a pass */
} lm_kv_shape;

/* Positions a layer's cache must hold: all of the context, or for sliding-window layers window + max_rows,
 * rounded up to 16. */
uint32_t lm_kv_capacity(const lm_model *lm, uint32_t layer, uint32_t context_tokens, uint32_t max_rows);
/* Positions that caches have room for where n are needed; 0: those of a sequence that has not begun. */
uint32_t lm_kv_room(const lm_kv_shape *s, uint32_t n_positions);
/* Bytes of one sequence's caches with room for n positions, and what growing to that takes on top for a
 * moment: the old buffer of the layer that is copied (R9.2). UINT64_MAX: more than can be counted. */
uint64_t lm_kv_bytes(const lm_model *lm, const dev_device *dev, const lm_kv_shape *s, uint32_t n_positions);
uint64_t lm_kv_copy_bytes(const lm_model *lm, const dev_device *dev, const lm_kv_shape *s,
                          uint32_t n_positions);

/* One sequence's caches for all layers (tag KV; with a source in the memory of its device). lm, dev and
 * source outlive them. Errors: INVALID_ARGUMENT, BUDGET, OUT_OF_MEMORY, DEVICE_MEMORY. */
typedef struct lm_kv lm_kv;
weir_status lm_kv_create(base_env *env, const lm_model *lm, const dev_device *dev,
                         mem_source *source /* NULL: in host memory */, const lm_kv_shape *s, lm_kv **out,
                         weir_error *err);
void lm_kv_destroy(lm_kv *kv); /* takes NULL */
/* Positions it has room for now. */
uint32_t lm_kv_positions(const lm_kv *kv);
/* Makes room for n positions; what is there stays. Not while a pass runs. After an error nothing has changed
 * (on a device layers may stay larger, until the caches are shrunk to none). */
weir_status lm_kv_grow(lm_kv *kv, uint32_t n_positions, weir_error *err);
/* Back to the room of n positions, of which what lies there stays; 0: of a sequence that has not begun. Only
 * where no ring has gone round: positions from n on were never written, or n is 0. */
void lm_kv_shrink(lm_kv *kv, uint32_t n_positions);
/* A layer without memory has capacity 0. */
const dev_kv *lm_kv_layer(const lm_kv *kv, uint32_t layer);

/* The program for passes of up to options->max_rows rows; graph_result gives logits of n_vocab floats. */
weir_status lm_program_create(base_env *env, lm_model *lm, dev_device *dev, const graph_options *options,
                              graph_program **out, weir_error *err);

#endif
