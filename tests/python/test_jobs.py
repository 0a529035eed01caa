"""How requests become jobs: parts, a full worker, a worker that forgets, results of another model, a stall."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from pathlib import Path

import fake_worker
import pytest
from conftest import ids, requests

from ctworker.base.errors import CtworkerError
from ctworker.client.connection import Connection
from ctworker.client.scoring import Item, Scorer
from ctworker.lm import CTWorkerLM


def test_many_items_in_parts_and_jobs(make: Callable[..., CTWorkerLM]) -> None:
    """Small limits: several jobs with several parts, results fetched seven at a time and out of order."""
    texts = [(f"context {i}", f" then {'x' * (i % 40)}") for i in range(500)]
    answers = make("part=4096,items=150,busy=2").loglikelihood(requests("loglikelihood", *texts), disable_tqdm=True)
    assert answers == [fake_worker.pair_sum(ids(a), ids(b)) for a, b in texts]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], list[list[str]]]:
    """asked() returns the words of each request that a fake worker received."""
    path = tmp_path / "requests"
    monkeypatch.setenv("FAKE_LOG", str(path))
    return lambda: [line.split(" ") for line in path.read_text().splitlines()]


TEXTS = [(f"context {i}", f" then {'x' * (i % 40)}") for i in range(200)]


def test_a_full_worker_keeps_the_parts_it_has(
    make: Callable[..., CTWorkerLM], asked: Callable[[], list[list[str]]]
) -> None:
    answers = make("part=4096,full=3").loglikelihood(requests("loglikelihood", *TEXTS), disable_tqdm=True)
    assert answers == [fake_worker.pair_sum(ids(a), ids(b)) for a, b in TEXTS]
    parts = [words[2] for words in asked() if words[0] == "submit"]
    assert parts[:7] == ["0", "1", "2", "2", "2", "2", "2"] and parts.count("1") == 1


def test_a_job_that_waits_too_long_makes_room(
    make: Callable[..., CTWorkerLM],
    asked: Callable[[], list[list[str]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ctworker.client.scoring._HOLD_S", 0.01)
    monkeypatch.setattr("ctworker.client.scoring._HOLD_PAUSE_S", 0.05)
    answers = make("part=4096,full=3").loglikelihood(requests("loglikelihood", *TEXTS), disable_tqdm=True)
    assert answers == [fake_worker.pair_sum(ids(a), ids(b)) for a, b in TEXTS]
    (canceled,) = [words[1] for words in asked() if words[0] == "cancel"]
    assert canceled == asked()[[words[0] for words in asked()].index("submit")][1]


def test_a_restart_between_parts(make: Callable[..., CTWorkerLM], caplog: pytest.LogCaptureFixture) -> None:
    answers = make("part=4096,forgets=3").loglikelihood(requests("loglikelihood", *TEXTS), disable_tqdm=True)
    assert answers == [fake_worker.pair_sum(ids(a), ids(b)) for a, b in TEXTS]
    assert "submitting 200 of 200 requests again" in caplog.text


def test_a_job_that_is_not_sealed_is_abandoned(
    make: Callable[..., CTWorkerLM], asked: Callable[[], list[list[str]]]
) -> None:
    with pytest.raises(CtworkerError, match=r"^request 0 \(task toy, document 0\): no$"):
        make("part=4096,invalid=3").loglikelihood(requests("loglikelihood", *TEXTS), disable_tqdm=True)
    job = next(words[1] for words in asked() if words[0] == "submit")
    assert ["cancel", job, ""] in asked()


def test_results_of_another_model_are_refused(make: Callable[..., CTWorkerLM]) -> None:
    with pytest.raises(CtworkerError, match="numerics changed .*from 'fake-1' to 'fake-2'"):
        make("scored=fake-2").loglikelihood(requests("loglikelihood", ("a", "b")), disable_tqdm=True)


def test_jobs_fit_the_queue() -> None:
    """Counts as worker/service/jobs/job_part.c: 4 bytes per token, 8 per target, plus the item and its windows."""
    limits = {"queue_bytes": 40_000, "part_bytes": 1 << 20, "job_items": 1000}
    items = [Item(array("i", range(n))) for n in (1, 400, 800, 1000, 5, 900)]
    kinds = {"loglikelihood_rolling": {"max_length": 10}, "loglikelihood": {}, "loglikelihood_windows": {"window": 8}}
    kinds["divergence"] = {"window": 8}
    for kind, head in kinds.items():
        scorer = Scorer(Connection("ipc:///x"), kind, items, head, limits, on_score=lambda i, s: None)
        groups = list(scorer.batches.groups(range(len(items))))
        assert [i for group in groups for i in group] == list(range(len(items))) and len(groups) > 1
        for group in groups:
            tokens = sum(len(items[i].tokens) for i in group)
            assert 12 * tokens + 80 * len(group) <= 20_000
    scorer = Scorer(Connection("tcp://h:1"), "loglikelihood", [Item(array("i", [1] * 200_000), 1)] * 3, {},
                    {}, on_score=lambda i, s: None)  # fmt: skip
    assert list(scorer.batches.parts(range(3))) == [[0], [1], [2]]


def test_a_restarted_worker_gets_the_rest_again(
    make: Callable[..., CTWorkerLM], caplog: pytest.LogCaptureFixture
) -> None:
    texts = [(f"context {i}", " then") for i in range(30)]
    answers = make("slow=0.02,forget=3").loglikelihood(requests("loglikelihood", *texts), disable_tqdm=True)
    assert answers == [fake_worker.pair_sum(ids(a), ids(b)) for a, b in texts]
    assert "submitting" in caplog.text


def test_a_stalled_worker_is_told(
    make: Callable[..., CTWorkerLM],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("ctworker.client.scoring._BUSY_NOTE_S", 0.3)
    make("slow=2").loglikelihood(requests("loglikelihood", ("a", "b")), disable_tqdm=True)
    assert "no progress on this job" in caplog.text
