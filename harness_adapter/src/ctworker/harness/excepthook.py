"""On lm_eval's command line, prints a CtworkerError as one sentence, without lm-eval's 30 to 90 lines of traceback."""

from __future__ import annotations

import os
import sys
from types import TracebackType

from ..base import interrupt
from ..base.command_line import is_lm_eval
from ..base.errors import CtworkerError

#: Libraries whose exceptions say enough in their text: jinja2's, for instance, of a task's own template.
_LIBRARIES = ("jinja2", "tokenizers", "pyo3_runtime", "msgpack")


def install() -> None:
    """Makes an uncaught CtworkerError, or an exception of one of _LIBRARIES, print one line. A no-op if
    CTWORKER_TRACEBACK=1 is set. Ctrl-C ends in one line as well, also if only lm_eval's --config names the model."""
    if is_lm_eval():
        interrupt.install("ctworker")
    if not is_lm_eval() or os.environ.get("CTWORKER_TRACEBACK", "0") not in ("", "0"):
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
