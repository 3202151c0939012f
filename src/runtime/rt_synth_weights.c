/* Random weights in every type. Quantized types get random quants and scales whose spread is chosen so that
 * the decoded values have about the wanted mean and deviation: no quantizer is needed, and a gigabyte takes a
 * second. */
#include "rt_synth.h"

#include "kernels/kernels.h"

#include <math.h>
#include <string.h>

void rt_synth_stream_init(rt_synth_stream *r, uint64_t seed, uint32_t tensor)
{
    r->state = seed * UINT64_C(0x9e3779b97f4a7c15) + ((uint64_t)tensor + 1) * UINT64_C(0xd1342543de82ef95);
}

/* SplitMix64 (Steele, Lea, Flood 2014). */
static uint64_t next_u64(rt_synth_stream *r)
{
    uint64_t z = (r->state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static void fill_bytes(rt_synth_stream *r, uint8_t *dst, size_t n)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        uint64_t v = next_u64(r);
        memcpy(dst + i, &v, 8);
    }
    if (i < n) {
        uint64_t v = next_u64(r);
        memcpy(dst + i, &v, n - i);
    }
}

/* About normal: the sum of four uniform 16-bit numbers (deviation 65536 / sqrt(3)), exact arithmetic on every
 * machine. */
static float next_normal(rt_synth_stream *r)
{
    uint64_t v = next_u64(r);
    int32_t sum = (int32_t)(v & 0xffff) + (int32_t)((v >> 16) & 0xffff) + (int32_t)((v >> 32) & 0xffff) +
                  (int32_t)(v >> 48) - 2 * 65535;
    return (float)sum * (1.7320508f / 65536.0f);
}

static void put_f16(uint8_t *dst, float x)
{
    uint16_t h = kern_f16_from_f32(x);
    memcpy(dst, &h, 2);
}

static void fill_float(rt_synth_stream *r, uint32_t dtype, float mean, float std, size_t n, uint8_t *dst)
{
    for (size_t i = 0; i < n; i++) {
        float x = mean + std * next_normal(r);
        if (dtype == BASE_F32) {
            memcpy(dst + 4 * i, &x, 4);
        } else if (dtype == BASE_F16) {
            put_f16(dst + 2 * i, x);
        } else {
            uint32_t u;
            memcpy(&u, &x, 4);
            uint16_t h = (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
            memcpy(dst + 2 * i, &h, 2);
        }
    }
}

/* How a block type spreads when its quants (and sub-scales) are uniformly random: standard deviation of a
 * decoded value for d = 1, where d stands in the block, and the ratio of the second f16 (minimum) to d that
 * centres the values. */
typedef struct spread {
    uint32_t dtype;
    float deviation;
    uint32_t d_offset;
    int32_t min_offset; /* -1: none */
    float min_ratio;
} spread;

static const spread spreads[] = {
    {BASE_Q8_0, 73.9f, 0, -1, 0},     {BASE_Q4_0, 4.61f, 0, -1, 0},     {BASE_Q5_0, 9.23f, 0, -1, 0},
    {BASE_Q4_1, 4.61f, 0, 2, -7.5f},  {BASE_Q5_1, 9.23f, 0, 2, -15.5f}, {BASE_Q2_K, 13.9f, 80, 82, 1.5f},
    {BASE_Q3_K, 42.3f, 108, -1, 0},   {BASE_Q4_K, 258.0f, 0, 2, 7.5f},  {BASE_Q5_K, 530.0f, 0, 2, 15.5f},
    {BASE_Q6_K, 1366.0f, 208, -1, 0}, {BASE_IQ4_NL, 70.0f, 0, -1, 0},   {BASE_IQ4_XS, 1300.0f, 0, -1, 0},
};

static void fill_mxfp4(rt_synth_stream *r, float std, size_t n_blocks, uint8_t *dst)
{
    /* values are table[q] x 2^(e - 128), the table's deviation is about 5.7 */
    int e = 128;
    for (float s = std / 5.7f; s < 0.75f && e > 1; s *= 2) e--;
    for (size_t b = 0; b < n_blocks; b++) {
        fill_bytes(r, dst + b * 17, 17);
        dst[b * 17] = (uint8_t)e;
    }
}

void rt_synth_fill(rt_synth_stream *r, uint32_t dtype, float mean, float std, size_t n, void *out)
{
    uint8_t *dst = out;
    const base_dtype_info *info = base_dtype_get(dtype);
    if (info->block_elements == 1) {
        fill_float(r, dtype, mean, std, n, dst);
        return;
    }
    size_t n_blocks = n / info->block_elements;
    if (dtype == BASE_MXFP4) {
        fill_mxfp4(r, std, n_blocks, dst);
        return;
    }
    const spread *s = NULL;
    for (size_t i = 0; i < sizeof spreads / sizeof *spreads; i++)
        if (spreads[i].dtype == dtype) s = &spreads[i];
    if (s == NULL) return;
    for (size_t b = 0; b < n_blocks; b++) {
        uint8_t *block = dst + b * info->block_bytes;
        fill_bytes(r, block, info->block_bytes);
        float d = std / s->deviation * (0.75f + (float)(next_u64(r) & 0xffff) / 131072.0f);
        put_f16(block + s->d_offset, d);
        if (s->min_offset >= 0) put_f16(block + s->min_offset, d * s->min_ratio);
    }
}
