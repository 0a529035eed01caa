"""The report of `ctworker-compare`, for a terminal and as Markdown: headlines, and all statistics (rows) of all models
(columns)."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from ..base import tables
from ..base.tables import counted, render
from ..client.report import about_activations
from ..perplexity import methods
from . import headline, layers, matrices

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
        yield label, _cell(scale, unit, key)
        if key == "kl":
            for percent in statistics[0]["kl_percentiles"]:
                yield f"  {_percent(percent)}", _cell(1.0, "", "kl_percentiles", percent)
        if key == "delta_p":
            for percent in _DELTA_P:
                yield f"  {_percent(percent)}", _cell(100.0, " %", "delta_p_percentiles", percent)
    for i, bucket in enumerate(statistics[0]["buckets"]):
        span = f"reference's top p in [{bucket['low']:g}, {bucket['high']:g}{']' if bucket['high'] == 1 else ')'}"
        yield f"{span}: KL", _cell(1.0, "", "buckets", i, "kl")
        yield "  same top-1", _cell(100.0, " %", "buckets", i, "same_top")
        yield "  share of targets", partial(_share, i)


def _cell(scale: float, unit: str, *path: str | int) -> Callable[[Statistics], str]:
    """How the estimate at a path of the statistics is written."""

    def write(statistics: Statistics) -> str:
        found: Any = statistics
        for key in path:
            found = found[key]
        return _number(statistics, found, scale, unit)

    return write


def _share(bucket: int, statistics: Statistics) -> str:
    return f"{100 * statistics['buckets'][bucket]['count'] / statistics['targets']:.2f} %"


def _percent(percent: str) -> str:
    return {"50": "median", "max": "maximum", "min": "minimum"}.get(percent, f"percentile {percent}")


def _number(statistics: Statistics, estimate: dict[str, float | None] | None, scale: float = 1.0, unit: str = "") -> str:
    return "-" if estimate is None else headline.shown(estimate, statistics, scale, unit)


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


def text(report: dict[str, Any], full: bool = False) -> str:
    """The report for a terminal. full: with all statistics and the worst positions."""
    done = _done(report)
    parts = []
    if done:
        parts += [_about(report, done), "", render(headline.rows(done)), "", *headline.caption(report, done)[1:]]
        if full:
            parts += ["", table([m["label"] for m in done], [m["statistics"] for m in done])]
        else:
            parts.append("--full has all statistics and the positions with the largest divergence.")
    for model in done if full else ():
        if model["worst"]:
            parts += ["", f"{model['label']}: the largest divergences", worst(model["worst"])]
    for model in done:
        if "layers" in model:
            title = f"{model['label']}: hidden states after each layer, against the reference's"
            parts += ["", title, layers.table(model["layers"], model["windows"])]
        if "matrices" in model:
            title = f"{model['label']}: each quantised matrix alone in the reference"
            parts += ["", title, matrices.table(model["matrices"])]
    return "\n".join([*parts, *_remarks(report)])


def markdown(report: dict[str, Any], full: bool = False) -> str:
    """The headline as a Markdown table with a caption that has all that its numbers depend on. full: also all statistics."""
    done = _done(report)
    if not done:
        return "\n".join(_remarks(report)).lstrip("\n")
    parts = [tables.markdown(headline.rows(done)), "", " ".join(headline.caption(report, done)), _source(report, done)]
    if full:
        rows = [[label, *(cell(m["statistics"]) for m in done)] for label, cell in _rows([m["statistics"] for m in done])]
        parts += ["", tables.markdown([["statistic", *(m["label"] for m in done)], *rows])]
    return "\n".join([*parts, *_remarks(report)])


def _done(report: dict[str, Any]) -> list[dict[str, Any]]:
    return [model for model in report["models"] if "statistics" in model]


def _source(report: dict[str, Any], done: list[dict[str, Any]]) -> str:
    """The sentence about what computed the numbers."""
    numerics = sorted({side["numerics"] for model in done for side in (model["model"], model["reference"])})
    return f"Computed with ctworker {report['version']}, numerics {', '.join(numerics)}."


def _remarks(report: dict[str, Any]) -> list[str]:
    notes = [*(report["text"] or {}).get("notes", []), *(note for model in report["models"] for note in _notes(model))]
    failed = [f"failed: {model['label']}: {model['error']}" for model in report["models"] if "error" in model]
    return [*([""] if notes else []), *(f"note: {note}" for note in dict.fromkeys(notes)), *failed]


def _about(report: dict[str, Any], done: list[dict[str, Any]]) -> str:
    source, method = report["text"], report["text"]["method"]
    rows = [
        ("reference", _model(done[-1]["reference"])),
        *((model["label"], _model(model["model"])) for model in done),
        ("text", f"{source['name']}: {source['source']}, {source['bytes']} bytes, sha256 {source['sha256']}"),
        ("method", methods.in_words(method)),
        ("counts", f"{headline.windows(source)}, {source['targets']:,} targets of {source['tokens']:,} tokens"),
    ]
    width = max(len(name) for name, _ in rows) + 2
    return "\n".join(f"{name:<{width}}{value}" for name, value in rows)


def _model(model: dict[str, Any]) -> str:
    bits = f", {tables.bits(model['weight_bits'])} bits per weight" if model.get("weight_bits") else ""
    return f"{model['name']}{bits}, {model['numerics']}, identity {model['identity'][:16]}"


def _notes(model: dict[str, Any]) -> list[str]:
    return [*model["notes"], *(f"{model['label']}: {note}" for note in about_activations(model.get("model") or {}))]


def summary(plan: Any) -> str:
    """One line before the work. plan: models.Plan."""
    counts = plan.counts()
    work = counted(counts["tokens"], "token")
    if "windows" in counts:
        work = f"{counted(counts['windows'], 'window')}, {counted(counts['targets'], 'target')}"
    with_it = f"{counted(len(plan.cases), 'comparison')} with {plan.options.reference}"
    return f"{with_it}: {work} of {plan.options.text.name} through two models"


def plan(plan: Any) -> str:
    """What --dry-run prints."""
    text = plan.options.text
    counts = ", ".join(counted(value, name.removesuffix("s")) for name, value in plan.counts().items())
    return "\n".join(
        [
            f"reference  {plan.options.reference}",
            *(f"compare    {case.label}: {case.model}" for case in plan.cases),
            f"text       {text.name}: {text.source}, {text.n_bytes} bytes, sha256 {text.sha256}",
            f"counts     {counts}",
            f"method     {methods.in_words(plan.options.method.fields())}",
        ]
    )
