"""The headline of a comparison: one row a model, for a terminal and for Markdown."""

from __future__ import annotations

import math
from typing import Any

from ..base import tables
from ..base.tables import counted, multiple, number
from ..perplexity import methods
from .divergence import FEWEST_CLUSTERS

NOISE_FLOOR = "noise floor"  # the label of the reference's 16-bit run against its float32 run
_HEADS = ("model", "bits per weight", "KL (nats)", "x floor", "99.9 % of KL", "same top-1", "perplexity")
_WITHOUT_ERROR = 3  # significant digits of a number whose error is not known


def rows(models: list[dict[str, Any]]) -> list[list[str]]:
    """The head, and one row for each of a report's models that has statistics. Columns that no model fills are left out."""
    floor = noise_floor(models)
    found = [list(_HEADS), *(_row(model, floor) for model in models if "statistics" in model)]
    filled = [i for i in range(len(_HEADS)) if i < 1 or any(row[i] for row in found[1:])]
    return [[row[i] for i in filled] for row in found]


def noise_floor(models: list[dict[str, Any]]) -> float | None:
    """The KL that rounding alone causes, if it was measured."""
    for model in models:
        if model["label"] == NOISE_FLOOR and "statistics" in model:
            value: float | None = model["statistics"]["kl"]["value"]
            return value
    return None


def _row(model: dict[str, Any], floor: float | None) -> list[str]:
    found = model["statistics"]
    bits, kl = model["model"].get("weight_bits"), found["kl"]["value"]
    return [
        model["label"],
        tables.bits(bits) if bits and model["label"] != NOISE_FLOOR else "",
        shown(found["kl"], found),
        "" if not floor or kl is None else multiple(kl / floor),
        shown(found["kl_percentiles"]["99.9"], found),
        shown(found["same_top"], found, 100.0, " %"),
        perplexity_change(found),
    ]


def perplexity_change(statistics: dict[str, Any]) -> str:
    """How much larger the model's perplexity is than the reference's, with the error of the ratio: both are of the same
    windows."""
    log = statistics["ln_ppl_ratio"]
    if log["value"] is None or log["value"] > 700:
        return "-"
    ratio = math.exp(log["value"])
    change = math.expm1(log["value"])
    error = None if log["se"] is None else ratio * log["se"]
    text = shown({"value": change, "se": error}, statistics, 100.0, " %")
    return text if text.startswith(("-", "0")) and change <= 0 else f"+{text}"


def shown(estimate: dict[str, float | None], statistics: dict[str, Any], scale: float = 1.0, unit: str = "") -> str:
    """An estimate as text; without its error where there are too few windows for one."""
    se = estimate["se"] if statistics["clusters"] >= FEWEST_CLUSTERS else None
    return number(estimate["value"], se, scale=scale, unit=unit, plain=_WITHOUT_ERROR)


def caption(report: dict[str, Any], done: list[dict[str, Any]]) -> list[str]:
    """Sentences with everything that the headline depends on."""
    text, first = report["text"], done[0]["statistics"]
    source = f"{text['name']} (sha256 {text['sha256'][:16]})"
    lines = [
        f"Against {report.get('reference') or done[-1]['reference']['name']}, on {windows(text)} of {source}, "
        f"{text['targets']:,} targets; {methods.in_words(text['method'])}.",
        errors(first),
    ]
    floor = noise_floor(report["models"])
    if floor is None:
        lines.append("No noise floor: --noise-floor measures what rounding alone does.")
    elif floor == 0:
        lines.append("The noise floor is 0: the reference's own 16-bit run is equal to its float32 run here.")
    else:
        lines.append(f"{_HEADS[3]}: multiples of the noise floor, the reference's own 16-bit run against its float32 run.")
    lines.append("perplexity: difference from the reference's on the same windows, with the error of the difference.")
    return lines


def windows(text: dict[str, Any]) -> str:
    """"4 of 148 windows"; of all windows only their number. text: of a report."""
    n, whole = text["windows"], text.get("windows_of_text")
    return f"{n:,} of {counted(whole, 'window')}" if whole and whole > n else counted(n, "window")


def errors(statistics: dict[str, Any]) -> str:
    """The sentence about standard errors."""
    n, over = statistics["clusters"], statistics["errors_over"]
    if n < FEWEST_CLUSTERS:
        pieces = over.removesuffix("s") if n == 1 and over == "windows" else over
        return f"No standard errors: {n} {pieces}, and an error needs {FEWEST_CLUSTERS} or more."
    return f"±: standard error over {n} {over}."
