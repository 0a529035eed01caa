#!/usr/bin/env python3
"""Makes the table of tests/unit/format_vectors.h.

Needs torch and compressed-tensors >= 0.20 (reference only; no test runs this program). Each row is a
small weight whose stored bytes come from a generator that the C test repeats, and the SHA-256 of the
result of compressed-tensors' own decompress(). Recent versions no longer read group indices and
unpacked zero points, so this program converts them first: columns are decoded in the order of their
groups and put back, zero points are packed.
"""

import math
import sys

import torch
from compressed_tensors.compressors.mxfp4.base import MXFP4PackedCompressor
from compressed_tensors.compressors.mxfp6.base import MXFP6PackedCompressor
from compressed_tensors.compressors.mxfp8.base import MXFP8QuantizationCompressor
from compressed_tensors.compressors.naive_quantized.base import NaiveQuantizationCompressor
from compressed_tensors.compressors.nvfp4.base import NVFP4PackedCompressor
from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import dequantize
from vector_bytes import Bytes, digest, scales

# name, bits, dtype of the scales, strategy, group or block, symmetric, stored zero points, g_idx, n, k
PACK = [
    ("int4 group 32", 4, "BF16", "group", (1, 32), True, None, False, 24, 160),
    ("int4 group 32 asymmetric", 4, "BF16", "group", (1, 32), False, "packed", False, 24, 160),
    ("int4 group 32 asymmetric, int8 zero points", 4, "F16", "group", (1, 32), False, "int8", False, 24, 160),
    ("int4 odd groups across words", 4, "BF16", "group", (1, 12), False, "packed", False, 33, 1044),
    ("int4 activation order", 4, "BF16", "group", (1, 24), False, "packed", True, 17, 312),
    ("int4 channel, fp32 scales", 4, "F32", "channel", (0, 0), False, "packed", False, 19, 45),
    ("int8 channel", 8, "BF16", "channel", (0, 0), True, None, False, 7, 301),
    ("int8 channel asymmetric", 8, "F16", "channel", (0, 0), False, "packed", False, 31, 77),
    ("int8 tensor asymmetric", 8, "BF16", "tensor", (0, 0), False, "int8", False, 8, 70),
    ("int1 group 64", 1, "BF16", "group", (1, 64), False, "packed", False, 40, 320),
    ("int2 group 16", 2, "F16", "group", (1, 16), False, "packed", False, 21, 528),
    ("int2 channel", 2, "BF16", "channel", (0, 0), True, None, False, 5, 299),
    ("int3 group 40", 3, "F16", "group", (1, 40), False, "packed", False, 43, 1000),
    ("int3 activation order", 3, "F16", "group", (1, 40), True, None, True, 12, 400),
    ("int5 channel", 5, "BF16", "channel", (0, 0), False, "packed", False, 37, 333),
    ("int6 group 128", 6, "BF16", "group", (1, 128), False, "packed", False, 65, 640),
    ("int7 group 20", 7, "F16", "group", (1, 20), False, "packed", False, 18, 260),
    ("int3 tensor", 3, "BF16", "tensor", (0, 0), True, None, False, 6, 290),
    ("int4 blocks", 4, "BF16", "block", (128, 128), True, None, False, 256, 384),
    ("int4 ragged blocks asymmetric", 4, "F16", "block", (128, 128), False, "int8", False, 300, 333),
    ("int3 odd blocks asymmetric", 3, "BF16", "block", (24, 52), False, "int8", False, 50, 600),
    ("int8 blocks of one row, fp32 scales", 8, "F32", "block", (1, 96), False, "int8", False, 9, 300),
]
# global scale None: strategy group, which has none
NVFP4 = [("nvfp4", 48, 368, 12345.678), ("nvfp4 tiny global scale", 9, 1040, 3.1e-5),
         ("nvfp4 without a global scale", 7, 272, None)]
# name, float codes, dtype of the scales, strategy, group or block, symmetric, g_idx, n, k
BYTES = [
    ("fp8 tensor", True, "BF16", "tensor", (0, 0), True, False, 9, 301),
    ("fp8 channel", True, "BF16", "channel", (0, 0), True, False, 21, 333),
    ("fp8 channel, fp16", True, "F16", "channel", (0, 0), True, False, 31, 77),
    ("fp8 channel, fp32 scales", True, "F32", "channel", (0, 0), True, False, 19, 45),
    ("fp8 group 40", True, "F16", "group", (1, 40), True, False, 13, 1000),
    ("fp8 blocks", True, "BF16", "block", (128, 128), True, False, 256, 384),
    ("fp8 ragged blocks", True, "BF16", "block", (128, 128), True, False, 300, 333),
    ("fp8 ragged blocks, fp32 scales", True, "F32", "block", (24, 56), True, False, 50, 600),
    ("fp8 activation order", True, "BF16", "group", (1, 24), True, True, 17, 312),
    ("int8 tensor asymmetric, bytes", False, "BF16", "tensor", (0, 0), False, False, 8, 70),
    ("int8 channel, bytes", False, "BF16", "channel", (0, 0), True, False, 7, 301),
    ("int8 channel asymmetric, bytes", False, "F16", "channel", (0, 0), False, False, 31, 77),
    ("int8 group 12 asymmetric, bytes", False, "F32", "group", (1, 12), False, False, 33, 1044),
    ("int8 activation order, bytes", False, "F16", "group", (1, 24), False, True, 17, 312),
    ("int8 ragged blocks asymmetric, bytes", False, "BF16", "block", (128, 128), False, False, 130, 260),
]
# name, bits, n, k; scales 0 .. 254
MX = [("mxfp4", 4, 48, 416), ("mxfp6", 6, 41, 736), ("mxfp8", 8, 37, 608)]


def kind_of(strategy, block):
    return {"group": {"group_size": block[1]}, "block": {"block_structure": list(block)}}.get(strategy, {})


def scales_shape(strategy, block, n, k):
    return {"tensor": (1,), "channel": (n, 1)}.get(strategy) or (-(-n // block[0]), -(-k // block[1]))


def pack_row(name, bits, dtype, strategy, block, symmetric, zero, indexed, n, k):
    gen = Bytes()
    offset = 1 << (bits - 1)
    q = torch.tensor(gen.codes(n * k, bits), dtype=torch.int32).reshape(n, k) - offset
    shape = scales_shape(strategy, block, n, k)
    count = math.prod(shape)
    s = scales(gen, count, dtype).reshape(shape)
    tensors = {"weight_scale": s, "weight_shape": torch.tensor([n, k])}
    if not symmetric:
        z = torch.tensor(gen.codes(count, bits), dtype=torch.int32).reshape(shape) - offset
        z = z.to(torch.int8)
        tensors["weight_zero_point"] = z if strategy in ("tensor", "block") else pack_to_int32(z, bits, 0)
    order = torch.arange(k)
    if indexed:  # column c is in group (c * 7) % groups
        order = torch.argsort(torch.arange(k) * 7 % shape[1], stable=True)
    tensors["weight_packed"] = pack_to_int32(q[:, order].to(torch.int8).contiguous(), bits)
    args = QuantizationArgs(num_bits=bits, type="int", strategy=strategy, symmetric=symmetric, **kind_of(strategy, block))
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    w = PackedQuantizationCompressor.decompress(tensors, scheme)["weight"]
    back = torch.empty_like(w)
    back[:, order] = w
    flags = [str(symmetric).lower(), str(zero == "packed").lower(), str(indexed).lower()]
    print(f'    {{"{name}", {bits}, CTW_{dtype}, CTW_STRATEGY_{strategy.upper()}, {block[0]}, {block[1]}, '
          f'{", ".join(flags)}, {n}, {k},\n     "{digest(back)}"}},')


def nvfp4_row(name, n, k, global_scale):
    gen = Bytes()
    packed = torch.tensor(gen.codes(n * k // 2, 8), dtype=torch.uint8).reshape(n, k // 2)
    codes = [c if c & 0x7F != 0x7F else 0 for c in gen.codes(n * k // 16, 8)]
    s = torch.tensor(codes, dtype=torch.uint8).reshape(n, k // 16).view(torch.float8_e4m3fn)
    args = QuantizationArgs(num_bits=4, type="float", strategy="tensor_group" if global_scale else "group",
                            symmetric=True, group_size=16)
    tensors = {"weight_packed": packed, "weight_scale": s}
    if global_scale:
        tensors["weight_global_scale"] = torch.tensor([global_scale], dtype=torch.float32)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    w = NVFP4PackedCompressor.decompress(tensors, scheme)["weight"]
    print(f'    {{"{name}", {n}, {k}, {f"{global_scale}f" if global_scale else "NONE"},\n     "{digest(w)}"}},')


def bytes_row(name, is_float, dtype, strategy, block, symmetric, indexed, n, k):
    """float-quantized and int-quantized. Ragged blocks are decoded with the block's size given (decompress() infers
    another size, see docs/FORMATS.md)."""
    gen = Bytes()
    q = torch.tensor(gen.codes(n * k, 8), dtype=torch.uint8).reshape(n, k)
    if is_float:
        q[(q & 0x7F) == 0x7F] = 0
    q = q.view(torch.float8_e4m3fn if is_float else torch.int8)
    height, width = block
    shape = scales_shape(strategy, block, n, k)
    count = math.prod(shape)
    tensors = {"weight_scale": scales(gen, count, dtype).reshape(shape)}
    if not symmetric:
        tensors["weight_zero_point"] = torch.tensor(gen.codes(count, 8), dtype=torch.uint8).view(torch.int8).reshape(shape)
    order = torch.arange(k)
    if indexed:  # column c is in group (c * 7) % groups
        order = torch.argsort(torch.arange(k) * 7 % shape[1], stable=True)
    q = q.view(torch.uint8)[:, order].contiguous().view(q.dtype)
    args = QuantizationArgs(num_bits=8, type="float" if is_float else "int", strategy=strategy, symmetric=symmetric,
                            **kind_of(strategy, block))
    if strategy == "block" and (n % height or k % width):
        w = dequantize(q, tensors["weight_scale"], tensors.get("weight_zero_point"), args)
    else:
        scheme = QuantizationScheme(targets=["Linear"], weights=args)
        w = NaiveQuantizationCompressor.decompress({"weight": q, **tensors}, scheme)["weight"]
    back = torch.empty_like(w)
    back[:, order] = w
    flags = [str(symmetric).lower(), str(indexed).lower()]
    print(f'    {{"{name}", {str(is_float).lower()}, CTW_{dtype}, CTW_STRATEGY_{strategy.upper()}, {height}, {width}, '
          f'{", ".join(flags)}, {n}, {k},\n     "{digest(back)}"}},')


def mx_row(name, bits, n, k):
    gen = Bytes()
    q = torch.tensor(gen.codes(n * k * bits // 8, 8), dtype=torch.uint8).reshape(n, k * bits // 8)
    if bits == 8:
        q[(q & 0x7F) == 0x7F] = 0
    s = torch.tensor(gen.codes(n * k // 32, 8), dtype=torch.uint8).reshape(n, k // 32)
    s[s == 255] = 0
    args = QuantizationArgs(num_bits=bits, type="float", strategy="group", symmetric=True, group_size=32,
                            scale_dtype=torch.uint8)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    if bits == 8:
        w = MXFP8QuantizationCompressor.decompress(
            {"weight": q.view(torch.float8_e4m3fn), "weight_scale": s}, scheme)["weight"]
    else:
        packed = MXFP6PackedCompressor if bits == 6 else MXFP4PackedCompressor
        w = packed.decompress({"weight_packed": q, "weight_scale": s}, scheme)["weight"]
    print(f'    {{"{name}", {bits}, {n}, {k},\n     "{digest(w)}"}},')


def main():
    print("/* Made by tests/tools/format_vectors.py. */\n"
          "static const struct pack_case pack_cases[] = {")
    for row in PACK:
        pack_row(*row)
    print("};\n\nstatic const struct nvfp4_case nvfp4_cases[] = {")
    for row in NVFP4:
        nvfp4_row(*row)
    print("};\n\nstatic const struct bytes_case bytes_cases[] = {")
    for row in BYTES:
        bytes_row(*row)
    print("};\n\nstatic const struct mx_case mx_cases[] = {")
    for row in MX:
        mx_row(*row)
    print("};")
    return 0


if __name__ == "__main__":
    sys.exit(main())
