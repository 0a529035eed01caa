"""Token ids compared with those of transformers."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import tokenizer_cases
from tokenizers import Tokenizer

from ctworker.base.errors import ArgumentError
from ctworker.text.tokenizer import TextTokenizer

EXPECTED = json.loads((tokenizer_cases.DATA / "tokenizer_ids.json").read_text(encoding="utf-8"))["cases"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return tokenizer_cases.write(tmp_path_factory.mktemp("tokenizers"))


@pytest.mark.parametrize("name", list(EXPECTED))
@pytest.mark.parametrize("add_bos", [None, True, False])
def test_ids_are_those_of_transformers(folders: dict[str, Path], name: str, add_bos: bool | None) -> None:
    tokenizer = TextTokenizer(folders[name], name=name, add_bos_token=add_bos)
    expected = EXPECTED[name]
    for text, (with_special, without) in zip(tokenizer_cases.TEXTS, expected[f"ids {add_bos}"], strict=True):
        assert tokenizer.encode(text) == with_special, text
        assert tokenizer.encode(text, add_special_tokens=False) == without, text
    assert list(tokenizer.encode_batch(tokenizer_cases.TEXTS)) == [pair[0] for pair in expected[f"ids {add_bos}"]]
    for key in ("bos_token_id", "eos_token_id", "vocab_size", "model_max_length"):
        assert getattr(tokenizer, key) == expected[key], key
    assert len(tokenizer) == expected["length"]
    ids = tokenizer.encode(tokenizer_cases.TEXTS[5], add_special_tokens=False)
    assert tokenizer.decode(ids) == expected["decoded"]


def test_every_case_is_covered(folders: dict[str, Path]) -> None:
    assert set(folders) == set(EXPECTED)


def test_says_where_transformers_4_differs(folders: dict[str, Path], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    TextTokenizer(folders["llama2"], name="x")
    assert not caplog.records
    TextTokenizer(folders["llama2-says-no-bos"], name="x")
    assert "transformers 4" in caplog.text and "add_bos_token=True or False" in caplog.text


def test_missing_files_name_the_remedy(tmp_path: Path, without_transformers: None) -> None:
    with pytest.raises(ArgumentError, match=r"no tokenizer\.json.*tokenizer="):
        TextTokenizer(tmp_path, name="x")
    (tmp_path / "tokenizer.model").write_bytes(b"x")
    with pytest.raises(
        ArgumentError, match=r"has tokenizer\.model but no tokenizer\.json.*pip install transformers.*save_pretrained"
    ):
        TextTokenizer(tmp_path, name="x")
    (tmp_path / "vocab.json").write_text("{}")  # without merges.txt, and without a class
    with pytest.raises(ArgumentError, match=r"has tokenizer\.model and vocab\.json but no tokenizer\.json"):
        TextTokenizer(tmp_path, name="x")


def test_a_broken_vocabulary_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer"}))
    (tmp_path / "vocab.json").write_text('{"a": 0}')
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
    with pytest.raises(ArgumentError, match=r"vocab\.json and merges\.txt: the tokenizers library [\d.]+ says: .*pip install -U"):
        TextTokenizer(tmp_path, name="x")


def test_code_of_a_checkpoint_is_never_run(tmp_path: Path) -> None:
    config = {"tokenizer_class": "QWenTokenizer", "auto_map": {"AutoTokenizer": ["tokenization_qwen.QWenTokenizer", None]}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "tokenizer.model").write_bytes(b"x")
    with pytest.raises(ArgumentError, match=r"QWenTokenizer, auto_map.*never runs.*trust_remote_code=True"):
        TextTokenizer(tmp_path, name="x")


@pytest.fixture
def without_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)  # import raises ImportError


class Built:
    """What transformers returns, with the parts that are used."""

    def __init__(self, folder: Path, **options: bool) -> None:
        self.backend_tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.special_tokens_map = {"bos_token": "<s>", "eos_token": "</s>", "additional_special_tokens": []}
        self.options = options


def test_transformers_builds_what_only_it_can(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"x")
    calls = []

    def from_pretrained(path: str, **options: bool) -> Built:
        calls.append((path, options))
        return Built(folders["llama2"])

    module = SimpleNamespace(AutoTokenizer=SimpleNamespace(from_pretrained=from_pretrained))
    monkeypatch.setitem(sys.modules, "transformers", module)
    ours = TextTokenizer(tmp_path, name="x", add_bos_token=True)
    theirs = Tokenizer.from_file(str(folders["llama2"] / "tokenizer.json"))
    assert ours.encode("two words") == theirs.encode("two words").ids
    assert (ours.bos_token, ours.eos_token_id) == ("<s>", 2)
    TextTokenizer(tmp_path, name="x")
    assert calls == [(str(tmp_path), {"add_bos_token": True}), (str(tmp_path), {})]


@pytest.mark.parametrize("fault", [ValueError("sentencepiece is missing"), SimpleNamespace()])
def test_transformers_cannot_build_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: object) -> None:
    """It fails, or it runs the tokenizer in Python."""
    (tmp_path / "tokenizer.model").write_bytes(b"x")

    def from_pretrained(path: str) -> object:
        if isinstance(fault, Exception):
            raise fault
        return fault

    module = SimpleNamespace(AutoTokenizer=SimpleNamespace(from_pretrained=from_pretrained))
    monkeypatch.setitem(sys.modules, "transformers", module)
    with pytest.raises(ArgumentError, match=r"no tokenizer\.json.*(sentencepiece is missing|in Python)"):
        TextTokenizer(tmp_path, name="x")


def test_broken_vocabulary(folders: dict[str, Path], tmp_path: Path) -> None:
    for file in folders["gpt2-no-class-files"].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "merges.txt").write_text("a b c\n")
    with pytest.raises(ArgumentError, match=r"vocab\.json and merges\.txt"):
        TextTokenizer(tmp_path, name="x")


@pytest.mark.parametrize("text", ["{", "[]", '{"model": {"type": "Nope"}}'])
def test_broken_tokenizer_json(tmp_path: Path, text: str) -> None:
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(ArgumentError, match=r"tokenizer\.json"):
        TextTokenizer(tmp_path, name="x")
