"""Models as points: quality against size, with error bars, Pareto fronts, and a label at each point."""

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
_PANEL = 215.0  # height of each further chart of a stack


@dataclass(frozen=True)
class Dot:
    """series: number of the colour and mark: the model's from 0, or its method's. number: its label where names do not fit;
    None: series + 1."""

    name: str
    series: int
    x: float
    y: float
    se: float | None = None
    hollow: bool = False
    number: int | None = None

    @property
    def shown(self) -> int:
        return self.series + 1 if self.number is None else self.number


@dataclass(frozen=True)
class Chart:
    """front: the points of the Pareto front. levels: (name, value, style of the line). methods: name and series of each, if points
    of one method share a series; fronts: the Pareto front of each series that has one."""

    title: str
    subtitle: str
    x: str
    y: str
    dots: Sequence[Dot]
    logarithmic: bool = False
    front: Sequence[tuple[float, float]] = ()
    levels: Sequence[tuple[str, float, str]] = ()
    methods: Sequence[tuple[str, int]] = ()
    fronts: Sequence[tuple[int, Sequence[tuple[float, float]]]] = ()


def draw(chart: Chart, theme: Theme) -> Sheet:
    """Names at the points if all fit; otherwise numbers, and the names in the key beside the plot."""
    return stacked([chart], theme)


def stacked(charts: Sequence[Chart], theme: Theme) -> Sheet:
    """Charts of the same models over one horizontal axis, with the title of the first; labels as in draw()."""
    lines = [Entry(name, series) for name, series in charts[0].methods]
    lines += list(dict.fromkeys(Entry(name, dash=style) for chart in charts for name, _, style in chart.levels))
    lines += [Entry("Pareto front", dash="--")] if any(len(chart.front) > 1 for chart in charts) else []
    if charts[0].methods or len(charts[0].dots) <= _MOST_NAMES:
        made, panels = _plot(charts, theme, lines)
        names = [[dot.name for dot in chart.dots] for chart in charts]
        if _label(panels, charts, names, _NAME_FONT, _REACH):
            return made
    dots = {dot.shown: dot for chart in charts for dot in chart.dots}
    made, panels = _plot(charts, theme, [*(Entry(d.name, d.series, d.hollow, number=d.shown) for d in dots.values()), *lines])
    _label(panels, charts, [[str(dot.shown) for dot in chart.dots] for chart in charts], _NUMBER_FONT)
    return made


def _plot(charts: Sequence[Chart], theme: Theme, key: Sequence[Entry]) -> tuple[Sheet, list[Sheet]]:
    """The sheet, and one for each chart's part of it."""
    height = sheet.HEIGHT + _PANEL * (len(charts) - 1)
    made = sheet.sheet(theme, charts[0].title, charts[0].subtitle, key, height=height)
    panels = sheet.panels(made, len(charts))
    for panel, chart in zip(panels, charts, strict=True):
        _draw(panel, chart)
    panels[-1].axes.set_xlabel(charts[-1].x)
    return made, panels


def _draw(made: Sheet, chart: Chart) -> None:
    theme, axes = made.theme, made.axes
    axes.set_ylabel(chart.y)
    for _, value, dashes in chart.levels:
        axes.axhline(value, color=theme.muted, linewidth=1.1, linestyle=dashes, zorder=1)
    if len(chart.front) > 1:
        axes.plot(*zip(*chart.front), color=theme.muted, linestyle="--", linewidth=1.2, zorder=2)
    for series, front in chart.fronts:
        axes.plot(*zip(*front), color=sheet.mark_style(theme, series)["color"], linewidth=1.0, alpha=0.55, zorder=2)
    for dot in chart.dots:
        style = sheet.mark_style(theme, dot.series, dot.hollow)
        axes.errorbar(dot.x, dot.y, yerr=dot.se, capsize=3, elinewidth=1.2, zorder=3, **style)
    axes.margins(0.09, 0.12)
    ends = [end for dot in chart.dots for end in (dot.y - (dot.se or 0), dot.y)]
    if chart.logarithmic and min([*ends, *(value for _, value, _ in chart.levels)], default=0) > 0:
        axes.set_yscale("log")
        sheet.plain_numbers(axes.yaxis)


def _label(
    panels: Sequence[Sheet], charts: Sequence[Chart], texts: Sequence[Sequence[str]], font: float, reach: float = labels.ANYWHERE
) -> bool:
    """Writes the labels of all panels; False, and nothing is written, if a label has no place."""
    parts = list(zip(panels, charts, texts, strict=True))
    places = [_places(panel, chart, each, font, reach) for panel, chart, each in parts]
    if any(each is None for each in places):
        return False
    for (panel, chart, each), found in zip(parts, places, strict=True):
        _write(panel, chart, each, found or [], font)
    return True


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
