/* The functions of a table that a vector layer makes, and the table.
 *
 * The algorithms of this folder are written once, over a vector layer: a header with V_NAME, V_LANES, vi, vf
 * and the v_ functions (x86/x86_vec_avx512.h, x86/x86_vec_avx2.h, arm/arm_vec_neon.h), which a source file
 * includes first. */
#ifndef WEIR_VEC_INTERNAL_H
#define WEIR_VEC_INTERNAL_H

#include "kernels/kern_tables.h"

#define VEC_DECLARE(set)                                                                                     \
    void kern_matmul_##set(const kern_matmul *m, size_t row_begin, size_t row_end, void *scratch);           \
    void kern_quantize_##set(kern_act act, const float *x, size_t k, void *dst);                             \
    void kern_rms_norm_##set(const float *x, const float *w, float w_offset, float eps, size_t n, float *y); \
    void kern_rope_##set(float *x, size_t n_heads, size_t head_dim, size_t n_rot, const float *table,        \
                         bool neox);                                                                         \
    void kern_kv_store_##set(const kern_kv *kv, uint32_t n_kv_heads, uint32_t head_dim, uint32_t position,   \
                             const float *k, const float *v);                                                \
    void kern_attention_##set(const kern_attention *a, uint32_t head_begin, uint32_t head_end,               \
                              void *scratch);                                                                \
    void kern_attention_scores_##set(const kern_attention_cut *c, uint32_t head_begin, uint32_t head_end,    \
                                     uint32_t segment, void *scratch);                                       \
    void kern_attention_values_##set(const kern_attention_cut *c, uint32_t head_begin, uint32_t head_end,    \
                                     uint32_t segment, void *scratch);                                       \
    void kern_attention_finish_##set(const kern_attention_cut *c, uint32_t head_begin, uint32_t head_end);   \
    void kern_glu_##set(kern_glu kind, const float *gate, const float *up, size_t n, float *y);              \
    void kern_add_##set(const float *a, const float *b, size_t n, float *y);                                 \
    void kern_scale_##set(float *x, size_t n, float s);                                                      \
    void kern_softcap_##set(float *x, size_t n, float cap);                                                  \
    float kern_softmax_##set(const float *x, size_t n, float inv_temperature, float *p);

#if defined(__x86_64__)
VEC_DECLARE(avx512)
VEC_DECLARE(avx2)
#elif defined(__aarch64__)
VEC_DECLARE(neon)
#endif

#define VEC_TABLE(set)                                                                                       \
    const kern_table kern_##set##_table = {                                                                  \
        .name = #set,                                                                                        \
        .dequantize = kern_ref_dequantize,                                                                   \
        .quantize = kern_quantize_##set,                                                                     \
        .matmul = kern_matmul_##set,                                                                         \
        .rms_norm = kern_rms_norm_##set,                                                                     \
        .rope = kern_rope_##set,                                                                             \
        .kv_store = kern_kv_store_##set,                                                                     \
        .attention = kern_attention_##set,                                                                   \
        .attention_scores = kern_attention_scores_##set,                                                     \
        .attention_values = kern_attention_values_##set,                                                     \
        .attention_finish = kern_attention_finish_##set,                                                     \
        .glu = kern_glu_##set,                                                                               \
        .add = kern_add_##set,                                                                               \
        .scale = kern_scale_##set,                                                                           \
        .softcap = kern_softcap_##set,                                                                       \
        .softmax = kern_softmax_##set,                                                                       \
    }

#endif
