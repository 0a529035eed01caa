#!/usr/bin/env python3
"""Makes the table of tests/unit/ggml_vectors.h; with --grids, kernels/formats/ggml/grids.h.

Needs gguf >= 0.19 and torch (reference only; no test runs this program). Each row is a type of blocks,
whose bytes come from a generator that the C test repeats, and the SHA-256 of the fp32 values that
gguf-py's dequantize() makes of them. The grids are gguf-py's own tables, which are packed already.
"""

import hashlib
import sys

import numpy as np
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from vector_bytes import Bytes

ROWS, COLUMNS = 5, 512
# The fp16 factors of a block: offsets. IQ1_M's is in the highest nibbles of four words. MXFP4 and NVFP4
# have bytes, of which all are numbers.
FACTORS = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108],
           "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ2_XXS": [0], "IQ2_XS": [0], "IQ3_XXS": [0],
           "IQ1_S": [0], "IQ4_NL": [0], "IQ3_S": [0], "IQ2_S": [0], "IQ4_XS": [0], "IQ1_M": [], "TQ1_0": [52],
           "TQ2_0": [64], "MXFP4": [], "NVFP4": []}
GRIDS = [("iq2_xxs", quants.IQ2_XXS, "a byte names eight values, as pairs of bits"),
         ("iq2_xs", quants.IQ2_XS, "9 bits name eight values, as pairs of bits"),
         ("iq2_s", quants.IQ2_S, "10 bits name eight values, as pairs of bits"),
         ("iq3_xxs", quants.IQ3_XXS, "a byte names four values, as nibbles"),
         ("iq3_s", quants.IQ3_S, "9 bits name four values, as nibbles"),
         ("iq1", quants.IQ1_S, "11 bits name eight values, as pairs of bits")]
GRIDS_HEAD = """\
/*
 * The grids of IQ1 to IQ3: constants of the formats, made by ggml's authors (iq2xxs_grid and the others
 * of ggml-common.h, Copyright (c) 2023-2026 The ggml authors, MIT licence), as gguf-py packs them.
 * Made by tests/tools/ggml_vectors.py --grids.
 */
#ifndef CTW_KERNELS_FORMATS_GGML_GRIDS_H
#define CTW_KERNELS_FORMATS_GGML_GRIDS_H

#include "kernels/formats/convert.h"

/* Tables of functions, because those of a GPU's functions lie in its memory. */
"""


def block(gen, name, size):
    data = bytearray(gen.byte() for _ in range(size))
    for at in FACTORS[name]:  # both signs, many magnitudes, subnormals
        word = int.from_bytes(data[at:at + 2], "little") & 0x97FF
        data[at:at + 2] = word.to_bytes(2, "little")
    if name == "IQ1_M":
        data[55] &= 0x9F  # the highest nibble of the last word: sign and exponent
    return bytes(data)


def vectors():
    print("/* Made by tests/tools/ggml_vectors.py. */\nstatic const struct ggml_case ggml_cases[] = {")
    for name, factors in FACTORS.items():
        kind = GGMLQuantizationType[name]
        elements, size = GGML_QUANT_SIZES[kind]
        gen = Bytes()
        data = b"".join(block(gen, name, size) for _ in range(ROWS * COLUMNS // elements))
        values = quants.dequantize(np.frombuffer(data, np.uint8).reshape(ROWS, -1), kind)
        assert values.dtype == np.float32 and values.shape == (ROWS, COLUMNS) and not np.isnan(values).any()
        listed = ", ".join(str(f) for f in [*factors, -1, -1][:2])
        print(f'    {{"{name}", {int(kind)}, {{{listed}}},\n     "{hashlib.sha256(values.tobytes()).hexdigest()}"}},')
    print("};")


def grids():
    print(GRIDS_HEAD)
    for name, quant, text in GRIDS:
        words = np.frombuffer(bytes.fromhex(quant.grid_hex.decode()), "<u2")
        assert len(words) == quant.grid_shape[0]
        print(f"/* {text} */\nCTW_HD_FORCE uint32_t ctw_grid_{name}(uint32_t code)\n{{")
        print(f"    static const uint16_t grid[{len(words)}] = {{")
        for i in range(0, len(words), 11):
            print("        " + " ".join(f"0x{w:04x}," for w in words[i:i + 11]))
        print("    };\n    return grid[code];\n}\n")
    print("#endif")


np.seterr(over="ignore")  # MXFP4's largest scales
if sys.argv[1:] == ["--grids"]:
    grids()
else:
    vectors()
