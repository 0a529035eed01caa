"""results.json: the one record of a sweep. It is replaced whole, with fsync, so that a kill at any instant leaves either
the old or the new file."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from importlib.resources import files
from pathlib import Path
from typing import IO, Any

from .. import __version__
from ..base.errors import ArgumentError, CtworkerError
from .files import replace
from .work import Sweep

SCHEMA = "ctworker-sweep-results"
VERSION = 2  # 1: without `paired`


def schema() -> dict[str, Any]:
    """The JSON Schema of results.json."""
    text = files(__package__).joinpath("results.schema.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


class Results:
    """A sweep's folder of results. `cells`: finished and failed cells by key, also of work that the file no longer has."""

    def __init__(self, sweep: Sweep) -> None:
        """Reads the folder, if there is one. Raises CtworkerError when it is another sweep's."""
        self.folder = sweep.output
        self.path = self.folder / "results.json"
        self.cells: dict[str, dict[str, Any]] = {}
        self._name = sweep.name
        self._lock: IO[str] | None = None
        self.paired: list[dict[str, Any]] = []  # of the file
        self._n_kept = 0  # finished cells in the file
        old = self._read()
        if old is not None:
            self.cells = {
                cell["key"]: cell
                for cell in [*old["cells"], *old["kept"]]
                if cell["state"] != "pending"
            }
            self.paired = old.get("paired", [])
            self._n_kept = self._n_done()

    def lock(self) -> None:
        """Creates the folder and keeps other sweeps out of it. Raises CtworkerError."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = (self.folder / ".lock").open("w")
        except OSError as error:
            raise self.trouble(self.folder, error) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CtworkerError(
                f"another ctworker-sweep is writing to {self.folder}: wait for it, or choose another folder with output:"
            ) from error
        except OSError:
            pass  # a file system without locks

    def _read(self) -> dict[str, Any] | None:
        try:
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            self._check_empty()
            return None
        except OSError as error:
            raise self.trouble(self.path, error) from error
        try:
            old: dict[str, Any] = json.loads(text)
            found = (old["schema"], old["version"], old["sweep"]["name"])
        except (ValueError, KeyError, TypeError) as error:
            raise ArgumentError(
                f"{self.path} is not the results of a sweep: choose another folder with output:, or remove the file"
            ) from error
        if found[0] != SCHEMA or not isinstance(found[1], int) or found[1] > VERSION:
            raise ArgumentError(
                f"{self.path} has the schema {found[0]} {found[1]}, and this ctworker-sweep {__version__} reads {SCHEMA} up to "
                f"{VERSION}: update ctworker, or choose another folder with output:"
            )
        if found[2] != self._name:
            raise ArgumentError(
                f"{self.folder} holds the results of the sweep {found[2]!r}, not of {self._name!r}: choose another folder with "
                "output:, or give the sweep its old name"
            )
        self._check(old)
        return old

    def _check(self, old: dict[str, Any]) -> None:
        import jsonschema

        try:
            jsonschema.validate(old, schema())
        except jsonschema.ValidationError as error:
            raise ArgumentError(
                f"{self.path} is damaged: {error.json_path}: {' '.join(error.message.split())[:200]}; restore the file, or "
                "choose another folder with output:"
            ) from error

    def _check_empty(self) -> None:
        if self.folder.exists() and not self.folder.is_dir():
            raise ArgumentError(f"{self.folder} is a file: choose another folder with output:")
        if self.folder.is_dir() and any(
            not name.startswith(".") for name in os.listdir(self.folder)
        ):
            raise ArgumentError(
                f"{self.folder} is not empty and has no results.json, so it is not a sweep's folder: choose another one with "
                "output:"
            )

    def write(self, document: dict[str, Any]) -> None:
        """Replaces results.json. Raises CtworkerError; the old file then stays."""
        self.write_text("results.json", json.dumps(document, indent=1, ensure_ascii=False) + "\n")
        self._n_kept = self._n_done()

    def _n_done(self) -> int:
        return sum(cell["state"] == "done" for cell in self.cells.values())

    def write_text(self, name: str, text: str) -> None:
        self.write_bytes(name, text.encode())

    def write_bytes(self, name: str, data: bytes) -> None:
        """Replaces a file of the folder as one step."""
        path = self.folder / name
        try:
            replace(path, data)
        except OSError as error:
            raise self.trouble(path, error) from error

    def trouble(self, path: Path, error: OSError) -> CtworkerError:
        """The sentence about a file that cannot be written or read."""
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return CtworkerError(
                f"no space left to write {path}: free some space and run the same command again; the {self._n_kept} finished cells "
                "are kept"
            )
        return CtworkerError(
            f"{path}: {error.strerror}: choose a folder with output: that can be written"
        )
