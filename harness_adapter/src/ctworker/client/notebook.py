"""Progress of a call from Python: a bar in a notebook, a line of text elsewhere, and the caller's own function."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

from ..base.output import ProgressLine, duration
from ..base.progress import Progress

OnProgress = Callable[[Progress], None]


def in_notebook() -> bool:
    """Whether an IPython kernel runs this program (Jupyter, Colab)."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return hasattr(shell, "kernel")


@contextlib.contextmanager
def shown(what: str, progress: bool | None, on_progress: OnProgress | None) -> Iterator[OnProgress]:
    """The function to call with each Progress. what: what is computed, for the bar. progress: whether a bar is shown; None: in
    a notebook only, and only without on_progress."""
    wanted = in_notebook() and on_progress is None if progress is None else progress
    bar = _bar(what) if wanted else None

    def tell(now: Progress) -> None:
        if bar is not None:
            bar(now)
        if on_progress is not None:
            on_progress(now)

    try:
        yield tell
    finally:
        if bar is not None:
            bar.close()


def _bar(what: str) -> _Widget | ProgressLine:
    """A widget if a notebook and tqdm can show one, else a line of text."""
    if not in_notebook():
        return ProgressLine(what)
    try:
        import ipywidgets  # noqa: F401 - tqdm.notebook imports without it, and then fails
        from tqdm.notebook import tqdm
    except ImportError:
        return ProgressLine(what, live=True)
    return _Widget(tqdm(total=1.0, desc=what, bar_format="{desc}: {percentage:3.0f}%|{bar}| [{elapsed}{postfix}]"))


class _Widget:
    def __init__(self, bar: Any) -> None:
        self._bar = bar

    def __call__(self, now: Progress) -> None:
        parts = [f"{now.tokens_per_s:.0f} tokens/s"] if now.tokens_per_s is not None else []
        parts += [f"{duration(now.seconds_left)} left"] if now.seconds_left is not None else []
        self._bar.set_postfix_str(", ".join(parts), refresh=False)
        self._bar.update(now.fraction - self._bar.n)

    def close(self) -> None:
        self._bar.close()
