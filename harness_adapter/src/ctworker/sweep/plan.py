"""The cells of a sweep (model x options x work), and their order."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ..options.settings import On, options_on
from .digest import digest
from .models import Files
from .work import Model, Options, Sweep, Work

#: Options that no score depends on.
_NO_SCORE = ("threads", "memory_limit", "timeout", "load_timeout")
#: Options that a worker is started with; cells that differ in others share a worker.
WORKER_OPTIONS = tuple(option.name for option in options_on(On.SWEEP) if option.on & On.SERVE)


@dataclass(eq=False)
class Cell:
    """key: of everything that the numbers depend on and that is known beforehand; commit: of a hub model; tokens: about how
    many are scored."""

    model: Model
    options: Options
    work: Work
    key: str
    reference: Model | None
    tokens: int = 0
    params: int = 0
    commit: str = ""

    @property
    def name(self) -> str:
        options = f" [{self.options.name}]" if self.options.name else ""
        return f"{self.model.label} · {self.work.name}{options}"

    @property
    def beside(self) -> tuple[str, str] | None:
        """The second model of the cell's worker: its label, and its dtype ("": the worker's)."""
        if self.reference is None:
            return None
        return self.reference.label, "float32" if self.is_floor else ""

    @property
    def is_floor(self) -> bool:
        """Whether the model is compared with itself in float32."""
        return self.reference is self.model

    @property
    def samples(self) -> Path:
        """The folder of an lm-eval task's samples, from the folder of results."""
        work = f"{self.work.name} ({self.options.name})" if self.options.name else self.work.name
        return Path("samples", _file_name(self.model.label), _file_name(work))

    @property
    def units(self) -> int:
        """Work in multiply-adds, the measure of time."""
        return self.tokens * self.params

    @property
    def worker_options(self) -> dict[str, Any]:
        return {
            name: self.options.values[name]
            for name in WORKER_OPTIONS
            if name in self.options.values
        }


def _file_name(text: str) -> str:
    """Different texts give different names."""
    return quote(text, safe=" ()").replace(".", "%2E", 1 if text.startswith(".") else 0)


def cells_of(sweep: Sweep, files: dict[str, Files]) -> list[Cell]:
    """All cells, in the order of the file. files: by label."""
    found = []
    for model in sweep.models:
        for options in sweep.options:
            for work in sweep.work:
                if not work.kind.applies(work, model, sweep.models, options):
                    continue
                reference = work.kind.reference(work, model, sweep.models)
                key = _key(model, options, work, reference, files)
                params = files[model.label].params + (
                    files[reference.label].params if reference else 0
                )
                commit = files[model.label].commit
                found.append(Cell(model, options, work, key, reference, params=params, commit=commit))
    return found


def _key(
    model: Model, options: Options, work: Work, reference: Model | None, files: dict[str, Files]
) -> str:
    values = {name: value for name, value in options.values.items() if name not in _NO_SCORE}
    other = [files[reference.label].stamp, reference.tokenizer] if reference is not None else None
    return digest(
        [
            files[model.label].stamp,
            model.tokenizer,
            work.kind.name,
            work.settings,
            work.stamp,
            values,
            other,
        ]
    )


def selected(cells: list[Cell], patterns: list[str]) -> list[Cell]:
    """The cells that match one of --only's patterns, MODEL or MODEL:WORK; all without patterns."""
    if not patterns:
        return cells
    return [cell for cell in cells if any(_matches(cell, pattern) for pattern in patterns)]


def _matches(cell: Cell, pattern: str) -> bool:
    model, _, work = pattern.partition(":")
    return fnmatch.fnmatchcase(cell.model.label, model or "*") and fnmatch.fnmatchcase(
        cell.work.name, work or "*"
    )


def blocks_of(cells: list[Cell]) -> list[list[Cell]]:
    """The cells by worker: one load for each model and each set of worker options. Models of a group follow each other, and the
    sets of options of a model, so that files and reference are still in memory."""
    groups = list(dict.fromkeys(cell.model.group for cell in cells))
    blocks: dict[Any, list[Cell]] = {}
    for cell in cells:
        key = (cell.model.label, digest(cell.worker_options))
        blocks.setdefault(key, []).append(cell)
    for block in blocks.values():
        block.sort(key=lambda cell: cell.beside or ("", ""))
    return sorted(blocks.values(), key=lambda block: groups.index(block[0].model.group))
