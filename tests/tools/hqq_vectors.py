#!/usr/bin/env python3
"""Makes tests/unit/hqq_vectors.h.

    hqq_vectors.py

Needs torch and hqq 0.2.8 (reference only; no test runs this program). Each row is a small weight whose stored bytes come
from a generator that the C test repeats, and the SHA-256 of what HQQ's Quantizer.dequantize() makes of them.
"""

from hqq.core.quantize import Quantizer

from parts_vectors import TORCH, Case, table

PACKING = {8: "8bit_u8", 4: "4bit_u8", 3: "3bit_32", 2: "2bit_u8", 1: "1bit_u8"}
IN_ELEMENT = {8: 1, 4: 2, 3: 10, 2: 4, 1: 8}

# name, bits, group_size (0: of a whole row or column), axis, dtype, n, k
ROWS = [
    ("4 bits", 4, 64, 1, "BF16", 8, 320), ("4 bits, axis 0", 4, 64, 0, "F16", 12, 128), ("8 bits", 8, 32, 1, "F16", 5, 288),
    ("8 bits, axis 0", 8, 32, 0, "BF16", 8, 96), ("2 bits", 2, 16, 1, "F32", 16, 80), ("2 bits, axis 0", 2, 64, 0, "BF16", 16, 64),
    ("3 bits", 3, 64, 1, "BF16", 7, 320), ("3 bits, axis 0", 3, 16, 0, "F16", 6, 64), ("1 bit", 1, 32, 1, "F16", 16, 64),
    ("groups across rows", 4, 64, 1, "BF16", 8, 48),
    ("rows as groups", 4, 0, 1, "F16", 6, 300), ("columns as groups", 8, 0, 0, "BF16", 6, 40),
]


def row(name, bits, group, axis, dtype, n, k):
    case = Case(name, n, k)
    if group:
        rows, columns = (n * k // group, group) if axis == 1 else (group, n * k // group)
    else:
        rows, columns = n, k
    packed = case.add("VALUES", "I32" if bits == 3 else "U8", (-(-rows // IN_ELEMENT[bits]), columns))
    shape = (rows, 1) if axis == 1 else (1, columns)
    meta = {"compute_dtype": TORCH[dtype], "packing": PACKING[bits], "view_as_float": False, "nbits": bits, "axis": axis,
            "group_size": group, "shape": (n, k), "scale": case.add("SCALE", dtype, shape), "zero": case.add("ZERO_POINT", dtype, shape)}
    case.show("hqq", Quantizer.dequantize(packed, meta))


def main():
    print("/* Made by tests/tools/hqq_vectors.py; do not edit. */")
    table("hqq_cases", [lambda r=r: row(*r) for r in ROWS])


if __name__ == "__main__":
    main()
