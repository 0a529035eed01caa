"""A checkpoint as it would be if the worst matrices had been left unquantised: what keeping them in 16 bits brings, measured.

The folder has links to the model's files, copies of the shards that had these matrices, the reference's matrices in a shard of
their own, an index, and a config.json in which these matrices are no targets of the quantisation.
"""

from __future__ import annotations

import json
import re
import shutil
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..base import tables
from ..base.errors import CtworkerError

SHARE = 0.05  # of the quantised matrices: so many of the worst are kept
_BLOCK = 1 << 24
_SHARD, _INDEX = "kept.safetensors", "model.safetensors.index.json"
_METHODS = ("compressed-tensors",)


def worst(matrices: dict[str, Any]) -> list[str]:
    """The names of the worst matrices, at least one. matrices: of a report."""
    alone = [each["name"] for each in matrices["alone"] if each["kl"]["value"] is not None]
    return alone[: max(1, round(SHARE * len(alone)))]


def write(model: Path, reference: Path, names: Sequence[str], folder: Path) -> int:
    """Writes the checkpoint into an empty folder. Returns the bytes of the matrices in 16 bits. Raises CtworkerError if the
    model's format cannot leave single matrices out, or the reference names them otherwise."""
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    quantisation = config.get("quantization_config") or {}
    if quantisation.get("quant_method") not in _METHODS:
        raise CtworkerError(
            f"matrices of quant_method {quantisation.get('quant_method')!r} cannot be kept in 16 bits one by one: expected "
            f"{', '.join(_METHODS)}"
        )
    theirs, mine = _tensors(reference), _tensors(model)
    meant = {name: _modules(name, mine) for name in names}
    unknown = [name for name, found in meant.items() if not found]
    if unknown:
        raise CtworkerError(
            f"{model} has no tensor {unknown[0]}.weight, .weight_packed or the like: a matrix that is stored in a stack cannot be "
            "kept alone"
        )
    modules = [module for found in meant.values() for module in found]
    missing = [module for module in modules if f"{module}.weight" not in theirs]
    if missing:
        raise CtworkerError(f"{reference} has no tensor {missing[0]}.weight")
    quantisation["ignore"] = sorted({*(quantisation.get("ignore") or []), *modules})
    kept = {f"{module}.weight": theirs[f"{module}.weight"] for module in modules}
    kept |= {name: theirs.get(name, place) for name, place in mine.items() if name in {f"{module}.bias" for module in modules}}
    rest = {name: place for name, place in mine.items() if name.rpartition(".")[0] not in set(modules)}
    size = sum(map(_size, kept.values()))
    _check_room(folder, size + sum(_size(place) for place in rest.values()))
    changed = {path for name, (path, _, _) in mine.items() if name not in rest}
    for path in model.iterdir():
        if path not in changed and path.name not in ("config.json", _INDEX):
            (folder / _linked(path)).symlink_to(path.resolve())
    for path in changed:
        _write_shard(folder / _linked(path), {name: place for name, place in rest.items() if place[0] == path})
    _write_shard(folder / _SHARD, kept)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    places = {name: _linked(path) for name, (path, _, _) in rest.items()} | dict.fromkeys(kept, _SHARD)
    (folder / _INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}), encoding="utf-8")
    return size


def _check_room(folder: Path, n_bytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < n_bytes:
        raise CtworkerError(
            f"a checkpoint with the worst matrices in 16 bits needs up to {tables.size(n_bytes)} in {folder.parent}, which has "
            f"{tables.size(free)}: set TMPDIR to a larger folder"
        )


def _linked(path: Path) -> str:
    """A single model.safetensors would take precedence over the index."""
    return f"linked-{path.name}" if path.suffix == ".safetensors" else path.name


def _modules(name: str, tensors: dict[str, Any]) -> list[str]:
    """The modules that a matrix's name stands for: of a mixture, the first expert's name means all experts'."""
    pattern = re.compile(re.escape(name).replace(r"experts\.0\.", r"experts\.\d+\.") + r"\.[^.]+")
    return sorted({tensor.rpartition(".")[0] for tensor in tensors if pattern.fullmatch(tensor)})


#: (file, entry of its header, first byte of its data)
_Place = tuple[Path, dict[str, Any], int]


def _tensors(folder: Path) -> dict[str, _Place]:
    found: dict[str, _Place] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(length))
        found |= {name: (path, entry, 8 + length) for name, entry in header.items() if name != "__metadata__"}
    return found


def _size(place: _Place) -> int:
    first, end = place[1]["data_offsets"]
    return int(end) - int(first)


def _write_shard(path: Path, tensors: dict[str, _Place]) -> None:
    """One tensor after another."""
    header, at = {}, 0
    for name, place in tensors.items():
        header[name] = place[1] | {"data_offsets": [at, at + _size(place)]}
        at += _size(place)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for place in tensors.values():
            with place[0].open("rb") as source:
                source.seek(place[2] + place[1]["data_offsets"][0])
                left = _size(place)
                while left:
                    block = source.read(min(left, _BLOCK))
                    if not block:
                        raise CtworkerError(f"{place[0]} ends within a tensor")
                    out.write(block)
                    left -= len(block)
