"""EXL3 in NumPy: the weights of exllamav3's get_weight_tensor(), whose products PyTorch computes on the CPU (pinned by
tests/tools/exl3_vectors.py). Part of reference_model.py; shares no code with the worker."""

import numpy as np

BLOCK = 128
C = np.float32(1 / np.sqrt(128.0))
SIGNS = np.array([[-1.0 if bin(i & j).count("1") % 2 else 1.0 for j in range(BLOCK)] for i in range(BLOCK)])


def states(trellis):
    """[tiles, 16 B] -> [tiles, 256]: the 16 bits of the ring that end with each code; a word's highest bit is its first."""
    words = np.ascontiguousarray(trellis).view("<u4")
    bits = np.unpackbits(words.astype(">u4").view(np.uint8), axis=1)  # in the order of the stream
    end = (np.arange(256) + 1) * (bits.shape[1] // 128) // 2  # 2 B bits for two codes
    at = (end[:, None] - 16 + np.arange(16)) % bits.shape[1]
    return (bits[:, at].astype(np.uint32) << np.arange(15, -1, -1, dtype=np.uint32)).sum(axis=2, dtype=np.uint32)


def values(state, codebook):
    if codebook == "mul1":
        x = state * np.uint32(0x83DCD12D)
        c = sum((x >> np.uint32(8 * i) & np.uint32(255)).astype(np.float64) for i in range(4))
        k, m = np.array([0x1EEE, 0xC931], np.uint16).view(np.float16).astype(np.float64)
        return ((1024 + c) * k + m).astype(np.float16)
    x = state * np.uint32(0xCBAC1FED) if codebook == "mcg" else state * np.uint32(89226354) + np.uint32(64248484)
    x = np.ascontiguousarray(x & np.uint32(0x8FFF8FFF) ^ np.uint32(0x3B603B60))
    halves = x.view(np.uint16).reshape(*x.shape, 2).view(np.float16)
    return halves[..., 0] + halves[..., 1]


def rotate(x, scale):
    """fp16 [K, N]: H x in blocks of rows, rounded; times scale, rounded. In double a product is exact, and so is the one
    rounding of the sum to fp32."""
    k, n = x.shape
    out = np.zeros((k // BLOCK, BLOCK, n), np.float32)
    for j, row in enumerate((x.astype(np.float64) * np.float64(C)).reshape(-1, BLOCK, n).swapaxes(0, 1)):
        out = (out + SIGNS[:, j][None, :, None] * row[:, None, :]).astype(np.float32)
    return out.reshape(k, n).astype(np.float16) * scale[:, None]


def scale_of(t, stem, packed, plain):
    if stem + plain in t:
        return t[stem + plain][1]
    words = t[stem + packed][1].view(np.uint16)
    return np.float16(1) - 2 * (words[:, None] >> np.arange(16, dtype=np.uint16) & 1).reshape(-1).astype(np.float16)


def decode(t, stem):
    """fp32 [N, K], padded to blocks."""
    trellis = t[stem + "trellis"][1]
    down, right, size = trellis.shape
    codebook = next((name for name in ("mcg", "mul1") if stem + name in t), "3inst")
    code = np.arange(256)
    place = np.empty((16, 16), int)
    place[2 * (code >> 3 & 3) + (code & 1) + 8 * (code >> 1 & 1), (code >> 5) + 8 * (code >> 2 & 1)] = code
    tiles = values(states(trellis.reshape(-1, size)), codebook)[:, place].reshape(down, right, 16, 16)
    w = tiles.swapaxes(1, 2).reshape(16 * down, 16 * right)
    w = rotate(w, scale_of(t, stem, "su", "suh"))
    return rotate(w.T, scale_of(t, stem, "sv", "svh")).astype(np.float32)
