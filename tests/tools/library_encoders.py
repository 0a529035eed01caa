"""As native_encoders.py: Quark, HQQ and torchao."""

from dataclasses import dataclass

import numpy as np

import checkpoint_io as cio
from encoders import E4M3, E4M3_MAX, MX_GROUP, MxScheme, nearest_code, pack_rows
from native_encoders import Native, renamed

AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]  # the code of a word's eight that lies in its i-th lowest bits
E3M2 = np.concatenate([np.arange(4) / 16, *((1 + np.arange(4) / 4) * 2.0**e for e in range(-2, 5))]).astype(np.float32)


def affine(w, bits, scale_dtype, signed=False):
    """Codes, scales as stored, and zero points, for rows of w [.., columns that share a scale]."""
    top = (1 << bits) - 1
    low, high = w.min(axis=-1), w.max(axis=-1)
    span = 2 * np.abs(w).max(axis=-1) if signed else high - low
    stored = cio.encode(span / top + np.float32(2.0**-12), scale_dtype)
    scale = cio.decode(stored, scale_dtype)
    zero = np.zeros_like(scale) if signed else np.clip(np.rint(-low / scale), 0, top)
    least = -(1 << (bits - 1)) if signed else 0
    codes = np.clip(np.rint(w / scale[..., None]) + zero[..., None], least, least + top)
    return codes.astype(np.int64), stored, zero.astype(np.int64)


def quark_pack(codes, bits, signed, order):
    """Lines of codes as Quark stores them."""
    if bits == 8:
        return codes.astype(np.int8 if signed else np.uint8)
    codes = codes & ((1 << bits) - 1)
    if bits == 2:
        four = codes.reshape(*codes.shape[:-1], -1, 4)
        return (four << np.array([6, 4, 2, 0])).sum(axis=-1).astype(np.uint8)
    eight = codes.reshape(*codes.shape[:-1], -1, 8)
    eight = eight[..., AWQ_ORDER] if order == "reorder" else eight
    return (eight << 4 * np.arange(8)).sum(axis=-1).astype(np.uint32).view(np.int32)


@dataclass(frozen=True)
class QuarkScheme(Native):
    """Quark's integers: uint4, int4, uint8, int8, uint2, of groups of inputs or of rows; zero points as codes or as numbers."""
    dtype: str = "int4"
    group: int = 32  # 0: a scale for each row
    order: str = "reorder"
    numbers: bool = False

    @property
    def name(self):
        if self.dtype == "int8" and not self.group:
            return "int-quantized"
        return "awq" if (self.dtype, self.order, bool(self.group)) == ("uint4", "reorder", True) else "quark-int"

    @property
    def bits(self):
        return int(self.dtype[-1])

    def stored(self):
        return "I32" if self.bits == 4 else "I8" if self.dtype == "int8" else "U8"

    def specs(self, n, k, scale_dtype):
        codes = {4: 8, 8: 1, 2: 4}[self.bits]  # in an element
        groups = (k // self.group,) if self.group else ()
        zero = (scale_dtype, (*groups, n)) if self.numbers else (self.stored(), (*groups, n // codes))
        return {"weight": (self.stored(), (k, n // codes) if self.group else (n, k // codes)),
                "weight_scale": (scale_dtype, (*groups, n)), "weight_zero_point": zero}

    def encode(self, w, scale_dtype, amax_shared=None):
        n, k = w.shape
        signed = not self.dtype.startswith("u")
        codes, scale, zero = affine(w.reshape(n, -1, self.group or k), self.bits, scale_dtype, signed)
        codes = codes.reshape(n, k).T if self.group else codes.reshape(n, k)
        scale, zero = (x.T if self.group else x[:, 0] for x in (scale, zero))
        if self.numbers:
            packed = cio.encode(zero.astype(np.float32), scale_dtype)
        else:
            packed = quark_pack(zero, self.bits, signed, self.order)
        return {"weight": quark_pack(np.ascontiguousarray(codes), self.bits, signed, self.order),
                "weight_scale": np.ascontiguousarray(scale), "weight_zero_point": np.ascontiguousarray(packed)}

    def native_config(self, ignore):
        scheme = {"qscheme": "per_channel", "ch_axis": 0}
        if self.group:
            scheme = {"qscheme": "per_group", "ch_axis": -1, "group_size": self.group}
        return quark_config({"dtype": self.dtype, "symmetric": not self.dtype.startswith("u")} | scheme, ignore, self.order)


def quark_config(weight, ignore, order="reorder"):
    return {"quant_method": "quark", "algo_config": None, "exclude": list(ignore), "quant_mode": "eager_mode", "layer_quant_config": {},
            "layer_type_quant_config": {}, "kv_cache_quant_config": {}, "version": "0.13",
            "export": {"kv_cache_group": [], "min_kv_scale": 0.0, "pack_method": order, "weight_format": "real_quantized"},
            "global_quant_config": {"bias": None, "input_tensors": None, "output_tensors": None, "weight": {"is_dynamic": False} | weight}}


@dataclass(frozen=True)
class QuarkMxScheme(Native):
    """Quark's floats: fp4 and fp6 with a power of two for 32 columns, fp8 with a scale for each row."""
    dtype: str = "fp4"

    NAMES = {"weight_packed": "weight"}

    @property
    def name(self):
        return {"fp8_e4m3": "float-quantized", "fp4": "mxfp4-pack-quantized"}.get(self.dtype, "mxfp6-pack-quantized")

    def specs(self, n, k, scale_dtype):
        if self.dtype == "fp8_e4m3":
            return {"weight": ("F8_E4M3", (n, k)), "weight_scale": (scale_dtype, (n,))}
        return renamed(MxScheme(int(self.dtype[2])).specs(n, k, scale_dtype), self.NAMES)

    def encode(self, w, scale_dtype, amax_shared=None):
        if self.dtype == "fp8_e4m3":
            stored = cio.encode(np.abs(w).max(axis=1) / np.float32(E4M3_MAX) + np.float32(2.0**-20), scale_dtype)
            scaled = w / cio.decode(stored, scale_dtype)[:, None]
            return {"weight": nearest_code(np.abs(scaled), E4M3) | (np.signbit(scaled).astype(np.uint8) << 7), "weight_scale": stored}
        if self.dtype != "fp6_e3m2":
            return renamed(MxScheme(int(self.dtype[2])).encode(w, scale_dtype), self.NAMES)
        grouped = w.reshape(len(w), -1, MX_GROUP)
        exponent = np.frexp(np.maximum(np.abs(grouped).max(axis=2), 2.0**-100))[1] - 1 - 4
        scaled = (grouped / np.ldexp(np.float32(1), exponent)[:, :, None]).reshape(w.shape)
        codes = nearest_code(np.abs(scaled), E3M2) | (np.signbit(scaled).astype(np.uint8) << 5)
        return {"weight": pack_rows(codes, 6).view(np.uint8), "weight_scale": (exponent + 127).astype(np.uint8)}

    def native_config(self, ignore):
        mx = {"qscheme": "per_group", "ch_axis": -1, "group_size": MX_GROUP, "scale_format": "e8m0"}
        rows = {"qscheme": "per_channel", "ch_axis": 0}
        return quark_config({"dtype": self.dtype} | (rows if self.dtype == "fp8_e4m3" else mx), ignore)


@dataclass(frozen=True)
class HqqScheme(Native):
    """HQQ: groups of the matrix's elements, row after row (axis 1), or every so many of them (axis 0)."""
    bits: int = 4
    group: int = 64
    axis: int = 1

    name = "hqq"

    def shape(self, n, k):
        return (n * k // self.group, self.group) if self.axis == 1 else (self.group, n * k // self.group)

    def specs(self, n, k, scale_dtype):
        rows, columns = self.shape(n, k)
        groups = (scale_dtype, (rows, 1) if self.axis == 1 else (1, columns))
        packed = ("I32", (-(-rows // 10), columns)) if self.bits == 3 else ("U8", (rows * self.bits // 8, columns))
        meta = {"nbits": "I32", "group_size": "I32", "axis": "I32", "view_as_float": "U8", "quant_scale": "U8", "quant_zero": "U8"}
        return {"W_q": packed, "scale": groups, "zero": groups, "shape": ("I64", (2,)), "packing": ("U8", (7,))} | {
            name: (dtype, ()) for name, dtype in meta.items()}

    def encode(self, w, scale_dtype, amax_shared=None):
        flat = w.reshape(self.shape(*w.shape))
        codes, scale, zero = affine(flat if self.axis == 1 else flat.T, self.bits, scale_dtype)
        codes = codes if self.axis == 1 else codes.T
        in_element = 10 if self.bits == 3 else 8 // self.bits
        codes = np.pad(codes, ((0, -len(codes) % in_element), (0, 0)))
        parts = codes.reshape(in_element, -1, codes.shape[1]) << (self.bits * np.arange(in_element)[::-1])[:, None, None]
        zero = cio.encode(zero.astype(np.float32) + np.float32(0.125), scale_dtype)
        place = (-1, 1) if self.axis == 1 else (1, -1)
        packing = {8: "8bit_u8", 4: "4bit_u8", 3: "3bit_32", 2: "2bit_u8", 1: "1bit_u8"}[self.bits]
        return {"W_q": parts.sum(axis=0).astype(np.int32 if self.bits == 3 else np.uint8), "scale": scale.reshape(place),
                "zero": zero.reshape(place), "shape": np.array(w.shape, np.int64),
                "packing": np.frombuffer(packing.encode(), np.uint8),
                "nbits": np.int32(self.bits), "group_size": np.int32(self.group), "axis": np.int32(self.axis),
                "view_as_float": np.uint8(0), "quant_scale": np.uint8(0), "quant_zero": np.uint8(0)}

    def native_config(self, ignore):
        weight = {"nbits": self.bits, "group_size": self.group, "channel_wise": True, "optimize": True, "round_zero": self.bits == 4,
                  "axis": self.axis, "view_as_float": False}
        return {"quant_method": "hqq", "skip_modules": list(ignore),
                "quant_config": {"weight_quant_params": weight, "scale_quant_params": None, "zero_quant_params": None,
                                 "offload_meta": False}}


@dataclass(frozen=True)
class TorchAoScheme(Native):
    """torchao: float8 of rows, or int8 of rows or groups, in the parts of a flattened tensor."""
    kind: str = "Float8WeightOnlyConfig"
    group: int = 0  # 0: a scale for each row

    @property
    def is_float(self):
        return self.kind.startswith("Float8")

    @property
    def name(self):
        return "float-quantized" if self.is_float else "int-quantized"

    def specs(self, n, k, scale_dtype):
        groups = (n, k // self.group if self.group else 1)
        if self.is_float:
            return {"_weight_qdata": ("F8_E4M3", (n, k)), "_weight_scale": ("F32", groups)}
        zero = {"_weight_zero_point": ("I8", groups)} if self.group else {}
        return {"_weight_qdata": ("I8", (n, k)), "_weight_scale": (scale_dtype, groups)} | zero

    def encode(self, w, scale_dtype, amax_shared=None):
        n, k = w.shape
        if self.is_float:
            scale = np.abs(w).max(axis=1, keepdims=True).astype(np.float32) / np.float32(E4M3_MAX) + np.float32(2.0**-20)
            scaled = w / scale
            codes = nearest_code(np.abs(scaled), E4M3) | (np.signbit(scaled).astype(np.uint8) << 7)
            return {"_weight_qdata": codes, "_weight_scale": scale}
        codes, scale, zero = affine(w.reshape(n, -1, self.group or k), 8, scale_dtype, not self.group)
        shift = 128 if self.group else 0
        parts = {"_weight_qdata": (codes - shift).reshape(n, k).astype(np.int8), "_weight_scale": scale}
        return parts | ({"_weight_zero_point": (zero - shift).astype(np.int8)} if self.group else {})

    def native_config(self, ignore):
        return {"quant_method": "torchao", "modules_to_not_convert": list(ignore), "include_input_output_embeddings": False,
                "quant_type": {"default": {"_type": self.kind, "_version": 2, "_data": {}}}}


LIBRARIES = {
    "quark_int4": ("bfloat16", QuarkScheme()),
    "quark_uint4": ("bfloat16", QuarkScheme("uint4")),
    "quark_int8": ("bfloat16", QuarkScheme("int8", 0)),
    "quark_uint2_fp16": ("float16", QuarkScheme("uint2", 32, numbers=True)),
    "quark_fp8": ("bfloat16", QuarkMxScheme("fp8_e4m3")),
    "quark_mxfp4": ("bfloat16", QuarkMxScheme()),
    "quark_e3m2": ("bfloat16", QuarkMxScheme("fp6_e3m2")),
    "hqq4": ("bfloat16", HqqScheme()),
    "hqq3_fp16": ("float16", HqqScheme(3, 32, 0)),
    "torchao_float8": ("bfloat16", TorchAoScheme()),
    "torchao_intx": ("bfloat16", TorchAoScheme("IntxWeightOnlyConfig", 32)),
}
