"""ctworker-ppl's data sets from the hub. A folder with the data set's name stands in for it: the package `datasets` reads both by
the same code, and all of it runs, with configurations, splits and data files."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from conftest import SRC

ROWS = ["", " = Title = \n", "", " some text \n"]
NAMES = [
    "wikitext2", "c4", "ptb", "ORG/rows", "ORG/rows:other:train", "ORG/none", "ORG/rows:third", "ORG/rows:other:test",
]  # fmt: skip
PROGRAM = """
import json, sys
from ctworker.base.errors import CtworkerError
from ctworker.perplexity import texts

for name in sys.argv[1:]:
    try:
        text = texts.load(name, "rows", join_given=False)
        print(json.dumps([text.source, text.join, text.documents, text.windows, text.notes]))
    except CtworkerError as error:
        print(json.dumps(str(error)))
"""


def write(path: Path, **columns: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.table(columns), path)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What load() returns, or its message, for each of NAMES."""
    here = tmp_path_factory.mktemp("hub")
    configs = "---\nconfigs:\n- config_name: {}\n  data_files:\n  - split: {}\n    path: {}\n---\n"
    write(here / "Salesforce/wikitext/wikitext-2-raw-v1/test-00000-of-00001.parquet", text=ROWS)
    (here / "Salesforce/wikitext/README.md").write_text(
        configs.format("wikitext-2-raw-v1", "test", "wikitext-2-raw-v1/test-*"))  # fmt: skip
    write(here / "ptb-text-only/ptb_text_only/test-00000-of-00001.parquet", sentence=["a b", "c d"])
    write(here / "ORG/rows/other/part.parquet", text=["of the split train"])
    (here / "ORG/rows/README.md").write_text(configs.format("other", "train", "other/*"))
    c4 = here / "allenai/c4/en/c4-validation.00000-of-00008.json.gz"
    c4.parent.mkdir(parents=True)
    with gzip.open(c4, "wt") as file:
        file.writelines(json.dumps({"text": f"document {i}", "url": ""}) + "\n" for i in range(1200))
    env = os.environ | {"HF_HOME": str(here / "cache"), "PYTHONPATH": str(SRC)}
    env = {name: value for name, value in env.items() if name not in ("CTWORKER_WIKITEXT", "HF_DATASETS_CACHE")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *NAMES], cwd=here, env=env, capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return dict(zip(NAMES, map(json.loads, done.stdout.splitlines()), strict=True))


def test_named_data_sets(found: dict[str, Any]) -> None:
    source, join, documents, windows, notes = found["wikitext2"]
    assert (source, join, documents, windows) == ("Salesforce/wikitext", "rows", ["\n\n".join(ROWS)], 0)
    assert notes == ["Salesforce/wikitext is not the official test set of WikiText-2: its sha256 differs"]
    first = " ".join(f"document {i}" for i in range(1100))  # GPTQ's selection
    assert found["c4"] == ["allenai/c4", "space", [first], 256, []]
    assert found["ptb"] == ["ptb-text-only/ptb_text_only", "space", ["a b c d"], 0, []]


def test_other_data_sets(found: dict[str, Any]) -> None:
    assert found["ORG/rows:other:train"] == ["ORG/rows", "rows", ["of the split train"], 0, []]


def test_what_is_missing_is_one_sentence(found: dict[str, Any]) -> None:
    for name, words in (("ORG/none", "ORG/none"), ("ORG/rows:third", "third"), ("ORG/rows:other:test", "test"),
                        ("ORG/rows", "test")):  # fmt: skip
        message = found[name]
        assert message.startswith(f"the data set {name.partition(':')[0]} is not available (") and words in message
        assert message.endswith("pass a local file with --dataset NAME=FILE") and "\n" not in message
