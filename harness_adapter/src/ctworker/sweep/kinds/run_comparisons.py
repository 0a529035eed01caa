"""Compares a model with its original in the process of the cells, as ctworker-compare does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...base.errors import CtworkerError
from ...client.token_client import TokenClient
from ...compare.models import Options, compare
from ...compare.models import prepare as plan_of
from ...perplexity import methods
from ...perplexity.measure import limited
from .run_methods import texts_of

if TYPE_CHECKING:
    from ..place import Place

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
    resolved = limited(methods.resolve(method, place.max_length), tokens)
    return {"tokens": _tokens_read(resolved, tokens.sizes, settings, _n_matrices(place))}


def run(settings: dict[str, Any], place: Place) -> dict[str, Any]:
    method = methods.choose(settings["method"], settings["given"])
    (text,) = texts_of(settings, method)
    assert place.url is not None and place.reference is not None
    with TokenClient(place.url) as client:
        name, floor = client.model["name"], place.reference["floor"]
        if floor and client.model["dtype"] == "float32":
            raise CtworkerError("the model computes in float32 already, so it has no noise floor: leave out noise_floor")
    matrices = None if floor else settings.get("matrices")
    notes = []
    if matrices is not None and _n_matrices(place) == 0:
        matrices, notes = None, ["the model has no quantised matrix to put into its original alone"]
    plan = plan_of(
        Options(
            place.reference["name"], [name], text, method, endpoint=place.url, tokenizer=place.tokenizer, worst=_WORST,
            layers=settings["layers"], matrices=matrices,
        )
    )  # fmt: skip
    report = compare(plan, lambda _i, _n, _label, progress: place.progress(progress))
    (found,) = report["models"]
    found.get("matrices", {}).pop("kept", None)  # a sweep asks for no further checkpoint: nothing was measured
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
            "reference_dtype": found["reference"]["dtype"],
            **report["text"],
        },
        "details": {
            name: found[name]
            for name in ("statistics", "worst", "layers", "matrices")
            if name in found
        } | {"notes": [*found["notes"], *notes]},
        "n_tokens": _tokens_read(
            methods.Method(about="", **report["text"]["method"]), plan.tokens.sizes, settings,
            len(found["matrices"]["alone"]) if "matrices" in found else 0,
        ),
    }  # fmt: skip


def _n_matrices(place: Place) -> int:
    """Quantised matrices of the model, as `inspect` counts them."""
    return sum(row["matrices"] for row in place.formats if not row["format"].startswith("dense"))


def _tokens_read(method: methods.Method, sizes: Sequence[int], settings: dict[str, Any], n_matrices: int) -> int:
    """Tokens that both models read; with matrices, also what exchanging them costs: half a scoring of a few windows each."""
    read = methods.total(method, sizes).inputs
    if settings.get("matrices") is None:
        return read
    few = replace(method, max_windows=min(method.max_windows or settings["matrices"], settings["matrices"]))
    return read + methods.total(few, sizes).inputs * (2 + n_matrices) // 2


def _worker(place: Place) -> dict[str, Any]:
    return {name: value for name, value in place.options.items() if name in ("dtype", "activations", "max_length")}


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
