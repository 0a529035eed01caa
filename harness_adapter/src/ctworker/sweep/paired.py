"""Paired tests of a sweep: each model's answers to a task's documents against its original's (docs/METHODS.md)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..base.errors import ArgumentError
from ..compare import paired, samples
from .plan import Cell
from .results import Results


def tests(cells: list[Cell], results: Results) -> list[dict[str, Any]]:
    """The entries of results.json, for the finished cells whose original's cell is finished."""
    return [_entry(cell, other, results) for cell, other in _pairs(cells, results)]


def _pairs(cells: list[Cell], results: Results) -> Iterator[tuple[Cell, Cell]]:
    """(the cell, its original's), of cells with samples."""
    usable = [cell for cell in cells if results.cells.get(cell.key, {}).get("details", {}).get("samples")]
    originals = {
        (cell.model.group, cell.work.name, cell.options.name): cell for cell in usable if cell.model.original
    }
    for cell in usable:
        other = originals.get((cell.model.group, cell.work.name, cell.options.name))
        if other is not None and other is not cell:
            yield cell, other


def _entry(cell: Cell, other: Cell, results: Results) -> dict[str, Any]:
    found: list[paired.PairedTest] = []
    notes: list[str] = []
    try:
        pairs, notes = samples.pair(*(_run(each, results) for each in (other, cell)))
        found = [paired.test(one) for one in [*pairs, *paired.pool(pairs)]]
    except ArgumentError as error:
        notes = [str(error)]
    return {
        "work": cell.work.name, "options": cell.options.name, "model": cell.model.label, "reference": other.model.label,
        "keys": [other.key, cell.key], "tests": [test.to_json() for test in found], "notes": notes,
    }  # fmt: skip


def _run(cell: Cell, results: Results) -> samples.Run:
    """The kept answers of a cell. Raises ArgumentError if they are not those of the run."""
    folder: Path = results.folder / cell.samples
    run = samples.Run(cell.model.label)
    for kept in results.cells[cell.key]["details"]["samples"]:
        path = folder / kept["file"]
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != kept["sha256"]:
            raise ArgumentError(f"{path} is missing or was changed: run the cell again with --force for its paired tests")
        run.files[kept["task"]] = path
        run.answers[kept["task"]] = samples.read_file(path)
    return run
