"""report.html: one file that needs no network, from web/."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup

from .. import __version__
from . import view
from .progress import size
from .view import Axis, Column, Value


_MATRICES = 20  # shown of each model; results.json has all


def render(document: dict[str, Any]) -> str:
    web = files(__package__).joinpath("web")
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    template = environment.from_string(web.joinpath("report.html.j2").read_text(encoding="utf-8"))
    columns, axes = view.columns(document), view.axes(document)
    charts = [_chart(column, axes, document) for column in columns]
    data = {
        "axes": [{"id": axis.id, "label": axis.label} for axis in axes],
        "series": list(dict.fromkeys(view.series(document).values())),
        "charts": [chart for chart in charts if chart["points"]],
        "layers": [plot for column in columns for plot in _layers(column)],
    }
    return template.render(
        title=document["sweep"]["name"],
        summary=_summary(document),
        version=__version__,
        css=Markup(web.joinpath("report.css").read_text(encoding="utf-8")),
        js=Markup(web.joinpath("report.js").read_text(encoding="utf-8")),
        data=Markup(json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")),
        axes=axes,
        charts=data["charts"],
        layers=data["layers"],
        matrices=[table for column in columns for table in _matrices(column)],
        paired_heads=view.PAIRED_HEADS,
        paired=view.paired(document),
        paired_notes=view.paired_notes(document),
        heads=_heads(columns, document),
        rows=_rows(columns, document),
        failures=[cell for cell in document["cells"] if cell["state"] == "failed"],
        methods=[
            {"title": column.title, "fields": view.method_fields(column)} for column in columns
        ],
        models=[
            {
                "label": model["label"],
                "fields": view.model_fields(model, _identity(document, model)),
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


def _chart(column: Column, axes: list[Axis], document: dict[str, Any]) -> dict[str, Any]:
    names = view.series(document)
    order = list(dict.fromkeys(names.values()))
    return {
        "title": column.title,
        "sub": {True: "higher is better", False: "lower is better", None: ""}[column.higher],
        "higher": column.higher,
        "log": column.logarithmic,
        "points": [
            {
                "label": label,
                "series": order.index(names[label]),
                "original": value.model["original"],
                "v": value.value,
                "se": value.stderr,
                "x": {axis.id: axis.of(value.model) for axis in axes},
                "text": value.text,
                "facts": view.facts(value, column),
            }
            for label, value in column.values.items()
            if value.value is not None
        ],
    }


def _layers(column: Column) -> Iterator[dict[str, Any]]:
    lines = view.parts(column, "layers")
    if lines:
        yield {
            "title": "Relative error of the hidden states",
            "sub": column.name,
            "axis": "after layer (0: the embedding)",
            "log": True,
            "lines": [
                {
                    "label": label,
                    "series": n,
                    "values": [layer["relative_error"]["value"] for layer in found],
                }
                for n, (label, found) in enumerate(lines)
            ],
        }


def _matrices(column: Column) -> Iterator[dict[str, Any]]:
    """The matrices of each model that hurt most, alone in the original."""
    for label, found in view.parts(column, "matrices"):
        whole = found["kl"]["value"]
        rows = [
            (each["name"], view.number(each["kl"]["value"], each["kl"]["se"]), f"{100 * each['kl']['value'] / whole:.1f} %")
            for each in found["alone"][:_MATRICES]
            if each["kl"]["value"] is not None and whole
        ]
        more = len(found["alone"]) - len(rows)
        yield {"title": f"{label}, {column.name}", "rows": rows, "more": more, "windows": found["windows"]}


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
        heads.append({"name": column.name, "sub": sub, "style": "number", "hint": column.title})
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
        yield _number(column.values.get(model["label"]), column)


def _number(value: Value | None, column: Column) -> dict[str, Any]:
    if value is None:
        return _cell("", None)
    if value.value is None:
        return _cell(value.state, None, style=value.state, hint=value.error)
    main, _, error = value.text.partition(" ± ")
    small = " · ".join(filter(None, [f"± {error}" if error else "", value.change]))
    best = "best" if value.value == column.best() else ""
    return _cell(main, value.value, small=small, style=best, hint=repr(value.value))


def _cell(
    text: str, sort: Any, *, small: str = "", style: str = "", hint: str = ""
) -> dict[str, Any]:
    return {"text": text, "sort": sort, "small": small, "style": style, "hint": hint}
