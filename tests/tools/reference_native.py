"""Weights in the formats of other methods than compressed-tensors in NumPy, by the formula of the library that defines
the format. Part of reference_model.py; shares no code with the worker."""

import numpy as np

import reference_formats
from reference_formats import e2m1_values, e4m3_values, round_to, widen


def decode_fp8(t, stem, block):
    """fp8, fbgemm_fp8, ModelOpt's FP8: the code times the factor of its block, row or matrix."""
    codes = t[stem + "weight"][1]
    n, k = codes.shape
    dtype, raw = t.get(stem + "weight_scale_inv") or t[stem + "weight_scale"]
    scale = widen(dtype, raw)
    if scale.ndim == 4:  # ModelOpt's blocks
        scale = scale[:, 0, :, 0]
    if block is None:
        return dtype, round_to(e4m3_values(codes) * scale.reshape(-1, 1), dtype)
    row, column = np.arange(n) // block[0], np.arange(k) // block[1]
    return dtype, round_to(e4m3_values(codes) * scale[row[:, None], column], dtype)


def decode_nvfp4(t, stem):
    """ModelOpt's NVFP4: the scales of 16 columns times the matrix's factor, in fp32; times the code."""
    factor = t[stem + "weight_scale_2"][1].astype(np.float32)
    scale = e4m3_values(t[stem + "weight_scale"][1]) * factor
    return "F32", e2m1_values(t[stem + "weight"][1]) * np.repeat(scale, 16, axis=1)


def decode(t, name, config):
    """(dtype, fp32 values) of one weight matrix in any format."""
    stem = name.removesuffix("weight")
    quantization = config.get("quantization_config") or {}
    if stem + "weight_scale_2" in t:
        return decode_nvfp4(t, stem)
    if name in t and t[name][0] == "F8_E4M3" and quantization.get("quant_method") != "compressed-tensors":
        block = quantization.get("weight_block_size")
        return decode_fp8(t, stem, [128, 128] if quantization.get("quant_algo") == "FP8_PB_WO" else block)
    return reference_formats.decode(t, name, config)
