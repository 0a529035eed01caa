"""report.html: one file that needs no network, from web/."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup

from .. import __version__
from ..base.tables import counted, size
from ..charts import heat, look
from ..compare import headline
from . import captions, view
from .columns import Axis, Column, Value, number

_PERCENTILES = {"25": "quartile", "50": "median", "75": "upper quartile", "99": "99 %", "99.9": "99.9 %"}
_MATRICES = 20  # shown of each model; results.json has all


def render(document: dict[str, Any]) -> str:
    web = files(__package__).joinpath("web")
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    template = environment.from_string(web.joinpath("report.html.j2").read_text(encoding="utf-8"))
    columns, axes = view.columns(document), view.axes(document)
    charts = [_chart(column, axes, document) for column in columns]
    numbers = view.numbers(document)
    data = {
        "axes": [{"id": axis.id, "label": axis.label} for axis in axes],
        "models": [_model(model, numbers[model["label"]]) for model in document["models"]],
        "charts": [chart for chart in charts if chart["points"]],
        "spread": [plot for column in columns for plot in _spread(column, numbers)],
        "layers": [plot for column in columns for plot in _layers(column, numbers)],
        "heat": [plot for column in columns for plot in _heat(column)],
    }
    return template.render(
        title=document["sweep"]["name"],
        summary=_summary(document),
        version=__version__,
        palette=Markup(look.css()),
        labels=Markup(web.joinpath("labels.js").read_text(encoding="utf-8")),
        css=Markup(web.joinpath("report.css").read_text(encoding="utf-8")),
        js=Markup(web.joinpath("report.js").read_text(encoding="utf-8")),
        data=Markup(json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")),
        axes=axes,
        charts=data["charts"],
        spread=data["spread"],
        has_floor=any(chart["floor"] is not None for chart in data["charts"]),
        has_spread_floor=any(plot["floor"] for plot in data["spread"]),
        layers=data["layers"],
        matrices=[table for column in columns for table in _matrices(column)],
        paired_heads=view.PAIRED_HEADS,
        paired=view.paired(document),
        paired_notes=view.paired_notes(document),
        heads=_heads(columns, document),
        rows=_rows(columns, document),
        failures=[cell for cell in document["cells"] if cell["state"] == "failed"],
        methods=[
            {"title": column.title, "part": _part(column), "fields": captions.method_fields(column)}
            for column in columns
        ],
        models=[
            {
                "label": model["label"],
                "fields": captions.model_fields(model, _identity(document, model)),
            }
            for model in document["models"]
        ],
    )


def _summary(document: dict[str, Any]) -> str:
    cells = document["cells"]
    done = sum(cell["state"] == "done" for cell in cells)
    last = max((cell["run"]["finished"] for cell in cells if cell["state"] == "done"), default="")
    numerics = sorted({cell["source"]["numerics"] for cell in cells if cell["state"] == "done"})
    parts = [f"{len(document['models'])} models", f"{done} of {len(cells)} results"]
    if last:
        parts += [f"finished {last[:10]}", f"numerics {', '.join(numerics)}"]
    return " · ".join(parts)


def _identity(document: dict[str, Any], model: dict[str, Any]) -> str:
    found = {
        cell["source"]["identity"]
        for cell in document["cells"]
        if cell["model"] == model["label"] and cell["state"] == "done"
    }
    return ", ".join(sorted(found))


# -- charts ------------------------------------------------------------------------------------------------


def _model(model: dict[str, Any], number: int) -> dict[str, Any]:
    colour, mark = look.place(number)
    return {"label": model["label"], "original": model["original"], "colour": colour, "mark": look.MARKS[mark].path}


def _part(column: Column) -> str:
    """"4 of 148 windows" where the column's numbers are of a part of the data."""
    text, partial = captions.amount(column)
    return text if partial else ""


def _head(column: Column, title: str) -> dict[str, Any]:
    return {"title": title, "sub": captions.subtitle(column), "part": _part(column)}


def _chart(column: Column, axes: list[Axis], document: dict[str, Any]) -> dict[str, Any]:
    numbers = view.numbers(document)
    better = {True: " (higher is better)", False: " (lower is better)", None: ""}[column.higher]
    return _head(column, column.title + better) | {
        "full": captions.title(column, document["sweep"]["name"]),
        "higher": column.higher,
        "log": column.logarithmic,
        "floor": column.line,
        "points": [
            {
                "label": label,
                "series": numbers[label],
                "original": value.model["original"],
                "method": value.model["method"],
                "v": value.value,
                "se": value.stderr,
                "x": {axis.id: axis.of(value.model) for axis in axes},
                "text": value.text,
                "facts": view.facts(value, column),
            }
            for label, value in column.values.items()
            if value.value is not None and not value.floor
        ],
    }


def _layers(column: Column, numbers: dict[str, int]) -> Iterator[dict[str, Any]]:
    found = [(label, layers) for label, layers in view.parts(column, "layers") if not column.values[label].floor]
    if found:
        yield _head(column, "Relative error of the hidden states") | {
            "axis": "after layer",
            "lines": [
                {"label": label, "series": numbers[label], "values": [layer["relative_error"]["value"] for layer in layers]}
                for label, layers in found
            ],
        }


def _spread(column: Column, numbers: dict[str, int]) -> Iterator[dict[str, Any]]:
    """The best model first."""
    rows = []
    for label, found in view.spreads(column):
        known = {name: estimate["value"] for name, estimate in found["kl_percentiles"].items()}
        facts = [("mean", headline.shown(found["kl"], found))]
        facts += [(names, number(known[name])) for name, names in _PERCENTILES.items() if known.get(name) is not None]
        row = {"label": label, "series": numbers[label], "mean": found["kl"]["value"], "facts": facts}
        rows.append(row | {key: known.get(name) for key, name in (("low", "25"), ("median", "50"), ("high", "75"), ("tail", "99.9"))})
    if rows:
        rows.sort(key=lambda row: (row["mean"], row["series"]))
        title = f"KL from {column.reference}"
        yield _head(column, title) | {"rows": rows, "floor": column.noise_floor or 0}


def _heat(column: Column) -> Iterator[dict[str, Any]]:
    for label, found in view.parts(column, "matrices"):
        kinds, values, _ = heat.grid(found["alone"])
        if any(value for row in values for value in row if value):
            yield _head(column, f"{label}: KL of each matrix alone") | {"kinds": kinds, "values": values, "whole": found["kl"]["value"]}


def _matrices(column: Column) -> Iterator[dict[str, Any]]:
    """The matrices of each model that hurt most, alone in the original."""
    for label, found in view.parts(column, "matrices"):
        whole = found["kl"]["value"]
        rows = [
            (each["name"], number(each["kl"]["value"], each["kl"]["se"]), f"{100 * each['kl']['value'] / whole:.1f} %")
            for each in found["alone"][:_MATRICES]
            if each["kl"]["value"] is not None and whole
        ]
        more = len(found["alone"]) - len(rows)
        yield {"title": f"{label}, {column.name}", "rows": rows, "more": more, "windows": counted(found["windows"], "window")}


# -- the table ---------------------------------------------------------------------------------------------


def _has(document: dict[str, Any], name: str) -> bool:
    return any(model[name] for model in document["models"])


def _heads(columns: list[Column], document: dict[str, Any]) -> list[dict[str, Any]]:
    heads = [{"name": "Model", "sub": "", "style": "", "hint": "sort by name"}]
    heads += [
        {"name": name.capitalize(), "sub": "", "style": "wide", "hint": f"sort by {name}"}
        for name in ("group", "method")
        if _has(document, name)
    ]
    heads += [
        {
            "name": "Bits",
            "sub": "per weight",
            "style": "number",
            "hint": "of the quantised weights, with scales and zero points",
        },
        {"name": "Size", "sub": "", "style": "number wide", "hint": "of all weight files"},
    ]
    for column in columns:
        sub = f"{column.unit} {column.arrow}".strip()
        heads.append({"name": column.name, "sub": sub, "style": "number", "hint": column.title, "part": _part(column)})
        heads += [{"name": name, "sub": column.name, "style": "number wide", "hint": name} for name in column.more]
    return heads


def _rows(columns: list[Column], document: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "original": model["original"],
            "about": " · ".join(
                filter(None, [model["group"], model["method"], _size(model)])
            ),  # for phones
            "cells": list(_row(model, columns, document)),
        }
        for model in document["models"]
    ]


def _size(model: dict[str, Any]) -> str:
    return size(model["bytes"]) if "bytes" in model else ""


def _row(model: dict[str, Any], columns: list[Column], document: dict[str, Any]) -> Any:
    yield _cell(model["label"], model["label"], small="original" if model["original"] else "")
    for name in ("group", "method"):
        if _has(document, name):
            yield _cell(model[name] or "", model[name] or None, style="text wide")
    bits, n_bytes = model.get("bits_per_weight"), model.get("bytes")
    yield _cell("" if bits is None else f"{bits:.3f}", bits)
    yield _cell(_size(model), n_bytes, style="wide")
    for column in columns:
        value = column.values.get(model["label"])
        yield _number(value, column)
        for name in column.more:
            text = value.more.get(name, "") if value is not None else ""
            main, _, error = text.partition(" ± ")
            unit = " %" if error.endswith(" %") else ""
            yield _cell(main + unit, _sort(main), small=f"± {error.removesuffix(' %')}" if error else "", style="wide")


def _number(value: Value | None, column: Column) -> dict[str, Any]:
    if value is None:
        return _cell("", None)
    if value.value is None:
        return _cell(value.state, None, style=value.state, hint=value.error)
    main, _, error = value.text.partition(" ± ")
    small = "\n".join(filter(None, [f"± {error}" if error else "", value.change]))
    best = "best" if value.value == column.best() else ""
    return _cell(main, value.value, small=small, style=best, hint=repr(value.value))


def _sort(text: str) -> float | None:
    try:
        return float(text.removesuffix(" %"))
    except ValueError:
        return None


def _cell(
    text: str, sort: Any, *, small: str = "", style: str = "", hint: str = ""
) -> dict[str, Any]:
    return {"text": text, "sort": sort, "small": small, "style": style, "hint": hint}
