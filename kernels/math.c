/*
 * The part of a value that a double cannot hold is carried as the low part of a pair, so that each
 * result is rounded about once. Polynomials are Taylor series, except erfc's
 * (tests/tools/math_vectors.py).
 */
#include "kernels/math.h"

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__FAST_MATH__) || FLT_EVAL_METHOD != 0
#error "scores need IEEE arithmetic as it is written: no -ffast-math, no x87"
#endif

/* ln 2 in two parts; the first has 42 bits, so that its products with exponents are exact. */
static const double ln2_high = 0x1.62e42fefa38p-1, ln2_low = 0x1.ef35793c7673p-45;

/* ---- pairs -------------------------------------------------------------------------------- */

/* hi + lo, |lo| at most half a step of hi, or slightly more */
struct pair {
    double hi, lo;
};

/* a + b, exactly; |a| >= |b|, or a = 0 */
static struct pair sum_sorted(double a, double b)
{
    double hi = a + b;
    return (struct pair){hi, b - (hi - a)};
}

/* a + b, exactly */
static struct pair sum(double a, double b)
{
    double hi = a + b, b_part = hi - a;
    return (struct pair){hi, (a - (hi - b_part)) + (b - b_part)};
}

/* The first 26 bits. */
static double first_half(double a)
{
    double c = 0x1.000002p27 * a;
    return c - (c - a);
}

/* a b, exactly */
static struct pair product(double a, double b)
{
    double hi = a * b, a1 = first_half(a), b1 = first_half(b), a2 = a - a1, b2 = b - b1;
    return (struct pair){hi, ((a1 * b1 - hi) + a1 * b2 + a2 * b1) + a2 * b2};
}

static struct pair quotient(struct pair a, struct pair b)
{
    double q = a.hi / b.hi;
    struct pair p = product(q, b.hi);
    return sum_sorted(q, (((a.hi - p.hi) - p.lo) + (a.lo - q * b.lo)) / b.hi);
}

/* ---- parts -------------------------------------------------------------------------------- */

static uint64_t bits_of(double x)
{
    uint64_t u;
    memcpy(&u, &x, sizeof(u));
    return u;
}

static double from_bits(uint64_t u)
{
    double x;
    memcpy(&x, &u, sizeof(x));
    return x;
}

/* 2^n, -1022 <= n <= 1023 */
static double power_of_2(int n)
{
    return from_bits((uint64_t)(n + 1023) << 52);
}

/* c[0] + c[1] x + ... + c[n-1] x^(n-1), n a multiple of 4: four chains, which a processor
 * computes in parallel. */
static inline double polynomial(double x, const double *c, int n)
{
    double x2 = x * x, x4 = x2 * x2;
    double p0 = c[n - 4], p1 = c[n - 3], p2 = c[n - 2], p3 = c[n - 1];
    for (int i = n - 8; i >= 0; i -= 4) {
        p0 = p0 * x4 + c[i];
        p1 = p1 * x4 + c[i + 1];
        p2 = p2 * x4 + c[i + 2];
        p3 = p3 * x4 + c[i + 3];
    }
    return (p0 + p1 * x) + (p2 + p3 * x) * x2;
}

/* e^x = 2^n (1 + e), |x| < 750; returns e, |e| <= 0.42; e is small if x is small. */
static inline struct pair exp_parts(struct pair x, int *n)
{
    static const double c[12] = {1.0 / 2,       1.0 / 6,        1.0 / 24,        1.0 / 120,
                                 1.0 / 720,     1.0 / 5040,     1.0 / 40320,     1.0 / 362880,
                                 1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800};
    double k = (x.hi * 0x1.71547652b82fep0 + 0x1.8p52) - 0x1.8p52; /* x / ln 2 to an integer */
    struct pair r = sum(x.hi - k * ln2_high, x.lo - k * ln2_low);
    *n = (int)k;
    return sum(r.hi, r.hi * r.hi * polynomial(r.hi, c, 12) + (r.lo + r.lo * r.hi));
}

/* a 2^n, rounded once; 2^n itself may be out of double's range */
static double scale(double a, int n)
{
    return a * power_of_2(n / 2) * power_of_2(n - n / 2);
}

static inline double exp_of(struct pair x)
{
    int n;
    struct pair e = exp_parts(x, &n), y = sum_sorted(1, e.hi);
    return scale(y.hi + (y.lo + e.lo), n);
}

/* ln x, for finite x > 0. With x = 2^e m and s = (m - 1) / (m + 1), ln m = 2 (s + s^3 / 3 + ...).
 */
static struct pair log_of(double x)
{
    static const double c[12] = {1.0 / 3,  1.0 / 5,  1.0 / 7,  1.0 / 9,  1.0 / 11, 1.0 / 13,
                                 1.0 / 15, 1.0 / 17, 1.0 / 19, 1.0 / 21, 1.0 / 23, 1.0 / 25};
    int e = -1023;
    if (x < DBL_MIN) {
        x *= 0x1p54;
        e -= 54;
    }
    e += (int)(bits_of(x) >> 52);
    double m = from_bits((bits_of(x) & 0x000fffffffffffff) | 0x3ff0000000000000);
    if (m > 1.4142135623730951) {
        m /= 2;
        e++;
    }
    struct pair s = quotient((struct pair){m - 1, 0}, sum_sorted(2, m - 1));
    double z = s.hi * s.hi;
    s = sum_sorted(s.hi, s.lo + s.hi * z * polynomial(z, c, 12));
    struct pair y = sum(e * ln2_high, 2 * s.hi);
    return sum_sorted(y.hi, y.lo + (e * ln2_low + 2 * s.lo));
}

/* ---- exp, log, pow, tanh, erfc ------------------------------------------------------------- */

double ctw_exp(double x)
{
    if (x > -746 && x < 710)
        return exp_of((struct pair){x, 0});
    return x < 0 ? 0 : x > 0 ? INFINITY : x;
}

double ctw_ln(double x)
{
    if (x > 0 && x < INFINITY) {
        struct pair y = log_of(x);
        return y.hi + y.lo;
    }
    return x == 0 ? -INFINITY : x > 0 ? x : NAN;
}

double ctw_pow(double x, double y)
{
    struct pair l = log_of(x), p = product(l.hi, y);
    if (p.hi > -746 && p.hi < 710)
        return exp_of((struct pair){p.hi, p.lo + l.lo * y});
    return p.hi < 0 ? 0 : INFINITY;
}

/* y / (y + 2) with y = e^2x - 1 */
double ctw_tanh(double x)
{
    double a = x < 0 ? -x : x;
    int n;
    if (!(a < 20))
        return x < 0 ? -1 : x > 0 ? 1 : x;
    struct pair e = exp_parts((struct pair){2 * a, 0}, &n);
    double power = power_of_2(n);
    struct pair y = sum(power - 1, power * e.hi);
    y = sum_sorted(y.hi, y.lo + power * e.lo);
    struct pair d = sum(2, y.hi);
    y = quotient(y, (struct pair){d.hi, d.lo + y.lo});
    return x < 0 ? -y.hi : y.hi;
}

/*
 * With a = |x| and t = (a - 4) / (a + 4), erfc a = e^-a^2 / (1 + a) times a polynomial of t, whose
 * value goes from 1 to 0.56. The polynomial interpolates at Chebyshev points for a <= 28, with an
 * error of at most 2^-61.
 */
double ctw_erfc(double x)
{
    static const double first = 0x1.5eb7f6ecb19a9p-1, first_low = 0x1.4b1c70bdd80cep-55;
    static const double c[24] = {
        -0x1.9841f8fe19461p-3,  0x1.df6f7856005e1p-4,   -0x1.89dfde1d97651p-5,
        0x1.03a8439378d35p-8,   0x1.f5c2a42569536p-7,   -0x1.1ef9faf7f7126p-6,
        0x1.8e8471e357a36p-7,   -0x1.8db87b4ded291p-8,  0x1.156752f091a7ep-9,
        -0x1.98b368825b095p-12, -0x1.f876a89b8b83bp-15, 0x1.0c9287137cb8fp-14,
        -0x1.b948f7475d096p-17, -0x1.15b5a207306f9p-18, 0x1.63cb45261209dp-19,
        0x1.04694b1d9cedbp-28,  -0x1.886b140bf72fap-22, 0x1.b80afe30f05f0p-25,
        0x1.a1b35de128606p-25,  -0x1.73d4a74b4bcfbp-27, -0x1.e84f588cdc7bbp-28,
        0x1.1f5db58596777p-30,  0x1.f91c77eb13567p-31,  0x1.dcd1077ed5e4ap-34};
    double a = x < 0 ? -x : x;
    int n;
    if (!(a < 28))
        return x < 0 ? 2 : x > 0 ? 0 : x;
    double t = 2 * (a / (a + 4)) - 1; /* exact near -1 */
    struct pair p = sum_sorted(first, t * polynomial(t, c, 24) + first_low);
    struct pair d = sum(1, a);
    struct pair square = product(a, a);
    struct pair e = exp_parts((struct pair){-square.hi, -square.lo}, &n);
    struct pair y = sum_sorted(1, e.hi), z = product(y.hi, p.hi);
    y = quotient((struct pair){z.hi, z.lo + p.hi * (y.lo + e.lo) + y.hi * p.lo}, d);
    return x < 0 ? 2 - scale(y.hi, n) : scale(y.hi, n);
}

/* ---- sin, cos ----------------------------------------------------------------------------- */

/*
 * x > 0 is (4 i + quadrant) pi / 2 + r, |r| <= pi / 4; returns r. x is an integer m of 24 bits
 * times 2^e. Of m 2^e times 2 / pi we compute the 128 bits worth 2 to 2^-126: earlier bits of
 * 2 / pi contribute multiples of 4, later bits less than 2^-102. No float is nearer than 2^-30 to a
 * multiple of pi / 2, so r keeps 70 bits.
 */
static struct pair reduce(float x, unsigned *quadrant)
{
    /* 32 zeros, then 2 / pi */
    static const uint32_t two_over_pi[] = {0,          0xa2f9836e, 0x4e441529,
                                           0xfc2757d1, 0xf534ddc0, 0xdb629599,
                                           0x3c439041, 0xfe5163ab, 0xdebbc561};
    uint32_t u, word[4];
    memcpy(&u, &x, sizeof(u));
    int first = (int)(u >> 23) - 120; /* the bit of the table that is worth 2 */
    const uint32_t *w = two_over_pi + first / 32;
    uint64_t m = (u & 0x7fffff) | 0x800000, carry = 0;
    for (int i = 3; i >= 0; i--) {
        uint64_t two_words = (uint64_t)w[i] << 32 | w[i + 1];
        carry += m * (uint32_t)(two_words << first % 32 >> 32);
        word[i] = (uint32_t)carry;
        carry >>= 32;
    }
    *quadrant = (word[0] + 0x20000000) >> 30; /* rounded; wraps to 0 after 3 */
    /* the remaining fraction, -1/2 to 1/2, in pieces; the rounding leaves only the sign */
    double f0 = (int32_t)(word[0] << 2) * 0x1p-32, f1 = word[1] * 0x1p-62;
    double f2 = word[2] * 0x1p-94, f3 = word[3] * 0x1p-126;
    struct pair f = sum_sorted(f0, f1);
    f = sum_sorted(f.hi, f.lo + (f2 + f3));
    struct pair r = product(f.hi, 0x1.921fb54442d18p+0);
    return sum_sorted(r.hi, r.lo + (f.hi * 0x1.1a62633145c07p-54 + f.lo * 0x1.921fb54442d18p+0));
}

void ctw_sincos(float x, double *sine, double *cosine)
{
    static const double sin_c[8] = {
        -1.0 / 6,        1.0 / 120,        -1.0 / 5040,          1.0 / 362880,
        -1.0 / 39916800, 1.0 / 6227020800, -1.0 / 1307674368000, 1.0 / 355687428096000};
    static const double cos_c[8] = {
        1.0 / 24,        -1.0 / 720,         1.0 / 40320,          -1.0 / 3628800,
        1.0 / 479001600, -1.0 / 87178291200, 1.0 / 20922789888000, -1.0 / 6402373705728000};
    float a = x < 0 ? -x : x;
    unsigned quadrant = 0;
    struct pair r = {a, 0};
    if (!(a < INFINITY)) {
        *sine = *cosine = NAN;
        return;
    }
    if (a > 0.785398f)
        r = reduce(a, &quadrant);
    double z = r.hi * r.hi, half = z / 2, rest = 1 - half;
    double s = r.hi + (r.hi * z * polynomial(z, sin_c, 8) + (r.lo - r.lo * half));
    double c = rest + (((1 - rest) - half) + (z * z * polynomial(z, cos_c, 8) - r.hi * r.lo));
    double s_abs = quadrant % 2 == 0 ? s : c, c_abs = quadrant % 2 == 0 ? c : s;
    *sine = (quadrant >= 2) != (x < 0) ? -s_abs : s_abs;
    *cosine = quadrant == 1 || quadrant == 2 ? -c_abs : c_abs;
}
