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
import traceback
from typing import Any

from ..base.errors import ArgumentError, CtworkerError
from ..options.spelling import for_sweep
from .kinds import by_name
from .kinds.methods import METHOD_KEYS
from .place import Place


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
