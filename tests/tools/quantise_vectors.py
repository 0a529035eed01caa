#!/usr/bin/env python3
"""Prints tests/ops/quantise_vectors.h: digests of activations that compressed-tensors itself has quantised. Needs torch and
compressed-tensors, which no test needs.

    quantise_vectors.py > tests/ops/quantise_vectors.h
"""

import sys

import compressed_tensors
import torch
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import fake_quantize
from compressed_tensors.quantization.utils import compute_dynamic_scales_and_zp

ROWS, COLUMNS = 64, 384
DTYPES = {"CTW_F32": torch.float32, "CTW_BF16": torch.bfloat16, "CTW_F16": torch.float16}

TOKEN, GROUP, UINT8, E4M3 = {"strategy": "token"}, {"strategy": "group"}, {"scale_dtype": torch.uint8}, torch.float8_e4m3fn
# C's fields of struct ctw_quantise, QuantizationArgs, and stored numbers (scale, zero point, global scale)
CASES = [
    ("INT, 8, CTW_SCALE_DYNAMIC, false, 0, 0, 0, 0", {"num_bits": 8} | TOKEN, None),
    ("INT, 4, CTW_SCALE_DYNAMIC, false, 0, 0, 0, 0", {"num_bits": 4} | TOKEN, None),
    ("INT, 8, CTW_SCALE_DYNAMIC, true, 0, 0, 0, 0", {"num_bits": 8, "symmetric": False} | TOKEN, None),
    ("INT, 8, CTW_SCALE_DYNAMIC, false, 128, 0, 0, 0", {"num_bits": 8, "group_size": 128} | GROUP, None),
    ("INT, 4, CTW_SCALE_DYNAMIC, true, 32, 0, 0, 0", {"num_bits": 4, "symmetric": False, "group_size": 32} | GROUP, None),
    ("INT, 8, CTW_SCALE_STATIC, false, 0, 0.0311f, 0, 0", {"num_bits": 8, "strategy": "tensor"}, (0.0311, 0, None)),
    ("INT, 8, CTW_SCALE_STATIC, true, 0, 0.02f, -37, 0", {"num_bits": 8, "symmetric": False, "strategy": "tensor"}, (0.02, -37, None)),
    ("E4M3, 8, CTW_SCALE_DYNAMIC, false, 0, 0, 0, 0", {"num_bits": 8, "type": "float"} | TOKEN, None),
    ("E4M3, 8, CTW_SCALE_DYNAMIC, false, 128, 0, 0, 0", {"num_bits": 8, "type": "float", "group_size": 128} | GROUP, None),
    ("E4M3, 8, CTW_SCALE_STATIC, false, 0, 0.0123f, 0, 0", {"num_bits": 8, "type": "float", "strategy": "tensor"}, (0.0123, 0, None)),
    ("E4M3, 8, CTW_SCALE_E8M0, false, 32, 0, 0, 0", {"num_bits": 8, "type": "float", "group_size": 32} | GROUP | UINT8, None),
    ("E2M1, 4, CTW_SCALE_E8M0, false, 32, 0, 0, 0", {"num_bits": 4, "type": "float", "group_size": 32} | GROUP | UINT8, None),
    ("E2M1, 4, CTW_SCALE_E4M3, false, 16, 0, 0, 713.5f",
     {"num_bits": 4, "type": "float", "group_size": 16, "strategy": "tensor_group", "scale_dtype": E4M3}, (None, 0, 713.5)),
]


def inputs(dtype):
    """Numbers that C computes likewise: rows of several sizes, of zeros, of few values (ties)."""
    state, rows = 1, []
    for t in range(ROWS):
        row = []
        for _ in range(COLUMNS):
            state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
            n = (state >> 40) - 2**23
            if t % 8 == 7:
                n = n // 2**20 * 2**20
            row.append(0.0 if t % 16 == 5 else n * 2.0**(t % 11 - 26))
        rows.append(row)
    return torch.tensor(rows, dtype=torch.float64).to(dtype)


def quantised(x, arguments, stored):
    args = QuantizationArgs(dynamic="local" if "scale_dtype" in arguments and arguments["scale_dtype"] is E4M3 else stored is None,
                            **arguments)
    x = x[None]  # tokens are rows only in batches
    wide = None if stored is None or stored[2] is None else torch.tensor([stored[2]], dtype=torch.float32)
    if stored is None or wide is not None:
        scale, zero = compute_dynamic_scales_and_zp(x, args, None, global_scale=wide)
    else:
        scale, zero = torch.tensor([stored[0]], dtype=torch.float32).to(x.dtype), torch.tensor([stored[1]], dtype=torch.int8)
    return fake_quantize(x, scale, zero, args, global_scale=wide)[0]


def digest(y):
    """FNV-1a over the bits of the values as fp32, without the sign of zeros."""
    value = 0xcbf29ce484222325
    for bits in (y.float() + 0.0).flatten().view(torch.int32).tolist():
        value = (value ^ (bits & 0xffffffff)) * 0x100000001b3 % 2**64
    return value


def main():
    print("/* Written by tests/tools/quantise_vectors.py with torch", torch.__version__.split("+")[0], "and compressed-tensors",
          f"{compressed_tensors.__version__}. */\n#ifndef CTW_TESTS_QUANTISE_VECTORS_H\n#define CTW_TESTS_QUANTISE_VECTORS_H\n")
    print(f"enum {{ VECTOR_ROWS = {ROWS}, VECTOR_COLUMNS = {COLUMNS} }};\n\n/* Digests in F32, BF16 and F16. */")
    print("static const struct {\n    struct ctw_quantise how;\n    uint64_t digest[3];\n} vectors[] = {")
    for fields, arguments, stored in CASES:
        digests = [digest(quantised(inputs(dtype), arguments, stored)) for dtype in DTYPES.values()]
        print(f"    {{{{CTW_CODES_{fields}}},\n     {{{', '.join(f'0x{d:016x}u' for d in digests)}}}}},")
    print("};\n\n#endif")


if __name__ == "__main__":
    sys.exit(main())
