"""How long cells take: from those that have finished, and from how fast the running ones go now."""

from __future__ import annotations

from typing import Any

from ..base.pace import Pace
from .plan import Cell


class Timing:
    """Work is measured in units (Cell.units). A cell takes its start (loading, tokenising) and its units at a rate: the present
    one of the running cells, if it is known, else that of all finished cells."""

    def __init__(self) -> None:
        self._seconds, self._units = 0.0, 0.0  # of finished cells, with their starts
        self._starts_s: list[float] = []
        self._tokens: dict[str, int] = {}  # by work name, as scored
        self._paces: dict[Cell, Pace] = {}  # of running cells
        self._now: float | None = None  # units in a second

    def learn(self, cell: Cell, run: dict[str, Any]) -> None:
        """A cell has finished. run: of its record, with `seconds` and `n_tokens`."""
        self._paces.pop(cell, None)
        if run.get("n_tokens"):
            self._tokens[cell.work.name] = run["n_tokens"]
            self._units += run["n_tokens"] * cell.params
            self._seconds += run["seconds"]

    def watch(self, cell: Cell, seconds: float, fraction: float) -> None:
        """So much of a cell is done `seconds` after its start."""
        if fraction <= 0:
            return
        if cell not in self._paces:  # what a store had comes at once, and says nothing of the rate
            self._paces[cell] = Pace()
            self._starts_s.append(seconds)
        self._paces[cell].add(seconds, fraction * self._units_of(cell))
        rates = [rate for pace in self._paces.values() if (rate := pace.per_s()) is not None]
        if rates:
            self._now = sum(rates) / len(rates)

    def drop(self, cell: Cell) -> None:
        """A cell has ended without a result."""
        self._paces.pop(cell, None)

    def measured(self, tokens_per_s: float, params: int) -> None:
        """A rate that was measured apart."""
        self._seconds, self._units = 1.0, tokens_per_s * params

    def of(self, cell: Cell) -> float | None:
        """Seconds that the whole cell takes; None: unknown."""
        if not cell.params:
            return None
        if self._now is not None:
            return self._start_s() + self._units_of(cell) / self._now
        return self._units_of(cell) * self._seconds / self._units if self._seconds and self._units else None

    def left(self, cells: list[Cell], fractions: dict[Cell, float], n_devices: int) -> float | None:
        """Seconds until all cells are finished; fractions: of those that run."""
        left = [self._left_of(cell, fractions.get(cell, 0.0)) for cell in cells]
        known = [seconds for seconds in left if seconds is not None]
        if len(known) < len(left):
            return None
        return max(sum(known) / max(1, n_devices), max(known, default=0.0))

    def _left_of(self, cell: Cell, fraction: float) -> float | None:
        pace = self._paces.get(cell)
        rate = pace.per_s() if pace is not None else None
        if rate is not None:
            return (1 - fraction) * self._units_of(cell) / rate
        seconds = self.of(cell)
        return None if seconds is None else seconds * (1 - fraction)

    def _units_of(self, cell: Cell) -> int:
        return self._tokens.get(cell.work.name, cell.tokens) * cell.params

    def _start_s(self) -> float:
        return sum(self._starts_s) / len(self._starts_s)
