"""On lm_eval's command line, prints a CtworkerError as one sentence, without lm-eval's 30 to 90 lines of traceback."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import TracebackType

from .errors import CtworkerError

_MODULES = ("lm_eval.__main__", "lm_eval", "ctworker.run_lm_eval")
#: Libraries whose exceptions say enough in their text: jinja2's, for instance, of a task's own template.
_LIBRARIES = ("jinja2", "tokenizers", "pyo3_runtime", "msgpack")
_SCRIPTS = ("lm_eval", "lm-eval", "lm-evaluation-harness", "ctworker-lm-eval")


def _is_command_line() -> bool:
    """Whether this process is an lm_eval command, not a program that imports lm_eval."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return (spec is not None and spec.name in _MODULES) or Path((sys.argv or [""])[0]).name in _SCRIPTS


def install() -> None:
    """Makes an uncaught CtworkerError, or an exception of one of _LIBRARIES, print one line. A no-op if
    CTWORKER_TRACEBACK=1 is set."""
    if not _is_command_line() or os.environ.get("CTWORKER_TRACEBACK", "0") not in ("", "0"):
        return
    before = sys.excepthook
    if getattr(before, "__module__", None) == __name__:
        return

    def show(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        library = kind.__module__.partition(".")[0]
        if isinstance(error, CtworkerError):
            sys.stderr.write(f"ctworker: {error}\n")
        elif library in _LIBRARIES:
            text = " ".join(str(error).split()) or kind.__name__
            sys.stderr.write(f"{library}: {kind.__name__}: {text} (CTWORKER_TRACEBACK=1 shows where)\n")
        else:
            before(kind, error, trace)

    sys.excepthook = show
