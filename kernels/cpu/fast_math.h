/* Elementary functions over the vocabulary. Errors were measured over every float. */
#ifndef CTW_KERNELS_CPU_FAST_MATH_H
#define CTW_KERNELS_CPU_FAST_MATH_H

#include <math.h>

#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

/*
 * Functions named _each take n <= EACH_MOST vectors through every step together: one vector's chain
 * of dependent operations is long, and a processor's look-ahead is limited. n is a constant.
 */
enum { EACH_MOST = ATTN_STEP * NV > 4 ? ATTN_STEP * NV : 4 };
#define EACH(step)                                                                                 \
    UNROLL                                                                                         \
    for (int i = 0; i < n; i++)                                                                    \
        step;

/* p = (e^r - 1 - r) / r^2 for |r| <= 0.347: a minimax polynomial of degree 4 (0.05 ulp of e^r). */
INLINE void vf_exp_rest_each(vf *p, const vf *r, const int n){
    EACH(p[i] = vf_fma(vf_set1(0.001381459878757596f), r[i], vf_set1(0.008368716575205326f)))
        EACH(p[i] = vf_fma(p[i], r[i], vf_set1(0.04166838899254799f)))
            EACH(p[i] = vf_fma(p[i], r[i], vf_set1(0.1666652113199234f)))
                EACH(p[i] = vf_fma(p[i], r[i], vf_set1(0.4999999403953552f)))}

/* r = e^r for |r| <= 0.347. */
INLINE void vf_exp_part_each(vf *r, const int n)
{
    vf p[EACH_MOST];
    vf_exp_rest_each(p, r, n);
    EACH(r[i] = vf_add(vf_fma(p[i], vf_mul(r[i], r[i]), r[i]), vf_set1(1.0f)))
}

/*
 * x = e^x within 1.01 ulp (subnormal results: within one of their steps). exp(0) is exactly 1,
 * exp(-inf) exactly 0; infinity from 88.73 on; NaN stays NaN.
 * e^x = 2^n e^r with n = round(x / ln 2), |r| <= 0.347.
 */
INLINE void vf_exp_each(vf *x, const int n)
{
    vf e[EACH_MOST];
    EACH(x[i] = vf_max(vf_set1(-104.0f), x[i])) /* NaN, the second operand, propagates */
    EACH(x[i] = vf_min(vf_set1(89.0f), x[i]))
    EACH(e[i] = vf_round(vf_mul(x[i], vf_set1(0x1.715476p+0f))))
    EACH(x[i] = vf_fma(e[i], vf_set1(-0x1.62e4p-1f), x[i])) /* exact: 14 bits times 8 */
    EACH(x[i] = vf_fma(e[i], vf_set1(-0x1.7f7d1cp-20f), x[i]))
    vf_exp_part_each(x, n);
    EACH(x[i] = vf_scale2(x[i], e[i]))
}

INLINE vf vf_exp(vf x)
{
    vf_exp_each(&x, 1);
    return x;
}

/*
 * x = e^x of x <= 1 for weights of a softmax: within 1.01 ulp, and exactly 0 if e^x is below
 * 2^-126.5, which is negligible compared with the largest weight, 1. NaN stays NaN. n + 127 is the
 * low byte of x / ln 2 + 1.5 * 2^23 + 127.
 */
INLINE void vf_exp_weight_each(vf *x, const int n)
{
    const vf magic = vf_set1(0x1.8p23f + 127);
    vf t[EACH_MOST], e[EACH_MOST];
    EACH(x[i] = vf_max(vf_set1(-88.0f), x[i])) /* n = -127: 2^n becomes 0 */
    EACH(t[i] = vf_fma(x[i], vf_set1(0x1.715476p+0f), magic))
    EACH(e[i] = vf_sub(t[i], magic))
    EACH(x[i] = vf_fma(e[i], vf_set1(-0x1.62e4p-1f), x[i]))
    EACH(x[i] = vf_fma(e[i], vf_set1(-0x1.7f7d1cp-20f), x[i]))
    vf_exp_part_each(x, n);
    EACH(x[i] = vf_mul(x[i], vf_low_byte_exponent(t[i])))
}

INLINE vf vf_exp_weight(vf x)
{
    vf_exp_weight_each(&x, 1);
    return x;
}

/* tanh(x) within 1.4 ulp. */
INLINE vf vf_tanh(vf x)
{
    vf a = vf_copysign(x, vf_zero()), u = vf_mul(x, x);
    vf p = vf_set1(-0.005704986862838268f);
    p = vf_fma(p, u, vf_set1(0.02063908614218235f));
    p = vf_fma(p, u, vf_set1(-0.05373971536755562f));
    p = vf_fma(p, u, vf_set1(0.13331441581249237f));
    p = vf_fma(p, u, vf_set1(-0.3333328068256378f));
    vf small = vf_fma(p, vf_mul(u, x), x);
    vf e = vf_exp(vf_add(a, a));
    vf large = vf_sub(vf_set1(1.0f), vf_div(vf_set1(2.0f), vf_add(e, vf_set1(1.0f))));
    return vf_select_le(a, vf_set1(0.625f), small, vf_copysign(large, x));
}

INLINE void vf_silu_each(vf *g, const int n)
{
    vf e[EACH_MOST];
    EACH(e[i] = vf_sub(vf_zero(), g[i]))
    vf_exp_each(e, n);
    EACH(g[i] = vf_div(g[i], vf_add(e[i], vf_set1(1.0f))))
}

INLINE vf vf_sigmoid(vf g)
{
    const vf one = vf_set1(1.0f);
    return vf_div(one, vf_add(vf_exp(vf_sub(vf_zero(), g)), one));
}

/* x = ln(1 + e^x), as max(x, 0) + 2 atanh(t / (2 + t)) with t = e^-|x|: within 3 ulp. NaN stays. */
INLINE vf vf_softplus(vf x)
{
    vf zero = vf_zero(), t = vf_exp(vf_min(x, vf_sub(zero, x)));
    vf s = vf_div(t, vf_add(vf_set1(2.0f), t)), q = vf_mul(s, s), p = vf_set1(1.0f / 15);
    p = vf_fma(p, q, vf_set1(1.0f / 13));
    p = vf_fma(p, q, vf_set1(1.0f / 11));
    p = vf_fma(p, q, vf_set1(1.0f / 9));
    p = vf_fma(p, q, vf_set1(1.0f / 7));
    p = vf_fma(p, q, vf_set1(1.0f / 5));
    p = vf_fma(p, q, vf_set1(1.0f / 3));
    p = vf_fma(vf_mul(p, q), s, s);
    return vf_fma(vf_set1(2.0f), p, vf_max(zero, x));
}

INLINE vf vf_gelu_tanh(vf g)
{
    vf inner = vf_fma(vf_mul(vf_mul(g, g), g), vf_set1(0.044715f), g);
    vf t = vf_tanh(vf_mul(inner, vf_set1(0.7978845608028654f)));
    vf half = vf_mul(g, vf_set1(0.5f));
    return vf_fma(half, t, half);
}

/*
 * 0.5 g erfc(-g / sqrt 2), precise also for large negative g. With a = |g| and
 * t = (a - 4) / (a + 4), erfc(a / sqrt 2) = e^(-a^2 / 2) / (1 + a) times a polynomial of t
 * (0.1 ulp): the method of ctw_erfc() in fp32.
 */
INLINE vf vf_gelu(vf g)
{
    const vf one = vf_set1(1.0f), four = vf_set1(4.0f);
    vf a = vf_min(vf_set1(16.0f), vf_copysign(g, vf_zero())); /* erfc is 0 from 14.5 on */
    vf t = vf_fma(vf_set1(2.0f), vf_div(a, vf_add(a, four)), vf_set1(-1.0f));
    vf p = vf_set1(-0.0001501294318586588f);
    p = vf_fma(p, t, vf_set1(-0.00013647403102368116f));
    p = vf_fma(p, t, vf_set1(0.0013808859512209892f));
    p = vf_fma(p, t, vf_set1(-0.0005978289409540594f));
    p = vf_fma(p, t, vf_set1(-0.010003252886235714f));
    p = vf_fma(p, t, vf_set1(0.03587845712900162f));
    p = vf_fma(p, t, vf_set1(-0.06439589709043503f));
    p = vf_fma(p, t, vf_set1(0.057200103998184204f));
    p = vf_fma(p, t, vf_set1(0.02799929305911064f));
    p = vf_fma(p, t, vf_set1(-0.19340693950653076f));
    p = vf_fma(p, t, vf_set1(0.94410640001297f));
    vf square = vf_mul(a, a), half = vf_set1(-0.5f);
    vf low = vf_fma(a, a, vf_sub(vf_zero(), square)); /* the rounding error of the square */
    vf e = vf_exp(vf_mul(square, half));
    e = vf_fma(e, vf_mul(low, half), e);
    vf y = vf_div(vf_mul(e, p), vf_add(one, a));
    vf w = vf_select_le(g, vf_zero(), y, vf_sub(vf_set1(2.0f), y));
    return vf_mul(vf_mul(g, vf_set1(0.5f)), w);
}

/*
 * ap g^2 + beta g if g > 0, else (e^m - 1 - g) an + beta g with m = min(g, eps), of the parameters
 * {ap, an, beta, eps}. Near 0, e^m - 1 - g is m^2 times vf_exp_rest_each()'s polynomial, plus m -
 * g: a difference of e^m and 1 would keep no digit.
 */
INLINE vf vf_xielu(vf g, const float *param)
{
    vf beta_g = vf_mul(g, vf_set1(param[2]));
    vf positive = vf_fma(vf_mul(g, vf_set1(param[0])), g, beta_g);
    vf m = vf_min(g, vf_set1(param[3])), small; /* NaN of either stays in the results */
    vf_exp_rest_each(&small, &m, 1);
    small = vf_fma(small, vf_mul(m, m), vf_sub(m, g));
    vf large = vf_sub(vf_sub(vf_exp(m), vf_set1(1)), g);
    vf rest = vf_select_le(vf_set1(-0.34f), m, small, large);
    return vf_select_le(g, vf_zero(), vf_fma(rest, vf_set1(param[1]), beta_g), positive);
}

/* g = act(g) for n vectors, a constant; param as in struct ctw_op_act. */
INLINE void vf_activate_each(enum ctw_activation act, const float *param, vf *g, const int n)
{
    switch (act) {
    case CTW_ACT_SILU:
        vf_silu_each(g, n);
        break;
    case CTW_ACT_GELU:
        EACH(g[i] = vf_gelu(g[i]))
        break;
    case CTW_ACT_GELU_TANH:
        EACH(g[i] = vf_gelu_tanh(g[i]))
        break;
    case CTW_ACT_RELU:
        EACH(g[i] = vf_max(vf_zero(), g[i])) /* NaN, the second operand, stays */
        break;
    case CTW_ACT_RELU2:
        EACH(g[i] = vf_max(vf_zero(), g[i]))
        EACH(g[i] = vf_mul(g[i], g[i]))
        break;
    case CTW_ACT_XIELU:
        EACH(g[i] = vf_xielu(g[i], param))
        break;
    case CTW_ACT_CLIP:
        EACH(g[i] = vf_min(vf_set1(param[0]), g[i]))
        EACH(g[i] = vf_max(vf_set1(-param[0]), g[i]))
        break;
    case CTW_ACT_SIGMOID:
        EACH(g[i] = vf_sigmoid(g[i]))
        break;
    }
}

/* cap * tanh(x / cap) */
INLINE vf vf_softcap(vf x, float cap)
{
    return vf_mul(vf_set1(cap), vf_tanh(vf_div(x, vf_set1(cap))));
}

/* The same with a small relative error of small results: below |x| = 0.35 cap, a series of tanh,
 * whose first term left out is below 2^-25 of the sum. NaN stays. */
INLINE vf vf_bounded(vf x, float cap)
{
    static const float terms[] = {-1382.0f / 155925, 62.0f / 2835, -17.0f / 315, 2.0f / 15,
                                  -1.0f / 3,         1.0f};
    const vf t = vf_div(x, vf_set1(cap)), square = vf_mul(t, t);
    vf sum = vf_set1(terms[0]);
    for (int i = 1; i < 6; i++)
        sum = vf_fma(sum, square, vf_set1(terms[i]));
    return vf_select_le(square, vf_set1(0.35f * 0.35f), vf_mul(x, sum), vf_softcap(x, cap));
}

#endif
