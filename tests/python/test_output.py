"""What commands print where it cannot be printed: the report's file is whole, and the error is one sentence."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
from ctworker.errors import CtworkerError
from ctworker.output import ReportFile, exit_code


@pytest.mark.parametrize("name", ["report.json", "-"])
def test_standard_output_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    file = tmp_path / name
    report = ReportFile(name if name == "-" else str(file))
    with open("/dev/full", "w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(CtworkerError, match="standard output: cannot be written: No space left on device"):
            report.finish({"a": 1}, "a: 1")
    assert name == "-" or json.loads(file.read_text()) == {"a": 1}


def test_letters_that_the_terminal_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seen in ((None, b"1 ? 2\n"), ("-", b'{\n "a": "1 \\u00b1 2"\n}\n')):
        written = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
        assert exit_code("command", lambda: ReportFile(name).finish({"a": "1 \u00b1 2"}, "1 \u00b1 2") or 0) == 0
        assert written.getvalue() == seen
