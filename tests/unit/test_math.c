/* Our elementary functions against mpmath's values, in ulps, and against their own bits; entries of
 * RoPE tables bit for bit. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/digest.h"
#include "base/status.h"
#include "kernels/math.h"
#include "worker/model/rope/rope.h"

/* The value is y + rest ulps of y. */
struct value {
    double x, y;
    float rest;
};

struct power {
    double x, exponent, y;
    float rest;
};

struct rope_entry {
    double theta;
    int rot_dim, i;
    int64_t position;
    uint32_t inv_freq, cosine, sine;
};

#include "math_vectors.h"

static double sine(double x)
{
    double s, c;
    ctw_sincos((float)x, &s, &c);
    return s;
}

static double cosine(double x)
{
    double s, c;
    ctw_sincos((float)x, &s, &c);
    return c;
}

/* How far got is from y + rest ulps, in ulps of y. */
static double distance(double got, double y, double rest)
{
    if (got == y)
        return fabs(rest);
    int exponent;
    (void)frexp(y, &exponent);
    return fabs((got - y) / ldexp(1, exponent < -1021 ? -1074 : exponent - 53) - rest);
}

static void within_their_bounds(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        double (*function)(double);
        double bound; /* as kernels/math.h has it */
        const struct value *values;
        size_t n;
    } rows[] = {
        {"exp", ctw_exp, 0.7, exp_values, CTW_COUNT(exp_values)},
        {"ln", ctw_ln, 0.55, ln_values, CTW_COUNT(ln_values)},
        {"tanh", ctw_tanh, 0.9, tanh_values, CTW_COUNT(tanh_values)},
        {"erfc", ctw_erfc, 1.7, erfc_values, CTW_COUNT(erfc_values)},
        {"sin", sine, 0.85, sin_values, CTW_COUNT(sin_values)},
        {"cos", cosine, 0.85, cos_values, CTW_COUNT(cos_values)},
    };
    for (size_t r = 0; r < CTW_COUNT(rows); r++)
        for (size_t i = 0; i < rows[r].n; i++) {
            const struct value *v = &rows[r].values[i];
            double got = rows[r].function(v->x), off = distance(got, v->y, (double)v->rest);
            double bound = fabs(v->y) < 0x1p-1022 ? 1 : rows[r].bound;
            if (!(off <= bound))
                fail_msg("%s(%a) is %a, expected %a and %.3f ulp: off by %.3f, at most %g",
                         rows[r].name, v->x, got, v->y, (double)v->rest, off, bound);
        }
}

static void powers_within_their_bound(void **state)
{
    (void)state;
    for (size_t i = 0; i < CTW_COUNT(powers); i++) {
        const struct power *v = &powers[i];
        double got = ctw_pow(v->x, v->exponent), off = distance(got, v->y, (double)v->rest);
        if (!(off <= 0.7))
            fail_msg("%a^%a is %a, expected %a and %.3f ulp", v->x, v->exponent, got, v->y,
                     (double)v->rest);
    }
}

static double ln_of_size(double x)
{
    return ctw_ln(fabs(x));
}

static double power(double x)
{
    return ctw_pow(1 + fabs(x), 2 / (1 + fabs(x)) - 1);
}

/* Arguments of either sign, uniform in their logarithm to base 2. A result may change only with the
 * numerics id (docs/NUMERICS.md), be the change ever so much smaller than the bounds above. */
static void bits_stay(void **state)
{
    (void)state;
    enum { N = 1 << 16 };
    static double results[N];
    static const struct {
        const char *name;
        double (*function)(double);
        int low, high; /* exponents of 2 */
        const char *digest;
    } rows[] = {
        {"exp", ctw_exp, -14, 10, "2dbce261a4a53119166c3e5f0d1a33ea"},
        {"ln", ln_of_size, -3, 20, "3842104b5c8d9756770a242e0424c4ba"},
        {"pow", power, -8, 24, "a0bcd15c5401d87429724a32fbdf5bda"},
        {"tanh", ctw_tanh, -14, 5, "1752cf6d4e7fdc50dfdc95b77f86aa01"},
        {"erfc", ctw_erfc, -14, 5, "54a8089f820064a69f2e20366de1c28b"},
        {"sin", sine, -12, 127, "66547b3cf96b5db935efae2acc6b4b8c"},
        {"cos", cosine, -12, 127, "364c2cce6dd1fed50ac5844248422c27"},
    };
    for (size_t r = 0; r < CTW_COUNT(rows); r++) {
        uint64_t seed = 1;
        char got[33];
        for (int i = 0; i < N; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            double m = 1 + (double)(seed >> 12) * 0x1p-52;
            double x = ldexp(m, rows[r].low + i % (rows[r].high - rows[r].low));
            results[i] = rows[r].function(seed >> 11 & 1 ? -x : x);
        }
        struct ctw_digest d = ctw_digest_of(results, sizeof(results));
        for (int b = 0; b < 16; b++)
            (void)snprintf(got + 2 * b, 3, "%02x", d.bytes[b]);
        if (strcmp(got, rows[r].digest) != 0)
            fail_msg("%s: the bits of its results have the digest %s, expected %s", rows[r].name,
                     got, rows[r].digest);
    }
}

static void limits(void **state)
{
    (void)state;
    assert_true(ctw_exp(-INFINITY) == 0);
    assert_true(ctw_exp(-746) == 0);
    assert_true(ctw_exp(0) == 1);
    assert_true(ctw_exp(-745.1) == 0x1p-1074);
    assert_true(ctw_exp(INFINITY) == INFINITY);
    assert_true(ctw_exp(709.79) == INFINITY);
    assert_true(ctw_ln(0) == -INFINITY);
    assert_true(ctw_ln(INFINITY) == INFINITY);
    assert_true(ctw_ln(1) == 0);
    assert_true(isnan(ctw_ln(-1)));
    assert_true(isnan(ctw_ln(-INFINITY)));
    assert_true(ctw_tanh(INFINITY) == 1);
    assert_true(ctw_tanh(-INFINITY) == -1);
    assert_true(ctw_tanh(0) == 0);
    assert_true(ctw_erfc(INFINITY) == 0);
    assert_true(ctw_erfc(-INFINITY) == 2);
    assert_true(ctw_erfc(0) == 1);
    assert_true(ctw_erfc(28) == 0);
    assert_true(ctw_erfc(-7) == 2);
    assert_true(ctw_pow(1e300, 2) == INFINITY);
    assert_true(ctw_pow(1e300, -2) == 0);
    assert_true(isnan(ctw_exp(NAN)));
    assert_true(isnan(ctw_ln(NAN)));
    assert_true(isnan(ctw_tanh(NAN)));
    assert_true(isnan(ctw_erfc(NAN)));
    assert_true(isnan(sine(NAN)));
    assert_true(isnan(cosine(-INFINITY)));
}

static uint32_t bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof(u));
    return u;
}

/* Every operation in fp32 and rounded correctly: theta^(2 i / d), its inverse, the angle, cos and
 * sin. */
static void rope_tables_are_rounded_correctly(void **state)
{
    (void)state;
    for (size_t n = 0; n < CTW_COUNT(rope_entries); n++) {
        const struct rope_entry *e = &rope_entries[n];
        const struct ctw_rope_params p = {.type = CTW_ROPE_DEFAULT, .theta = e->theta};
        float inv_freq[128], row[256];
        ctw_rope_frequencies(&p, e->rot_dim, inv_freq);
        ctw_rope_row(inv_freq, e->rot_dim, 1, e->position, row);
        uint32_t got[] = {bits(inv_freq[e->i]), bits(row[e->i]), bits(row[e->rot_dim / 2 + e->i])};
        if (got[0] != e->inv_freq || got[1] != e->cosine || got[2] != e->sine)
            fail_msg("theta %g, d %d, i %d, position %lld: %08x %08x %08x, expected %08x %08x %08x",
                     e->theta, e->rot_dim, e->i, (long long)e->position, got[0], got[1], got[2],
                     e->inv_freq, e->cosine, e->sine);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(within_their_bounds),
        cmocka_unit_test(powers_within_their_bound),
        cmocka_unit_test(bits_stay),
        cmocka_unit_test(limits),
        cmocka_unit_test(rope_tables_are_rounded_correctly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
