"""Cells that compare a model with its original, as ctworker-compare does: `comparisons:` of the YAML file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...compare import MATRIX_WINDOWS
from ...perplexity import methods
from .methods import method_of

if TYPE_CHECKING:
    from ..nodes import Node
    from ..place import Place
    from ..work import Model, Options, Work


class Comparisons:
    name = "comparison"
    keys: tuple[str, ...] = ("comparisons",)
    of_model = True

    def parse(self, fields: dict[str, Node], models: list[Model], base: Path) -> list[Work]:
        if "comparisons" not in fields:
            return []
        return [
            self._work(node, models, base)
            for node in fields["comparisons"].items("a list of methods")
        ]

    def _work(self, node: Node, models: list[Model], base: Path) -> Work:
        from ..work import Work

        fields, settings, stamp = method_of(node, base, ("reference", "layers", "matrices", "noise_floor"))
        if methods.choose(settings["method"], settings["given"]).cut != "rule":
            raise fields["method"].error(
                "lm-eval's windows cannot be compared: expected another method"
            )
        if len(settings["text"]) + len(settings["dataset"]) > 1:
            raise node.error("expected one text: give each text a comparison of its own")
        settings["layers"] = fields["layers"].flag() if "layers" in fields else False
        if "matrices" in fields:
            settings["matrices"] = _windows(fields["matrices"])
        if "noise_floor" in fields:
            settings["noise_floor"] = fields["noise_floor"].flag()
        settings["reference"] = None
        if "reference" in fields:
            settings["reference"] = fields["reference"].one_of([model.label for model in models])
        elif not any(model.original for model in models):
            raise node.error(
                "no model has original: true: mark one, or name the label of a model with reference:"
            )
        label = fields["label"].text() if "label" in fields else f"KL {settings['method']}"
        return Work(self, label, settings, node.where, stamp)

    def reference(self, work: Work, model: Model, models: list[Model]) -> Model | None:
        """The model that the work names, else the original of the model's group."""
        label = work.settings["reference"]
        for other in models:
            if other.label == label or (
                label is None and other.original and other.group == model.group
            ):
                return other
        return None

    def applies(self, work: Work, model: Model, models: list[Model], options: Options) -> bool:
        """The reference itself has a cell if the noise floor is asked for: its 16-bit run against its run in float32."""
        reference = self.reference(work, model, models)
        if reference is not model:
            return reference is not None
        return work.settings.get("noise_floor", False) and options.values.get("dtype") != "float32"

    def prepare(self, settings: dict[str, Any], place: Place) -> dict[str, Any]:
        from .run_comparisons import prepare

        return prepare(settings, place)

    def run(self, settings: dict[str, Any], place: Place) -> dict[str, Any]:
        from .run_comparisons import run

        return run(settings, place)


def _windows(node: Node) -> int | None:
    """`matrices: true` or a number of windows."""
    if isinstance(node.value, bool):
        return MATRIX_WINDOWS if node.value else None
    return node.count()


COMPARISONS = Comparisons()
