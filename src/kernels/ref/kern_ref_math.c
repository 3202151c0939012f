/* Scalar single precision: exp, tanh, half conversions, step by step as docs/numerics.md and kern_math.h say.
 */
#include "kernels/kern_math.h"
#include "kernels/kern_tables.h"

static float power_of_two(int n) /* -126 <= n <= 127 */
{
    return kern_from_bits((uint32_t)(n + 127) << 23);
}

float kern_expf(float x)
{
    if (x != x) return x;
    if (x < KERN_EXP_LOW) return 0.0f;
    if (x > KERN_EXP_HIGH) return kern_from_bits(0x7f800000u);
    float n = kern_round_even(x * KERN_EXP_LOG2E);
    float r = fmaf(n, -KERN_EXP_LN2_HI, x);
    r = fmaf(n, -KERN_EXP_LN2_LO, r);
    float p = KERN_EXP_C6;
    p = fmaf(p, r, KERN_EXP_C5);
    p = fmaf(p, r, KERN_EXP_C4);
    p = fmaf(p, r, KERN_EXP_C3);
    p = fmaf(p, r, KERN_EXP_C2);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    int a = (int)n >> 1, b = (int)n - a;
    return p * power_of_two(a) * power_of_two(b);
}

float kern_tanhf(float x)
{
    uint32_t sign = kern_to_bits(x) & 0x80000000u;
    float a = kern_from_bits(kern_to_bits(x) & 0x7fffffffu);
    if (x != x) return x;
    if (a < KERN_TANH_SMALL) {
        float t = x * x;
        float p = KERN_TANH_C9;
        p = fmaf(p, t, KERN_TANH_C7);
        p = fmaf(p, t, KERN_TANH_C5);
        p = fmaf(p, t, KERN_TANH_C3);
        p = fmaf(p, t, KERN_TANH_C1);
        return fmaf(x * t, p, x);
    }
    float y = a >= KERN_TANH_ONE ? 1.0f : 1.0f - 2.0f / (kern_expf(2.0f * a) + 1.0f);
    return kern_from_bits(kern_to_bits(y) | sign);
}

uint16_t kern_f16_from_f32(float x)
{
    uint32_t bits = kern_to_bits(x), sign = bits >> 16 & 0x8000u, rest = bits & 0x7fffffffu;
    if (rest > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | (rest >> 13 & 0x3ffu));
    if (rest >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* 65520 and above round to infinity */
    if (rest < 0x38800000u) {
        /* Below 2^-14 a half is a multiple of 2^-24: adding 0.5, whose last bit is worth 2^-24, rounds there.
         */
        float moved = kern_from_bits(rest) + 0.5f;
        return (uint16_t)(sign | (kern_to_bits(moved) - 0x3f000000u));
    }
    /* Round 13 bits away, ties to even; a carry into the exponent is right. Then move the bias from 127
     * to 15. */
    rest += 0xfffu + (rest >> 13 & 1u);
    return (uint16_t)(sign | ((rest >> 13) - (112u << 10)));
}

float kern_f32_from_f16(uint16_t h)
{
    return kern_f16_value(h);
}
