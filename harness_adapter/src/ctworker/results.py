"""The results of one item, as a client sees them, and how they are taken from a reply to `fetch`."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

from .wire import DIVERGENCE_COLUMNS, FLOAT32, FLOAT64, INT32, LAYER_COLUMNS, decode_columns

#: Column of `fetch` -> field of a Score.
_FIELDS = {"logprob": "logprobs", "greedy": "greedy", "window_sum": "window_sums", "window_count": "window_counts"}


@dataclass(frozen=True)
class Score:
    """sum: of the log-probabilities (natural log, float64) of `count` targets; truncated: tokens removed from the left.

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
