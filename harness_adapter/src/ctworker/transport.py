"""A REQ socket of the SP protocols, which nng speaks, in plain Python sockets.

Only what one client needs: one connection, one request at a time. Written here rather than taken
from a binding of nng, because that process forks (the `datasets` library's workers): nng aborts a
forked child that touches it, starts a dozen threads in its parent, and hides Ctrl-C while it waits.

Wire format (nanomsg RFCs sp-tcp-mapping-01 and sp-ipc-mapping): both sides send 8 bytes
`00 'S' 'P' 00 <protocol:u16> 00 00`; then messages, each a 64-bit length, big-endian, and the bytes
(on ipc a byte 01 goes before the length). A REQ message starts with a 32-bit id whose highest bit is
set; the reply starts with the same id.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
import time

from .errors import ArgumentError, ConnectionLost, ProtocolError
from .wire import MESSAGE_BYTES

_REQ, _REP = 0x30, 0x31
_HANDSHAKE = struct.Struct(">4sHH")
_MAGIC = b"\0SP\0"
_SUN_PATH_BYTES = 107  # sockaddr_un.sun_path without its terminator


def _address(url: str) -> tuple[str | bytes | tuple[str, int], bool]:
    """(address, is_ipc) of a URL. Raises ArgumentError that names it."""
    scheme, separator, rest = url.partition("://")
    if separator and scheme == "ipc" and rest:
        if len(os.fsencode(rest)) > _SUN_PATH_BYTES:
            raise ArgumentError(
                f"the socket path of '{url}' has {len(os.fsencode(rest))} bytes, at most {_SUN_PATH_BYTES} are "
                "possible: use a shorter one"
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
        f"endpoint '{url}' is not understood: expected ipc:///path/to/socket or tcp://host:port "
        "(a worker prints its own when it starts)"
    )


class ReqSocket:
    """One connection to a REP socket. Not for several threads at once. A forked child must not use it;
    closing or dropping it there does no harm."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._target, self._ipc = _address(url)
        self._socket: socket.socket | None = None
        self._next_id = random.getrandbits(31)

    @property
    def connected(self) -> bool:
        return self._socket is not None

    def connect(self, timeout: float) -> None:
        """Connects and shakes hands. Raises ConnectionLost."""
        if self._socket is not None:
            return
        sock: socket.socket | None = None
        try:
            if self._ipc:
                sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                sock.settimeout(timeout)
                sock.connect(self._target)
            else:
                sock = socket.create_connection(self._target, timeout)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            with contextlib.suppress(BrokenPipeError):  # it has closed, but may have said who it is
                sock.sendall(_HANDSHAKE.pack(_MAGIC, _REQ, 0))
            magic, protocol, _ = _HANDSHAKE.unpack(
                _read(sock, _HANDSHAKE.size, time.monotonic() + timeout)
            )
        except OSError as error:
            if sock is not None:
                sock.close()
            raise ConnectionLost(f"cannot connect to {self.url}: {_reason(error)}") from error
        except BaseException:
            if sock is not None:
                sock.close()
            raise
        if magic != _MAGIC or protocol != _REP:
            sock.close()
            raise ProtocolError(
                f"what listens on {self.url} is no ctworker (its greeting is {magic!r}, {protocol:#x})"
            )
        self._socket = sock

    def request(self, body: bytes, timeout: float) -> bytes:
        """Sends one request and returns its reply's bytes; connects first where needed.

        Raises ConnectionLost when the connection fails or no reply came within `timeout` seconds;
        the connection is then closed, and the request may be repeated.
        """
        deadline = time.monotonic() + timeout
        self.connect(timeout)
        sock = self._socket
        assert sock is not None
        self._next_id = (self._next_id + 1) & 0x7FFFFFFF
        header = struct.pack(">I", self._next_id | 0x80000000)
        lead = (b"\1" if self._ipc else b"") + struct.pack(">Q", len(header) + len(body)) + header
        try:
            sock.settimeout(timeout)
            sock.sendall(lead)
            sock.sendall(body)
            while True:
                reply = self._receive(sock, deadline)
                if reply[:4] == header:
                    return reply[4:]
        except OSError as error:
            self.close()
            raise ConnectionLost(f"no answer from {self.url}: {_reason(error)}") from error
        except BaseException:  # also KeyboardInterrupt: what is under way is unknown now
            self.close()
            raise

    def _receive(self, sock: socket.socket, deadline: float) -> bytes:
        if self._ipc and _read(sock, 1, deadline) != b"\1":
            raise OSError("the reply's frame is not one of the ipc transport")
        (n_bytes,) = struct.unpack(">Q", _read(sock, 8, deadline))
        if n_bytes > MESSAGE_BYTES:
            raise OSError(f"the reply has {n_bytes} bytes, at most {MESSAGE_BYTES} are allowed")
        return _read(sock, n_bytes, deadline)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _read(sock: socket.socket, n_bytes: int, deadline: float) -> bytes:
    """Exactly n_bytes. Raises OSError (TimeoutError at the deadline)."""
    data = bytearray(n_bytes)
    view, got = memoryview(data), 0
    while got < n_bytes:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        sock.settimeout(left)
        n = sock.recv_into(view[got:])
        if n == 0:
            raise ConnectionResetError("the worker closed the connection")
        got += n
    return bytes(data)


def _reason(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "timed out"
    return error.strerror or str(error) or type(error).__name__
