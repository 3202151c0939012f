/* The reference table: what every other table must equal bit for bit. */
#include "kernels/kern_tables.h"

const kern_table kern_ref_table = {
    .name = "ref",
    .dequantize = kern_ref_dequantize,
    .quantize = kern_ref_quantize,
    .matmul = kern_ref_matmul,
    .rms_norm = kern_ref_rms_norm,
    .rope = kern_ref_rope,
    .kv_store = kern_ref_kv_store,
    .attention = kern_ref_attention,
    .attention_scores = kern_ref_attention_scores,
    .attention_values = kern_ref_attention_values,
    .attention_finish = kern_ref_attention_finish,
    .glu = kern_ref_glu,
    .add = kern_ref_add,
    .scale = kern_ref_scale,
    .softcap = kern_ref_softcap,
    .softmax = kern_ref_softmax,
};
