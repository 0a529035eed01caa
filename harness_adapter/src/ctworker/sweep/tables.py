"""results.csv (every number) and results.md (one table to paste into a model card)."""

from __future__ import annotations

import csv
import io
from typing import Any

from . import view
from .progress import size
from .view import Value

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
    columns = view.columns(document)
    heads = ["model", "bits per weight", "size", *(f"{c.title} {c.arrow}".strip() for c in columns)]
    lines = [
        "| " + " | ".join(_escape(head) for head in heads) + " |",
        "| --- | ---: | ---: |" + " ---: |" * len(columns),
    ]
    for model in document["models"]:
        bits = f"{model['bits_per_weight']:.3f}" if "bits_per_weight" in model else ""
        row = [_escape(model["label"]), bits, size(model["bytes"]) if "bytes" in model else ""]
        row += [_value(column.values.get(model["label"])) for column in columns]
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join([*lines, "", *_notes(document), *_paired(document)]) + "\n"


def _paired(document: dict[str, Any]) -> list[str]:
    rows = view.paired(document)
    if not rows:
        return []
    lines = [f"| {' | '.join(view.PAIRED_HEADS)} |", "| --- | --- | --- |" + " ---: |" * (len(view.PAIRED_HEADS) - 3)]
    lines += [f"| {' | '.join(map(_escape, row))} |" for row in rows]
    about = "Paired with the original question by question. Lost: right before, wrong now; intervals: paired bootstrap."
    return ["", *lines, "", about]


def _value(value: Value | None) -> str:
    if value is None:
        return ""
    return f"{value.text} ({value.change})" if value.change else value.text


def _notes(document: dict[str, Any]) -> list[str]:
    """What the numbers depend on, and the failures."""
    numerics = sorted(
        {cell["source"]["numerics"] for cell in document["cells"] if "source" in cell}
    )
    lines = [
        "± is one standard error; in brackets, the difference from the original. Bits per weight: of the quantised weights, "
        "with scales and zero points."
    ]
    if numerics:
        lines.append(f"Scored with ctworker, numerics {'; '.join(numerics)}.")
    lines += [
        f"* {_escape(cell['model'])}, {_escape(cell['work'])} failed: {_escape(cell['error'])}"
        for cell in document["cells"]
        if cell["state"] == "failed"
    ]
    return lines


def _escape(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
