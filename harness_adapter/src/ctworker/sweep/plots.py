"""PNG and SVG of the charts, light and dark, for posting: matplotlib, without a display."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from ..charts import points, sheet
from ..charts.points import Chart, Dot
from ..compare import plot
from ..compare.plot import slug
from . import captions, view
from .columns import LOG_FROM, Axis, Column


def files(document: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    """(name, content) of each plot: every column against bits per weight and against the file size; of a comparison, the ladder of
    methods, the divergence's spread, its layers and its matrices."""
    numbers = view.numbers(document)
    for column in view.columns(document):
        for axis in view.axes(document):
            if axis.id == "bits_per_parameter":
                continue
            made = chart(column, axis, document["sweep"]["name"], numbers)
            if made.dots:
                yield from sheet.files(f"{slug(column.title)}-{slug(axis.name)}", partial(points.draw, made))
        if panels := ladder(column, document):
            yield from sheet.files(f"ladder-{slug(column.name)}", partial(points.stacked, panels))
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


def ladder(column: Column, document: dict[str, Any]) -> list[Chart]:
    """Perplexity and divergence of a comparison's models against the file size, with the Pareto front of each method; empty if no
    method has two models. Bars: of perplexity, the error of its difference from the reference's, which has the same windows."""
    methods = list(dict.fromkeys(value.model["method"] for value in column.values.values() if value.model["method"]))
    found = {label: each for label, each in view.spreads(column) if "ppl" in each and column.values[label].model["method"]}
    if len(found) <= len({column.values[label].model["method"] for label in found}):
        return []
    size, numbers = view.axes(document)[-1], view.numbers(document)

    def dots(which: Callable[[str], tuple[float, float | None]]) -> list[Dot]:
        models = [(label, column.values[label].model) for label in found]
        return [
            Dot(label, methods.index(model["method"]), x, *which(label), number=numbers[label] + 1)
            for label, model in models
            if (x := size.of(model)) is not None
        ]

    enough = {label: column.values[label].stderr is not None for label in found}
    ppl = dots(lambda label: _perplexity(found[label], enough[label]))
    kl = dots(lambda label: (found[label]["kl"]["value"], found[label]["kl"]["se"] if enough[label] else None))
    base = next(iter(found.values()))["ref_ppl"]["value"]
    floor = [("noise floor", column.line, "-.")] if column.line is not None else []
    title = f"{document['sweep']['name']}: perplexity and divergence against file size"
    shown = [(name, i) for i, name in enumerate(methods) if any(dot.series == i for dot in ppl)]
    return [
        Chart(
            title, captions.subtitle(column), size.label, label, each, logarithmic, view.front([(d.x, d.y) for d in each], False),
            levels, shown, _fronts(each),
        )
        for label, each, logarithmic, levels in (
            ("perplexity \u2193", ppl, max(dot.y for dot in ppl) > LOG_FROM * base, [(f"perplexity of {column.reference}", base, ":")]),
            ("KL (nats) \u2193", kl, True, floor),
        )
    ]  # fmt: skip


def _perplexity(statistics: dict[str, Any], enough: bool) -> tuple[float, float | None]:
    value, error = statistics["ppl"]["value"], statistics["ln_ppl_ratio"]["se"]
    return value, value * error if enough and error is not None else None


def _fronts(dots: list[Dot]) -> list[tuple[int, list[tuple[float, float]]]]:
    """The Pareto front of each series that has one of two points or more."""
    series = dict.fromkeys(dot.series for dot in dots)
    fronts = [(i, view.front([(dot.x, dot.y) for dot in dots if dot.series == i], False)) for i in series]
    return [(i, front) for i, front in fronts if len(front) > 1]


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
