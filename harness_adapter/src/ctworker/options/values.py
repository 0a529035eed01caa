"""Readers of option values: each takes an option's name and a value as any user interface gives it (a command line's or YAML
file's text, a Python object), and returns the value in its own type. Each raises an ArgumentError that names the option, the
value found and what was expected."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from ..base.errors import ArgumentError


def text(name: str, value: Any) -> str:
    if isinstance(value, (str, int, float)) and not isinstance(value, bool):
        return str(value)
    raise ArgumentError(f"{name}={value!r}: expected text")


def path(name: str, value: Any) -> str:
    found = text(name, value if isinstance(value, (str, int)) else str(value))
    if not found:
        raise ArgumentError(f"{name}='': expected a path (is a variable of the shell empty?)")
    return os.path.expanduser(found)  # a shell expands ~ only at the start of a word


def checkpoint(name: str, value: Any) -> str:
    """A folder or a hub name, as the user wrote it: results record it."""
    path(name, value)
    return str(value)


def flag(name: str, value: Any) -> bool:
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if isinstance(value, bool) or value in (0, 1):
        return bool(value)
    raise ArgumentError(f"{name}={value!r}: expected True or False")


def count(name: str, value: Any, least: int = 1) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        number = least - 1
    if isinstance(value, bool) or number < least or number != float(value):
        raise ArgumentError(f"{name}={value!r}: expected a whole number of at least {least}")
    return number


def token_id(name: str, value: Any) -> int:
    return count(name, value, 0)


def seconds(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = -1.0
    if not number > 0:
        raise ArgumentError(f"{name}={value!r}: expected a number of seconds above 0")
    return number


def choice(names: Mapping[str, str]) -> Callable[[str, Any], str]:
    """A reader of one of several words. names: each word with its meaning, "" if the word speaks for itself."""
    listed = ", ".join(f"{word} ({meaning})" if meaning else word for word, meaning in names.items())

    def read(name: str, value: Any) -> str:
        if value in names:
            return str(value)
        raise ArgumentError(f"{name}={value!r}: expected one of {listed}")

    return read


DTYPES = {"auto": "the checkpoint's own", "bfloat16": "", "float16": "", "float32": "reference mode"}
_OTHER_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32", "float": "float32"}


def dtype(name: str, value: Any) -> str:
    key = str(value).removeprefix("torch.")
    key = _OTHER_DTYPES.get(key, key)
    if key not in DTYPES:
        raise ArgumentError(f"{name}={value!r}: expected one of {', '.join(DTYPES)}")
    return key


def size(name: str, value: Any) -> str:
    found = text(name, value)
    if not re.fullmatch(r"\d+(\.\d+)?\s*(([KMGT]i?)?B)?", found, re.IGNORECASE):
        raise ArgumentError(f"{name}={value!r}: expected a size such as 20GiB")
    return found.replace(" ", "")


def amount(name: str, value: Any) -> str:
    """A size, or a share in percent."""
    found = text(name, value).replace(" ", "")
    if found.endswith("%"):
        with contextlib.suppress(ValueError):
            if 0 < float(found[:-1]) <= 100:
                return found
        raise ArgumentError(f"{name}={value!r}: expected a size such as 20GiB, or a share such as 90%")
    return size(name, value)


def device(name: str, value: Any) -> str | None:
    """cpu, cuda, cuda:N, or the number of a GPU; None: a GPU if there is one."""
    found = str(value)
    if found in ("auto", ""):
        return None
    if found != "cpu" and not re.fullmatch(r"(cuda:)?\d+|cuda", found):
        raise ArgumentError(f"{name}={value}: expected cpu, cuda, cuda:N or auto")
    return found


def devices(name: str, value: Any) -> str:
    """`all`, `0-3`, `0+2`; from Python also a list. lm_eval's command line splits its arguments at commas."""
    found = ",".join(map(str, value)) if isinstance(value, (list, tuple)) else text(name, value)
    found = re.sub(r"\s*[+;,]\s*", ",", found.strip())
    one = r"(\d+(-\d+)?|(GPU|MIG)-[0-9a-fA-F-]+)"
    if found != "all" and not re.fullmatch(rf"{one}(,{one})*", found):
        raise ArgumentError(f"{name}={value!r}: expected all, or GPUs such as 0-3, 0+2 or GPU-6b0c")
    return found


def mapping(name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, str):  # lm_eval's command line passes a string
        with contextlib.suppress(ValueError):
            value = json.loads(value)
    if isinstance(value, dict):
        return dict(value)
    raise ArgumentError(
        f"{name}={value!r}: expected a JSON mapping as a separate argument: --model_args pretrained=DIR "
        f"'{name}={{\"enable_thinking\": false}}'"
    )


def secret(name: str, value: Any) -> str | bool:
    """A token of the hub; True: the stored one, False: none."""
    return value if isinstance(value, bool) else text(name, value)
