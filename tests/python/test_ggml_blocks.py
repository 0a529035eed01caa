"""tests/tools/ggml_blocks.py, which tests of GGUF files rely on, gives gguf-py's values: those of tests/unit/ggml_vectors.h."""

import hashlib
import re
import sys
from pathlib import Path

import numpy as np

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS / "tools"))
import ggml_blocks  # noqa: E402

ROWS, COLUMNS = 5, 512


def contents(name, factors):
    """As tests/tools/ggml_vectors.py makes them."""
    _, elements, size, _ = ggml_blocks.TYPES[name]
    x, out = 1, bytearray()
    for i in range(ROWS * COLUMNS // elements * size):
        x = (x * 1664525 + 1013904223) & 0xFFFFFFFF
        at = i % size
        mask = 0x97 if at - 1 in factors else 0x9F if (name, at) == ("IQ1_M", 55) else 0xFF
        out.append(x >> 24 & mask)
    return bytes(out)


def test_values_are_those_of_gguf():
    rows = re.findall(r'\{"(\w+)",\s*(\d+),\s*\{(-?\d+), (-?\d+)\},\s*"(\w+)"', (TESTS / "unit/ggml_vectors.h").read_text())
    assert {row[0] for row in rows} == set(ggml_blocks.TYPES)
    for name, number, *factors, digest in rows:
        kind, _, _, expected = ggml_blocks.TYPES[name]
        assert (kind, expected) == (int(number), tuple(at for at in map(int, factors) if at >= 0))
        with np.errstate(over="ignore"):  # MXFP4's largest scales
            values = ggml_blocks.decode(name, contents(name, expected), ROWS, COLUMNS)
        assert hashlib.sha256(values.tobytes()).hexdigest() == digest, name


def test_made_matrices_have_usual_weights():
    for name in ggml_blocks.TYPES:
        w = ggml_blocks.decode(name, ggml_blocks.make(name, 8, 512, np.random.default_rng(1)), 8, 512)
        assert 0.03 < w.std() < 0.2, name
