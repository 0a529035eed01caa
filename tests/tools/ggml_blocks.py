"""The block types of GGUF files in NumPy: made at random, and decoded to fp32, element by element from their definitions.

Independent of the C code but for the grids of IQ1 to IQ3, which are read from its tables.
"""

import functools
import re
from pathlib import Path

import numpy as np

# name -> (id, elements, bytes, where a block's fp16 factors lie)
TYPES = {
    "Q4_0": (2, 32, 18, (0,)), "Q4_1": (3, 32, 20, (0, 2)), "Q5_0": (6, 32, 22, (0,)), "Q5_1": (7, 32, 24, (0, 2)),
    "Q8_0": (8, 32, 34, (0,)), "Q2_K": (10, 256, 84, (80, 82)), "Q3_K": (11, 256, 110, (108,)),
    "Q4_K": (12, 256, 144, (0, 2)), "Q5_K": (13, 256, 176, (0, 2)), "Q6_K": (14, 256, 210, (208,)),
    "IQ2_XXS": (16, 256, 66, (0,)), "IQ2_XS": (17, 256, 74, (0,)), "IQ3_XXS": (18, 256, 98, (0,)),
    "IQ1_S": (19, 256, 50, (0,)), "IQ4_NL": (20, 32, 18, (0,)), "IQ3_S": (21, 256, 110, (0,)),
    "IQ2_S": (22, 256, 82, (0,)), "IQ4_XS": (23, 256, 136, (0,)), "IQ1_M": (29, 256, 56, ()),
    "TQ1_0": (34, 256, 54, (52,)), "TQ2_0": (35, 256, 66, (64,)), "MXFP4": (39, 32, 17, ()), "NVFP4": (40, 64, 36, ()),
}
GRIDS = Path(__file__).resolve().parents[2] / "kernels/formats/ggml/grids.h"
IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
E2M1_TWICE = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)
LEVELS = {"iq2": [8, 25, 43], "iq3_xxs": [4, 12, 20, 28, 36, 44, 52, 62], "iq3_s": range(1, 16, 2), "iq1": [-1, 0, 1]}


@functools.cache
def grid(name):
    """[codes, 4 or 8], fp32."""
    text = GRIDS.read_text()
    words = re.search(rf"ctw_grid_{name}\(.*?\{{.*?= \{{(.*?)\}};", text, re.DOTALL)[1]
    words = np.array([int(word, 16) for word in re.findall(r"0x[0-9a-f]+", words)], np.int64)
    bits = 4 if name.startswith("iq3") else 2
    codes = words[:, None] >> np.arange(0, 16, bits) & ((1 << bits) - 1)
    levels = np.array(LEVELS.get(name, LEVELS["iq2"]), np.float32)
    return levels[codes]


def byte(b, at):
    return b[:, at].astype(np.int64)


def word(b, at, n=2):
    """n bytes from each `at` on, the lowest first."""
    return sum(byte(b, np.asarray(at) + i) << (8 * i) for i in range(n))


def half(b, at):
    return np.ascontiguousarray(b[:, at:at + 2]).view("<f2").astype(np.float32)


def nibble(b, at, i):
    """Element i of 32 whose low nibbles are the first 16 elements."""
    return byte(b, at + i % 16) >> (4 * (i % 32 // 16)) & 15


def scales_of_6_bits(b, j):
    """Scale and minimum j of Q4_K and Q5_K."""
    low, c = j < 4, 4
    last = byte(b, c + 4 + np.maximum(j, 4))
    s = np.where(low, byte(b, c + j) & 63, (last & 15) | (byte(b, c + np.maximum(j - 4, 0)) >> 6) << 4)
    m = np.where(low, byte(b, c + np.minimum(j, 3) + 4) & 63, (last >> 4) | (byte(b, c + j) >> 6) << 4)
    return s.astype(np.float32), m.astype(np.float32)


def even(seven):
    odd = sum(seven >> i & 1 for i in range(7)) & 1
    return seven | odd << 7


def signed(values, signs, i):
    return np.where(signs >> (i % 8) & 1, -values, values)


def number(x):
    return x.astype(np.float32)


def decode_blocks(name, b):
    """b: bytes [blocks, bytes]. fp32 [blocks, elements]."""
    i = np.arange(TYPES[name][1])
    part, in_32, two = i // 128, i % 32, i % 128 // 32  # half of 256, element of 32, which 32 of 128
    g = i // 8
    if name in ("Q4_0", "Q5_0", "IQ4_NL"):
        q = nibble(b, {"Q5_0": 6}.get(name, 2), i)
        if name == "IQ4_NL":
            return half(b, 0) * IQ4[q]
        q = q - 8 if name == "Q4_0" else (q | (word(b, [2], 4) >> i & 1) << 4) - 16
        return half(b, 0) * number(q)
    if name in ("Q4_1", "Q5_1"):
        q = nibble(b, 4 if name == "Q4_1" else 8, i)
        q = q if name == "Q4_1" else q | (word(b, [4], 4) >> i & 1) << 4
        return half(b, 0) * number(q) + half(b, 2)
    if name == "Q8_0":
        return half(b, 0) * b[:, 2:].view(np.int8).astype(np.float32)
    if name == "Q2_K":
        q, s = byte(b, 16 + 32 * part + in_32) >> (2 * two) & 3, byte(b, i // 16)
        return half(b, 80) * number(s & 15) * number(q) - half(b, 82) * number(s >> 4)
    if name == "Q3_K":
        q = (byte(b, 32 + 32 * part + in_32) >> (2 * two) & 3) - np.where(byte(b, in_32) >> (i // 32) & 1, 0, 4)
        s = i // 16
        v = (byte(b, 96 + s % 8) >> (4 * (s // 8)) & 15) | (byte(b, 104 + s % 4) >> (2 * (s // 4)) & 3) << 4
        return half(b, 108) * number(v - 32) * number(q)
    if name in ("Q4_K", "Q5_K"):
        s, m = scales_of_6_bits(b, i // 32)
        q = byte(b, (16 if name == "Q4_K" else 48) + 32 * (i // 64) + in_32) >> (4 * (i % 64 // 32)) & 15
        if name == "Q5_K":
            q |= (byte(b, 16 + in_32) >> (i // 32) & 1) << 4
        return half(b, 0) * s * number(q) - half(b, 2) * m
    if name == "Q6_K":
        low = byte(b, 64 * part + 32 * (two % 2) + in_32) >> (4 * (two // 2)) & 15
        q = (low | (byte(b, 128 + 32 * part + in_32) >> (2 * two) & 3) << 4) - 32
        return half(b, 208) * number(b[:, 192:208].view(np.int8)[:, i // 16]) * number(q)
    if name == "IQ4_XS":
        n = i // 32
        v = (byte(b, 4 + n // 2) >> (4 * (n % 2)) & 15) | (word(b, [2]) >> (2 * n) & 3) << 4
        return half(b, 0) * number(v - 32) * IQ4[nibble(b, 8 + 16 * n, in_32)]
    if name == "MXFP4":
        return np.ldexp(np.float32(1), byte(b, [0]) - 128).astype(np.float32) * E2M1_TWICE[nibble(b, 1, i)]
    if name == "NVFP4":
        s, t = byte(b, i // 16), i % 16
        e, m = s >> 3 & 15, s & 7
        scale = np.where(e == 0, m * 2.0**-9, (1 + m / 8) * 2.0 ** (e - 7)) / 2
        code = byte(b, 4 + 8 * (i // 16) + t % 8) >> (4 * (t // 8)) & 15
        return number(np.where((s == 0) | (s == 127), 0, scale)) * E2M1_TWICE[code]
    if name == "TQ1_0":
        at = np.where(i < 160, in_32, np.where(i < 240, 32 + (i - 160) % 16, 48 + (i - 240) % 4))
        power = np.where(i < 160, i // 32, np.where(i < 240, (i - 160) // 16, (i - 240) // 4))
        return half(b, 52) * number(((byte(b, at) * 3**power & 255) * 3 >> 8) - 1)
    if name == "TQ2_0":
        return half(b, 64) * number((byte(b, 32 * part + in_32) >> (2 * two) & 3) - 1)
    return decode_grids(name, b, i, g)


def decode_grids(name, b, i, g):
    d = half(b, 0)
    if name == "IQ2_XXS":
        a0, a1, k = word(b, 2 + 8 * (i // 32), 4), word(b, 6 + 8 * (i // 32), 4), i % 32 // 8
        a = d * (np.float32(0.5) + number(a1 >> 28)) * np.float32(0.25)
        return signed(a * grid("iq2_xxs")[a0 >> (8 * k) & 255, i % 8], even(a1 >> (7 * k) & 127), i)
    if name in ("IQ2_XS", "IQ2_S"):
        at = 66 if name == "IQ2_XS" else 74
        a = d * (np.float32(0.5) + number(byte(b, at + g // 4) >> (4 * (g % 4 // 2)) & 15)) * np.float32(0.25)
        if name == "IQ2_XS":
            q = word(b, 2 + 2 * g)
            return signed(a * grid("iq2_xs")[q & 511, i % 8], even(q >> 9), i)
        code = byte(b, 2 + g) | (byte(b, 66 + g // 4) >> (2 * (g % 4)) & 3) << 8
        return signed(a * grid("iq2_s")[code, i % 8], byte(b, 34 + g), i)
    if name == "IQ3_XXS":
        w = word(b, 66 + 4 * (i // 32), 4)
        a = d * (np.float32(0.5) + number(w >> 28)) * np.float32(0.5)
        return signed(a * grid("iq3_xxs")[byte(b, 2 + i // 4), i % 4], even(w >> (7 * (i % 32 // 8)) & 127), i)
    if name == "IQ3_S":
        q = i // 4
        code = byte(b, 2 + q) | (byte(b, 66 + q // 8) >> (q % 8) & 1) << 8
        s = byte(b, 106 + i // 64) >> (4 * (i // 32 % 2)) & 15
        return signed(d * number(1 + 2 * s) * grid("iq3_s")[code, i % 4], byte(b, 74 + g), i)
    if name == "IQ1_S":
        w = word(b, 34 + 2 * (i // 32))
        code = byte(b, 2 + g) | (w >> (3 * (g % 4)) & 7) << 8
        delta = np.where(w & 0x8000, np.float32(-0.125), np.float32(0.125))
        return d * number(2 * (w >> 12 & 7) + 1) * (grid("iq1")[code, i % 8] + delta)
    assert name == "IQ1_M"
    w = [word(b, [48 + 2 * n]) for n in range(4)]
    d = sum((w[n] >> 12) << (4 * n) for n in range(4)).astype("<u2").view("<f2").astype(np.float32)
    high = byte(b, 32 + g // 2) >> (4 * (g % 2)) & 15
    scale = word(b, 48 + 2 * (i // 64)) >> (3 * (i // 16 % 4)) & 7
    delta = np.where(high & 8, np.float32(-0.125), np.float32(0.125))
    return d * number(2 * scale + 1) * (grid("iq1")[byte(b, g) | (high & 7) << 8, i % 8] + delta)


def decode(name, raw, n, k):
    """fp32 [n, k]."""
    b = np.frombuffer(raw, np.uint8).reshape(-1, TYPES[name][2])
    values = decode_blocks(name, b)
    assert values.dtype == np.float32
    return values.reshape(n, k)


def make(name, n, k, rng, deviation=0.05):
    """Bytes of a matrix [n, k] of random codes, whose values have about this deviation."""
    _, elements, size, factors = TYPES[name]
    assert k % elements == 0
    b = rng.integers(0, 256, (n * k // elements, size), dtype=np.uint8)
    if name == "MXFP4":
        b[:, 0] = rng.integers(118, 123, len(b))
        return b.tobytes()
    if name == "NVFP4":
        b[:, :4] = rng.integers(0, 20, (len(b), 4))
        return b.tobytes()
    one = np.frombuffer(np.array([1], "<f2"), np.uint8)
    for at in factors:
        b[:, at:at + 2] = one
    if name == "IQ1_M":
        b[:, 49:56:2] = (b[:, 49:56:2] & 15) | np.array([0, 0, 0xC0, 0x30], np.uint8)  # 1 is 0x3c00
    spread = decode_blocks(name, b).std() / deviation
    factor = (rng.uniform(0.7, 1.3, len(b)) / spread * rng.choice([-1, 1], len(b))).astype("<f2")
    for at in factors:  # a minimum that is positive
        b[:, at:at + 2] = (factor if at == factors[0] else abs(factor)).view(np.uint8).reshape(-1, 2)
    if name == "IQ1_M":
        bits = factor.view("<u2").astype(np.int64)
        for i in range(4):
            b[:, 49 + 2 * i] = (b[:, 49 + 2 * i] & 15) | (bits >> (4 * i) & 15) << 4
    return b.tobytes()
