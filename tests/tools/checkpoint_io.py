"""Reads and writes safetensors with numpy only, one tensor in memory at a time.

A Batch describes tensors to write: names, dtypes, shapes, and a function that makes their content
when it is written, so that a checkpoint larger than the memory can be rewritten.
numpy has no bf16 dtype; uint16 carries its bits.
"""

import json
import mmap
import os
from dataclasses import dataclass
from typing import Callable

import numpy as np

# safetensors dtype -> the numpy dtype that carries its bits
CARRIER = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "U32": "<u4",
    "I16": "<i2", "I8": "i1", "U8": "u1", "BOOL": "u1", "F8_E4M3": "u1", "F8_E8M0": "u1",
}
# names of config.json's dtype -> safetensors dtype
BY_TORCH_NAME = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


@dataclass
class Batch:
    """Tensors that are made together: `specs` is a list of (name, dtype, shape), `make` returns one
    array per spec, in that order, whose bytes are the content."""

    specs: list
    make: Callable[[], list]


def bf16_from_f32(x: np.ndarray) -> np.ndarray:
    """bf16 bit patterns (uint16) of x, rounded to nearest, ties to even. NaN stays NaN."""
    bits = np.ascontiguousarray(x, dtype="<f4").view("<u4")
    rounded = ((bits + (((bits >> 16) & 1) + 0x7FFF)) >> 16).astype("<u2")
    nan = np.isnan(x)
    if np.any(nan):
        rounded[nan] = 0x7FC0
    return rounded


def f32_from_bf16(bits: np.ndarray) -> np.ndarray:
    return (bits.astype("<u4") << 16).view("<f4")


def encode(x: np.ndarray, dtype: str) -> np.ndarray:
    """fp32 values rounded once to F32, F16 or BF16, in the numpy dtype that carries the bits; up to a power of two for
    F8_E8M0, and for U8, which then has its exponent."""
    if dtype in ("F8_E8M0", "U8"):
        return np.clip(np.ceil(np.log2(x)) + 127, 0, 254).astype(np.uint8)
    if dtype == "BF16":
        return bf16_from_f32(x)
    return np.ascontiguousarray(x, dtype=CARRIER[dtype])


def decode(carrier: np.ndarray, dtype: str) -> np.ndarray:
    """The values of F32, F16, BF16 or exponents as fp32 (exact)."""
    if dtype in ("F8_E8M0", "U8"):
        return np.ldexp(np.float32(1), carrier.astype(np.int32) - 127)
    if dtype == "BF16":
        return f32_from_bf16(carrier)
    if dtype not in ("F16", "F32"):
        raise ValueError(f"dtype {dtype}: expected F32, F16, BF16, F8_E8M0 or U8")
    return carrier.astype(np.float32)


def item_bytes(dtype: str) -> int:
    return np.dtype(CARRIER[dtype]).itemsize


def write_safetensors(path, batches: list) -> int:
    """Writes one file, one batch at a time; returns the bytes of all tensors. Tensors with the
    largest items come first in the file, so that every tensor is aligned for its dtype."""
    header, at = {"__metadata__": {"format": "pt"}}, 0
    specs = [spec for batch in batches for spec in batch.specs]
    for name, dtype, shape in sorted(specs, key=lambda s: (-item_bytes(s[1]), s[0])):
        if name in header:
            raise ValueError(f"{path}: two tensors are called {name}")
        size = int(np.prod(shape, dtype=np.int64)) * item_bytes(dtype)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    part = f"{path}.part"
    with open(part, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for batch in batches:
            for (name, dtype, _), data in zip(batch.specs, batch.make(), strict=True):
                first, last = header[name]["data_offsets"]
                data = np.ascontiguousarray(data, dtype=CARRIER[dtype])
                if data.nbytes != last - first:
                    raise ValueError(f"{path}: {name} has {data.nbytes} bytes, expected {last - first}")
                f.seek(8 + len(text) + first)
                f.write(data.tobytes())
    os.replace(part, path)
    return at


def write_sharded(folder, batches: list, n_shards: int) -> int:
    """Writes one file, or `n_shards` files with the index that transformers reads."""
    if n_shards == 1:
        return write_safetensors(os.path.join(folder, "model.safetensors"), batches)
    weight_map, total = {}, 0
    for i in range(n_shards):
        name = f"model-{i + 1:05d}-of-{n_shards:05d}.safetensors"
        total += write_safetensors(os.path.join(folder, name), batches[i::n_shards])
        weight_map.update({s[0]: name for b in batches[i::n_shards] for s in b.specs})
    write_json(os.path.join(folder, "model.safetensors.index.json"),
               {"metadata": {"total_size": total}, "weight_map": weight_map})
    return total


class Checkpoint:
    """The safetensors of a folder, a single file or shards with an index, mapped read-only."""

    def __init__(self, folder):
        self.folder = str(folder)
        self.records = {}  # name -> (dtype, shape, map, first byte, last byte + 1)
        index = os.path.join(self.folder, "model.safetensors.index.json")
        if os.path.exists(index):
            with open(index, encoding="utf-8") as f:
                names = sorted(set(json.load(f)["weight_map"].values()))
        else:
            names = ["model.safetensors"]
        for name in names:
            self._open(os.path.join(self.folder, name))

    def _open(self, path):
        with open(path, "rb") as f:
            mapped = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
        n = int.from_bytes(mapped[:8], "little")
        for name, rec in json.loads(mapped[8:8 + n]).items():
            if name != "__metadata__":
                first, last = rec["data_offsets"]
                self.records[name] = (rec["dtype"], tuple(rec["shape"]), mapped, 8 + n + first,
                                      8 + n + last)

    def names(self):
        return sorted(self.records)

    def dtype(self, name):
        return self.records[name][0]

    def shape(self, name):
        return self.records[name][1]

    def carrier(self, name) -> np.ndarray:
        """The stored bits of a tensor, in the numpy dtype that carries them."""
        dtype, shape, mapped, first, last = self.records[name]
        return np.frombuffer(mapped, CARRIER[dtype], offset=first,
                             count=(last - first) // item_bytes(dtype)).reshape(shape)

    def f32(self, name) -> np.ndarray:
        return decode(self.carrier(name), self.dtype(name))


def write_json(path, value):
    with open(path, "w", encoding="utf-8") as f:
        json.dump(value, f, indent=2, ensure_ascii=False)
        f.write("\n")
