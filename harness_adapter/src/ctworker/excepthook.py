"""On lm_eval's command line, prints a CtworkerError as one sentence, without lm-eval's 30 to 90 lines of traceback."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import TracebackType

from .errors import CtworkerError

_MODULES = ("lm_eval.__main__", "lm_eval", "ctworker.run_lm_eval")
_SCRIPTS = ("lm_eval", "lm-eval", "lm-evaluation-harness", "ctworker-lm-eval")


def _is_command_line() -> bool:
    """Whether this process is an lm_eval command, not a program that imports lm_eval."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return (spec is not None and spec.name in _MODULES) or Path((sys.argv or [""])[0]).name in _SCRIPTS


def install() -> None:
    """Makes an uncaught CtworkerError print one line. A no-op if CTWORKER_TRACEBACK=1 is set."""
    if not _is_command_line() or os.environ.get("CTWORKER_TRACEBACK", "0") not in ("", "0"):
        return
    before = sys.excepthook
    if getattr(before, "__module__", None) == __name__:
        return

    def show(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        if isinstance(error, CtworkerError):
            sys.stderr.write(f"ctworker: {error}\n")
        else:
            before(kind, error, trace)

    sys.excepthook = show
