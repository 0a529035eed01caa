#!/usr/bin/env python3
"""Makes tests/unit/math_vectors.h: values of elementary functions and entries of RoPE tables, from mpmath.

    math_vectors.py > tests/unit/math_vectors.h
    math_vectors.py --constants      prints the constants of kernels/math.c and of vf_gelu() (kernels/cpu/fast_math.h)

Needs mpmath (no test runs this program). The arguments are fixed hard cases, then random values with a fixed
seed. A double result is given as two numbers: the nearest double, and the remainder in ulps of it.
"""

import math
import random
import struct
import sys

from mpmath import cos, erfc, exp, floor, frexp, ldexp, log, mp, mpf, pi, sin, sqrt, tanh

mp.prec = 2000
RANDOM = random.Random(20260101)
N_RANDOM = 10


def uniform(low, high):
    return [RANDOM.uniform(low, high) for _ in range(N_RANDOM)]


def spread(low, high):
    """Doubles of either sign, uniform in their logarithm to base 2."""
    return [RANDOM.choice((-1, 1)) * 2.0 ** RANDOM.uniform(low, high) for _ in range(N_RANDOM)]


def near(x, steps=3):
    out = [x]
    for to in (math.inf, -math.inf):
        y = x
        for _ in range(steps):
            y = math.nextafter(y, to)
            out.append(y)
    return out


def fl32(x):
    """A double rounded to fp32; correctly rounded if it is a product or quotient of floats."""
    return struct.unpack("<f", struct.pack("<f", x))[0]


def bits(x):
    return f"0x{struct.unpack('<I', struct.pack('<f', x))[0]:08x}"


HALF_LN2 = 0.34657359027997264
FUNCTIONS = [
    ("exp", exp, lambda: [0.0, 1.0, -1.0, *near(HALF_LN2), *near(-HALF_LN2), *near(3 * HALF_LN2),
                          *near(709.782712893384), -708.3, -708.4, -720.5, -745.1, -745.13, 88.72,
                          -87.3, -103.97] + uniform(-745, 709) + uniform(-20, 20) + spread(-60, 0)),
    ("ln", log, lambda: [5e-324, 2.2250738585072014e-308, 1.7976931348623157e308, 1e-310, 1e4, 5e5,
                          1e6, 151936.0, *near(1.0), *near(2.0), *near(2 ** 0.5), *near(0.5 ** 0.5),
                          *near(1.0625)] + [abs(x) for x in spread(-1000, 1000)] +
     [abs(x) for x in spread(-3, 20)] + uniform(0.9, 1.1)),
    ("tanh", tanh, lambda: [0.0, 5e-324, 1e-310, *near(HALF_LN2 / 2), *near(HALF_LN2), 18.3, 18.7, 19.0,
                            19.06, 19.1, 19.99, -0.5, -3.0] + uniform(-20, 20) + spread(-30, 4) +
     uniform(-0.7, 0.7)),
    ("erfc", erfc, lambda: [0.0, 5e-324, 0.5, 1.0, 2.0, *near(4.0), 5.9, 9.19, 10.05, 26.5, 27.2, 27.226,
                            -5.8, -5.9, -6.0, -27.0] + uniform(-6, 6) + uniform(0, 27) + spread(-40, 2)),
    ("sin", sin, lambda: angles()),
    ("cos", cos, lambda: angles()),
]
# Subnormal, least, and where the reduction begins; multiples of pi / 2; the two floats that are nearest to one
# (2^-29.2 and 2^-28.8 away); the last position; the largest float.
ANGLES = [struct.unpack("<f", struct.pack("<I", u))[0] for u in (
    0x00000001, 0x00800000, 0x39800000, 0x3f490fd9, 0x3f490fda, 0x3f490fdb, 0x3f490fdc, 0x3f800000,
    0x3fc90fda, 0x3fc90fdb, 0x3fc90fdc, 0x40490fdb, 0x4096cbe4, 0x40c90fdb, 0x6f79be45, 0x50a3e87f,
    0x4b7fffff, 0x4b800000, 0x7f7fffff, 0xbfc90fdb, 0xc2c80000)]


def angles():
    RANDOM.seed(7)  # the same arguments for both
    return ANGLES + [fl32(x) for x in uniform(-4, 4) + uniform(0, 2 ** 24) + spread(-40, 127)]


def as_pair(value):
    """(nearest double, remainder in its ulps)."""
    head = float(value)
    if head in (0.0, math.inf):
        return head, 0.0
    step = ldexp(1, max(int(frexp(mpf(head))[1]) - 53, -1074))
    return head, float((value - mpf(head)) / step)


def print_function(name, function, arguments):
    print(f"static const struct value {name}_values[] = {{")
    for x in dict.fromkeys(arguments()):
        head, rest = as_pair(function(mpf(x)))
        print(f"    {{{x.hex()}, {head.hex() if head != math.inf else 'INFINITY'}, {rest:.2f}}},")
    print("};\n")


def print_powers():
    print("static const struct power powers[] = {")
    cases = [(theta, fl32(2 * i / rot)) for theta in
             (1e4, 5e5, 1e6, 1.5e5, 28000000.0, 1.0000001, 1e12) for rot in (80, 128)
             for i in (1, rot // 6, rot // 3, rot // 2 - 1)]
    cases += [(2.0, 2.0), (10.0, -1.0), (1e-300, 1.5), (3.0, -2.0), (1e300, 1.02), (64.0, -0.5)]
    for x, y in cases:
        head, rest = as_pair(mpf(x) ** mpf(y))
        print(f"    {{{x.hex()}, {y.hex()}, {head.hex()}, {rest:.2f}}},")
    print("};\n")


def nearest_float(x):
    """The float nearest to x (an mpf), ties to even, rounded once."""
    step = ldexp(1, max(int(frexp(x)[1]) - 24, -149))
    return float(mp.nint(x / step) * step)  # nint: ties to even


def print_rope():
    """Entries of RoPE tables: every operation in fp32, each rounded once, as transformers writes it."""
    print("static const struct rope_entry rope_entries[] = {")
    lengths = (1, 2, 777, 4095, 131071, 1048575, 2 ** 24 - 1)
    for theta in (1e4, 5e5, 1e6, 1e7, 8e6, 2.5e5):
        for rot in (64, 96, 128, 256):
            for i in sorted({0, 1, rot // 4, rot // 2 - 1}):
                inv_freq = fl32(1 / nearest_float(mpf(fl32(theta)) ** mpf(fl32(2 * i / rot))))
                position = RANDOM.choice(lengths) if RANDOM.random() < 0.5 else RANDOM.randrange(2 ** 18)
                angle = mpf(fl32(position * inv_freq))
                print(f"    {{{theta!r}, {rot}, {i}, {position}, {bits(inv_freq)}, "
                      f"{bits(nearest_float(cos(angle)))}, {bits(nearest_float(sin(angle)))}}},")
    print("};")


def erfc_polynomial(degree, last, width=1):
    """For x = a width in [0, last width], e^(x^2) erfc(x) (1 + a) in powers of t = (a - 4) / (a + 4),
    interpolated at Chebyshev's points."""
    low, high, n = mpf(-1), mpf(last - 4) / (last + 4), degree + 1
    points = [(low + high) / 2 + (high - low) / 2 * cos(pi * (2 * i + 1) / (2 * n)) for i in range(n)]
    c = []
    for t in points:
        a = 4 * (1 + t) / (1 - t)
        x = a * width
        c.append(exp(x * x) * erfc(x) * (1 + a))
    for j in range(1, n):  # Newton's divided differences, then powers of t
        for i in range(n - 1, j - 1, -1):
            c[i] = (c[i] - c[i - 1]) / (points[i] - points[i - j])
    out = [c[-1]]
    for i in range(n - 2, -1, -1):
        out = [(out[j - 1] if j else 0) - (out[j] * points[i] if j < len(out) else 0)
               for j in range(len(out) + 1)]
        out[0] += c[i]
    return out


def print_constants():
    c = erfc_polynomial(24, 28)
    print("erfc:", float(c[0]).hex(), "+", float(c[0] - mpf(float(c[0]))).hex())
    print(",\n".join(float(x).hex() for x in c[1:]))
    print("gelu, from the highest power:",
          ", ".join(f"{fl32(float(x))!r}f" for x in reversed(erfc_polynomial(10, 16, sqrt(mpf(1) / 2)))))
    high = floor(ldexp(log(2), 42)) / 2 ** 42
    print("ln 2:", float(high).hex(), "+", float(log(2) - high).hex(), " 1 / ln 2:", float(1 / log(2)).hex())
    print("pi / 2:", float(pi / 2).hex(), "+", float(pi / 2 - mpf(float(pi / 2))).hex())
    print("2 / pi:", ", ".join(f"0x{int(floor(ldexp(2 / pi, 32 * i))) & 0xffffffff:08x}" for i in range(1, 9)))


def main():
    if sys.argv[1:] == ["--constants"]:
        print_constants()
        return 0
    print("/* Made by tests/tools/math_vectors.py. */")
    for name, function, arguments in FUNCTIONS:
        print_function(name, function, arguments)
    print_powers()
    print_rope()
    return 0


if __name__ == "__main__":
    sys.exit(main())
