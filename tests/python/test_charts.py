"""Charts: labels cover nothing, by their boxes; a model has one colour and mark; the same results give the same bytes."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

import synthetic_sweep
from ctworker.charts import heat, labels, lines, look, points, sheet
from ctworker.compare import plot
from ctworker.sweep import plots, view

N = (5, 11, 30)


def crowd(n: int, seed: int) -> list[tuple[float, float]]:
    """Points of which half lie in one heap."""
    rng = random.Random(seed)
    return [(rng.gauss(200, 12), rng.gauss(150, 12)) if i % 2 else (rng.uniform(70, 420), rng.uniform(70, 350)) for i in range(n)]


# ---- the solver ----


@pytest.mark.parametrize("seed", range(8))
def test_labels_cover_nothing(seed: int) -> None:
    """Numbers of 30 points, half of them in one heap: no box meets another, a mark or an error bar, and all are inside
    of the plot."""
    spots, area = crowd(30, seed), (66.0, 62.0, 430.0, 360.0)
    bars = [(x - 3, y - 20, x + 3, y + 20) for x, y in spots[:6]]
    found = labels.place(spots, [(12.0, 9.5)] * 30, area, bars)
    assert found is not None and found == labels.place(spots, [(12.0, 9.5)] * 30, area, bars)
    boxes = [label.box for label in found]
    marks = [(x - labels.RADIUS, y - labels.RADIUS, x + labels.RADIUS, y + labels.RADIUS) for x, y in spots]
    assert not [pair for pair in itertools.combinations(boxes, 2) if labels.overlap(*pair)]
    assert not [box for box in boxes for other in [*marks, *bars] if labels.overlap(box, other)]
    for label in found:
        assert area[0] <= label.box[0] and label.box[2] <= area[2] and area[1] <= label.box[1] and label.box[3] <= area[3]


def test_a_label_stands_at_its_point() -> None:
    (alone,) = labels.place([(100.0, 100.0)], [(40.0, 10.0)], (0.0, 0.0, 300.0, 300.0)) or ()
    assert alone == labels.Label((109.0, 95.0, 149.0, 105.0), None)
    (edge,) = labels.place([(290.0, 100.0)], [(40.0, 10.0)], (0.0, 0.0, 300.0, 300.0)) or ()
    assert edge.box == (241.0, 95.0, 281.0, 105.0), "left, where the right has no room"
    names = labels.place(crowd(30, 1), [(250.0, 10.0)] * 30, (66.0, 62.0, 430.0, 360.0), reach=70.0)
    assert names is None, "30 long names have no place"


def test_a_leader_line_goes_between_labels() -> None:
    """As long as there is room: the lines of ten names along a row of points cross no other name."""
    spots = [(200.0 + 16 * i, 200.0) for i in range(10)]
    found = labels.place(spots, [(90.0, 10.0)] * 10, (0.0, 0.0, 600.0, 400.0))
    assert found is not None
    led = [(i, label) for i, label in enumerate(found) if label.leader is not None]
    assert len(led) >= 4
    for i, label in led:
        assert not any(labels.crosses(spots[i], label.leader, other.box) for k, other in enumerate(found) if k != i)


def test_a_line_that_enters_a_box() -> None:
    box = (10.0, 10.0, 20.0, 20.0)
    assert labels.crosses((0.0, 0.0), (30.0, 30.0), box) and labels.crosses((15.0, 0.0), (15.0, 12.0), box)
    for line in (((0.0, 0.0), (9.0, 9.0)), ((0.0, 15.0), (10.0, 15.0)), ((0.0, 25.0), (30.0, 25.0)), ((5.0, 0.0), (5.0, 30.0))):
        assert not labels.crosses(*line, box), line


# ---- drawings ----


def drawn(n: int) -> list[tuple[str, Any]]:
    """(name, sheet) of all charts of a sweep of n models."""
    document = synthetic_sweep.sweep(n)
    numbers, found = view.numbers(document), []
    for column in view.columns(document):
        for axis in view.axes(document):
            found.append((f"{column.work} {axis.id}", points.draw(plots.chart(column, axis, "sweep", numbers), look.LIGHT)))
        found += [(name, draw(look.DARK)) for name, draw in plots.of_comparison(column, numbers)]
        panels = plots.ladder(column, document)
        found += [(f"ladder {column.work}", points.stacked(panels, look.LIGHT))] if panels else []
    return found


def texts(made: sheet.Sheet) -> list[tuple[str, tuple[float, float, float, float]]]:
    """Each visible text of a drawing with its box, as matplotlib draws it."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.text import Text

    renderer, shown, draw = FigureCanvasAgg(made.figure).get_renderer(), [], Text.draw
    with pytest.MonkeyPatch.context() as patch:  # a tick outside of the limits exists, but is not drawn
        patch.setattr(Text, "draw", lambda self, *given, **named: (shown.append(self), draw(self, *given, **named))[1])
        made.figure.draw(renderer)
    found = []
    for text in shown:
        if text.get_visible() and text.get_text().strip():
            box = Text.get_window_extent(text, renderer)
            found.append((text.get_text(), (box.x0 + 0.5, box.y0 + 0.5, box.x1 - 0.5, box.y1 - 0.5)))
    return found


@pytest.mark.parametrize("n", N)
def test_no_text_covers_another(n: int) -> None:
    """Of all texts of all charts: titles, ticks, labels and keys. All are on the sheet, and every model is labelled."""
    for name, made in drawn(n):
        found = texts(made)
        both = [(a, b) for (a, box), (b, other) in itertools.combinations(found, 2) if labels.overlap(box, other)]
        assert both == [], name
        outside = [text for text, box in found if box[0] < 0 or box[2] > sheet.WIDTH or box[1] < 0 or box[3] > made.height]
        assert outside == [], name


@pytest.mark.parametrize("n", N)
def test_every_point_has_a_label(n: int) -> None:
    document = synthetic_sweep.sweep(n)
    column = view.columns(document)[1]
    made = points.draw(plots.chart(column, view.axes(document)[0], "sweep", view.numbers(document)), look.LIGHT)
    shown = [text for text, _ in texts(made)]
    for i, model in enumerate(document["models"]):
        by_number = str(i + 1) in shown
        assert model["label"] in shown or (by_number and sum(text.startswith(model["label"][:8]) for text in shown) >= n)


def test_a_model_has_one_colour_and_mark() -> None:
    assert len({look.place(i) for i in range(70)}) == 70
    assert all(len(theme.series) == len(look.LIGHT.series) for theme in look.THEMES)
    assert all(f"--c{i}: {colour};" in look.css() for theme in look.THEMES for i, colour in enumerate(theme.series))
    document = synthetic_sweep.sweep(5)
    numbers = view.numbers(document)
    column = next(column for column in view.columns(document) if column.kind == "comparison")
    chart = plots.chart(column, view.axes(document)[0], "sweep", numbers)
    assert {dot.name: dot.series for dot in chart.dots} == {label: i for label, i in numbers.items() if i}
    assert [name for name, _, _ in chart.levels] == ["noise floor"], "the original's own divergence is a line, not a point"
    colours = {}
    for _, draw in plots.of_comparison(column, numbers):
        for line in draw(look.LIGHT).axes.lines:
            if line.get_marker() not in ("None", "", None, "none"):
                colours.setdefault(line.get_marker(), set()).add(line.get_color())
    assert all(len(found) == 1 for found in colours.values()) and len(colours) == 4


def test_layers_have_the_numbers_of_the_model() -> None:
    for depth in (2, 16, 30, 32, 80):
        made = lines.draw("t", "s", "y", [lines.Line("a", 0, [0.1] * (depth + 1), [None] * (depth + 1))], look.LIGHT)
        ticks = dict(zip((text.get_text() for text in made.axes.get_xticklabels()), made.axes.get_xticks()))
        assert ticks.pop(lines.EMBEDDING) == 0 and all(at == int(text) + 1 for text, at in ticks.items())


def test_the_grid_of_matrices() -> None:
    alone = [
        {"name": f"model.layers.{layer}.{kind}", "layer": layer, "kl": {"value": value, "se": None}}
        for layer, kind, value in ((1, "a.down_proj", 4.0), (0, "a.q_proj", 1.0), (1, "a.q_proj", None), (0, "a.odd", 2.0))
    ]
    alone.append({"name": "lm_head", "layer": None, "kl": {"value": 9.0, "se": None}})
    assert heat.grid(alone) == (["q_proj", "down_proj", "odd"], [[1.0, None], [None, 4.0], [2.0, None]], [("lm_head", 9.0)])
    assert heat.draw("t", "s", alone, look.DARK).axes.images


def test_a_spread_without_divergence() -> None:
    """Of equal models nothing can be drawn on a logarithmic axis; a noise floor above all models is in the picture."""
    statistics = synthetic_sweep.sweep(2)["cells"][7]["details"]["statistics"]
    method = synthetic_sweep.sweep(2)["cells"][3]["method"]["method"]
    report = {"reference": "a", "text": {"name": "t", "windows": 3, "method": method}, "models": [{"label": "b", "statistics": statistics}]}
    assert [name for name, _ in plot.charts(report)] == ["spread"]
    report["models"][0]["statistics"] = statistics | {"kl": {"value": 0.0, "se": 0.0}}
    assert [name for name, _ in plot.charts(report)] == []
    low, high = plot.of_spread([("b", 0, statistics)], 500.0, "a", "about")(look.LIGHT).axes.get_xlim()
    assert low < statistics["kl"]["value"] < 500.0 < high


def test_layers_of_few_windows_have_no_band() -> None:
    layers = synthetic_sweep.sweep(2)["cells"][7]["details"]["layers"]
    for n_windows, errors in ((4, False), (5, True)):
        _, draw = next(plot.of_layers([("a", 0, layers, n_windows)], "bf16", "about"))
        assert bool(draw(look.LIGHT).axes.collections) is errors


def test_the_same_results_give_the_same_bytes() -> None:
    draw = dict(plot.charts({
        "reference": "bf16", "text": {"name": "t", "windows": 3, "method": synthetic_sweep.sweep(2)["cells"][3]["method"]["method"]},
        "models": [{"label": "a$b$", "statistics": synthetic_sweep.sweep(2)["cells"][7]["details"]["statistics"]}],
    }))["spread"]  # fmt: skip
    found, again = dict(sheet.files("x", draw)), dict(sheet.files("x", draw))
    assert found == again and sorted(found) == ["x-dark.png", "x-dark.svg", "x.png", "x.svg"]
    assert found["x.png"].startswith(b"\x89PNG") and "a$b$".encode() in found["x.svg"], "dollar signs are no formula"
    assert look.DARK.card.encode() in found["x-dark.svg"] and look.DARK.card.encode() not in found["x.svg"]
