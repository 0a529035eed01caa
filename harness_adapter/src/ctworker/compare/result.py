"""From a model's comparisons to what the report says about it: statistics, and the worst positions with their text."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..client.results import Comparison
from ..text.tokenizer import TextTokenizer
from . import divergence

_BEFORE, _AFTER = 24, 8  # tokens shown around a worst position


def describe(
    results: Sequence[Comparison], texts: Sequence[array[int]], rule: dict[str, Any], tokenizer: TextTokenizer, n_worst: int
) -> dict[str, Any]:
    """results: one for each text. rule: the job's keys that cut the texts."""
    document, position, window = places(results, texts, rule)
    shared = not rule["new"] and rule["stride"] < rule["window"] - rule["first"]
    cluster = window
    over = "windows"
    if shared:  # windows that share targets are not independent
        cluster = document * (max(map(len, texts)) + 1) + position // rule["window"]
        over = f"blocks of {rule['window']} tokens"
    values = {
        name: np.concatenate([np.frombuffer(result.columns[name], kind) for result in results])
        for name, kind in divergence.COLUMNS.items()
    }
    columns = divergence.Columns(values, cluster)
    statistics = divergence.summarize(columns).to_json() | {"errors_over": over}
    worst = [
        _place(columns, t, int(document[t]), int(position[t]), texts[document[t]], tokenizer)
        for t in divergence.worst(columns, n_worst)
    ]
    return {"statistics": statistics, "worst": worst, "windows": int(window[-1]) + 1}


def places(
    results: Sequence[Comparison], texts: Sequence[array[int]], rule: dict[str, Any]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each target: its document, its position there, and its window, counted over all documents. A window's targets are
    the last ones of its tokens, however it was cut."""
    document, position, window, n_windows = [], [], [], 0
    for i, (result, text) in enumerate(zip(results, texts, strict=True)):
        for k, count in enumerate(result.window_counts):
            end = min(k * rule["stride"] + rule["window"], len(text))
            position.append(np.arange(end - count, end))
            document.append(np.full(count, i))
            window.append(np.full(count, n_windows))
            n_windows += 1
    if not position:
        raise ValueError("no targets to compare")
    return np.concatenate(document), np.concatenate(position), np.concatenate(window)


def _place(
    columns: divergence.Columns, t: int, document: int, position: int, tokens: array[int], tokenizer: TextTokenizer
) -> dict[str, Any]:
    before, target = _split(tokenizer, tokens[max(0, position - _BEFORE) : position], [tokens[position]])
    _, after = _split(tokenizer, tokens[position : position + 1], tokens[position + 1 : position + 1 + _AFTER])
    context = tokens[max(0, position - _BEFORE) : position]
    value = {name: column[t].item() for name, column in columns.values.items()}
    return {
        "document": document,
        "token": position,
        **{name: value[name] for name in ("kl", "kl_reverse", "tv")},
        "before": before,
        "target": target,
        "after": after,
        "p": math.exp(value["logprob"]),
        "ref_p": math.exp(value["ref_logprob"]),
        "ref_top": _split(tokenizer, context, [value["ref_greedy"]])[1],
        "ref_top_p": math.exp(value["ref_top"]),
        "top": _split(tokenizer, context, [value["greedy"]])[1],
    }


def _split(tokenizer: TextTokenizer, before: Sequence[int], after: Sequence[int]) -> tuple[str, str]:
    """The texts of tokens and of the tokens after them: a token's text can depend on what stands before it."""
    head = tokenizer.decode(list(before))
    whole = tokenizer.decode([*before, *after])
    return head, whole[len(head) :] if whole.startswith(head) else tokenizer.decode(list(after))
