#!/usr/bin/env python3
"""Makes the tables of tests/unit/exl3_vectors.h.

    exl3_vectors.py EXLLAMAV3

Needs torch and the unpacked wheel of exllamav3 1.6.5 (reference only; no test runs this program). Each row is a small
matrix whose stored bytes come from a generator that the C test repeats, and the SHA-256 of what the library's own
functions decode them to, on the CPU: LinearEXL3.get_weight_tensor() with its Hadamard transforms, and dequant_rows() of
embedding tables. Only the reading of tiles is done here, because the library has that as CUDA code alone; its packing
(pack_rows() of tables) and its mul1 codebook are the library's.
"""

import glob
import math
import os
import sys
from pathlib import Path

import torch

from native_vectors import function
from vector_bytes import Bytes, digest, scales

# name, bits, codebook, packed signs, tiny scales, n, k
MATRICES = [
    ("3inst, 1 bit", 1, "3inst", False, False, 128, 128), ("3inst, 2 bits, packed signs", 2, "3inst", True, False, 256, 128),
    ("3inst, 3 bits, padded", 3, "3inst", False, False, 100, 200), ("3inst, 8 bits, tiny scales", 8, "3inst", False, True, 128, 128),
    ("mcg, 2 bits", 2, "mcg", False, False, 128, 256), ("mcg, 5 bits, padded", 5, "mcg", False, False, 130, 72),
    ("mcg, 7 bits", 7, "mcg", False, False, 128, 128), ("mul1, 1.5 bits", 1.5, "mul1", False, False, 128, 128),
    ("mul1, 2.5 bits", 2.5, "mul1", False, False, 128, 128), ("mul1, 3.5 bits, padded", 3.5, "mul1", False, False, 64, 320),
    ("mul1, 4 bits", 4, "mul1", False, False, 256, 256), ("mul1, 6 bits", 6, "mul1", False, False, 384, 128),
]
TABLES = [("3 bits", 3, 20, 256), ("4 bits, padded", 4, 9, 300), ("7 bits", 7, 5, 512)]  # name, bits, n, k


def states(trellis, bits):
    """[tiles, 16 bits] -> [tiles, 256]"""
    units = trellis.view(torch.uint16).to(torch.int64)
    units = units[:, torch.arange(units.shape[1]) ^ 1]
    stream = (units.unsqueeze(-1) >> torch.arange(15, -1, -1) & 1).reshape(len(units), -1)
    end = torch.tensor([int((t + 1) * bits) for t in range(256)])
    at = (end.unsqueeze(-1) + torch.arange(-16, 0)) % stream.shape[1]
    return (stream[:, at] << torch.arange(15, -1, -1)).sum(-1)


def values(state, codebook, root):
    if codebook == "mul1":
        mul1 = function(f"{root}/modules/quant/exl3_lib/ngram_codec.py", "mul1_codebook", MUL1=0x83DCD12D)("cpu")
        return mul1[state]
    x = state * 0xCBAC1FED if codebook == "mcg" else state * 89226354 + 64248484
    x = x & 0x8FFF8FFF ^ 0x3B603B60
    return (x & 0xFFFF).to(torch.uint16).view(torch.half) + (x >> 16).to(torch.uint16).view(torch.half)


class Linear:
    """What get_weight_tensor() reads of LinearEXL3."""

    def __init__(self, root, **parts):
        self.su = self.sv = None  # the constructor unpacks them
        self.inner = parts.pop("inner")
        unpack = function(f"{root}/modules/quant/exl3.py", "unpack_bf")
        self.transformers_fix = False
        self.suh, self.svh = (unpack(self, x) if x.dtype == torch.int16 else x for x in (parts["suh"], parts["svh"]))

    def get_inner_weight_tensor(self):
        return self.inner.clone()


def hadamard(root):
    path = f"{root}/util/hadamard.py"
    load = function(path, "load_constants", os=os, glob=glob, __file__=path)
    load()
    names = {name: load.__globals__[name] for name in ("had_dict", "primes")}
    names["sylvester"] = function(path, "sylvester")
    names["get_hadamard"] = function(path, "get_hadamard", **names)
    names["get_hadamard"].__globals__["get_hadamard"] = names["get_hadamard"]
    names["get_hadamard_dt"] = function(path, "get_hadamard_dt", get_hadamard=names["get_hadamard"])
    quantize = f"{root}/modules/quant/exl3_lib/quantize.py"
    return {name: function(quantize, name, math=math, get_hadamard_dt=names["get_hadamard_dt"], _HAD_MAX_GEMM_ROWS=1 << 20)
            for name in ("preapply_had_l", "preapply_had_r")}


def half(gen, count, tiny):
    if tiny:
        return scales(gen, count, "F16")
    raw = [gen.codes(2, 8) for _ in range(count)]
    return torch.tensor([(a | b << 8) & 0x83FF | 0x3800 for a, b in raw], dtype=torch.int32).to(torch.uint16).view(torch.half)


def words(gen, count):
    return torch.tensor(gen.codes(2 * count, 8), dtype=torch.uint8).view(torch.int16)


def matrix_row(root, name, bits, codebook, signs, tiny, n, k):
    gen, down, right = Bytes(), -(-k // 128) * 8, -(-n // 128) * 8
    trellis = words(gen, down * right * int(16 * bits)).reshape(down * right, -1)
    suh = words(gen, down) if signs else half(gen, 16 * down, tiny)
    svh = words(gen, right) if signs else half(gen, 16 * right, tiny)
    place = torch.empty(16, 16, dtype=torch.int64)
    for t in range(256):
        lane, b = t >> 3, t & 7
        place[2 * (lane & 3) + (b & 1) + 8 * (b >> 1 & 1), (lane >> 2) + 8 * (b >> 2)] = t
    tiles = values(states(trellis, bits), codebook, root)[:, place]
    inner = tiles.reshape(down, right, 16, 16).transpose(1, 2).reshape(16 * down, 16 * right).contiguous()
    weigh = function(f"{root}/modules/quant/exl3.py", "get_weight_tensor", had_k=128, had_n=128, **hadamard(root))
    w = weigh(Linear(root, inner=inner, suh=suh, svh=svh))
    print(f'    {{"{name}", {int(2 * bits)}, "{"" if codebook == "3inst" else codebook}", {str(signs).lower()}, '
          f'{str(tiny).lower()}, {n}, {k},\n     "{digest(w.T[:n, :k].contiguous())}"}},')


def table_row(root, name, bits, n, k):
    codec, gen, groups = f"{root}/modules/quant/exl3_lib/ngram_codec.py", Bytes(), -(-k // 256)
    rings = words(gen, n * groups * (1 + 16 * bits)).reshape(n * groups, -1)
    rings[:, 0] = (rings[:, 0].to(torch.int32) & 0x87FF | 0x2800).to(torch.int16)  # the scale
    signs = half(gen, groups * 256, False).reshape(groups, 256)
    names = {"ring_dim": function(codec, "ring_dim"), "hadamard_rotate": function(codec, "hadamard_rotate")}
    names["unpack_rows"] = function(codec, "unpack_rows", **names)
    book = function(codec, "mul1_codebook", MUL1=0x83DCD12D)("cpu")
    out = function(codec, "dequant_rows", **names)(rings, bits, book, signs=signs.repeat(n, 1)).half()
    print(f'    {{"{name}", {bits}, {n}, {k},\n     "{digest(out.reshape(n, -1)[:, :k].contiguous())}"}},')


def main():
    root = Path(sys.argv[1], "exllamav3")
    print("/* Made by tests/tools/exl3_vectors.py. */\n\nstatic const struct exl3_case exl3_cases[] = {")
    for row in MATRICES:
        matrix_row(root, *row)
    print("};\n\nstatic const struct table_case table_cases[] = {")
    for row in TABLES:
        table_row(root, *row)
    print("};")


if __name__ == "__main__":
    main()
