#!/usr/bin/env python3
"""Makes tests/unit/bnb_vectors.h.

    bnb_vectors.py

Needs torch and bitsandbytes 0.50 (reference only; no test runs this program). Each row is a small weight whose stored
bytes come from a generator that the C test repeats, and the SHA-256 of what bitsandbytes makes of them: of 4 bits its
implementation in torch, which all of its kernels follow (the one for CPUs with AVX-512 does not where blocks cross rows).
"""

import torch
from bitsandbytes import functional
from bitsandbytes.backends.default.ops import _dequantize_4bit_compute

from vector_bytes import Bytes, digest, scales

# name, type, dtype, nested, blocksize, n, k
FOUR = [("nf4", "nf4", "BF16", False, 64, 8, 320), ("nf4", "nf4", "F16", False, 128, 5, 384), ("nf4", "nf4", "F32", True, 64, 70, 512),
        ("nf4, nested", "nf4", "BF16", True, 64, 72, 320), ("fp4", "fp4", "BF16", False, 64, 6, 576),
        ("fp4, nested", "fp4", "F16", True, 32, 33, 288), ("blocks across rows", "nf4", "BF16", False, 64, 7, 102),
        ("blocks of several rows", "fp4", "F32", True, 4096, 21, 530)]
DTYPE = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}


def four_row(name, kind, dtype, nested, block, n, k):
    gen = Bytes()
    packed = torch.tensor(gen.codes(n * k // 2, 8), dtype=torch.uint8)
    blocks = -(-n * k // block)
    code = functional.get_4bit_type(kind, device="cpu")
    if nested:
        codes = torch.tensor(gen.codes(blocks, 8), dtype=torch.uint8)
        book, outer = scales(gen, 256, "F32"), scales(gen, -(-blocks // 256), "F32")
        absmax = torch.ops.bitsandbytes.dequantize_blockwise(codes, outer, book, 256, torch.float32) + 0.0125
    else:
        absmax = scales(gen, blocks, "F32")
    w = _dequantize_4bit_compute(packed, absmax, code, block, (n, k), DTYPE[dtype])
    flags = f"{str(kind == 'fp4').lower()}, {str(nested).lower()}"
    print(f'    {{"{name}", CTW_{dtype}, {flags}, {block}, {n}, {k},\n     "{digest(w)}"}},')


def main():
    print("/* Made by tests/tools/bnb_vectors.py; do not edit. */")
    print("static const struct four_case four_cases[] = {")
    for row in FOUR:
        four_row(*row)
    gen = Bytes()
    q = torch.tensor(gen.codes(9 * 333, 8), dtype=torch.uint8).view(torch.int8).reshape(9, 333)
    w = functional.int8_vectorwise_dequant(q, scales(gen, 9, "F32"))
    print(f'}};\n\nstatic const char int8_sha256[] =\n    "{digest(w)}"; /* [9, 333] */')


if __name__ == "__main__":
    main()
