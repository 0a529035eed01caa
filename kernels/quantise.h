/*
 * Quantised activations: an array is rounded to codes and widened again, as compressed-tensors' QDQ
 * (fake_quantize) does it when a model runs: the same order of operations, each rounded to the
 * activations' dtype where torch rounds it. Plain C that every backend compiles, so that all give
 * the same bits, up to the sign of a zero.
 */
#ifndef CTW_KERNELS_QUANTISE_H
#define CTW_KERNELS_QUANTISE_H

#include <stdbool.h>

#include "kernels/formats/convert.h"

enum ctw_codes {
    CTW_CODES_NONE, /* not quantised */
    CTW_CODES_INT,
    CTW_CODES_E4M3,
    CTW_CODES_E2M1
};

enum ctw_code_scale {
    CTW_SCALE_STATIC,  /* `scale` and `zero` */
    CTW_SCALE_DYNAMIC, /* of each group of a row: its largest magnitude, or range, by the codes' */
    CTW_SCALE_E4M3,    /* the same, times `global`, rounded to E4M3, by `global` */
    CTW_SCALE_E8M0     /* a power of two below the largest magnitude (MX) */
};

/* How activations are quantised. All members decide the bits. */
struct ctw_quantise {
    enum ctw_codes codes;
    int bits; /* of INT: 2..8 */
    enum ctw_code_scale scale_kind;
    bool asymmetric; /* INT with STATIC or DYNAMIC */
    int64_t group;   /* elements of a row that share a scale; 0: all. STATIC: 0 */
    float scale, zero, global;
};

/* y[t] = x[rows[t]] (NULL: x[t]), quantised. A group with an element that is not finite is NaN. */
struct ctw_op_quantise {
    const struct ctw_quantise *how; /* host; `group` divides dim */
    enum ctw_dtype dtype;
    int64_t n_tok, dim;
    const void *x; /* device [.., ldx] */
    int64_t ldx;
    const int32_t *rows; /* device [n_tok], or NULL */
    void *y;             /* device [n_tok, ldy]; may be x if ldy is ldx and rows is NULL */
    int64_t ldy;
};

static inline bool ctw_quantise_equal(const struct ctw_quantise *a, const struct ctw_quantise *b)
{
    return a->codes == b->codes && a->bits == b->bits && a->scale_kind == b->scale_kind &&
           a->asymmetric == b->asymmetric && a->group == b->group && a->scale == b->scale &&
           a->zero == b->zero && a->global == b->global;
}

/* ---- arithmetic --------------------------------------------------------------------------- */

/* Codes are the numbers of `fraction` bits behind the leading one, from lo to hi; below 2^least
 * they are as far apart as there. */
struct ctw_code_range {
    float lo, hi;
    int fraction, least;
};

CTW_HD_FORCE struct ctw_code_range ctw_code_range_of(enum ctw_codes codes, int bits)
{
    float half = (float)(1 << (bits - 1) % 32);
    struct ctw_code_range ints = {-half, half - 1, 7, 7}, e4m3 = {-448, 448, 3, -6},
                          e2m1 = {-6, 6, 1, 0};
    return codes == CTW_CODES_INT ? ints : codes == CTW_CODES_E4M3 ? e4m3 : e2m1;
}

/* Added to t and subtracted again, it leaves t rounded to the nearest code, ties to even. */
CTW_HD_FORCE float ctw_code_magic(float t, int fraction, int least)
{
    uint32_t e = ctw_f32_to_bits(t) >> 23 & 255u, low = (uint32_t)(least + 127);
    e = e > low ? e : low;
    return ctw_bits_to_f32((e + (uint32_t)(23 - fraction)) << 23 | 0x400000u);
}

CTW_HD_FORCE float ctw_code_nearest(float t, int fraction, int least)
{
    float magic = ctw_code_magic(t, fraction, least);
    return (t + magic) - magic;
}

/* NaN stays. */
CTW_HD_FORCE float ctw_code_clamp(float t, float lo, float hi)
{
    return t < lo ? lo : t > hi ? hi : t;
}

/* What quantises the elements of one group; t has t_dtype. */
struct ctw_quantised_group {
    float scale, zero;
    enum ctw_dtype t_dtype;
};

/* 2^-126 and less become 0, as a mantissa below 1.75 becomes 1, and above, 2. */
CTW_HD float ctw_mx_power(float largest, enum ctw_dtype dtype)
{
    if (dtype == CTW_F16 && largest < 6.103515625e-05f) /* the subnormals of fp16 */
        return largest >= 0.75f * 6.103515625e-05f ? 6.103515625e-05f : 0;
    return ctw_bits_to_f32((ctw_f32_to_bits(largest) + 0x200000u) & 0x7f800000u);
}

CTW_HD float ctw_mx_scale(float largest, enum ctw_codes codes, enum ctw_dtype dtype)
{
    int code = (int)(ctw_f32_to_bits(ctw_mx_power(largest, dtype)) >> 23);
    code -= codes == CTW_CODES_E2M1 ? 2 : 8; /* the exponent of the largest code */
    float power = ctw_bits_to_f32(code <= 0 ? 0x00400000u : (uint32_t)code << 23);
    power = ctw_round_float(power, dtype);
    return power == 0 ? 1 : power;
}

/*
 * A group's scale. lo and hi: its smallest and largest element, and 0; largest: the largest
 * magnitude, as its bits say (so that NaN is above infinity).
 */
CTW_HD struct ctw_quantised_group ctw_quantised_group_of(const struct ctw_quantise *q,
                                                         enum ctw_dtype dtype, float lo, float hi,
                                                         float largest)
{
    const struct ctw_code_range r = ctw_code_range_of(q->codes, q->bits);
    struct ctw_quantised_group g = {0, 0, dtype};
    float eps = dtype == CTW_F32 ? 0x1p-23f : dtype == CTW_BF16 ? 0x1p-7f : 0x1p-10f;
    float range = r.hi - r.lo;
    if (!(largest <= 3.40282347e+38f)) {
        g.scale = ctw_bits_to_f32(0x7fc00000u);
    } else if (q->scale_kind == CTW_SCALE_STATIC) {
        g.scale = ctw_round_float(q->scale, dtype);
        g.zero = q->zero;
    } else if (q->scale_kind == CTW_SCALE_E8M0) {
        g.scale = ctw_mx_scale(largest, q->codes, dtype);
    } else if (q->scale_kind == CTW_SCALE_E4M3) {
        float s = ctw_round_float(largest / (range / 2), dtype) * q->global;
        s = ctw_code_nearest(ctw_code_clamp(s, -448, 448), 3, -6);
        g.scale = (s == 0 ? 0.125f : s) / q->global;
        g.t_dtype = CTW_F32;
    } else if (q->asymmetric) {
        float s = ctw_round_float(ctw_round_float(hi - lo, dtype) / range, dtype);
        float z = ctw_round_float(r.lo - ctw_round_float(lo / s, dtype), dtype);
        g.scale = s == 0 ? eps : s;
        g.zero = s == 0 ? 0 : ctw_code_nearest(ctw_code_clamp(z, r.lo, r.hi), 7, 7);
    } else {
        float s = ctw_round_float(largest / (range / 2), dtype);
        g.scale = s == 0 ? eps : s;
    }
    return g;
}

/* x by a group's scale, rounded to a code and widened again; still to be rounded to dtype. */
CTW_HD_FORCE float ctw_quantised(float x, struct ctw_code_range r, struct ctw_quantised_group g)
{
    float t = ctw_round_float(x / g.scale, g.t_dtype);
    t = ctw_round_float(t + g.zero, g.t_dtype);
    t = ctw_code_nearest(ctw_code_clamp(t, r.lo, r.hi), r.fraction, r.least);
    return (t - g.zero) * g.scale;
}

/* A logit, by a static scale, in fp32. */
CTW_HD_FORCE float ctw_quantise_logit(const struct ctw_quantise *q, float x)
{
    const struct ctw_quantised_group g = {q->scale, q->zero, CTW_F32};
    return ctw_quantised(x, ctw_code_range_of(q->codes, q->bits), g);
}

#endif
