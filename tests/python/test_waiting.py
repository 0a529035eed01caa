"""How a client waits: no busy loop, no silence, no deadline that passes while the client itself is stopped."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import fake_worker
import msgpack
import pynng
import pytest

from ctworker.base.clock import Clock
from ctworker.base.errors import ConnectionLost, TurnedAway
from ctworker.client.batches import Job
from ctworker.client.connection import Connection
from ctworker.client.scoring import Item, Score, Scorer

SCORE = """
import sys, time
from array import array
from ctworker.client.connection import Connection
from ctworker.client.scoring import Item, Scorer
scores = {}
items = [Item(array("i", [1, 2, i]), 1) for i in range(int(sys.argv[2]))]
with Connection(sys.argv[1], timeout=float(sys.argv[3])) as client:
    print("begin", flush=True)
    Scorer(client, "loglikelihood", items, {}, client.info()["limits"], on_score=scores.__setitem__).run()
print("scores", len(scores), flush=True)
"""


def score(url: str, n_items: int) -> dict[int, Score]:
    scores: dict[int, Score] = {}
    items = [Item(array("i", [1, 2, i]), 1) for i in range(n_items)]
    with Connection(url, timeout=30) as client:
        limits = client.info()["limits"]
        Scorer(client, "loglikelihood", items, {}, limits, on_score=scores.__setitem__).run()
    return scores


@pytest.mark.parametrize(
    ("fault", "most"),
    [
        ("hot", 28),  # a worker older than `again_ms`, or a broken worker
        ("again=0", 28),
        ("again=900", 7),
        ("items=3", 12),  # two jobs at a time, polls held
        ("hot,items=3", 56),
    ],
)
def test_no_poll_is_hot(
    running_fake: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    fault: str,
    most: int,
) -> None:
    """The number of polls is bounded, whatever the worker answers, and however fast."""
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "requests"))
    url = running_fake(f"slow=0.5,{fault}")
    used = time.process_time()
    scores = score(url, 6)
    used = time.process_time() - used
    assert [scores[i].sum for i in range(6)] == [fake_worker.pair_sum([1], [2, i])[0] for i in range(6)]
    polls = [line for line in (tmp_path / "requests").read_text().splitlines() if "poll" in line]
    assert 2 <= len(polls) <= most and used < 0.5  # seconds, of 1.5 to 3 that it took


def test_the_worker_cannot_ask_for_silence() -> None:
    """A client that obeyed would lose its job at the end of the job's time to live."""
    job = Job(b"", [], 0, [], reply={"items_done": 0, "state": "queued", "again_ms": 10**9})
    Scorer._pace(job, 500, 0.5)
    assert 30 < job.not_before - time.monotonic() < 120


def test_the_clock_leaves_out_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("ctworker.base.clock.time", SimpleNamespace(monotonic=lambda: now[0]))
    clock = Clock()
    now[0] = 0.25
    assert clock.now() == 0.25
    now[0] = 100
    assert clock.now() == 1.25


def test_a_stopped_client_goes_on(running_fake: Callable[..., str]) -> None:
    """The client is stopped for three times its timeout."""
    url = running_fake("slow=0.5")
    child = subprocess.Popen(
        [sys.executable, "-c", SCORE, url, "8", "2"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert child.stdout is not None and child.stdout.readline() == b"begin\n"
    time.sleep(0.7)
    os.kill(child.pid, signal.SIGSTOP)
    time.sleep(6)
    os.kill(child.pid, signal.SIGCONT)
    out, err = child.communicate(timeout=60)
    assert out == b"scores 8\n", err.decode()[-500:]


def test_a_last_attempt_is_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The deadline has passed, but the worker may be back."""
    client = Connection(f"ipc://{tmp_path}/x.sock", timeout=0.01)
    seen: list[float] = []

    def request(body: bytes, timeout: float, *_: object) -> bytes:
        seen.append(timeout)
        raise ConnectionLost("nobody")

    monkeypatch.setattr(client._socket, "request", request)
    with pytest.raises(ConnectionLost, match="nobody; is the worker running"):
        client.info()
    assert len(seen) == 2 and min(seen) >= 0.01


def first_note(caplog: pytest.LogCaptureFixture) -> tuple[str, int]:
    """The warning, and the seconds that it says are left."""
    notes = [record.getMessage() for record in caplog.records if "waiting for" in record.getMessage()]
    assert len(notes) == 1, caplog.text
    left = re.search(r"times out in (\d+) s", notes[0])
    assert left is not None, notes
    return notes[0], int(left[1])


@pytest.mark.parametrize(
    ("greeting", "what"),
    [(b"", "closes new connections at once: all its connections are in use"), (b"\0SP\0\0\x31\0\0", "without an answer: too many")],
)
def test_a_full_worker(tmp_path: Path, caplog: pytest.LogCaptureFixture, greeting: bytes, what: str) -> None:
    """A worker without a place closes the connection, before its greeting or after the token; it is running."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "full.sock"))
        server.listen()

        def turn_away() -> None:
            with contextlib.suppress(OSError):
                while True:
                    with server.accept()[0] as connection:
                        connection.sendall(greeting)
                        while greeting and len(connection.recv(4096)) <= 8:
                            pass

        thread = threading.Thread(target=turn_away)
        thread.start()
        try:
            with pytest.raises(TurnedAway) as raised:
                Connection(f"ipc://{tmp_path}/full.sock", timeout=3).info()
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
    assert f"{tmp_path}/full.sock: the worker closes" in str(raised.value) and what in str(raised.value)
    assert "who holds them: end programs that hold connections" in str(raised.value)
    assert what in first_note(caplog)[0] and "is the worker running" not in str(raised.value)


def test_waiting_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A warning within 2 s names the worker and the time left, whether nobody listens or nobody answers."""
    caplog.set_level(logging.INFO)
    dead = tmp_path / "dead.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(dead))
    with pytest.raises(ConnectionLost, match="refused.*is the worker running"):
        Connection(f"ipc://{dead}", timeout=6).info()
    text, left = first_note(caplog)
    assert f"ipc://{dead}: cannot connect" in text and 1 <= left <= 4

    caplog.clear()
    silent = f"ipc://{tmp_path}/silent.sock"
    with pynng.Rep0(listen=silent):
        with pytest.raises(ConnectionLost, match="timed out"):
            Connection(silent, timeout=6).info()
    text, left = first_note(caplog)
    assert re.search(r"no answer for [2-5] s", text) and 1 <= left <= 4
    assert "answers again" not in caplog.text

    with pynng.Rep0(listen=silent) as server:

        def answer_late() -> None:
            for pause in (2, 0):
                time.sleep(pause)
                request = msgpack.unpackb(server.recv())
                server.send(msgpack.packb({"v": 1, "id": request["id"], "ok": True, "state": "ready"}))

        thread = threading.Thread(target=answer_late)
        thread.start()
        client = Connection(silent, timeout=30)
        assert client.health()["ok"] and client.health()["ok"]
        thread.join()
    assert caplog.text.count(f"{silent} answers again") == 1
