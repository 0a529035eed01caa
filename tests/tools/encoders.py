"""Round-to-nearest quantisation into compressed-tensors' formats, with numpy only.

Every function takes fp32 weights [N, K] and returns the stored tensors of one matrix, keyed by the
last component of their names. Scales are first rounded to the stored dtype, then the weights are
divided by the stored scales, so that each code decodes to the value nearest to the weight.
"""

import re
from dataclasses import dataclass

import numpy as np

import checkpoint_io as cio

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=np.float32)
E2M3 = np.concatenate([np.arange(8) / 8, *((1 + np.arange(8) / 8) * 2.0**e for e in range(3))]).astype(np.float32)
E2M1_MAX, E4M3_MAX = 6.0, 448.0
NVFP4_GROUP, MX_GROUP = 16, 32


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
    rows: int = 1  # above 1: blocks of so many rows and group_size columns

    name = "pack-quantized"

    def specs(self, n, k, scale_dtype):
        """Suffix -> (dtype, shape) of the stored tensors."""
        down, right = -(-n // self.rows), -(-k // (self.group_size or k))
        out = {"weight_packed": ("I32", (n, -(-k * self.bits // 32))),
               "weight_scale": (scale_dtype, (down, right)), "weight_shape": ("I64", (2,))}
        if not self.symmetric:
            packed = ("I32", (-(-n * self.bits // 32), right))
            out["weight_zero_point"] = ("I8", (down, right)) if self._has_byte_zeros() else packed
        if self.actorder == "group":
            out["weight_g_idx"] = ("I32", (k,))
        return out

    def _has_byte_zeros(self):
        return self.zero_unpacked or self.rows > 1

    def config(self):
        block = [self.rows, self.group_size] if self.rows > 1 else None
        return {"actorder": self.actorder or None, "block_structure": block, "dynamic": False,
                "group_size": None if block else self.group_size or None, "num_bits": self.bits,
                "observer": "memoryless_minmax", "observer_kwargs": {}, "scale_dtype": None,
                "strategy": "block" if block else "group" if self.group_size else "channel",
                "symmetric": self.symmetric, "type": "int",
                "zp_dtype": None if self.symmetric else "torch.int8"}

    def encode(self, w, scale_dtype, amax_shared=None):
        n, k = w.shape
        rows, group = self.rows, self.group_size or k
        if k % group and rows == 1:
            raise ValueError(f"a row of {k} weights does not divide into groups of {group}")
        order = np.arange(k)
        if self.actorder == "group":  # columns of similar magnitude share a scale
            order = np.argsort(-np.abs(w).sum(axis=0), kind="stable")
        down, right = -(-n // rows), -(-k // group)
        padded = np.pad(w[:, order], ((0, down * rows - n), (0, right * group - k)))
        blocks = padded.reshape(down, rows, right, group)
        scale, stored_scale, zero = self._scales(blocks, scale_dtype)
        half = 1 << (self.bits - 1)
        q = np.rint(blocks / scale[:, None, :, None]) + zero[:, None, :, None]
        q = np.clip(q, -half, half - 1).astype(np.int16).reshape(padded.shape)[:n, :k]
        codes = np.empty_like(q)
        codes[:, order] = q + half
        out = {"weight_packed": pack_rows(codes, self.bits), "weight_scale": stored_scale,
               "weight_shape": np.array([n, k], dtype=np.int64)}
        if not self.symmetric:
            out["weight_zero_point"] = (zero.astype(np.int8) if self._has_byte_zeros() else
                                        pack_rows((zero + half).astype(np.uint8).T, self.bits).T)
        if self.actorder == "group":
            g_idx = np.empty(k, dtype=np.int32)
            g_idx[order] = np.arange(k) // group
            out["weight_g_idx"] = g_idx
        return out

    def _scales(self, blocks, scale_dtype):
        """(scale as a reader sees it, its stored bits, zero point) of each block."""
        half, span = 1 << (self.bits - 1), (1 << self.bits) - 1
        low, high = np.minimum(blocks.min(axis=(1, 3)), 0), np.maximum(blocks.max(axis=(1, 3)), 0)
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


def _config(bits, kind, strategy, *, group_size=None, block=None, symmetric=True, scale_dtype=None, zp_dtype=None,
            dynamic=False, observer="memoryless_minmax"):
    return {"actorder": None, "block_structure": block, "dynamic": dynamic, "group_size": group_size, "num_bits": bits,
            "observer": observer, "observer_kwargs": {}, "scale_dtype": scale_dtype, "strategy": strategy,
            "symmetric": symmetric, "type": kind, "zp_dtype": zp_dtype}


@dataclass(frozen=True)
class ByteScheme:
    """One byte per value: E4M3 or int8. A scale serves `rows` rows and `group_size` columns (0: all of them)."""
    is_float: bool = True
    rows: int = 1
    group_size: int = 0
    symmetric: bool = True
    activations: str = ""  # "", "token" (dynamic) or "tensor" (static, with an input_scale)

    @property
    def name(self):
        return ("float-quantized" if self.is_float else "int-quantized") if self.activations else "naive-quantized"

    @property
    def strategy(self):
        return ("tensor" if not self.rows else "block" if self.rows > 1 else
                "group" if self.group_size else "channel")

    def scales(self, n, k):
        """The shape of the scales."""
        rows, columns = self.rows or n, self.group_size or k
        return (1,) if not self.rows else (-(-n // rows), -(-k // columns))

    def specs(self, n, k, scale_dtype):
        if self.strategy == "group" and k % self.group_size:
            raise ValueError(f"a row of {k} weights does not divide into groups of {self.group_size}")
        out = {"weight": ("F8_E4M3" if self.is_float else "I8", (n, k)), "weight_scale": (scale_dtype, self.scales(n, k))}
        if not self.symmetric:
            out["weight_zero_point"] = ("I8", self.scales(n, k))
        if self.activations == "tensor":
            out["input_scale"] = (scale_dtype, (1,))
        return out

    def config(self):
        return _config(8, "float" if self.is_float else "int", self.strategy, symmetric=self.symmetric,
                       group_size=self.group_size if self.strategy == "group" else None,
                       block=[self.rows, self.group_size] if self.strategy == "block" else None,
                       zp_dtype=None if self.symmetric else "torch.int8")

    def input_config(self):
        kind = "float" if self.is_float else "int"
        if self.activations == "tensor":
            return _config(8, kind, "tensor", observer="static_minmax")
        return _config(8, kind, "token", dynamic=True, observer=None) if self.activations else None

    def encode(self, w, scale_dtype, amax_shared=None):
        n, k = w.shape
        rows, columns = self.rows or n, self.group_size or k
        down, right = -(-n // rows), -(-k // columns)
        padded = np.pad(w, ((0, down * rows - n), (0, right * columns - k)))
        blocks = padded.reshape(down, rows, right, columns)
        low, high = np.minimum(blocks.min(axis=(1, 3)), 0), np.maximum(blocks.max(axis=(1, 3)), 0)
        largest = np.maximum(-low, high)
        raw = largest / np.float32(E4M3_MAX if self.is_float else 127.5) if self.symmetric else (high - low) / np.float32(255)
        raw[raw == 0] = 2.0**-7  # any scale will do: all weights of the block are 0
        stored = cio.encode(raw, scale_dtype)
        scale = cio.decode(stored, scale_dtype)[:, None, :, None]
        zero = np.zeros_like(raw) if self.symmetric else np.clip(np.rint(-128 - low / scale[:, 0, :, 0]), -128, 127)
        scaled = blocks / scale
        if self.is_float:
            codes = nearest_code(np.abs(scaled), E4M3) | (np.signbit(scaled).astype(np.uint8) << 7)
        else:
            codes = np.clip(np.rint(scaled) + zero[:, None, :, None], -128, 127).astype(np.int8)
        out = {"weight": codes.reshape(padded.shape)[:n, :k], "weight_scale": stored.reshape(self.scales(n, k))}
        if not self.symmetric:
            out["weight_zero_point"] = zero.astype(np.int8).reshape(self.scales(n, k))
        if self.activations == "tensor":
            out["input_scale"] = cio.encode(np.array([0.02], np.float32), scale_dtype)
        return out


@dataclass(frozen=True)
class MxScheme:
    """mxfp4-pack-quantized, mxfp6-pack-quantized and mxfp8-quantized: a power of two per 32 columns."""
    bits: int = 4
    group_size: int = MX_GROUP
    symmetric: bool = True

    @property
    def name(self):
        return "mxfp8-quantized" if self.bits == 8 else f"mxfp{self.bits}-pack-quantized"

    def specs(self, n, k, scale_dtype):
        values = {"weight": ("F8_E4M3", (n, k))} if self.bits == 8 else {"weight_packed": ("U8", (n, k * self.bits // 8))}
        return values | {"weight_scale": ("U8", (n, k // MX_GROUP))}

    def config(self):
        return _config(self.bits, "float", "group", group_size=MX_GROUP, scale_dtype="torch.uint8")

    def encode(self, w, scale_dtype, amax_shared=None):
        n, k = w.shape
        if k % MX_GROUP:
            raise ValueError(f"a row of {k} weights does not divide into groups of {MX_GROUP}")
        grouped = w.reshape(n, k // MX_GROUP, MX_GROUP)
        table, largest = {4: (E2M1, 2), 6: (E2M3, 2), 8: (E4M3, 8)}[self.bits]  # 2^largest is its largest power of two
        exponent = np.frexp(np.maximum(np.abs(grouped).max(axis=2), 2.0**-100))[1] - 1 - largest
        scaled = grouped / np.ldexp(np.float32(1), exponent)[:, :, None]
        sign = np.signbit(scaled).astype(np.uint8)
        u = (nearest_code(np.abs(scaled), table) | (sign << (self.bits - 1))).reshape(n, k)
        values = {"weight": u} if self.bits == 8 else {"weight_packed": pack_rows(u, self.bits).view(np.uint8)}
        return values | {"weight_scale": (exponent + 127).astype(np.uint8)}


@dataclass(frozen=True)
class MixedScheme:
    """mixed-precision: (expression, scheme or None for dense) of modules, the first that matches."""
    parts: tuple

    name = "mixed-precision"

    def of(self, module):
        return next(scheme for pattern, scheme in self.parts if re.match(pattern, module))


# What programs call schemes without options: as llm-compressor's presets make them.
_FP8 = ByteScheme(activations="token")
NAMED = {"nvfp4": Nvfp4Scheme(), "fp8": _FP8, "fp8_tensor": ByteScheme(rows=0, activations="token"),
         "fp8_block": ByteScheme(rows=128, group_size=128, activations="token"),
         "w4a16_block": IntScheme(4, 128, rows=128),
         "int8": ByteScheme(False, activations="token"), "mxfp4": MxScheme(4), "mxfp6": MxScheme(6),
         "mxfp8": MxScheme(8),
         "mixed": MixedScheme(((r".*self_attn\.", _FP8), (r".*\.mlp\.", Nvfp4Scheme())))}


def part_of(scheme, module):
    """The scheme of a module; None: dense."""
    return scheme.of(module) if hasattr(scheme, "of") else scheme


def quantization_config(scheme, ignore, targets=("Linear",)):
    """The configuration as llm-compressor, or the method's own tool, writes it."""
    if hasattr(scheme, "native_config"):
        return scheme.native_config(ignore)

    def group(scheme, targets):
        inputs = scheme.input_config() if hasattr(scheme, "input_config") else None
        return {"format": scheme.name, "input_activations": inputs, "output_activations": None,
                "targets": list(targets), "weights": scheme.config()}
    groups, ignore = [(scheme, targets)], list(ignore)
    if isinstance(scheme, MixedScheme):
        groups = [(part, ["re:" + pattern]) for pattern, part in scheme.parts if part]
        ignore += ["re:" + pattern for pattern, part in scheme.parts if not part]
    return {"config_groups": {f"group_{i}": group(*g) for i, g in enumerate(groups)}, "format": scheme.name,
            "global_compression_ratio": None, "ignore": ignore, "kv_cache_scheme": None,
            "quant_method": "compressed-tensors", "quantization_status": "compressed",
            "sparsity_config": {}, "transform_config": {}, "version": "0.19.0"}
