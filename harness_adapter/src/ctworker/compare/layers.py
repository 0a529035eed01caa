"""Where a quantisation hurts: how the hidden states of two models differ after each layer.

docs/METHODS.md ("Layers") defines every number. Needs numpy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..base.tables import number, render
from ..client.results import Comparison
from .divergence import FEWEST_CLUSTERS, Estimate

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Layer:
    """layer: 0 for the embedding, i + 1 for decoder layer i. relative_error: of all tokens together; token_error: mean of
    the tokens' own; cosine: mean over the tokens. channel: the channel with the largest error in most windows;
    channel_windows: the share of windows in which it is; channel_share: its share of the error in these windows, None if
    there is no error."""

    layer: int
    relative_error: Estimate
    token_error: Estimate
    cosine: Estimate
    channel: int
    channel_windows: float
    channel_share: float | None

    def to_json(self) -> dict[str, Any]:
        return {
            "layer": self.layer,
            "name": name(self.layer),
            **{key: getattr(self, key).to_json() for key in ("relative_error", "token_error", "cosine")},
            "channel": self.channel,
            "channel_windows": self.channel_windows,
            "channel_share": self.channel_share,
        }


def name(layer: int) -> str:
    return "embedding" if layer == 0 else f"layer {layer - 1}"


def summarize(results: Sequence[Comparison]) -> list[Layer]:
    """results: of texts that were compared with `layers`."""
    parts = [result.layers for result in results if result.layers is not None]
    if not parts or not any(part.tokens for part in parts):
        raise ValueError("no windows whose layers were compared")
    n_layers = parts[0].n

    def stacked(key: str) -> npt.NDArray[Any]:
        """[windows, layers]"""
        return np.concatenate([np.asarray(part.columns[key]).reshape(-1, n_layers) for part in parts])

    tokens = np.concatenate([np.asarray(part.tokens, np.float64) for part in parts])
    columns = {key: stacked(key) for key in parts[0].columns}
    return [_layer(i, tokens, {key: column[:, i] for key, column in columns.items()}) for i in range(n_layers)]


def _layer(layer: int, tokens: Floats, columns: dict[str, npt.NDArray[Any]]) -> Layer:
    squared = ratio(columns["layer_error"], columns["layer_reference"])
    channels = columns["layer_channel"]
    labels, counts = np.unique(channels, return_counts=True)
    channel = int(labels[np.argmax(counts)])
    there = channels == channel
    error = float(columns["layer_error"][there].sum())
    return Layer(
        layer,
        root(squared),
        ratio(columns["layer_relative"], tokens),
        ratio(columns["layer_cosine"], tokens),
        channel,
        float(there.mean()),
        float(columns["layer_channel_error"][there].sum()) / error if error > 0 else None,
    )


def ratio(above: Floats, below: Floats) -> Estimate:
    """A ratio of two totals over windows, with its standard error over the windows."""
    total, m = float(below.sum()), len(below)
    if total == 0:
        return Estimate(math.nan, None)
    value = float(above.sum()) / total
    if m < 2:
        return Estimate(value, None)
    influence = above - value * below
    return Estimate(value, math.sqrt(m / (m - 1) * float((influence**2).sum())) / total)


def root(square: Estimate) -> Estimate:
    """The square root of an estimate."""
    if not square.value > 0:
        return square
    value = math.sqrt(square.value)
    return Estimate(value, None if square.se is None else square.se / (2 * value))


def table(layers: Sequence[dict[str, Any]], n_windows: int) -> str:
    """layers: Layer.to_json() of each. Fewer than 5 windows have no errors."""

    def shown(estimate: dict[str, Any]) -> str:
        return number(estimate["value"], estimate["se"] if n_windows >= FEWEST_CLUSTERS else None)

    rows = [["", "relative error", "mean of tokens", "1 - cosine", "largest channel", "its share", "in windows"]]
    for layer in layers:
        share = layer["channel_share"]
        cosine = layer["cosine"]
        rows.append(
            [
                layer["name"],
                shown(layer["relative_error"]),
                shown(layer["token_error"]),
                shown(cosine | {"value": None if cosine["value"] is None else 1 - cosine["value"]}),
                str(layer["channel"]) if share is not None else "-",
                f"{100 * share:.1f} %" if share is not None else "-",
                f"{100 * layer['channel_windows']:.0f} %" if share is not None else "-",
            ]
        )
    return render(rows)
