"""The process that runs cells: lm-eval and other heavy libraries live here, apart from the sweep itself.

    python -m ctworker.sweep.cell_process FD

Reads one JSON object a line from standard input and writes answers, one a line, to the file descriptor FD:
{"do": "prepare", ...} and {"do": "run", ...} -> {"progress": ..} any number of times, then {"done": ..} or {"error": ..}.
Standard output and error are the log. The process ends when standard input ends, so it never outlives the sweep.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from ..errors import ArgumentError, CtworkerError
from ..scoring import Progress
from ..spelling import for_sweep
from .kinds import by_name
from .kinds.methods import METHOD_KEYS

_PROGRESS_S = 0.5


class Place:
    """Where a cell runs. url: of the worker; folder: of the model's files; formats: of its weights, as `inspect --json` counts
    them; max_length: longest input, with the options; reference: label, folder and name of the second model, if the cell has
    one (folder: None if unknown); samples: folder for what a task says about each question; kept: what the kinds keep between
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


def _requests() -> queue.Queue[dict[str, Any]]:
    """Requests from standard input. At its end, the process ends at once, also in the middle of a cell."""
    found: queue.Queue[dict[str, Any]] = queue.Queue()

    def read() -> None:
        for line in sys.stdin:
            found.put(json.loads(line))
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    return found


def _sentence(error: BaseException) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, CtworkerError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def main() -> None:
    answers = os.fdopen(int(sys.argv[1]), "w", encoding="utf-8", buffering=1)
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )

    def answer(value: dict[str, Any]) -> None:
        answers.write(json.dumps(value) + "\n")

    place, requests = Place(answer), _requests()
    while True:
        request = requests.get()
        kind = by_name(request["kind"])
        place.set(request)
        try:
            act = kind.run if request["do"] == "run" else kind.prepare
            answer({"done": act(request["settings"], place)})
        except Exception as error:  # whatever a task's code raises
            traceback.print_exc()
            answer({"error": for_sweep(_sentence(error), METHOD_KEYS), "mend": isinstance(error, ArgumentError)})


if __name__ == "__main__":
    main()
