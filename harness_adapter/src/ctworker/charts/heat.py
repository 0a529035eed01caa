"""What each matrix does alone: a heat map of layers (columns) and kinds of matrices (rows), on a logarithmic scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import sheet
from .look import Theme
from .sheet import Sheet

_FONT = 8.5


def grid(alone: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[float | None]], list[tuple[str, float]]]:
    """(kinds, for each kind a value for each layer, matrices outside of layers). alone: of a report's `matrices`. Kinds are in
    the order of the model; several matrices of one kind in a layer add up."""
    kinds = list(dict.fromkeys(kind(each["name"]) for each in sorted(alone, key=_position) if each["layer"] is not None))
    depth = max((each["layer"] + 1 for each in alone if each["layer"] is not None), default=0)
    values: list[list[float | None]] = [[None] * depth for _ in kinds]
    others = []
    for each in alone:
        value = each["kl"]["value"]
        if each["layer"] is None:
            others.append((each["name"], value))
        elif value is not None:
            row = values[kinds.index(kind(each["name"]))]
            row[each["layer"]] = value + (row[each["layer"]] or 0.0)
    return kinds, values, others


_ORDER = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def _position(each: dict[str, Any]) -> tuple[int, str]:
    last = kind(each["name"])
    return (_ORDER.index(last), last) if last in _ORDER else (len(_ORDER), last)


def kind(name: str) -> str:
    """"q_proj" of "model.layers.0.self_attn.q_proj"."""
    return name.rpartition(".")[2]


def draw(title: str, subtitle: str, alone: Sequence[dict[str, Any]], theme: Theme) -> Sheet:
    from matplotlib.colors import LinearSegmentedColormap, LogNorm

    kinds, values, others = grid(alone)
    left = 18 + max([sheet.text_width(name, _FONT) for name in kinds], default=0) + 12
    made = sheet.sheet(theme, title, subtitle, left=left, bar=True)
    axes = made.axes
    known = [value for row in values for value in row if value is not None and value > 0]
    known += [value for _, value in others if value]
    colours = LinearSegmentedColormap.from_list("ctworker", (theme.low, theme.high))
    high = max(known, default=1.0)
    low = max(min(known, default=0.1), high / 1e4)
    norm = LogNorm(low, high * (1 + 1e-9), clip=True)
    rows = [[float("nan") if value is None else max(value, low) for value in row] for row in values]
    image = axes.imshow(rows, aspect="auto", norm=norm, cmap=colours, interpolation="nearest") if kinds else None
    axes.grid(False)
    axes.set_yticks(range(len(kinds)), kinds)
    depth = len(values[0]) if values else 0
    axes.set_xticks(range(0, depth, max(1, -(-depth // 16))))
    head = "; ".join(f"{name}: {value:.3g}" for name, value in others if value)
    axes.set_xlabel(f"layer (outside of the layers: {head})" if head else "layer")
    if image is not None:
        _bar(made, image)
    return made


def _bar(made: Sheet, image: Any) -> None:
    _, top, right, bottom = made.box
    place = ((right + 12) / sheet.WIDTH, 1 - bottom / made.height, 10 / sheet.WIDTH, (bottom - top) / made.height)
    axes = made.figure.add_axes(place)
    bar = made.figure.colorbar(image, cax=axes)
    bar.outline.set_visible(False)
    sheet.plain_numbers(axes.yaxis)
    axes.tick_params(colors=made.theme.muted, labelsize=8, length=0, which="both")
    made.write(right + 10, top - 13, "KL alone", 8, colour=made.theme.muted)
