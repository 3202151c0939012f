/* Inside kernels only: the constants of exp and tanh and the small definitions that every instruction set
 * follows step by step (docs/numerics.md; ref/kern_ref_math.c is the plain form).
 *
 * The coefficients are minimax fits of our own, made with 40 digits and rounded to float one after the other,
 * lowest first, the rest fitted again each time; tools are not needed to check them:
 * tests/kernels/test_math.c measures the errors that docs/numerics.md states. */
#ifndef WEIR_KERN_MATH_H
#define WEIR_KERN_MATH_H

#include "kernels/kern_blocks.h"

#include <math.h>

/* exp(x): x < LOW gives +0, x > HIGH gives +infinity. n = x * LOG2E (one rounding) rounded to an integer,
 * ties to even; r = fma(n, -LN2_HI, x); r = fma(n, -LN2_LO, r); p = C6; p = fma(p, r, C5); ... p = fma(p, r,
 * C2); p = fma(p, r, 1); p = fma(p, r, 1); result = (p * 2^a) * 2^b with a = n >> 1 (arithmetic), b = n - a:
 * only the last product can round. */
#define KERN_EXP_LOW    (-104.0f)
#define KERN_EXP_HIGH   0x1.62e42ep+6f /* 88.72283172607421875, the largest float whose exp is finite */
#define KERN_EXP_LOG2E  0x1.715476p+0f
#define KERN_EXP_LN2_HI 0x1.62e43p-1f
#define KERN_EXP_LN2_LO (-0x1.05c61p-29f)
#define KERN_EXP_C2     0x1.fffffcp-2f
#define KERN_EXP_C3     0x1.555492p-3f
#define KERN_EXP_C4     0x1.5558b2p-5f
#define KERN_EXP_C5     0x1.12398ep-7f
#define KERN_EXP_C6     0x1.6a4b38p-10f

/* tanh(x), a = |x|: a >= ONE gives 1; a < SMALL: t = x * x, p = C9; p = fma(p, t, C7 ... C1), result =
 * fma(x * t, p, x), for either sign; else 1 - 2 / (exp(2 a) + 1), with the sign of x. NaN stays. */
#define KERN_TANH_ONE   9.02f
#define KERN_TANH_SMALL 0.625f
#define KERN_TANH_C1    (-0x1.555532p-2f)
#define KERN_TANH_C3    0x1.1107p-3f
#define KERN_TANH_C5    (-0x1.b837ep-5f)
#define KERN_TANH_C7    0x1.520c26p-6f
#define KERN_TANH_C9    (-0x1.7574f8p-8f)

/* gelu(x) = (0.5 * x) * (1 + tanh(ROOT * (x * fma(CUBIC * x, x, 1)))), each product rounded as written. */
#define KERN_GELU_ROOT  0x1.988454p-1f /* sqrt(2 / pi) */
#define KERN_GELU_CUBIC 0.044715f

/* Sum of sixteen lanes by the tree of docs/numerics.md. */
static inline float kern_lane_tree(const float lane[16])
{
    float s8[8], s4[4];
    for (int i = 0; i < 8; i++) s8[i] = lane[i] + lane[i + 8];
    for (int i = 0; i < 4; i++) s4[i] = s8[i] + s8[i + 4];
    return (s4[0] + s4[2]) + (s4[1] + s4[3]);
}

/* Quantizing a block: inv = 127 / amax. Where inv is infinite (amax is 0 or so small that 127 / amax
 * overflows), the block counts as zero: d = +0, all q = 0. Where amax is no number or infinite (take the
 * largest of the bit patterns of |x|: it finds both), d = NaN, all q = 0. Else d = amax / 127, q = x * inv
 * rounded to an integer, ties to even. */
#define KERN_Q_LIMIT 127.0f

/* The integer nearest to x, ties to even, for |x| < 2^22: adding 1.5 x 2^23 leaves no fraction bits. */
static inline float kern_round_even(float x)
{
    return (x + 0x1.8p23f) - 0x1.8p23f;
}

#endif
