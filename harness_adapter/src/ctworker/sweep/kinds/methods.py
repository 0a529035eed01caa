"""Cells that are perplexities by a method of ctworker-ppl: `methods:` of the YAML file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...base.errors import ArgumentError
from ...options.spelling import for_sweep
from ...perplexity import methods
from .shared import environment_of, stamp_of

if TYPE_CHECKING:
    from ..nodes import Node
    from ..place import Place
    from ..work import Model, Options, Work

_METHOD_FIELDS = [*methods.FIELDS, "cut"]
_FLAGS = [name for name, field in methods.FIELDS.items() if field.type == "bool"]
_OWN_FIELDS = ("method", "label", "dataset", "text", "column", "env")
#: Keys of a method that are options of ctworker-ppl.
METHOD_KEYS = ("method", "dataset", "text", "column", *_METHOD_FIELDS)


def method_of(
    node: Node, base: Path, more: Iterable[str]
) -> tuple[dict[str, Node], dict[str, Any], str]:
    """A method with its text, as the kinds that cut texts share it: (fields, settings, stamp of the files). more: keys that
    a mapping may have besides. Raises ArgumentError with file, line and key."""
    fields = {"method": node}
    if isinstance(node.value, dict):
        fields = node.fields([*_OWN_FIELDS, *more, *_METHOD_FIELDS], "a method")
    if "method" not in fields:
        raise node.error(f"the key method is missing: expected one of {', '.join(methods.PRESETS)}")
    given = {
        name: fields[name].flag() if name in _FLAGS else fields[name].scalar()
        for name in _METHOD_FIELDS
        if name in fields
    }
    name = fields["method"].text()
    try:
        methods.choose(name, given)
    except ArgumentError as error:
        raise node.error(for_sweep(str(error), METHOD_KEYS)) from error
    files = [item.text() for item in fields["text"].items()] if "text" in fields else []
    datasets = [item.text() for item in fields["dataset"].items()] if "dataset" in fields else []
    local = [dataset.partition("=")[2] for dataset in datasets if "=" in dataset]
    for key, paths in (("text", files), ("dataset", local)):
        for path in paths:
            if not (base / path).is_file():
                raise fields[key].error(f"there is no file {base / path}")
    env = environment_of(fields, ["CTWORKER_WIKITEXT"])
    settings: dict[str, Any] = {
        "method": name, "given": given, "text": files, "dataset": datasets or ([] if files else ["wikitext2"]), "env": env,
    }  # fmt: skip
    if "column" in fields:
        settings["column"] = fields["column"].text()
    return fields, settings, stamp_of(base, [*files, *local, *env.values()])


class Methods:
    name = "perplexity"
    keys: tuple[str, ...] = ("methods",)
    of_model = True

    def parse(self, fields: dict[str, Node], models: list[Model], base: Path) -> list[Work]:
        if "methods" not in fields:
            return []
        return [self._work(node, base) for node in fields["methods"].items("a list of methods")]

    def _work(self, node: Node, base: Path) -> Work:
        from ..work import Work

        fields, settings, stamp = method_of(node, base, ())
        label = fields["label"].text() if "label" in fields else settings["method"]
        return Work(self, label, settings, node.where, stamp)

    def reference(self, work: Work, model: Model, models: list[Model]) -> Model | None:
        return None

    def applies(self, work: Work, model: Model, models: list[Model], options: Options) -> bool:
        return True

    def prepare(self, settings: dict[str, Any], place: Place) -> dict[str, Any]:
        from .run_methods import prepare

        return prepare(settings, place)

    def run(self, settings: dict[str, Any], place: Place) -> dict[str, Any]:
        from .run_methods import run

        return run(settings, place)


METHODS = Methods()
