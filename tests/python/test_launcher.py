"""Our own worker: its program, its options, its environment, its folder, and its end."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import alive, wait_for

import ctworker
from ctworker.base.errors import ArgumentError, CtworkerError
from ctworker.client import launcher
from ctworker.client.launcher import WorkerProcess
from ctworker.lm import CTWorkerLM


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


def test_an_end_just_after_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that ends after the first look at it has the same error as one that ended before."""
    monkeypatch.setenv("CTWORKER_BIN", "/bin/false")
    worker = WorkerProcess([])
    wait_for(lambda: worker._process.poll() is not None)
    codes = iter((None, 1))
    monkeypatch.setattr(worker._process, "poll", lambda: next(codes, 1))
    with pytest.raises(CtworkerError, match="^/bin/false ended with exit code 1 and printed nothing"):
        worker.wait_ready()
    worker.close()


@pytest.mark.parametrize(
    ("ending", "crashed"),
    [
        ("kill -KILL $$", True),
        ("exit 3", True),  # says no reason
        ("echo 'error: why'; exit 3", False),
        ("echo '12:00 fatal: why'; exit 3", False),
        ("exit 0", False),
        ("kill -TERM $$", False),
        ("exit 143", False),  # 128 + SIGTERM: the worker's exit code after this signal
    ],
)
def test_what_is_a_crash(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ending: str, crashed: bool) -> None:
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\n{ending}\n")
    program.chmod(0o755)
    monkeypatch.setenv("CTWORKER_BIN", str(program))
    worker = WorkerProcess([])
    wait_for(lambda: worker._process.poll() is not None)
    assert worker.crashed == crashed
    worker.close()


def test_no_folder_for_the_socket(fake: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
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


def test_load_errors_are_the_workers_words(make: Callable[..., CTWorkerLM], checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(CtworkerError, match="^config.json: rope_scaling 'x' is not known$"):
        make("load=config.json: rope_scaling 'x' is not known")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(checkpoint / file, tmp_path)
    with pytest.raises(CtworkerError, match=r"config\.json: no such file"):  # the worker ends before it listens
        make(pretrained=str(tmp_path))


def test_worker_options(fake: Callable[[str], Path], checkpoint: Path, tmp_path: Path) -> None:
    record = fake()
    log = tmp_path / "w.log"
    model = CTWorkerLM(str(checkpoint), dtype="float32", max_length=99, threads=3, memory_limit="2GiB",
                       cpu_variant="c", device="cpu", worker_log=str(log), store=str(tmp_path / "s"),
                       store_limit="1GiB", weights_limit="3GiB", host_memory_limit="5GiB", device_memory_limit="50%",
                       placement="streamed", activations="checkpoint")  # fmt: skip
    argv = " ".join(json.loads(record.read_text())["argv"])
    model.close()
    for option in ("--dtype float32", "--max-length 99", "--threads 3", "--memory-limit 2GiB", "--cpu-variant c",
                   "--backend cpu", "--owner-pid", f"--store {tmp_path}/s", "--store-limit 1GiB",
                   "--weights-limit 3GiB", "--host-memory-limit 5GiB", "--device-memory-limit 50%",
                   "--placement streamed", "--activations checkpoint"):  # fmt: skip
        assert option in argv
    assert log.exists()


def test_which_gpu(fake: Callable[[str], Path], checkpoint: Path) -> None:
    record = fake()

    def options(given: dict[str, str], added: dict[str, object]) -> str:
        CTWorkerLM.create_from_arg_obj({"pretrained": str(checkpoint), **given}, added).close()
        return " ".join(json.loads(record.read_text())["argv"])

    assert "--backend cuda --device 3" in options({}, {"device": "cuda:3"})
    assert "--backend cuda --device 0" in options({"device": "cuda:0"}, {"device": "cuda:0"})
    assert "--device 2" in options({"device": "cuda:2"}, {"device": "cuda:0"})
    assert "--backend auto" in options({}, {"device": "cuda:0"})  # lm-eval's own default is not a user's choice


def test_dropping_the_model_stops_its_worker(fake: Callable[[str], Path], checkpoint: Path) -> None:
    record = fake()
    for _ in range(3):
        model = CTWorkerLM(str(checkpoint))
        pid = json.loads(record.read_text())["pid"]
        folder = Path(model._session.url.removeprefix("ipc://")).parent
        assert alive(pid) and folder.is_dir()
        del model
        wait_for(lambda pid=pid: not alive(pid))
        assert not folder.exists()


def test_folders_of_killed_owners_are_removed(
    make: Callable[..., CTWorkerLM],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    base = tmp_path_factory.mktemp("r")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(base))
    if len(str(base)) >= 60:
        pytest.skip(f"{base} is too long a path for sockets")
    stale, other, young = (base / f"ctworker-of-4194999-{name}" for name in "soy")
    for folder in (stale, other, young):
        folder.mkdir()
        (folder / "log").touch()
    for folder in (stale, other):
        (folder / "lock").touch()
    with (other / "lock").open() as lock:  # like a process of another container, whose process id means nothing here
        fcntl.flock(lock, fcntl.LOCK_EX)
        model = make()
        own = Path(model._session.url.removeprefix("ipc://")).parent
        assert not stale.exists() and other.exists() and young.exists() and own.parent == base
        make()
        assert own.exists()
        model.close()
        assert not own.exists()


def test_the_worker_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, checkpoint: Path) -> None:
    script = tmp_path / "ctworker"
    script.write_text("#!/usr/bin/python3\nfrom ctworker.__main__ import main\nmain()\n")
    script.chmod(0o755)
    monkeypatch.setenv("CTWORKER_BIN", str(script))
    with pytest.raises(ArgumentError, match="this package's own command"):
        launcher.find_binary()
    monkeypatch.delenv("CTWORKER_BIN")
    program = tmp_path / "site" / "bin" / "ctworker"  # an editable installation's second folder
    program.parent.mkdir(parents=True)
    shutil.copy("/bin/true", program)
    monkeypatch.setattr(ctworker, "__path__", [*ctworker.__path__, str(tmp_path / "site")])
    assert launcher.find_binary() == program
