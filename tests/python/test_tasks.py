"""tasks/: WikiText-2 from a local file, as documents and as joined texts."""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

import fake_worker
from conftest import ROOT
from test_processes import LM_EVAL, run

DATA = Path(os.environ.get("CTWORKER_DATA", ROOT.parent / "shared/data"))
RAW = (
    " \n = First Title = \n \n Some text , with 1 @,@ 000 words . \n = = Part = = \n \n More \u2028 of it . \n"
    " \n = Second ( one ) = \n \n Text = of = it . \n \n"
)
PAGES = [
    " = First Title = \n \n Some text , with 1 @,@ 000 words . \n = = Part = = \n \n More \u2028 of it . \n ",
    " = Second ( one ) = \n \n Text = of = it . \n \n",
]


@pytest.fixture(scope="module")
def module() -> ModuleType:
    sys.path.insert(0, str(ROOT / "tasks"))
    return importlib.import_module("ctworker_wikitext")


@pytest.fixture
def use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "text"
        path.write_bytes(text.encode())
        monkeypatch.setenv("CTWORKER_WIKITEXT", str(path))
        return path

    return write


def page(dataset: dict) -> str:
    assert len(dataset["test"]) == 1
    return dataset["test"][0]["page"]


@pytest.mark.parametrize("text", [RAW, "".join(json.dumps({"page": page}) + "\n" for page in PAGES)])
def test_small_file(module: ModuleType, use: Callable[[str], Path], text: str) -> None:
    """Both file formats give the same documents and the same joined texts."""
    use(text)
    assert list(module.document_level()["test"]["page"]) == PAGES
    rows = ["" if line == " \n" else line for line in re.findall("[^\n]*\n", RAW)]
    assert page(module.joined()) == "\n\n".join(rows)
    assert page(module.joined_nonempty()) == "\n\n".join(row for row in rows if row)


@pytest.mark.parametrize("name", ["wiki.test.raw", "wikitext2_test_document_level.jsonl"])
def test_the_official_file(module: ModuleType, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Lengths and hashes of the whole test set."""
    if not (DATA / name).is_file():
        pytest.skip(f"no {name}: set CTWORKER_DATA")
    monkeypatch.setenv("CTWORKER_WIKITEXT", str(DATA / name))
    pages = list(module.document_level()["test"]["page"])
    stored = (DATA / "wikitext2_test_document_level.jsonl").read_text(encoding="utf-8").split("\n")
    assert len(pages) == 62 and pages == [json.loads(line)["page"] for line in stored if line]
    full, nonempty = (page(make()).encode() for make in (module.joined, module.joined_nonempty))
    assert len(full) == 1_296_370 and len(nonempty) == 1_293_436
    assert hashlib.sha256(full).hexdigest().startswith("696cca6b65a171b0")
    assert hashlib.sha256(nonempty).hexdigest().startswith("c5b5caea5bd655cb")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"text": 1}\n', "line 1"),
        ('{"page": "a"}\nnonsense', "line 2"),
        ('{"page": 3}', "line 1"),
        ("", "no document"),
        ("\n \n", "no document"),
    ],
)
def test_bad_files(module: ModuleType, use: Callable[[str], Path], text: str, words: str) -> None:
    path = use(text)
    with pytest.raises(ValueError, match=words) as caught:
        module.document_level()
    assert str(path) in str(caught.value) and "wiki.test.raw" in str(caught.value)


def test_missing_file(module: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CTWORKER_WIKITEXT", str(tmp_path / "none"))
    with pytest.raises(ValueError, match="cannot be read"):
        module.joined()


def test_through_lm_eval(
    fake: Callable[[str], Path], use: Callable[[str], Path], checkpoint: Path, tmp_path: Path
) -> None:
    """The task `wikitext` replaces the built-in task; the toy model's expected numbers are computed here."""
    from lm_eval.tasks.wikitext.preprocess_wikitext import wikitext_detokenizer

    fake()
    use(RAW)
    command = [*LM_EVAL, "--model", "ctworker", "--model_args", f"pretrained={checkpoint},max_length=32"]
    command += [
        "--tasks",
        "wikitext,wikitext_joined",
        "--include_path",
        str(ROOT / "tasks"),
        "--output_path",
        str(tmp_path / "o"),
    ]
    run(command)
    results = json.loads(next((tmp_path / "o").rglob("results_*.json")).read_text())["results"]

    def word_perplexity(texts: list[str], originals: list[str]) -> float:
        total = sum(fake_worker.rolling_sum(list(text.encode()), 256, 32) for text in texts)
        return math.exp(-total / sum(len(re.split(r"\s+", text)) for text in originals))

    scored = [wikitext_detokenizer({"page": text}) for text in PAGES]
    assert results["wikitext"]["word_perplexity,none"] == pytest.approx(word_perplexity(scored, PAGES), rel=1e-12)
    rows = ["" if line == " \n" else line for line in re.findall("[^\n]*\n", RAW)]
    joined = ["\n\n".join(rows)]
    assert results["wikitext_joined"]["word_perplexity,none"] == pytest.approx(
        word_perplexity(joined, joined), rel=1e-12
    )
