"""As reference_native.py: Quark, HQQ and torchao."""

import numpy as np

from reference_formats import decode_mx, e4m3_values, round_to, widen


def quark_numbers(raw, bits, signed, order):
    """Lines of stored elements as numbers."""
    if bits == 4:
        shifts = np.array([0, 16, 4, 20, 8, 24, 12, 28]) if order == "reorder" else 4 * np.arange(8)
    else:
        shifts = np.arange(8 - bits, -1, -bits)
    codes = (raw.astype(np.int64)[..., None] >> shifts & ((1 << bits) - 1)).reshape(*raw.shape[:-1], -1)
    return codes - ((codes >> (bits - 1)) << bits) if signed else codes


def decode_quark(t, stem, quantization):
    spec = quantization["global_quant_config"]["weight"]
    dtype, order = spec["dtype"], quantization["export"]["pack_method"]
    raw, (scale_dtype, stored) = t[stem + "weight"][1], t[stem + "weight_scale"]
    if dtype == "fp8_e4m3":
        return scale_dtype, round_to(e4m3_values(raw) * widen(scale_dtype, stored).reshape(-1, 1), scale_dtype)
    if dtype == "fp6_e3m2":
        codes = np.unpackbits(raw, axis=1, bitorder="little").reshape(len(raw), -1, 6) @ (1 << np.arange(6))
        exponent, mantissa = codes >> 2 & 7, codes & 3
        values = np.where(exponent == 0, mantissa / 16, (1 + mantissa / 4) * 2.0 ** (exponent - 3)) * np.where(codes & 32, -1, 1)
        return "BF16", round_to((values * np.repeat(2.0 ** (stored.astype(np.int32) - 127), 32, axis=1)).astype(np.float32), "BF16")
    if dtype.startswith("fp"):
        return decode_mx({stem + "weight_packed": t[stem + "weight"], stem + "weight_scale": t[stem + "weight_scale"]}, stem)
    bits, signed, by_group = int(dtype[-1]), dtype[0] == "i", spec["qscheme"] == "per_group"
    codes, scale = quark_numbers(raw, bits, signed, order), widen(scale_dtype, stored)
    zero_dtype, zero = t[stem + "weight_zero_point"]
    zero = widen(zero_dtype, zero) if zero_dtype == scale_dtype else quark_numbers(zero, bits, signed, order)
    if not by_group:
        return scale_dtype, round_to((codes - zero[:, None]).astype(np.float32) * scale[:, None], scale_dtype)
    scale, zero = (np.repeat(x, spec["group_size"], axis=0) for x in (scale, zero))
    return scale_dtype, round_to((codes - zero).astype(np.float32).T * scale.T, scale_dtype)


def decode_hqq(t, stem):
    """round(round(code - zero) * scale) of the matrix in groups."""
    bits = int(t[stem + "nbits"][1])
    packed, (dtype, scale), zero = t[stem + "W_q"][1].astype(np.int64), t[stem + "scale"], t[stem + "zero"][1]
    shape = tuple(t[stem + "shape"][1])
    parts = range(27, -1, -3) if bits == 3 else range(8 - bits, -1, -bits)
    codes = np.concatenate([packed >> shift & ((1 << bits) - 1) for shift in parts])[:shape[0] * shape[1] // packed.shape[1]]
    difference = round_to(codes.astype(np.float32) - widen(dtype, zero), dtype)
    return dtype, round_to(difference * widen(dtype, scale), dtype).reshape(shape)


def decode_torchao(t, stem):
    kind, raw = t[stem + "_weight_qdata"]
    dtype, scale = t[stem + "_weight_scale"]
    per = raw.shape[1] // scale.shape[1]
    values = e4m3_values(raw) if kind == "F8_E4M3" else raw.astype(np.float32)
    if stem + "_weight_zero_point" in t:
        values = values - np.repeat(t[stem + "_weight_zero_point"][1].astype(np.float32), per, axis=1)
    return dtype, round_to(values * np.repeat(widen(dtype, scale), per, axis=1), dtype)


def decode(t, name, config):
    """(dtype, fp32 values) of a matrix; None: of another method."""
    stem = name.removesuffix("weight")
    quantization = config.get("quantization_config") or {}
    if stem + "W_q" in t:
        return decode_hqq(t, stem)
    if stem + "_weight_qdata" in t:
        return decode_torchao(t, stem)
    if quantization.get("quant_method") == "quark" and stem + "weight_scale" in t:
        return decode_quark(t, stem, quantization)
    return None
