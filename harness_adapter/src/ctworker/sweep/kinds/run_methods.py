"""Computes perplexities in the process of the cells, as ctworker-ppl does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...base.progress import Progress
from ...client import hub
from ...client.report import about_length, described
from ...client.token_client import TokenClient
from ...options.settings import Settings
from ...perplexity import methods, texts
from ...perplexity.measure import (
    Result,
    Tokens,
    check,
    limited,
    macro,
    measure,
    tokenize,
    used_fields,
)
from ...text.tokenizer import TextTokenizer
from .shared import environment

if TYPE_CHECKING:
    from ..place import Place

_MOST_PIECES = 5000


def prepare(settings: dict[str, Any], place: Place) -> dict[str, Any]:
    """Loads and tokenises the texts. Raises ArgumentError for a text that is missing or too short."""
    method = methods.choose(settings["method"], settings["given"])
    loaded = texts_of(settings, method)
    if place.folder is None:  # no model is on this machine yet
        return {"tokens": sum(text.n_bytes for text in loaded) // 4}
    tokens = _tokens(settings, place, method)
    resolved = methods.resolve(method, place.max_length)
    counts = [methods.total(limited(resolved, text), check(text, resolved).sizes) for text in tokens]
    return {"tokens": sum(count.inputs for count in counts)}


def run(settings: dict[str, Any], place: Place) -> dict[str, Any]:
    method = methods.choose(settings["method"], settings["given"])
    tokens = _tokens(settings, place, method)
    assert place.url is not None
    with TokenClient(place.url) as client:
        method = methods.resolve(method, client.max_length)
        results = []
        for i, text in enumerate(tokens):
            report = _part(place.progress, i, len(tokens))
            results.append(measure(client, check(text, method), method, report))
        source = described(client.model) | results[0].source
    reports = [result.fields() for result in results]
    return {
        "metrics": list(
            _metrics(results, reports, "word_perplexity" if method.mean == "word" else "perplexity")
        ),
        "source": source | {"tokenizer": tokenizer_of(place).fingerprint},
        "method": _method(method, results, reports, about_length(source, int(method.window))),
        "details": {
            "texts": [
                {k: v for k, v in report.items() if k != "method"} | _pieces(result)
                for result, report in zip(results, reports)
            ]
        },
        "n_tokens": sum(methods.total(r.method, r.tokens.sizes).inputs for r in results),
    }


def texts_of(settings: dict[str, Any], method: methods.Method) -> list[texts.Text]:
    """The texts of a work, joined as its method says. Raises CtworkerError."""
    with environment(settings["env"]):
        return texts.load_all(
            settings["dataset"], settings["text"], method.join, join_given="join" in settings["given"],
            column=settings.get("column"),
        )  # fmt: skip


def tokenizer_of(place: Place) -> TextTokenizer:
    """The tokenizer of the place's model, kept for the next cell."""
    source = place.tokenizer or place.folder
    assert source is not None
    key = ("tokenizer", source)
    if key not in place.kept:
        folder = (
            Path(source)
            if Path(source).is_dir()
            else hub.resolve(source, Settings(), weights=False).folder
        )
        place.kept[key] = TextTokenizer(folder, name=source)
    tokenizer: TextTokenizer = place.kept[key]
    return tokenizer


def _tokens(settings: dict[str, Any], place: Place, method: methods.Method) -> list[Tokens]:
    """The tokenised texts, kept for models with an equal tokenizer."""
    tokenizer = tokenizer_of(place)
    key = ("tokens", tokenizer.fingerprint, repr(settings))
    if key not in place.kept:
        place.kept[key] = [tokenize(text, method, tokenizer) for text in texts_of(settings, method)]
    tokens: list[Tokens] = place.kept[key]
    return tokens


def _part(report: Callable[[Progress], None], i: int, n: int) -> Callable[[Progress], None]:
    """The progress of text i of n as a progress of all."""

    def tell(progress: Progress) -> None:
        report(Progress((i + progress.fraction) / n, i, progress.tokens_per_s, None))

    return tell


def _metrics(results: list[Result], reports: list[dict[str, Any]], headline: str) -> Any:
    """Perplexity, and its forms by word and byte, of each text; the mean of several texts stands for the cell."""
    for report in reports:
        for name in dict.fromkeys(
            (headline, "word_perplexity", "byte_perplexity", "bits_per_byte", "nll")
        ):
            value = report["perplexity"] if name == headline else report[name]
            if value is not None:
                yield _metric(
                    report["text"],
                    name,
                    value,
                    _error(report, name, headline),
                    len(reports) == 1 and name == headline,
                )
    if len(results) > 1:
        yield _metric("mean of the texts", headline, *macro(results), True)


def _error(report: dict[str, Any], name: str, headline: str) -> float | None:
    return {headline: report["perplexity_se"], "nll": report["nll_se"]}.get(name)


def _metric(
    task: str, name: str, value: float, stderr: float | None, headline: bool
) -> dict[str, Any]:
    found = {
        "task": task,
        "metric": name,
        "filter": "none",
        "value": value,
        "stderr": stderr,
        "higher_is_better": False,
    }
    return found | {"headline": True} if headline else found


def _pieces(result: Result) -> dict[str, Any]:
    """What a paired error needs of a text, unless it has too many pieces to keep."""
    sums, weights = result.pieces
    return {"pieces": {"nll": sums, "weight": weights}} if len(sums) <= _MOST_PIECES else {}


def _method(
    method: methods.Method, results: list[Result], reports: list[dict[str, Any]], notes: list[str]
) -> dict[str, Any]:
    """Everything that a stranger needs to repeat the number."""
    names = (
        "text", "source", "sha256", "bytes", "documents", "tokens", "windows", "scored_tokens", "vocabulary", "se_over",
    )  # fmt: skip
    texts = [
        {name: report[name] for name in names} | {
            "join": result.tokens.text.join, "max_windows": result.method.max_windows,
            "windows_of_text": methods.total(replace(result.method, max_windows=0), result.tokens.sizes).windows,
        }
        for result, report in zip(results, reports)
    ]
    notes = [*notes, *(note for report in reports for note in report["notes"])]
    return {
        "kind": "perplexity",
        "about": method.about,
        **used_fields(method, results),
        "texts": texts,
        "notes": notes,
    }
