"""Quantised activations, part of reference_model.py: compressed-tensors' QDQ of a module's input, and of keys, values and queries.

The order of operations is that of compressed-tensors' fake_quantize and compute_dynamic_scales_and_zp, with every result
rounded to the activations' dtype where torch rounds it, or to none in float64 (dtype None).
"""

import re

import numpy as np

from reference_formats import args_of, round_to, widen

EPS = {"BF16": 2.0**-7, "F16": 2.0**-10, "F32": 2.0**-23, None: 2.0**-52}
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
E4M3 = np.array([m * 2.0**-9 for m in range(8)] + [(8 + m) * 2.0**(e - 10) for e in range(1, 16) for m in range(8)][:-1])


def number(tensors, name):
    dtype, raw = tensors[name]
    return float(raw.reshape(-1)[0]) if dtype == "I8" else float(widen(dtype, raw).reshape(-1)[0])


def nearest(x, values):
    """x rounded to +-values (ascending, the index of a value's code), ties to the even code."""
    a = np.minimum(np.abs(x), values[-1])
    above = np.clip(np.searchsorted(values, a), 1, len(values) - 1)
    below = above - 1
    low, high = a - values[below], values[above] - a
    up = (high < low) | ((high == low) & (above % 2 == 0))
    return np.copysign(np.where(up, values[above], values[below]), x)


def codes_of(args):
    """(smallest, largest, function that rounds to codes)."""
    if args.get("type", "int") == "int":
        half = 2.0**(args.get("num_bits", 8) - 1)
        return -half, half - 1, np.rint
    values = E4M3 if args["num_bits"] == 8 else E2M1
    return -values[-1], values[-1], lambda t: nearest(t, values)


def is_mx(args):
    named = args.get("scale_dtype")
    return args.get("type") == "float" and args.get("group_size") == 32 and (
        named == "torch.uint8" or (named is None and args["num_bits"] == 4))


def mx_scale(largest, bits, dtype):
    """The power of two of the largest magnitude (from 1.75 times it on: twice that), by that of the largest code."""
    r = rounder(dtype)
    with np.errstate(divide="ignore"):
        exponent = np.floor(np.log2(largest))
    exponent += largest >= 1.75 * 2.0**exponent
    scale = r(2.0**np.clip(exponent - (2 if bits == 4 else 8), -127, 128))
    return np.where(scale == 0, 1, scale)


def rounder(dtype):
    if dtype is None:
        return lambda x: x
    return lambda x: round_to(np.asarray(x, np.float64).astype(np.float32), dtype).astype(np.float64)


def quantised(x, args, dtype, scale=None, zero=0.0, wide=None):
    """x [.., k] quantised and widened again. scale, zero: stored ones, of a static scheme; wide: the global scale."""
    r, symmetric = rounder(dtype), args.get("symmetric", True)
    low, high, code = codes_of(args)
    groups = x.reshape(*x.shape[:-1], -1, args.get("group_size") or x.shape[-1])
    bottom, top = np.minimum(groups.min(-1, keepdims=True), 0), np.maximum(groups.max(-1, keepdims=True), 0)
    largest, t_round = np.maximum(-bottom, top), r
    if scale is not None:
        s = np.asarray(r(scale))
    elif wide is not None:
        f32 = rounder(None if dtype is None else "F32")
        s = nearest(np.minimum(f32(wide * r(largest / high)), 448), E4M3)
        s, t_round = f32(np.where(s == 0, 0.125, s) / wide), f32
    elif is_mx(args):
        s = mx_scale(largest, args["num_bits"], dtype)
    elif symmetric:
        s = r(largest / ((high - low) / 2))
        s = np.where(s == 0, EPS[dtype], s)
    else:
        s = r(r(top - bottom) / (high - low))
        s, empty = np.where(s == 0, EPS[dtype], s), s == 0
        zero = np.where(empty, 0, np.rint(np.clip(r(low - r(bottom / s)), low, high)))
    t = t_round(t_round(groups / s) + zero)
    return r((code(np.clip(t, low, high)) - zero) * s).reshape(x.shape)


RANGES = {"type": "int", "num_bits": 8}  # Gemma's own


def by_range(x, name, tensors, dtype):
    """x rounded by a static scale of Gemma's own method; a scale of 0: x as it is."""
    scale = number(tensors, name) if name in tensors else 0.0
    return quantised(x, RANGES, dtype, scale) if scale else x


def module_output(x, module, tensors, dtype):
    return by_range(x, f"{module}.output_activation_scale", tensors, dtype)


def module_input(x, module, tensors, config, dtype):
    if (config.get("quantization_config") or {}).get("quant_method") == "gemma":
        return by_range(x, f"{module}.input_activation_scale", tensors, dtype)
    args = args_of(module, config, "input_activations") if f"{module}.weight_scale" in tensors else None
    if not args:
        return x
    if f"{module}.input_global_scale" in tensors:
        return quantised(x, args, dtype, wide=number(tensors, f"{module}.input_global_scale"))
    if args.get("dynamic"):
        return quantised(x, args, dtype)
    zero = f"{module}.input_zero_point"
    return quantised(x, args, dtype, number(tensors, f"{module}.input_scale"), number(tensors, zero) if zero in tensors else 0.0)


def heads_args(module, which, config):
    """How keys ("k"), values or queries of an attention module are quantised, or None."""
    quantization = config.get("quantization_config") or {}
    for group in quantization.get("config_groups", {}).values():
        targets = [t.removeprefix("re:") for t in group["targets"]]
        if not group.get("weights") and any(re.match(t, module) or t.endswith("Attention") for t in targets):
            return group["input_activations"]
    return quantization.get("kv_cache_scheme") if which != "q" else None


def heads(x, stem, which, tensors, config, dtype):
    """Keys, values or queries [n_tok, heads, head], quantised."""
    module = stem + "self_attn"
    args = heads_args(module, which, config)
    if not args:
        return x
    wide = f"{module}.{which}_global_scale"
    if args.get("dynamic"):
        return quantised(x, args, dtype, wide=number(tensors, wide) if wide in tensors else None)
    scale, zero = (f"{module}.{which}_{part}" for part in ("scale", "zero_point"))
    if args["strategy"] == "attn_head":
        s, z = (widen(*tensors[n]).astype(np.float64).reshape(-1, 1, 1) if n in tensors else 0.0 for n in (scale, zero))
        return quantised(x, args, dtype, s, z)
    return quantised(x, args, dtype, number(tensors, scale), number(tensors, zero) if zero in tensors else 0.0)
