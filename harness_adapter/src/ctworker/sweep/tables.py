"""results.csv (every number) and results.md (one table to paste into a model card)."""

from __future__ import annotations

import csv
import io
from typing import Any

from ..tables import number
from .progress import size

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
        shared = models[cell["model"]] | cell.get("source", {}) | cell
        for metric in cell.get("metrics", [{}]):
            writer.writerow({"headline": False} | shared | metric)
    return out.getvalue()


def columns(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The headline numbers as columns: work, options, metric, better, and `cells` by model label."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for cell in document["cells"]:
        key = (cell["work"], cell["options"])
        column = found.setdefault(
            key,
            {
                "work": cell["work"],
                "options": cell["options"],
                "kind": cell["kind"],
                "metric": "",
                "better": None,
                "cells": {},
            },
        )
        best = next((metric for metric in cell.get("metrics", []) if metric.get("headline")), None)
        column["cells"][cell["model"]] = {
            "state": cell["state"],
            "error": cell.get("error", ""),
            "metric": best,
        }
        if best is not None:
            column["metric"], column["better"] = best["metric"], best["higher_is_better"]
    return list(found.values())


def title(column: dict[str, Any]) -> str:
    """The heading of a column: the work, its metric unless the name says it, and the options."""
    name = column["work"]
    if column["metric"] and column["metric"] not in name:
        name += f" {column['metric'].replace('_', ' ')}"
    return f"{name} ({column['options']})" if column["options"] else name


def markdown(document: dict[str, Any]) -> str:
    heads = columns(document)
    arrows = {True: " ↑", False: " ↓", None: ""}
    lines = [
        "| "
        + " | ".join(
            ["model", "bits per weight", "size", *(title(h) + arrows[h["better"]] for h in heads)]
        )
        + " |",
        "| --- | ---: | ---: |" + " ---: |" * len(heads),
    ]
    for model in document["models"]:
        bits = f"{model['bits_per_weight']:.3f}" if "bits_per_weight" in model else ""
        row = [_escape(model["label"]), bits, size(model["bytes"]) if "bytes" in model else ""]
        row += [_value(head["cells"].get(model["label"])) for head in heads]
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join([*lines, "", *_notes(document)]) + "\n"


def _value(cell: dict[str, Any] | None) -> str:
    if cell is None:
        return ""
    if cell["metric"] is None:
        return cell["state"]
    return number(cell["metric"]["value"], cell["metric"]["stderr"])


def _notes(document: dict[str, Any]) -> list[str]:
    """What the numbers depend on, and the failures."""
    numerics = sorted(
        {cell["source"]["numerics"] for cell in document["cells"] if "source" in cell}
    )
    lines = [
        "± is one standard error. Bits per weight: of the quantised weights, with scales and zero points."
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
