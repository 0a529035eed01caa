"""A REQ socket of the SP protocols, which nng speaks, in plain Python sockets.

It supports only what one client needs: one connection, one request at a time. A binding of nng does not
fit, because the lm-eval process forks (the `datasets` library's workers): nng aborts a forked child that
uses it, starts a dozen threads in the parent, and blocks Ctrl-C while it waits.

Wire format (nanomsg RFCs sp-tcp-mapping-01 and sp-ipc-mapping): both sides send 8 bytes
`00 'S' 'P' 00 <protocol:u16> 00 00`; then messages, each a 64-bit length, big-endian, and the bytes
(on ipc a byte 01 goes before the length). A REQ message starts with a 32-bit id whose highest bit is
set; the reply starts with the same id.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import select
import socket
import struct
from collections.abc import Callable

from ..base.clock import SLICE_S, Clock
from ..base.errors import ArgumentError, ConnectionLost, ProtocolError, TurnedAway
from .wire import MESSAGE_BYTES

_REQ, _REP = 0x30, 0x31
_HANDSHAKE = struct.Struct(">4sHH")
_MAGIC = b"\0SP\0"
_SUN_PATH_BYTES = 107  # sockaddr_un.sun_path without the terminator


def _address(url: str) -> tuple[str | bytes | tuple[str, int], bool]:
    """(address, is_ipc) of a URL. Raises an ArgumentError that names the URL."""
    scheme, separator, rest = url.partition("://")
    if separator and scheme == "ipc" and rest:
        if len(os.fsencode(rest)) > _SUN_PATH_BYTES:
            raise ArgumentError(
                f"the socket path of '{url}' has {len(os.fsencode(rest))} bytes, at most {_SUN_PATH_BYTES} are "
                "possible: use a shorter path"
            )
        return rest, True
    if separator and scheme == "abstract" and rest:
        return b"\0" + os.fsencode(rest), True
    if separator and scheme == "tcp":
        host, colon, port = rest.rpartition(":")
        host = host.strip("[]")
        if colon and host and port.isdigit() and 0 < int(port) < 65536:
            return (host, int(port)), False
    raise ArgumentError(
        f"endpoint '{url}' is invalid: expected ipc:///path/to/socket or tcp://host:port "
        "(a worker prints its endpoint when it starts)"
    )


def missing_path(url: str) -> str | None:
    """The path of an `ipc://` URL if no file exists there, so that no worker can listen; else None."""
    target, is_ipc = _address(url)
    return target if is_ipc and isinstance(target, str) and not os.path.exists(target) else None


class ReqSocket:
    """One connection to a REP socket. Not thread-safe. A forked child must not use the connection, but may
    close or drop it.

    clock: measures the timeouts.
    """

    def __init__(self, url: str, clock: Clock | None = None) -> None:
        self.url = url
        self._target, self._ipc = _address(url)
        self._clock = clock or Clock()
        self._while_waiting: Callable[[], None] | None = None
        self._socket: socket.socket | None = None
        self._next_id = random.getrandbits(31)
        self._answered = False  # over this connection

    def connect(self, timeout: float) -> None:
        """Connects and exchanges the handshake. Raises ConnectionLost."""
        if self._socket is not None:
            return
        deadline = self._clock.now() + timeout
        sock: socket.socket | None = None
        try:
            sock = self._dial(deadline)
            with contextlib.suppress(BrokenPipeError):  # the peer has closed, but may have sent its greeting
                self._send(sock, _HANDSHAKE.pack(_MAGIC, _REQ, 0), deadline)
            magic, protocol, _ = _HANDSHAKE.unpack(self._read(sock, _HANDSHAKE.size, deadline))
        except OSError as error:
            if sock is not None:
                sock.close()
                if isinstance(error, ConnectionResetError):
                    raise TurnedAway(
                        f"{self.url}: the worker closes new connections at once: all its connections are in use, or it "
                        "belongs to another user; its log says which, and who holds them"
                    ) from error
            raise ConnectionLost(f"cannot connect to {self.url}: {_reason(error)}") from error
        except BaseException:
            if sock is not None:
                sock.close()
            raise
        if magic != _MAGIC or protocol != _REP:
            sock.close()
            raise ProtocolError(
                f"the program that listens on {self.url} is not a ctworker (its greeting is {magic!r}, {protocol:#x}): "
                "correct the endpoint (ctworker ps lists the running workers)"
            )
        self._socket, self._answered = sock, False

    def request(
        self, body: bytes, timeout: float, while_waiting: Callable[[], None] | None = None
    ) -> bytes:
        """Sends one request and returns the reply's bytes; connects first if needed.

        while_waiting: called a few times per second until the reply arrives.

        Raises ConnectionLost when the connection fails or no reply arrives within `timeout` seconds;
        the connection is then closed, and the request may be repeated.
        """
        deadline = self._clock.now() + timeout
        self._while_waiting = while_waiting
        try:
            self.connect(timeout)
            sock = self._socket
            assert sock is not None
            self._next_id = (self._next_id + 1) & 0x7FFFFFFF
            header = struct.pack(">I", self._next_id | 0x80000000)
            n_bytes = struct.pack(">Q", len(header) + len(body))
            lead = (b"\1" if self._ipc else b"") + n_bytes + header
            self._send(sock, lead, deadline)
            self._send(sock, body, deadline)
            while True:
                reply = self._receive(sock, deadline)
                if reply[:4] == header:
                    self._answered = True
                    return reply[4:]
        except OSError as error:
            self.close()
            if isinstance(error, (ConnectionResetError, BrokenPipeError)) and not self._answered:
                raise TurnedAway(
                    f"{self.url}: the worker closes connections without an answer: too many of its connections are in use; "
                    "its log says who holds them"
                ) from error
            raise ConnectionLost(f"no answer from {self.url}: {_reason(error)}") from error
        except BaseException:  # also KeyboardInterrupt: the state of the stream is unknown now
            self.close()
            raise
        finally:
            self._while_waiting = None  # the callback refers to its owner

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _dial(self, deadline: float) -> socket.socket:
        """A connected, non-blocking socket."""
        if not isinstance(self._target, tuple):
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                sock.settimeout(SLICE_S)
                sock.connect(self._target)
                sock.setblocking(False)
            except BaseException:
                sock.close()
                raise
            return sock
        host, port = self._target
        found: OSError = ConnectionRefusedError("the host has no address")
        for family, kind, protocol, _, address in socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM
        ):
            sock = socket.socket(family, kind, protocol)
            try:
                sock.setblocking(False)
                code = sock.connect_ex(address)
                if code == errno.EINPROGRESS:
                    self._wait(sock, select.POLLOUT, deadline)
                    code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if code:
                    raise OSError(code, os.strerror(code))
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                return sock
            except OSError as error:
                sock.close()
                found = error
            except BaseException:
                sock.close()
                raise
        raise found

    def _wait(self, sock: socket.socket, event: int, deadline: float) -> None:
        """Waits until the socket is ready for the event. Raises TimeoutError at the deadline."""
        poller = select.poll()
        poller.register(sock, event)
        while not poller.poll(1000 * SLICE_S):
            if self._clock.now() >= deadline:
                raise TimeoutError("timed out")
            if self._while_waiting is not None:
                self._while_waiting()

    def _send(self, sock: socket.socket, data: bytes, deadline: float) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[sock.send(view) :]
            except BlockingIOError:
                self._wait(sock, select.POLLOUT, deadline)

    def _receive(self, sock: socket.socket, deadline: float) -> bytes:
        if self._ipc and self._read(sock, 1, deadline) != b"\1":
            raise OSError("the reply is not framed as on the ipc transport")
        (n_bytes,) = struct.unpack(">Q", self._read(sock, 8, deadline))
        if n_bytes > MESSAGE_BYTES:
            raise OSError(f"the reply has {n_bytes} bytes, at most {MESSAGE_BYTES} are allowed")
        return self._read(sock, n_bytes, deadline)

    def _read(self, sock: socket.socket, n_bytes: int, deadline: float) -> bytes:
        """Exactly n_bytes. Raises OSError (TimeoutError at the deadline)."""
        data = bytearray(n_bytes)
        view, got = memoryview(data), 0
        while got < n_bytes:
            try:
                n = sock.recv_into(view[got:])
            except BlockingIOError:
                self._wait(sock, select.POLLIN, deadline)
                continue
            if n == 0:
                raise ConnectionResetError("the worker closed the connection")
            got += n
        return bytes(data)


def _reason(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "timed out"
    return error.strerror or str(error) or type(error).__name__
