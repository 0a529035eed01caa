"""PNG and SVG of the charts, for posting: matplotlib, without a display."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import Any

from ..compare import plot
from . import view
from .view import Axis, Column

_COLOURS = ("#1f5fd0", "#c2500a", "#0c7d5f", "#8a3fb5", "#a6781a", "#b8336a", "#4b5563", "#1288a8")
_MARKS = ("o", "s", "^", "D")
_INCHES, _DPI = (7.0, 4.4), 160
#: The same bytes for the same results: no date, and fixed ids.
_SVG = {"svg.hashsalt": "ctworker", "svg.fonttype": "none"}


def files(document: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    """(name, content) of each plot: every column against bits per weight and against the file size."""
    names = view.series(document)
    for column in view.columns(document):
        for axis in view.axes(document):
            if axis.id == "bits_per_parameter":
                continue
            found = [
                (label, value) for label, value in column.values.items() if value.value is not None
            ]
            if any(axis.of(value.model) is not None for _, value in found):
                yield from _save(
                    _figure(column, axis, names), f"{_slug(column.title)}-{_slug(axis.name)}"
                )
        for part in ("layers", "matrices"):
            drawn = [{"label": label, part: values} for label, values in view.parts(column, part)]
            if drawn:
                yield from _save(plot.draw(drawn), f"{_slug(column.name)}-{part}")


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")


def _save(figure: Any, name: str) -> Iterator[tuple[str, bytes]]:
    import matplotlib

    with matplotlib.rc_context(_SVG):
        for kind, metadata in (("png", {"Software": None}), ("svg", {"Date": None})):
            out = io.BytesIO()
            figure.savefig(out, format=kind, dpi=_DPI, metadata=metadata)
            yield f"{name}.{kind}", out.getvalue()


def _figure(column: Column, axis: Axis, names: dict[str, str]) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=_INCHES, layout="constrained")
    ax = figure.subplots()
    order = list(dict.fromkeys(names.values()))
    used: set[str] = set()
    points = []
    for label, value in column.values.items():
        x = axis.of(value.model)
        if value.value is None or x is None:
            continue
        points.append((x, value.value))
        n = order.index(names[label])
        ax.errorbar(
            x, value.value, yerr=value.stderr, fmt=_MARKS[n % 4], color=_COLOURS[n % 8], capsize=3, markersize=7,
            markerfacecolor="white" if value.model["original"] else None, markeredgewidth=1.6,
            label=names[label] if names[label] not in used else None, zorder=3,
        )  # fmt: skip
        used.add(names[label])
        ax.annotate(label, (x, value.value), xytext=(7, 6), textcoords="offset points", fontsize=9)
        if value.model["original"]:
            ax.axhline(value.value, color="#8a93a3", linewidth=0.8, linestyle=":", zorder=1)
    if column.higher is not None:
        line = view.front(points, column.higher)
        if len(line) > 1:
            ax.plot(
                *zip(*line),
                color="#8a93a3",
                linestyle="--",
                linewidth=1.2,
                zorder=2,
                label="Pareto front",
            )
    if column.logarithmic:
        ax.set_yscale("log")
        plot.plain_numbers(ax.yaxis)
    _dress(ax, column, axis)
    return figure


def _dress(ax: Any, column: Column, axis: Axis) -> None:
    ax.set_xlabel(axis.label)
    ax.set_ylabel(f"{column.unit} {column.arrow}".strip())
    ax.set_title(column.name, loc="left", fontsize=12, fontweight="bold")
    ax.grid(True, color="#e6e9ee", linewidth=0.8)
    ax.set_axisbelow(True)
    ax.margins(0.12)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    ax.legend(frameon=False, fontsize=9)
