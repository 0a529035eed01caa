"""As reference_native.py: MLX and bitsandbytes."""

import json
from collections import defaultdict

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


def decode_bnb(t, stem):
    """(dtype, values) of 4 bits: the code's value in the book times the scale of its block, which may be a code itself."""
    prefix = stem + "weight."
    state = json.loads(bytes(next(t[n][1] for n in t if n.startswith(prefix + "quant_state."))))
    packed, (dtype, scale) = t[stem + "weight"][1].reshape(-1), t[prefix + "absmax"]
    if dtype == "U8":
        outer = t[prefix + "nested_absmax"][1][np.arange(len(scale)) // state["nested_blocksize"]]
        scale = t[prefix + "nested_quant_map"][1][scale] * outer + np.float32(state["nested_offset"])
    codes = np.stack([packed >> 4, packed & 15], axis=1).reshape(-1)
    values = t[prefix + "quant_map"][1][codes] * scale[np.arange(len(codes)) // state["blocksize"]]
    dtype = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}[state["dtype"]]
    return dtype, round_to(values, dtype).reshape(state["shape"])


def decode_gemma(t, values, scale):
    """Codes of 2, 4 or 8 bits, as the shape of the values shows, times the scale of the row."""
    codes, scale = t[values][1], t[scale][1]
    if codes.dtype == np.uint8:
        bits = GEMMA_BITS[values.rsplit(".", 2)[-2]]
        raw = np.unpackbits(codes, axis=1, bitorder="little").reshape(len(codes), -1, bits)
        codes = raw @ (1 << np.arange(bits)) - (1 << (bits - 1))
    return "F32", codes.astype(np.float32) * np.repeat(scale, codes.shape[1] // scale.shape[1], axis=1)


# Of the modules of tests' checkpoints (tool_encoders.GemmaIntScheme); others have 4.
GEMMA_BITS = defaultdict(lambda: 4, {"q_proj": 2, "down_proj": 2, "embed_tokens": 2, "lm_head": 2})


def decode(t, name, config):
    """(dtype, fp32 values) of a matrix or a stack; None: of another method."""
    stem = name.removesuffix("weight")
    if stem + "embedding_quantized" in t:
        return decode_gemma(t, stem + "embedding_quantized", stem + "embedding_scale")
    if (config.get("quantization_config") or {}).get("quant_method") == "gemma" and stem + "weight_scale" in t:
        return decode_gemma(t, name, stem + "weight_scale")
    if name in t and t[name][0] == "U32":
        parts = [t.get(stem + part) for part in ("scales", "biases")]
        if t[name][1].ndim == 2:
            return decode_mlx(t[name][1], *parts, config)
        each = [decode_mlx(w, *[p and (p[0], p[1][i]) for p in parts], config) for i, w in enumerate(t[name][1])]
        return each[0][0], np.stack([w for _, w in each])
    if stem + "weight.absmax" in t:
        return decode_bnb(t, stem)
    if stem + "SCB" in t:
        return "F32", t[name][1].astype(np.float32) * t[stem + "SCB"][1][:, None] * np.float32(1 / 127)
    return None
