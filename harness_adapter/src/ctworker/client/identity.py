"""Checks whether a local folder contains the checkpoint that a running worker has loaded."""

from __future__ import annotations

import hashlib
import logging
import re
import subprocess
from pathlib import Path
from typing import Any

from ..base import gguf
from ..base.errors import ArgumentError
from .launcher import environment, find_binary

log = logging.getLogger("lm_eval.ctworker")

_WEIGHTS = (".safetensors", ".gguf")


def is_at(model: dict[str, Any], folder: Path) -> bool:
    """Whether a worker's model was loaded from this folder, judged by its path (which tcp:// hides). The folder may hold
    other files by now."""
    return bool(model.get("path")) and Path(model["path"]).resolve() == folder.resolve()


def is_untouched(model: dict[str, Any], folder: Path) -> bool:
    """Whether the folder's files are the files that a worker's model was loaded from, judged by their metadata. False also
    if the worker does not vouch for the metadata."""
    stamp = (model.get("weights") or {}).get("files")
    return bool(stamp) and stamp == files_stamp(folder)


def _is_weights(place: Path, name: str) -> bool:
    """Whether a file of a folder, or beside a GGUF file, has weights of the checkpoint at `place`."""
    return gguf.is_part(place, name) if place.is_file() else name.lower().endswith(_WEIGHTS)


def files_stamp(place: Path) -> str:
    """Of the files' metadata, as docs/PROTOCOL.md defines it; "" if the files cannot be read. place: folder, or GGUF file."""
    stamp = 0
    try:
        for path in (place.parent if place.is_file() else place).iterdir():
            if (path.name.endswith(".json") or _is_weights(place, path.name)) and path.is_file():
                s = path.stat()
                values = f"{s.st_dev} {s.st_ino} {s.st_size} {s.st_mtime_ns} {s.st_ctime_ns}"
                digest = hashlib.sha256(path.name.encode(errors="surrogateescape") + b"\0" + values.encode())
                stamp ^= int.from_bytes(digest.digest(), "big")
    except OSError:
        return ""
    return f"{stamp:064x}"


def has_weights(place: Path) -> bool:
    return place.is_file() or any(path.name.lower().endswith(_WEIGHTS) for path in place.glob("*"))


class LocalIdentity:
    """The identity of the checkpoint in a folder, computed on first use by our own worker program, then kept."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: dict[str, tuple[str, str]] = {}

    def get(self, activations: str = "none") -> tuple[str, str]:
        """(identity, "") or ("", why the identity is unknown). activations: with "checkpoint", the identity covers the scales
        of activations, too."""
        if activations not in self._known:
            self._known[activations] = self._compute(activations)
        return self._known[activations]

    def _compute(self, activations: str) -> tuple[str, str]:
        if not has_weights(self.folder):
            return "", f"{self.folder} holds no weights"
        try:
            binary = find_binary()
        except ArgumentError:
            return "", "there is no ctworker program on this machine"
        log.info("computing the identity of %s", self.folder)
        try:
            done = subprocess.run(
                [binary, "inspect", "--identity", "--backend", "cpu", "--activations", activations, str(self.folder)],
                capture_output=True, text=True, errors="replace", check=False, env=environment(),
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except OSError as error:
            return "", f"{binary} cannot be run: {error.strerror}"
        found = re.search(r"^identity\s+([0-9a-f]{64})\s*$", done.stdout, re.MULTILINE)
        if found:
            return found[1], ""
        words = done.stderr.strip().splitlines() or [f"{binary} inspect printed no identity"]
        return "", words[-1]
