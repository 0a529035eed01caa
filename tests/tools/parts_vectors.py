"""What quark_vectors.py, hqq_vectors.py and torchao_vectors.py share: rows of tests/unit/parts_case.h. Needs torch."""

import torch

from vector_bytes import Bytes, digest, scales

TORCH = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "I8": torch.int8, "U8": torch.uint8, "I32": torch.int32,
         "F8_E4M3": torch.float8_e4m3fn}
SIZE = {"I32": 4}


def fill(gen, dtype, shape, exponents=False):
    """A tensor as fill() of parts_case.h makes it."""
    n = torch.Size(shape).numel()
    if dtype in ("BF16", "F16", "F32"):
        return scales(gen, n, dtype).reshape(shape)
    raw = torch.tensor(gen.codes(n * SIZE.get(dtype, 1), 8), dtype=torch.uint8)
    if dtype == "F8_E4M3":
        raw &= 0xFE  # no NaN
    if exponents:
        raw = 112 + (raw & 31)
    return raw.view(TORCH[dtype]).reshape(shape)


class Case:
    """One matrix: its parts, made in the order of calls, and the arguments of its configuration."""

    def __init__(self, name, n, k, **args):
        self.name, self.n, self.k, self.args, self.parts, self.gen = name, n, k, args, {}, Bytes()

    def add(self, kind, dtype, shape, exponents=False):
        t = fill(self.gen, dtype, shape, exponents)
        self.parts[kind] = (dtype, tuple(shape), exponents)
        return t

    def show(self, form, values):
        """Prints the row; values: the library's."""
        dtype = next(name for name, t in TORCH.items() if t == values.dtype)
        args = ", ".join(f".{key} = {value}" for key, value in ({"present": "true"} | self.args).items())
        parts = []
        for kind, (stored, shape, exponents) in self.parts.items():
            sides = ", ".join(str(side) for side in (*shape, 0, 0)[:2])
            parts.append(f"{{CTW_PART_{kind}, CTW_{stored}, {len(shape)}, {{{sides}}}, {str(exponents).lower()}}}")
        print(f'    {{"{self.name}", {self.n}, {self.k}, CTW_FORMAT_{form}, CTW_{dtype},\n     {{{args}}},')
        print(f"     {{{', '.join(parts)}}},\n     \"{digest(values)}\"}},")


def table(name, cases):
    print(f"static const struct parts_case {name}[] = {{")
    for show in cases:
        show()
    print("};")
