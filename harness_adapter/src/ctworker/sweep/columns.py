"""Columns of a sweep's tables: the headline numbers of one work with one set of options."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..base import tables
from ..compare import headline

LOG_FROM = (
    5.0  # a perplexity or a divergence is drawn on a logarithmic axis if it varies by this factor
)
_NAMES = {"kl": "KL (nats)"}
NOISE_FLOOR = headline.NOISE_FLOOR


def number(value: float, stderr: float | None = None) -> str:
    """A value for tables: with its error to two digits, and at least two decimal places from 1 on; without one, four decimal places."""
    if stderr is None and 1 <= abs(value) < 1000:
        return f"{value:.4f}"
    return tables.number(value, stderr, least=2 if 1 <= abs(value) < 1000 else 0)


@dataclass(frozen=True)
class Axis:
    """A horizontal axis: key in a model of the document, and the divisor to its unit."""

    id: str
    name: str
    label: str
    divisor: float = 1.0

    def of(self, model: dict[str, Any]) -> float | None:
        value = model.get(self.id)
        return None if value is None else value / self.divisor


@dataclass
class Value:
    """A headline number of one model. reference: label of the model that a comparison is with. change: from the original of its
    group, as text; more: further numbers of the cell that tables show, by name."""

    model: dict[str, Any]
    state: str
    error: str = ""
    reference: str = ""
    value: float | None = None
    stderr: float | None = None
    change: str = ""
    more: dict[str, str] = field(default_factory=dict)

    @property
    def floor(self) -> bool:
        """Whether the number is the noise floor: the reference's 16-bit run against its float32 run."""
        return self.value is not None and self.reference == self.model["label"]

    @property
    def text(self) -> str:
        return self.state if self.value is None else number(self.value, self.stderr)


@dataclass
class Column:
    """The headline numbers of one work with one set of options, by model label."""

    work: str
    options: str
    kind: str
    metric: str = ""
    higher: bool | None = None
    method: dict[str, Any] = field(default_factory=dict)
    cells: list[dict[str, Any]] = field(default_factory=list)
    values: dict[str, Value] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.work} ({self.options})" if self.options else self.work

    @property
    def title(self) -> str:
        """The name with its metric, unless the name says it."""
        said = self.unit
        return (
            self.name
            if not said or self.metric in self.work.lower() or said in self.work.lower()
            else f"{self.name}: {said}"
        )

    @property
    def unit(self) -> str:
        """The metric in words."""
        return _NAMES.get(self.metric, self.metric.replace("_", " "))

    @property
    def arrow(self) -> str:
        return {True: "↑", False: "↓", None: ""}[self.higher]

    @property
    def logarithmic(self) -> bool:
        known = [value.value for value in self.values.values() if value.value is not None]
        return (
            self.higher is False
            and min(known, default=0) > 0
            and max(known) > LOG_FROM * min(known)
        )

    @property
    def more(self) -> list[str]:
        """The names of further numbers that any model has."""
        return list(dict.fromkeys(name for value in self.values.values() for name in value.more))

    @property
    def reference(self) -> str:
        """Of a comparison: the model that the others are compared with, in words if each group has its own."""
        found = {value.reference for value in self.values.values() if value.value is not None}
        return found.pop() if len(found) == 1 else "each group's original"

    @property
    def floors(self) -> dict[str, float]:
        """The noise floor of each reference that has one."""
        return {value.reference: value.value for value in self.values.values() if value.floor and value.value is not None}

    @property
    def noise_floor(self) -> float | None:
        """The one that holds for all models of the column; None: there is none, or each group has its own reference."""
        return self.floors.get(self.reference)

    @property
    def line(self) -> float | None:
        """The noise floor as a line of a chart: 0 has no place on a logarithmic axis."""
        return None if self.noise_floor == 0 and self.logarithmic else self.noise_floor

    def best(self) -> float | None:
        known = [value.value for value in self.values.values() if value.value is not None and not value.floor]
        if self.higher is None or len(known) < 2:
            return None
        return max(known) if self.higher else min(known)
