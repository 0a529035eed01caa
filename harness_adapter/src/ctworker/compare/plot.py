"""The plot of `ctworker-compare --layers --matrices --plot FILE`. Needs matplotlib."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import ArgumentError, CtworkerError
from .matrices import kind

_SUFFIXES = (".png", ".svg", ".pdf")
_MARKS = ("o", "s", "^", "v", "D", "P", "X", "*")
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")  # distinct for colour-blind readers


def check(file: str) -> None:
    """Before any work: raises CtworkerError if the plot could not be written."""
    path = Path(file).expanduser()
    if path.suffix.lower() not in _SUFFIXES:
        raise ArgumentError(f"--plot {file}: expected a name that ends in {', '.join(_SUFFIXES)}")
    if not path.parent.is_dir():
        raise ArgumentError(f"--plot {file}: there is no folder {path.parent}")
    _matplotlib()


def write(file: str, models: Sequence[dict[str, Any]]) -> None:
    """models: see draw(). Raises CtworkerError."""
    try:
        draw(models).savefig(Path(file).expanduser(), dpi=150)
    except OSError as error:
        raise CtworkerError(f"--plot {file}: cannot be written: {error.strerror}") from error


def draw(models: Sequence[dict[str, Any]]) -> Any:
    """The figure. models: each with `label`, and `layers`, `matrices` or both, as a report has them."""
    by_layer = [(i, model) for i, model in enumerate(models) if "layers" in model]
    by_matrix = [(i, model) for i, model in enumerate(models) if "matrices" in model]
    n = 2 * bool(by_layer) + bool(by_matrix)
    figure, grid = _matplotlib().subplots(n, 1, sharex=True, figsize=(9, 1 + 3 * n), layout="constrained", squeeze=False)
    rows = [row[0] for row in grid]
    if by_layer:
        _draw_layers(rows[0], rows[1], by_layer)
    if by_matrix:
        _draw_matrices(rows[-1], by_matrix)
    for axes in rows:
        axes.set_yscale("log")
        plain_numbers(axes.yaxis)
        axes.grid(alpha=0.3)
    _axis(rows[-1], _depth(models))
    rows[0].set_title("Hidden states after each layer, against the reference's" if by_layer else "Each matrix alone")
    return figure


def _draw_layers(above: Any, below: Any, models: Sequence[tuple[int, dict[str, Any]]]) -> None:
    for i, model in models:
        style = {"label": model["label"], "color": _COLORS[i % len(_COLORS)], "marker": "o", "markersize": 3, "linewidth": 1.2}
        _line(above, model["layers"], "relative_error", lambda value: value, style)
        _line(below, model["layers"], "cosine", lambda value: 1 - value, style)
    above.set_ylabel("relative error")
    below.set_ylabel("1 - cosine")
    above.legend(frameon=False)


def _draw_matrices(axes: Any, models: Sequence[tuple[int, dict[str, Any]]]) -> None:
    """A point per matrix: its layer, and what it does alone. Its kind is its mark."""
    kinds = list(dict.fromkeys(kind(each["name"]) for _, model in models for each in model["matrices"]["alone"]))
    for i, model in models:
        axes.scatter([], [], s=22, marker="_", color=_COLORS[i % len(_COLORS)], label=model["label"])
    for i, model in models:
        for k, name in enumerate(sorted(kinds)):
            points = [
                (each["layer"] + 1, each["kl"]["value"])
                for each in model["matrices"]["alone"]
                if kind(each["name"]) == name and each["layer"] is not None and each["kl"]["value"]
            ]
            label = name if i == models[0][0] else None
            x, y = [point[0] for point in points], [point[1] for point in points]
            axes.scatter(x, y, s=22, marker=_MARKS[k % len(_MARKS)], color=_COLORS[i % len(_COLORS)], alpha=0.8, label=label)
    axes.set_ylabel("KL of one matrix alone")
    axes.legend(frameon=False, ncols=4, fontsize="small")


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


def _depth(models: Sequence[dict[str, Any]]) -> int:
    """Decoder layers of the deepest model."""
    depths = [len(model["layers"]) - 1 for model in models if "layers" in model]
    named = [each["layer"] for model in models if "matrices" in model for each in model["matrices"]["alone"]]
    return max([*depths, *(layer + 1 for layer in named if layer is not None)], default=1)


def _axis(axes: Any, depth: int) -> None:
    decoders = range(0, depth, max(1, depth // 16))
    axes.set_xticks([0, *(i + 1 for i in decoders)], ["emb.", *map(str, decoders)])
    axes.set_xlabel("layer")


def plain_numbers(axis: Any) -> None:
    """0.3 instead of 3e-01."""
    from matplotlib.ticker import LogFormatter

    class Plain(LogFormatter):
        def __call__(self, x: float, pos: int | None = None) -> str:
            return f"{x:g}" if super().__call__(x, pos) else ""

    axis.set_major_formatter(Plain())
    axis.set_minor_formatter(Plain(labelOnlyBase=False, minor_thresholds=(2, 0.4)))


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
