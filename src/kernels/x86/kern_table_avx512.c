/* The AVX-512 table. */
#include "x86_internal.h"

const kern_table kern_avx512_table = {
    .name = "avx512",
    .dequantize = kern_ref_dequantize,
    .quantize = kern_ref_quantize,
    .matmul = kern_matmul_avx512,
    .rms_norm = kern_ref_rms_norm,
    .rope = kern_ref_rope,
    .kv_store = kern_ref_kv_store,
    .attention = kern_ref_attention,
    .glu = kern_ref_glu,
    .add = kern_ref_add,
    .scale = kern_ref_scale,
    .softcap = kern_ref_softcap,
    .softmax = kern_ref_softmax,
};
