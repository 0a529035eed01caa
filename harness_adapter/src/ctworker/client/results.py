"""The results of one item, as a client sees them, and how they are taken from a reply to `fetch`."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any, TypeVar

from .wire import DIVERGENCE_COLUMNS, FLOAT32, FLOAT64, INT32, LAYER_COLUMNS, decode_columns

#: Column of `fetch` -> field of a Score.
_FIELDS = {"logprob": "logprobs", "greedy": "greedy", "window_sum": "window_sums", "window_count": "window_counts"}


@dataclass(frozen=True)
class Score:
    """sum: of the log-probabilities (natural log, float64) of `count` targets; is_greedy: whether every target is the most
    probable token at its position; truncated: tokens removed from the left.

    logprobs, greedy: for each target its log-probability and the most probable token at its position; empty if the job did
    not request these columns. numerics, identity: what the numbers depend on in addition to the tokens.
    window_sums, window_counts: `sum` and `count` of each window of a text that was cut by a rule, else empty.
    """

    sum: float
    is_greedy: bool
    count: int
    truncated: int
    logprobs: array[float] = field(default_factory=lambda: array(FLOAT32))
    greedy: array[int] = field(default_factory=lambda: array(INT32))
    numerics: str = ""
    identity: str = ""
    window_sums: array[float] = field(default_factory=lambda: array(FLOAT64))
    window_counts: array[int] = field(default_factory=lambda: array(INT32))


@dataclass(frozen=True)
class TextScore(Score):
    """The score of a text. text: as it was given; tokens: the ids of the scored tokens, one for each value of `logprobs`."""

    text: str | tuple[str, str] = ""
    tokens: array[int] = field(default_factory=lambda: array(INT32))


_ScoreT = TypeVar("_ScoreT", bound=Score)


class Scores(list[_ScoreT]):
    """A list of scores, in the order of what was scored. `pandas.DataFrame(scores.to_rows())` is a table of it."""

    def to_rows(self) -> list[dict[str, Any]]:
        """A row for each score: `sequence` (its number), `sum` and `mean` of its log-probabilities (nats; mean None without
        tokens), `count`, `is_greedy`, `truncated`, `numerics`, `identity`, and a text's `text`."""
        return [
            {
                "sequence": i, "sum": score.sum, "mean": score.sum / score.count if score.count else None, "count": score.count,
                "is_greedy": score.is_greedy, "truncated": score.truncated, "numerics": score.numerics,
                "identity": score.identity, **({"text": score.text} if isinstance(score, TextScore) else {}),
            }
            for i, score in enumerate(self)
        ]  # fmt: skip

    def to_token_rows(self) -> list[dict[str, Any]]:
        """A row for each scored token: `sequence`, `position` among the scored tokens, `logprob` (nats), `greedy` (the most
        probable id), and a text's `token` (the id)."""
        rows = []
        for i, score in enumerate(self):
            tokens = score.tokens if isinstance(score, TextScore) else None
            for k, (logprob, greedy) in enumerate(zip(score.logprobs, score.greedy, strict=True)):
                row = {"sequence": i, "position": k, "logprob": logprob, "greedy": greedy}
                rows.append(row if tokens is None else row | {"token": tokens[k]})
        return rows


@dataclass(frozen=True)
class Estimate:
    """value: a number, se: its standard error. None: not defined, or too few clusters for an error."""

    value: float | None
    se: float | None


@dataclass(frozen=True)
class Perplexity:
    """One perplexity by a method (docs/METHODS.md), with the fields of `ctworker-ppl --json`.

    perplexity, perplexity_se: the number and its standard error (None: fewer than two clusters), nll, nll_se: its natural
    logarithm and that one's error, over `se_clusters` of `se_over`. nll_sum: over all `scored_tokens`; token_perplexity: from
    that sum. byte_perplexity, bits_per_byte, word_perplexity: None if nothing was counted. text, source, sha256, bytes,
    documents, tokens: the text, where it is from, and its size; windows: how many were scored. vocabulary: probabilities are
    over so many ids. method: its fields as they were used. notes: what a reader should know. numerics, identity: what the
    number depends on besides text and method.
    """

    perplexity: float
    perplexity_se: float | None
    nll: float
    nll_se: float | None
    se_over: str
    se_clusters: int
    nll_sum: float
    token_perplexity: float
    byte_perplexity: float | None
    bits_per_byte: float | None
    word_perplexity: float | None
    text: str
    source: str
    sha256: str
    bytes: int
    documents: int
    tokens: int
    windows: int
    scored_tokens: int
    vocabulary: int
    method: dict[str, Any]
    notes: list[str]
    numerics: str
    identity: str

    def to_row(self) -> dict[str, Any]:
        """The numbers and texts as a row of a table; the method as its name."""
        row = {name: value for name, value in vars(self).items() if name not in ("method", "notes")}
        return row | {"method": self.method["name"]}


@dataclass(frozen=True)
class Divergence:
    """How a model's predictions for a text differ from a reference's, with the numbers of `ctworker-compare --json`.

    kl, kl_reverse: mean KL(reference || model) and KL(model || reference) of the predicted distributions (nats); total_variation: mean
    total variation (0 .. 1); same_top: share of targets with the same most probable token; ln_ppl_ratio: natural logarithm of
    the ratio of the two perplexities. statistics: all statistics. worst: the positions with the largest KL. text: what was
    compared, and how the text was cut. model, reference: the worker's descriptions. notes: what
    a reader should know. layers, matrices: if they were asked for.
    """

    kl: Estimate
    kl_reverse: Estimate
    total_variation: Estimate
    same_top: Estimate
    ln_ppl_ratio: Estimate
    statistics: dict[str, Any]
    worst: list[dict[str, Any]]
    text: dict[str, Any]
    model: dict[str, Any]
    reference: dict[str, Any]
    notes: list[str]
    layers: list[dict[str, Any]] | None = None
    matrices: dict[str, Any] | None = None

    def to_row(self) -> dict[str, Any]:
        """The estimates (`kl`, `kl_se`, ...), the models' names and the method's name as a row of a table."""
        row: dict[str, Any] = {"model": self.model["name"], "reference": self.reference["name"]}
        for name in ("kl", "kl_reverse", "total_variation", "same_top", "ln_ppl_ratio"):
            estimate: Estimate = getattr(self, name)
            row |= {name: estimate.value, f"{name}_se": estimate.se}
        return row | {"text": self.text["name"], "method": self.text["method"]["name"]}


@dataclass(frozen=True)
class Layers:
    """How two models' hidden states differ after each of `n` layers, the embedding first.

    tokens: tokens that the models read in each window. columns: `layer_error`, `layer_cosine`, ... (docs/PROTOCOL.md,
    "fetch"), `n` values for each window, window after window.
    """

    n: int
    tokens: array[int]
    columns: dict[str, array[Any]]


@dataclass(frozen=True)
class Matrices:
    """What each quantised matrix does alone in the reference. names: of the matrices. kl: for each window, and in it for
    each matrix, the sum of KL(reference || reference with that matrix) over the window's targets."""

    names: tuple[str, ...]
    kl: array[float]


@dataclass(frozen=True)
class Comparison:
    """How a model's predictions for a text differ from a reference's, at each of `count` targets.

    columns: `kl`, `kl_reverse`, `tv`, `logprob`, ... (docs/PROTOCOL.md, "fetch"), `count` values each, window after window.
    window_counts: targets of each window. numerics, identity: of the model; ref_numerics, ref_identity: of the reference.
    layers, matrices: if they were asked for.
    """

    count: int
    columns: dict[str, array[Any]]
    window_counts: array[int]
    numerics: str = ""
    identity: str = ""
    ref_numerics: str = ""
    ref_identity: str = ""
    layers: Layers | None = None
    matrices: Matrices | None = None


def split(kind: str, reply: dict[str, Any]) -> Iterator[tuple[int, Score | Comparison]]:
    """(number of the item in its job, result) for each item of a reply to `fetch`. Raises ProtocolError."""
    n = reply["n"]
    compared, n_layers = kind == "divergence", reply.get("layers", 0)
    needed = DIVERGENCE_COLUMNS if compared else ("sum", "is_greedy")
    if n_layers:
        needed = (*needed, "window_tokens", *LAYER_COLUMNS)
    if names := reply.get("matrices", ()):
        needed = (*needed, "matrix_kl")
    columns = decode_columns(reply["result"], n, needed, n_layers, len(names))
    targets = pairwise(accumulate(columns["count"], initial=0))
    windows = pairwise(accumulate(columns.get("windows", bytes(n)), initial=0))
    take = _comparison if compared else _score
    for k, (target, window) in enumerate(zip(targets, windows, strict=True)):
        yield columns["item"][k], take(columns, k, slice(*target), slice(*window), reply)


def _score(
    columns: dict[str, array[Any]], k: int, targets: slice, windows: slice, reply: dict[str, Any]
) -> Score:
    spans = {"logprob": targets, "greedy": targets, "window_sum": windows, "window_count": windows}
    parts = {_FIELDS[name]: columns[name][span] for name, span in spans.items() if name in columns}
    return Score(
        sum=columns["sum"][k], is_greedy=bool(columns["is_greedy"][k]), count=columns["count"][k],
        truncated=columns["truncated"][k] if "truncated" in columns else 0,
        numerics=reply["numerics"], identity=reply["identity"], **parts,
    )  # fmt: skip


def _comparison(
    columns: dict[str, array[Any]], k: int, targets: slice, windows: slice, reply: dict[str, Any]
) -> Comparison:
    values = {name: columns[name][targets] for name in DIVERGENCE_COLUMNS if name not in ("windows", "window_count")}
    source = {name: reply.get(name, "") for name in ("numerics", "identity", "ref_numerics", "ref_identity")}
    layers = None
    if n := reply.get("layers", 0):
        span = slice(windows.start * n, windows.stop * n)
        layers = Layers(n, columns["window_tokens"][windows], {name: columns[name][span] for name in LAYER_COLUMNS})
    matrices = None
    if names := reply.get("matrices", ()):
        span = slice(windows.start * len(names), windows.stop * len(names))
        matrices = Matrices(tuple(names), columns["matrix_kl"][span])
    counts = columns["window_count"][windows]
    return Comparison(columns["count"][k], values, counts, layers=layers, matrices=matrices, **source)


def nothing(numerics: str, identity: str) -> Score:
    """The score of no targets."""
    return Score(sum=0.0, is_greedy=True, count=0, truncated=0, numerics=numerics, identity=identity)
