"""Cells that are lm-eval tasks: `tasks:` and `include_path:` of the YAML file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..cell_process import Place
    from ..definition import Model, Work
    from ..nodes import Node

_FIELDS = (
    "task", "label", "num_fewshot", "limit", "metric", "apply_chat_template", "fewshot_as_multiturn",
    "system_instruction", "env",
)  # fmt: skip


class Tasks:
    name = "task"
    keys = ("tasks", "include_path")

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
        return [self._work(node, folders) for node in fields["tasks"].items("a list of tasks")]

    def _work(self, node: Node, folders: list[str]) -> Work:
        from ..definition import Work

        where = f"{node.file}:{node.line}: {node.path}"
        if not isinstance(node.value, dict):
            name = node.text()
            return Work(self, name, {"task": name, "include_path": folders}, where)
        fields = node.fields(_FIELDS, "a task")
        if "task" not in fields:
            raise node.error("the key task is missing: expected the name of an lm-eval task")
        settings: dict[str, Any] = {"include_path": folders}
        for key, value in fields.items():
            if key in ("apply_chat_template", "fewshot_as_multiturn"):
                settings[key] = value.flag()
            elif key == "num_fewshot":
                settings[key] = value.count(0)
            elif key == "limit":
                settings[key] = value.count(1)
            elif key == "env":
                if not isinstance(value.value, dict):
                    raise value.wrong("a mapping of environment variables")
                settings[key] = {name: inner.text() for name, inner in value.value.items()}
            elif key != "label":
                settings[key] = value.text()
        name = fields["label"].text() if "label" in fields else settings["task"]
        return Work(self, name, settings, where)

    def reference(self, work: Work, model: Model, models: list[Model]) -> Model | None:
        return None

    def applies(self, work: Work, model: Model, models: list[Model]) -> bool:
        return True

    def prepare(self, settings: dict[str, Any], place: Place) -> dict[str, Any]:
        from .run_tasks import prepare

        return prepare(settings, place)

    def run(self, settings: dict[str, Any], place: Place) -> dict[str, Any]:
        from .run_tasks import run

        return run(settings, place)


TASKS = Tasks()
