/* Elementwise functions, norm, rotation and softmax: the definition (docs/numerics.md). */
#include "kernels/kern_math.h"
#include "kernels/kern_tables.h"

void kern_ref_rms_norm(const float *x, const float *w, float w_offset, float eps, size_t n, float *y)
{
    float lane[16] = {0.0f};
    for (size_t i = 0; i < n; i++) lane[i % 16] = fmaf(x[i], x[i], lane[i % 16]);
    float inv = 1.0f / sqrtf(kern_lane_tree(lane) / (float)n + eps);
    for (size_t i = 0; i < n; i++) y[i] = (x[i] * inv) * (w[i] + w_offset);
}

void kern_ref_rope(float *x, size_t n_heads, size_t head_dim, size_t n_rot, const float *table, bool neox)
{
    size_t half = n_rot / 2;
    for (size_t h = 0; h < n_heads; h++) {
        float *head = x + h * head_dim;
        for (size_t i = 0; i < half; i++) {
            float *pa = neox ? head + i : head + 2 * i;
            float *pb = neox ? head + half + i : head + 2 * i + 1;
            float a = *pa, b = *pb, cosine = table[i], sine = table[half + i];
            *pa = fmaf(a, cosine, -(b * sine));
            *pb = fmaf(a, sine, b * cosine);
        }
    }
}

static float silu(float x)
{
    return x / (1.0f + kern_expf(-x));
}

static float gelu(float x)
{
    float u = KERN_GELU_ROOT * (x * fmaf(KERN_GELU_CUBIC * x, x, 1.0f));
    return 0.5f * x * (1.0f + kern_tanhf(u));
}

void kern_ref_glu(kern_glu kind, const float *gate, const float *up, size_t n, float *y)
{
    for (size_t i = 0; i < n; i++) y[i] = (kind == KERN_GLU_SILU ? silu(gate[i]) : gelu(gate[i])) * up[i];
}

void kern_ref_add(const float *a, const float *b, size_t n, float *y)
{
    for (size_t i = 0; i < n; i++) y[i] = a[i] + b[i];
}

void kern_ref_scale(float *x, size_t n, float s)
{
    for (size_t i = 0; i < n; i++) x[i] *= s;
}

void kern_ref_softcap(float *x, size_t n, float cap)
{
    for (size_t i = 0; i < n; i++) x[i] = cap * kern_tanhf(x[i] / cap);
}

float kern_ref_softmax(const float *x, size_t n, float inv_temperature, float *p)
{
    float lane[16] = {0.0f};
    float max = -kern_from_bits(0x7f800000u);
    for (size_t i = 0; i < n; i++) max = x[i] > max ? x[i] : max;
    for (size_t i = 0; i < n; i++) {
        p[i] = kern_expf((x[i] - max) * inv_temperature);
        lane[i % 16] += p[i];
    }
    return kern_lane_tree(lane);
}
