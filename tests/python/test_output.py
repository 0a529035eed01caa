"""What commands print where it cannot be printed: the report's file is whole, and the error is one sentence."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from ctworker.base import tables
from ctworker.base.errors import CtworkerError
from ctworker.base.output import ReportFile, exit_code


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


@pytest.mark.parametrize("closed", [[0], [1], [2], [0, 1, 2]])
def test_standard_streams_that_are_closed(tmp_path: Path, closed: list[int]) -> None:
    """No file gets the number of a closed one, and a report that cannot be printed is an error."""
    file = tmp_path / "report.json"
    program = (
        "import sys\n"
        "from ctworker.base.output import ProgressLine, ReportFile, exit_code\n"
        "def run():\n"
        "    ProgressLine('a').close()\n"
        "    report = ReportFile(sys.argv[1])\n"
        "    print('to standard error', file=sys.stderr)\n"
        "    report.finish({'a': 1}, 'a: 1')\n"
        "    return 0\n"
        "sys.exit(exit_code('command', run))\n"
    )
    command = 'exec "$0" -c "$@" ' + " ".join(f"{fd}>&-" for fd in closed)
    done = subprocess.run(["sh", "-c", command, sys.executable, program, str(file)], capture_output=True, text=True)
    assert json.loads(file.read_text()) == {"a": 1}
    assert done.returncode == (70 if 1 in closed else 0), done.stderr
    assert done.stdout == ("" if 1 in closed else "a: 1\n")
    if closed == [1]:
        assert "command: standard output: cannot be written: Bad file descriptor" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("n", "text"), [(812, "812 B"), (1536, "1.5 KiB"), (1 << 20, "1.0 MiB"), (3_100_000_000, "2.9 GiB"), (1 << 41, "2.0 TiB")])  # fmt: skip
def test_sizes_are_as_the_worker_prints_them(n: int, text: str) -> None:
    assert tables.size(n) == text
