"""How far a call is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """How far a call is. fraction: of all tokens (0..1); done: finished requests; tokens_per_s: the worker's rate; seconds_left:
    the worker's own estimate (None: unknown)."""

    fraction: float
    done: int
    tokens_per_s: float | None
    seconds_left: float | None
