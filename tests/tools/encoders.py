"""Round-to-nearest quantisation into compressed-tensors' formats, with numpy only.

Every function takes fp32 weights [N, K] and returns the stored tensors of one matrix, keyed by the
last component of their names. Scales are first rounded to the stored dtype, then the weights are
divided by the stored scales, so that each code decodes to the value nearest to the weight.
"""

from dataclasses import dataclass

import numpy as np

import checkpoint_io as cio

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=np.float32)
E2M1_MAX, E4M3_MAX = 6.0, 448.0
NVFP4_GROUP = 16


def _e4m3_values():
    """The 127 finite non-negative values of FP8 E4M3FN, ascending: code = index."""
    code = np.arange(127)
    exp, man = code >> 3, code & 7
    return np.where(exp == 0, man * 2.0**-9, (1 + man / 8) * 2.0 ** (exp - 7.0)).astype(np.float32)


E4M3 = _e4m3_values()


def nearest_code(magnitude, table):
    """Index of the nearest entry of an ascending table; a tie goes to the even index, and a value
    beyond the last entry to the last index."""
    middle = (table[1:].astype(np.float64) + table[:-1]) / 2
    x = magnitude.astype(np.float64)
    lower = np.searchsorted(middle, x, side="left")
    tie = (lower < len(middle)) & (middle[np.minimum(lower, len(middle) - 1)] == x)
    return (lower + (tie & (lower % 2 == 1))).astype(np.uint8)


def pack_rows(codes, bits):
    """codes [N, K] of `bits` bits -> int32 [N, ceil(K * bits / 32)]: each row is one stream of
    bits, least significant first, padded with zeros."""
    n, k = codes.shape
    n_words = -(-k * bits // 32)
    shifts = np.arange(bits, dtype=np.uint8)
    stream = ((codes.astype(np.uint8)[:, :, None] >> shifts) & 1).reshape(n, k * bits)
    stream = np.pad(stream, ((0, 0), (0, n_words * 32 - k * bits)))
    return np.packbits(stream, axis=1, bitorder="little").view("<i4")


@dataclass(frozen=True)
class IntScheme:
    bits: int = 4
    group_size: int = 128  # 0: one scale per row
    symmetric: bool = True
    actorder: str = ""  # "", "weight" (leaves no trace in the tensors) or "group"
    zero_unpacked: bool = False  # int8 zero points, as in files written before 0.9.4

    name = "pack-quantized"

    def specs(self, n, k, scale_dtype):
        """Suffix -> (dtype, shape) of the stored tensors."""
        n_groups = k // self.group_size if self.group_size else 1
        out = {"weight_packed": ("I32", (n, -(-k * self.bits // 32))),
               "weight_scale": (scale_dtype, (n, n_groups)), "weight_shape": ("I64", (2,))}
        if not self.symmetric:
            packed = ("I32", (-(-n * self.bits // 32), n_groups))
            out["weight_zero_point"] = ("I8", (n, n_groups)) if self.zero_unpacked else packed
        if self.actorder == "group":
            out["weight_g_idx"] = ("I32", (k,))
        return out

    def config(self):
        return {"actorder": self.actorder or None, "block_structure": None, "dynamic": False,
                "group_size": self.group_size or None, "num_bits": self.bits,
                "observer": "memoryless_minmax", "observer_kwargs": {}, "scale_dtype": None,
                "strategy": "group" if self.group_size else "channel",
                "symmetric": self.symmetric, "type": "int",
                "zp_dtype": None if self.symmetric else "torch.int8"}

    def encode(self, w, scale_dtype, amax_shared=None):
        n, k = w.shape
        group = self.group_size or k
        if k % group:
            raise ValueError(f"a row of {k} weights does not divide into groups of {group}")
        order = np.arange(k)
        if self.actorder == "group":  # columns of similar magnitude share a scale
            order = np.argsort(-np.abs(w).sum(axis=0), kind="stable")
        grouped = w[:, order].reshape(n, k // group, group)
        scale, stored_scale, zero = self._scales(grouped, scale_dtype)
        half = 1 << (self.bits - 1)
        q = np.rint(grouped / scale[:, :, None]) + zero[:, :, None]
        q = np.clip(q, -half, half - 1).astype(np.int16).reshape(n, k)
        codes = np.empty_like(q)
        codes[:, order] = q + half
        out = {"weight_packed": pack_rows(codes, self.bits), "weight_scale": stored_scale,
               "weight_shape": np.array([n, k], dtype=np.int64)}
        if not self.symmetric:
            out["weight_zero_point"] = (zero.astype(np.int8) if self.zero_unpacked else
                                        pack_rows((zero + half).astype(np.uint8).T, self.bits).T)
        if self.actorder == "group":
            g_idx = np.empty(k, dtype=np.int32)
            g_idx[order] = np.arange(k) // group
            out["weight_g_idx"] = g_idx
        return out

    def _scales(self, grouped, scale_dtype):
        """(scale as a reader sees it, its stored bits, zero point), each [N, groups]."""
        half, span = 1 << (self.bits - 1), (1 << self.bits) - 1
        low, high = np.minimum(grouped.min(axis=2), 0), np.maximum(grouped.max(axis=2), 0)
        raw = np.maximum(-low, high) / (span / 2) if self.symmetric else (high - low) / span
        raw[raw == 0] = 2.0**-7  # any scale will do: all weights of the group are 0
        stored = cio.encode(raw, scale_dtype)
        scale = cio.decode(stored, scale_dtype)
        if self.symmetric:
            return scale, stored, np.zeros_like(scale)
        return scale, stored, np.clip(np.rint(-half - low / scale), -half, half - 1)


@dataclass(frozen=True)
class Nvfp4Scheme:
    name = "nvfp4-pack-quantized"
    group_size: int = NVFP4_GROUP
    symmetric: bool = True

    def specs(self, n, k, scale_dtype):
        return {"weight_packed": ("U8", (n, k // 2)), "weight_scale": ("F8_E4M3", (n, k // 16)),
                "weight_global_scale": ("F32", (1,))}

    def config(self):
        return {"actorder": None, "block_structure": None, "dynamic": False,
                "group_size": NVFP4_GROUP, "num_bits": 4, "observer": "memoryless_minmax",
                "observer_kwargs": {}, "scale_dtype": "torch.float8_e4m3fn",
                "strategy": "tensor_group", "symmetric": True, "type": "float", "zp_dtype": None}

    def encode(self, w, scale_dtype, amax_shared=None):
        """amax_shared: the largest magnitude of all matrices that a fused kernel would merge with
        this matrix (q, k, v; gate, up), so that they get equal global scales."""
        n, k = w.shape
        if k % NVFP4_GROUP:
            raise ValueError(f"a row of {k} weights does not divide into groups of {NVFP4_GROUP}")
        amax = np.abs(w).max() if amax_shared is None else amax_shared
        global_scale = np.float32(E4M3_MAX * E2M1_MAX / max(amax, 2.0**-30))
        grouped = w.reshape(n, k // NVFP4_GROUP, NVFP4_GROUP)
        wanted = np.abs(grouped).max(axis=2) * global_scale / np.float32(E2M1_MAX)
        code = nearest_code(wanted, E4M3)
        code[code == 0] = 0x20  # 0.125; any scale will do: all weights of the group round to 0
        scaled = grouped / (E4M3[code] / global_scale)[:, :, None]
        u = (nearest_code(np.abs(scaled), E2M1) | (np.signbit(scaled) << 3)).reshape(n, k)
        return {"weight_packed": (u[:, 0::2] | (u[:, 1::2] << 4)).astype(np.uint8),
                "weight_scale": code, "weight_global_scale": np.array([global_scale])}


def quantization_config(scheme, ignore, targets=("Linear",)):
    """The configuration as llm-compressor writes it."""
    group = {"format": scheme.name, "input_activations": None, "output_activations": None,
             "targets": list(targets), "weights": scheme.config()}
    return {"config_groups": {"group_0": group}, "format": scheme.name,
            "global_compression_ratio": None, "ignore": list(ignore), "kv_cache_scheme": None,
            "quant_method": "compressed-tensors", "quantization_status": "compressed",
            "sparsity_config": {}, "transform_config": {}, "version": "0.19.0"}
