"""What the kinds share: the environment of a cell, and files that its numbers depend on."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ..digest import digest

if TYPE_CHECKING:
    from ..nodes import Node


def environment_of(fields: dict[str, Node], inherited: Iterable[str] = ()) -> dict[str, str]:
    """The environment variables that the numbers depend on: those under env:, and `inherited` ones that are set now."""
    found = {name: os.path.abspath(os.environ[name]) for name in inherited if os.environ.get(name)}
    if "env" in fields:
        if not isinstance(fields["env"].value, dict):
            raise fields["env"].wrong("a mapping of environment variables")
        found |= {name: node.text() for name, node in fields["env"].value.items()}
    return found


@contextlib.contextmanager
def environment(values: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def stamp_of(base: Path, paths: Iterable[str]) -> str:
    """Changes when one of the files is written; a folder stands for the task files in it."""
    found = []
    for path in (base / text for text in paths if text):
        if path.is_dir():
            files = [
                file for pattern in ("*.yaml", "*.yml", "*.py") for file in path.rglob(pattern)
            ]
        else:
            files = [path] if path.is_file() else []
        found += [
            (file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in sorted(files)
        ]
    return digest(found)
