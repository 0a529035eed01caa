"""Paired tests of two runs on the same documents. docs/METHODS.md ("Paired tests") defines them. Needs numpy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from .samples import Pairs

#: Resamples of the bootstrap, the share that its interval holds, and its seed: equal data give equal intervals.
RESAMPLES, INTERVAL, SEED = 10_000, 0.95, 0
_BLOCK = 1 << 22  # numbers drawn at once


@dataclass(frozen=True)
class PairedTest:
    """b against a. lost: documents right in a and wrong in b; gained: the reverse; None unless every value is 0 or 1."""

    task: str
    filter: str
    metric: str
    n: int
    mean_a: float
    mean_b: float
    difference: float  # mean_b - mean_a
    se: float | None  # of the difference, paired; None for one document
    low: float  # paired bootstrap interval of the difference
    high: float
    lost: int | None
    gained: int | None
    p_mcnemar: float | None  # exact, two-sided

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def test(pairs: Pairs, seed: int = SEED) -> PairedTest:
    a, b = np.asarray(pairs.a, np.float64), np.asarray(pairs.b, np.float64)
    d = b - a
    n = len(d)
    low, high = bootstrap_interval(d, seed)
    lost = gained = p = None
    if set(pairs.a) <= {0.0, 1.0} and set(pairs.b) <= {0.0, 1.0}:
        lost, gained = int((d < 0).sum()), int((d > 0).sum())
        p = mcnemar(lost, gained)
    se = float(d.std(ddof=1)) / math.sqrt(n) if n > 1 else None
    return PairedTest(
        pairs.task, pairs.filter, pairs.metric, n, float(a.mean()), float(b.mean()), float(d.mean()), se, low, high,
        lost, gained, p,
    )  # fmt: skip


def pool(pairs: Sequence[Pairs]) -> list[Pairs]:
    """All tasks' documents together, for each metric and filter that at least two tasks have."""
    groups: dict[tuple[str, str], list[Pairs]] = {}
    for one in pairs:
        groups.setdefault((one.filter, one.metric), []).append(one)
    return [
        Pairs(f"all {len(group)} tasks", *key, [x for p in group for x in p.a], [x for p in group for x in p.b])
        for key, group in groups.items()
        if len(group) > 1
    ]


def mcnemar(lost: int, gained: int) -> float:
    """Exact two-sided p-value: of n flips, each went either way with probability 1/2."""
    n = lost + gained
    term = total = 1  # binomial coefficient (n, k), and the sum of the first ones
    for k in range(min(lost, gained)):
        term = term * (n - k) // (k + 1)
        total += term
    return min(1.0, 2 * total / (1 << n))


def bootstrap_interval(d: np.ndarray, seed: int) -> tuple[float, float]:
    """Percentile interval of the mean of d. A resample of n documents is a multinomial draw of how often each distinct
    value occurs, which is the same in distribution and as fast for 100,000 documents as for 100."""
    values, counts = np.unique(d, return_counts=True)
    rng = np.random.default_rng(seed)
    block = max(1, _BLOCK // len(values))
    means = [
        rng.multinomial(len(d), counts / len(d), size=min(block, RESAMPLES - start)) @ values / len(d)
        for start in range(0, RESAMPLES, block)
    ]
    tail = 50.0 * (1.0 - INTERVAL)
    low, high = np.percentile(np.concatenate(means), (tail, 100.0 - tail))
    return float(low), float(high)
