"""Whole lm_eval processes: the command line, Ctrl-C, kill -9, loops, forks, imports."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import data_tasks
import fake_worker
import pytest
from conftest import HERE, SRC, alive, wait_for

INSTALLED = os.environ.get("CTWORKER_TEST_INSTALLED") == "1"
# Python reads no .pth file in a source tree, so our own console script stands in for lm_eval there.
LM_EVAL = [sys.executable, "-m", "lm_eval" if INSTALLED else "ctworker.run_lm_eval"]
# The same command line without the built-in tasks: for tests that do not need them.
QUICK = [sys.executable, str(HERE / "quick_lm_eval.py")]


@pytest.fixture
def arguments(checkpoint: Path, tmp_path: Path) -> list[str]:
    tasks = data_tasks.write(tmp_path / "tasks")
    return ["--model", "ctworker", "--model_args", f"pretrained={checkpoint}", "--include_path", str(tasks), "--tasks"]


@pytest.fixture
def command(arguments: list[str]) -> list[str]:
    return [*QUICK, *arguments]


def run(command: list[str], *, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == code, done.stderr[-3000:]
    return done


def test_plain_lm_eval(fake: Callable[[str], Path], arguments: list[str], tmp_path: Path) -> None:
    record = fake()
    done = run(
        [
            *LM_EVAL,
            *arguments,
            "toy_rolling,toy_choices",
            "--output_path",
            str(tmp_path / "out"),
            "--log_samples",
            "--limit",
            "5",
        ]
    )
    assert not alive(json.loads(record.read_text())["pid"])
    # Standard output contains lm-eval's table and nothing from ctworker.
    assert all(line.startswith(("|", "ctworker (")) for line in done.stdout.splitlines() if line.strip())
    assert "word_perplexity" in done.stdout and "acc_norm" in done.stdout
    assert "requests" in done.stderr and "100%" in done.stderr  # progress
    (results,) = (tmp_path / "out").rglob("results_*.json")
    config = json.loads(results.read_text())["config"]
    assert config["ctworker"]["numerics"] == "fake-1" and config["model_dtype"] == "float32"
    assert config["device"] == "cpu (abacus)"  # the worker's, not lm-eval's default of --device
    (samples,) = (tmp_path / "out").rglob("samples_toy_rolling_*.jsonl")
    rows = [json.loads(line) for line in samples.read_text().splitlines()]
    assert len(rows) == 5
    for row in rows:
        total = fake_worker.rolling_sum(list(row["doc"]["page"].encode()), 256, 2048)
        assert float(row["resps"][0][0]) == total


def test_mixed_tasks_are_refused_at_once(fake: Callable[[str], Path], arguments: list[str], tmp_path: Path) -> None:
    fake()
    for more in ([], ["--use_cache", str(tmp_path / "cache")]):
        done = run([*QUICK, *arguments, "toy_rolling,toy_choices,toy_generate", *more], code=1)
        last = done.stderr.strip().splitlines()[-1]
        assert "toy_generate" in last and "generate_until" in last and "toy_choices" not in last
        assert "Running" not in done.stderr and "Building contexts" not in done.stderr
        assert "Traceback" not in done.stderr


def test_errors_end_in_one_sentence(
    fake: Callable[[str], Path], command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any error is reported as one sentence, without a traceback unless CTWORKER_TRACEBACK is set."""
    words = "model.layers.0.mlp.up_proj.weight: not there; is a shard missing?"
    fake(f"load={words}")
    said = run([*command, "toy_rolling"], code=1).stderr
    assert said.splitlines()[-1] == f"ctworker: {words}" and "Traceback" not in said
    wrong = [part.replace("pretrained=", "pretraned=") for part in command]
    said = run([*wrong, "toy_rolling"], code=1).stderr
    assert "did you mean 'pretrained'" in said.splitlines()[-1] and "Traceback" not in said
    monkeypatch.setenv("CTWORKER_TRACEBACK", "1")
    assert "Traceback" in run([*wrong, "toy_rolling"], code=1).stderr


def test_other_programs_keep_their_tracebacks(fake: Callable[[str], Path]) -> None:
    text = "from ctworker.lm import CTWorkerLM; CTWorkerLM.create_from_arg_string('pretraned=x')"
    said = run([sys.executable, "-c", text], code=1).stderr
    assert "Traceback" in said and "did you mean" in said.splitlines()[-1]


def test_other_errors_keep_their_tracebacks() -> None:
    text = "import sys; sys.argv[0] = 'lm_eval'; from ctworker.harness import excepthook; excepthook.install(); 1 / 0"
    said = run([sys.executable, "-c", text], code=1).stderr
    assert "Traceback" in said and "ZeroDivisionError" in said.splitlines()[-1]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import jinja2; jinja2.Template('{{ a | b }}')", "jinja2: TemplateAssertionError: No filter named 'b'. ("),
        ("import tokenizers; tokenizers.Tokenizer.from_str('{')", "Traceback"),  # a plain Exception has no library
        ("import msgpack; msgpack.unpackb(b'\\xc1')", "msgpack: FormatError: FormatError (CTWORKER_TRACEBACK=1 shows where)"),
    ],
)
def test_errors_of_libraries_in_tasks(code: str, expected: str) -> None:
    text = f"import sys; sys.argv[0] = 'lm_eval'; from ctworker.harness import excepthook; excepthook.install(); {code}"
    assert run([sys.executable, "-c", text], code=1).stderr.startswith(expected)


def test_a_dying_worker(fake: Callable[[str], Path], command: list[str]) -> None:
    fake("slow=0.2,die=3")
    said = run([*command, "toy_rolling"], code=1).stderr
    last = said.strip().splitlines()[-1]
    assert "exit code 70" in last and "the toy model broke" in last and "Traceback" not in said


def start_slow(fake: Callable[[str], Path], command: list[str]) -> tuple[subprocess.Popen[bytes], int]:
    """An lm_eval process in the middle of its requests, and its worker's process id."""
    record = fake("slow=1")
    child = subprocess.Popen([*command, "toy_rolling"], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    seen = b""
    assert child.stderr is not None
    os.set_blocking(child.stderr.fileno(), False)
    deadline = time.monotonic() + 240  # lm-eval takes seconds to start, and a minute on a busy machine
    while b"Running loglikelihood_rolling requests:" not in seen:
        assert time.monotonic() < deadline and child.poll() is None, seen[-2000:]
        seen += child.stderr.read() or b""
        time.sleep(0.05)
    time.sleep(0.3)
    return child, json.loads(record.read_text())["pid"]


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_worker_ends_with_lm_eval(fake: Callable[[str], Path], command: list[str], sign: signal.Signals) -> None:
    child, worker = start_slow(fake, command)
    assert alive(worker)
    child.send_signal(sign)
    child.wait(60)
    wait_for(lambda: not alive(worker))
    assert child.stderr is not None
    child.stderr.close()


def script(text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run([sys.executable, "-c", text, *arguments])


def test_simple_evaluate_in_a_loop(fake: Callable[[str], Path], checkpoint: Path, tmp_path: Path) -> None:
    fake()
    tasks = data_tasks.write(tmp_path / "tasks")
    text = """
import os, sys, glob
if not INSTALLED: import _ctworker_hook
from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager
def children():
    return open(f"/proc/self/task/{os.getpid()}/children").read().split()
counts = []
manager = TaskManager(include_path=sys.argv[2], include_defaults=False)
for i in range(4):
    out = simple_evaluate(model="ctworker", model_args="pretrained=" + sys.argv[1], tasks=["toy_choices", "toy_rolling"],
                          task_manager=manager, limit=3)
    assert out["results"]["toy_choices"]["acc,none"] in (0, 1/3, 2/3, 1)
    counts.append((len(os.listdir("/proc/self/fd")), len(children())))
assert counts[1] == counts[2] == counts[3] and counts[3][1] == 0, counts
""".replace("INSTALLED", str(INSTALLED))
    script(text, str(checkpoint), str(tasks))


def test_forks(fake: Callable[[str], Path], checkpoint: Path) -> None:
    """A forked child, however it ends, does not affect the parent's worker and connection."""
    fake()
    text = """
import gc, os, sys, warnings
warnings.simplefilter("error", DeprecationWarning)  # Python 3.12 warns about fork with threads
import datasets
from ctworker.lm import CTWorkerLM
from ctworker.base.errors import CtworkerError
from lm_eval.api.instance import Instance
model = CTWorkerLM(sys.argv[1])
def ask():
    return model.loglikelihood([Instance("loglikelihood", {}, ("a", "b"), 0, metadata=("t", 0, 1))], disable_tqdm=True)
before = ask()
for how in ("return", "collect", "use"):
    pid = os.fork()
    if pid == 0:
        if how == "collect":
            del model
            gc.collect()
        elif how == "use":
            try:
                ask()
            except CtworkerError as error:
                assert "forked process must create its own" in str(error)
            else:
                os._exit(9)
        sys.exit(0)  # runs exit handlers and destructors
    assert os.waitpid(pid, 0)[1] == 0, how
    assert ask() == before, how
rows = datasets.Dataset.from_dict({"x": list(range(100))}).map(lambda row: {"y": row["x"] + 1}, num_proc=2)
assert rows["y"][99] == 100 and ask() == before
"""
    script(text, str(checkpoint))


def test_no_torch_is_imported(
    fake: Callable[[str], Path], checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ctworker never imports torch or transformers, even if they are installed: these stand-ins would fail."""
    for name in ("torch", "transformers", "accelerate", "sentencepiece"):
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name} was imported')\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    fake()
    text = """
import sys
from ctworker.lm import CTWorkerLM
from lm_eval.api.instance import Instance
model = CTWorkerLM(sys.argv[1])
model.loglikelihood([Instance("loglikelihood", {}, ("a", "b"), 0, metadata=("t", 0, 1))], disable_tqdm=True)
model.loglikelihood_rolling([Instance("loglikelihood_rolling", {}, ("a",), 0, metadata=("t", 0, 1))], disable_tqdm=True)
model.get_model_info()
assert not {"torch", "transformers", "huggingface_hub"} & set(sys.modules), sorted(sys.modules)
"""
    script(text, str(checkpoint))


def test_the_hook_costs_nothing() -> None:
    """At Python's start the hook imports one module, and neither lm_eval nor ctworker until they are needed."""
    text = """
import sys
before = set(sys.modules)
import _ctworker_hook
new = set(sys.modules) - before
assert new <= {"_ctworker_hook"}, new
import json, email  # other modules are found as usual
"""
    script(text)


def test_the_hook_registers_beside_the_others() -> None:
    text = """
import importlib
importlib.import_module("_ctworker_hook")
import lm_eval.models
from lm_eval.api.registry import get_model, model_registry
assert {"hf", "vllm", "dummy", "ctworker"} <= set(model_registry)
assert get_model("ctworker").__name__ == "CTWorkerLM" and get_model("dummy").__name__ == "DummyLM"
import lm_eval.evaluator
assert getattr(lm_eval.evaluator.evaluate, "_ctworker_guard")
"""
    script(text)


def test_the_hook_leaves_newer_lm_eval_to_its_entry_points() -> None:
    text = """
import importlib
importlib.import_module("_ctworker_hook")
from lm_eval.api import registry
registry.load_plugins = lambda: None
import lm_eval.models
assert "ctworker" not in registry.model_registry
from ctworker.lm import CTWorkerLM
"""
    script(text)


def test_the_entry_point_is_declared() -> None:
    text = (SRC.parents[1] / "pyproject.toml").read_text()
    assert '[project.entry-points."lm_eval.models"]\nctworker = "ctworker.lm:CTWorkerLM"' in text
    root = (HERE.parents[1] / "CMakeLists.txt").read_text()
    version = ((SRC / "ctworker" / "__init__.py").read_text().split('__version__ = "')[1].split('"')[0])
    assert f'version = "{version}"' in text and f"project(ctworker VERSION {version} " in root


def test_worker_program_script(fake: Callable[[str], Path], checkpoint: Path) -> None:
    """The console script `ctworker` replaces itself with the worker program."""
    fake()
    done = run([sys.executable, "-m", "ctworker", "serve", "--help"])
    assert "--owner-pid" in done.stdout
