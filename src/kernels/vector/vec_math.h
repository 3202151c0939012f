/* exp, tanh and the activations built from them, lane by lane the steps of kern_math.h. */
#ifndef WEIR_VEC_MATH_H
#define WEIR_VEC_MATH_H

#include "kernels/kern_math.h"

V_INLINE vf v_abs(vf x)
{
    return v_castf(v_and(v_casti(x), v_set32(0x7fffffff)));
}
V_INLINE vf v_negate(vf x)
{
    return v_castf(v_xor(v_casti(x), v_set32(INT32_MIN)));
}

V_INLINE vf v_exp(vf x)
{
    const vf magic = v_set(0x1.8p23f), one = v_set(1.0f);
    vf n = v_sub(v_add(v_mul(x, v_set(KERN_EXP_LOG2E)), magic), magic);
    vf r = v_fma(n, v_set(-KERN_EXP_LN2_HI), x);
    r = v_fma(n, v_set(-KERN_EXP_LN2_LO), r);
    vf p = v_fma(v_set(KERN_EXP_C6), r, v_set(KERN_EXP_C5));
    p = v_fma(p, r, v_set(KERN_EXP_C4));
    p = v_fma(p, r, v_set(KERN_EXP_C3));
    p = v_fma(p, r, v_set(KERN_EXP_C2));
    p = v_fma(p, r, one);
    p = v_scale2(v_fma(p, r, one), n);
    p = v_less(x, v_set(KERN_EXP_LOW), v_zero(), p);
    p = v_less(v_set(KERN_EXP_HIGH), x, v_castf(v_set32(0x7f800000)), p);
    return v_unordered(x, x, p);
}

V_INLINE vf v_tanh(vf x)
{
    const vf one = v_set(1.0f);
    vf a = v_abs(x), t = v_mul(x, x);
    vf p = v_fma(v_set(KERN_TANH_C9), t, v_set(KERN_TANH_C7));
    p = v_fma(p, t, v_set(KERN_TANH_C5));
    p = v_fma(p, t, v_set(KERN_TANH_C3));
    p = v_fma(p, t, v_set(KERN_TANH_C1));
    p = v_fma(v_mul(x, t), p, x);
    vf y = v_sub(one, v_div(v_set(2.0f), v_add(v_exp(v_mul(v_set(2.0f), a)), one)));
    y = v_less(a, v_set(KERN_TANH_ONE), y, one);
    y = v_castf(v_or(v_casti(y), v_and(v_casti(x), v_set32(INT32_MIN))));
    return v_unordered(x, x, v_less(a, v_set(KERN_TANH_SMALL), p, y));
}

V_INLINE vf v_silu(vf x)
{
    return v_div(x, v_add(v_set(1.0f), v_exp(v_negate(x))));
}
V_INLINE vf v_gelu(vf x)
{
    const vf one = v_set(1.0f);
    vf u = v_mul(x, v_fma(v_mul(v_set(KERN_GELU_CUBIC), x), x, one));
    return v_mul(v_mul(v_set(0.5f), x), v_add(one, v_tanh(v_mul(v_set(KERN_GELU_ROOT), u))));
}

#endif
