"""YAML with line numbers: every error names the file, the line, the key and what was expected there."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..base.errors import ArgumentError

_KINDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    type(None): "nothing",
    list: "a list",
    dict: "a mapping",
}


class Node:
    """A value of a YAML file that knows where it stands. `path`: keys and indices that lead to it, "tasks[1].limit"."""

    def __init__(self, value: Any, file: str, line: int, path: str) -> None:
        self.value, self.file, self.line, self.path = value, file, line, path

    def error(self, expected: str) -> ArgumentError:
        """An error about this value: `expected` says what should stand here."""
        return ArgumentError(f"{self.where}: {expected}")

    @property
    def where(self) -> str:
        return f"{self.file}:{self.line}: {self.path or 'the file'}"

    def wrong(self, expected: str) -> ArgumentError:
        found = self.value
        kind = _KINDS.get(type(found), type(found).__name__)
        shown = kind if isinstance(found, (dict, list, type(None))) else f"{kind}, {found!r}"
        return self.error(f"expected {expected}, found {shown}")

    # -- values --------------------------------------------------------------------------------------------

    def text(self) -> str:
        """Text; a bare number counts as text, since YAML reads the label 8 as a number."""
        if isinstance(self.value, (int, float)) and not isinstance(self.value, bool):
            return str(self.value)
        if not isinstance(self.value, str) or not self.value.strip():
            raise self.wrong("text")
        return self.value

    def one_of(self, names: Iterable[str]) -> str:
        names = list(names)
        for name in names:
            if name == self.value:
                return name
        raise self.wrong(f"one of {', '.join(names)}{_guess(self.value, names)}")

    def flag(self) -> bool:
        if not isinstance(self.value, bool):
            raise self.wrong("true or false")
        return self.value

    def count(self, least: int = 1) -> int:
        if isinstance(self.value, bool) or not isinstance(self.value, int) or self.value < least:
            raise self.wrong(f"a whole number of at least {least}")
        return self.value

    def number(self, least: float = 0.0) -> float:
        if (
            isinstance(self.value, bool)
            or not isinstance(self.value, (int, float))
            or not least <= self.value < math.inf  # nor not a number
        ):
            raise self.wrong(f"a number of at least {least:g}")
        return self.value

    def scalar(self) -> Any:
        if isinstance(self.value, (dict, list)):
            raise self.wrong("a single value")
        return self.value

    # -- collections ---------------------------------------------------------------------------------------

    def items(self, expected: str = "a list") -> list[Node]:
        """The elements of a list; a value that is no list counts as a list of one."""
        if self.value is None:
            raise self.wrong(expected)
        if not isinstance(self.value, list):
            return [self]
        return self.value

    def fields(self, known: Iterable[str], what: str) -> dict[str, Node]:
        """The members of a mapping. Raises for a key that is not in `known`; `what` names the mapping in messages."""
        if not isinstance(self.value, dict):
            raise self.wrong(f"{what}: a mapping")
        known = list(known)
        for key, node in self.value.items():
            if key not in known:
                raise ArgumentError(
                    f"{node.file}:{node.line}: {node.path}: the key is unknown in {what}: expected one of "
                    f"{', '.join(known)}{_guess(key, known)}"
                )
        return self.value

    def plain(self) -> Any:
        """The value without positions."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value


def _guess(found: Any, names: list[str]) -> str:
    close = difflib.get_close_matches(str(found), names, n=1, cutoff=0.7)
    return f" (did you mean {close[0]}?)" if close else ""


def read(path: Path) -> Node:
    """The root of a YAML file. Raises ArgumentError with file and line."""
    import yaml

    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ArgumentError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ArgumentError(
            f"{path} is not UTF-8 (byte {error.start}): save the file as UTF-8"
        ) from error
    try:
        loader = yaml.SafeLoader(text)
        tree = loader.get_single_node()
        if tree is None:
            raise ArgumentError(
                f"{path}:1: the file is empty: expected a mapping with the key models"
            )
        return _convert(loader, tree, str(path), "")
    except RecursionError as error:
        raise ArgumentError(
            f"{path}: an alias contains itself, or lists are nested too deep"
        ) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise ArgumentError(f"{path}:{line}: this is not YAML: {error.problem or error}") from error
    except yaml.YAMLError as error:
        raise ArgumentError(f"{path}: this is not YAML: {' '.join(str(error).split())}") from error


def _convert(loader: Any, tree: Any, file: str, path: str) -> Node:
    import yaml

    line = tree.start_mark.line + 1
    if isinstance(tree, yaml.MappingNode):
        members: dict[str, Node] = {}
        for key, value in tree.value:
            name, at = str(key.value), key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise ArgumentError(f"{file}:{at}: {path or 'the file'}: a key is a list or a mapping: expected text")
            inner = f"{path}.{name}" if path else name
            if name in members:
                raise ArgumentError(
                    f"{file}:{at}: {inner}: the key occurs twice, first in line {members[name].line}"
                )
            node = _convert(loader, value, file, inner)
            node.line = at if not isinstance(node.value, (dict, list)) else node.line
            members[name] = node
        return Node(members, file, line, path)
    if isinstance(tree, yaml.SequenceNode):
        return Node(
            [_convert(loader, item, file, f"{path}[{i}]") for i, item in enumerate(tree.value)],
            file, line, path,
        )  # fmt: skip
    return Node(loader.construct_object(tree), file, line, path)
