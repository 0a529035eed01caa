"""The plot of `ctworker-compare --layers --plot FILE`. Needs matplotlib."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .errors import ArgumentError, CtworkerError

_SUFFIXES = (".png", ".svg", ".pdf")
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")  # distinct for colour-blind readers


def check(file: str) -> None:
    """Before any work: raises CtworkerError if the plot could not be written."""
    path = Path(file).expanduser()
    if path.suffix.lower() not in _SUFFIXES:
        raise ArgumentError(f"--plot {file}: expected a name that ends in {', '.join(_SUFFIXES)}")
    if not path.parent.is_dir():
        raise ArgumentError(f"--plot {file}: there is no folder {path.parent}")
    _matplotlib()


def write(file: str, models: Sequence[tuple[str, list[dict[str, Any]]]]) -> None:
    """models: (label, Layer.to_json() of each layer). Raises CtworkerError."""
    try:
        draw(models).savefig(Path(file).expanduser(), dpi=150)
    except OSError as error:
        raise CtworkerError(f"--plot {file}: cannot be written: {error.strerror}") from error


def draw(models: Sequence[tuple[str, list[dict[str, Any]]]]) -> Any:
    """The figure."""
    figure, (above, below) = _matplotlib().subplots(2, 1, sharex=True, figsize=(9, 6.5), layout="constrained")
    for i, (label, layers) in enumerate(models):
        style = {"label": label, "color": _COLORS[i % len(_COLORS)], "marker": "o", "markersize": 3, "linewidth": 1.2}
        _line(above, layers, "relative_error", lambda value: value, style)
        _line(below, layers, "cosine", lambda value: 1 - value, style)
    above.set_ylabel("relative error")
    below.set_ylabel("1 - cosine")
    _axis(below, models[0][1])
    for axes in (above, below):
        axes.set_yscale("log")
        plain_numbers(axes.yaxis)
        axes.grid(alpha=0.3)
    above.legend(frameon=False)
    above.set_title("Hidden states after each layer, against the reference's")
    return figure


def _line(axes: Any, layers: list[dict[str, Any]], key: str, shown: Any, style: dict[str, Any]) -> None:
    """Values of 0 have no place on a logarithmic axis and are left out."""
    points = [(layer["layer"], layer[key]["value"], layer[key]["se"]) for layer in layers]
    points = [(x, shown(value), se) for x, value, se in points if value is not None and shown(value) > 0]
    x, y = [point[0] for point in points], [point[1] for point in points]
    axes.plot(x, y, **style)
    spread = [(point[0], point[1], 1.96 * point[2]) for point in points if point[2]]
    axes.fill_between(
        [x for x, _, _ in spread],
        [max(y - d, y / 10) for _, y, d in spread],
        [y + d for _, y, d in spread],
        color=style["color"], alpha=0.15, linewidth=0,
    )  # fmt: skip


def _axis(axes: Any, layers: list[dict[str, Any]]) -> None:
    step = max(1, len(layers) // 16)
    decoders = range(0, len(layers) - 1, step)
    axes.set_xticks([0, *(i + 1 for i in decoders)], ["emb.", *map(str, decoders)])
    axes.set_xlabel("after layer")


def plain_numbers(axis: Any) -> None:
    """0.3 instead of 3 x 10^-1."""
    from matplotlib.ticker import LogFormatter

    axis.set_major_formatter(LogFormatter())
    axis.set_minor_formatter(LogFormatter(labelOnlyBase=False, minor_thresholds=(2, 0.4)))


def _matplotlib() -> Any:
    try:
        if "matplotlib.pyplot" not in sys.modules:
            import matplotlib

            matplotlib.use("Agg")
        import matplotlib.pyplot
    except ImportError:
        raise CtworkerError(
            "--plot needs matplotlib: install it with `pip install 'ctworker[plot]'` (or `pip install matplotlib`)"
        ) from None
    return matplotlib.pyplot
