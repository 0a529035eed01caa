"""Shared by the tests of the Python package. They need lm-eval and no torch.

Checkpoints: from the folder CTWORKER_GOLDEN (default: ../shared/data/golden, relative to the project). If that
folder does not exist, tests/tools writes a checkpoint. Worker: CTWORKER_BIN, else `ctworker` in build/ci.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ctworker.lm import CTWorkerLM
    from lm_eval.api.instance import Instance

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SRC = ROOT / "harness_adapter" / "src"
FAKE = HERE / "fake_worker.py"

# CTWORKER_TEST_INSTALLED=1 tests the installed package; otherwise the sources are tested.
if os.environ.get("CTWORKER_TEST_INSTALLED") != "1":
    sys.path.insert(0, str(SRC))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(SRC), os.environ.get("PYTHONPATH")]))
sys.path.insert(0, str(HERE))
os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
REAL_WORKER = os.environ.pop("CTWORKER_BIN", None)
if REAL_WORKER is None and (ROOT / "build/ci/worker/ctworker").is_file():
    REAL_WORKER = str(ROOT / "build/ci/worker/ctworker")


def golden_folder() -> Path | None:
    folder = Path(os.environ.get("CTWORKER_GOLDEN", ROOT.parent / "shared/data/golden"))
    return folder if folder.is_dir() else None


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny dense Llama with a byte-level tokenizer: ids 0-255 bytes, 256 <s>, 257 </s>."""
    golden = golden_folder()
    if golden is not None:
        return golden / "llama-dense"
    folder = tmp_path_factory.mktemp("checkpoint") / "llama-dense"
    tool = ROOT / "tests/tools/tiny_checkpoint.py"
    subprocess.run([sys.executable, str(tool), "llama", "dense", str(folder), "--vocab", "320"], check=True)  # as the golden's
    return folder


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], Path]:
    """fake("die=2") makes launches start the fake worker with these faults; returns the path of its record."""

    def use(faults: str = "") -> Path:
        record = tmp_path / "worker.json"
        program = tmp_path / "fake-ctworker"
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{FAKE}" "$@"\n')
        program.chmod(0o755)
        monkeypatch.setenv("CTWORKER_BIN", str(program))
        monkeypatch.setenv("FAKE_FAULTS", faults)
        monkeypatch.setenv("FAKE_RECORD", str(record))
        return record

    return use


@pytest.fixture
def make(fake: Callable[[str], Path], checkpoint: Path) -> Iterator[Callable[..., CTWorkerLM]]:
    """make("die=2", dtype="float32") returns a model on a fake worker; `make.record` is the path of its record."""
    from ctworker.lm import CTWorkerLM

    made: list[CTWorkerLM] = []

    def build(faults: str = "", **arguments: Any) -> CTWorkerLM:
        build.record = fake(faults)
        made.append(CTWorkerLM(**{"pretrained": str(checkpoint), **arguments}))
        return made[-1]

    yield build
    for model in made:
        model.close()


def requests(kind: str, *arguments: Any) -> list[Instance]:
    """lm-eval's requests of one kind with these arguments, as documents 0, 1, ... of the task `toy`."""
    from lm_eval.api.instance import Instance

    return [Instance(kind, {}, args, i, metadata=("toy", i, 1)) for i, args in enumerate(arguments)]


def ids(text: str) -> list[int]:
    """The checkpoint's token ids of a text without special tokens."""
    return list(text.encode())


@pytest.fixture
def real_worker(monkeypatch: pytest.MonkeyPatch) -> str:
    if REAL_WORKER is None:
        pytest.skip("no worker: set CTWORKER_BIN")
    monkeypatch.setenv("CTWORKER_BIN", REAL_WORKER)
    return REAL_WORKER


@pytest.fixture
def running_fake(checkpoint: Path, tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """running_fake("slow=1") starts a fake worker without an owner; returns its URL."""
    children: list[subprocess.Popen[bytes]] = []

    def start(faults: str = "", *options: str) -> str:
        socket = tmp_path / f"fake{len(children)}.sock"
        command = [sys.executable, str(FAKE), "serve", "--listen", f"ipc://{socket}", "--dtype", "auto"]
        command += ["--model", str(checkpoint), *options]
        children.append(subprocess.Popen(command, env=os.environ | {"FAKE_FAULTS": faults}))
        wait_for(socket.exists)
        return f"ipc://{socket}"

    yield start
    for child in children:
        child.kill()
        child.wait()


def wait_for(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Returns when the condition holds; fails the test after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    """Whether that process runs (a zombie does not count)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
