"""Numbers by layer, one line a model. Layers are numbered as everywhere: emb., then the decoder's layers from 0."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from . import look, sheet
from .look import Theme
from .sheet import Entry, Sheet

EMBEDDING = "emb."
_DASHES = ("-", "--", ":", "-.")


@dataclass(frozen=True)
class Line:
    """values: after the embedding and after each layer; None and 0 have no place on the logarithmic axis."""

    name: str
    series: int
    values: Sequence[float | None]
    errors: Sequence[float | None]


def draw(title: str, subtitle: str, y: str, lines: Sequence[Line], theme: Theme) -> Sheet:
    made = sheet.sheet(theme, title, subtitle, [Entry(line.name, line.series) for line in lines])
    axes = made.axes
    for line in lines:
        points = [(i, v, se) for i, (v, se) in enumerate(zip(line.values, line.errors)) if v is not None and v > 0]
        if not points:
            continue
        colour, _ = look.place(line.series)
        every = max(1, len(line.values) // 12)
        style = sheet.mark_style(theme, line.series, size=4) | {"linestyle": _DASHES[line.series // len(theme.series) % len(_DASHES)]}
        axes.plot([i for i, _, _ in points], [v for _, v, _ in points], linewidth=1.3, markevery=every, **style)
        if len(lines) <= 8:
            _band(axes, points, theme.series[colour])
    axes.set_yscale("log")
    sheet.plain_numbers(axes.yaxis)
    axes.set_ylabel(y)
    ticks(axes, max(len(line.values) for line in lines) - 1)
    return made


def _band(axes: Any, points: Sequence[tuple[int, float, float | None]], colour: str) -> None:
    """95 %."""
    known = [(i, v, 1.96 * se) for i, v, se in points if se]
    if not known:
        return
    low, high = [max(v - d, v / 10) for _, v, d in known], [v + d for _, v, d in known]
    axes.fill_between([i for i, _, _ in known], low, high, color=colour, alpha=0.15, linewidth=0)


def ticks(axes: Any, depth: int) -> None:
    """depth: decoder layers. Where not every layer has a tick, layer 0 has none: it would touch the embedding's."""
    step = max(1, -(-depth // 16))
    decoders = range(0 if step == 1 else step, depth, step)
    axes.set_xticks([0, *(i + 1 for i in decoders)], [EMBEDDING, *map(str, decoders)])
    axes.set_xlabel("after layer")
