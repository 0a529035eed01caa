"""results.json as a document: models, cells, and everything that their numbers depend on (results.schema.json)."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from .. import __version__
from .models import Files
from .plan import Cell
from .results import SCHEMA, VERSION
from .work import Model, Sweep

_LIBRARIES = ("lm_eval", "tokenizers", "datasets", "numpy")
_FACTS = (
    "architecture",
    "model_type",
    "dtype",
    "params",
    "bytes",
    "weight_bits",
    "formats",
    "activations",
)


def record(cell: Cell) -> dict[str, Any]:
    """What names a cell, without its outcome."""
    return {
        "key": cell.key,
        "model": cell.model.label,
        "commit": cell.commit or None,
        "options": cell.options.name,
        "kind": cell.work.kind.name,
        "work": cell.work.name,
        "settings": cell.work.settings,
        "option_values": cell.options.values,
        "reference": cell.reference.label if cell.reference is not None else None,
    }


def done(cell: Cell, outcome: dict[str, Any], run: dict[str, Any]) -> dict[str, Any]:
    return record(cell) | {"state": "done", **outcome, "versions": versions(), "run": run}


def failed(cell: Cell, message: str, run: dict[str, Any]) -> dict[str, Any]:
    return record(cell) | {"state": "failed", "error": message, "run": run}


def build(
    sweep: Sweep, files: dict[str, Files], cells: list[Cell], known: dict[str, dict[str, Any]], paired: list[dict[str, Any]]
) -> dict[str, Any]:
    """The document. known: finished and failed cells by key; those that the sweep no longer has are in `kept`. paired: tests
    between cells; those of cells that are not finished are left out."""
    keys = {cell.key for cell in cells}
    finished = {key for key in keys if known.get(key, {}).get("state") == "done"}
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "sweep": {"name": sweep.name, "file": sweep.file.name, "devices": sweep.devices},
        "models": [_model(model, files[model.label]) for model in sweep.models],
        "cells": [known.get(cell.key, {"state": "pending"}) | record(cell) for cell in cells],
        "paired": [test for test in paired if finished.issuperset(test["keys"])],
        "kept": [cell for key, cell in known.items() if key not in keys],
    }


def _model(model: Model, files: Files) -> dict[str, Any]:
    facts = {name: files.facts[name] for name in _FACTS if name in files.facts}
    bits = facts.pop("weight_bits", None)
    if facts:
        whole = 8.0 * sum(row["bytes"] for row in facts["formats"])
        # Nothing is quantised: the bits of the dense weights.
        facts["bits_per_weight"] = bits or whole / sum(row["params"] for row in facts["formats"])
        facts["bits_per_parameter"] = 8.0 * facts["bytes"] / facts["params"]
    return {
        "label": model.label,
        "path": model.path,
        "group": model.group,
        "method": model.method,
        "bits": model.bits,
        "original": model.original,
        "revision": model.revision if model.hub else None,
        "commit": files.commit or None,
        "tokenizer": model.tokenizer,
        "error": files.error or None,
        **facts,
    }


def versions() -> dict[str, str]:
    """Of the programs that a number went through; the worker's own is in its `source`."""
    found = {"ctworker": __version__, "python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
