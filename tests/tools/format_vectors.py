#!/usr/bin/env python3
"""Makes the table of tests/unit/format_vectors.h.

Needs torch and compressed-tensors >= 0.18 (reference only; no test runs this program). Each row is a
small weight whose stored bytes come from a generator that the C test repeats, and the SHA-256 of the
result of compressed-tensors' own decompress(). Recent versions no longer read group indices and
unpacked zero points, so this program converts them first: columns are decoded in the order of their
groups and put back, zero points are packed.
"""

import hashlib
import sys

import torch
from compressed_tensors.compressors.nvfp4.base import NVFP4PackedCompressor
from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

# name, bits, dtype of the scales, strategy, group size, symmetric, stored zero points, g_idx, n, k
PACK = [
    ("int4 group 32", 4, "BF16", "group", 32, True, None, False, 24, 160),
    ("int4 group 32 asymmetric", 4, "BF16", "group", 32, False, "packed", False, 24, 160),
    ("int4 group 32 asymmetric, int8 zero points", 4, "F16", "group", 32, False, "int8", False, 24, 160),
    ("int4 odd groups across words", 4, "BF16", "group", 12, False, "packed", False, 33, 1044),
    ("int4 activation order", 4, "BF16", "group", 24, False, "packed", True, 17, 312),
    ("int4 channel, fp32 scales", 4, "F32", "channel", 0, False, "packed", False, 19, 45),
    ("int8 channel", 8, "BF16", "channel", 0, True, None, False, 7, 301),
    ("int8 channel asymmetric", 8, "F16", "channel", 0, False, "packed", False, 31, 77),
    ("int8 tensor asymmetric", 8, "BF16", "tensor", 0, False, "int8", False, 8, 70),
    ("int1 group 64", 1, "BF16", "group", 64, False, "packed", False, 40, 320),
    ("int2 group 16", 2, "F16", "group", 16, False, "packed", False, 21, 528),
    ("int2 channel", 2, "BF16", "channel", 0, True, None, False, 5, 299),
    ("int3 group 40", 3, "F16", "group", 40, False, "packed", False, 43, 1000),
    ("int3 activation order", 3, "F16", "group", 40, True, None, True, 12, 400),
    ("int5 channel", 5, "BF16", "channel", 0, False, "packed", False, 37, 333),
    ("int6 group 128", 6, "BF16", "group", 128, False, "packed", False, 65, 640),
    ("int7 group 20", 7, "F16", "group", 20, False, "packed", False, 18, 260),
    ("int3 tensor", 3, "BF16", "tensor", 0, True, None, False, 6, 290),
]
NVFP4 = [("nvfp4", 48, 368, 12345.678), ("nvfp4 tiny global scale", 9, 1040, 3.1e-5)]


class Bytes:
    """x <- 1664525 x + 1013904223; returns the top byte of each step."""

    def __init__(self):
        self.x = 1

    def byte(self):
        self.x = (self.x * 1664525 + 1013904223) & 0xFFFFFFFF
        return self.x >> 24

    def codes(self, n, bits):
        return [self.byte() & ((1 << bits) - 1) for _ in range(n)]


def scales(gen, n, dtype):
    """Both signs, many magnitudes (fp16: also subnormal results); the C test makes the same bits."""
    words = [gen.byte() | gen.byte() << 8 for _ in range(n)]
    if dtype == "BF16":
        bits = [(w & 0x83FF) | 0x3800 for w in words]
        return torch.tensor(bits, dtype=torch.int32).to(torch.uint16).view(torch.bfloat16)
    if dtype == "F16":
        bits = [w & 0x97FF for w in words]
        return torch.tensor(bits, dtype=torch.int32).to(torch.uint16).view(torch.float16)
    return torch.tensor([(w - 32768) / 8388608 for w in words], dtype=torch.float32)


def digest(w):
    raw = w.contiguous().clone().flatten().view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(raw).hexdigest()


def pack_row(name, bits, dtype, strategy, group, symmetric, zero, indexed, n, k):
    gen = Bytes()
    offset = 1 << (bits - 1)
    q = torch.tensor(gen.codes(n * k, bits), dtype=torch.int32).reshape(n, k) - offset
    groups = {"tensor": 0, "channel": 1, "group": k // group if group else 0}[strategy]
    shape = (1,) if strategy == "tensor" else (n, groups)
    count = 1 if strategy == "tensor" else n * groups
    s = scales(gen, count, dtype).reshape(shape)
    tensors = {"weight_scale": s, "weight_shape": torch.tensor([n, k])}
    if not symmetric:
        z = torch.tensor(gen.codes(count, bits), dtype=torch.int32).reshape(shape) - offset
        z = z.to(torch.int8)
        tensors["weight_zero_point"] = z if strategy == "tensor" else pack_to_int32(z, bits, 0)
    order = torch.arange(k)
    if indexed:  # column c is in group (c * 7) % groups
        order = torch.argsort(torch.arange(k) * 7 % groups, stable=True)
    tensors["weight_packed"] = pack_to_int32(q[:, order].to(torch.int8).contiguous(), bits)
    args = QuantizationArgs(num_bits=bits, type="int", strategy=strategy, symmetric=symmetric,
                            group_size=group or None)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    w = PackedQuantizationCompressor.decompress(tensors, scheme)["weight"]
    back = torch.empty_like(w)
    back[:, order] = w
    flags = [str(symmetric).lower(), str(zero == "packed").lower(), str(indexed).lower()]
    print(f'    {{"{name}", {bits}, CTW_{dtype}, CTW_STRATEGY_{strategy.upper()}, {group}, '
          f'{", ".join(flags)}, {n}, {k},\n     "{digest(back)}"}},')


def nvfp4_row(name, n, k, global_scale):
    gen = Bytes()
    packed = torch.tensor(gen.codes(n * k // 2, 8), dtype=torch.uint8).reshape(n, k // 2)
    codes = [c if c & 0x7F != 0x7F else 0 for c in gen.codes(n * k // 16, 8)]
    s = torch.tensor(codes, dtype=torch.uint8).reshape(n, k // 16).view(torch.float8_e4m3fn)
    args = QuantizationArgs(num_bits=4, type="float", strategy="tensor_group", symmetric=True,
                            group_size=16)
    tensors = {"weight_packed": packed, "weight_scale": s,
               "weight_global_scale": torch.tensor([global_scale], dtype=torch.float32)}
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    w = NVFP4PackedCompressor.decompress(tensors, scheme)["weight"]
    print(f'    {{"{name}", {n}, {k}, {global_scale}f,\n     "{digest(w)}"}},')


def main():
    print("/* Made by tests/tools/format_vectors.py. */\n"
          "static const struct pack_case pack_cases[] = {")
    for row in PACK:
        pack_row(*row)
    print("};\n\nstatic const struct nvfp4_case nvfp4_cases[] = {")
    for row in NVFP4:
        nvfp4_row(*row)
    print("};")
    return 0


if __name__ == "__main__":
    sys.exit(main())
