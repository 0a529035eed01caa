"""Corrupted replies: whatever a reply lacks or holds, a run ends well or in one sentence that names the endpoint, the
request and the field."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import msgpack
import pytest
from conftest import requests

from ctworker.base.errors import CtworkerError, ProtocolError
from ctworker.client.connection import Connection
from ctworker.client.transport import ReqSocket
from ctworker.lm import CTWorkerLM

Mutate = Callable[[str, bytes], bytes]


@pytest.fixture
def run(running_fake: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> Callable[[Mutate], None]:
    """run(mutate): scores at a worker whose replies mutate(op, bytes) has changed."""
    url, honest = running_fake(), ReqSocket.request

    def use(mutate: Mutate) -> None:
        def request(socket: ReqSocket, data: bytes, *rest: Any) -> bytes:
            return mutate(msgpack.unpackb(data)["op"], honest(socket, data, *rest))

        monkeypatch.setattr(ReqSocket, "request", request)
        model = CTWorkerLM(endpoint=url, timeout=5)
        try:
            model.loglikelihood(requests("loglikelihood", ("a", "b"), ("c", "d")), disable_tqdm=True)
        finally:
            model.close()

    return use


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every field."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in inner:
        yield (*path, key)
        yield from _places(below, (*path, key))


GONE = object()


def _changed(reply: dict[str, Any], path: tuple[Any, ...], value: Any) -> bytes:
    at: Any = reply
    for key in path[:-1]:
        at = at[key]
    if value is GONE:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return msgpack.packb(reply)


def _spelled(path: tuple[Any, ...]) -> str:
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path).removeprefix(".")


@pytest.mark.parametrize("op", ["info", "submit", "seal", "poll", "fetch"])
def test_every_field_of_a_reply(run: Callable[[Mutate], None], op: str) -> None:
    seen: list[dict[str, Any]] = []

    def watch(name: str, data: bytes) -> bytes:
        if name == op and not seen:
            seen.append(msgpack.unpackb(data))
        return data

    run(watch)
    n_refused = 0
    for path in _places(seen[0]):
        for value in (GONE, None, "x", 7, -1, 1.5, [1], {"a": 1}, b"\xff"):

            def mutate(name: str, data: bytes, path: tuple[Any, ...] = path, value: object = value) -> bytes:
                try:
                    return _changed(msgpack.unpackb(data), path, value) if name == op else data
                except (KeyError, IndexError):
                    return data  # this reply has no such field

            try:
                run(mutate)
            except ProtocolError as error:
                n_refused += 1
                assert "ipc://" in str(error) and "\n" not in str(error), (path, value)
                if "column" not in str(error) and path[0] not in ("ok", "first", "n", "items_done"):
                    assert f"'{op}'" in str(error) and f"the field {_spelled(path)}" in str(error), (path, value)
            except CtworkerError as error:  # a value of the right type, of another model for instance
                assert "\n" not in str(error)
    assert n_refused >= {"info": 40, "submit": 4, "seal": 8, "poll": 20, "fetch": 30}[op]


def test_bytes_of_a_reply(run: Callable[[Mutate], None]) -> None:
    """Any byte, and any end of the bytes: never an exception of msgpack or Python."""
    chance = random.Random(28)
    n_refused = 0

    def mutate(name: str, data: bytes) -> bytes:
        if chance.random() < 0.7:
            return data
        at = chance.randrange(len(data))
        return data[:at] if chance.random() < 0.3 else data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :]

    for _ in range(150):
        try:
            run(mutate)
        except CtworkerError:
            n_refused += 1
    assert n_refused > 50


@pytest.mark.parametrize(
    ("error", "field"), [("busy", "error is 'busy', expected a map"), ({"code": 7}, "error.code is 7"),
                         ({"code": "busy", "retry_ms": "soon"}, "error.retry_ms is 'soon', expected a whole number")]
)  # fmt: skip
def test_the_error_of_a_refusal(
    running_fake: Callable[..., str], monkeypatch: pytest.MonkeyPatch, error: object, field: str
) -> None:
    url = running_fake()
    answer = msgpack.packb({"v": 1, "id": 1, "ok": False, "error": error})
    monkeypatch.setattr(ReqSocket, "request", lambda *_: answer)
    expected = rf"the worker at {url} answered the request 'health' .*: the field {field}.*another version of ctworker\?"
    with pytest.raises(ProtocolError, match=expected):
        Connection(url).health()
