"""Divergence columns of two models that NumPy makes up, and every statistic of them computed the slow way: in float64, one
target at a time, from the full distributions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def columns_of(ref: np.ndarray, model: np.ndarray, targets: np.ndarray) -> dict[str, np.ndarray]:
    """The columns that a worker returns. ref, model: [n, vocabulary] log-probabilities; targets: [n] token ids."""
    n = np.arange(len(targets))
    p, q = np.exp(ref), np.exp(model)
    top5 = [np.argsort(-side, axis=1, kind="stable")[:, :5] for side in (ref, model)]
    return {
        "logprob": model[n, targets].astype(np.float32),
        "ref_logprob": ref[n, targets].astype(np.float32),
        "kl": (p * (ref - model)).sum(axis=1).astype(np.float32),
        "kl_reverse": (q * (model - ref)).sum(axis=1).astype(np.float32),
        "tv": (0.5 * np.abs(p - q).sum(axis=1)).astype(np.float32),
        "greedy": model.argmax(axis=1).astype(np.int32),
        "ref_greedy": ref.argmax(axis=1).astype(np.int32),
        "ref_top": ref.max(axis=1).astype(np.float32),
        "overlap5": np.array([len(set(a) & set(b)) for a, b in zip(*top5)], np.uint8),
    }


def two_models(n: int, vocab: int, noise: float, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(ref, model, targets): log-probabilities of a confident reference and of a noisy copy, and targets drawn from it."""
    rng = np.random.default_rng(seed)
    sharp = rng.uniform(0.3, 5.0, (n, 1))  # so that every bucket of confidence has targets
    logits = sharp * rng.standard_normal((n, vocab))
    ref = log_softmax(logits)
    model = log_softmax(logits + noise * sharp * rng.standard_normal((n, vocab)))
    targets = np.array([rng.choice(vocab, p=row) for row in np.exp(ref)])
    return ref, model, targets


def slow_statistics(ref: np.ndarray, model: np.ndarray, targets: np.ndarray) -> dict[str, Any]:
    """Each statistic by its definition, over plain Python numbers. Percentiles: NumPy's (linear)."""
    rows = []
    for r, m, target in zip(ref.tolist(), model.tolist(), targets.tolist()):
        order = sorted(range(len(r)), key=lambda i: (-r[i], i))
        other = sorted(range(len(m)), key=lambda i: (-m[i], i))
        rows.append(
            {
                "kl": math.fsum(math.exp(a) * (a - b) for a, b in zip(r, m)),
                "kl_reverse": math.fsum(math.exp(b) * (b - a) for a, b in zip(r, m)),
                "total_variation": 0.5 * math.fsum(abs(math.exp(a) - math.exp(b)) for a, b in zip(r, m)),
                "same_top": float(order[0] == other[0]),
                "top5_overlap": len(set(order[:5]) & set(other[:5])) / 5,
                "delta_p": math.exp(m[target]) - math.exp(r[target]),
                "nll": -m[target],
                "ref_nll": -r[target],
                "confidence": math.exp(r[order[0]]),
            }
        )
    n = len(rows)

    def mean(name: str) -> float:
        return math.fsum(row[name] for row in rows) / n

    out: dict[str, Any] = {
        name: mean(name)
        for name in ("kl", "kl_reverse", "total_variation", "same_top", "top5_overlap", "delta_p")
    }
    out["delta_p_rms"] = math.sqrt(math.fsum(row["delta_p"] ** 2 for row in rows) / n)
    x, y = mean("nll"), mean("ref_nll")
    out["ln_ppl_ratio"], out["ppl"], out["ref_ppl"] = x - y, math.exp(x), math.exp(y)
    out["correlation"] = math.fsum((row["nll"] - x) * (row["ref_nll"] - y) for row in rows) / math.sqrt(
        math.fsum((row["nll"] - x) ** 2 for row in rows) * math.fsum((row["ref_nll"] - y) ** 2 for row in rows)
    )
    out["rows"] = rows
    return out
