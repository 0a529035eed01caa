"""The report of `ctworker-compare` for a terminal: statistics as rows, models as columns."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

from .tables import number, render

Statistics = dict[str, Any]  # Divergence.to_json()
#: (name of the row, key of the statistic, factor, unit)
_ESTIMATES = (
    ("KL(reference || model)", "kl", 1.0, ""),
    ("KL(model || reference)", "kl_reverse", 1.0, ""),
    ("total variation", "total_variation", 100.0, " %"),
    ("same top-1", "same_top", 100.0, " %"),
    ("top-5 overlap", "top5_overlap", 100.0, " %"),
    ("mean Δp", "delta_p", 100.0, " %"),
    ("RMS Δp", "delta_p_rms", 100.0, " %"),
    ("correlation", "correlation", 100.0, " %"),
    ("ln(ppl / reference's ppl)", "ln_ppl_ratio", 1.0, ""),
    ("perplexity", "ppl", 1.0, ""),
    ("reference's perplexity", "ref_ppl", 1.0, ""),
)
_DELTA_P = ("1", "5", "50", "95", "99")  # the JSON has more
_WIDTH = 120  # of a table that goes to a file


def table(names: list[str], statistics: list[Statistics]) -> str:
    """One table, or several below each other where the terminal is too narrow for all models."""
    rows = [[label, *(cell(each) for each in statistics)] for label, cell in _rows(statistics)]
    width = shutil.get_terminal_size((_WIDTH, 24)).columns
    parts, start = [], 0
    while start < len(names):
        n = 1
        while start + n < len(names) and _width(rows, names, start, n + 1) <= width:
            n += 1
        head = ["", *names[start : start + n]]
        parts.append(render([head, *([row[0], *row[1 + start : 1 + start + n]] for row in rows)]))
        start += n
    return "\n\n".join(parts)


def _width(rows: list[list[str]], names: list[str], start: int, n: int) -> int:
    columns = [[name, *(row[1 + i] for row in rows)] for i, name in enumerate(names)][start : start + n]
    return max(len(row[0]) for row in rows) + sum(2 + max(map(len, column)) for column in columns)


def _rows(statistics: list[Statistics]) -> Iterator[tuple[str, Callable[[Statistics], str]]]:
    for label, key, scale, unit in _ESTIMATES:
        yield label, lambda s, key=key, scale=scale, unit=unit: _number(s[key], scale, unit)
        if key == "kl":
            for percent in statistics[0]["kl_percentiles"]:
                yield (
                    f"  {_percent(percent)}",
                    lambda s, percent=percent: _number(s["kl_percentiles"][percent], 1.0, ""),
                )
        if key == "delta_p":
            for percent in _DELTA_P:
                yield (
                    f"  {_percent(percent)}",
                    lambda s, percent=percent: _number(s["delta_p_percentiles"][percent], 100.0, " %"),
                )
    for i, bucket in enumerate(statistics[0]["buckets"]):
        span = f"reference's top p in [{bucket['low']:g}, {bucket['high']:g}{']' if bucket['high'] == 1 else ')'}"
        yield f"{span}: KL", lambda s, i=i: _number(s["buckets"][i]["kl"], 1.0, "")
        yield "  same top-1", lambda s, i=i: _number(s["buckets"][i]["same_top"], 100.0, " %")
        yield "  share of targets", lambda s, i=i: f"{100 * s['buckets'][i]['count'] / s['targets']:.2f} %"


def _percent(percent: str) -> str:
    return {"50": "median", "max": "maximum", "min": "minimum"}.get(percent, f"percentile {percent}")


def _number(estimate: dict[str, float | None] | None, scale: float, unit: str) -> str:
    return "-" if estimate is None else number(estimate["value"], estimate["se"], scale=scale, unit=unit)


def worst(positions: list[dict[str, Any]]) -> str:
    """The positions with the largest divergence."""
    lines = []
    for place in positions:
        lines.append(
            f"  KL {place['kl']:.4g} at token {place['token']} of {place['text']}: ...{_shown(place['before'])}"
            f"[{_shown(place['target'])}]{_shown(place['after'])}..."
        )
        lines.append(
            f"    target: {_p(place['ref_p'])} -> {_p(place['p'])};  reference expects [{_shown(place['ref_top'])}] "
            f"({_p(place['ref_top_p'])}), model [{_shown(place['top'])}]"
        )
    return "\n".join(lines)


def _p(p: float) -> str:
    return f"{100 * p:.3g} %"


def _shown(text: str) -> str:
    return repr(text)[1:-1]
