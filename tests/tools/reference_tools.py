"""As reference_native.py: MLX."""

import numpy as np

from reference_formats import e2m1_values, e4m3_values, round_to, widen


def mlx_codes(words, columns):
    """A row is one stream of codes, lowest bit first."""
    bits = words.shape[1] * 32 // columns
    raw = np.unpackbits(np.ascontiguousarray(words).view(np.uint8), axis=1, bitorder="little").reshape(len(words), columns, bits)
    return raw @ (1 << np.arange(bits))


def decode_mlx(weight, scales, biases, config):
    """(dtype, values) of one matrix: scale * code + bias, each rounded; or NVFP4."""
    q = config["quantization"]
    dtype, stored = scales
    if dtype == "U8":
        scale = e4m3_values(stored)
        return "BF16", round_to(e2m1_values(weight.view(np.uint8)) * np.repeat(scale, 16, axis=1), "BF16")
    columns = stored.shape[1] * q["group_size"]
    scale, bias = (np.repeat(widen(dtype, x), q["group_size"], axis=1) for x in (stored, biases[1]))
    return dtype, round_to(round_to(mlx_codes(weight, columns).astype(np.float32) * scale, dtype) + bias, dtype)


def decode(t, name, config):
    """(dtype, fp32 values) of a matrix or a stack; None: of another method."""
    stem = name.removesuffix("weight")
    if name in t and t[name][0] == "U32":
        parts = [t.get(stem + part) for part in ("scales", "biases")]
        if t[name][1].ndim == 2:
            return decode_mlx(t[name][1], *parts, config)
        each = [decode_mlx(w, *[p and (p[0], p[1][i]) for p in parts], config) for i, w in enumerate(t[name][1])]
        return each[0][0], np.stack([w for _, w in each])
    return None
