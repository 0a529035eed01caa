"""What a sweep consists of, as plain data: models, options, work, and the kinds of work."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from .nodes import Node
from .place import Place


@dataclass(frozen=True)
class Model:
    """One model. path: a folder, or a hub name (`hub`); group: models that were made from one original."""

    label: str
    path: str
    hub: bool = False
    group: str = ""
    method: str | None = None
    bits: float | None = None
    original: bool = False
    revision: str = "main"
    tokenizer: str | None = None


@dataclass(frozen=True)
class Options:
    """What a cell is scored with. name: "" if the sweep has one set of options only."""

    name: str = ""
    values: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Work:
    """What is done with each model: an lm-eval task, a perplexity method, ... settings: everything that its numbers
    depend on, as JSON; line: where the file says it, for messages; stamp: changes with the files that the settings name."""

    kind: Kind
    name: str
    settings: dict[str, Any]
    line: str = ""
    stamp: str = ""


@dataclass(frozen=True)
class Sweep:
    name: str
    file: Path
    output: Path
    devices: list[str]
    models: list[Model]
    options: list[Options]
    work: list[Work]
    store: Path | None = None  # the result store, None: without
    store_limit: str | None = None

    @property
    def base(self) -> Path:
        """Relative paths in the file start here."""
        return self.file.parent


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
