"""Computes perplexities in the process of the cells, as ctworker-ppl does."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ... import hub
from ...api import Client
from ...arguments import Settings
from ...perplexity import methods, texts
from ...perplexity.measure import Result, Tokens, check, measure, tokenize
from ...scoring import Progress
from ...tokenizer import TextTokenizer
from .shared import environment

if TYPE_CHECKING:
    from ..cell_process import Place

_SOURCE = (
    "name", "architecture", "identity", "numerics", "backend", "variant", "device", "dtype", "activations", "max_length",
    "weight_bits", "vocab",
)  # fmt: skip


def prepare(settings: dict[str, Any], place: Place) -> dict[str, Any]:
    """Loads and tokenises the texts. Raises ArgumentError for a text that is missing or too short."""
    method = methods.choose(settings["method"], settings["given"])
    loaded = texts_of(settings, method)
    if place.folder is None:  # no model is on this machine yet
        return {"tokens": sum(text.n_bytes for text in loaded) // 4}
    tokens = _tokens(settings, place, method)
    if method.window == "model" and "max_length" not in place.options:
        return {
            "tokens": sum(len(document.tokens) for text in tokens for document in text.documents)
        }
    resolved = methods.resolve(method, place.options.get("max_length") or 1 << 31)
    lengths = [
        len(document.tokens) for text in tokens for document in check(text, resolved).documents
    ]
    return {"tokens": sum(methods.count(resolved, n)[2] for n in lengths)}


def run(settings: dict[str, Any], place: Place) -> dict[str, Any]:
    method = methods.choose(settings["method"], settings["given"])
    tokens = _tokens(settings, place, method)
    assert place.url is not None
    with Client(place.url) as client:
        method = methods.resolve(method, client.max_length)
        results = []
        for i, text in enumerate(tokens):
            report = _part(place.progress, i, len(tokens))
            results.append(measure(client, check(text, method), method, report))
        source = {name: client.model.get(name) for name in _SOURCE}
    reports = [result.fields() for result in results]
    return {
        "metrics": list(
            _metrics(reports, "word_perplexity" if method.mean == "word" else "perplexity")
        ),
        "source": source | {"tokenizer": tokenizer_of(place).fingerprint},
        "method": _described(method, results, reports),
        "details": {
            "texts": [{k: v for k, v in report.items() if k != "method"} for report in reports]
        },
        "n_tokens": sum(
            methods.count(method, len(d.tokens))[2] for text in tokens for d in text.documents
        ),
    }


def texts_of(settings: dict[str, Any], method: methods.Method) -> list[texts.Text]:
    """The texts of a work, joined as its method says. Raises CtworkerError."""
    join, column = method.join, settings.get("column")
    with environment(settings["env"]):
        found = [
            texts.load(name, join, join_given="join" in settings["given"], column=column)
            for name in settings["dataset"]
        ]
    return found + [texts.load_file(path, join, column) for path in settings["text"]]


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
    return place.kept[key]


def _tokens(settings: dict[str, Any], place: Place, method: methods.Method) -> list[Tokens]:
    """The tokenised texts, kept for models with an equal tokenizer."""
    tokenizer = tokenizer_of(place)
    key = ("tokens", tokenizer.fingerprint, repr(settings))
    if key not in place.kept:
        place.kept[key] = [tokenize(text, method, tokenizer) for text in texts_of(settings, method)]
    return place.kept[key]


def _part(report: Callable[[Progress], None], i: int, n: int) -> Callable[[Progress], None]:
    """The progress of text i of n as a progress of all."""

    def tell(progress: Progress) -> None:
        report(Progress((i + progress.fraction) / n, i, progress.tokens_per_s, None))

    return tell


def _metrics(reports: list[dict[str, Any]], headline: str) -> Any:
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
    if len(reports) > 1:
        errors = [report["perplexity_se"] for report in reports]
        known = all(error is not None for error in errors)
        se = (
            math.sqrt(math.fsum(error * error for error in errors)) / len(errors) if known else None
        )
        mean = math.fsum(report["perplexity"] for report in reports) / len(reports)
        yield _metric("mean of the texts", headline, mean, se, True)


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


def _described(
    method: methods.Method, results: list[Result], reports: list[dict[str, Any]]
) -> dict[str, Any]:
    """Everything that a stranger needs to repeat the number."""
    names = (
        "text",
        "source",
        "join",
        "sha256",
        "bytes",
        "documents",
        "tokens",
        "windows",
        "scored_tokens",
        "se_over",
    )
    described = []
    for result, report in zip(results, reports):
        described.append(
            {name: report[name] for name in names if name in report}
            | {"join": result.tokens.text.join}
        )
    bos = {"bos_token": results[0].tokens.bos}
    notes = [note for report in reports for note in report["notes"]]
    return {
        "kind": "perplexity",
        "about": method.about,
        **method.fields(),
        **bos,
        "texts": described,
        "notes": notes,
    }
