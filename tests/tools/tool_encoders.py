"""As native_encoders.py: MLX and bitsandbytes."""

import json
from dataclasses import dataclass

import numpy as np

import checkpoint_io as cio
from encoders import E2M1, E2M1_MAX, E4M3, NVFP4_GROUP, nearest_code, pack_rows
from native_encoders import Native

MLX_KINDS = ("linear", "stack", "gates", "router", "embed", "head")  # of recipe.tensors()


@dataclass(frozen=True)
class MlxScheme(Native):
    """MLX: affine codes with a scale and a bias a group, or NVFP4 without a global scale. Embeddings, heads and routers, too."""
    bits: int = 4
    group_size: int = 64
    mode: str = "affine"

    kinds = MLX_KINDS
    key = "quantization"

    @property
    def name(self):
        return "mlx-affine" if self.mode == "affine" else "nvfp4-pack-quantized"

    def specs(self, n, k, scale_dtype):
        words, groups = ("U32", (n, k * self.bits // 32)), k // self.group_size
        if self.mode == "affine":
            return {"weight": words, "scales": (scale_dtype, (n, groups)), "biases": (scale_dtype, (n, groups))}
        return {"weight": words, "scales": ("U8", (n, groups))}

    def encode(self, w, scale_dtype, amax_shared=None):
        n, k = w.shape
        grouped = w.reshape(n, k // self.group_size, self.group_size)
        if self.mode != "affine":
            code = nearest_code(np.abs(grouped).max(axis=2) / np.float32(E2M1_MAX), E4M3)
            code[code == 0] = 0x20  # any scale will do: all weights of the group round to 0
            scaled = grouped / E4M3[code][:, :, None]
            u = (nearest_code(np.abs(scaled), E2M1) | (np.signbit(scaled) << 3)).reshape(n, k)
            return {"weight": pack_rows(u, 4).view("<u4"), "scales": code}
        low, high = grouped.min(axis=2), grouped.max(axis=2)
        scales, biases = cio.encode((high - low) / ((1 << self.bits) - 1) + np.float32(2.0**-12), scale_dtype), cio.encode(low, scale_dtype)
        scale, bias = (cio.decode(x, scale_dtype)[:, :, None] for x in (scales, biases))
        codes = np.clip(np.rint((grouped - bias) / scale), 0, (1 << self.bits) - 1).reshape(n, k)
        return {"weight": pack_rows(codes, self.bits).view("<u4"), "scales": scales, "biases": biases}

    def native_config(self, ignore):
        mode = {} if self.mode == "affine" else {"mode": self.mode}
        own = {"group_size": self.group_size, "bits": self.bits, **mode}
        return own | {"lm_head": own}


NF4 = np.array([-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
                -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
                0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0], np.float32)
FP4 = np.array([0, 0.0625, 8, 12, 4, 6, 2, 3, 0, -0.0625, -8, -12, -4, -6, -2, -3], np.float32) / np.float32(12)


@dataclass(frozen=True)
class Bnb4Scheme(Native):
    """bitsandbytes' 4 bits: blocks of the whole matrix's stream, with scales as numbers or nested."""
    kind: str = "nf4"
    nested: bool = True
    block: int = 64

    name = "bnb-4bit"
    offset = 0.25

    def state(self, n, k, dtype):
        names = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
        nested = {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": self.offset} if self.nested else {}
        return json.dumps({"quant_type": self.kind, "blocksize": self.block, "dtype": names[dtype], "shape": [n, k]} | nested).encode()

    def specs(self, n, k, scale_dtype):
        blocks = -(-n * k // self.block)
        nested = {"weight.nested_absmax": ("F32", (-(-blocks // 256),)), "weight.nested_quant_map": ("F32", (256,))}
        return {"weight": ("U8", (n * k // 2, 1)), "weight.absmax": ("U8" if self.nested else "F32", (blocks,)),
                "weight.quant_map": ("F32", (16,)), **(nested if self.nested else {}),
                f"weight.quant_state.bitsandbytes__{self.kind}": ("U8", (len(self.state(n, k, scale_dtype)),))}

    def encode(self, w, scale_dtype, amax_shared=None):
        n, k = w.shape
        table = NF4 if self.kind == "nf4" else FP4
        flat = np.pad(w.reshape(-1), (0, -n * k % self.block)).reshape(-1, self.block)
        scale = np.abs(flat).max(axis=1).astype(np.float32)
        parts = {"weight.absmax": scale}
        if self.nested:
            book = np.linspace(-1, 1, 256, dtype=np.float32)
            outer = np.array([np.abs(scale[i:i + 256] - np.float32(self.offset)).max() for i in range(0, len(scale), 256)], np.float32)
            share = (scale - np.float32(self.offset)) / np.repeat(outer, 256)[:len(scale)]
            code = np.abs(share[:, None] - book).argmin(axis=1).astype(np.uint8)
            scale = book[code] * np.repeat(outer, 256)[:len(scale)] + np.float32(self.offset)
            parts = {"weight.absmax": code, "weight.nested_absmax": outer, "weight.nested_quant_map": book}
        codes = np.abs((flat / scale[:, None])[:, :, None] - table).argmin(axis=2).astype(np.uint8).reshape(-1)[:n * k]
        return parts | {"weight": (codes[0::2] << 4 | codes[1::2]).reshape(-1, 1), "weight.quant_map": table,
                        f"weight.quant_state.bitsandbytes__{self.kind}": np.frombuffer(self.state(n, k, scale_dtype), np.uint8)}

    def native_config(self, ignore):
        return {"quant_method": "bitsandbytes", "_load_in_4bit": True, "_load_in_8bit": False, "load_in_4bit": True, "load_in_8bit": False,
                "bnb_4bit_quant_type": self.kind, "bnb_4bit_use_double_quant": self.nested, "llm_int8_skip_modules": list(ignore)}


@dataclass(frozen=True)
class BnbInt8Scheme(Native):
    """LLM.int8()'s rows."""
    name = "bnb-int8"

    def specs(self, n, k, scale_dtype):
        return {"weight": ("I8", (n, k)), "SCB": ("F32", (n,)), "weight_format": ("U8", ())}

    def encode(self, w, scale_dtype, amax_shared=None):
        scale = np.abs(w).max(axis=1).astype(np.float32)
        return {"weight": np.rint(w / scale[:, None] * 127).astype(np.int8), "SCB": scale, "weight_format": np.uint8(0)}

    def native_config(self, ignore):
        return {"quant_method": "bitsandbytes", "load_in_8bit": True, "llm_int8_threshold": 6.0, "llm_int8_skip_modules": list(ignore)}


@dataclass(frozen=True)
class GemmaIntScheme(Native):
    """Gemma's own integers: 2, 4 or 8 bits by module, embeddings and the head too, and static scales of inputs and outputs."""
    bits: int = 4
    embeds: bool = False  # a module that is an embedding

    name = "gemma-int"
    kinds = ("linear", "embed", "scaled embed", "head")

    def of(self, module):
        bits = {"q_proj": 2, "o_proj": 8, "down_proj": 2, "embed_tokens": 2, "embed_tokens_per_layer": 4, "lm_head": 2,
                "per_layer_input_gate": 8}
        name = module.rsplit(".", 1)[-1]
        if name == "per_layer_model_projection":
            return None
        return GemmaIntScheme(bits.get(name, 4), name.startswith("embed_tokens"))

    def names(self):
        return ("embedding_quantized", "embedding_scale") if self.embeds else ("weight", "weight_scale")

    def specs(self, n, k, scale_dtype):
        values, scale = self.names()
        stored = ("I8", (n, k)) if self.bits == 8 else ("U8", (n, -(-k * self.bits // 8)))
        ranges = {} if self.embeds else {"input_activation_scale": ("F32", ()), "output_activation_scale": ("F32", ())}
        return {values: stored, scale: ("F32", (n, 1))} | ranges

    def encode(self, w, scale_dtype, amax_shared=None):
        values, name = self.names()
        half = 1 << (self.bits - 1)
        scale = np.maximum(np.abs(w).max(axis=1, keepdims=True), np.float32(2.0**-30)) / np.float32(max(half - 1, 1.5))
        codes = np.clip(np.rint(w / scale), -half, half - 1).astype(np.int8)
        if self.bits < 8:
            per = 8 // self.bits
            raw = np.pad(codes + half, ((0, 0), (0, -w.shape[1] % per))).astype(np.uint8).reshape(len(w), -1, per)
            codes = (raw << (np.arange(per) * self.bits)).sum(axis=2).astype(np.uint8)
        # an 8-bit module's input is not rounded, a 2-bit module's output is not
        ranges = {} if self.embeds else {"input_activation_scale": np.float32(0 if self.bits == 8 else 0.03),
                                         "output_activation_scale": np.float32(0 if self.bits == 2 else 0.04)}
        return {values: codes, name: scale} | ranges

    def native_config(self, ignore):
        return {"quant_method": "gemma", "num_bits": 4, "quantize_embeddings": True,
                "modules_to_not_convert": ["per_layer_model_projection"],
                "module_quant_configs": {r"(q_proj|down_proj)$": {"num_bits": 2}, "o_proj$": {"num_bits": 8},
                                         "^lm_head$": {"num_bits": 2}, "embed_tokens$": {"num_bits": 2},
                                         "per_layer_input_gate$": {"num_bits": 8}}}


TOOLS = {
    "gemma_int": ("bfloat16", GemmaIntScheme()),
    "bnb_nf4": ("bfloat16", Bnb4Scheme()),
    "bnb_fp4_fp16": ("float16", Bnb4Scheme("fp4", False, 128)),
    "bnb_int8": ("bfloat16", BnbInt8Scheme()),
    "mlx4": ("bfloat16", MlxScheme(4, 32)),
    "mlx6_fp16": ("float16", MlxScheme(6)),
    "mlx_nvfp4": ("bfloat16", MlxScheme(4, NVFP4_GROUP, "nvfp4")),
}
