"""The report of `ctworker-compare` for a terminal: statistics as rows, models as columns."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

from ..report import about_activations
from ..tables import number, render
from . import layers, matrices

Statistics = dict[str, Any]  # Divergence.to_json()
#: (name of the row, key of the statistic, factor, unit)
_ESTIMATES = (
    ("KL(reference || model)", "kl", 1.0, ""),
    ("KL(model || reference)", "kl_reverse", 1.0, ""),
    ("total variation", "total_variation", 100.0, " %"),
    ("same top-1", "same_top", 100.0, " %"),
    ("top-5 overlap", "top5_overlap", 100.0, " %"),
    ("mean Δp", "delta_p", 100.0, " %"),
    ("RMS Δp", "delta_p_rms", 100.0, " %"),
    ("correlation", "correlation", 100.0, " %"),
    ("ln(ppl / reference's ppl)", "ln_ppl_ratio", 1.0, ""),
    ("perplexity", "ppl", 1.0, ""),
    ("reference's perplexity", "ref_ppl", 1.0, ""),
)
_DELTA_P = ("1", "5", "50", "95", "99")  # the JSON has more
_WIDTH = 120  # of a table that goes to a file


def table(names: list[str], statistics: list[Statistics]) -> str:
    """One table, or several below each other where the terminal is too narrow for all models."""
    rows = [[label, *(cell(each) for each in statistics)] for label, cell in _rows(statistics)]
    width = shutil.get_terminal_size((_WIDTH, 24)).columns
    parts, start = [], 0
    while start < len(names):
        n = 1
        while start + n < len(names) and _width(rows, names, start, n + 1) <= width:
            n += 1
        head = ["", *names[start : start + n]]
        parts.append(render([head, *([row[0], *row[1 + start : 1 + start + n]] for row in rows)]))
        start += n
    return "\n\n".join(parts)


def _width(rows: list[list[str]], names: list[str], start: int, n: int) -> int:
    columns = [[name, *(row[1 + i] for row in rows)] for i, name in enumerate(names)][start : start + n]
    return max(len(row[0]) for row in rows) + sum(2 + max(map(len, column)) for column in columns)


def _rows(statistics: list[Statistics]) -> Iterator[tuple[str, Callable[[Statistics], str]]]:
    for label, key, scale, unit in _ESTIMATES:
        yield label, lambda s, key=key, scale=scale, unit=unit: _number(s[key], scale, unit)
        if key == "kl":
            for percent in statistics[0]["kl_percentiles"]:
                yield (
                    f"  {_percent(percent)}",
                    lambda s, percent=percent: _number(s["kl_percentiles"][percent], 1.0, ""),
                )
        if key == "delta_p":
            for percent in _DELTA_P:
                yield (
                    f"  {_percent(percent)}",
                    lambda s, percent=percent: _number(s["delta_p_percentiles"][percent], 100.0, " %"),
                )
    for i, bucket in enumerate(statistics[0]["buckets"]):
        span = f"reference's top p in [{bucket['low']:g}, {bucket['high']:g}{']' if bucket['high'] == 1 else ')'}"
        yield f"{span}: KL", lambda s, i=i: _number(s["buckets"][i]["kl"], 1.0, "")
        yield "  same top-1", lambda s, i=i: _number(s["buckets"][i]["same_top"], 100.0, " %")
        yield "  share of targets", lambda s, i=i: f"{100 * s['buckets'][i]['count'] / s['targets']:.2f} %"


def _percent(percent: str) -> str:
    return {"50": "median", "max": "maximum", "min": "minimum"}.get(percent, f"percentile {percent}")


def _number(estimate: dict[str, float | None] | None, scale: float, unit: str) -> str:
    return "-" if estimate is None else number(estimate["value"], estimate["se"], scale=scale, unit=unit)


def worst(positions: list[dict[str, Any]]) -> str:
    """The positions with the largest divergence."""
    lines = []
    for place in positions:
        lines.append(
            f"  KL {place['kl']:.4g} at token {place['token']} of document {place['document']}: {_shown(place['before'])}"
            f"[{_shown(place['target'])}]{_shown(place['after'])}"
        )
        lines.append(
            f"    target: {_p(place['ref_p'])} -> {_p(place['p'])};  reference expects [{_shown(place['ref_top'])}] "
            f"({_p(place['ref_top_p'])}), model [{_shown(place['top'])}]"
        )
    return "\n".join(lines)


def _p(p: float) -> str:
    return f"{100 * p:.3g} %"


def _shown(text: str) -> str:
    return repr(text)[1:-1]


def text(report: dict[str, Any]) -> str:
    """The whole report for a terminal."""
    done = [model for model in report["models"] if "statistics" in model]
    parts = []
    if done:
        parts += [_about(report, done), "", table([m["label"] for m in done], [m["statistics"] for m in done]), ""]
        first = done[0]["statistics"]
        parts.append(f"+-: standard error over {first['clusters']} {first['errors_over']}.")
    for model in done:
        if model["worst"]:
            parts += ["", f"{model['label']}: the largest divergences", worst(model["worst"])]
    for model in done:
        if "layers" in model:
            title = f"{model['label']}: hidden states after each layer, against the reference's"
            parts += ["", title, layers.table(model["layers"])]
        if "matrices" in model:
            title = f"{model['label']}: each quantised matrix alone in the reference"
            parts += ["", title, matrices.table(model["matrices"])]
    notes = [*(report["text"] or {}).get("notes", []), *(note for model in report["models"] for note in _notes(model))]
    parts += ["", *(f"note: {note}" for note in dict.fromkeys(notes))] if notes else []
    parts += [f"failed: {model['label']}: {model['error']}" for model in report["models"] if "error" in model]
    return "\n".join(parts)


def _about(report: dict[str, Any], done: list[dict[str, Any]]) -> str:
    source, method = report["text"], report["text"]["method"]
    rows = [
        ("reference", _model(done[-1]["reference"])),
        *((model["label"], _model(model["model"])) for model in done),
        ("text", f"{source['name']}: {source['source']}, {source['bytes']} bytes, sha256 {source['sha256']}"),
        ("method", ", ".join(f"{name} {value}" for name, value in method.items() if name not in ("mean", "error", "name"))),
        ("counts", f"{source['tokens']} tokens, {source['windows']} windows, {source['targets']} targets"),
    ]
    width = max(len(name) for name, _ in rows) + 2
    return "\n".join(f"{name:<{width}}{value}" for name, value in rows)


def _model(model: dict[str, Any]) -> str:
    bits = f", {model['weight_bits']:.2f} bits per weight" if model.get("weight_bits") else ""
    return f"{model['name']}{bits}, {model['numerics']}, identity {model['identity'][:16]}"


def _notes(model: dict[str, Any]) -> list[str]:
    return [*model["notes"], *(f"{model['label']}: {note}" for note in about_activations(model.get("model") or {}))]


def summary(plan: Any) -> str:
    """One line before the work. plan: models.Plan."""
    counts = plan.counts()
    work = f"{counts['windows']} windows, {counts['targets']} targets" if "windows" in counts else f"{counts['tokens']} tokens"
    n = len(plan.cases)
    with_it = f"{n} comparison{'s' if n > 1 else ''} with {plan.options.reference}"
    return f"{with_it}: {work} of {plan.options.text.name} through two models"


def plan(plan: Any) -> str:
    """What --dry-run prints."""
    text = plan.options.text
    counts = ", ".join(f"{value} {name}" for name, value in plan.counts().items())
    fields = ", ".join(f"{name} {value}" for name, value in plan.options.method.fields().items())
    return "\n".join(
        [
            f"reference  {plan.options.reference}",
            *(f"compare    {case.label}: {case.model}" for case in plan.cases),
            f"text       {text.name}: {text.source}, {text.n_bytes} bytes, sha256 {text.sha256}",
            f"counts     {counts}",
            f"method     {fields}",
        ]
    )
