"""A client of a running worker: one method per operation of docs/PROTOCOL.md."""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Callable
from typing import Any

from ..base.clock import Clock
from ..base.errors import ConnectionLost, ProtocolError, TurnedAway, WorkerError
from . import replies
from .transport import ReqSocket
from .wire import decode_reply, encode_request

log = logging.getLogger("lm_eval.ctworker")

_ATTEMPT_S = 30.0  # a worker answers every request within about a second, however much it computes
_LAST_ATTEMPT_S = 1.0
_RETRY_FIRST_S, _RETRY_MAX_S = 0.05, 2.0
_NOT_OURS = "does another program listen there, or another version of ctworker?"
_NOTE_FIRST_S, _NOTE_S = 1.5, 30.0  # times of the warnings about a missing answer


class Connection:
    """A connection to one worker. Not thread-safe.

    url: `ipc:///path` or `tcp://host:port`.
    token: the token for a worker on tcp:// (client_token()).
    timeout: seconds to wait for an answer before ConnectionLost is raised.
    check_alive: called before every retry; raises when waiting is pointless (the process is dead).
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        timeout: float = 120.0,
        check_alive: Callable[[], None] | None = None,
    ) -> None:
        self.url = url
        self._envelope = {} if token is None else {"token": token}
        self.timeout = timeout
        self._check_alive = check_alive or (lambda: None)
        self._clock = Clock()
        self._socket = ReqSocket(url, self._clock)
        self._id = 0
        self._began = self._deadline = self._next_note = 0.0  # of the request in flight

    def close(self) -> None:
        """Closes the connection; the next request opens it again."""
        self._socket.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self, op: str, *, timeout: float | None = None, **fields: Any) -> dict[str, Any]:
        """Sends one request and returns the reply. After a lost connection it reconnects and repeats the
        request, which is idempotent by protocol.

        Raises WorkerError when the worker refuses, ConnectionLost after `timeout` seconds without an answer.
        """
        seconds = self.timeout if timeout is None else timeout
        self._began = self._clock.now()
        self._deadline = self._began + seconds
        self._next_note = self._began + _NOTE_FIRST_S if seconds > _NOTE_FIRST_S else math.inf
        noted, pause, last = self._next_note, _RETRY_FIRST_S, False
        while True:
            self._id += 1
            attempt_s = max(self._deadline - self._clock.now(), min(seconds, _LAST_ATTEMPT_S))
            try:
                data = self._socket.request(
                    encode_request(op, self._id, self._envelope | fields),
                    min(_ATTEMPT_S, attempt_s),
                    self._note,
                )
            except ConnectionLost as error:
                self._socket.close()
                self._check_alive()
                if last and isinstance(error, TurnedAway):
                    raise TurnedAway(f"{error}: end programs that hold connections, or close them, then try again") from error
                if last:
                    raise ConnectionLost(
                        f"{error}; is the worker running? (try: ctworker health {self.url})"
                    ) from error
                self._note(error)
                last = self._deadline - self._clock.now() <= pause
            else:
                if self._next_note != noted:
                    log.info("the worker at %s answers again", self.url)
                return self._decode(op, data)
            self._clock.sleep(0 if last else pause)
            pause = min(2 * pause, _RETRY_MAX_S)

    def _decode(self, op: str, data: bytes) -> dict[str, Any]:
        """The reply. Raises WorkerError, ProtocolError; adds the remedy to a bare "refused"."""
        try:
            reply = decode_reply(data, self._id)
            replies.check(op, reply)
            return reply
        except ProtocolError as error:
            raise ProtocolError(f"{self.wrong(op)}: {error}; {_NOT_OURS}") from error
        except WorkerError as error:
            if error.code != "refused":
                raise
            found = "the worker does not know its token" if self._envelope else "it sent no token"
            raise WorkerError(
                "refused",
                f"the worker at {self.url} refused this client: {found}; pass the worker's token (token_file=FILE or "
                "CTW_TOKEN)",
            ) from error

    def wrong(self, op: str) -> str:
        """How a message about a reply that violates the protocol begins."""
        return f"the worker at {self.url} answered the request '{op}' with what is no such reply"

    def _note(self, error: ConnectionLost | None = None) -> None:
        """Logs now and then that an answer is missing, and when the wait times out."""
        now = self._clock.now()
        if now >= self._next_note:
            self._next_note = now + _NOTE_S
            log.warning(
                "waiting for the worker at %s: %s; the wait times out in %.0f s (timeout=)",
                self.url,
                error or f"no answer for {now - self._began:.0f} s",
                max(0.0, self._deadline - now),
            )

    def info(self) -> dict[str, Any]:
        return self.call("info")

    def health(self, *, timeout: float | None = None) -> dict[str, Any]:
        return self.call("health", timeout=timeout)

    def submit(
        self, job: bytes, part: int, items: dict[str, bytes], head: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        fields: dict[str, Any] = {"job": job, "part": part, "items": items}
        if part == 0:
            fields["head"] = head or {}
        return self.call("submit", **fields)

    def seal(self, job: bytes, parts: int) -> dict[str, Any]:
        return self.call("seal", job=job, parts=parts)

    def poll(self, job: bytes, *, wait_ms: int = 0, seen: int = 0) -> dict[str, Any]:
        return self.call("poll", job=job, wait_ms=wait_ms, seen=seen)

    def fetch(self, job: bytes, first: int, max_bytes: int | None = None) -> dict[str, Any]:
        more = {} if max_bytes is None else {"max_bytes": max_bytes}
        return self.call("fetch", job=job, first=first, **more)

    def cancel(self, job: bytes, *, timeout: float | None = None) -> dict[str, Any]:
        return self.call("cancel", job=job, timeout=timeout)

    def release(self, job: bytes, *, timeout: float | None = None) -> dict[str, Any]:
        return self.call("release", job=job, timeout=timeout)

    def shutdown(self, mode: str = "cancel", *, timeout: float | None = None) -> dict[str, Any]:
        return self.call("shutdown", mode=mode, timeout=timeout)

    @staticmethod
    def new_job() -> bytes:
        """A new job id."""
        return secrets.token_bytes(16)


def describe(error: WorkerError) -> str:
    """The error's text, with the layer if the worker named one."""
    return str(error) if error.layer is None else f"{error} (layer {error.layer})"
