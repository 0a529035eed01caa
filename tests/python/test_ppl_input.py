"""ctworker-ppl: texts, data sets and what is refused."""

from __future__ import annotations

import gzip
import json
import os
import re
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from ctworker.perplexity import texts
from ppl_cases import refusal, report_of
from ppl_cases import text_file  # noqa: F401 (fixtures)


def test_files_of_rows(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """JSON lines, gzip and Parquet give the same rows; the join is the method's."""
    rows = ["one two", "", "three"]
    lines = "".join(json.dumps({"body": row, "n": 1}) + "\n" for row in rows)
    (tmp_path / "a.jsonl").write_text(lines)
    (tmp_path / "b.json.gz").write_bytes(gzip.compress(lines.encode()))
    pyarrow.parquet.write_table(pyarrow.table({"body": rows}), tmp_path / "c.parquet")
    (tmp_path / "d.jsonl").write_text(lines, encoding="utf-8-sig")  # as editors of Windows save it
    for name in ("a.jsonl", "b.json.gz", "c.parquet", "d.jsonl"):
        path = str(tmp_path / name)
        assert texts.load_file(path, "rows", "body").documents == ["one two\n\n\n\nthree"]
        assert texts.load_file(path, "nonempty", "body").documents == ["one two\n\nthree"]
        assert texts.load_file(path, "space", "body").documents == ["one two  three"]
        documents = texts.load_file(path, "documents", "body")
        assert documents.documents == ["one two", "three"] and "1 of 3 documents are empty" in documents.notes[0]
        assert "has no" in refusal(capsys, checkpoint, "--text", path)


def test_named_data_sets(tmp_path: Path) -> None:
    path = tmp_path / "c4.jsonl"
    path.write_text("".join(json.dumps({"text": f"row {i}"}) + "\n" for i in range(1200)))
    text = texts.load(f"c4={path}", "rows", join_given=False)
    assert text.join == "space" and text.windows == 256 and text.documents[0].endswith("row 1099")
    assert texts.load(f"c4={path}", "pages", join_given=False).join == "documents"
    assert texts.load(f"c4={path}", "rows", join_given=True).documents[0].startswith("row 0\n\nrow 1")


REFUSED = {
    "unknown method": (["--method", "gtpq"], "did you mean gptq-2048"),
    "unknown join": (["--join", "lines"], "join 'lines' is unknown; expected one of rows"),
    "window too short": (["--window", "1"], "at least 2 tokens"),
    "stride": (["--window", "8", "--stride", "9"], "tokens would be left out"),
    "first": (["--window", "8", "--first", "8"], "expected a position in 1..7"),
    "first 0": (["--window", "8", "--first", "0"], "expected a position in 1..7"),
    "window": (["--window", "big"], "expected a number of tokens, model, or N"),
    "max_windows": (["--max-windows", "-1"], "max_windows -1: expected a whole number"),
    "short text": (["--window", "2000000"], "needs at least 2000000"),
    "short text, window from the stride": (
        ["--method", "llama.cpp-stride", "--window", "2000000+stride/2"], "needs at least 2000257",
    ),
    "no bos": (["--bos", "replace"], "does not add its BOS to texts, .*--bos-token 256"),
    "bos-token": (["--bos-token", "9999"], "has only 258 tokens"),
    "rolling": (["--method", "lm-eval", "--stride", "8"], "stride has no meaning"),
    "mixed": (["--bos", "lm-eval"], "need each other"),
    "word": (["--mean", "word"], "every token to be scored once"),
    "error": (["--method", "hf-sliding", "--error", "tokens"], "goes with mean token"),
    "dataset": (["--dataset", "wikitext3"], "unknown: expected one of wikitext2"),
    "no file": (["--text", "/nowhere/x"], "there is no such file"),
    "json": (["--json", "/nowhere/x.json"], "cannot be written"),
    "per-token": (["--per-token", "/nowhere/x.parquet"], "cannot be written"),
    "model": (["--endpoint", "ipc:///nowhere"], "not both"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case: str, checkpoint: Path, text_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One sentence, without a worker: its program does not exist here."""
    os.environ["CTWORKER_BIN"] = "/nowhere/ctworker"
    arguments, message = REFUSED[case]
    try:
        said = refusal(capsys, checkpoint, *([] if "--dataset" in arguments else ["--text", text_file]), *arguments)
    finally:
        del os.environ["CTWORKER_BIN"]
    assert re.search(message, said), said


def test_bad_texts(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    latin, empty = tmp_path / "latin.txt", tmp_path / "empty.txt"
    latin.write_bytes("first line\nna\xefve".encode("latin-1"))
    empty.write_text(" \n")
    (tmp_path / "bad.jsonl").write_text('{"text": "a"}\n{"text": 3}\n')
    assert f"{latin}: line 2 is not UTF-8 (byte 13 is 0xef)" in refusal(capsys, checkpoint, "--text", latin)
    pointer = tmp_path / "pointer.txt"
    pointer.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 17209\n")
    assert f"{pointer}: is a Git LFS pointer, not the file itself; fetch it" in refusal(capsys, checkpoint, "--text", pointer)
    assert "there is no text in it" in refusal(capsys, checkpoint, "--text", empty)
    assert "line 2: 'text' holds 3, expected text" in refusal(capsys, checkpoint, "--text", tmp_path / "bad.jsonl")


def test_the_model_bounds_the_window(
    checkpoint: Path, text_file: Path, real_worker: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Known only once the model is loaded."""
    said = refusal(capsys, checkpoint, "--text", text_file, "--window", 4000)
    assert "the model takes at most 2049 tokens in a window" in said
    report = report_of(capsys, checkpoint, "--text", text_file, "--method", "llama.cpp-512")
    assert report["method"]["bos_token"] is None and any("adds no BOS" in note for note in report["notes"])
