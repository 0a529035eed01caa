"""Which of a tokenizer's files decides: the same as in transformers 5, over all spellings of tokenizer_spellings.py."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import tokenizer_spellings

from ctworker.base.errors import ArgumentError
from ctworker.text.tokenizer import TextTokenizer

EXPECTED = json.loads(tokenizer_spellings.TABLE.read_text(encoding="utf-8"))["spellings"]

#: Spellings whose splits ctworker keeps (docs/METHODS.md, "Tokens"): the spelling with the same file and no class.
KEPT = {name: "digits-no-class" for name in ("GPT2Tokenizer-digits", "CodeGenTokenizer-digits", "GPTNeoXTokenizer-digits")}

#: Spellings that transformers refuses with a TypeError: the spelling with the same meaning.
READ = {"plain-dicts": "typed", "additional-dicts": "additional-meant", "extra-map-dicts": "extra-meant"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return tokenizer_spellings.write(tmp_path_factory.mktemp("spellings"))


def test_the_table_is_whole(folders: dict[str, Path]) -> None:
    assert set(folders) == set(EXPECTED) and len(EXPECTED) >= 60


@pytest.mark.parametrize("name", [name for name, entry in EXPECTED.items() if "error" not in entry and name not in KEPT])
def test_what_transformers_reads(folders: dict[str, Path], name: str) -> None:
    assert tokenizer_spellings.describe(TextTokenizer(folders[name], name=name)) == EXPECTED[name]


@pytest.mark.parametrize("name", list(KEPT))
def test_splits_that_the_class_lacks_are_kept(
    folders: dict[str, Path], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    found = tokenizer_spellings.describe(TextTokenizer(folders[name], name=name))
    assert found["ids"] == EXPECTED[KEPT[name]]["ids"] != EXPECTED[name]["ids"]
    assert "has splits (Digits) that" in caplog.text and "ctworker keeps them" in caplog.text


@pytest.mark.parametrize("class_name", ["PreTrainedTokenizerFast", "GPT2Tokenizer"])
@pytest.mark.parametrize("name", list(READ))
def test_what_only_transformers_refuses(folders: dict[str, Path], name: str, class_name: str) -> None:
    """Objects without a type where it expects strings; their meaning is clear."""
    assert "TypeError" in EXPECTED[f"{class_name}-{name}"]["error"]
    found = TextTokenizer(folders[f"{class_name}-{name}"], name=name)
    assert tokenizer_spellings.describe(found) == EXPECTED[f"{class_name}-{READ[name]}"]


def _copy(source: Path, folder: Path, **changes: Any) -> Path:
    """A copy with changes to tokenizer_config.json."""
    for file in source.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return folder


def test_kept_splits_take_the_prefix_of_the_configuration(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = _copy(folders["GPT2Tokenizer-digits"], tmp_path, add_prefix_space=True)
    found = tokenizer_spellings.describe(TextTokenizer(folder, name="x"))
    assert found["ids"] == EXPECTED["digits-no-class-file-prefixes"]["ids"]


def test_a_class_that_is_not_followed_is_named(
    folders: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    TextTokenizer(_copy(folders["TokenizersBackend"], tmp_path, tokenizer_class="T5TokenizerFast"), name="x")
    assert "class T5Tokenizer, ctworker uses the file as it is" in caplog.text


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"added_tokens_decoder": {"x": {"content": "a"}}}, "id of an added token is 'x', expected a number"),
        ({"added_tokens_decoder": {"1": {"special": True}}}, "an added token has no text"),
        ({"extra_special_tokens": 7}, "is a int, expected a list of tokens"),
    ],
)
def test_broken_tokens(folders: dict[str, Path], tmp_path: Path, changes: dict[str, Any], expected: str) -> None:
    folder = _copy(folders["TokenizersBackend"], tmp_path, **changes)
    with pytest.raises(ArgumentError, match=expected):
        TextTokenizer(folder, name="x")


def _metaspace(folder: Path, source: Path, **fields: Any) -> TextTokenizer:
    stored = json.loads((source / "tokenizer.json").read_text())
    step = {"type": "Metaspace", "replacement": "\u2581", **fields}
    stored |= {"normalizer": None, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [step]}, "decoder": step}
    folder.mkdir()
    (folder / "tokenizer.json").write_text(json.dumps(stored))
    return TextTokenizer(folder, name="x")


def test_a_metaspace_of_old_libraries(folders: dict[str, Path], tmp_path: Path) -> None:
    """Before schemes had names, "no prefix" was written in a way that the library now calls a contradiction."""
    source = folders["llama-Llama"]
    old = _metaspace(tmp_path / "old", source, add_prefix_space=False, str_rep="\u2581")
    now = _metaspace(tmp_path / "now", source, prepend_scheme="never")
    assert old.fingerprint == now.fingerprint and old.encode("a  b") == now.encode("a  b")
    old = _metaspace(tmp_path / "old-prefix", source, add_prefix_space=True, str_rep="\u2581")
    assert old.fingerprint == _metaspace(tmp_path / "always", source, prepend_scheme="always").fingerprint
    expected = r"tokenizer\.json: a Metaspace has add_prefix_space false and prepend_scheme 'first', which contradict.*\"never\""
    with pytest.raises(ArgumentError, match=expected):
        _metaspace(tmp_path / "both", source, add_prefix_space=False, prepend_scheme="first")
    with pytest.raises(ArgumentError, match=r"tokenizer\.json: the tokenizers library .* says: unknown variant.*save_pretrained"):
        _metaspace(tmp_path / "unknown", source, prepend_scheme="sometimes")


FILES = ["tokenizer.json", "tokenizer_config.json", "config.json", "special_tokens_map.json", "added_tokens.json"]


@pytest.mark.parametrize("name", FILES)
def test_unreadable_files(folders: dict[str, Path], tmp_path: Path, name: str) -> None:
    """A Git LFS pointer, an empty file, another encoding, no object: the file, the cause, the remedy. A byte order
    mark is skipped."""
    folder = _copy(folders["PreTrainedTokenizerFast-added-special"], tmp_path)
    good, expected = (folder / name).read_bytes(), EXPECTED["PreTrainedTokenizerFast-added-special"]
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 17209\n"
    for content, cause in [
        (pointer, "is a Git LFS pointer, not the file itself; fetch it with: git lfs pull"), (b" \n", "the file is empty"),
        (good.decode().encode("utf-16"), "not UTF-8 text"), (b'"text"', "expected a JSON object, found str"),
        (b"[" * 100_000, "cannot be read as JSON"),
    ]:  # fmt: skip
        (folder / name).write_bytes(content)
        with pytest.raises(ArgumentError, match=f"{name}: .*{cause}"):
            TextTokenizer(folder, name="x")
    (folder / name).write_bytes(b"\xef\xbb\xbf" + good)
    assert tokenizer_spellings.describe(TextTokenizer(folder, name="x")) == expected
