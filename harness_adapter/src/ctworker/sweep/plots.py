"""PNG and SVG of the charts, light and dark, for posting: matplotlib, without a display."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from ..charts import points, sheet
from ..charts.points import Chart, Dot
from ..compare import plot
from ..compare.plot import slug
from . import captions, view
from .columns import Axis, Column


def files(document: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    """(name, content) of each plot: every column against bits per weight and against the file size; the divergence's spread, its
    layers and its matrices."""
    numbers = view.numbers(document)
    for column in view.columns(document):
        for axis in view.axes(document):
            if axis.id == "bits_per_parameter":
                continue
            made = chart(column, axis, document["sweep"]["name"], numbers)
            if made.dots:
                yield from sheet.files(f"{slug(column.title)}-{slug(axis.name)}", partial(points.draw, made))
        for name, draw in of_comparison(column, numbers):
            yield from sheet.files(f"{slug(column.name)}-{name}", draw)


def chart(column: Column, axis: Axis, sweep: str, numbers: dict[str, int]) -> Chart:
    dots = [
        Dot(label, numbers[label], x, value.value, value.stderr, value.model["original"])
        for label, value in column.values.items()
        if value.value is not None and not value.floor and (x := axis.of(value.model)) is not None
    ]
    levels = [("noise floor", column.line, "-.")] if column.line is not None else []
    levels += [(f"{dot.name}: original", dot.y, ":") for dot in dots if dot.hollow]
    front = view.front([(dot.x, dot.y) for dot in dots], column.higher) if column.higher is not None else []
    return Chart(
        captions.title(column, sweep), captions.subtitle(column), axis.label, f"{column.unit} {column.arrow}".strip(), dots,
        column.logarithmic, front, levels,
    )  # fmt: skip


def of_comparison(column: Column, numbers: dict[str, int]) -> Iterator[tuple[str, plot.Draw]]:
    reference, about = column.reference, captions.subtitle(column)
    cells = {cell["model"]: cell for cell in column.cells}
    layers = [
        (label, numbers[label], found, cells[label]["method"]["windows"])
        for label, found in view.parts(column, "layers")
        if not column.values[label].floor
    ]
    yield from plot.of_layers(layers, reference, about)
    for label, found in view.parts(column, "matrices"):
        yield f"matrices-{numbers[label] + 1}", plot.of_matrices(label, found, reference, about)
    spreads = [(label, numbers[label], found) for label, found in view.spreads(column)]
    if spreads:
        yield "spread", plot.of_spread(spreads, column.noise_floor or None, reference, about)
