"""The kinds of cells. A kind turns its part of the YAML file into work, and runs one cell of it.

`parse` runs in the sweep's own process and imports nothing heavy. `prepare` and `run` run in the process of the cells
(cell_process.py). A new kind is a module with these functions and a line in KINDS.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from .comparisons import COMPARISONS
from .methods import METHODS
from .tasks import TASKS

if TYPE_CHECKING:
    from ..cell_process import Place
    from ..definition import Model, Options, Work
    from ..nodes import Node


class Kind(Protocol):
    """name: in results and in messages. keys: of the YAML file's top level, the list of work first. of_model: what prepare
    finds depends on the model (its tokenizer, for example)."""

    name: str
    keys: tuple[str, ...]
    of_model: bool

    def parse(self, fields: dict[str, Node], models: list[Model], base: Path) -> list[Work]:
        """The work that the file asks for. Raises ArgumentError with file, line and key."""

    def reference(self, work: Work, model: Model, models: list[Model]) -> Model | None:
        """The second model that a cell needs; None: it needs one model only. The model itself: it in float32."""

    def applies(self, work: Work, model: Model, models: list[Model], options: Options) -> bool:
        """Whether there is a cell of this work for this model with these options."""

    def prepare(self, settings: dict[str, Any], place: Place) -> dict[str, Any]:
        """Checks what can be known before any model is loaded; `tokens`: about how many tokens one cell scores. Raises
        ArgumentError for what the user must mend first, any other error for what fails the cells of this work only."""

    def run(self, settings: dict[str, Any], place: Place) -> dict[str, Any]:
        """Runs one cell at the place's worker. Returns the `outcome` of results.schema.json."""


#: In the order of a model's cells.
KINDS: tuple[Kind, ...] = (TASKS, METHODS, COMPARISONS)


def by_name(name: str) -> Kind:
    return next(kind for kind in KINDS if kind.name == name)
