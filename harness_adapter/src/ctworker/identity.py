"""Checks whether a local folder contains the checkpoint that a running worker has loaded."""

from __future__ import annotations

import logging
import re
import subprocess
from pathlib import Path
from typing import Any

from .errors import ArgumentError
from .launcher import environment, find_binary

log = logging.getLogger("lm_eval.ctworker")


def is_at(model: dict[str, Any], folder: Path) -> bool:
    """Whether a worker's model was loaded from this folder, judged by its path (which tcp:// hides)."""
    return bool(model.get("path")) and Path(model["path"]).resolve() == folder.resolve()


def has_weights(folder: Path) -> bool:
    return any(folder.glob("*.safetensors"))


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
