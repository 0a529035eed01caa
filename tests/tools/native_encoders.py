"""Round-to-nearest quantisation into the formats of other methods than compressed-tensors, with numpy only: as
encoders.py, plus the configuration as the method's own tool writes it (native_config)."""

from dataclasses import dataclass, replace

import numpy as np

import checkpoint_io as cio
from encoders import (E2M1, E2M1_MAX, E4M3, E4M3_MAX, NVFP4_GROUP, ByteScheme, MixedScheme, MxScheme, Nvfp4Scheme, nearest_code,
                      pack_rows)


def renamed(tensors, names):
    return {names.get(name, name): value for name, value in tensors.items()}


class Native:
    """Of every scheme here: the values of encoders' schemes that other methods do not have."""
    symmetric = True
    group_size = 0
    beside = ""  # the file that says it, in place of config.json


@dataclass(frozen=True)
class Fp8Scheme(Native):
    """quant_method fp8 and fbgemm_fp8: E4M3, and factors of blocks, of rows, or of the matrix."""
    rows: int = 128  # 0: the whole matrix
    columns: int = 128  # 0: whole rows
    scale_dtype: str = "F32"
    scale_name: str = "weight_scale_inv"
    method: str = "fp8"
    static: bool = False

    name = "float-quantized"

    @property
    def inner(self):
        return ByteScheme(True, self.rows, self.columns, activations="tensor" if self.static else "token")

    def names(self):
        return {"weight_scale": self.scale_name, "input_scale": "activation_scale"}

    def specs(self, n, k, scale_dtype):
        return renamed(self.inner.specs(n, k, self.scale_dtype), self.names())

    def encode(self, w, scale_dtype, amax_shared=None):
        return renamed(self.inner.encode(w, self.scale_dtype), self.names())

    def native_config(self, ignore):
        if self.method == "fbgemm_fp8":
            return {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0, "modules_to_not_convert": list(ignore)}
        block = [self.rows, self.columns] if self.rows and self.columns else None
        return {"quant_method": self.method, "fmt": "e4m3", "activation_scheme": "static" if self.static else "dynamic",
                "weight_block_size": block, "modules_to_not_convert": list(ignore)}


@dataclass(frozen=True)
class Fp4Scheme(Native):
    """DeepSeek's FP4: MXFP4 under other names."""
    name = "mxfp4-pack-quantized"
    NAMES = {"weight_packed": "weight", "weight_scale": "scale"}
    KINDS = {"weight": "I8", "scale": "F8_E8M0"}

    def specs(self, n, k, scale_dtype):
        return {name: (self.KINDS[name], shape) for name, (_, shape) in renamed(MxScheme(4).specs(n, k, scale_dtype), self.NAMES).items()}

    def encode(self, w, scale_dtype, amax_shared=None):
        return renamed(MxScheme(4).encode(w, scale_dtype), self.NAMES)


@dataclass(frozen=True)
class DeepSeekScheme(MixedScheme):
    """DeepSeek V4's own files: FP8 in blocks, and experts (in other models, gates) in FP4, of which the configuration says nothing."""
    parts: tuple = ((r".*(ffn\.experts|gate_proj)", Fp4Scheme()), ("", Fp8Scheme(scale_dtype="F8_E8M0", scale_name="scale")))

    name = "float-quantized"

    def native_config(self, ignore):  # pylint: disable=unused-argument
        return {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "scale_fmt": "ue8m0",
                "weight_block_size": [128, 128]}


@dataclass(frozen=True)
class Fp8RanksScheme(Fp8Scheme):
    """FP8 of rows in equal parts, each with blocks of its own."""
    ranks: int = 2

    def specs(self, n, k, scale_dtype):
        specs = super().specs(n // self.ranks, k, scale_dtype)
        return {name: (dtype, (shape[0] * self.ranks, *shape[1:])) for name, (dtype, shape) in specs.items()}

    def encode(self, w, scale_dtype, amax_shared=None):
        parts = [super(Fp8RanksScheme, self).encode(rows, scale_dtype) for rows in np.split(w, self.ranks)]
        return {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}


@dataclass(frozen=True)
class MimoFp4Scheme(Fp4Scheme):
    """MiMo V2's experts: bytes, and exponents as bytes."""
    NAMES = {"weight_packed": "weight"}
    KINDS = {"weight": "U8", "weight_scale": "U8"}


@dataclass(frozen=True)
class MimoScheme(MixedScheme):
    """MiMo V2's own files: fused rows in FP8 rank by rank, experts in MXFP4, outputs of attention dense, the rest in FP8."""
    parts: tuple = ((r".*qkv_proj", Fp8RanksScheme()), (r".*experts", MimoFp4Scheme()), (r".*o_proj", None), ("", Fp8Scheme()))

    name = "float-quantized"

    def native_config(self, ignore):
        return {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128],
                "store_dtype": "mxfp4", "mxfp4_block_size": 32,
                "ignored_layers": [*ignore, *(f"model.layers.{i}.self_attn.o_proj" for i in range(8))]}


@dataclass(frozen=True)
class ModelOptScheme(Native):
    """ModelOpt: bytes with one factor or one per row, NVFP4, whose second scale multiplies, MXFP4 and MXFP8."""
    algo: str = "NVFP4"
    own_file: bool = False  # hf_quant_config.json instead of config.json
    group: int = NVFP4_GROUP  # columns of NVFP4 that share a scale

    @property
    def name(self):
        if "MXFP" in self.algo:
            return "mxfp4-pack-quantized" if "MXFP4" in self.algo else "mxfp8-quantized"
        if "AWQ" in self.algo or "SQ" in self.algo:
            return "modelopt-awq"
        return "nvfp4" if "NVFP4" in self.algo else "int-quantized" if self.algo.startswith("W8") else "float-quantized"

    @property
    def beside(self):
        return "hf_quant_config.json" if self.own_file else ""

    @property
    def inner(self):
        return {"MXFP4": MxScheme(4), "MXFP8": MxScheme(8), "W8A16": ByteScheme(False), "W8A8_SQ_PER_CHANNEL": ByteScheme(False),
                "FP8": ByteScheme(rows=0, activations="tensor"), "FP8_PER_CHANNEL_PER_TOKEN": ByteScheme(),
                "FP8_PB_WO": ByteScheme(rows=128, group_size=128)}[self.algo]

    def specs(self, n, k, scale_dtype):
        if self.name == "modelopt-awq":
            return self.plain_specs(n, k, scale_dtype) | {"pre_quant_scale": ("BF16", (k,))}
        return self.plain_specs(n, k, scale_dtype)

    def encode(self, w, scale_dtype, amax_shared=None):
        if self.name != "modelopt-awq":
            return self.plain(w, scale_dtype)
        factor = np.exp2(np.arange(w.shape[1]) % 5 - 2).astype(np.float32) * np.float32(1.25)
        return self.plain(w / factor, scale_dtype) | {"pre_quant_scale": cio.encode(factor, "BF16")}

    def plain_specs(self, n, k, scale_dtype):
        if self.algo.startswith("W4A16_AWQ"):
            return {"weight": ("U8", (n // 2, k)), "weight_scale": ("F32", (n, k // 64))}
        if "NVFP4" in self.algo:
            inputs = {} if self.algo.startswith("W4A16") else {"input_scale": ("F32", ())}
            return {"weight": ("U8", (n, k // 2)), "weight_scale": ("F8_E4M3", (n, k // self.group)),
                    "weight_scale_2": ("F32", ())} | inputs
        specs = {name: (dtype, self.shape(name, shape)) for name, (dtype, shape) in self.inner.specs(n, k, "F32").items()}
        return renamed(specs, {"weight_packed": "weight"})

    def shape(self, name, shape):
        """ModelOpt's shape of what encoders store."""
        if "MXFP" in self.algo or name == "weight" or self.algo == "FP8_PB_WO" and name == "weight_scale":
            return (shape[0], 1, shape[1], 1) if self.algo == "FP8_PB_WO" and name != "weight" else shape
        return () if shape == (1,) else shape[:1]

    def plain(self, w, scale_dtype):
        if self.algo == "W4A16_AWQ":
            n, k = w.shape
            grouped = w.reshape(n, k // 64, 64)
            scale = np.maximum(np.abs(grouped).max(axis=2), np.float32(2.0**-30)) / np.float32(7)
            codes = np.clip(np.rint(grouped / scale[:, :, None]), -8, 7).astype(np.int8).reshape(n // 2, 2, k) & 15
            return {"weight": (codes[:, 0] | codes[:, 1] << 4).astype(np.uint8), "weight_scale": scale}
        if "NVFP4" not in self.algo:
            parts = {name: np.reshape(x, self.shape(name, x.shape)) for name, x in self.inner.encode(w, "F32").items()}
            return renamed(parts, {"weight_packed": "weight"})
        n, k = w.shape
        factor = np.float32(max(np.abs(w).max(), 2.0**-30)) / np.float32(E4M3_MAX * E2M1_MAX)
        grouped = w.reshape(n, k // self.group, self.group)
        code = nearest_code(np.abs(grouped).max(axis=2) / factor / np.float32(E2M1_MAX), E4M3)
        code[code == 0] = 0x20  # 0.125; any scale will do: all weights of the group round to 0
        scaled = grouped / (E4M3[code] * factor)[:, :, None]
        u = (nearest_code(np.abs(scaled), E2M1) | (np.signbit(scaled) << 3)).reshape(n, k)
        return {"weight": (u[:, 0::2] | (u[:, 1::2] << 4)).astype(np.uint8), "weight_scale": code,
                "weight_scale_2": np.float32(factor), "input_scale": np.float32(0.01)}

    def native_config(self, ignore):
        group = {"group_size": self.group} if "NVFP4" in self.algo else {}
        if self.own_file:
            return {"producer": {"name": "modelopt", "version": "0.33.1"}, "quantization": {
                "quant_algo": self.algo, "kv_cache_quant_algo": "FP8", "exclude_modules": list(ignore), **group}}
        return {"config_groups": {"group_0": {"weights": {"dynamic": False, "num_bits": 4 if group else 8, "type": "float",
                                                          **group}, "targets": ["Linear"]}},
                "ignore": [*ignore, "vision_tower*"], "quant_algo": self.algo, "quant_method": "modelopt",
                "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"}, "producer": {"name": "modelopt"}}


def rounded(w, group, bits, symmetric, scale_dtype):
    """(codes [N, K], stored scales and zero points [groups, N]) of the nearest values."""
    n, k = w.shape
    grouped = w.reshape(n, k // group, group)
    low, high = np.minimum(grouped.min(axis=2), 0), np.maximum(grouped.max(axis=2), 0)
    half, span = 1 << (bits - 1), (1 << bits) - 1
    raw = 2 * np.maximum(-low, high) / span if symmetric else (high - low) / span
    raw[raw == 0] = 2.0**-7  # any scale will do: all weights of the group are 0
    stored = cio.encode(raw, scale_dtype)
    scale = cio.decode(stored, scale_dtype)
    zero = np.full_like(scale, half) if symmetric else np.clip(np.rint(-low / scale), 0, span)
    codes = np.clip(np.rint(grouped / scale[:, :, None]) + zero[:, :, None], 0, span)
    return codes.reshape(n, k).astype(np.uint8), stored.T, zero.astype(np.uint8).T


@dataclass(frozen=True)
class GptqScheme(Native):
    """GPTQ: packed along the inputs; version 1 stores zero points less 1, borrows between fields included."""
    bits: int = 4
    group_size: int = 64  # 0: one group
    symmetric: bool = True
    version: int = 1
    act_order: bool = False
    auto_round: bool = False
    mislabelled: bool = False  # the configuration says the other version

    name = "gptq"

    def specs(self, n, k, scale_dtype):
        groups = k // (self.group_size or k)
        return {"qweight": ("I32", (k * self.bits // 32, n)), "qzeros": ("I32", (groups, n * self.bits // 32)),
                "scales": ("F16", (groups, n)), "g_idx": ("I32", (k,)), "bias": ("F16", (n,))}

    def encode(self, w, scale_dtype, amax_shared=None):
        n, k = w.shape
        group = self.group_size or k
        order = np.argsort(-np.abs(w).sum(axis=0), kind="stable") if self.act_order else np.arange(k)
        in_order, scales, zero = rounded(w[:, order], group, self.bits, self.symmetric, "F16")
        codes, index = np.empty_like(in_order), np.empty(k, np.int32)
        codes[:, order], index[order] = in_order, np.arange(k) // group
        zeros = pack_rows(zero, self.bits)
        if self.version == 1 and self.bits == 3:
            zeros = pack_rows((zero - 1) & 7, 3)
        elif self.version == 1:  # GPTQModel takes 1 from all fields of a word at once
            ones = 0xFFFFFFFF // ((1 << self.bits) - 1)
            zeros = ((zeros.astype(np.int64) - ones) & 0xFFFFFFFF).astype(np.uint32).view(np.int32)
        return {"qweight": np.ascontiguousarray(pack_rows(codes, self.bits).T), "qzeros": zeros, "scales": scales,
                "g_idx": index, "bias": np.zeros(n, np.float16)}

    def native_config(self, ignore):
        common = {"bits": self.bits, "group_size": self.group_size or -1, "sym": self.symmetric}
        if self.auto_round:
            packing = "auto_round:auto_gptq" if self.version == 1 else "auto_round"
            return common | {"quant_method": "auto-round", "packing_format": packing,
                             "extra_config": {module: {"bits": 16} for module in ignore}}
        said = 3 - self.version if self.mislabelled else self.version
        return common | {"quant_method": "gptq", "desc_act": self.act_order, "lm_head": False, "damp_percent": 0.1,
                         "checkpoint_format": "gptq" if said == 1 else "gptq_v2", "pack_dtype": "int32"}


@dataclass(frozen=True)
class AwqScheme(Native):
    """AWQ's GEMM layout: words of eight outputs, 0 2 4 6 1 3 5 7."""
    group_size: int = 64  # 0: one group
    symmetric: bool = False

    name = "awq"

    def specs(self, n, k, scale_dtype):
        groups = -(-k // (self.group_size or k))
        return {"qweight": ("I32", (k, n // 8)), "qzeros": ("I32", (groups, n // 8)), "scales": ("F16", (groups, n))}

    def encode(self, w, scale_dtype, amax_shared=None):
        n, k = w.shape
        codes, scales, zero = rounded(w, self.group_size or k, 4, self.symmetric, "F16")
        packed = [pack_rows(x.reshape(len(x), n // 8, 8)[:, :, [0, 2, 4, 6, 1, 3, 5, 7]].reshape(len(x), n), 4)
                  for x in (codes.T, zero)]
        return {"qweight": packed[0], "qzeros": packed[1], "scales": scales}

    def native_config(self, ignore):
        return {"quant_method": "awq", "bits": 4, "group_size": self.group_size or -1, "version": "gemm",
                "zero_point": not self.symmetric, "modules_to_not_convert": list(ignore)}


@dataclass(frozen=True)
class AutoRoundScheme(Native):
    """AutoRound's floats: as compressed-tensors stores them, or as FP8 with a scale for each output or block."""
    packing: str = "auto_round:llm_compressor"
    inner: object = MxScheme(4)

    @property
    def name(self):
        return self.inner.name.replace("naive", "float")

    @property
    def scale_name(self):
        return "weight_scale_inv" if self.packing == "auto_round:fp8" else "weight_scale"

    def specs(self, n, k, scale_dtype):
        return renamed(self.inner.specs(n, k, "BF16"), {"weight_scale": self.scale_name})

    def encode(self, w, scale_dtype, amax_shared=None):
        return renamed(self.inner.encode(w, "BF16", amax_shared), {"weight_scale": self.scale_name})

    def native_config(self, ignore):
        kind = {MxScheme: "mx_fp", Nvfp4Scheme: "nv_fp"}.get(type(self.inner), "fp")
        group = self.inner.group_size
        if kind == "fp":
            group = [self.inner.rows, group] if group else -1
        return {"quant_method": "auto-round", "packing_format": self.packing, "data_type": kind, "sym": True, "act_bits": 16,
                "bits": getattr(self.inner, "bits", 8 if kind == "fp" else 4), "group_size": group,
                "extra_config": {module: {"bits": 16, "data_type": "float"} for module in ignore}}


@dataclass(frozen=True)
class Exl3Scheme(Native):
    """EXL3. Any words are a trellis, so these are random: a matrix has the size of the weights, and no other likeness."""
    bits: float = 4
    codebook: str = "mul1"  # or mcg, 3inst

    name = "exl3"

    @property
    def head(self):
        return Exl3Scheme(6, self.codebook)

    def native_config(self, ignore):
        return {"quant_method": "exl3", "version": "1.6.5", "bits": float(self.bits), "head_bits": 6,
                "calibration": {"rows": 250, "cols": 2048}, "out_scales": "auto", "codebook": self.codebook}

    def specs(self, n, k, scale_dtype):
        n, k = (-(-size // 128) * 128 for size in (n, k))
        flag = {} if self.codebook == "3inst" else {self.codebook: ("I32", ())}
        return {"trellis": ("I16", (k // 16, n // 16, int(16 * self.bits))), "suh": ("F16", (k,)), "svh": ("F16", (n,))} | flag

    def encode(self, w, scale_dtype, amax_shared=None):
        rng = np.random.default_rng(np.abs(w * 2.0**20).astype(np.uint64).sum())
        specs = self.specs(*w.shape, scale_dtype)
        out = {"trellis": rng.integers(-32768, 32768, specs["trellis"][1], np.int16)}
        for name, size in (("suh", 1.0), ("svh", w.std() / 1.24)):
            signed = rng.uniform(0.5, 1.5, specs[name][1]) * rng.choice([-1, 1], specs[name][1]) * size
            out[name] = signed.astype(np.float16)
        return out | {name: np.int32({"mcg": -0x3453E013, "mul1": -0x7C232ED3}[name]) for name in specs.keys() & {"mcg", "mul1"}}


@dataclass(frozen=True)
class Exl3MixedScheme(Native):
    """Bits and codebook by module, and a quantised head, as in recompiled mixes."""

    name = "exl3"
    head = Exl3Scheme(6)

    def of(self, module):
        parts = {"q_proj": (2, "mcg"), "k_proj": (3, "3inst"), "v_proj": (1.5, "mul1"), "o_proj": (4, "mul1"),
                 "gate_proj": (2.5, "mul1"), "up_proj": (5, "mcg"), "down_proj": (8, "3inst")}
        return Exl3Scheme(*parts[module.rsplit(".", 1)[-1]])

    def native_config(self, ignore):
        return {"quant_method": "exl3", "version": "1.6.5", "bits": 3.71, "head_bits": 6,
                "calibration": {"rows": 250, "cols": 2048}, "out_scales": "auto", "codebook": "mul1"}


FP8_TENSOR = Fp8Scheme(rows=0, columns=0, scale_name="weight_scale")
NATIVE = {
    "fp8native_block": ("bfloat16", Fp8Scheme()),
    "fp8native_block_bf16": ("bfloat16", Fp8Scheme(rows=96, columns=64, scale_dtype="BF16")),
    "fp8native_block_e8m0": ("bfloat16", Fp8Scheme(rows=32, columns=32, scale_dtype="F8_E8M0")),
    "mxfp8native": ("bfloat16", Fp8Scheme(rows=1, columns=32, scale_dtype="U8", method="mxfp8")),
    "fp8native_tensor": ("bfloat16", FP8_TENSOR),
    "fp8native_static": ("bfloat16", replace(FP8_TENSOR, scale_name="weight_scale_inv", scale_dtype="BF16", static=True)),
    "fp8native_fp4": ("bfloat16", DeepSeekScheme()),
    "fp8native_mimo": ("bfloat16", MimoScheme()),
    "fbgemm_fp8": ("bfloat16", replace(FP8_TENSOR, rows=1, method="fbgemm_fp8")),
    "modelopt_fp8": ("bfloat16", ModelOptScheme("FP8", own_file=True)),
    "modelopt_fp8_channel": ("bfloat16", ModelOptScheme("FP8_PER_CHANNEL_PER_TOKEN")),
    "modelopt_fp8_block": ("bfloat16", ModelOptScheme("FP8_PB_WO")),
    "modelopt_nvfp4": ("bfloat16", ModelOptScheme("NVFP4")),
    "modelopt_nvfp4_g32": ("bfloat16", ModelOptScheme("W4A16_NVFP4", group=32)),
    "modelopt_mxfp4": ("bfloat16", ModelOptScheme("MXFP4")),
    "modelopt_int8": ("bfloat16", ModelOptScheme("W8A16", own_file=True)),
    "modelopt_awq": ("bfloat16", ModelOptScheme("W4A16_AWQ")),
    "modelopt_awq_nvfp4": ("bfloat16", ModelOptScheme("NVFP4_AWQ")),
    "modelopt_smooth": ("bfloat16", ModelOptScheme("W8A8_SQ_PER_CHANNEL")),
    "gptq4_g64": ("float16", GptqScheme()),
    "gptq4_act_order": ("bfloat16", GptqScheme(group_size=32, act_order=True, symmetric=False)),
    "gptq3_v2": ("float16", GptqScheme(3, 32, False, 2)),
    "gptq3_channel": ("float16", GptqScheme(3, 0, False)),
    "gptq2_g32": ("float16", GptqScheme(2, 32, False)),
    "gptq8_mislabelled": ("float16", GptqScheme(8, 64, True, 2, mislabelled=True)),
    "auto_round": ("float16", GptqScheme(4, 64, False, 2, auto_round=True)),
    "auto_round_mxfp4": ("bfloat16", AutoRoundScheme()),
    "auto_round_nvfp4": ("bfloat16", AutoRoundScheme(inner=Nvfp4Scheme())),
    "auto_round_fp8": ("bfloat16", AutoRoundScheme("auto_round:fp8", ByteScheme(rows=128, group_size=128))),
    "auto_round_fp8_static": ("bfloat16", AutoRoundScheme("auto_round:fp8_static", ByteScheme())),
    "awq_g64": ("float16", AwqScheme()),
    "awq_channel_bf16": ("bfloat16", AwqScheme(0)),
    "exl3": ("bfloat16", Exl3MixedScheme()),
    "modelopt_nvfp4_fp16": ("float16", ModelOptScheme("W4A16_NVFP4", own_file=True)),
}
