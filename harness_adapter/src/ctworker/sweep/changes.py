"""Differences from the original, each with its paired error: both models read the same text or documents, so the error of the
difference is far smaller than those of the two numbers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ..base import tables
from ..compare.divergence import FEWEST_CLUSTERS

if TYPE_CHECKING:
    from .columns import Column

#: Metrics whose difference from the original is a ratio.
_RATIO = ("perplexity",)


def fill(column: Column, document: dict[str, Any]) -> None:
    """Sets the change of each value of a column of tasks or perplexities."""
    cells = {cell["model"]: cell for cell in column.cells if cell["state"] == "done"}
    originals = {value.model["group"]: label for label, value in column.values.items() if value.model["original"]}
    for label, value in column.values.items():
        origin = originals.get(value.model["group"])
        before = None if origin is None or origin == label else column.values[origin].value
        if origin is None or before is None or value.value is None:
            continue
        if any(word in column.metric for word in _RATIO) and before > 0:
            value.change = _ratio(value.value / before, _text_error(cells[label], cells[origin]))
        else:
            value.change = _difference(value.value - before, _document_error(column, label, document))


def _ratio(ratio: float, log_error: float | None) -> str:
    if log_error is None:
        return f"{ratio - 1:+.2%}".replace("%", " %")
    return _signed(tables.number(ratio - 1, ratio * log_error, scale=100.0, unit=" %"))


def _difference(difference: float, error: float | None) -> str:
    return f"{difference:+.4g}" if error is None else _signed(tables.number(difference, error))


def _signed(text: str) -> str:
    return text if text.startswith("-") else f"+{text}"


def _text_error(cell: dict[str, Any], other: dict[str, Any]) -> float | None:
    """The standard error of the difference of two mean log-probabilities: over the pieces of one text, paired."""
    texts = [each["details"].get("texts", []) for each in (cell, other)]
    if any(len(each) != 1 or "pieces" not in each[0] for each in texts):
        return None
    mine, theirs = (each[0]["pieces"] for each in texts)
    m, total = len(mine["weight"]), math.fsum(mine["weight"])
    if mine["weight"] != theirs["weight"] or m < FEWEST_CLUSTERS or total <= 0:
        return None
    differences = [a - b for a, b in zip(mine["nll"], theirs["nll"], strict=True)]
    mean = math.fsum(differences) / total
    squares = math.fsum((d - mean * w) ** 2 for d, w in zip(differences, mine["weight"]))
    return math.sqrt(squares * m / (m - 1)) / total


def _document_error(column: Column, label: str, document: dict[str, Any]) -> float | None:
    """The paired error of a task's difference, from its paired test."""
    for entry in document.get("paired", []):
        if (entry["work"], entry["options"], entry["model"]) != (column.work, column.options, label):
            continue
        tests = [test for test in entry["tests"] if test["metric"] == column.metric]
        mean = [test for test in tests if len(tests) == 1 or test["task"] == column.work]
        if len(mean) == 1:
            error: float | None = mean[0]["se"]
            return error
    return None
