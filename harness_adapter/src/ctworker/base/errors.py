"""The exceptions of the package. Each message is one sentence: what was found, what was expected, the remedy."""

from __future__ import annotations


class CtworkerError(RuntimeError):
    """Base of every error that this package raises on purpose."""


class ArgumentError(CtworkerError, ValueError):
    """A model argument is unknown, unsupported, out of range or contradicts another."""


class WorkerError(CtworkerError):
    """The worker answered a request with an error (docs/PROTOCOL.md, "Envelope")."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        retry_ms: int | None = None,
        item: int | None = None,
        layer: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.retry_ms = retry_ms
        self.item = item
        self.layer = layer


class WorkerDied(CtworkerError):
    """The worker process that this program started has ended."""


class ConnectionLost(CtworkerError):
    """The worker did not answer; the request may be repeated."""


class TurnedAway(ConnectionLost):
    """The worker closed the connection before it answered: it has no place for this client."""


class ProtocolError(CtworkerError):
    """The worker's answer violates the protocol; repeating the request would not help."""
