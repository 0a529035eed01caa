"""Messages and the transport, against nng's own REP socket (pynng)."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from array import array
from pathlib import Path

import msgpack
import pynng
import pytest

from ctworker.base.errors import (ArgumentError, ConnectionLost, CtworkerError, ProtocolError, WorkerError)
from ctworker.client.connection import Connection
from ctworker.client.transport import ReqSocket
from ctworker.client.wire import decode_columns, decode_reply, encode_request, pack, unpack


def test_columns_are_little_endian() -> None:
    assert pack([1, -2]) == b"\1\0\0\0\xfe\xff\xff\xff"
    assert list(unpack(struct.pack("<2d", 1.5, -2.25), "d")) == [1.5, -2.25]
    assert pack(array("i", [7])) == b"\7\0\0\0"


def test_request_is_a_map_with_bin() -> None:
    data = encode_request("submit", 3, {"job": b"x" * 16})
    assert msgpack.unpackb(data) == {"v": 1, "op": "submit", "id": 3, "job": b"x" * 16}
    assert b"\xc4\x10" in data  # bin 8


def reply(**fields: object) -> bytes:
    return msgpack.packb({"v": 1, "id": 3, **fields})


def test_replies() -> None:
    assert decode_reply(reply(ok=True, state="ready", later=1), 3)["state"] == "ready"
    with pytest.raises(WorkerError) as caught:
        decode_reply(reply(ok=False, error={"code": "busy", "message": "full", "retry_ms": 5}), 3)
    assert (caught.value.code, caught.value.retry_ms, str(caught.value)) == ("busy", 5, "full")
    for bad in (b"", b"\xc1", msgpack.packb([1]), msgpack.packb({"v": 1}), reply(ok=True)[:-1]):
        with pytest.raises(ProtocolError):
            decode_reply(bad, 3)
    with pytest.raises(ProtocolError, match="expected 4"):
        decode_reply(reply(ok=True), 4)


def test_columns_are_checked() -> None:
    good = {"item": pack([0]), "sum": pack([1.0], "d"), "count": pack([2]), "is_greedy": b"\1"}
    assert decode_columns(good, 1)["sum"][0] == 1.0
    for name in good:
        with pytest.raises(ProtocolError, match=name):
            decode_columns({k: v for k, v in good.items() if k != name}, 1)
    with pytest.raises(ProtocolError, match="logprob"):
        decode_columns({**good, "logprob": pack([0.0], "f")}, 1)
    for odd in (b"123", "text", 7):
        with pytest.raises(ProtocolError, match="'count'"):
            decode_columns({**good, "count": odd}, 1)


@pytest.fixture
def urls(tmp_path: Path) -> list[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return [f"ipc://{tmp_path}/s.sock", f"tcp://127.0.0.1:{port}", f"tcp://localhost:{port}"]


@pytest.mark.parametrize("which", [0, 1, 2])
def test_speaks_to_nng(urls: list[str], which: int) -> None:
    url = urls[which]
    sizes = [1, 1000, 3_000_000]
    with pynng.Rep0(listen=url.replace("localhost", "127.0.0.1"), recv_timeout=30000) as server:

        def serve() -> None:
            for _ in sizes:
                server.send(server.recv()[::-1])

        thread = threading.Thread(target=serve)
        thread.start()
        client = ReqSocket(url)
        for n in sizes:
            data = os.urandom(n)
            assert client.request(data, 30.0) == data[::-1]
        thread.join()
        client.close()


@pytest.mark.parametrize(
    "url",
    ["", "ipc://", "http://x:1", "tcp://x", "tcp://:5", "tcp://h:0", "tcp://h:99999", "/a", "ipc:///" + "x" * 110],
)
def test_bad_urls_are_refused(url: str) -> None:
    with pytest.raises(ArgumentError, match="ipc:///path|at most 107"):
        ReqSocket(url)


def test_nobody_there(tmp_path: Path) -> None:
    start = time.monotonic()
    with pytest.raises(ConnectionLost, match="No such file.*is the worker running"):
        Connection(f"ipc://{tmp_path}/none.sock", timeout=0.3).info()
    assert time.monotonic() - start < 10


def test_silence_ends_in_time(urls: list[str]) -> None:
    with pynng.Rep0(listen=urls[0]):
        start = time.monotonic()
        with pytest.raises(ConnectionLost, match="timed out"):
            Connection(urls[0], timeout=0.5).info()
        assert time.monotonic() - start < 10


@pytest.mark.parametrize("late", [0.0, 0.05])
def test_not_a_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: float) -> None:
    """A socket of another program, which may close before we send anything, and a socket of another protocol."""
    connect = socket.socket.connect

    def connect_and_wait(sock: socket.socket, address: str) -> None:
        connect(sock, address)
        time.sleep(late)

    monkeypatch.setattr(socket.socket, "connect", connect_and_wait)
    path = f"{tmp_path}/x.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()

        def serve() -> None:
            connection, _ = server.accept()
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n")
            connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(CtworkerError, match="is not a ctworker"):
            Connection(f"ipc://{path}", timeout=20).info()
        thread.join()
    with pynng.Pub0(listen=f"ipc://{tmp_path}/pub.sock"), pytest.raises(CtworkerError):
        Connection(f"ipc://{tmp_path}/pub.sock", timeout=20).info()


def test_oversized_reply_is_not_read(tmp_path: Path) -> None:
    path = f"{tmp_path}/x.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()

        def serve() -> None:
            connection, _ = server.accept()
            connection.sendall(b"\0SP\0\0\x31\0\0")
            connection.recv(4096)
            connection.sendall(b"\1" + struct.pack(">Q", 1 << 40))
            time.sleep(0.2)
            connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(ConnectionLost, match="at most"):
            ReqSocket(f"ipc://{path}").request(b"x", 20.0)
        thread.join()


def test_repeats_after_a_lost_connection(urls: list[str]) -> None:
    """The first server dies without an answer; a second server on the same address answers."""
    url = urls[0]

    def serve() -> None:
        with pynng.Rep0(listen=url, recv_timeout=30000) as first:
            first.recv()
        time.sleep(0.2)
        with pynng.Rep0(listen=url, recv_timeout=30000) as second:
            request = msgpack.unpackb(second.recv())
            second.send(msgpack.packb({"v": 1, "id": request["id"], "ok": True, "state": "ready"}))
            time.sleep(0.2)

    thread = threading.Thread(target=serve)
    thread.start()
    time.sleep(0.1)
    assert Connection(url, timeout=30).health()["state"] == "ready"
    thread.join()
