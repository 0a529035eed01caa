"""cards/MODEL.md: what a quantised model's card on the hub can take over: `model-index` as YAML, and a table."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from .. import __version__
from . import captions, tables, view
from .columns import Column, Value


def files(document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(name, content) for each model with numbers that is not an original."""
    columns = view.columns(document)
    used: set[str] = set()
    for model in document["models"]:
        found = [(c, c.values[model["label"]]) for c in columns if model["label"] in c.values]
        found = [(column, value) for column, value in found if value.value is not None]
        if found and not model["original"]:
            yield f"{_name(model['label'], used)}.md", _card(model, found, document)


def _name(label: str, used: set[str]) -> str:
    """A file name that no other label has, in any case of letters."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", label).strip("-.") or "model"
    name, n = plain, 1
    while name.lower() in used:
        n += 1
        name = f"{plain}-{n}"
    used.add(name.lower())
    return name


def _card(model: dict[str, Any], found: list[tuple[Column, Value]], document: dict[str, Any]) -> str:
    columns = [column for column, _ in found]
    group = [other for other in document["models"] if other is model or (other["original"] and other["group"] == model["group"])]
    table = tables.models_table(group, columns)
    return "\n".join([
        "---", "model-index:", f"- name: {_text(model['label'])}", "  results:",
        *(line for column, value in found for line in _result(column, value)), "---", "", "## Evaluation", "", table, "",
        *tables.captions_of(columns), "",
    ])  # fmt: skip


def _result(column: Column, value: Value) -> Iterator[str]:
    """One entry of `results:`, as the hub reads it."""
    data = captions.data(column) or column.work
    part, partial = captions.amount(column)
    yield "  - task:"
    yield "      type: text-generation"
    yield "    dataset:"
    yield f"      type: {_text(data)}"
    yield f"      name: {_text(f'{data}, {part}' if partial else data)}"
    yield "    metrics:"
    for name, shown, number in _metrics(column, value):
        yield f"    - type: {_text(name)}"
        yield f"      name: {_text(f'{shown} ({captions.how(column)}; ctworker {__version__})')}"
        yield f"      value: {json.dumps(number)}"


def _metrics(column: Column, value: Value) -> Iterator[tuple[str, str, float]]:
    """(type, name, value)"""
    assert value.value is not None
    if column.kind != "comparison":
        yield column.metric, column.unit, value.value
        return
    cell = next(cell for cell in column.cells if cell["model"] == value.model["label"])
    against = f"against {value.reference}"
    numbers = {metric["metric"]: metric["value"] for metric in cell["metrics"]}
    for name, shown in (("kl", "KL divergence in nats"), ("kl_99.9", "99.9 % of KL in nats"), ("same_top", "same top-1")):
        if name in numbers:
            yield f"{name}_divergence" if name == "kl" else name, f"{shown}, {against}", numbers[name]


def _text(text: str) -> str:
    """A JSON string is a YAML string."""
    return json.dumps(text, ensure_ascii=False)
