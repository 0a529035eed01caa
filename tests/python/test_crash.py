"""Our own worker is restarted after a crash, and only requests without a result are scored again."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import fake_worker
import pytest
from conftest import requests, wait_for

from ctworker import Worker
from ctworker.base.errors import CtworkerError
from ctworker.lm import CTWorkerLM

TEXTS = [(f"context {i}", " then") for i in range(20)]
EXPECTED = [fake_worker.pair_sum(list(a.encode()), list(b.encode())) for a, b in TEXTS]


def kill_soon(record: Path, sign: signal.Signals) -> threading.Thread:
    """Kills the first worker while it is computing."""
    pid = json.loads(record.read_text())["pid"]

    def kill() -> None:
        time.sleep(1.0)
        os.kill(pid, sign)

    thread = threading.Thread(target=kill)
    thread.start()
    return thread


def test_a_killed_worker_is_started_again(make: Callable[..., CTWorkerLM], caplog: pytest.LogCaptureFixture) -> None:
    model = make("slow=0.1")
    kept: list[tuple] = []
    model._keep = lambda kind, text, answer: kept.append(text)
    thread = kill_soon(make.record, signal.SIGKILL)
    assert model.loglikelihood(requests("loglikelihood", *TEXTS), disable_tqdm=True) == EXPECTED
    thread.join()
    assert sorted(kept) == sorted(TEXTS)  # no result was fetched twice
    assert "was killed by SIGKILL" in caplog.text and "started again in 0.5 s" in caplog.text


def test_a_crash_that_repeats_is_given_up(
    make: Callable[..., CTWorkerLM], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("ctworker.client.session._RESTART_PAUSE_S", 0.01)
    with pytest.raises(
        CtworkerError,
        match="killed by SIGKILL.*crash 3 of this run, 3 of them without a result.*20 of 20 requests",
    ):
        make("slow=9,crash=1").loglikelihood(requests("loglikelihood", *TEXTS), disable_tqdm=True)
    assert [word in caplog.text for word in ("in 0.01 s", "in 0.02 s", "in 0.04 s")] == [True, True, False]


def test_crashes_with_results_between_go_on(make: Callable[..., CTWorkerLM], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctworker.client.session._RESTART_PAUSE_S", 0.01)
    model = make("slow=0.1,crash=5")
    assert model.loglikelihood(requests("loglikelihood", *TEXTS), disable_tqdm=True) == EXPECTED
    monkeypatch.setattr("ctworker.client.scoring._MAX_CRASHES_IN_ALL", 1)
    with pytest.raises(CtworkerError, match="crash 2 of this run, 1 of them without"):
        make("slow=0.1,crash=5").loglikelihood(requests("loglikelihood", *TEXTS), disable_tqdm=True)


def test_the_python_api_restarts_its_worker(fake: Callable[[str], Path], checkpoint: Path) -> None:
    fake("slow=0.1,crash=5")
    with Worker(checkpoint) as worker:
        pid = worker.pid
        scores = worker.score([[1, i] for i in range(8)])
        assert worker.pid != pid
    assert [score.sum for score in scores] == [fake_worker.logprob(1, i) for i in range(8)]


@pytest.mark.parametrize(("fault", "words"), [("slow=9,die=1", "the toy model broke"), ("slow=9", "SIGTERM")])
def test_a_worker_that_says_why_or_is_stopped_stays_down(
    make: Callable[..., CTWorkerLM], caplog: pytest.LogCaptureFixture, fault: str, words: str
) -> None:
    model = make(fault)
    thread = kill_soon(make.record, signal.SIGTERM) if "die" not in fault else None
    with pytest.raises(CtworkerError, match=words):
        model.loglikelihood(requests("loglikelihood", *TEXTS), disable_tqdm=True)
    if thread:
        thread.join()
    assert "started again" not in caplog.text


@pytest.mark.usefixtures("real_worker")
def test_the_real_worker_gives_the_same_bits(checkpoint: Path) -> None:
    model = CTWorkerLM(str(checkpoint))
    before = model.loglikelihood(requests("loglikelihood", *TEXTS), disable_tqdm=True)
    pid = model._session._worker.pid
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: model._session._worker.crashed)
    assert model.loglikelihood(requests("loglikelihood", *TEXTS), disable_tqdm=True) == before
    assert model._session._worker.pid != pid
    model.close()
