"""Splits items into jobs, and jobs into parts to send, within the worker's limits.

Memory: a token list is an `array('i')`, 4 bytes per token; a job's parts are packed one at a time.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..base.errors import WorkerError
from .connection import Connection
from .wire import INT32, pack

#: Most bytes of one message over tcp://: a slow connection transfers that much well before a request times out.
_TCP_BYTES = 1 << 20


@dataclass(frozen=True)
class Item:
    """tokens: context then continuation (`loglikelihood`), or a text (the other kinds).
    n_context: tokens of the context; 0 for a text."""

    tokens: array[int]
    n_context: int = 0


@dataclass
class Job:
    """Items that were submitted under one id, or are being submitted."""

    id: bytes
    items: list[int]  # item numbers, in the job's order
    cost: int  # tokens
    parts: list[list[int]]  # the item numbers of each part sent
    n_sent: int = 0  # parts sent so far
    not_before: float = 0.0  # earliest time of the next request about this job
    busy_since: float | None = None
    quiet: float = 0.0  # wait after a poll that returned early without news
    fetched: int = 0
    left: set[int] = field(default_factory=set)
    state: str = "open"
    fraction: float = 0.0
    reply: dict[str, Any] = field(default_factory=dict)


class Batches:
    """kind, items, head: as for Scorer; limits: from `info`; url: the worker's URL."""

    def __init__(
        self,
        kind: str,
        items: Sequence[Item],
        head: dict[str, Any],
        limits: dict[str, int],
        url: str,
    ) -> None:
        self.kind, self.items, self.head = kind, items, head
        self.part_bytes = max(1, limits.get("part_bytes", 16 << 20))
        self.job_items = max(1, limits.get("job_items", 1 << 20))
        # Half of the queue: a second job of ours can wait while the first is computed.
        self.job_bytes = max(1, limits.get("queue_bytes", 1 << 30) // 2)
        self.message_bytes = _TCP_BYTES if url.startswith("tcp://") else None

    def check(self) -> None:
        """Raises WorkerError when an item is larger than a message may be."""
        for i, item in enumerate(self.items):
            if _item_bytes(item) > self.part_bytes:
                most = (self.part_bytes - 8) // 4
                message = (
                    f"the sequence has {len(item.tokens)} tokens, the worker takes at most {most} per sequence"
                )
                raise WorkerError("invalid", message, item=i)

    def groups(self, numbers: Sequence[int]) -> Iterator[list[int]]:
        """Splits item numbers into jobs that fit the worker's limits."""
        group: list[int] = []
        n_bytes = 0
        for i in numbers:
            size = self._queue_bytes(self.items[i])
            if group and (len(group) == self.job_items or n_bytes + size > self.job_bytes):
                yield group
                group, n_bytes = [], 0
            group.append(i)
            n_bytes += size
        if group:
            yield group

    def _queue_bytes(self, item: Item) -> int:
        """Queue bytes that the worker counts for an item: tokens, the results of each target, the item and its windows."""
        n_targets = len(item.tokens) - item.n_context
        n_windows, n_copied = 1, 0
        if self.kind == "loglikelihood_rolling" and self.head.get("max_length"):
            n_windows += n_targets // self.head["max_length"]
        elif "window" in self.head:
            n_windows += n_targets // self.head.get("stride", self.head["window"])
            n_windows = min(n_windows, self.head.get("rows") or n_windows)
            n_targets = n_windows * self.head["window"]
            n_copied = n_targets + n_windows if "bos" in self.head else 0
        per_target = 33 if self.kind == "divergence" else 8
        return 4 * (len(item.tokens) + n_copied) + per_target * n_targets + 24 * n_windows + 96

    def parts(self, numbers: Sequence[int]) -> Iterator[list[int]]:
        """Splits a job's item numbers into parts."""
        part: list[int] = []
        n_bytes = 0
        most = min(self.part_bytes, self.message_bytes or self.part_bytes)
        for i in numbers:
            size = _item_bytes(self.items[i])
            if part and n_bytes + size > most:
                yield part
                part, n_bytes = [], 0
            part.append(i)
            n_bytes += size
        yield part

    def encode(self, part: Sequence[int]) -> dict[str, bytes]:
        """The packed columns of a part."""
        items = [self.items[i] for i in part]
        tokens = b"".join(pack(item.tokens) for item in items)
        if self.kind != "loglikelihood":
            return {"tokens": tokens, "n_tokens": pack((len(item.tokens) for item in items), INT32)}
        return {
            "tokens": tokens,
            "n_context": pack((item.n_context for item in items), INT32),
            "n_continuation": pack((len(item.tokens) - item.n_context for item in items), INT32),
        }

    def new_job(self, numbers: list[int]) -> Job:
        cost = sum(len(self.items[i].tokens) for i in numbers)
        parts = list(self.parts(numbers))
        return Job(Connection.new_job(), numbers, cost, parts, left=set(numbers))


def _item_bytes(item: Item) -> int:
    """Bytes of an item in a message."""
    return 4 * len(item.tokens) + 8
