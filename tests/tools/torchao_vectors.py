#!/usr/bin/env python3
"""Makes tests/unit/torchao_vectors.h.

    torchao_vectors.py

Needs torch and torchao 0.18 (reference only; no test runs this program). Each row is a small weight whose stored bytes
come from a generator that the C test repeats, and the SHA-256 of what its subclass's dequantize() makes of them, after a
way through torchao's flattening for safetensors.
"""

import torch
from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict, unflatten_tensor_state_dict
from torchao.quantization import Float8Tensor, Int8Tensor, IntxUnpackedToInt8Tensor

from parts_vectors import TORCH, Case, table

# name, dtype of codes, dtype of scales, dtype of the model, block of a scale, zero points, n, k
ROWS = [
    ("float8 of rows", "F8_E4M3", "F32", "BF16", (1, 320), False, 6, 320),
    ("float8 of the matrix", "F8_E4M3", "F32", "BF16", (5, 96), False, 5, 96),
    ("float8 of blocks", "F8_E4M3", "F32", "BF16", (32, 32), False, 64, 96),
    ("float8 of rows, bf16", "F8_E4M3", "BF16", "BF16", (1, 64), False, 3, 64),
    ("int8 of rows", "I8", "BF16", "BF16", (1, 333), False, 7, 333), ("int8 of rows, fp32", "I8", "F32", "F32", (1, 320), False, 7, 320),
    ("int8 of rows with zero points", "I8", "F16", "F16", (1, 288), True, 7, 288),
    ("int8 of groups", "I8", "BF16", "BF16", (1, 32), True, 7, 320),
    ("intx of groups", "intx", "BF16", "BF16", (1, 64), True, 9, 320), ("intx of rows", "intx", "F32", "F32", (1, 96), True, 9, 96),
]


def row(name, codes, scale_dtype, dtype, block, zeros, n, k):
    blocks = (n // block[0], k // block[1])
    case = Case(name, n, k, num_bits=8, is_float=str(codes == "F8_E4M3").lower(), symmetric=str(not zeros).lower(),
                strategy="CTW_STRATEGY_BLOCK", block_rows=block[0], block_cols=block[1])
    q = case.add("VALUES", "I8" if codes == "intx" else codes, (n, k))
    scale = case.add("SCALE", scale_dtype, blocks)
    zero = case.add("ZERO_POINT", "I8", blocks) if zeros else None
    if codes == "F8_E4M3":
        t = Float8Tensor(q, scale, block_size=list(block), dtype=TORCH[dtype])
    elif codes == "I8":
        t = Int8Tensor(q, scale, list(block), TORCH[dtype], zero_point=zero)
    else:
        t = IntxUnpackedToInt8Tensor(q, scale, zero, torch.int8, list(block), TORCH[dtype], None)
    stored, metadata = flatten_tensor_state_dict({"m.weight": t})
    assert set(stored) >= {"m._weight_qdata", "m._weight_scale"}, stored.keys()
    back, rest = unflatten_tensor_state_dict(stored, metadata)
    assert not rest
    case.show("float_quantized" if codes == "F8_E4M3" else "int_quantized", back["m.weight"].dequantize())


def main():
    print("/* Made by tests/tools/torchao_vectors.py; do not edit. */")
    table("torchao_cases", [lambda r=r: row(*r) for r in ROWS])


if __name__ == "__main__":
    main()
