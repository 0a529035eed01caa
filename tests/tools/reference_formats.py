"""Weights of every format in NumPy, bit-equal to compressed-tensors' decompress (but blocks at the edges, see
docs/FORMATS.md). Part of reference_model.py; shares no code with the worker."""

import re

import numpy as np

NUMPY = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "U32": "<u4",
         "I8": "i1", "U8": "u1", "F8_E4M3": "u1", "F8_E8M0": "u1"}


def widen(dtype, raw):
    """fp32 values of a stored F32, F16 or BF16 tensor."""
    if dtype == "BF16":
        return np.left_shift(raw.astype(np.uint32), 16).view(np.float32)
    return raw.astype(np.float32)


def round_to(x, dtype):
    """fp32 values rounded to nearest even in `dtype`, as fp32."""
    if dtype == "F32":
        return x.astype(np.float32)
    if dtype == "F16":
        return x.astype(np.float16).astype(np.float32)
    bits = x.astype(np.float32).view(np.uint32)
    bits = bits + ((bits >> np.uint32(16) & np.uint32(1)) + np.uint32(0x7FFF)) & np.uint32(0xFFFF0000)
    return bits.view(np.float32)


def narrow_bytes(x, dtype):
    """Row-major bytes of values that `dtype` holds exactly."""
    if dtype == "BF16":
        return (x.view(np.uint32) >> 16).astype("<u2").tobytes()
    return x.astype(NUMPY[dtype]).tobytes()


# ---- formats: compressed-tensors' decompress ----------------------------------------------------

def bit_fields(words, count, bits):
    """The first `count` fields of each row of int32 words, least significant bit first."""
    at = np.arange(count) * bits
    low = words.astype(np.int64) & 0xFFFFFFFF
    low = np.concatenate([low, np.zeros((len(low), 1), np.int64)], axis=1)  # for the last field
    pair = low[:, at // 32] | (low[:, at // 32 + 1] << 32)
    # fields never reach bit 63, since at % 32 + bits <= 39
    return (pair >> (at % 32)) & ((1 << bits) - 1)


def zero_points(t, stem, n, bits):
    """As numbers to subtract from signed codes, [rows, groups]; 0: none are stored."""
    if stem + "weight_zero_point" not in t:
        return np.zeros((1, 1), np.int64)
    dtype, stored = t[stem + "weight_zero_point"]
    if dtype == "I8":  # one byte each
        return np.atleast_1d(stored).astype(np.int64).reshape(len(np.atleast_1d(stored)), -1)
    return bit_fields(stored.T, n, bits).T - (1 << (bits - 1))  # a stream of fields down each column


def groups_of(t, stem, k, columns):
    """The group of each column; `columns` of them share one."""
    if stem + "weight_g_idx" in t and not np.any(t[stem + "weight_g_idx"][1] < 0):
        return t[stem + "weight_g_idx"][1].astype(np.int64)
    return np.arange(k) // columns


def decode_packed(t, stem, args):
    """pack-quantized: (q - zero) * scale, rounded to the scale's dtype."""
    bits = args["num_bits"]
    n, k = (int(v) for v in t[stem + "weight_shape"][1])
    scale_dtype, scale = t[stem + "weight_scale"][0], widen(*t[stem + "weight_scale"])
    q = bit_fields(t[stem + "weight_packed"][1], k, bits)
    rows, columns = args.get("block_structure") or (1, k // scale.shape[1])
    row, group = (np.arange(n) // rows)[:, None], groups_of(t, stem, k, columns)
    zero = np.broadcast_to(zero_points(t, stem, n, bits), scale.shape)
    q = q - (1 << (bits - 1))
    exact = (q - zero[row, group]).astype(np.float32) * scale[row, group]
    return scale_dtype, round_to(exact, scale_dtype)


def e4m3_values(codes):
    sign = np.where(codes & 0x80, -1.0, 1.0)
    exponent, mantissa = (codes >> 3) & 15, (codes & 7).astype(np.float64)
    value = np.where(exponent == 0, np.ldexp(mantissa, -9),
                     np.ldexp(8 + mantissa, exponent.astype(np.int64) - 10))
    return (sign * value).astype(np.float32)


def e2m1_values(packed):
    """Two codes per byte, the first in the low half."""
    codes = np.stack([packed & 15, packed >> 4], axis=2).reshape(len(packed), -1)
    return np.array([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6], np.float32)[codes]


def e2m3_values(packed):
    """Four codes of 6 bits in three bytes, lowest bit first: sign, two bits of exponent (bias 1), three of mantissa."""
    bits = np.unpackbits(packed, axis=1, bitorder="little").reshape(len(packed), -1, 6)
    codes = bits @ (1 << np.arange(6))
    sign, exponent, mantissa = np.where(codes & 32, -1.0, 1.0), codes >> 3 & 3, codes & 7
    return (sign * np.where(exponent == 0, mantissa / 8, np.ldexp(1 + mantissa / 8, exponent - 1))).astype(np.float32)


def decode_nvfp4(t, stem):
    """nvfp4-pack-quantized: e2m1 * fl32(e4m3 / global), rounded to fp32 and then to bf16."""
    divisor = widen(*t[stem + "weight_global_scale"]).reshape(())
    scale = e4m3_values(t[stem + "weight_scale"][1]) / divisor
    return "BF16", round_to(e2m1_values(t[stem + "weight_packed"][1]) * np.repeat(scale, 16, axis=1), "BF16")


def decode_mx(t, stem):
    """mxfp4-pack-quantized, mxfp6-pack-quantized and mxfp8-quantized: e2m1, e2m3 or e4m3 times a power of two, in bf16."""
    scale = np.ldexp(np.float32(1), t[stem + "weight_scale"][1].astype(np.int32) - 127)
    if stem + "weight" in t:
        values = e4m3_values(t[stem + "weight"][1])
    else:
        packed = t[stem + "weight_packed"][1]
        values = (e2m3_values if packed.shape[1] == 24 * scale.shape[1] else e2m1_values)(packed)
    return "BF16", round_to(values * np.repeat(scale, 32, axis=1), "BF16")


def decode_blocks(t, name):
    """quant_method mxfp4: [E, outputs, blocks, 16] bytes and [E, outputs, blocks] scales, as [E, inputs, outputs]."""
    blocks, scales = t[name + "_blocks"][1], t[name + "_scales"][1]
    values = e2m1_values(blocks.reshape(-1, 16)) * np.ldexp(np.float32(1), scales.reshape(-1, 1).astype(np.int32) - 127)
    return round_to(values, "BF16").reshape(*blocks.shape[:2], -1).transpose(0, 2, 1)


def decode_bytes(t, stem, args):
    """float-quantized, int-quantized and naive-quantized: (v - zero) * scale, rounded to the scale's dtype."""
    dtype, codes = t[stem + "weight"]
    n, k = codes.shape
    values = e4m3_values(codes) if dtype == "F8_E4M3" else codes.astype(np.float32)
    scale_dtype, scale = t[stem + "weight_scale"][0], widen(*t[stem + "weight_scale"])
    scale = scale.reshape(-1, 1) if scale.ndim < 2 else scale
    rows, columns = args.get("block_structure") or (1 if len(scale) == n else n, -(-k // scale.shape[1]))
    zero = np.broadcast_to(zero_points(t, stem, n, 8), scale.shape)
    row, group = (np.arange(n) // rows)[:, None], groups_of(t, stem, k, columns)
    exact = (values - zero[row, group].astype(np.float32)) * scale[row, group]
    return scale_dtype, round_to(exact, scale_dtype)


def args_of(module, config, of="weights"):
    """The arguments of the module's weights, or "input_activations". Of our files, golden files included, a group's targets are expressions
    or the class of all linear layers; the file itself shows whether its weight is quantised."""
    groups = list(config["quantization_config"]["config_groups"].values())
    named = [g for g in groups if any(x.startswith("re:") and re.match(x[3:], module) for x in g["targets"])]
    return (named or [g for g in groups if "Linear" in g["targets"]])[0].get(of)


def matrices_of(t, name):
    """The parts of each matrix of a quantised stack, called "weight_scale" and so on."""
    ends = ("", "_packed", "_scale", "_zero_point", "_g_idx", "_global_scale", "_shape")
    parts = {"weight" + end: t[name + end] for end in ends if name + end in t}
    n = len(next(iter(parts.values()))[1])
    return [{part: (dtype, stored[i]) for part, (dtype, stored) in parts.items()} for i in range(n)]


def decode(t, name, config):
    """(dtype, fp32 values) of one weight matrix, or of a stack, as decompress gives it to the model."""
    stem = name.removesuffix("weight")
    if name in t and t[name][0] in ("F32", "F16", "BF16"):
        dtype, raw = t[name]
        return dtype, widen(dtype, raw)
    if name + "_blocks" in t:
        return "BF16", decode_blocks(t, name)
    values = t.get(name) or t.get(name + "_packed")
    if values[1].ndim == 3:
        decoded = [decode(m, "weight", config) for m in matrices_of(t, name)]
        return decoded[0][0], np.stack([w for _, w in decoded])
    scale_dtype = t[stem + "weight_scale"][0]
    if stem + "weight_global_scale" in t:
        dtype, w = decode_nvfp4(t, stem)
    elif scale_dtype in ("U8", "F8_E8M0"):
        dtype, w = decode_mx(t, stem)
    elif name in t:
        return decode_bytes(t, stem, args_of(stem.removesuffix("."), config))
    else:
        return decode_packed(t, stem, args_of(stem.removesuffix("."), config))
    model = config.get("dtype") or config.get("torch_dtype")
    return ("F16", round_to(w, "F16")) if model == "float16" else (dtype, w)
