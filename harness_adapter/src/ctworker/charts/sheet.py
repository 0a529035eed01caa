"""A sheet: a figure with title, subtitle, a plot and a key beside it, in a theme; and its files. Needs matplotlib.

Lengths are in points (1/72 inch) from the left and from the top.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any

from ..base.errors import CtworkerError
from . import look
from .look import Theme

WIDTH, HEIGHT = 720.0, 405.0  # 1600 x 900 pixels: the size of a picture in a post
DPI = 160
_EDGE = 18.0
_KEY_FONT, _ROW, _KEY_MOST = 8.0, 12.0, 275.0
_HEAD = 62.0  # title and subtitle
_BETWEEN = 14.0  # two plots one above the other
#: The same bytes for the same results: no date, and fixed ids.
_SVG = {"svg.hashsalt": "ctworker", "svg.fonttype": "none"}


@dataclass(frozen=True)
class Entry:
    """A line of the key. series: number of the model, whose colour and mark it has; dash: instead, a line's style. number: in
    front of the name, for points whose labels are numbers."""

    name: str
    series: int | None = None
    hollow: bool = False
    dash: str = ""
    number: int | None = None


@dataclass
class Sheet:
    """figure: matplotlib's, at 72 dots per inch; axes: the plot. box: of the plot (left, top, right, bottom)."""

    theme: Theme
    figure: Any
    axes: Any
    box: tuple[float, float, float, float]
    height: float

    def write(self, x: float, y: float, text: str, size: float, *, colour: str = "", weight: str = "normal", **more: Any) -> Any:
        """Text whose top left corner is (x, y), unless `ha` or `va` say otherwise. Dollar signs mean themselves."""
        return self.figure.text(
            x / WIDTH, 1 - y / self.height, text, fontsize=size, color=colour or self.theme.text, fontweight=weight,
            parse_math=False, **{"ha": "left", "va": "top"} | more,
        )  # fmt: skip

    def line(self, x: Sequence[float], y: Sequence[float], colour: str, **style: Any) -> None:
        from matplotlib.lines import Line2D

        at = [[value / WIDTH for value in x], [1 - value / self.height for value in y]]
        self.figure.add_artist(Line2D(*at, color=colour, transform=self.figure.transFigure, **style))

    def spot(self, x: float, y: float) -> tuple[float, float]:
        """Where a value of the plot is on the sheet."""
        px, py = self.axes.transData.transform((x, y))
        return float(px), self.height - float(py)


def matplotlib() -> Any:
    """Raises CtworkerError without it."""
    try:
        if "matplotlib.pyplot" not in sys.modules:
            import matplotlib

            matplotlib.use("Agg")
        import matplotlib
    except ImportError:
        raise CtworkerError(
            "--plot needs matplotlib: install it with `pip install 'ctworker[plot]'` (or `pip install matplotlib`)"
        ) from None
    return matplotlib


@lru_cache(maxsize=4096)
def text_width(text: str, size: float) -> float:
    """In points, in the font of the charts."""
    from matplotlib.font_manager import FontProperties

    return float(_renderer().get_text_width_height_descent(text, FontProperties(size=size), False)[0])


@cache
def _renderer() -> Any:
    from matplotlib.backends.backend_agg import RendererAgg

    renderer: Any = RendererAgg  # its methods have no types
    return renderer(1, 1, 72)


def shortened(text: str, size: float, most: float) -> str:
    """The text, or its beginning and its end with an ellipsis between, to fit a width."""
    if text_width(text, size) <= most:
        return text
    for n in range(len(text) - 1, 3, -1):
        short = f"{text[: (n + 1) // 2]}\u2026{text[len(text) - n // 2 :]}"
        if text_width(short, size) <= most:
            return short
    return "\u2026"


def sheet(
    theme: Theme, title: str, subtitle: str, key: Sequence[Entry] = (), *, left: float = 66.0, height: float = HEIGHT, bar: bool = False
) -> Sheet:
    """An empty plot with its title and key. left: width of what stands left of the plot. bar: with room for a colour bar."""
    from matplotlib.figure import Figure

    height = max(height, _HEAD + 30 + _ROW * len(key))
    figure = Figure(figsize=(WIDTH / 72, height / 72), dpi=72, facecolor=theme.card)
    widest = max((text_width(entry.name, _KEY_FONT) for entry in key), default=0.0)
    numbered = 16.0 * any(entry.number is not None for entry in key)
    width = min(widest, _KEY_MOST) + 22 + numbered if key else 0.0
    right = WIDTH - _EDGE - (width + 12 if key else 0.0) - 52.0 * bar
    box = (left, _HEAD, right, height - 46)
    axes = figure.add_axes((left / WIDTH, 46 / height, (right - left) / WIDTH, (box[3] - box[1]) / height), facecolor=theme.card)
    made = Sheet(theme, figure, axes, box, height)
    made.write(_EDGE, 16, shortened(title, 13.5, WIDTH - 2 * _EDGE - 40), 13, weight="bold")
    made.write(_EDGE, 36, shortened(subtitle, 9, WIDTH - 2 * _EDGE), 9, colour=theme.muted)
    _dress(made)
    for i, entry in enumerate(key):
        _entry(made, entry, WIDTH - _EDGE - width, box[1] + 4 + i * _ROW, numbered)
    return made


def panels(made: Sheet, n: int) -> list[Sheet]:
    """The plot of a sheet as n plots one above the other, over one horizontal axis."""
    left, top, right, bottom = made.box
    step = (bottom - top + _BETWEEN) / n
    found = []
    for i in range(n):
        box = (left, top + i * step, right, top + (i + 1) * step - _BETWEEN)
        at = (left / WIDTH, 1 - box[3] / made.height, (right - left) / WIDTH, (box[3] - box[1]) / made.height)
        axes = made.axes if i == 0 else made.figure.add_axes(at, facecolor=made.theme.card, sharex=made.axes)
        axes.set_position(at)
        axes.tick_params(labelbottom=i == n - 1)
        found.append(replace(made, axes=axes, box=box))
        _dress(found[-1])
    return found


def _dress(made: Sheet) -> None:
    theme, axes = made.theme, made.axes
    axes.grid(True, color=theme.grid, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=theme.muted, labelsize=8.5, which="both", length=0)
    for name, spine in axes.spines.items():
        spine.set_visible(name in ("left", "bottom"))
        spine.set_color(theme.line)
    for axis in (axes.xaxis, axes.yaxis):
        axis.label.set_color(theme.muted)
        axis.label.set_size(9)


def _entry(made: Sheet, entry: Entry, x: float, y: float, numbered: float) -> None:
    from matplotlib.lines import Line2D

    middle = 1 - (y + _ROW / 2) / made.height
    style: dict[str, Any] = {"color": made.theme.muted, "linestyle": entry.dash or "none", "linewidth": 1.2}
    if entry.series is not None:
        style = mark_style(made.theme, entry.series, entry.hollow, 5.5) | {"linestyle": "none"}
    at = [x / WIDTH, (x + 14) / WIDTH] if entry.series is None else [(x + 7) / WIDTH]
    made.figure.add_artist(Line2D(at, [middle] * len(at), transform=made.figure.transFigure, **style))
    if entry.number is not None:
        made.write(x + 18 + numbered - 5, y + _ROW / 2, str(entry.number), 7.5, colour=made.theme.muted, ha="right", va="center")
    made.write(x + 18 + numbered, y + _ROW / 2, shortened(entry.name, _KEY_FONT, _KEY_MOST), _KEY_FONT, va="center")


def mark_style(theme: Theme, series: int, hollow: bool = False, size: float = 7.0) -> dict[str, Any]:
    """Of a line's marker in matplotlib."""
    colour, mark = look.place(series)
    return {
        "color": theme.series[colour], "marker": look.MARKS[mark].name, "markersize": size, "markeredgewidth": 1.4,
        "markeredgecolor": theme.series[colour], "markerfacecolor": theme.card if hollow else theme.series[colour],
    }  # fmt: skip


def plain_numbers(axis: Any) -> None:
    """0.3 instead of 3e-01, on a logarithmic axis."""
    from matplotlib.ticker import LogFormatter

    class Plain(LogFormatter):
        def __call__(self, x: float, pos: int | None = None) -> str:
            return f"{x:g}" if super().__call__(x, pos) else ""

    axis.set_major_formatter(Plain())
    axis.set_minor_formatter(Plain(labelOnlyBase=False, minor_thresholds=(2, 0.4)))


def files(name: str, draw: Callable[[Theme], Sheet], kinds: Sequence[str] = ("png", "svg")) -> Iterator[tuple[str, bytes]]:
    """(name, content): NAME.png and NAME.svg, and NAME-dark of each."""
    for theme in look.THEMES:
        made = draw(theme)
        for kind in kinds:
            yield f"{name}{'-dark' if theme is look.DARK else ''}.{kind}", content(made.figure, kind)


def content(figure: Any, kind: str) -> bytes:
    with matplotlib().rc_context(_SVG):
        out = io.BytesIO()
        metadata = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}[kind]
        figure.savefig(out, format=kind, dpi=DPI, metadata=metadata)
        return out.getvalue()
