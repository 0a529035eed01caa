"""Which matrices hurt: each quantised matrix alone in the otherwise unquantised model, ranked by the divergence it causes.

docs/METHODS.md ("Matrices") defines every number. Needs numpy.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..base.tables import column, counted, number, render, size
from ..client.results import Comparison
from .divergence import FEWEST_CLUSTERS, Estimate
from .layers import ratio

_NAMED = 10  # kept matrices in the sentence
_SHOWN = 20  # of a table; the JSON has all


def summarize(results: Sequence[Comparison]) -> dict[str, Any]:
    """results: of texts that were compared with `matrices`. The largest divergence comes first."""
    parts = [result for result in results if result.matrices is not None and result.window_counts]
    exchanged = [result.matrices for result in parts if result.matrices is not None]
    if not parts:
        raise ValueError("no windows whose matrices were exchanged")
    names = exchanged[0].names
    counts = np.concatenate([np.asarray(part.window_counts, np.float64) for part in parts])
    sums = np.concatenate([np.asarray(each.kl).reshape(-1, len(names)) for each in exchanged])
    alone: list[dict[str, Any]] = [
        {"name": name, "layer": layer(name), "kl": _mean(sums[:, i], counts).to_json()} for i, name in enumerate(names)
    ]
    alone.sort(key=lambda each: -(each["kl"]["value"] if each["kl"]["value"] is not None else float("inf")))
    return {"windows": len(counts), "targets": int(counts.sum()), "kl": divergence(parts), "alone": alone}


def divergence(parts: Sequence[Comparison]) -> dict[str, float | None]:
    """The whole model's KL, over the windows of the texts."""
    counts = np.concatenate([np.asarray(part.window_counts, np.float64) for part in parts])
    return _mean(np.concatenate([_window_sums(part) for part in parts]), counts).to_json()


def layer(name: str) -> int | None:
    """The decoder layer in a matrix's name; None: it is in no layer."""
    numbers = re.findall(r"\.(\d+)\.", name)
    return int(numbers[0]) if numbers else None


def _window_sums(part: Comparison) -> np.ndarray:
    """Of the whole model's divergence."""
    ends = np.cumsum(part.window_counts)
    return np.array([piece.sum() for piece in np.split(np.asarray(part.columns["kl"], np.float64), ends[:-1])])


def _mean(sums: np.ndarray, counts: np.ndarray) -> Estimate:
    return ratio(sums, counts) if np.isfinite(sums).all() else Estimate(float("nan"), None)


def _shown(matrices: dict[str, Any], estimate: dict[str, Any]) -> dict[str, Any]:
    """An estimate over the windows, without its error where these are too few for one."""
    return estimate if matrices["windows"] >= FEWEST_CLUSTERS else estimate | {"se": None}


def kept_sentence(matrices: dict[str, Any]) -> str:
    """What keeping the worst matrices in 16 bits brings, as it was measured."""
    kept = matrices["kept"]
    if "error" in kept:
        return f"what keeping the worst matrices in 16 bits brings was not measured: {kept['error']}"
    before, after = (number(**_shown(matrices, kl)) for kl in (matrices["kl"], kept["kl"]))
    n, names = len(kept["names"]), ", ".join(kept["names"][:_NAMED])
    more = f" and {n - _NAMED} more" if n > _NAMED else ""
    these = "this matrix brings" if n == 1 else f"these {n} matrices bring"
    return (
        f"kept in 16 bits, {these} it from {before} to {after} (measured on the same windows; "
        f"{size(kept['bytes'])} in 16 bits): {names}{more}"
    )


def table(matrices: dict[str, Any]) -> str:
    """matrices: of summarize()."""
    shown = matrices["alone"][:_SHOWN]
    unit, cells = column([_shown(matrices, each["kl"]) for each in shown])
    rows = [["", "matrix", f"KL alone ({unit})" if unit else "KL alone", "of the whole model's"]]
    whole = matrices["kl"]["value"]
    for i, (each, cell) in enumerate(zip(shown, cells)):
        value = each["kl"]["value"]
        share = "-" if value is None or not whole else f"{100 * value / whole:.1f} %"
        rows.append([str(i + 1), each["name"], cell, share])
    names = max(len(row[1]) for row in rows)
    rows = [[f"{row[0]:>3}  {row[1]:<{names}}", *row[2:]] for row in rows]
    lines = [render(rows)]
    if len(shown) < len(matrices["alone"]):
        lines.append(f"and {len(matrices['alone']) - len(shown)} more (--json has all)")
    lines.append(f"whole model on the same {counted(matrices['windows'], 'window')}: KL {number(**_shown(matrices, matrices['kl']))}")
    if "kept" in matrices:
        lines.append(kept_sentence(matrices))
    return "\n".join(lines)
