"""Models as points: quality against size, with error bars, the Pareto front, and a label at each point."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from . import labels, sheet
from .labels import Box, Label
from .look import Theme
from .sheet import Entry, Sheet

_NAME_FONT, _NUMBER_FONT = 8.5, 7.5
_REACH = 70.0  # a name farther from its point makes all labels numbers
_MOST_NAMES = 12


@dataclass(frozen=True)
class Dot:
    """series: the model's number from 0: its colour and mark, and its label where names do not fit."""

    name: str
    series: int
    x: float
    y: float
    se: float | None = None
    hollow: bool = False


@dataclass(frozen=True)
class Chart:
    """higher: whether more is better. front: the points of the Pareto front. levels: (name, value, style of the line)."""

    title: str
    subtitle: str
    x: str
    y: str
    dots: Sequence[Dot]
    logarithmic: bool = False
    front: Sequence[tuple[float, float]] = ()
    levels: Sequence[tuple[str, float, str]] = ()


def draw(chart: Chart, theme: Theme) -> Sheet:
    """Names at the points if all fit; otherwise numbers, and the names in the key beside the plot."""
    lines = [Entry(name, dash=style) for name, _, style in chart.levels]
    lines += [Entry("Pareto front", dash="--")] if len(chart.front) > 1 else []
    if len(chart.dots) <= _MOST_NAMES:
        made = _plot(chart, theme, lines)
        places = _places(made, chart, [dot.name for dot in chart.dots], _NAME_FONT, _REACH)
        if places is not None:
            _write(made, chart, [dot.name for dot in chart.dots], places, _NAME_FONT)
            return made
    numbers = [str(dot.series + 1) for dot in chart.dots]
    made = _plot(chart, theme, [*(Entry(d.name, d.series, d.hollow, number=d.series + 1) for d in chart.dots), *lines])
    places = _places(made, chart, numbers, _NUMBER_FONT)
    if places is not None:
        _write(made, chart, numbers, places, _NUMBER_FONT)
    return made


def _plot(chart: Chart, theme: Theme, key: Sequence[Entry]) -> Sheet:
    made = sheet.sheet(theme, chart.title, chart.subtitle, key)
    axes = made.axes
    axes.set_xlabel(chart.x)
    axes.set_ylabel(chart.y)
    for _, value, dashes in chart.levels:
        axes.axhline(value, color=theme.muted, linewidth=1.1, linestyle=dashes, zorder=1)
    if len(chart.front) > 1:
        axes.plot(*zip(*chart.front), color=theme.muted, linestyle="--", linewidth=1.2, zorder=2)
    for dot in chart.dots:
        style = sheet.mark_style(theme, dot.series, dot.hollow)
        axes.errorbar(dot.x, dot.y, yerr=dot.se, capsize=3, elinewidth=1.2, zorder=3, **style)
    axes.margins(0.09, 0.12)
    ends = [end for dot in chart.dots for end in (dot.y - (dot.se or 0), dot.y)]
    if chart.logarithmic and min([*ends, *(value for _, value, _ in chart.levels)], default=0) > 0:
        axes.set_yscale("log")
        sheet.plain_numbers(axes.yaxis)
    return made


def _places(made: Sheet, chart: Chart, texts: Sequence[str], font: float, reach: float = labels.ANYWHERE) -> list[Label] | None:
    made.axes.autoscale_view()  # fixes the scales
    spots = [made.spot(dot.x, dot.y) for dot in chart.dots]
    sizes = [(sheet.text_width(text, font) + 2, font * 1.25) for text in texts]
    return labels.place(spots, sizes, made.box, _blocked(made, chart), reach)


def _blocked(made: Sheet, chart: Chart) -> list[Box]:
    """Error bars and levels as boxes."""
    left, _, right, _ = made.box
    levels = [made.spot(chart.dots[0].x, value)[1] for _, value, _ in chart.levels]
    found = [(left, y - 1, right, y + 1) for y in levels]
    for dot in chart.dots:
        if dot.se:
            (x, top), (_, bottom) = made.spot(dot.x, dot.y + dot.se), made.spot(dot.x, dot.y - dot.se)
            found.append((x - 3, top - 1, x + 3, bottom + 1))
    return found


def _write(made: Sheet, chart: Chart, texts: Sequence[str], places: Sequence[Label], font: float) -> None:
    behind = {"facecolor": made.theme.card, "edgecolor": "none", "pad": 0.6, "alpha": 0.85}
    for dot, text, label in zip(chart.dots, texts, places, strict=True):
        if label.leader is not None:
            x, y = made.spot(dot.x, dot.y)
            made.line((x, label.leader[0]), (y, label.leader[1]), made.theme.muted, linewidth=0.7, zorder=2)
        left, top, _, bottom = label.box
        made.write(left + 1, (top + bottom) / 2, text, font, va="center", bbox=behind)
