"""Compares a model with its original in the process of the cells, as ctworker-compare does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ...api import Client
from ...compare.models import Options, compare
from ...compare.models import prepare as plan_of
from ...perplexity import methods
from ...perplexity.measure import limited
from .run_methods import texts_of

if TYPE_CHECKING:
    from ..cell_process import Place

#: Statistic -> whether more is better; the first stands for the cell.
_STATISTICS = {
    "kl": False, "kl_reverse": False, "total_variation": False, "same_top": True, "top5_overlap": True, "delta_p": None,
    "delta_p_rms": False, "correlation": True, "ln_ppl_ratio": False, "ppl": False, "ref_ppl": None,
}  # fmt: skip
_PERCENTILES = {"kl_percentiles": False, "delta_p_percentiles": None}
_WORST = 10


def prepare(settings: dict[str, Any], place: Place) -> dict[str, Any]:
    """Checks the text, and that both tokenizers give the same tokens. Raises CtworkerError."""
    method = methods.choose(settings["method"], settings["given"])
    (text,) = texts_of(settings, method)
    if place.folder is None or place.reference is None or place.reference["folder"] is None:
        return {"tokens": text.n_bytes // 4}  # no model is on this machine yet
    options = Options(
        place.reference["folder"], [place.folder], text, method, worker=_worker(place), tokenizer=place.tokenizer
    )  # fmt: skip
    tokens = plan_of(options).tokens
    if method.needs_model and "max_length" not in place.options:
        return {"tokens": sum(tokens.sizes)}
    resolved = methods.resolve(method, place.options.get("max_length") or 1 << 31)
    return {"tokens": methods.total(limited(resolved, tokens), tokens.sizes).inputs}


def run(settings: dict[str, Any], place: Place) -> dict[str, Any]:
    method = methods.choose(settings["method"], settings["given"])
    (text,) = texts_of(settings, method)
    assert place.url is not None and place.reference is not None
    with Client(place.url) as client:
        name = client.model["name"]
    plan = plan_of(
        Options(
            place.reference["name"], [name], text, method, endpoint=place.url, tokenizer=place.tokenizer, worst=_WORST,
            layers=settings["layers"],
        )
    )  # fmt: skip
    report = compare(plan, lambda _i, _n, _label, progress: place.progress(progress))
    (found,) = report["models"]
    source = found["model"] | {
        "tokenizer": plan.tokenizer.fingerprint,
        "reference": found["reference"],
    }
    return {
        "metrics": list(_metrics(text.name, found["statistics"])),
        "source": source,
        "method": {
            "kind": "comparison",
            "about": method.about,
            "reference": place.reference["label"],
            **report["text"],
        },
        "details": {
            name: found[name]
            for name in ("statistics", "worst", "layers", "notes")
            if name in found
        },
        "n_tokens": methods.total(methods.Method(about="", **report["text"]["method"]), plan.tokens.sizes).inputs,
    }


def _worker(place: Place) -> dict[str, Any]:
    return {name: value for name, value in place.options.items() if name in ("dtype", "max_length")}


def _metrics(task: str, statistics: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for name, higher in _STATISTICS.items():
        yield from _metric(task, name, statistics[name], higher)
    for name, higher in _PERCENTILES.items():
        for percentile, estimate in statistics[name].items():
            yield from _metric(
                task, f"{name.removesuffix('_percentiles')}_{percentile}", estimate, higher
            )


def _metric(
    task: str, name: str, estimate: dict[str, Any], higher: bool | None
) -> Iterator[dict[str, Any]]:
    """Nothing for a statistic that is not defined, such as the correlation with a constant."""
    if estimate["value"] is None:
        return
    found = {
        "task": task, "metric": name, "filter": "none", "value": estimate["value"], "stderr": estimate["se"],
        "higher_is_better": higher,
    }  # fmt: skip
    yield found | {"headline": True} if name == next(iter(_STATISTICS)) else found
