"""Ctrl-C on every command line: one line, the exit status 130, and no worker stays behind."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import data_tasks
import pytest
from conftest import HERE, alive, wait_for

from ctworker.base import command_line

LM_EVAL = ["--model", "ctworker", "--model_args", "pretrained=M"]


@pytest.mark.parametrize(
    ("typed", "store", "n", "expected"),
    [
        # Typed words; what keeps the ready worker's results; results so far; the line (ALL: the words as they were typed).
        (["ctworker-ppl", "M", "--store", "S"], "store=S", 7, "7 results of this run in --store S; to go on: ALL"),
        (["ctworker-ppl", "M", "--store=S"], "store=S", 1, "1 result of this run in --store=S; to go on: ALL"),
        (["ctworker-ppl", "M", "--store", "S"], "", 0, "nothing was scored yet, --store S keeps what earlier runs scored; to go on: ALL"),
        (["ctworker-ppl", "M"], "", 7, "without --store nothing is kept; to start again with it: ALL --store ctworker-store"),
        (["ctworker-ppl", "M", "--dry-run"], "", 0, "nothing was scored; the same command starts again: ALL"),
        (["ctworker-compare", "--samples", "a", "b"], "", 0, "nothing was scored; the same command starts again: ALL"),
        (["ctworker-compare", "M", "--endpoint", "U"], "the store of U", 2, "2 results of this run in the store of U; to go on: ALL"),
        (["ctworker-compare", "M", "--endpoint", "U"], "", 2,
         "nothing is kept if the worker has no store (ctworker serve --store DIR); to start again: ALL"),
        (["lm_eval", *LM_EVAL[:3], "endpoint=U"], "", 2,
         "nothing is kept if the worker has no store (ctworker serve --store DIR); to start again: ALL"),
        (["lm_eval", *LM_EVAL[:3], "pretrained=a b,store=S"], "", 3, "3 results of this run in store=S; to go on: ALL"),
        (["lm_eval", *LM_EVAL[:3], '{"pretrained": "M", "store": "S"}'], "", 3, "3 results of this run in store=S; to go on: ALL"),
        (["lm_eval", "--config", "run.yaml"], "store=S", 3, "3 results of this run in store=S; to go on: ALL"),
        (["lm_eval", *LM_EVAL, "--use_cache", "c"], "", 3, "3 results of this run in --use_cache; to go on: ALL"),
        (["lm_eval", *LM_EVAL, "dtype=auto", "--tasks", "t"], "", 3,
         "without store= nothing is kept; to start again with it: lm_eval --model ctworker --model_args pretrained=M "
         "dtype=auto,store=ctworker-store --tasks t"),
        (["lm_eval", "--model_args=pretrained=M", "--tasks", "t"], "", 3,
         "without store= nothing is kept; to start again with it: lm_eval --model_args=pretrained=M,store=ctworker-store --tasks t"),
        (["lm_eval", *LM_EVAL[:3], '{"pretrained": "M"}'], "", 3,
         "without store= nothing is kept; to start again with it: lm_eval --model ctworker --model_args "
         """'{"pretrained": "M", "store": "ctworker-store"}'"""),
        (["lm_eval", "--config", "run.yaml"], "", 3, "without store= nothing is kept; to start again with it: ALL --model_args "
         "store=ctworker-store"),
    ],
)  # fmt: skip
def test_what_the_line_says(
    typed: list[str], store: str, n: int, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / typed[0]
    script.touch(mode=0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(sys, "argv", [str(script), *typed[1:]])
    monkeypatch.setattr(sys, "orig_argv", ["python3", str(script), *typed[1:]])
    assert command_line.going_on(store, n) == expected.replace("ALL", shlex.join(typed))
    monkeypatch.setenv("PATH", "/nowhere")
    assert str(script) in command_line.typed()  # the name alone would not be found
    monkeypatch.setattr(sys, "orig_argv", ["py", "-m", "package.module", *typed[1:]])
    assert command_line.typed() == shlex.join(sys.orig_argv)


def interrupted(command: list[str], ready: Callable[[], object]) -> str:
    """Interrupts the command as soon as ready() is true; the line."""
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: ready() or child.poll() is not None, 240)
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=60)
    assert child.returncode == 130 and "Traceback" not in said, said[-3000:]
    line = said.splitlines()[-1]
    assert ": interrupted: " in line and said.count("interrupted") == 1 and said.endswith("\n"), said
    return line


@pytest.fixture
def commands(checkpoint: Path, tmp_path: Path) -> dict[str, list[str]]:
    tasks, text = data_tasks.write(tmp_path / "tasks"), tmp_path / "text.txt"
    text.write_text("words " * 100)
    sweep = tmp_path / "sweep.yaml"
    sweep.write_text(f"models: [{{path: {checkpoint}}}]\ninclude_path: tasks\ntasks: [toy_rolling]\ndevices: [cpu]\n")
    scored = ["--text", str(text), "--window", "32", "--store", str(tmp_path / "store")]
    arguments = f"pretrained={checkpoint},store={tmp_path}/store"
    return {
        "ctworker": [str(HERE / "quick_lm_eval.py"), "--model", "ctworker", "--model_args", arguments,
                     "--include_path", str(tasks), "--tasks", "toy_rolling"],
        "ctworker-ppl": ["-m", "ctworker.perplexity.main", str(checkpoint), "--method", "lm-eval", *4 * scored[:2], *scored[4:]],
        "ctworker-compare": ["-m", "ctworker.compare.main", str(checkpoint), str(checkpoint), *scored],
        "ctworker-sweep": ["-m", "ctworker.sweep.main", str(sweep)],
    }  # fmt: skip


@pytest.mark.parametrize("name", ["ctworker", "ctworker-ppl"])
def test_while_it_scores(
    fake: Callable[[str], Path], commands: dict[str, list[str]], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, log = fake("slow=1"), tmp_path / "requests"
    monkeypatch.setenv("FAKE_LOG", str(log))
    line = interrupted([sys.executable, *commands[name]], lambda: log.exists() and log.read_text().count("fetch") > 1)
    assert line.startswith(f"{name}: interrupted: ") and " result" in line and f"{tmp_path}/store; to go on: " in line, line
    assert not alive(json.loads(record.read_text())["pid"])


@pytest.fixture
def endless(real_worker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Workers load for ever, and ignore SIGTERM if STUBBORN is set; the path of a file with the process id of the last one."""
    pid, program = tmp_path / "pid", tmp_path / "endless-ctworker"
    program.write_text(
        f'#!/bin/sh\n[ "$1" = serve ] || exec "{real_worker}" "$@"\n[ -z "$STUBBORN" ] || trap "" TERM\n'
        f"echo $$ > {pid}.new\nmv {pid}.new {pid}\nexec sleep 600\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("CTWORKER_BIN", str(program))
    return pid


@pytest.mark.parametrize("name", ["ctworker", "ctworker-ppl", "ctworker-compare", "ctworker-sweep"])
def test_while_it_loads(endless: Path, commands: dict[str, list[str]], name: str) -> None:
    line = interrupted([sys.executable, *commands[name]], endless.exists)
    assert line.startswith(f"{name}: interrupted: ") and shlex.join(commands[name][-2:]) in line, line
    assert not alive(int(endless.read_text()))


@pytest.mark.parametrize("name", ["ctworker", "ctworker-ppl", "ctworker-compare", "ctworker-sweep"])
def test_while_it_is_imported(commands: dict[str, list[str]], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the import of the command's first library, which swallows every exception."""
    ready = tmp_path / "ready"
    swallow = f"import time\ntry:\n    open({str(ready)!r}, 'w').close()\n    time.sleep(600)\nexcept BaseException:\n    pass\n"
    for library in ("msgpack", "lm_eval", "tokenizers"):
        (tmp_path / f"{library}.py").write_text(swallow)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]]))
    command = commands[name]
    if name != "ctworker":  # as the console script
        code = f"import sys; sys.argv = [{name!r}, *sys.argv[1:]]; from ctworker import commands; commands.{name[9:]}()"
        command = ["-c", code, *command[2:]]
    assert interrupted([sys.executable, *command], ready.exists).startswith(f"{name}: interrupted: ")


def test_a_second_one_ends_at_once(endless: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first waits for the worker, for ever."""
    monkeypatch.setenv("STUBBORN", "1")
    text = (
        "import time; from ctworker.base import interrupt\nfrom ctworker.client import launcher\n"
        "interrupt._END_S = 1e9; interrupt.install('name')\n"
        "worker = launcher.WorkerProcess([])\nwhile True: time.sleep(1)"
    )
    child = subprocess.Popen([sys.executable, "-c", text], stderr=subprocess.PIPE, text=True)
    wait_for(endless.exists)
    child.send_signal(signal.SIGINT)
    assert child.stderr is not None and child.stderr.readline().startswith("name: interrupted: ")
    child.send_signal(signal.SIGINT)
    assert child.wait(60) == 130 and child.stderr.read() == ""
    wait_for(lambda: not alive(int(endless.read_text())))


def ended_while_it_starts(text: str, pid: Path, said: str) -> int:
    """The exit code of a program with this text. A signal comes in its Popen, when the worker runs."""
    begin = (
        "import os, signal, subprocess, sys, threading, time\nfrom ctworker.base import interrupt\n"
        "from ctworker.client import launcher\n"
        "class Popen(subprocess.Popen):\n"
        "    def __init__(self, *args, **kw):\n"
        "        super().__init__(*args, **kw)\n"
        f"        open({str(pid)!r}, 'w').write(str(self.pid))\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "        late()\n"
        "def late(): pass\n"
        "launcher.subprocess.Popen = Popen\n"
    )
    done = subprocess.run([sys.executable, "-c", begin + text], capture_output=True, text=True, timeout=120)
    assert said in done.stderr and "Traceback" not in done.stderr, done.stderr
    wait_for(lambda: not alive(int(pid.read_text())))
    return done.returncode


def test_while_it_starts(endless: Path, tmp_path: Path) -> None:
    """The worker runs, but no caller has it yet."""
    pid = tmp_path / "started"
    text = "interrupt.install('name')\nlauncher.WorkerProcess([])"
    assert ended_while_it_starts(text, pid, "name: interrupted: ") == 130
    text = (  # as in a notebook: the program goes on, and the traceback is kept
        "try:\n    launcher.WorkerProcess([])\nexcept KeyboardInterrupt as error:\n    kept = error\n"
        f"try:\n    os.kill(int(open({str(pid)!r}).read()), 0)\nexcept ProcessLookupError:\n    sys.exit(7)"
    )
    assert ended_while_it_starts(text, pid, "") == 7
    text = (  # in another thread, which goes on while the handler runs
        "def late():\n    while not interrupt._State.seen: time.sleep(0.01)\n    time.sleep(0.5)\n"
        "def start(): made.append(launcher.WorkerProcess([]))\n"
        "made = []\ninterrupt.install('name')\nthreading.Thread(target=start, daemon=True).start()\nwhile True: time.sleep(0.01)"
    )
    assert ended_while_it_starts(text, pid, "name: interrupted: ") == 130


def test_ignored_where_it_was_ignored() -> None:
    """As of nohup and of shells without job control."""
    text = "import os, signal; from ctworker.base import interrupt; interrupt.install('name')\n"
    text += "os.kill(os.getpid(), signal.SIGINT); print('on')"
    command = ["sh", "-c", f'trap "" INT; exec {shlex.join([sys.executable, "-c", text])}']
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "on\n"


LOST = """
import signal, time
from ctworker.base import interrupt

class Dies:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)

interrupt.install("it")
try:
    with interrupt.unwinding():
        Dies()
        time.sleep(10)
except KeyboardInterrupt:
    print("unwound")
"""


def test_in_a_destructor() -> None:
    """Python drops what a destructor raises."""
    done = subprocess.run([sys.executable, "-c", LOST], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("unwound\n", "", 0)
