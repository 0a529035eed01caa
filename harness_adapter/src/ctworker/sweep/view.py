"""The document of results.json as people see it: columns, rows, charts; shared by report.html, the plots and Markdown."""

from __future__ import annotations

from typing import Any

from ..base import tables
from ..base.tables import size
from ..compare import headline
from ..compare.divergence import FEWEST_CLUSTERS
from . import changes
from .columns import NOISE_FLOOR, Axis, Column, Value, number


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
        value = Value(models[cell["model"]], cell["state"], cell.get("error", ""), cell.get("reference") or "")
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
    """A comparison is a difference already: its change is the multiple of the noise floor, which is its reference's value."""
    cells = {cell["model"]: cell for cell in column.cells if cell["state"] == "done"}
    for label, value in column.values.items():
        found = cells[label]["details"].get("statistics", {}) if label in cells else {}
        if "kl_percentiles" in found:
            value.more = {
                "99.9 % of KL": headline.shown(found["kl_percentiles"]["99.9"], found),
                "same top-1": headline.shown(found["same_top"], found, 100.0, " %"),
                "perplexity, paired": headline.perplexity_change(found),
            }
        floor = column.floors.get(value.reference)
        if value.floor:
            value.change = NOISE_FLOOR
        elif floor and value.value is not None:
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
            ("bits per weight", tables.bits(model["bits_per_weight"])),
            ("bits per parameter", tables.bits(model["bits_per_parameter"])),
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


PAIRED_HEADS = ("model", "task", "metric", "documents", "difference", "95 % interval", "lost", "gained", "McNemar p")


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
