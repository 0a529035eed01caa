"""Options that the commands ctworker-ppl and ctworker-compare share: texts, fields of a method, the worker."""

from __future__ import annotations

import argparse
from typing import Any

from ..base.errors import ArgumentError
from ..options import spelling
from ..options.settings import On, options_on
from . import methods, texts


def _size(text: str) -> int | str:
    return int(text) if text.isdigit() else text


def add_text(group: Any) -> None:
    group.add_argument(
        "--dataset", action="append", default=[], metavar="NAME[=FILE]",
        help=f"{', '.join(texts.DATASETS)}, or a hub name ORGANISATION/NAME[:CONFIG[:SPLIT]]; rows from the hub, or from a local "
        "file (wiki.test.raw, Parquet, JSON lines); default: wikitext2. CTWORKER_WIKITEXT names a local file of wikitext2",
    )  # fmt: skip
    group.add_argument(
        "--text", action="append", default=[], metavar="FILE", help="a text of your own: plain text, Parquet or JSON lines"
    )
    group.add_argument("--column", metavar="NAME", help="column of Parquet and JSON lines (default: text)")


def add_method(group: Any, *, numbers: bool = True) -> None:
    """numbers: also the fields that say how a perplexity is computed from log-probabilities."""
    group.add_argument("--method", default=methods.DEFAULT, metavar="NAME", help=f"default: {methods.DEFAULT}")
    for name, field in methods.FIELDS.items():
        if not numbers and name in methods.OF_NUMBERS:
            continue
        help = field.metadata["help"].replace("%", "%%")
        if field.type == "bool":
            group.add_argument(spelling.flag(name), action=argparse.BooleanOptionalAction, help=help)
        else:
            read = {"int | None": int, "int": int, "int | str": _size}.get(str(field.type))
            group.add_argument(spelling.flag(name), type=read, metavar=field.metadata["metavar"], help=help)


def add_worker(group: Any, command: On) -> None:
    """The options of settings.py that a command has."""
    for option in options_on(command):
        help = option.help + (f": {', '.join(option.choices)}" if option.choices else "")
        group.add_argument(spelling.flag(option.name), metavar=option.metavar or None, help=help.replace("%", "%%"))


def given_fields(options: argparse.Namespace) -> dict[str, Any]:
    """The fields of the method that options set."""
    return {name: value for name in methods.FIELDS if (value := getattr(options, name, None)) is not None}


def worker_arguments(options: argparse.Namespace, command: On) -> dict[str, Any]:
    """The options that are arguments of Worker. Raises ArgumentError if --endpoint names a worker that runs already, because it
    cannot take them any more."""
    names = [option.name for option in options_on(command) if option.on & On.WORKER and option.name != "tokenizer"]
    given = {name: value for name in names if (value := getattr(options, name)) is not None}
    odd = [name for name in given if options.endpoint is not None and name != "revision"]
    if odd:
        raise ArgumentError(
            f"{spelling.flag(odd[0])} is for a worker that this command starts; the worker at --endpoint {options.endpoint} "
            "runs already: leave it out"
        )
    return given


def load_texts(options: argparse.Namespace, method: methods.Method) -> list[texts.Text]:
    """The texts of --dataset and --text. Raises CtworkerError."""
    join_given = options.join is not None
    return texts.load_all(options.dataset, options.text, method.join, join_given=join_given, column=options.column)
