/* What the files of the language-model engine share. */
#ifndef WEIR_LM_INTERNAL_H
#define WEIR_LM_INTERNAL_H

#include "lm.h"

#include "kernels/kernels.h" /* kern_pow and friends: frequencies that are the same on every machine */

#define LM_MAX_LAYERS   4096
#define LM_MAX_HEAD_DIM 1024

/* What distinguishes the architectures. */
typedef struct lm_arch {
    const char *name;
    bool neox;     /* RoPE rotates (i, i + d/2) in GGUF's weight order, else (2i, 2i + 1) */
    bool qkv_bias; /* must be there; elsewhere biases are used where the file has them */
    bool qk_norm;
    bool gemma; /* scaled embedding, norms behind attention and feed-forward, GELU, two kinds of layers */
} lm_arch;

/* One kind of rotary embedding; gemma3 has two. */
typedef struct lm_rope {
    double *inv_freq; /* n_rot / 2 */
    double mscale;
    uint32_t n_rot;
} lm_rope;

typedef struct lm_layer {
    graph_weight attn_norm, q, k, v, o;
    graph_weight q_bias, k_bias, v_bias, o_bias;
    graph_weight q_norm, k_norm;
    graph_weight post_attn_norm;
    graph_weight ffn_norm, gate, up, down;
    graph_weight gate_bias, up_bias, down_bias;
    graph_weight post_ffn_norm;
    bool sliding; /* attends to the last `window` positions only */
} lm_layer;

struct lm_model {
    base_env *env;
    const fmt_model *file;
    const lm_arch *arch;
    lm_hparams hp;
    mem_component *component;

    float rms_eps, norm_offset, embed_scale, attn_scale, attn_softcap, final_softcap;
    bool neox;
    bool local_rope; /* sliding layers use rope[1] */
    lm_rope rope[2];

    lm_layer *layers;
    graph_weight embed, output_norm, output;
};

/* Keys of the architecture ("llama." + key), with bounds; FORMAT names the key. A missing key without
 * fallback (UINT64_MAX) is FORMAT as well. */
weir_status lm_key_u32(const lm_model *lm, const char *key, uint64_t fallback, uint32_t min, uint32_t max,
                       uint32_t *out, weir_error *err);
/* NaN as fallback: the key must be there. The value must be finite and within [min, max]. */
weir_status lm_key_f64(const lm_model *lm, const char *key, double fallback, double min, double max,
                       double *out, weir_error *err);
const fmt_value *lm_key_find(const lm_model *lm, const char *key);
/* *out is NULL where the key is missing. */
weir_status lm_key_str(const lm_model *lm, const char *key, const char **out, weir_error *err);

/* Each fills its part of lm, in this order. */
weir_status lm_hparams_read(lm_model *lm, weir_error *err);
weir_status lm_layer_kinds_read(lm_model *lm, weir_error *err);
weir_status lm_rope_read(lm_model *lm, weir_error *err);
weir_status lm_weights_register(lm_model *lm, weir_error *err);

#endif
