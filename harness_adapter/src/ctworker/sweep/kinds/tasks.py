"""Cells that are lm-eval tasks: `tasks:` and `include_path:` of the YAML file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .shared import environment_of, stamp_of

if TYPE_CHECKING:
    from ..nodes import Node
    from ..place import Place
    from ..work import Model, Options, Work

_FIELDS = (
    "task", "label", "num_fewshot", "limit", "metric", "apply_chat_template", "fewshot_as_multiturn",
    "system_instruction", "env",
)  # fmt: skip
#: Variables that the project's own task files read.
_INHERITED = ("CTWORKER_WIKITEXT",)


class Tasks:
    name = "task"
    keys: tuple[str, ...] = ("tasks", "include_path")
    of_model = False

    def parse(self, fields: dict[str, Node], models: list[Model], base: Path) -> list[Work]:
        folders = []
        for node in (
            fields["include_path"].items("a folder, or a list") if "include_path" in fields else []
        ):
            folder = os.path.expanduser(node.text())
            if not (base / folder).is_dir():
                raise node.error(
                    f"there is no folder {base / folder}: expected a folder of task files"
                )
            folders.append(folder)  # the process of the cells runs in `base`
        if "tasks" not in fields:
            return []
        return [
            self._work(node, folders, base) for node in fields["tasks"].items("a list of tasks")
        ]

    def _work(self, node: Node, folders: list[str], base: Path) -> Work:
        if not isinstance(node.value, dict):
            name = node.text()
            return self._made(
                name,
                {"task": name, "include_path": folders, "env": environment_of({}, _INHERITED)},
                node,
                base,
            )
        fields = node.fields(_FIELDS, "a task")
        if "task" not in fields:
            raise node.error("the key task is missing: expected the name of an lm-eval task")
        settings: dict[str, Any] = {
            "include_path": folders,
            "env": environment_of(fields, _INHERITED),
        }
        for key, value in fields.items():
            if key in ("apply_chat_template", "fewshot_as_multiturn"):
                settings[key] = value.flag()
            elif key == "num_fewshot":
                settings[key] = value.count(0)
            elif key == "limit":
                settings[key] = value.count(1)
            elif key not in ("label", "env"):
                settings[key] = value.text()
        name = fields["label"].text() if "label" in fields else settings["task"]
        return self._made(name, settings, node, base)

    def _made(self, name: str, settings: dict[str, Any], node: Node, base: Path) -> Work:
        from ..work import Work

        stamp = stamp_of(base, [*settings["include_path"], *settings["env"].values()])
        return Work(self, name, settings, node.where, stamp)

    def reference(self, work: Work, model: Model, models: list[Model]) -> Model | None:
        return None

    def applies(self, work: Work, model: Model, models: list[Model], options: Options) -> bool:
        return True

    def prepare(self, settings: dict[str, Any], place: Place) -> dict[str, Any]:
        from .run_tasks import prepare

        return prepare(settings, place)

    def run(self, settings: dict[str, Any], place: Place) -> dict[str, Any]:
        from .run_tasks import run

        return run(settings, place)


TASKS = Tasks()
