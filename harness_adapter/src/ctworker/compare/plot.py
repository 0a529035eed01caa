"""The charts of `ctworker-compare --plot FILE`: layers, matrices, and the spread of the divergence. Needs matplotlib."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from ..base.errors import ArgumentError, CtworkerError
from ..charts import heat, lines, look, sheet, spread
from ..charts.lines import Line
from ..charts.look import Theme
from ..charts.sheet import Sheet
from ..charts.spread import Spread
from ..perplexity import methods
from . import headline
from .divergence import FEWEST_CLUSTERS

_SUFFIXES = (".png", ".svg", ".pdf")


def _itself(value: float | None) -> float | None:
    return value


def _from_one(value: float | None) -> float | None:
    return None if value is None else 1 - value


#: Number of a layer -> (title, what is drawn, name in a file, value of a layer)
_OF_LAYERS: tuple[tuple[str, str, str, Callable[[float | None], float | None]], ...] = (
    ("relative_error", "relative error of the hidden states", "layers", _itself),
    ("cosine", "1 - cosine of the hidden states", "cosine", _from_one),
)
Draw = Callable[[Theme], Sheet]


def check(file: str) -> None:
    """Before any work: raises CtworkerError if the plot could not be written."""
    path = Path(file).expanduser()
    if path.suffix.lower() not in _SUFFIXES:
        raise ArgumentError(f"--plot {file}: expected a name that ends in {', '.join(_SUFFIXES)}")
    if not path.parent.is_dir():
        raise ArgumentError(f"--plot {file}: there is no folder {path.parent}")
    sheet.matplotlib()


def write(file: str, report: dict[str, Any]) -> list[Path]:
    """FILE has the first chart; each further chart has a name behind it. Raises CtworkerError."""
    path = Path(file).expanduser()
    written: list[Path] = []
    for name, draw in charts(report):
        place = path.with_name(f"{path.stem}-{name}{path.suffix}") if written else path
        try:
            place.write_bytes(sheet.content(draw(look.LIGHT).figure, path.suffix.lower()[1:]))
        except OSError as error:
            raise CtworkerError(f"--plot {place}: cannot be written: {error.strerror}") from error
        written.append(place)
    return written


def charts(report: dict[str, Any]) -> Iterator[tuple[str, Draw]]:
    """(name, drawing) of a report's charts. The models keep their colours in all of them."""
    models = [model for model in report["models"] if "statistics" in model]
    if not models:
        return
    about = f"{report['text']['name']} \u00b7 {headline.windows(report['text'])} \u00b7 {methods.in_words(report['text']['method'])}"
    named = [(model["label"], i, model) for i, model in enumerate(models)]
    layers = [(label, i, model["layers"], model["windows"]) for label, i, model in named if "layers" in model]
    yield from of_layers(layers, report["reference"], about)
    for label, _, model in named:
        if "matrices" in model:
            yield f"matrices-{slug(label)}", of_matrices(label, model["matrices"], report["reference"], about)
    rows = [(label, i, model["statistics"]) for label, i, model in named if label != headline.NOISE_FLOOR]
    if any(found["kl"]["value"] for _, _, found in rows):  # a divergence of 0 has no place on a logarithmic axis
        yield "spread", of_spread(rows, headline.noise_floor(models) or None, report["reference"], about)


def slug(text: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")


def of_layers(models: list[tuple[str, int, list[dict[str, Any]], int]], reference: str, about: str) -> Iterator[tuple[str, Draw]]:
    """models: label, number, a report's `layers`, and windows, of which fewer than 5 have no error."""
    for key, words, name, value in _OF_LAYERS:
        made = [
            Line(
                label, i, [value(layer[key]["value"]) for layer in found],
                [layer[key]["se"] if n_windows >= FEWEST_CLUSTERS else None for layer in found],
            )
            for label, i, found, n_windows in models
        ]
        if made:
            title = f"{words[:1].upper()}{words[1:]}, against {reference}"
            yield name, partial(lines.draw, title, about, words.partition(" of ")[0], made)


def of_matrices(label: str, matrices: dict[str, Any], reference: str, about: str) -> Draw:
    title = f"KL of each matrix of {label} alone in {reference}"
    first = f"first {matrices['windows']} windows" if matrices["windows"] > 1 else "first window"
    return lambda theme: heat.draw(title, f"{about} \u00b7 {first}", matrices["alone"], theme)


def of_spread(models: list[tuple[str, int, dict[str, Any]]], floor: float | None, reference: str, about: str) -> Draw:
    """models: label, number, and a report's `statistics`."""
    rows = []
    for label, i, found in models:
        known = {name: estimate["value"] for name, estimate in found["kl_percentiles"].items() if estimate["value"] is not None}
        if found["kl"]["value"] and known:
            rows.append(Spread(label, i, found["kl"]["value"], {name: known[name] for name in ("25", "50", "75", "99.9") if name in known}))
    return lambda theme: spread.draw(f"Spread of the divergence from {reference}", about, rows, floor, theme)
