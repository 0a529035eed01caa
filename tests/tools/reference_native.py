"""Weights in the formats of other methods than compressed-tensors in NumPy, by the formula of the library that defines
the format. Part of reference_model.py; shares no code with the worker."""

import numpy as np

import reference_exl3
import reference_formats
import reference_library
import reference_tools
from reference_formats import e2m1_values, e4m3_values, round_to, widen


def decode_fp8(t, stem, block, ranks=1):
    """fp8, fbgemm_fp8, ModelOpt's FP8: the code times the factor of its block, row or matrix. ranks: parts with blocks of their own."""
    codes = t[stem + "weight"][1]
    n, k = codes.shape
    dtype, raw = t.get(stem + "weight_scale_inv") or t.get(stem + "weight_scale") or t[stem + "scale"]  # the last is DeepSeek V4's
    scale = widen(dtype, raw)
    if scale.ndim == 4:  # ModelOpt's blocks
        scale = scale[:, 0, :, 0]
    if dtype in ("F8_E8M0", "U8"):  # exponents, whose products fit into bf16
        dtype, scale = "BF16", np.ldexp(np.float32(1), raw.reshape(scale.shape).astype(np.int32) - 127)
    if block is None:
        return dtype, round_to(e4m3_values(codes) * scale.reshape(-1, 1), dtype)
    row = np.concatenate([np.arange(n // ranks) // block[0] + r * (len(scale) // ranks) for r in range(ranks)])
    column = np.arange(k) // block[1]
    return dtype, round_to(e4m3_values(codes) * scale[row[:, None], column], dtype)


def decode_nvfp4(t, stem):
    """ModelOpt's NVFP4: the scales of 16 or 32 columns times the matrix's factor, in fp32; times the code."""
    factor = t[stem + "weight_scale_2"][1].astype(np.float32)
    scale, codes = e4m3_values(t[stem + "weight_scale"][1]) * factor, e2m1_values(t[stem + "weight"][1])
    return "F32", codes * np.repeat(scale, codes.shape[1] // scale.shape[1], axis=1)


def fields(words, count, bits):
    """The first `count` fields of each row of int32 words, lowest bit first."""
    raw = np.unpackbits(np.ascontiguousarray(words).view(np.uint8), axis=1, bitorder="little")[:, :count * bits]
    return raw.reshape(len(words), count, bits).astype(np.int64) @ (1 << np.arange(bits))


def decode_gptq(t, stem, n, quantization):
    """GPTQ: (code - zero) * scale of the input's group."""
    dtype, scale = t[stem + "scales"][0], widen(*t[stem + "scales"])
    bits = quantization["bits"]
    group = t[stem + "g_idx"][1]
    codes = fields(t[stem + "qweight"][1].T, len(group), bits)
    stored = t[stem + "qzeros"][1].astype(np.int64) & 0xFFFFFFFF
    said = quantization.get("checkpoint_format") or quantization.get("packing_format")
    zeros = fields(stored.astype(np.uint32), n, bits)
    one = said in ("gptq", "auto_round:auto_gptq")
    if quantization["sym"]:
        one = bool(np.all(zeros == (1 << (bits - 1)) - 1))
    if one and bits == 3:
        zeros = (zeros + 1) % 8
    elif one:
        ones = sum(1 << at for at in range(0, 32, bits))
        zeros = fields(((stored + ones) & 0xFFFFFFFF).astype(np.uint32), n, bits)
    return dtype, round_to((codes - zeros[group].T).astype(np.float32) * scale[group].T, dtype)


def decode_awq(t, stem, n):
    """AWQ: as GPTQ with zero points as they are, and outputs in another order."""
    dtype, scale = t[stem + "scales"][0], widen(*t[stem + "scales"])
    place = np.arange(n) // 8 * 8 + np.array([0, 4, 1, 5, 2, 6, 3, 7])[np.arange(n) % 8]
    codes = fields(t[stem + "qweight"][1], n, 4)[:, place]
    zeros = fields(t[stem + "qzeros"][1], n, 4)[:, place]
    group = np.arange(len(codes)) // (len(codes) // len(scale))
    return dtype, round_to(((codes - zeros[group]).astype(np.float32) * scale[group]).T, dtype)


def decode(t, name, config):
    """(dtype, fp32 values) of one weight matrix in any format."""
    stem = name.removesuffix("weight")
    found = reference_tools.decode(t, name, config) or reference_library.decode(t, name, config)
    if found:
        return found
    quantization = config.get("quantization_config") or {}
    if stem + "pre_quant_scale" in t:  # ModelOpt's, of the inputs
        dtype, w = decode_plain(t, name, stem, config, quantization)
        return dtype, w * widen(*t[stem + "pre_quant_scale"])
    return decode_plain(t, name, stem, config, quantization)


def decode_plain(t, name, stem, config, quantization):
    """Without what ModelOpt multiplies the inputs by."""
    if stem + "trellis" in t:
        return "F16", reference_exl3.decode(t, stem)
    if stem + "qweight" in t:
        n = t[stem + "scales"][1].shape[1]
        return decode_awq(t, stem, n) if quantization["quant_method"] == "awq" else decode_gptq(t, stem, n, quantization)
    if stem + "weight_scale_2" in t:
        return decode_nvfp4(t, stem)
    if name in t and t[name][0] in ("U8", "I8") and quantization.get("quant_method") != "compressed-tensors":  # ModelOpt's
        scale_dtype, scale = t.get(stem + "weight_scale") or t[stem + "scale"]
        if scale_dtype in ("U8", "F8_E8M0"):
            return reference_formats.decode_mx({stem + "weight_packed": t[name], stem + "weight_scale": (scale_dtype, scale)}, stem)
        scale, codes = widen(scale_dtype, scale), t[name][1]
        if codes.dtype == np.uint8:  # two rows in a byte
            codes = np.stack([codes & 15, codes >> 4], axis=1).reshape(-1, codes.shape[1]).astype(np.int8)
            codes = (codes ^ 8) - 8
            return "F32", codes.astype(np.float32) * np.repeat(scale, codes.shape[1] // scale.shape[1], axis=1)
        return "F32", codes.astype(np.float32) * scale.reshape(-1, 1)
    mx = stem + "weight_scale" in t and t[stem + "weight_scale"][0] in ("U8", "F8_E8M0")
    if name in t and t[name][0] == "F8_E4M3" and not mx and quantization.get("quant_method") != "compressed-tensors":
        group = quantization.get("group_size")
        block = quantization.get("weight_block_size") or (group if isinstance(group, list) else None)
        ranks = config["num_key_value_heads"] if config.get("model_type") == "mimo_v2" and "qkv_proj" in stem else 1
        return decode_fp8(t, stem, [128, 128] if quantization.get("quant_algo") == "FP8_PB_WO" else block, ranks)
    return reference_formats.decode(t, name, config)
