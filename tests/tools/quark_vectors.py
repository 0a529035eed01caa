#!/usr/bin/env python3
"""Makes tests/unit/quark_vectors.h.

    quark_vectors.py

Needs torch and amd-quark 0.13 (reference only; no test runs this program). Each row is a small weight whose stored bytes
come from a generator that the C test repeats, and the SHA-256 of what Quark's quantizers make of them on loading.
"""

from types import SimpleNamespace

import torch
from quark.torch.export.nn.modules.realquantizer import SequentialRealQuantizer, StaticScaledRealQuantizer
from quark.torch.quantization.config.type import Dtype, QSchemeType, ZeroPointType

from parts_vectors import TORCH, Case, table

STRATEGY = {"tensor": QSchemeType.per_tensor, "channel": QSchemeType.per_channel, "group": QSchemeType.per_group,
            "block": QSchemeType.per_block}


def quantizer(dtype, strategy, group, order, scale_dtype, float_zero=False, of_scale=False, scale_format="float32"):
    spec = SimpleNamespace(
        dtype=Dtype.from_str(dtype), qscheme=STRATEGY[strategy], ch_axis={"channel": 0, "group": -1}.get(strategy),
        group_size=group or None, block_size=None, mx_element_dtype=None, is_dynamic=False, is_scale_quant=of_scale,
        symmetric=None, round_method=None,
        scale_format=scale_format, zero_point_type=ZeroPointType.float32 if float_zero else ZeroPointType.int32)
    return StaticScaledRealQuantizer(spec, None, order == "reorder", True, TORCH[scale_dtype], torch.device("cpu"), (), ())


# name, dtype, strategy, group_size, pack_method, dtype of scales, zero points: codes or numbers, n, k
INTEGERS = [
    ("uint4, as awq", "uint4", "group", 32, "reorder", "BF16", "codes", 24, 96),
    ("uint4, order", "uint4", "group", 32, "order", "F16", "codes", 16, 288),
    ("int4", "int4", "group", 64, "reorder", "F16", "codes", 40, 320),
    ("int4, order", "int4", "group", 16, "order", "F32", "codes", 8, 48),
    ("uint4, numbers", "uint4", "group", 32, "reorder", "BF16", "numbers", 16, 64),
    ("int4 of rows", "int4", "channel", 0, "reorder", "BF16", "codes", 16, 272),
    ("uint4 of rows", "uint4", "channel", 0, "order", "F32", "codes", 8, 40),
    ("int4 of the matrix", "int4", "tensor", 0, "reorder", "F16", "codes", 5, 56),
    ("int8", "int8", "group", 32, "reorder", "BF16", "codes", 7, 96),
    ("uint8", "uint8", "group", 128, "reorder", "F16", "codes", 9, 384),
    ("int8 of rows", "int8", "channel", 0, "reorder", "F32", "codes", 6, 333),
    ("uint8 of rows", "uint8", "channel", 0, "reorder", "BF16", "codes", 6, 300),
    ("int8 of the matrix", "int8", "tensor", 0, "reorder", "F16", "codes", 4, 33),
    ("uint8 of the matrix", "uint8", "tensor", 0, "reorder", "BF16", "codes", 4, 33),
    ("uint2", "uint2", "group", 64, "reorder", "BF16", "codes", 16, 320),
    ("uint2, numbers", "uint2", "group", 32, "reorder", "F16", "numbers", 32, 64),
]


def integer(name, dtype, strategy, group, order, scale_dtype, zeros, n, k):
    bits, signed = int(dtype[-1]), not dtype.startswith("u")
    stored = "I32" if bits == 4 else "I8" if signed and bits == 8 else "U8"
    in_element = {4: 8, 8: 1, 2: 4}[bits]
    case = Case(name, n, k, num_bits=bits, is_signed=str(signed).lower(), interleaved=str(order == "reorder").lower(),
                strategy=f"CTW_STRATEGY_{strategy.upper()}", group_size=group)
    q = quantizer(dtype, strategy, group, order, scale_dtype, zeros == "numbers")
    across = strategy == "group"
    values = case.add("VALUES", stored, (k, n // in_element) if across else (n, k // in_element))
    groups = (k // group,) if across else ()
    outputs = () if strategy == "tensor" else (n,)
    q.scale = case.add("SCALE", scale_dtype, (*groups, *outputs))
    packed = () if strategy == "tensor" else (n // in_element,)
    q.zero_point = case.add("ZERO_POINT", scale_dtype if zeros == "numbers" else stored,
                            (*groups, *(outputs if zeros == "numbers" else packed)))
    awq = dtype == "uint4" and across and order == "reorder" and zeros == "codes"
    form = "awq" if awq else "int_quantized" if stored == "I8" and not across else "quark_int"
    case.show(form, q(values).to(TORCH[scale_dtype]))


# name, dtype, strategy, group_size or sides of a block, dtype of scales, n, k
FLOATS = [
    ("fp8 of the matrix", "fp8_e4m3", "tensor", 0, "F32", 5, 48),
    ("fp8 of rows", "fp8_e4m3", "channel", 0, "BF16", 6, 320),
    ("fp8 of blocks", "fp8_e4m3", "block", (16, 32), "F32", 48, 96),
    ("mxfp4", "fp4", "group", 32, "U8", 6, 320),
    ("mxfp6, e2m3", "fp6_e2m3", "group", 32, "U8", 6, 288),
    ("mxfp6, e3m2", "fp6_e3m2", "group", 32, "U8", 6, 288),
]


def floats(name, dtype, strategy, group, scale_dtype, n, k):
    bits = {"fp8_e4m3": 8, "fp4": 4}.get(dtype, 6)
    block = {"block_rows": group[0], "block_cols": group[1]} if strategy == "block" else {"group_size": group}
    case = Case(name, n, k, num_bits=bits, is_float="true", symmetric="true", e3m2=str(dtype == "fp6_e3m2").lower(),
                strategy=f"CTW_STRATEGY_{strategy.upper()}", **block)
    q = quantizer(dtype, strategy, 0 if strategy == "block" else group, "reorder", "F32" if scale_dtype == "U8" else scale_dtype,
                  scale_format="e8m0" if scale_dtype == "U8" else "float32")
    values = case.add("VALUES", "F8_E4M3" if bits == 8 else "U8", (n, k * bits // 8))
    shape = {"tensor": (), "channel": (n,), "group": (n, k // 32)}.get(strategy) if strategy != "block" else (n // group[0], k // group[1])
    q.scale = case.add("SCALE", scale_dtype, shape, scale_dtype == "U8")
    out = q(values).to(TORCH["BF16" if scale_dtype == "U8" else scale_dtype])
    case.show({8: "float_quantized", 6: "mxfp6", 4: "mxfp4"}[bits], out)


def two_levels():
    n, k = 6, 288
    case = Case("fp4 with two scales", n, k, num_bits=4, is_float="true", symmetric="true", group_size=16,
                strategy="CTW_STRATEGY_TENSOR_GROUP")
    outer = quantizer("fp8_e4m3", "tensor", 0, "reorder", "F32", of_scale=True)
    inner = quantizer("fp4", "group", 16, "reorder", "F32")
    values = case.add("VALUES", "U8", (n, k // 2))
    inner.scale = case.add("SCALE", "F8_E4M3", (n, k // 16))
    outer.scale = case.add("GLOBAL_SCALE", "F32", ())
    case.show("nvfp4_modelopt", SequentialRealQuantizer(inner, outer)(values))


def main():
    print("/* Made by tests/tools/quark_vectors.py; do not edit. */")
    rows = [lambda row=row: integer(*row) for row in INTEGERS] + [lambda row=row: floats(*row) for row in FLOATS]
    table("quark_cases", [*rows, two_levels])


if __name__ == "__main__":
    main()
