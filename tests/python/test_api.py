"""The Python API without lm-eval: docs/PYTHON.md's example, every field, errors."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fake_divergence
import fake_worker
import numpy
import pynng
import pytest
from conftest import ROOT, alive
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from ctworker import Client, CtworkerError, Worker
from ctworker.base.errors import ArgumentError


def test_the_documented_example(checkpoint: Path, real_worker: str, tmp_path: Path) -> None:
    """The code in docs/PYTHON.md, in a process in which lm_eval cannot be imported."""
    text = (ROOT / "docs/PYTHON.md").read_text()
    code = text.split("```python\n")[1].split("```")[0].replace("DIR", str(checkpoint))
    for name in ("lm_eval", "torch", "numpy", "tqdm"):
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name} was imported')\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False,
        env=os.environ | {"PYTHONPATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 5 and lines[4].startswith("cpu-") and len(lines[4].split()[-1]) == 64
    total, count, *_ = lines[2].split()
    assert float(total) < 0 and count == "3"


def test_scores(fake: Callable[[str], Path], checkpoint: Path) -> None:
    fake()
    eight = tuple(numpy.array([7, 8]))  # two numbers, not a context and a continuation
    sequences = [[6], [1, 5, 9, 12], [], ([1, 5], [9, 12]), array("i", [3, 4]), array("q", [4, 3]), eight, ([1], [])]
    seen: dict[int, object] = {}
    fractions: list[float] = []
    with Worker(checkpoint) as worker:
        pid = worker.pid
        scores = worker.score(sequences, on_score=seen.__setitem__, on_progress=lambda p: fractions.append(p.fraction))
        assert worker.max_length == 2048 and worker.model["vocab"] == 320
        with Client(worker.endpoint) as client:  # a second client of the same worker
            assert client.score(sequences) == scores
        assert alive(pid)
    assert not alive(pid)
    expected = [
        ([6], []), ([1], [5, 9, 12]), ([], []), ([1, 5], [9, 12]), ([3], [4]), ([4], [3]), ([7], [8]), ([1], []),
    ]  # fmt: skip
    for score, (context, continuation) in zip(scores, expected, strict=True):
        steps = list(zip([*context[-1:], *continuation], continuation))
        assert list(score.logprobs) == [fake_worker.logprob(a, b) for a, b in steps]
        assert list(score.greedy) == [fake_worker.greedy(a) for a, _ in steps]
        assert score.sum == sum(score.logprobs) and score.count == len(continuation)
        assert (score.numerics, score.identity, score.truncated) == ("fake-1", "ab" * 32, 0)
    assert seen == {i: scores[i] for i in (1, 3, 4, 5, 6)} and fractions


def test_rolling(fake: Callable[[str], Path], checkpoint: Path) -> None:
    fake()
    with Worker(checkpoint) as worker:
        whole, empty = worker.score_rolling([[5, 9, 12], []], 1)
        assert whole.sum == fake_worker.rolling_sum([5, 9, 12], 1, 2048) == sum(whole.logprobs)
        assert (empty.sum, empty.count) == (0.0, 0)


def test_the_real_worker_agrees_with_itself(checkpoint: Path, real_worker: str) -> None:
    """A list of tokens, pairs and a text give the same numbers, to the last bit."""
    tokens = [256, *b"the quick brown fox"]
    with Worker(checkpoint, dtype="float32", threads=1) as worker:
        whole, *pairs = worker.score([tokens, *((tokens[:i], tokens[i : i + 1]) for i in range(1, len(tokens)))])
        (text,) = worker.score_rolling([tokens[1:]], tokens[0])
        assert worker.model["dtype"] == "float32"
    assert [p.logprobs[0] for p in pairs] == list(whole.logprobs) == list(text.logprobs)
    assert whole.sum == text.sum and whole.identity and whole.numerics.startswith("cpu-")


def test_the_real_workers_errors_name_the_sequence(checkpoint: Path, real_worker: str) -> None:
    """The number of the sequence in the call, not of the item in the job."""
    with Worker(checkpoint) as worker:
        with pytest.raises(CtworkerError, match=r"^sequence 2: token 1 is 99999, the vocabulary"):
            worker.score([[1], [1, 2], [1, 99999]])


def test_lengths(checkpoint: Path, real_worker: str) -> None:
    """max_length truncates contexts and bounds a text's windows, which share context_length tokens."""
    tokens = [256, *b"the quick brown fox"]
    windows = get_rolling_token_windows(tokens[1:], tokens[0], max_seq_len=8, context_len=3)
    with Worker(checkpoint, dtype="float32", threads=1) as worker:
        long, short = worker.score([(tokens[:9], tokens[9:12]), (tokens[3:9], tokens[9:12])], max_length=8)
        (text,) = worker.score_rolling([tokens[1:]], tokens[0], max_length=8, context_length=3)
        parts = worker.score([tuple(map(list, make_disjoint_window(window))) for window in windows])
    assert long.truncated == 3 and short.truncated == 0 and long.logprobs == short.logprobs
    assert len(parts) == 3 and list(text.logprobs) == [x for part in parts for x in part.logprobs]


@pytest.mark.parametrize("bos_mode", [None, "replace", "prefix"])
def test_windows_of_a_rule(checkpoint: Path, real_worker: str, bos_mode: str | None) -> None:
    """A text cut by the worker gives the bits of the same windows scored as sequences."""
    text, bos = list(b"the quick brown fox jumps over the lazy dog"), 256
    windows = [text[i : i + 8] for i in range(0, len(text), 5)]
    windows = [w for w in windows if len(w) == 8][:6]
    if bos_mode == "replace":
        sequences = [([bos, *w[1:3]], w[3:]) for w in windows]
    else:
        sequences = [([bos] * (bos_mode == "prefix") + w[:3], w[3:]) for w in windows]
    with Worker(checkpoint, dtype="float32", threads=1) as worker:
        given = {} if bos_mode is None else {"bos": bos, "bos_mode": bos_mode}
        whole, empty = worker.score_windows([text, []], 8, stride=5, first=3, rows=6, **given)
        parts = worker.score(sequences)
    assert list(whole.logprobs) == [x for part in parts for x in part.logprobs]
    assert list(whole.greedy) == [x for part in parts for x in part.greedy]
    assert list(whole.window_sums) == [part.sum for part in parts]
    assert list(whole.window_counts) == [5] * 6 and whole.count == 30
    assert (empty.count, list(empty.window_sums), list(empty.window_counts)) == (0, [], [])


def test_the_source_of_the_scores(fake: Callable[[str], Path], checkpoint: Path) -> None:
    """Results tell what `info` did not know yet, and must not contradict it."""
    fake("unknown=99")
    with Worker(checkpoint) as worker:
        worker.score([[1, 2]])
        assert worker.model["identity"] == worker.identity == "ab" * 32
    fake("scored=fake-2")
    with Worker(checkpoint) as worker, pytest.raises(CtworkerError, match="from 'fake-1' to 'fake-2'"):
        worker.score([[1, 2]])


def test_a_worker_without_identity_is_named(fake: Callable[[str], Path], checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All weights were read, and the worker still gives no identity."""
    fake("unknown=99")
    with Worker(checkpoint) as worker:
        session, scored = worker._session, []
        session.model["weights_streamed"] = True
        monkeypatch.setattr(session, "score", lambda *args, **more: scored.append(args))
        with pytest.raises(CtworkerError, match="gives no identity of model"):
            session.source()
        assert len(scored) == 1


def test_timeouts_of_a_client(running_fake: Callable[..., str], tmp_path: Path) -> None:
    with pytest.raises(CtworkerError, match="still loading after 0.3 s"):
        Client(running_fake("loading=9999"), load_timeout=0.3)
    silent = f"ipc://{tmp_path}/silent.sock"
    start = time.monotonic()
    with pynng.Rep0(listen=silent), pytest.raises(CtworkerError, match="timed out"):
        Client(silent, timeout=0.5)
    assert time.monotonic() - start < 60


def test_errors_name_what_is_wrong(fake: Callable[[str], Path], checkpoint: Path, tmp_path: Path) -> None:
    fake("nan")
    with Worker(checkpoint) as worker:
        with pytest.raises(CtworkerError, match=r"sequence 2: NaN in a score \(layer 3\)"):
            worker.score([[1], [1, 2], [3, 4]])
        with pytest.raises(ArgumentError, match="sequence 1: the context has no token"):
            worker.score([[1, 2], ([], [3])])
        for bad in ("text", [1.5], array("f", [1]), [1 << 40], 5, [[1, 2]]):
            with pytest.raises(ArgumentError, match="sequence 0: expected token ids"):
                worker.score([bad])
        with pytest.raises(ArgumentError, match="expected a list of sequences, found NoneType"):
            worker.score(None)  # type: ignore[arg-type]
        for rule in ({"window": 0}, {"window": "8"}, {"window": 1 << 70}, {"window": 8, "stride": 0}, {"window": 8, "rows": -1}):
            with pytest.raises(ArgumentError, match=f"{list(rule)[-1]}=.*: expected a whole number from [01] to"):
                worker.score_windows([[1, 2]], **rule)
        with pytest.raises(ArgumentError, match="max_length=0: expected a whole number from 1 to"):
            worker.score_rolling([[1, 2]], 1, max_length=0)
        with Client(worker.endpoint) as client:
            pass
        with pytest.raises(CtworkerError, match="this Client is closed"):
            client.score([[1, 2]])
    with pytest.raises(CtworkerError, match="this Worker is closed"):
        worker.score([[1, 2]])
    with pytest.raises(TypeError, match="unexpected keyword argument 'thread'"):
        Worker(checkpoint, thread=1)  # type: ignore[call-arg]
    with pytest.raises(CtworkerError, match=r"its log in .*none/log: No such file or directory$"):
        Worker(checkpoint, worker_log=tmp_path / "none/log")
    with pytest.raises(CtworkerError, match="there is no folder"):
        Worker(tmp_path / "none.json")
    with pytest.raises(CtworkerError, match="no worker listens there"):
        Client(f"ipc://{tmp_path}/none.sock")


@pytest.mark.parametrize(
    "rule",
    [
        {"window": 8},
        {"window": 8, "stride": 5, "first": 3, "rows": 6},
        {"window": 8, "stride": 5, "new": True, "tail": True},
        {"window": 60, "tail": True, "bos": 256},
    ],
)
def test_windows_are_compared_with_a_reference(
    fake: Callable[[str], Path], checkpoint: Path, tmp_path: Path, rule: dict[str, Any]
) -> None:
    fake()
    original = shutil.copytree(checkpoint, tmp_path / "original")
    texts = [list(b"the quick brown fox jumps over the lazy dog"), [], list(b"and some other text of more words")]
    seen = []
    with Worker(checkpoint, reference=original, reference_dtype="fp32") as worker:
        found = worker.compare_windows(texts, **rule, on_result=lambda i, result: seen.append((i, result)))
        assert worker.model["name"] == checkpoint.name
    assert sorted(i for i, _ in seen) == [0, 1, 2] and all(found[i] is result for i, result in seen)
    for text, result in zip(texts, found):
        windows = fake_divergence.targets(len(text), rule)
        assert list(result.window_counts) == [len(window) for window in windows]
        values = [fake_divergence.columns(text, p, 1.0) for window in windows for p in window]
        assert result.count == len(values)
        for name in fake_divergence.CODES:
            assert list(result.columns[name]) == array(fake_divergence.CODES[name], (row[name] for row in values)).tolist(), name
        assert (result.numerics, result.ref_numerics) == ("fake-1", "fake-1/float32")
        assert result.ref_identity == fake_worker.identity_of(original) != result.identity
