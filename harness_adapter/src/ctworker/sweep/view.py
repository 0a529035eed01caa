"""The document of results.json as people see it: columns, rows, charts; shared by report.html, the plots and Markdown."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from .progress import size

_LOG_FROM = (
    5.0  # a perplexity or a divergence is drawn on a logarithmic axis if it varies by this factor
)
#: Metrics whose difference from the original is a ratio.
_RATIO = ("perplexity",)
_NAMES = {"kl": "KL (nats)"}


def number(value: float, stderr: float | None = None) -> str:
    """A value for tables. Four decimals also where the standard error is larger: it is common to all models of a text."""
    text = f"{value:.4f}" if abs(value) < 1000 else f"{value:.7g}"
    if abs(value) < 0.01 and value != 0:
        text = f"{value:.3e}"
    return f"{text} ± {stderr:.2g}" if stderr is not None else text


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
    """A headline number of one model. change: from the original of its group, as text."""

    model: dict[str, Any]
    state: str
    error: str = ""
    value: float | None = None
    stderr: float | None = None
    change: str = ""

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

    def best(self) -> float | None:
        known = [value.value for value in self.values.values() if value.value is not None]
        if self.higher is None or len(known) < 2:
            return None
        return max(known) if self.higher else min(known)


def axes(document: dict[str, Any]) -> list[Axis]:
    most = max((model.get("bytes", 0) for model in document["models"]), default=0)
    unit, divisor = ("GB", 1e9) if most >= 1e9 else ("MB", 1e6)
    return [
        Axis(
            "bits_per_weight", "Bits per weight", "bits per weight (quantised weights, with scales)"
        ),
        Axis("bits_per_parameter", "Bits per parameter", "bits per parameter (whole file)"),
        Axis("bytes", "File size", f"file size ({unit})", divisor),
    ]


def series(document: dict[str, Any]) -> dict[str, str]:
    """What a model's colour means, by its label: its method, else its group."""
    methods = any(model["method"] for model in document["models"])
    found = {}
    for model in document["models"]:
        name = model["method"] if methods else model["group"]
        found[model["label"]] = name or ("original" if model["original"] else "models")
    return found


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
            value.value, value.stderr = best["value"], best["stderr"]
            column.metric, column.higher = best["metric"], best["higher_is_better"]
            column.method = column.method or cell["method"]
        column.cells.append(cell)
        column.values[cell["model"]] = value
    for column in found.values():
        _changes(column)
    return list(found.values())


def _changes(column: Column) -> None:
    """The difference of each value from its group's original. A comparison is a difference already; its value for the original
    is the noise floor."""
    if column.kind == "comparison":
        for value in column.values.values():
            value.change = "noise floor" if value.model["original"] and value.value is not None else ""
        return
    originals = {v.model["group"]: v.value for v in column.values.values() if v.model["original"]}
    for value in column.values.values():
        origin = originals.get(value.model["group"])
        if origin is None or value.value is None or value.model["original"]:
            continue
        if any(word in column.metric for word in _RATIO) and origin > 0:
            value.change = f"{value.value / origin - 1:+.2%}".replace("%", " %")
        else:
            value.change = f"{value.value - origin:+.4g}"


def facts(value: Value, column: Column) -> list[tuple[str, str]]:
    """The exact numbers behind a point."""
    assert value.value is not None
    model = value.model
    found = [(column.unit or "value", repr(value.value))]
    if value.stderr is not None:
        found.append(("standard error", repr(value.stderr)))
    if value.change:
        found.append(("against the original", value.change))
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


PAIRED_HEADS = ("model", "task", "metric", "questions", "difference", "95 % interval", "lost", "gained", "McNemar p")


def paired(document: dict[str, Any]) -> list[tuple[str, ...]]:
    """Rows under PAIRED_HEADS: of a work with several tasks, only all of them together."""
    rows = []
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


def method_fields(column: Column) -> list[tuple[str, str]]:
    """What a reader needs to repeat the numbers of a column."""
    done = [cell for cell in column.cells if cell["state"] == "done"]
    found = [(_words(name), _plain(value)) for name, value in column.method.items()]
    found += [
        (_words(name), _plain(value))
        for name, value in (done[0]["option_values"] if done else {}).items()
    ]
    for name in ("numerics", "dtype", "max_length_used", "add_bos_token", "prefix_token_id"):
        values = {_plain(cell["source"][name]) for cell in done if name in cell["source"]}
        if values:
            found.append((_words(name), "; ".join(sorted(values))))
    versions = sorted({f"{k} {v}" for cell in done for k, v in cell["versions"].items()})
    return [*found, ("versions", ", ".join(versions))] if versions else found


def model_fields(model: dict[str, Any], identity: str) -> list[tuple[str, str]]:
    found = [("path", model["path"])]
    for name in ("commit", "group", "method", "bits", "architecture", "activations", "error"):
        if model.get(name):
            found.append((_words(name), str(model[name])))
    if "params" in model:
        found += [
            ("parameters", f"{model['params']:,}"),
            ("file size", f"{model['bytes']:,} bytes"),
        ]
        rows = [
            f"{row['format']}: {row['bits']:.3f} bits x {row['params']:,}"
            for row in model["formats"]
        ]
        found.append(("formats", "; ".join(rows)))
    return [*found, ("identity", identity)] if identity else found


def _words(name: str) -> str:
    return name.replace("_", " ")


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{_words(name)}: {_plain(inner)}" for name, inner in value.items())
    if isinstance(value, list):
        return "; ".join(_plain(inner) for inner in value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
