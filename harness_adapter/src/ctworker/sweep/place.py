"""Where a cell runs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from ..base.progress import Progress

_PROGRESS_S = 0.5


class Place:
    """Where a cell runs. url: of the worker; folder: of the model's files; formats: of its weights, as `inspect --json` counts
    them; max_length: longest input, with the options; reference: label, folder and name of the second model, if the cell has
    one (folder: None if unknown); samples: folder for what a task says about each document; kept: what the kinds keep between
    cells."""

    def __init__(self, answer: Callable[[dict[str, Any]], None]) -> None:
        self._answer = answer
        self._next = 0.0
        self.kept: dict[Any, Any] = {}
        self.set({})

    def set(self, request: dict[str, Any]) -> None:
        self.url: str | None = request.get("url")
        self.folder: str | None = request.get("folder")
        self.tokenizer: str | None = request.get("tokenizer")
        self.options: dict[str, Any] = request.get("options", {})
        self.samples: str | None = request.get("samples")
        self.formats: list[dict[str, Any]] = request.get("formats", [])
        self.max_length: int = self.options.get("max_length") or request.get("max_length") or 1 << 31
        self.reference: dict[str, Any] | None = request.get("reference")
        self.worker_key = (self.url, self.folder, json.dumps(self.options, sort_keys=True))

    def progress(self, progress: Progress) -> None:
        """Tells the sweep how far the cell is."""
        now = time.monotonic()
        if now >= self._next or progress.fraction >= 1.0:
            self._next = now + _PROGRESS_S
            self._answer({"progress": progress.fraction, "rate": progress.tokens_per_s})
