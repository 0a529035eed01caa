"""Parts of a tokenizer.json: reading what older libraries wrote, and its pre-tokenizer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from ..base.errors import ArgumentError


def load(path: Path, stored: dict[str, Any]) -> Tokenizer:
    """The tokenizer of a file whose content is `stored`."""
    changed = [_modernise(path, step) for step in _steps(stored, "pre_tokenizer", "decoder")]
    with path.open("rb") as file:
        has_mark = file.read(3) == b"\xef\xbb\xbf"
    if any(changed) or has_mark:
        return Tokenizer.from_str(json.dumps(stored, ensure_ascii=False))
    return Tokenizer.from_file(str(path))


def _steps(stored: dict[str, Any], *parts: str) -> Iterator[dict[str, Any]]:
    """The steps of parts of a tokenizer, sequences unrolled."""
    left = [stored.get(part) for part in parts]
    while left:
        step = left.pop(0)
        if not isinstance(step, dict):
            continue
        if step.get("type") == "Sequence":
            left += step.get("pretokenizers") or step.get("decoders") or []
        else:
            yield step


def _modernise(path: Path, step: dict[str, Any]) -> bool:
    """Gives a Metaspace of tokenizers before 0.14, which says only whether a text gets a prefix, the scheme of that
    meaning. The library itself reads "no" without a scheme as a contradiction. Returns whether the step was changed."""
    if step.get("type") != "Metaspace" or step.get("add_prefix_space") is not False:
        return False
    if step.get("prepend_scheme") is None:
        step["prepend_scheme"] = "never"
        return True
    if step["prepend_scheme"] != "never":
        raise ArgumentError(
            f"{path}: a Metaspace has add_prefix_space false and prepend_scheme {step['prepend_scheme']!r}, which contradict "
            'each other (tokenizers 0.14 and 0.15 wrote such files): if texts get no prefix, replace the scheme by "never", '
            "else remove add_prefix_space"
        )
    return False


def further_splits(stored: dict[str, Any]) -> list[str]:
    """The types of the pre-tokenizers that split a text in other ways than GPT-2 does."""
    steps = list(_steps(stored, "pre_tokenizer"))
    own = [str(step.get("type")) for step in steps if step.get("type") != "ByteLevel"]
    bare = [step for step in steps if step.get("type") == "ByteLevel" and not step.get("use_regex", True)]
    return own or ["ByteLevel without GPT-2's"] * bool(bare)


def set_prefix_space(tokenizer: Tokenizer, stored: dict[str, Any], prefix_space: bool) -> None:
    """Sets whether a text gets a blank before it, in place of what the file says."""
    for step in _steps(stored, "pre_tokenizer"):
        if step.get("type") == "ByteLevel":
            step["add_prefix_space"] = prefix_space
    empty = {"type": "BPE", "vocab": {}, "merges": []}
    part = {"model": empty, "added_tokens": [], "pre_tokenizer": stored["pre_tokenizer"]}
    tokenizer.pre_tokenizer = Tokenizer.from_str(json.dumps(part)).pre_tokenizer
