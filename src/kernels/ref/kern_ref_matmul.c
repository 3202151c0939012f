/* Quantizing activations, and matrix products: the definition (docs/numerics.md).
 *
 * Integer sums cannot overflow int32. With |q| <= 127 the largest are
 *   blocks of 32:  32 x 128 x 127                      =     520,192   (Q8_0; the others have |w| <= 127)
 *   Q2_K:   16 x 15 x (16 x  3 x 127)                  =   1,463,040,   minima 16 x 15 x (16 x 127) = 487,680
 *   Q3_K:   16 x 32 x (16 x  4 x 127)                  =   4,161,536
 *   Q4_K:    8 x 63 x (32 x 15 x 127)                  =  30,723,840,   minima  8 x 63 x (32 x 127) =
 * 2,048,256 Q5_K:    8 x 63 x (32 x 31 x 127)                  =  63,495,936,   minima as Q4_K Q6_K:   16 x
 * 128 x (16 x 32 x 127)                 = 133,169,152 IQ4_XS:  8 x 32 x (32 x 127 x 127)                 =
 * 132,128,768 all below 2^27, far from 2^31; the partial sums in any order are no larger. */
#include "kern_ref.h"
#include "kernels/kern_blocks.h"
#include "kernels/kern_math.h"

/* Tokens that share one unpacked weight block. */
#define TOKENS 16u

static void quantize_block(const float *x, size_t n, int8_t *q, float *d)
{
    uint32_t top = 0; /* of non-negative floats the larger has the larger bits; NaN is above infinity */
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = kern_to_bits(x[i]) & 0x7fffffffu;
        if (bits > top) top = bits;
    }
    float amax = kern_from_bits(top);
    float inv = KERN_Q_LIMIT / amax;
    memset(q, 0, n);
    if (top >= 0x7f800000u) {
        *d = kern_from_bits(0x7fc00000u);
        return;
    }
    if (kern_to_bits(inv) == 0x7f800000u) {
        *d = 0.0f;
        return;
    }
    *d = amax / KERN_Q_LIMIT;
    for (size_t i = 0; i < n; i++) q[i] = (int8_t)kern_round_even(x[i] * inv);
}

void kern_ref_quantize(kern_act act, const float *x, size_t k, void *dst)
{
    size_t per_d = act == KERN_ACT_Q32 ? KERN_QK : KERN_QKK;
    size_t per_sum = act == KERN_ACT_Q32 ? 32 : 16;
    int8_t *q = dst;
    float *d = (float *)((char *)dst + k);
    int32_t *sum = (int32_t *)((char *)dst + k + k / per_d * sizeof(float));
    if (act == KERN_ACT_F32) {
        memcpy(dst, x, k * sizeof(float));
        return;
    }
    for (size_t b = 0; b < k / per_d; b++) quantize_block(x + b * per_d, per_d, q + b * per_d, &d[b]);
    for (size_t s = 0; s < k / per_sum; s++) {
        int32_t total = 0;
        for (size_t i = 0; i < per_sum; i++) total += q[s * per_sum + i];
        sum[s] = total;
    }
}

static int32_t dot(const int8_t *w, const int8_t *q, size_t n)
{
    int32_t sum = 0;
    for (size_t i = 0; i < n; i++) sum += w[i] * q[i];
    return sum;
}

/* One block of one output of a type of 32. */
static float step_32(const kern_ref_block *b, const void *act, size_t k, size_t block, float acc)
{
    float dx = kern_act_d(act, k)[block];
    int32_t isum = dot(b->w, kern_act_q(act) + block * KERN_QK, KERN_QK);
    acc = fmaf(b->d * dx, (float)isum, acc);
    if (b->has_min) acc = fmaf(b->m, dx * (float)kern_act_sum(act, k, KERN_QK)[block], acc);
    return acc;
}

/* One block of one output of a type of 256. */
static float step_256(const kern_ref_block *b, const void *act, size_t k, size_t block, float acc)
{
    float dx = kern_act_d(act, k)[block];
    const int8_t *q = kern_act_q(act) + block * KERN_QKK;
    const int32_t *sum = kern_act_sum(act, k, KERN_QKK) + block * 16;
    int32_t isum = 0, msum = 0;
    for (int s = 0; s < 16; s++) isum += b->scale[s] * dot(b->w + 16 * s, q + 16 * s, 16);
    acc = fmaf(b->d * dx, (float)isum, acc);
    if (!b->has_min) return acc;
    for (int s = 0; s < 16; s++) msum += b->min[s] * sum[s];
    return fmaf(-(b->m * dx), (float)msum, acc);
}

/* Block `block` of row r. */
static bool unpack_at(const kern_matmul *m, size_t r, size_t block, size_t bytes, kern_ref_block *b)
{
    const uint8_t *w = m->w;
    uint8_t copy[KERN_BLOCK_MAX];
    if (r >= m->packed_rows) return kern_ref_unpack(m->dtype, w + r * m->row_bytes + block * bytes, b);
    w += r / KERN_PACK_ROWS * KERN_PACK_ROWS * m->row_bytes;
    kern_unpack_block(m->dtype, w, block, (unsigned)(r % KERN_PACK_ROWS), copy);
    return kern_ref_unpack(m->dtype, copy, b);
}

/* out[t] for up to TOKENS tokens of row r: one chain over the blocks each. */
static void row_of_blocks(const kern_matmul *m, size_t r, const char *act, size_t n_tokens, float *out)
{
    size_t elements = kern_ref_block_elements(m->dtype);
    size_t bytes = base_dtype_get(m->dtype)->block_bytes;
    for (size_t t = 0; t < n_tokens; t++) out[t] = 0.0f;
    for (size_t block = 0; block < m->k / elements; block++) {
        kern_ref_block b;
        if (!unpack_at(m, r, block, bytes, &b)) return;
        for (size_t t = 0; t < n_tokens; t++) {
            const void *row = act + t * m->act_stride;
            out[t] = elements == KERN_QK ? step_32(&b, row, m->k, block, out[t])
                                         : step_256(&b, row, m->k, block, out[t]);
        }
    }
}

/* The same for float weights: sixteen chains per output, the last group continued with zeros. */
static void row_of_floats(const kern_matmul *m, const uint8_t *w, const char *act, size_t n_tokens,
                          float *out)
{
    float lane[TOKENS][16] = {{0.0f}};
    size_t bytes = base_dtype_get(m->dtype)->block_bytes;
    for (size_t i = 0; i < m->k; i += 16) {
        size_t n = m->k - i < 16 ? m->k - i : 16;
        float wf[16] = {0.0f};
        kern_ref_dequantize(m->dtype, w + i * bytes, n, wf);
        for (size_t t = 0; t < n_tokens; t++) {
            const float *x = (const float *)(act + t * m->act_stride) + i;
            for (size_t l = 0; l < n; l++) lane[t][l] = fmaf(wf[l], x[l], lane[t][l]);
            for (size_t l = n; l < 16; l++) lane[t][l] = fmaf(0.0f, 0.0f, lane[t][l]);
        }
    }
    for (size_t t = 0; t < n_tokens; t++) out[t] = kern_lane_tree(lane[t]);
}

void kern_ref_matmul(const kern_matmul *m, size_t row_begin, size_t row_end, void *scratch)
{
    bool floats = kern_act_for(m->dtype) == KERN_ACT_F32;
    (void)scratch;
    for (size_t r = row_begin; r < row_end; r++) {
        for (size_t t0 = 0; t0 < m->n_tokens; t0 += TOKENS) {
            size_t n = m->n_tokens - t0 < TOKENS ? m->n_tokens - t0 : TOKENS;
            const char *act = (const char *)m->act + t0 * m->act_stride;
            float acc[TOKENS];
            if (floats)
                row_of_floats(m, (const uint8_t *)m->w + r * m->row_bytes, act, n, acc);
            else
                row_of_blocks(m, r, act, n, acc);
            for (size_t t = 0; t < n; t++)
                m->out[(t0 + t) * m->out_stride + r] = m->bias ? acc[t] + m->bias[r] : acc[t];
        }
    }
}
