"""results.csv (every number) and results.md (one table with its caption)."""

from __future__ import annotations

import csv
import io
from typing import Any

from ..base import tables
from ..base.tables import escaped, size
from ..compare.divergence import FEWEST_CLUSTERS
from . import captions, view
from .columns import Column, Value

_COLUMNS = (
    "model", "group", "method", "bits", "original", "bits_per_weight", "bits_per_parameter", "bytes", "params", "options",
    "kind", "work", "task", "metric", "filter", "value", "stderr", "higher_is_better", "headline", "state", "error",
    "reference", "dtype", "numerics", "identity", "key",
)  # fmt: skip


def csv_text(document: dict[str, Any]) -> str:
    """One line a number; a failed or pending cell has one line without a number."""
    models = {model["label"]: model for model in document["models"]}
    out = io.StringIO()
    writer = csv.DictWriter(out, _COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for cell in document["cells"]:
        model = models[cell["model"]] | {"model": cell["model"]}
        method = {"method": model["method"]}  # a cell's own method is a mapping
        for metric in cell.get("metrics", [{}]):
            writer.writerow(
                {"headline": False} | model | cell.get("source", {}) | cell | method | metric
            )
    return out.getvalue()


def markdown(document: dict[str, Any]) -> str:
    """One table of all models, and a caption with all that its numbers depend on."""
    columns = view.columns(document)
    parts = [models_table(document["models"], columns), "", *captions_of(columns), *_failures(document)]
    rows = view.paired(document)
    if rows:
        about = "Paired with the original document by document. Lost: right before, wrong now; intervals: paired bootstrap."
        parts += ["", tables.markdown([view.PAIRED_HEADS, *rows], left=3), "", about]
    return "\n".join(parts) + "\n"


def models_table(models: list[dict[str, Any]], columns: list[Column]) -> str:
    heads = ["model", "bits per weight", "size"]
    for column in columns:
        heads += [f"{column.title} {column.arrow}".strip(), *column.more]
    rows = []
    for model in models:
        bits = f"{model['bits_per_weight']:.3f}" if "bits_per_weight" in model else ""
        row = [model["label"], bits, size(model["bytes"]) if "bytes" in model else ""]
        for column in columns:
            value = column.values.get(model["label"])
            row += [_value(value), *("" if value is None else value.more.get(name, "") for name in column.more)]
        rows.append(row)
    return tables.markdown([heads, *rows])


def _value(value: Value | None) -> str:
    if value is None:
        return ""
    return f"{value.text} ({value.change})" if value.change else value.text


def captions_of(columns: list[Column]) -> list[str]:
    lines = [
        "\u00b1: one standard error; in brackets, the difference from the original, with the error of the difference where it is "
        f"known. Fewer than {FEWEST_CLUSTERS} windows have no error. Bits per weight: of the quantised weights, with scales and "
        "zero points."
    ]
    for column in columns:
        if column.method:
            text = captions.caption(column)
            part, partial = captions.amount(column)
            lines.append("* " + (text.replace(part, f"**{part}**") if partial else text))
    versions = sorted({cell["versions"]["ctworker"] for column in columns for cell in column.cells if "versions" in cell})
    return [*lines, *([f"Scored with ctworker {', '.join(versions)}."] if versions else [])]


def _failures(document: dict[str, Any]) -> list[str]:
    return [
        f"* {escaped(cell['model'])}, {escaped(cell['work'])} failed: {escaped(cell['error'])}"
        for cell in document["cells"]
        if cell["state"] == "failed"
    ]
