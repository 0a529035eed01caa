"""The progress bar of a scoring call: tokens processed, and the rate and time left as the worker reports them."""

from __future__ import annotations

import sys

from tqdm import tqdm

from ..base.progress import Progress

_FORMAT = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} tokens [{elapsed}{postfix}]"


class Bar:
    """description, n_requests, n_tokens: of the call; disable: lm-eval's disable_tqdm."""

    def __init__(self, description: str, n_requests: int, n_tokens: int, *, disable: bool) -> None:
        self._n_requests = n_requests
        self._bar = tqdm(
            total=n_tokens,
            desc=description,
            disable=disable,
            unit="tok",
            unit_scale=True,
            bar_format=_FORMAT,
            mininterval=0.1 if sys.stderr.isatty() else 10.0,
        )

    def update(self, progress: Progress) -> None:
        """Moves the bar to the worker's progress."""
        parts = [f"{progress.done}/{self._n_requests} requests"]
        if progress.tokens_per_s is not None:
            parts.append(f"{tqdm.format_sizeof(progress.tokens_per_s)} tok/s")
        if progress.seconds_left is not None:
            parts.append(f"{tqdm.format_interval(round(progress.seconds_left))} left")
        self._bar.set_postfix_str(", ".join(parts), refresh=False)
        self._bar.update(int(progress.fraction * (self._bar.total or 0)) - self._bar.n)

    def finish(self) -> None:
        """Shows that the call is complete."""
        self.update(Progress(1.0, self._n_requests, None, None))
        self._bar.refresh()

    def close(self) -> None:
        self._bar.close()
