#!/usr/bin/env python3
"""Makes tests/unit/mlx_vectors.h.

    mlx_vectors.py

Needs mlx 0.32 with its CPU backend (`pip install 'mlx[cpu]'`; reference only, no test runs this program). Each row is a
small weight whose stored bytes come from a generator that the C test repeats, and the SHA-256 of what mx.dequantize()
makes of them on the CPU.
"""

import hashlib

import mlx.core as mx
import numpy as np

# name, dtype of scales and biases, bits, group, n, k
AFFINE = [("4 bits", "BF16", 4, 64, 12, 576), ("4 bits", "F16", 4, 32, 5, 288), ("4 bits", "F32", 4, 128, 4, 384),
          ("3 bits", "BF16", 3, 64, 8, 320), ("3 bits", "F16", 3, 128, 3, 640), ("2 bits", "BF16", 2, 128, 7, 384),
          ("5 bits", "BF16", 5, 32, 6, 544), ("6 bits", "F16", 6, 64, 6, 320), ("6 bits", "F32", 6, 32, 2, 32),
          ("8 bits", "BF16", 8, 64, 9, 320), ("8 bits", "F16", 8, 32, 3, 352), ("1 bit", "BF16", 1, 64, 5, 832)]
# name, bytes of codes that share a scale, n, k
FLOATS = [("mxfp4", 16, 10, 352), ("mxfp8", 32, 7, 288), ("nvfp4", 8, 6, 336)]
# name, n, k, global scale
GLOBAL = [("nvfp4 by 0.37", 6, 352, 0.37), ("nvfp4 by 1234.5", 3, 544, 1234.5), ("nvfp4 by 9.1e-5", 4, 96, 9.1e-5)]


class Bytes:
    """x <- 1664525 x + 1013904223; returns the top byte of each step."""

    def __init__(self):
        self.x = 1

    def take(self, n):
        out = np.empty(n, np.uint8)
        for i in range(n):
            self.x = (self.x * 1664525 + 1013904223) & 0xFFFFFFFF
            out[i] = self.x >> 24
        return out


def numbers(gen, shape, dtype):
    """As add_scales() of tests/unit/made_weight.h."""
    words = gen.take(2 * shape[0] * shape[1]).view("<u2").reshape(shape)
    if dtype == "F32":
        return mx.array((words.astype(np.float32) - 32768) / 8388608)
    if dtype == "BF16":
        return mx.array(words & 0x83FF | 0x3800).view(mx.bfloat16)
    return mx.array(words & 0x97FF).view(mx.float16)


def digest(w):
    raw = np.array(w if w.dtype == mx.float32 else w.view(mx.uint16))
    return hashlib.sha256(raw.tobytes()).hexdigest()


def affine_row(name, dtype, bits, group, n, k):
    gen = Bytes()
    words = gen.take(n * k * bits // 8).view("<u4").reshape(n, -1)
    scales, biases = (numbers(gen, (n, k // group), dtype) for _ in range(2))
    w = mx.dequantize(mx.array(words), scales, biases, group_size=group, bits=bits)
    print(f'    {{"{name}", CTW_{dtype}, {bits}, {group}, {n}, {k},\n     "{digest(w)}"}},')


def exponents(gen, n, groups, width):
    """The last code is infinite in E8M0 and no number in E4M3."""
    codes = gen.take(n * groups)
    codes[(codes == 255) if width != 8 else (codes & 0x7F == 0x7F)] = 0
    return mx.array(codes.reshape(n, groups))


def float_row(name, width, n, k):
    gen = Bytes()
    raw = gen.take(n * k if width == 32 else n * k // 2)
    if width == 32:
        raw[raw & 0x7F == 0x7F] = 0
    groups = k // (16 if width == 8 else 32)
    w = mx.dequantize(mx.array(raw.view("<u4").reshape(n, -1)), exponents(gen, n, groups, width), mode=name)
    print(f'    {{"{name}", {width}, 0, {n}, {k},\n     "{digest(w)}"}},')


def global_row(name, n, k, scale):
    gen = Bytes()
    words = mx.array(gen.take(n * k // 2).view("<u4").reshape(n, -1))
    w = mx.dequantize(words, exponents(gen, n, k // 16, 8), mode="nvfp4", global_scale=mx.array(np.float32(scale)))
    print(f'    {{"{name}", 8, {scale}f, {n}, {k},\n     "{digest(w)}"}},')


def main():
    mx.set_default_device(mx.cpu)
    print("/* Made by tests/tools/mlx_vectors.py; do not edit. */")
    print("static const struct affine_case affine_cases[] = {")
    for row in AFFINE:
        affine_row(*row)
    print("};\n\nstatic const struct float_case float_cases[] = {")
    for row in FLOATS:
        float_row(*row)
    for row in GLOBAL:
        global_row(*row)
    print("};")


if __name__ == "__main__":
    main()
