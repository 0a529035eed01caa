"""As native_encoders.py: MLX."""

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
        return {"group_size": self.group_size, "bits": self.bits, **mode, "lm_head": {"group_size": self.group_size, "bits": self.bits, **mode}}


TOOLS = {
    "mlx4": ("bfloat16", MlxScheme(4, 32)),
    "mlx6_fp16": ("float16", MlxScheme(6)),
    "mlx_nvfp4": ("bfloat16", MlxScheme(4, NVFP4_GROUP, "nvfp4")),
}
