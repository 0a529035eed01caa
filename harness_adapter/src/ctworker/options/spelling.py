"""How each user interface writes an option, so that a message speaks of the option as its reader wrote it.

Messages of this package are written as in Python and in --model_args (`max_length=N`), those about texts and methods as on the
command line (`--window N`), and the worker's as on its own command line (`--max-length N`)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from .settings import OPTIONS, On, options_on

#: A value behind a flag: a placeholder, a number, or a word that can only be a value.
_WORDS = {"cpu", "cuda", *(word for option in OPTIONS.values() for word in option.choices)} | {"none", "documents"}
_FLAG_VALUE = rf"[A-Z]+\b|\d(?:[\w.%]*\w)?%?|(?:{'|'.join(sorted(_WORDS, key=len, reverse=True))})\b"
#: A value behind name=: in quotes, or up to the next blank or punctuation mark.
_VALUE = r"'[^']*'|\"[^\"]*\"|[^\s,;()'\"`]*[^\s,;:()'\"`.?]"
#: Options that a sweep file says, but not under `options:`.
_OF_SWEEP_FILE = ("tokenizer", "revision", "devices", "store", "store_limit")


def flag(name: str) -> str:
    """The flag of an option of the commands."""
    option = OPTIONS.get(name)
    return (option.flag if option is not None else "") or f"--{name.replace('_', '-')}"


def for_command(message: str, command: On) -> str:
    """`--max-length 5` for `max_length=5`, and the model itself for `pretrained=MODEL`."""
    known = {option.name for option in options_on(command)}

    def respell(name: str, value: str) -> str:
        if name == "pretrained":
            return value or "MODEL"
        return f"{flag(name)} {value}".rstrip() if name in known else f"{name}={value}"

    return _assignments(message, {*known, "pretrained"}, respell)


def for_sweep(message: str, fields: Iterable[str] = ()) -> str:
    """`max_length: 5` for `max_length=5`, `window: 5` for `--window 5`. fields: further options, of methods and texts."""
    known = {*(option.name for option in options_on(On.SWEEP)), *_OF_SWEEP_FILE}
    message = _assignments(message, known, lambda name, value: f"{name}: {value}".rstrip())
    return _flags(message, {flag(name): name for name in (*known, *fields)}, lambda name, value: f"{name}: {value}" if value else name)


def for_python(message: str, fields: Iterable[str] = ()) -> str:
    """`window=5` for `--window 5`. fields: further options, of methods and texts."""
    names = [option.name for option in options_on(On.WORKER | On.CLIENT)]
    return _flags(message, {flag(name): name for name in (*names, *fields)}, _assigned)


def from_worker(message: str) -> str:
    """`max_length=5` for `--max-length 5`, `device=cpu` for `--backend cpu`: a message of a worker that this package started
    with such options."""
    names = {flag(option.name): option.name for option in options_on(On.SERVE)}
    message = re.sub(r"--device[ =](\d+)", r"device=cuda:\1", message)
    return _flags(message, names | {"--backend": "device", "--device": "device"}, _assigned)


def _assigned(name: str, value: str) -> str:
    return f"{name}={value}"


def _assignments(message: str, names: Iterable[str], respell: Callable[[str, str], str]) -> str:
    pattern = rf"(?<![\w/.\-])({'|'.join(sorted(names))})=({_VALUE})?"
    return _outside_of_code(message, lambda text: re.sub(pattern, lambda match: respell(match[1], match[2] or ""), text))


def _flags(message: str, names: dict[str, str], respell: Callable[[str, str], str]) -> str:
    def found(match: re.Match[str]) -> str:
        name = names.get(match[1])
        return match[0] if name is None else respell(name, match[2] or "")

    pattern = rf"(?<![\w\-])(--[a-z0-9]+(?:-[a-z0-9]+)*)\b(?:[ =]({_FLAG_VALUE}))?"
    return _outside_of_code(message, lambda text: re.sub(pattern, found, text))


def _outside_of_code(message: str, change: Callable[[str], str]) -> str:
    """Changes what does not stand between backticks, such as `ctworker serve --store DIR`."""
    parts = re.split(r"(`[^`]*`)", message)
    return "".join(part if part.startswith("`") else change(part) for part in parts)
