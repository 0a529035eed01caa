"""Reads JSON files of a checkpoint. Every failure is an ArgumentError that names the file, the cause and the remedy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .errors import ArgumentError

#: How the text begins that Git keeps in place of a large file (https://git-lfs.com, "pointer file").
_POINTER = "version https://git-lfs.github.com/spec/"


def read_text(path: Path) -> str:
    """The text of a UTF-8 file. A byte order mark stays in the text, as transformers reads templates."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ArgumentError(
            f"{path}: is not UTF-8 text (byte {error.start}: {error.reason}): was the file saved in another encoding, or "
            "damaged? Copy it again"
        ) from error
    except OSError as error:
        raise ArgumentError(f"{path}: cannot be read: {error.strerror}") from error
    check_pointer(path, text)
    return text


def check_pointer(path: Path, text: str) -> None:
    """Raises an ArgumentError if the text of a file is a Git LFS pointer."""
    if text.startswith(_POINTER):
        raise ArgumentError(
            f"{path}: is a Git LFS pointer, not the file itself; fetch it with: git lfs pull, or download it again"
        )


def read_value(path: Path) -> Any:
    """The JSON value of a file. A byte order mark before the value is skipped."""
    text = read_text(path)
    try:
        return json.loads(text.removeprefix("\ufeff"))
    except (ValueError, RecursionError) as error:
        cause = "the file is empty" if not text.strip() else str(error) or "it is nested too deeply"
        raise ArgumentError(f"{path}: cannot be read as JSON: {cause}") from error


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object of a file; {} if there is no such file."""
    if not path.is_file():
        return {}
    value = read_value(path)
    if not isinstance(value, dict):
        raise ArgumentError(f"{path}: expected a JSON object, found {type(value).__name__}")
    return value
