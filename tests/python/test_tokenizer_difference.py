"""Which tokenizers may be compared, and the sentence for those that may not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ctworker.compare.tokenizers import difference
from ctworker.text.tokenizer import TextTokenizer

TEXTS = ["Some text,", " and More."]


@pytest.fixture
def found(checkpoint: Path, tmp_path: Path) -> Callable[[Callable[[dict[str, Any]], Any]], str | None]:
    """found(change): the difference between the checkpoint's tokenizer, A, and a changed copy, B."""

    def use(change: Callable[[dict[str, Any]], Any], reverse: bool = False) -> str | None:
        folder = tmp_path / "b"
        shutil.copytree(checkpoint, folder, dirs_exist_ok=True)
        content = json.loads((checkpoint / "tokenizer.json").read_text())
        change(content)
        (folder / "tokenizer.json").write_text(json.dumps(content))
        pair = [TextTokenizer(checkpoint, name="A"), TextTokenizer(folder, name="B")]
        if reverse:
            pair.reverse()
        a, b = pair
        return difference(a, b, TEXTS, *([x.encode(text) for text in TEXTS] for x in pair))

    return use


def swap(content: dict[str, Any], one: str, other: str) -> None:
    vocab = content["model"]["vocab"]
    vocab[one], vocab[other] = vocab[other], vocab[one]


def add(content: dict[str, Any]) -> None:
    content["added_tokens"].append(content["added_tokens"][-1] | {"id": 258, "content": "<pad>"})


def lower(content: dict[str, Any]) -> None:
    content["normalizer"] = {"type": "Lowercase"}


def add_bos(content: dict[str, Any]) -> None:
    token = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [token, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [256], "tokens": ["<s>"]}},
    }


def test_files_that_differ_without_effect_agree(found: Callable[..., str | None]) -> None:
    assert found(lambda content: None) is None
    truncation = {"direction": "Right", "max_length": 9999, "strategy": "LongestFirst", "stride": 0}
    assert found(lambda content: content.update(truncation=truncation)) is None
    assert found(add) is None
    assert found(lambda content: swap(content, "X", "Z")) is None  # neither is in the texts


@pytest.mark.parametrize("reverse", [False, True])
def test_a_bos_is_named(found: Callable[..., str | None], reverse: bool) -> None:
    assert found(add_bos, reverse) == "B puts <s> before a text, A does not"


def test_another_vocabulary_is_named(found: Callable[..., str | None]) -> None:
    assert found(lambda content: swap(content, "x", "Z")) == "token 90 is 'Z' in A and 'x' in B"


def test_equal_ids_of_other_tokens_are_named(found: Callable[..., str | None]) -> None:
    """Rot-1 of the vocabulary and of the normalizer's output: the ids of the texts are equal, their meanings are not."""

    def rename(content: dict[str, Any]) -> None:
        swap(content, "x", "y")
        content["normalizer"] = {"type": "Replace", "pattern": {"String": "x"}, "content": "y"}

    assert found(rename) == "token 120 is 'x' in A and 'y' in B"


def test_the_first_difference_in_the_text_is_shown(found: Callable[..., str | None]) -> None:
    assert found(lower) == "after '', A has the tokens 'S' 'o' 'm' and B has the tokens 's' 'o' 'm' (10 and 10 tokens in all)"
    longer = {"type": "Replace", "pattern": {"String": ","}, "content": ",!"}
    expected = "after 'me text,', A has no token and B has the tokens '!' (10 and 11 tokens in all)"
    assert found(lambda content: content.update(normalizer=longer)) == expected
