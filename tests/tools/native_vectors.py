#!/usr/bin/env python3
"""Makes the table of tests/unit/native_vectors.h.

    native_vectors.py GPTQMODEL AUTOAWQ MODELOPT

Needs torch, transformers 5, and the unpacked source distributions of gptqmodel 7.7, autoawq 0.2.9 and
nvidia-modelopt 0.47 (reference only; no test runs this program). Each row is a small weight whose stored bytes come
from a generator that the C test repeats, and the SHA-256 of what the library's own function decodes them to. The
functions are taken out of the libraries' files, which need a GPU to be imported.
"""

import ast
import os
import sys
from types import SimpleNamespace

import torch
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

from vector_bytes import Bytes, digest, scales

# name, bits, version, symmetric zero points, group, activation order, n, k
GPTQ = [
    ("gptq 4 bits", 4, 1, True, 32, False, 40, 320),
    ("gptq 4 bits, borrowing zero points", 4, 1, False, 64, False, 48, 640),
    ("gptq 4 bits, version 2, activation order", 4, 2, False, 32, True, 24, 288),
    ("gptq 2 bits, borrowing zero points", 2, 1, False, 16, False, 32, 272),
    ("gptq 3 bits", 3, 1, False, 32, False, 64, 288),
    ("gptq 3 bits, version 2, activation order", 3, 2, False, 96, True, 32, 576),
    ("gptq 8 bits, one group", 8, 1, False, 0, False, 20, 304),
]
AWQ = [("awq", 64, 48, 576), ("awq, one group", 0, 16, 300)]  # name, group, n, k
# name, dtype of the scales (U8, F8_E8M0: exponents), rows and columns of a block, n, k
FP8 = [("fp8 blocks", "F32", 128, 128, 256, 384), ("fp8 matrix", "F32", 0, 0, 21, 333),
       ("fp8 blocks, exponents", "F8_E8M0", 32, 32, 96, 352), ("fp8 blocks, bytes", "U8", 24, 40, 72, 600),
       ("fp8 matrix, exponent", "F8_E8M0", 0, 0, 21, 333), ("fp8 rows of 32", "F8_E8M0", 1, 32, 21, 320)]
NVFP4 = [("modelopt nvfp4", 24, 368, 3.1e-4), ("modelopt nvfp4, large factor", 9, 1040, 37.25)]  # name, n, k, factor
# Code 8 is -0, as in all other readers; ModelOpt's own table has 0, an equal number.
E2M1 = [0., .5, 1., 1.5, 2., 3., 4., 6., -0., -.5, -1., -1.5, -2., -3., -4., -6.]


def function(path, name, **names):
    """A function or method of a source file, with the names that it needs."""
    with open(path, encoding="utf-8") as f:
        tree = ast.parse(f.read())
    node = next(n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == name)
    node.decorator_list, node.returns = [], None
    for arg in (*node.args.args, *node.args.kwonlyargs):
        arg.annotation = None
    space = {"torch": torch, "t": torch, **names}
    exec(compile(ast.Module([node], []), path, "exec"), space)  # pylint: disable=exec-used
    return space[name]


def words(gen, rows, columns):
    raw = torch.tensor(gen.codes(rows * columns * 4, 8), dtype=torch.uint8)
    return raw.view(torch.int32).reshape(rows, columns)


def gptq_row(root, name, bits, version, symmetric, group, indexed, n, k):
    gen, groups = Bytes(), k // group if group else 1
    qlinear = os.path.join(root, "gptqmodel/nn_modules/qlinear/__init__.py")
    qweight = words(gen, k * bits // 32, n)
    scale = scales(gen, groups * n, "F16").reshape(groups, n)
    qzeros = words(gen, groups, n * bits // 32)
    if symmetric:
        qzeros[:] = 0x77777777
    stored = qzeros
    if version == 1 and bits == 3:  # field by field, modulo 8
        fields = [[(int(z[i * 3 // 32]) & 0xFFFFFFFF | (int(z[min(i * 3 // 32 + 1, len(z) - 1)]) & 0xFFFFFFFF) << 32)
                   >> i * 3 % 32 & 7 for i in range(n)] for z in qzeros]
        stream = [sum((v + 1) % 8 << 3 * i for i, v in enumerate(row)) for row in fields]
        stored = torch.tensor([[(s >> 32 * j & 0xFFFFFFFF) for j in range(n * 3 // 32)] for s in stream]).to(torch.int32)
    elif version == 1:
        ones = torch.tensor(sum(1 << at for at in range(0, 32, bits)), dtype=torch.int64).to(torch.int32)
        stored = qzeros + ones
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    zero_shifts, shifts = shifts.reshape(1, 1, -1), shifts.reshape(1, -1, 1)
    if bits == 3:  # as BaseQuantLinear makes them
        table = torch.tensor([[0, 3, 6, 9, 12, 15, 18, 21, 24, 27, 30, 0], [0, 1, 4, 7, 10, 13, 16, 19, 22, 25, 28, 31],
                              [0, 2, 5, 8, 11, 14, 17, 20, 23, 26, 29, 0]], dtype=torch.int32).reshape(1, 3, 12)
        zero_shifts, shifts = table.unsqueeze(0), table.unsqueeze(-1)
    index = torch.arange(k) * 7 % groups if indexed else torch.arange(k) // (group or k)
    me = SimpleNamespace(planar=False, bits=bits, maxq=(1 << bits) - 1, pack_factor=32 // bits if bits != 3 else None,
                         qweight=qweight, qzeros=stored, scales=scale, g_idx=index, in_features=k,
                         dequant_dtype=torch.int16, _init_wf_unsqueeze_buffers=lambda: None,
                         wf_unsqueeze_zero=zero_shifts, wf_unsqueeze_neg_one=shifts)
    from_codes = function(qlinear, "_dequantize_from_codes")
    me._dequantize_from_codes = lambda *a, **b: from_codes(me, *a, **b)
    w = function(qlinear, "dequantize_weight", _torch_right_shift=torch.bitwise_right_shift,
                 _torch_left_shift=torch.bitwise_left_shift)(me).T
    assert w.dtype == torch.float16 and w.shape == (n, k)
    flags = ", ".join(str(x).lower() for x in (version == 1, symmetric, indexed))
    print(f'    {{"{name}", {bits}, {flags}, {group}, {n}, {k},\n     "{digest(w)}"}},')


def awq_row(root, name, group, n, k):
    gen, path = Bytes(), os.path.join(root, "awq/utils/packing_utils.py")
    names = {f: function(path, f, AWQ_REVERSE_ORDER=[0, 4, 1, 5, 2, 6, 3, 7]) for f in ("unpack_awq", "reverse_awq_order")}
    qweight, groups = words(gen, k, n // 8), k // group if group else 1
    scale = scales(gen, groups * n, "F16").reshape(groups, n)
    w = function(path, "dequantize_gemm", **names)(qweight, words(gen, groups, n // 8), scale, 4, group or k).T
    assert w.dtype == torch.float16 and w.shape == (n, k)
    print(f'    {{"{name}", 4, false, false, false, {group}, {n}, {k},\n     "{digest(w)}"}},')


def fp8_row(name, dtype, rows, columns, n, k):
    gen = Bytes()
    q = torch.tensor([0 if c & 0x7F == 0x7F else c for c in gen.codes(n * k, 8)], dtype=torch.uint8)
    q = q.reshape(n, k).view(torch.float8_e4m3fn)
    shape = (-(-n // rows), -(-k // columns)) if rows else (1, 1)
    count = shape[0] * shape[1]
    if dtype == "F32":
        s = scales(gen, count, "F32")
    else:
        s = torch.tensor([0 if c == 255 else c for c in gen.codes(count, 8)], dtype=torch.uint8)
        s = s.view(torch.float8_e8m0fnu) if dtype == "F8_E8M0" else s
    w = Fp8Dequantize(None)._dequantize_one(q, s.reshape(shape), torch.float32 if dtype == "F32" else None)
    print(f'    {{"{name}", CTW_{dtype}, {rows}, {columns}, {n}, {k},\n     "{digest(w)}"}},')


def nvfp4_row(root, name, n, k, factor):
    gen, path = Bytes(), os.path.join(root, "modelopt/torch/quantization/qtensor/nvfp4_tensor.py")
    packed = torch.tensor(gen.codes(n * k // 2, 8), dtype=torch.uint8).reshape(n, k // 2)
    codes = [c if c & 0x7F != 0x7F else 0 for c in gen.codes(n * k // 16, 8)]
    s = torch.tensor(codes, dtype=torch.uint8).reshape(n, k // 16).view(torch.float8_e4m3fn)
    me = SimpleNamespace(metadata={"shape": (n, k), "dtype": torch.float32}, _quantized_data=packed,
                         get_e2m1_values=lambda device: torch.tensor(E2M1))
    w = function(path, "dequantize", reduce_block_padding=lambda x, *a, **b: x)(
        me, dtype=torch.float32, scale=s, double_scale=torch.tensor(factor), block_sizes={-1: 16})
    print(f'    {{"{name}", {n}, {k}, {factor}f,\n     "{digest(w)}"}},')


def main():
    gptqmodel, autoawq, modelopt = sys.argv[1:]
    print("/* Made by tests/tools/native_vectors.py; do not edit. */")
    print("static const struct transposed_case gptq_cases[] = {")
    for row in GPTQ:
        gptq_row(gptqmodel, *row)
    print("};\n\nstatic const struct transposed_case awq_cases[] = {")
    for row in AWQ:
        awq_row(autoawq, *row)
    print("};\n\nstatic const struct fp8_case fp8_cases[] = {")
    for row in FP8:
        fp8_row(*row)
    print("};\n\nstatic const struct nvfp4_case modelopt_cases[] = {")
    for row in NVFP4:
        nvfp4_row(modelopt, *row)
    print("};")


if __name__ == "__main__":
    main()
