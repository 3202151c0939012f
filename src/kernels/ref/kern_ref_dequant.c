/* Blocks of every weight type in one plain form, and their values as floats, equal to the `gguf` package's.
 */
#include "kern_ref.h"
#include "kernels/kern_blocks.h"

static bool unpack_32(uint32_t dtype, const uint8_t *src, kern_ref_block *out)
{
    const kern_q4_1 *b =
        (const kern_q4_1 *)src; /* d, and m where there is one, stand first in all but MXFP4 */
    out->d = kern_load_f16(b->d);
    out->m = 0.0f;
    out->has_min = dtype == BASE_Q4_1 || dtype == BASE_Q5_1;
    if (out->has_min) out->m = kern_load_f16(b->m);
    switch (dtype) {
    case BASE_Q8_0: memcpy(out->w, ((const kern_q8_0 *)src)->qs, 32); return true;
    case BASE_Q4_0: kern_unpack_q4(((const kern_q4_0 *)src)->qs, 8, out->w); return true;
    case BASE_Q4_1: kern_unpack_q4(b->qs, 0, out->w); return true;
    case BASE_Q5_0: {
        const kern_q5_0 *q = (const kern_q5_0 *)src;
        kern_unpack_q5(q->qs, q->qh, 16, out->w);
        return true;
    }
    case BASE_Q5_1: {
        const kern_q5_1 *q = (const kern_q5_1 *)src;
        kern_unpack_q5(q->qs, q->qh, 0, out->w);
        return true;
    }
    case BASE_IQ4_NL: kern_unpack_table(((const kern_iq4_nl *)src)->qs, kern_iq4_values, out->w); return true;
    case BASE_MXFP4: {
        const kern_mxfp4 *q = (const kern_mxfp4 *)src;
        out->d = kern_e8m0_half(q->e);
        kern_unpack_table(q->qs, kern_mxfp4_values, out->w);
        return true;
    }
    default: return false;
    }
}

static void unpack_q2_k(const kern_q2_k *b, kern_ref_block *out)
{
    out->d = kern_load_f16(b->d);
    out->m = kern_load_f16(b->dmin);
    out->has_min = true;
    for (int s = 0; s < 16; s++) {
        out->scale[s] = b->scales[s] & 15;
        out->min[s] = b->scales[s] >> 4;
    }
    kern_unpack_q2_k(b->qs, out->w);
}

/* Q4_K and Q5_K begin alike. */
static void unpack_q4_5_k(uint32_t dtype, const uint8_t *src, kern_ref_block *out)
{
    const kern_q4_k *b = (const kern_q4_k *)src;
    uint8_t scale[8], min[8];
    out->d = kern_load_f16(b->d);
    out->m = kern_load_f16(b->dmin);
    out->has_min = true;
    kern_q4_k_scales(b->scales, scale, min);
    for (int s = 0; s < 16; s++) {
        out->scale[s] = scale[s / 2];
        out->min[s] = min[s / 2];
    }
    if (dtype == BASE_Q4_K)
        kern_unpack_q4_k(b->qs, out->w);
    else
        kern_unpack_q5_k((const kern_q5_k *)src, out->w);
}

static void unpack_q3_k(const kern_q3_k *b, kern_ref_block *out)
{
    int8_t scale[16];
    out->d = kern_load_f16(b->d);
    kern_q3_k_scales(b->scales, scale);
    for (int s = 0; s < 16; s++) out->scale[s] = scale[s];
    kern_unpack_q3_k(b, out->w);
}

static void unpack_q6_k(const kern_q6_k *b, kern_ref_block *out)
{
    out->d = kern_load_f16(b->d);
    for (int s = 0; s < 16; s++) out->scale[s] = b->scales[s];
    kern_unpack_q6_k(b, out->w);
}

static void unpack_iq4_xs(const kern_iq4_xs *b, kern_ref_block *out)
{
    int8_t scale[8];
    out->d = kern_load_f16(b->d);
    kern_iq4_xs_scales(b, scale);
    for (int s = 0; s < 16; s++) out->scale[s] = scale[s / 2];
    kern_unpack_iq4_xs(b, out->w);
}

bool kern_ref_unpack(uint32_t dtype, const uint8_t *src, kern_ref_block *out)
{
    out->m = 0.0f;
    out->has_min = false;
    switch (dtype) {
    case BASE_Q2_K: unpack_q2_k((const kern_q2_k *)src, out); return true;
    case BASE_Q3_K: unpack_q3_k((const kern_q3_k *)src, out); return true;
    case BASE_Q4_K:
    case BASE_Q5_K: unpack_q4_5_k(dtype, src, out); return true;
    case BASE_Q6_K: unpack_q6_k((const kern_q6_k *)src, out); return true;
    case BASE_IQ4_XS: unpack_iq4_xs((const kern_iq4_xs *)src, out); return true;
    default: return unpack_32(dtype, src, out);
    }
}

size_t kern_ref_block_elements(uint32_t dtype)
{
    switch (kern_act_for(dtype)) {
    case KERN_ACT_F32: return 1;
    case KERN_ACT_Q32: return KERN_QK;
    case KERN_ACT_Q256: return KERN_QKK;
    default: return 0;
    }
}

static void values_32(const kern_ref_block *b, float *dst)
{
    for (int i = 0; i < 32; i++) {
        float v = b->d * (float)b->w[i];
        dst[i] = b->has_min ? v + b->m : v;
    }
}

static void values_256(const kern_ref_block *b, float *dst)
{
    for (int s = 0; s < 16; s++) {
        float scale = b->d * (float)b->scale[s];
        float min = b->has_min ? b->m * (float)b->min[s] : 0.0f;
        for (int i = 16 * s; i < 16 * s + 16; i++) {
            float v = scale * (float)b->w[i];
            dst[i] = b->has_min ? v - min : v;
        }
    }
}

static void dequantize_floats(uint32_t dtype, const uint8_t *src, size_t n, float *dst)
{
    if (dtype == BASE_F32)
        memcpy(dst, src, n * sizeof(float));
    else if (dtype == BASE_F16)
        for (size_t i = 0; i < n; i++) dst[i] = kern_load_f16(src + 2 * i);
    else
        for (size_t i = 0; i < n; i++) dst[i] = kern_bf16_value(kern_load_u16(src + 2 * i));
}

void kern_ref_dequantize(uint32_t dtype, const void *src, size_t n, float *dst)
{
    const uint8_t *p = src;
    size_t elements = kern_ref_block_elements(dtype);
    size_t bytes = base_dtype_get(dtype)->block_bytes;
    if (elements == 1) dequantize_floats(dtype, p, n, dst);
    if (elements <= 1) return;
    for (size_t i = 0; i + elements <= n; i += elements, p += bytes) {
        kern_ref_block b;
        if (!kern_ref_unpack(dtype, p, &b)) return;
        if (elements == KERN_QK)
            values_32(&b, dst + i);
        else
            values_256(&b, dst + i);
    }
}
