"""The kinds of cells. A kind turns its part of the YAML file into work, and runs one cell of it.

`parse` runs in the sweep's own process and imports nothing heavy. `prepare` and `run` run in the process of the cells
(cell_process.py). A new kind is a module with these functions and a line in KINDS.
"""

from __future__ import annotations

from ..work import Kind
from .comparisons import COMPARISONS
from .methods import METHODS
from .tasks import TASKS

#: In the order of a model's cells.
KINDS: tuple[Kind, ...] = (TASKS, METHODS, COMPARISONS)


def by_name(name: str) -> Kind:
    return next(kind for kind in KINDS if kind.name == name)
