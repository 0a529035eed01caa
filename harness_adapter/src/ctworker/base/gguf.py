"""Reads the metadata of a GGUF file: its keys and values, without the tensors.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The worker checks the rest of the file.
"""

from __future__ import annotations

import mmap
import re
import struct
from pathlib import Path
from typing import Any

from .errors import ArgumentError

_MAGIC = b"GGUF"
_STRING, _ARRAY = 8, 9
#: Type of a value -> its letter in `struct`.
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
#: Arrays in arrays; no file has more.
_DEPTH = 4
#: A part of a model in several files; the first has the metadata.
_PART = re.compile(r"(.+)-\d{5}(-of-\d{5}\.gguf)")


class _Broken(Exception):
    pass


class _Short(_Broken):
    """More bytes are needed."""


class _Cursor:
    """A place in the bytes of a file. Every read checks that the bytes are there."""

    def __init__(self, data: mmap.mmap | bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def at(self) -> int:
        return self._at

    def _take(self, n: int, what: str) -> int:
        start = self._at
        if n > len(self._data) - start:
            raise _Short(f"{what} at byte {start} needs {n} bytes, but {len(self._data) - start} are left")
        self._at += n
        return start

    def bytes(self, n: int, what: str) -> bytes:
        start = self._take(n, what)
        return self._data[start : start + n]

    def numbers(self, letter: str, n: int, what: str) -> tuple[Any, ...]:
        start = self._take(n * struct.calcsize("<" + letter), what)
        return struct.unpack_from(f"<{n}{letter}", self._data, start)

    def number(self, letter: str, what: str) -> Any:
        return self.numbers(letter, 1, what)[0]

    def string(self, what: str) -> str:
        raw = self.bytes(self.number("Q", what), what)
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise _Broken(f"{what} is not UTF-8 text ({error.reason})") from None

    def value(self, kind: int, what: str, depth: int = 0) -> Any:
        if kind in _NUMBERS:
            return self.number(_NUMBERS[kind], what)
        if kind == _STRING:
            return self.string(what)
        if kind != _ARRAY or depth == _DEPTH:
            raise _Broken(f"{what} has a value of type {kind}" + ", nested too deeply" * (kind == _ARRAY))
        of, n = self.number("I", what), self.number("Q", what)
        if of in _NUMBERS:
            return list(self.numbers(_NUMBERS[of], n, what))
        if n > len(self._data) - self._at:  # each element has at least one byte
            raise _Short(f"{what} has {n} elements, but {len(self._data) - self._at} bytes are left")
        return [self.value(of, what, depth + 1) for _ in range(n)]


def _metadata(cursor: _Cursor) -> tuple[dict[str, Any], int]:
    """The keys, and the number of tensors."""
    if cursor.bytes(4, "the file's mark") != _MAGIC:
        raise _Broken("the file does not begin with GGUF")
    version = cursor.number("I", "the version")
    if version not in (2, 3):
        big = version in (2 << 24, 3 << 24)
        raise _Broken("the file is big-endian" if big else f"the version is {version}, expected 2 or 3")
    n_tensors = cursor.number("Q", "the number of tensors")
    out: dict[str, Any] = {}
    for i in range(cursor.number("Q", "the number of keys")):
        key = cursor.string(f"key {i}")
        if key in out:
            raise _Broken(f"the key {key} stands twice")
        out[key] = cursor.value(cursor.number("I", key), key)
    return out, n_tensors


def read(path: Path) -> dict[str, Any]:
    """The metadata by key. Raises an ArgumentError that names the file."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _metadata(_Cursor(data))[0]
    except _Broken as broken:
        raise ArgumentError(
            f"{path}: {broken}: is the file complete? Download it again, or convert the model again"
        ) from None
    except (OSError, ValueError) as error:  # ValueError: mmap of an empty file
        raise ArgumentError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error


def header(start: bytes, file: str) -> tuple[int, list[tuple[int, int]]] | None:
    """Where the header ends in a file that begins with these bytes, and the places and lengths of the tensors that are a part of
    the keys (rope_f*: F32); None: more bytes are needed. Raises an ArgumentError that names the file."""
    cursor, places = _Cursor(start), []
    try:
        keys, n_tensors = _metadata(cursor)
        for i in range(n_tensors):
            name = cursor.string(f"tensor {i}")
            shape = cursor.numbers("Q", cursor.number("I", name), name)
            kind, at = cursor.number("I", name), cursor.number("Q", name)
            if name.startswith("rope_f") and kind == 0 and len(shape) == 1:
                places.append((at, 4 * shape[0]))
    except _Short:
        return None
    except _Broken as broken:
        raise ArgumentError(f"{file}: {broken}") from None
    alignment = keys.get("general.alignment", 32)
    data = -(-cursor.at // alignment) * alignment
    return cursor.at, [(data + at, n) for at, n in places]


def model_of(name: str) -> str:
    """What the files of one model share: the name without the part's number."""
    part = _PART.fullmatch(name)
    return part[1] + part[2] if part else name


def is_part(file: Path, name: str) -> bool:
    """Whether a file of that name, beside `file`, has a part of the same model."""
    return model_of(name) == model_of(file.name)


def parts(file: Path) -> list[Path]:
    """The files of the model that a file has, or has a part of."""
    return sorted(path for path in file.parent.glob("*.gguf") if is_part(file, path.name))


def parts_pattern(name: str) -> str:
    """A glob pattern for the files of the model that a file has, or has a part of."""
    part = _PART.fullmatch(name)
    return f"{part[1]}-?????{part[2]}" if part else name


def find(place: Path) -> Path | None:
    """The file whose metadata describes the model at a place: the file itself, or the only GGUF model of a folder. None if
    the place has no GGUF file. Raises ArgumentError if the folder has several models."""
    if place.is_file():
        return place if place.suffix == ".gguf" else None
    files = sorted(place.glob("*.gguf")) if place.is_dir() else []
    if len({model_of(file.name) for file in files}) > 1:
        raise ArgumentError(
            f"{place}: has {len(files)} GGUF files of several models ({', '.join(file.name for file in files[:4])}, ...): name the "
            "file of one of them"
        )
    return files[0] if files else None
