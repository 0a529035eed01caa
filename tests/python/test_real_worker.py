"""The adapter with the real worker: golden scores, lm_eval's command line, stopping. Needs CTWORKER_BIN (CI sets it)."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import data_tasks
import pytest
from conftest import alive, golden_folder, requests, wait_for
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from test_processes import QUICK, run

from ctworker import Client
from ctworker.base.errors import CtworkerError
from ctworker.lm import CTWorkerLM

pytestmark = pytest.mark.usefixtures("real_worker")
GOLDEN = golden_folder()
NAMES = ["llama-dense", "llama-w4a16_g128", "llama-nvfp4a16", "qwen2-dense", "qwen3-dense", "mistral_swa-dense"]


@pytest.mark.skipif(GOLDEN is None, reason="no golden checkpoints: set CTWORKER_GOLDEN")
@pytest.mark.parametrize("name", NAMES)
def test_golden_scores(name: str) -> None:
    """float32 mode: every golden sum is within 1e-4 per token of transformers' float64, and is_greedy agrees."""
    assert GOLDEN is not None
    stored = json.loads((GOLDEN / name / "golden.json").read_text())
    model = CTWorkerLM(str(GOLDEN / name), dtype="float32")
    sequences = [entry for entry in stored["sequences"] if len(entry["tokens"]) <= model.max_length + 1]
    answers = model._loglikelihood_tokens(
        [(None, s["tokens"][:1], s["tokens"][1:]) for s in sequences], disable_tqdm=True
    )
    model.close()
    for entry, (total, greedy) in zip(sequences, answers, strict=True):
        assert abs(total - sum(entry["f64"])) <= 1e-4 * len(entry["f64"])
        assert greedy == (entry["tokens"][1:] == entry["greedy"])


def test_rolling_is_the_sum_of_its_windows(checkpoint: Path) -> None:
    """The worker's windows equal lm-eval's windows scored as separate pairs, up to the rounding of float64 sums."""
    model = CTWorkerLM(str(checkpoint), dtype="float32", max_length=24)
    texts = ["", "a", "b" * 24, "the quick brown fox " * 6]
    totals = model.loglikelihood_rolling(
        requests("loglikelihood_rolling", *((text,) for text in texts)), disable_tqdm=True
    )
    for text, total in zip(texts, totals, strict=True):
        windows = list(map(make_disjoint_window, get_rolling_token_windows(model.tok_encode(text), 256, 24, 1)))
        sums = model._loglikelihood_tokens(
            [(None, context, targets) for context, targets in windows], disable_tqdm=True
        )
        assert total == pytest.approx(sum(value for value, _ in sums), rel=1e-12)
    model.close()


def test_no_answer_depends_on_the_others(checkpoint: Path) -> None:
    """Bit for bit: alone, in any order, regardless of the other requests, in either of two workers."""
    draw = random.Random(5)
    texts = [("c" * draw.randrange(1, 90), "x" * draw.randrange(1, 30)) for _ in range(25)]
    model = CTWorkerLM(str(checkpoint))
    together = model.loglikelihood(requests("loglikelihood", *texts), disable_tqdm=True)
    order = list(range(25))
    draw.shuffle(order)
    shuffled = model.loglikelihood(requests("loglikelihood", *(texts[i] for i in order)), disable_tqdm=True)
    assert [shuffled[order.index(i)] for i in range(25)] == together
    other = CTWorkerLM(str(checkpoint), threads=1)
    for i in (0, 7, 24):
        assert other.loglikelihood(requests("loglikelihood", texts[i]), disable_tqdm=True) == [together[i]]
    model.close()
    other.close()


def test_load_errors(checkpoint: Path, tmp_path: Path) -> None:
    """The exception's message is the worker's message, with the folder."""
    for file in checkpoint.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((checkpoint / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"hidden_act": "no_such_act"}))
    with pytest.raises(CtworkerError, match=f"^{tmp_path}: config.json: .*no_such_act"):
        CTWorkerLM(str(tmp_path))
    (tmp_path / "config.json").unlink()
    with pytest.raises(CtworkerError, match=r"config\.json"):
        CTWorkerLM(str(tmp_path))
    with pytest.raises(CtworkerError, match="(?i)device=cuda:7|gpu"):  # our message or the worker's
        CTWorkerLM(str(checkpoint), device="cuda:7")
    with pytest.raises(CtworkerError, match="cpu_variant='abacus': expected one of auto, c, avx2"):
        CTWorkerLM(str(checkpoint), cpu_variant="abacus")


def test_command_line(checkpoint: Path, tmp_path: Path) -> None:
    tasks = data_tasks.write(tmp_path / "tasks")
    command = [*QUICK, "--model", "ctworker", "--model_args", f"pretrained={checkpoint},dtype=float32"]
    command += ["--include_path", str(tasks), "--tasks", "toy_rolling,toy_choices", "--use_cache", str(tmp_path / "c")]
    first = run([*command, "--output_path", str(tmp_path / "a")])
    again = run([*command, "--output_path", str(tmp_path / "b")])
    results = [json.loads(next((tmp_path / name).rglob("results_*.json")).read_text()) for name in "ab"]
    assert results[0]["results"] == results[1]["results"]
    assert ("Running loglikelihood requests:" in first.stderr and "Running loglikelihood requests:" not in again.stderr)
    assert results[0]["config"]["ctworker"]["numerics"].startswith("cpu-")


def test_a_store_resumes(checkpoint: Path, tmp_path: Path) -> None:
    """Runs with one store: the second computes nothing, another dtype finds nothing."""
    tasks = data_tasks.write(tmp_path / "tasks")
    log, store = tmp_path / "log", tmp_path / "store"

    def scores(dtype: str, name: str) -> object:
        arguments = f"pretrained={checkpoint},dtype={dtype},store={store},worker_log={log}"
        run([*QUICK, "--model", "ctworker", "--model_args", arguments, "--include_path", str(tasks), "--tasks",
             "toy_rolling,toy_choices", "--output_path", str(tmp_path / name)])  # fmt: skip
        return json.loads(next((tmp_path / name).rglob("results_*.json")).read_text())["results"]

    found = re.compile(r"(\d+) of (\d+) sequences stored before")
    first = scores("float32", "a")
    assert not found.search(log.read_text())
    assert scores("float32", "b") == first
    jobs = found.findall(log.read_text())
    assert len(jobs) == 2 and all(some == every for some, every in jobs)
    scores("bfloat16", "c")
    assert len(found.findall(log.read_text())) == 2


def test_shared_beginnings_are_noted(checkpoint: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Choices of one question are computed once up to where they part, which the log says; other texts get no note."""
    caplog.set_level("INFO")
    model = CTWorkerLM(str(checkpoint))
    for contexts, noted in (("the quick brown fox " * 12,), True), (("abcdefgh", "ijklmnop", "qrstuvwx", "yzabcdef"), False):
        caplog.clear()
        asked = [(contexts[i % len(contexts)], f" {i}") for i in range(4)]
        model.loglikelihood(requests("loglikelihood", *asked), disable_tqdm=True)
        found = re.search(r"(\d+) of (\d+) tokens were computed, ([\d.]+) times fewer", caplog.text)
        assert (found is not None) == noted
        if found is not None:
            computed, n_tokens, fewer = int(found[1]), int(found[2]), float(found[3])
            assert computed < n_tokens / 3 and abs(fewer - n_tokens / computed) < 0.06
    model.close()


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGKILL])
def test_the_worker_ends_with_its_owner(checkpoint: Path, sign: signal.Signals) -> None:
    text = (
        "import sys, time; from ctworker.lm import CTWorkerLM; m = CTWorkerLM(sys.argv[1]);"
        "print(m._session._worker.pid, m._session.url, flush=True); time.sleep(60)"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", text, str(checkpoint)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert child.stdout is not None
    pid, url = child.stdout.readline().decode().split()
    assert alive(int(pid))
    child.send_signal(sign)
    child.wait(10)
    child.stdout.close()
    wait_for(lambda: not alive(int(pid)), 10)
    assert not os.path.exists(url.removeprefix("ipc://"))


def test_the_model_of_pretrained_is_chosen(checkpoint: Path, tmp_path: Path, real_worker: str) -> None:
    """Of several models at an endpoint, by path or by identity, unless model= names a model."""
    copy, moved = tmp_path / "copy", tmp_path / "moved"
    shutil.copytree(checkpoint, copy)
    config = json.loads((checkpoint / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 1024}))
    shutil.copytree(copy, moved)
    url = f"ipc://{tmp_path}/w.sock"
    worker = subprocess.Popen([real_worker, "serve", "--model", f"a={checkpoint}", f"b={copy}", "--listen", url])
    try:
        wait_for(Path(url.removeprefix("ipc://")).exists)
        for given, name in [
            ({}, "a"),
            ({"pretrained": str(checkpoint)}, "a"),
            ({"pretrained": str(copy)}, "b"),
            ({"pretrained": str(moved)}, "b"),
            ({"model": "b"}, "b"),
        ]:
            assert CTWorkerLM(endpoint=url, **given)._session.model["name"] == name
        with Client(url, model="b") as client:
            assert client.model["name"] == "b"
        with pytest.raises(CtworkerError, match="has loaded a, which is [0-9a-f]{64}: leave"):
            CTWorkerLM(endpoint=url, pretrained=str(copy), model="a")
    finally:
        worker.kill()
        worker.wait()


def test_a_running_worker(checkpoint: Path, tmp_path: Path, real_worker: str) -> None:
    """endpoint=: several models use the worker one after another, and leave it running."""
    url = f"ipc://{tmp_path}/w.sock"
    with (tmp_path / "log").open("wb") as log:
        worker = subprocess.Popen([real_worker, "serve", "--model", str(checkpoint), "--listen", url], stderr=log)
    try:
        wait_for(Path(url.removeprefix("ipc://")).exists)
        answers = []
        for _ in range(3):
            for attempt in range(100):  # the worker may still be loading
                try:
                    model = CTWorkerLM(endpoint=url)
                    break
                except CtworkerError as error:
                    assert "loading" in str(error) and attempt < 99
                    time.sleep(0.1)
            answers.append(model.loglikelihood(requests("loglikelihood", ("a", "b")), disable_tqdm=True))
            model.close()
        assert answers[0] == answers[1] == answers[2] and worker.poll() is None
        worker.terminate()
        assert worker.wait(60) == 0
        with pytest.raises(CtworkerError, match="no worker listens there"):
            CTWorkerLM(endpoint=url, pretrained=str(checkpoint))
    finally:
        worker.kill()
        worker.wait()


def test_inputs_beyond_the_models_positions(
    checkpoint: Path, real_worker: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The worker warns once, the log of lm_eval once, and the results keep the note."""
    own, log = 2048, tmp_path / "log"
    caplog.set_level("WARNING")
    for length, noted in ((None, False), (own, False), (own + 1, True)):
        caplog.clear()
        log.unlink(missing_ok=True)
        given = {} if length is None else {"max_length": length}
        model = CTWorkerLM(str(checkpoint), worker_log=str(log), **given)
        found = model.get_model_info()["ctworker"]
        model.close()
        assert found["own_length"] == own
        assert any(f"inputs of up to {length} tokens" in note for note in found["notes"]) == noted
        assert caplog.text.count("makes the model's positions for 2048") == noted
        assert log.read_text().count("--max-length 2049 is more than the 2048 tokens") == noted
    config = json.loads((checkpoint / "config.json").read_text())
    shutil.copytree(checkpoint, tmp_path / "scaled")
    for scaling, expected in (
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}, 4096),
        ({"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 1024}, 2048),
        ({"rope_type": "linear", "factor": 4.0}, 8192),
    ):
        changed = {name: value for name, value in config.items() if name != "rope_parameters"} | {"rope_scaling": scaling}
        (tmp_path / "scaled/config.json").write_text(json.dumps(changed))
        done = subprocess.run([real_worker, "inspect", "--json", tmp_path / "scaled"], capture_output=True, check=True)
        described = json.loads(done.stdout)
        assert (described["max_length"], described["own_length"]) == (2048, expected)
