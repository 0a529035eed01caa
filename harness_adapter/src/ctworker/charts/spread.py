"""How the divergence is spread over the targets, one row a model: quartiles, median, mean and the 99.9 % percentile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from . import sheet
from .look import Theme
from .sheet import Sheet

_FONT, _ROW, _NAMES = 8.5, 24.0, 250.0


@dataclass(frozen=True)
class Spread:
    """series: the model's number. percentiles: "25", "50", "75", "99.9", as far as they are known."""

    name: str
    series: int
    mean: float
    percentiles: dict[str, float]


def draw(title: str, subtitle: str, rows: Sequence[Spread], floor: float | None, theme: Theme) -> Sheet:
    """The best model is on top. floor: the noise floor, a line."""
    rows = sorted(rows, key=lambda row: (row.mean, row.series))
    left = 18 + min(_NAMES, max(sheet.text_width(row.name, _FONT) for row in rows)) + 10
    height = max(sheet.HEIGHT, 108 + (_ROW if len(rows) < 12 else 15) * len(rows))
    made = sheet.sheet(theme, title, subtitle, left=left, height=height)
    axes = made.axes
    axes.set_xscale("log")
    sheet.plain_numbers(axes.xaxis)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_yticks([])
    least = _least(rows, floor)
    axes.set_xlim(least, 1.6 * max([floor or 0.0, *(value for row in rows for value in (row.mean, *row.percentiles.values()))]))
    axes.set_xlabel("KL of a target (nats): bar: quartiles \u00b7 line: median \u00b7 mark: mean \u00b7 tick: 99.9 %")
    for y, row in enumerate(rows):
        _row(made, y, row, least)
        at = made.spot(least, y)[1]
        made.write(left - 8, at, sheet.shortened(row.name, _FONT, _NAMES), _FONT, ha="right", va="center")
    if floor is not None:
        axes.axvline(floor, color=theme.muted, linewidth=1.1, linestyle="-.", zorder=1)
        axes.annotate(
            "noise floor (mean)", (floor, 1), xycoords=("data", "axes fraction"), xytext=(4, 3), textcoords="offset points",
            fontsize=8, color=theme.muted, annotation_clip=False,
        )  # fmt: skip
    return made


def _least(rows: Sequence[Spread], floor: float | None) -> float:
    """The left end: quartiles of 0 lie on it."""
    known = [value for row in rows for value in (row.mean, *row.percentiles.values()) if value > 0]
    known += [floor] if floor is not None else []
    return max(min(known), 1e-7 * max(known)) / 1.6


def _row(made: Sheet, y: int, row: Spread, least: float) -> None:
    style = sheet.mark_style(made.theme, row.series, size=6.5)
    axes, colour = made.axes, style["color"]
    low, middle, high, tail = (row.percentiles.get(name) for name in ("25", "50", "75", "99.9"))
    if low is not None and high is not None:
        axes.barh(y, max(high, least) - max(low, least), left=max(low, least), height=0.5, color=colour, alpha=0.3, linewidth=0)
    if middle is not None:
        axes.plot([max(middle, least)] * 2, [y - 0.25, y + 0.25], color=colour, linewidth=2)
        if tail is not None:
            axes.plot([max(middle, least), tail], [y, y], color=colour, linewidth=0.9, zorder=1)
    if tail is not None:
        axes.plot([tail] * 2, [y - 0.2, y + 0.2], color=colour, linewidth=1.6)
    axes.plot([row.mean], [y], linestyle="none", zorder=4, **style)
