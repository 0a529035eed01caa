"""Perplexity methods as data: a preset is a few fields, each of which an option can set. docs/METHODS.md describes them.

A method says how rows become a text, which tokens a window has, which of them count, and what is averaged. The worker
cuts the windows (docs/PROTOCOL.md, "Windows of a rule").
"""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from dataclasses import fields as dataclass_fields
from typing import Any, NamedTuple

from ..base.errors import ArgumentError

#: How rows become texts. `pages`, `documents`: each is a text of its own; the others join all rows into one.
JOINS = {
    "rows": "all rows joined by two line breaks",
    "nonempty": "the rows that are not blank, joined by two line breaks",
    "raw": "the rows one after another, a blank row of WikiText as the line ' \\n' (the original file)",
    "file": "raw without its last line break, as llama.cpp reads a file",
    "space": "all rows joined by a space",
    "documents": "each row is a text of its own",
    "pages": "each article of WikiText is a text of its own, detokenised as by lm-eval",
}
BOS = {
    "none": "no special tokens",
    "stream": "what the tokenizer adds by itself, once, at the start of the text",
    "replace": "as stream, and BOS in place of the first token of each window",
    "replace-if-added": "replace if the tokenizer adds BOS by itself, else stream",
    "prefix": "no special tokens in the text; BOS before each window",
    "lm-eval": "as stream, and the prefix token (BOS, else EOS) before the text",
}
CUTS = {
    "rule": "windows of equal length, `stride` tokens apart",
    "lm-eval": "lm-eval's rolling windows: every token counts once, the last window is extended to the left",
}
VOCABULARIES = {
    "model": "probabilities over all rows of the head",
    "tokenizer": "probabilities over the tokens that the tokenizer has",
}
MEANS = {
    "token": "exp(-sum of log-probabilities / scored tokens)",
    "huggingface": "as token, but a window after the first counts with one token fewer than it scores",
    "word": "exp(-sum of log-probabilities / words of the original text)",
}
ERRORS = {
    "windows": "over windows (blocks of one window's length if windows share scored tokens)",
    "tokens": "over scored tokens, as if they were independent",
    "documents": "over texts",
}


def _listed(table: dict[str, str]) -> str:
    return "; ".join(f"{name}: {meaning}" for name, meaning in table.items())


def _field(default: Any, help: str, metavar: str | None = None) -> Any:
    return field(default=default, metadata={"help": help, "metavar": metavar})


@dataclass(frozen=True)
class Method:
    """A method. Each field but name, about and cut is an option of the commands, a key of a sweep file, and a parameter of
    Client.perplexity(), with the help that stands here."""

    name: str
    about: str = field(compare=False)
    join: str = _field("rows", f"how rows become texts. {_listed(JOINS)}")
    bos: str = _field("none", _listed(BOS))
    cut: str = "rule"
    window: int | str = _field(2048, "tokens of a window; model: the longest input; or N+stride/2", "N")
    stride: int | None = _field(None, "tokens from one window's start to the next (default: window)", "N")
    first: int | str = _field(
        1, "first scored position of a window, from 0; half: behind the middle; stride: the last N tokens, N the stride", "N"
    )
    new: bool = _field(False, "later windows score only tokens behind the window before")
    tail: bool = _field(False, "the shorter last window counts")
    spare: int = _field(0, "tokens that must follow every window", "N")
    max_windows: int = _field(0, "only the first N windows of each text count, 0: all", "N")
    vocabulary: str = _field("model", _listed(VOCABULARIES))
    mean: str = _field("token", _listed(MEANS))
    error: str = _field("windows", f"the standard error is {_listed(ERRORS)}")
    bos_token: int | None = _field(None, "the token instead of the tokenizer's BOS", "ID")

    @property
    def needs_model(self) -> bool:
        """Whether only the worker knows how long a window is."""
        return self.window == "model"

    def fields(self) -> dict[str, Any]:
        """Everything that defines the number, in a fixed order, without the description."""
        return {name: value for name, value in asdict(self).items() if name != "about"}


#: The fields that a user can set, with their descriptions.
FIELDS = {each.name: each for each in dataclass_fields(Method) if each.metadata}
#: Fields that say how a perplexity is computed from log-probabilities; a comparison has none of them.
OF_NUMBERS = ("vocabulary", "mean", "error")

_HALF: dict[str, Any] = {"join": "file", "bos": "replace-if-added", "window": 512, "first": "half", "error": "tokens"}
_STRIDED = _HALF | {"window": "512+stride/2", "stride": 512, "first": "stride", "spare": 1, "error": "windows"}
_SLIDING: dict[str, Any] = {"bos": "stream", "window": "model", "stride": 512, "new": True, "tail": True, "mean": "huggingface"}
_ROLLING: dict[str, Any] = {
    "join": "pages", "bos": "lm-eval", "cut": "lm-eval", "window": "model", "new": True, "tail": True, "mean": "word",
    "error": "documents",
}  # fmt: skip
_PRESETS = [
    Method("gptq-2048", "GPTQ, AWQ and most papers", bos="stream"),
    Method("exl3", "exllamav3 ppl.py since April 2026", max_windows=100, spare=1, vocabulary="tokenizer"),
    Method("exl3-512", "exllamav3 ppl.py before April 2026", stride=512, max_windows=100, spare=1, vocabulary="tokenizer"),
    Method("compare-q", "exllamav3 compare_q.py, wiki2_llama3.json", bos="stream", stride=512, max_windows=20, spare=1),
    Method("qbench", "exllamav3 qbench.py, its example", join="nonempty", max_windows=10, spare=1, vocabulary="tokenizer"),
    Method("scoremode", "score mode of a vLLM fork, 100 windows", join="nonempty", stride=512, max_windows=100),
    Method("llama.cpp-512", "llama-perplexity, -c 512 (the default)", **_HALF),
    Method("llama.cpp-stride", "llama-perplexity -c 512 -b 512 --ppl-stride 512", **_STRIDED),
    Method("hf-sliding", "the page on perplexity in transformers' documentation", **_SLIDING),
    Method("lm-eval", "lm-eval's task wikitext with the hf backend", **_ROLLING),
]
PRESETS = {method.name: method for method in _PRESETS}
DEFAULT = "gptq-2048"



def in_words(fields: dict[str, Any]) -> str:
    """A method in one phrase, from its fields(): the preset's name, its windows, and each field that differs from the preset."""
    preset = PRESETS.get(fields["name"])
    usual = preset.fields() if preset is not None else {}
    if preset is not None and preset.cut == "rule":
        with contextlib.suppress(ArgumentError):
            usual = resolve(preset, 1 << 20 if preset.needs_model else 1 << 31).fields()
    others = {key: value for key, value in fields.items() if key not in ("name", "window") and value != usual.get(key)}
    if fields.get("stride") == fields["window"]:
        others.pop("stride", None)
    most = others.pop("max_windows", None)
    found = [f"windows of {fields['window']} tokens", *(f"{key.replace('_', ' ')} {_plain(value)}" for key, value in others.items())]
    if most:
        found.append(f"only the first {most} windows" if most > 1 else "only the first window")
    return f"{fields['name']}: {', '.join(found)}"


def _plain(value: Any) -> str:
    return {True: "yes", False: "no", None: "none"}[value] if value is None or isinstance(value, bool) else str(value)


_CHOICES = {
    "join": JOINS, "bos": BOS, "cut": CUTS, "vocabulary": VOCABULARIES, "mean": MEANS, "error": ERRORS,
}  # fmt: skip


def choose(name: str, given: dict[str, Any]) -> Method:
    """The preset with the given fields. Raises ArgumentError that names the field and what is possible."""
    if name not in PRESETS:
        near = difflib.get_close_matches(name, PRESETS, 1, 0.4)
        guess = f" (did you mean {near[0]}?)" if near else ""
        raise ArgumentError(f"method {name!r} is unknown{guess}; the methods are {', '.join(PRESETS)}")
    method = replace(PRESETS[name], **given)
    for key, names in _CHOICES.items():
        if (value := getattr(method, key)) not in names:
            raise ArgumentError(f"{key} {value!r} is unknown; expected one of {', '.join(names)}")
    for key, least in (("stride", 1), ("spare", 0), ("max_windows", 0), ("bos_token", 0)):
        value = getattr(method, key)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
            raise ArgumentError(f"{key} {value!r}: expected a whole number of at least {least}")
    if not re.fullmatch(r"\d+|model|\d+\+stride/2", str(method.window)):
        raise ArgumentError(f"window {method.window!r}: expected a number of tokens, model, or N+stride/2")
    if not re.fullmatch(r"\d+|half|stride", str(method.first)):
        raise ArgumentError(f"first {method.first!r}: expected a position, half, or stride")
    if (method.cut == "lm-eval") != (method.bos == "lm-eval"):
        raise ArgumentError(
            f"method {name}: bos {method.bos} does not go with cut {method.cut}: bos lm-eval and cut lm-eval need each other"
        )
    _check_rolling(method, given)
    return method


def _check_rolling(method: Method, given: dict[str, Any]) -> None:
    """lm-eval's windows follow from their length alone, so other fields of windows cannot be set."""
    fixed = ("stride", "first", "new", "tail", "spare", "max_windows")
    for key in fixed if method.cut == "lm-eval" else ():
        if key in given:
            raise ArgumentError(f"{key} has no meaning for lm-eval's windows, which follow from their length: leave it out")
    if method.error == "tokens" and method.mean != "token":
        raise ArgumentError(f"error tokens goes with mean token, not with mean {method.mean}: use error windows or documents")
    if method.mean == "word" and method.cut != "lm-eval":
        raise ArgumentError("mean word needs every token to be scored once: use method lm-eval")


def _window(method: Method, max_length: int) -> int:
    context, _, more = str(method.window).partition("+")
    if context == "model":
        return max_length
    if more and method.stride is None:
        raise ArgumentError(f"window {method.window}: the stride is missing")
    return int(context) + (method.stride or 0) // 2 if more else int(context)


def _first(method: Method, window: int, stride: int) -> int:
    names: dict[int | str, int] = {"half": window // 2 + 1, "stride": max(1, window - stride)}
    return names[method.first] if method.first in names else int(method.first)


def resolve(method: Method, max_length: int) -> Method:
    """The method with numbers for window, stride and first. max_length: the longest input of the model. Raises
    ArgumentError if they contradict each other or the model."""
    window = _window(method, max_length)
    stride = window if method.stride is None else method.stride
    first = _first(method, window, stride)
    before = method.bos == "prefix"
    most = max_length + (not before) if method.cut == "rule" else max_length
    if not (2 if method.cut == "rule" else 1) <= window <= most:
        raise ArgumentError(
            f"window {window}: the model takes at most {most} tokens in a window: choose a smaller --window"
            if window > most
            else f"window {window}: expected at least 2 tokens"
        )
    if stride > window:
        raise ArgumentError(f"stride {stride} is larger than the window of {window} tokens: tokens would be left out")
    if not (0 if before else 1) <= first < window:
        raise ArgumentError(
            f"first {first}: expected a position in {0 if before else 1}..{window - 1} of the window of {window} tokens"
        )
    return replace(method, window=window, stride=stride, first=first)


def least_tokens(method: Method) -> int:
    """Tokens that a text must have for one window; the method is resolved."""
    if method.cut == "lm-eval":
        return 1
    return (int(method.first) + 1 if method.tail else int(method.window)) + method.spare


class Counts(NamedTuple):
    """Windows, scored tokens (targets), and tokens that the model reads."""

    windows: int
    targets: int
    inputs: int


def total(method: Method, sizes: Iterable[int]) -> Counts:
    """Of documents with so many tokens; the method is resolved. The worker cuts the windows: this only says beforehand what
    it will do."""
    counts = [_count(method, n_tokens) for n_tokens in sizes]
    return Counts(*(sum(column) for column in zip(Counts(0, 0, 0), *counts)))


def _count(method: Method, n_tokens: int) -> Counts:
    window, stride = int(method.window), int(method.stride or method.window)
    if method.cut == "lm-eval":
        n = -(-n_tokens // window)
        return Counts(n, n_tokens, n_tokens if n_tokens <= window else n * window)
    n, end, windows, scored, inputs = n_tokens - method.spare, 0, 0, 0, 0
    for start in range(0, max(n, 0), stride):
        stop = min(start + window, n)
        begin = max(start + int(method.first), end if method.new else 0)
        if (stop - start < window and (not method.tail or end == n)) or begin >= stop:
            break
        windows, end = windows + 1, stop
        scored, inputs = scored + stop - begin, inputs + stop - start - 1 + (method.bos == "prefix")
        if windows == method.max_windows:
            break
    return Counts(windows, scored, inputs)
