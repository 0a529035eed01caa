"""What the tests of ctworker-ppl share: a text, a checkpoint whose tokenizer adds BOS, and runs of the command."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, processors

from conftest import ROOT
from ctworker.perplexity import main as ppl

BOS, N_IDS = 256, 258  # the head has 320 rows
WIKITEXT = Path(os.environ.get("CTWORKER_DATA", ROOT.parent / "shared/data")) / "wiki.test.raw"
#: Enough for three windows of 2048 byte tokens and for a shorter one.
TEXT = "".join(f"Line {i} of a text about {'bc' * (i % 7)}, whose tokens are bytes.\n" for i in range(130))


@pytest.fixture(scope="module")
def with_bos(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint with a tokenizer that puts BOS before a text."""
    folder = tmp_path_factory.mktemp("with_bos") / "model"
    shutil.copytree(checkpoint, folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", BOS)])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def report_of(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    """The report of a successful run."""
    code = ppl.main([*map(str, arguments), "--json", "-", "--quiet"])
    out, err = capsys.readouterr()
    assert code == 0, err
    return json.loads(out)


def refusal(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The message of a run that is refused: one line."""
    assert ppl.main([*map(str, arguments), "--quiet"]) in (64, 70)
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1, err
    return err
