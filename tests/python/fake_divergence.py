"""The fake worker's kind `divergence`: windows of a rule as docs/PROTOCOL.md defines them, and toy columns."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Any

#: Columns with one value per target, and their struct codes.
CODES = {
    "logprob": "f", "ref_logprob": "f", "kl": "f", "kl_reverse": "f", "tv": "f", "greedy": "i", "ref_greedy": "i",
    "ref_top": "f", "overlap5": "B",
}  # fmt: skip


def named(model: str) -> tuple[str, tuple[str, str]]:
    """(name, (folder, dtype)) of a --model option: DIR, NAME=DIR or NAME:DTYPE=DIR."""
    match = re.fullmatch(r"([^=/:]+)(?::(\w+))?=(.*)", model)
    if not match:
        return Path(model).name, (model, "")
    return match[1], (match[3], match[2] or "")


def targets(n: int, head: dict[str, Any]) -> list[list[int]]:
    """The positions that each window scores."""
    window, stride, first = head["window"], head.get("stride", head["window"]), head.get("first", 1)
    starts = list(range(0, n - window + 1, stride))
    spans = [(start, start + window) for start in starts]
    after = starts[-1] + stride if starts else 0
    if head.get("tail") and (not starts or starts[-1] + window < n):
        spans.append((after, n))
    if head.get("rows"):
        spans = spans[: head["rows"]]
    out = []
    for start, end in spans:
        skip = max(first, window - stride) if head.get("new") and start else first
        out.append(list(range(start + skip, end)))
    return [positions for positions in out if positions]


def columns(tokens: list[int], position: int, effect: float) -> dict[str, float]:
    """The toy values of one target. effect 0: the two models are equal."""
    mix = (tokens[position - 1] * 13 + tokens[position] * 7 + position) % 64
    ref_logprob = -mix / 16
    kl = effect * mix * mix / 4096
    return {
        "ref_logprob": ref_logprob,
        "logprob": ref_logprob - kl,
        "kl": kl,
        "kl_reverse": kl / 2,
        "tv": min(1.0, kl / 4),
        "ref_greedy": tokens[position],
        "greedy": tokens[position] + (kl > 0.25),
        "ref_top": ref_logprob / 2,
        "overlap5": 5 - int(min(5, 4 * kl)),
    }


def compare(
    tokens: list[int], head: dict[str, Any], model: tuple[str, str], reference: tuple[str, str]
) -> tuple[list[list[int]], list[dict[str, float]]]:
    """(positions of each window, values of each target). The same folder: no effect; with another dtype: a small one."""
    effect = 0.0 if model == reference else 0.01 if model[0] == reference[0] else 1.0
    windows = targets(len(tokens), head)
    return windows, [columns(tokens, p, effect) for window in windows for p in window]


def pack(results: list[tuple[list[list[int]], list[dict[str, float]]]]) -> dict[str, bytes]:
    def ints(values: list[int]) -> bytes:
        return struct.pack(f"<{len(values)}i", *values)

    rows = [row for _, values in results for row in values]
    return {
        "count": ints([len(values) for _, values in results]),
        "windows": ints([len(windows) for windows, _ in results]),
        "window_count": ints([len(window) for windows, _ in results for window in windows]),
        **{name: struct.pack(f"<{len(rows)}{code}", *(row[name] for row in rows)) for name, code in CODES.items()},
    }
