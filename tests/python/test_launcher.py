"""Starting our own worker: its program, its environment, its folder."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from ctworker import launcher
from ctworker.errors import CtworkerError
from ctworker.launcher import WorkerProcess


@pytest.mark.parametrize(("program", "code"), [("/bin/false", 1), ("/bin/true", 0)])
def test_another_program(monkeypatch: pytest.MonkeyPatch, program: str, code: int) -> None:
    monkeypatch.setenv("CTWORKER_BIN", program)
    worker = WorkerProcess(["--model", "a b"])
    with pytest.raises(CtworkerError) as caught:
        worker.wait_ready()
    worker.close()
    text = str(caught.value)
    assert text.startswith(f"{program} ended with exit code {code} and printed nothing")
    assert f"{program} serve --listen" in text and "--model 'a b'" in text and "CTWORKER_BIN" in text


def test_no_folder_for_the_socket(
    fake: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """/proc: even root cannot create a folder there, although access() reports that it could."""
    fake()
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/proc")
    monkeypatch.setattr(launcher.os, "access", lambda *_: True)
    with pytest.raises(CtworkerError, match=r"made in /proc \(.*set XDG_RUNTIME_DIR.*or unset it"):
        WorkerProcess([])


def test_options_of_the_shell_are_not_the_workers(
    fake: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    checkpoint: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """CTW_MAX_LENGTH=128 would otherwise be reported as the model's own length."""
    record = fake()
    launcher._tell_ignored.cache_clear()
    for name in [name for name in os.environ if name.startswith("CTW_")]:
        monkeypatch.delenv(name)
    for name, value in [("MAX_LENGTH", "128"), ("THREADS", "7"), ("LOG", "debug"), ("TOKEN", "x")]:
        monkeypatch.setenv(f"CTW_{name}", value)
    for _ in range(2):
        worker = WorkerProcess(["--model", str(checkpoint)])
        worker.wait_ready()
        worker.close()
        assert json.loads(record.read_text())["options"] == {"CTW_LOG": "debug"}
    (told,) = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert told.startswith("ignored: CTW_MAX_LENGTH, CTW_THREADS (")
