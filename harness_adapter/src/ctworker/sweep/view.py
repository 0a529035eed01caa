"""The document of results.json as people see it: columns, rows, charts; shared by report.html, the plots and Markdown."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .. import tables
from ..compare import headline
from ..compare.divergence import FEWEST_CLUSTERS
from ..tables import size
from . import changes

_LOG_FROM = (
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
    """A headline number of one model. change: from the original of its group, as text; more: further numbers of the cell that
    tables show, by name."""

    model: dict[str, Any]
    state: str
    error: str = ""
    value: float | None = None
    stderr: float | None = None
    change: str = ""
    more: dict[str, str] = field(default_factory=dict)

    @property
    def floor(self) -> bool:
        """Whether the number is the noise floor: the original's 16-bit run against its float32 run."""
        return self.change == NOISE_FLOOR

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
            and max(known) > _LOG_FROM * min(known)
        )

    @property
    def more(self) -> list[str]:
        """The names of further numbers that any model has."""
        return list(dict.fromkeys(name for value in self.values.values() for name in value.more))

    @property
    def noise_floor(self) -> float | None:
        return next((value.value for value in self.values.values() if value.floor), None)

    def best(self) -> float | None:
        known = [value.value for value in self.values.values() if value.value is not None and not value.floor]
        if self.higher is None or len(known) < 2:
            return None
        return max(known) if self.higher else min(known)


def axes(document: dict[str, Any]) -> list[Axis]:
    most = max((model.get("bytes", 0) for model in document["models"]), default=0)
    unit, divisor = ("GiB", 1 << 30) if most >= 1 << 30 else ("MiB", 1 << 20)
    return [
        Axis(
            "bits_per_weight", "Bits per weight", "bits per weight (quantised weights, with scales)"
        ),
        Axis("bits_per_parameter", "Bits per parameter", "bits per parameter (whole file)"),
        Axis("bytes", "File size", f"file size ({unit})", divisor),
    ]


def numbers(document: dict[str, Any]) -> dict[str, int]:
    """The number of each model, by its label: its colour and mark in all charts."""
    return {model["label"]: i for i, model in enumerate(document["models"])}


def columns(document: dict[str, Any]) -> list[Column]:
    models = {model["label"]: model for model in document["models"]}
    found: dict[tuple[str, str], Column] = {}
    for cell in document["cells"]:
        column = found.setdefault(
            (cell["work"], cell["options"]), Column(cell["work"], cell["options"], cell["kind"])
        )
        best = next((metric for metric in cell.get("metrics", []) if metric.get("headline")), None)
        value = Value(models[cell["model"]], cell["state"], cell.get("error", ""))
        if best is not None:
            value.value, value.stderr = best["value"], best["stderr"] if _enough(cell) else None
            column.metric, column.higher = best["metric"], best["higher_is_better"]
            column.method = column.method or cell["method"]
        column.cells.append(cell)
        column.values[cell["model"]] = value
    for column in found.values():
        if column.kind == "comparison":
            _compared(column)
        else:
            changes.fill(column, document)
    return list(found.values())


def _enough(cell: dict[str, Any]) -> bool:
    """Whether a cell has enough windows for an error to be shown. Of a task, lm-eval decides."""
    details = cell["details"]
    counts = [text["se_clusters"] for text in details.get("texts", []) if "se_clusters" in text]
    counts += [details["statistics"]["clusters"]] if "clusters" in details.get("statistics", {}) else []
    return all(count >= FEWEST_CLUSTERS for count in counts)


def _compared(column: Column) -> None:
    """A comparison is a difference already: its change is the multiple of the noise floor, which is the original's value."""
    cells = {cell["model"]: cell for cell in column.cells if cell["state"] == "done"}
    for label, value in column.values.items():
        found = cells[label]["details"].get("statistics", {}) if label in cells else {}
        if "kl_percentiles" in found:
            value.more = {
                "99.9 % of KL": headline.shown(found["kl_percentiles"]["99.9"], found),
                "same top-1": headline.shown(found["same_top"], found, 100.0, " %"),
                "perplexity, paired": headline.perplexity_change(found),
            }
        if value.model["original"] and value.value is not None:
            value.change = NOISE_FLOOR
    floor = column.noise_floor
    for value in column.values.values():
        if floor and value.value is not None and not value.floor:
            value.change = f"{tables.multiple(value.value / floor)} x the noise floor"


def facts(value: Value, column: Column) -> list[tuple[str, str]]:
    """The exact numbers behind a point."""
    assert value.value is not None
    model = value.model
    found = [(column.unit or "value", repr(value.value))]
    if value.stderr is not None:
        found.append(("standard error", repr(value.stderr)))
    if value.change:
        found.append(("against the original", value.change))
    found += list(value.more.items())
    if "bytes" in model:
        found += [
            ("bits per weight", f"{model['bits_per_weight']:.4f}"),
            ("bits per parameter", f"{model['bits_per_parameter']:.4f}"),
            ("file size", size(model["bytes"])),
        ]
    if model["method"]:
        found.append(("method", model["method"]))
    return found


def parts(column: Column, name: str) -> list[tuple[str, Any]]:
    """"layers" or "matrices" of each model that was compared with them: its label, and what a report has."""
    return [
        (cell["model"], cell["details"][name])
        for cell in column.cells
        if cell["state"] == "done" and cell["details"].get(name)
    ]


def spreads(column: Column) -> list[tuple[str, dict[str, Any]]]:
    """The divergence's statistics of each model, but not of the noise floor."""
    found = [(label, each) for label, each in parts(column, "statistics") if not column.values[label].floor]
    return [(label, each) for label, each in found if each.get("kl_percentiles") and each["kl"]["value"]]


PAIRED_HEADS = ("model", "task", "metric", "questions", "difference", "95 % interval", "lost", "gained", "McNemar p")


def paired(document: dict[str, Any]) -> list[tuple[str, ...]]:
    """Rows under PAIRED_HEADS: of a work with several tasks, only all of them together."""
    rows: list[tuple[str, ...]] = []
    for entry in document.get("paired", []):
        pooled = [test for test in entry["tests"] if test["task"].startswith("all ")]
        work = f"{entry['work']} ({entry['options']})" if entry["options"] else entry["work"]
        for test in pooled or entry["tests"]:
            task = f"{work}, {test['task']}" if pooled else work if test["task"] in work else f"{work}, {test['task']}"
            metric = test["metric"] if test["filter"] == "none" else f"{test['metric']}, {test['filter']}"
            flips = test["p_mcnemar"] is not None
            rows.append((
                entry["model"], task, metric, str(test["n"]), number(test["difference"], test["se"]),
                f"{test['low']:+.4f} .. {test['high']:+.4f}", str(test["lost"]) if flips else "-",
                str(test["gained"]) if flips else "-", f"{test['p_mcnemar']:.3g}" if flips else "-",
            ))  # fmt: skip
    return rows


def paired_notes(document: dict[str, Any]) -> list[str]:
    return [f"{entry['model']}, {entry['work']}: {note}" for entry in document.get("paired", []) for note in entry["notes"]]


def front(points: list[tuple[float, float]], higher: bool) -> list[tuple[float, float]]:
    """The points (size, quality) that no other beats in both directions, by size."""

    def beats(a: tuple[float, float], b: tuple[float, float]) -> bool:
        better = a[1] >= b[1] if higher else a[1] <= b[1]
        return a[0] <= b[0] and better and a != b

    return sorted({b for b in points if not any(beats(a, b) for a in points)})
