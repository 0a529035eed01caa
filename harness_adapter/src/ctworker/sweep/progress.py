"""What the terminal shows: the whole with its time left, each device's cell, and tables."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from ..base.tables import size
from .plan import Cell
from .timing import Timing

_LINE_S = 30.0  # without a terminal: between lines of progress


def duration(seconds: float | None) -> str:
    if seconds is None:
        return "unknown"
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    hours, minutes = divmod(seconds // 60, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {seconds % 60:02d} s"


class Display:
    """Follows the runners' events. todo: the cells of this run; n_done: cells that were finished before."""

    def __init__(
        self, console: Console, todo: list[Cell], n_done: int, timing: Timing, n_devices: int
    ) -> None:
        self._console, self._timing, self._n_devices = console, timing, n_devices
        self._todo, self._n_done, self._n_all = list(todo), n_done, n_done + len(todo)
        self._running: dict[Cell, tuple[float, float]] = {}  # when it began, fraction
        self._finished: list[Cell] = []
        self._next_line = time.monotonic() + _LINE_S
        self._live = Live(
            console=console, get_renderable=self._draw, refresh_per_second=4, transient=True
        )

    def __enter__(self) -> Display:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def start(self, cell: Cell) -> None:
        self._running[cell] = (time.monotonic(), 0.0)

    def progress(self, cell: Cell, fraction: float) -> None:
        if cell in self._running:
            began = self._running[cell][0]
            self._running[cell] = (began, fraction)
            self._timing.watch(cell, time.monotonic() - began, fraction)
        if not self._console.is_terminal and time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + _LINE_S
            self._console.print(f"{cell.name}: {fraction:.0%}; {self._words()}", highlight=False)

    def finish(self, cell: Cell, text: str, seconds: float | None) -> None:
        """Prints the cell's line."""
        self._running.pop(cell, None)
        self._timing.drop(cell)
        self._todo.remove(cell)
        self._finished.append(cell)
        self._n_done += 1
        took = f" ({duration(seconds)})" if seconds is not None else ""
        self._console.print(
            f"[{self._n_done}/{self._n_all}] {cell.name}: {text}{took}; {self._words()}", highlight=False, markup=False,
            soft_wrap=True,
        )  # fmt: skip

    def say(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def _words(self) -> str:
        fractions = {cell: fraction for cell, (_, fraction) in self._running.items()}
        left = self._timing.left(self._todo, fractions, self._n_devices)
        return f"{duration(left)} left" if left is not None else "time left: not known yet"

    def _draw(self) -> Table:
        fractions = {cell: fraction for cell, (_, fraction) in self._running.items()}
        units = sum(cell.units for cell in [*self._todo, *self._finished]) or 1
        done: float = sum(cell.units for cell in self._finished)
        done += sum(cell.units * fraction for cell, fraction in fractions.items())
        table = Table.grid(padding=(0, 1))
        table.add_row(
            "sweep", ProgressBar(total=1.0, completed=done / units, width=30), self._words()
        )
        for cell, (_, fraction) in self._running.items():
            table.add_row("cell", ProgressBar(total=1.0, completed=fraction, width=30), cell.name)
        return table


def show_plan(
    console: Console, rows: Iterable[tuple[Cell, str, float | None]], files: dict[str, Any]
) -> None:
    """--dry-run: the cells with their state and estimate."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("model", "size", "bits", "work", "options", "tokens", "state", "time"):
        table.add_column(
            heading, justify="right" if heading in ("size", "bits", "tokens", "time") else "left"
        )
    last = None
    for cell, state, seconds in rows:
        facts = files[cell.model.label].facts
        new = cell.model.label != last
        last = cell.model.label
        table.add_row(
            cell.model.label if new else "",
            size(facts["bytes"]) if new and facts else "",
            f"{8 * facts['bytes'] / facts['params']:.2f}" if new and facts else "",
            cell.work.name,
            cell.options.name,
            f"{cell.tokens:,}" if cell.tokens else "",
            state,
            duration(seconds) if seconds is not None else "",
        )
    console.print(table)
