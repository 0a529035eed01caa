"""Documents of sweeps that never ran, for tests of tables, charts and pages: `python synthetic_sweep.py N FOLDER` writes the
reports of N models. The numbers are invented, but have the shapes of real ones: crowded at 4 bits, names of up to 50 letters."""

from __future__ import annotations

import math
import random
import sys
from pathlib import Path
from typing import Any

from ctworker.sweep import document, results

NAMES = (
    "Llama-3.1-8B-Instruct", "Llama-3.1-8B-Instruct-GPTQ-W4A16-g128-actorder", "Llama-3.1-8B-Instruct-AWQ-W4A16-g128-asym",
    "Llama-3.1-8B-Instruct-quantized.w8a16", "Llama-3.1-8B-Instruct-NVFP4A16", "Llama-3.1-8B-Instruct-FP8-dynamic",
    "Llama-3.1-8B-Instruct-GPTQ-W3A16-g128", "Llama-3.1-8B-Instruct-AutoRound-W4A16-sym-iters1000", "Llama-3.1-8B-Instruct-MXFP4A16",
    "Llama-3.1-8B-Instruct-RTN-W4A16-g32",
    "Llama-3.1-8B-Instruct-QuIP-R1R2R4-W4A16-hadamard-128-best", "Llama-3.1-8B-Instruct-SpinQuant-W4A16",
)  # fmt: skip
#: Bits per weight, KL: of the models above; later ones are drawn near them.
_PLACES = (
    (16.0, 0.0), (4.156, 0.0312), (4.25, 0.0298), (8.127, 0.00052), (4.501, 0.0351), (8.0, 0.0021), (3.127, 0.171), (4.156, 0.0271),
    (4.25, 0.0522), (4.5, 0.0405), (4.156, 0.0243), (4.156, 0.0255),
)  # fmt: skip
_METHODS = ("GPTQ", "AWQ", "RTN", "NVFP4", "FP8", "AutoRound")
FLOOR, N_LAYERS, WINDOWS = 0.000151, 32, 148
KINDS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
_RULE = {
    "name": "gptq-2048", "join": "rows", "bos": "stream", "cut": "rule", "window": 2048, "stride": 2048, "first": 1, "new": False,
    "tail": False, "spare": 0, "max_windows": 0, "vocabulary": "model", "mean": "token", "error": "windows", "bos_token": None,
}  # fmt: skip


def sweep(n: int, seed: int = 0) -> dict[str, Any]:
    """The document of n models: the first is the original; work: perplexity of 4 of 148 windows, divergence of all, two tasks."""
    rng = random.Random(seed)
    models = [_model(i, *_place(i, rng)) for i in range(n)]
    cells = [cell for i, model in enumerate(models) for cell in _cells(i, model, rng)]
    for model in models:
        del model["_kl"]
    return {
        "schema": results.SCHEMA, "version": results.VERSION, "models": models, "cells": cells, "kept": [],
        "sweep": {"name": "Llama-3.1-8B-Instruct, synthetic numbers", "file": "sweep.yaml", "devices": ["auto"]},
        "paired": [_paired(cell) for cell in cells if cell["kind"] == "task" and cell["model"] != NAMES[0]],
    }  # fmt: skip


def _place(i: int, rng: random.Random) -> tuple[str, float, float]:
    if i < len(NAMES):
        return NAMES[i][:50], *_PLACES[i]
    bits = rng.choice((4.156, 4.25, 4.5, 3.127, 6.13, 5.0))
    kl = 0.9 * math.exp(-0.9 * bits) * rng.uniform(0.8, 1.6)
    return f"Llama-3.1-8B-Instruct-W{int(bits)}A16-experiment-{i:02}-seed{rng.randrange(100)}", bits, kl


def _model(i: int, label: str, bits: float, kl: float) -> dict[str, Any]:
    return {
        "label": label, "path": f"/models/{i}", "group": "models", "method": None if i == 0 else _METHODS[i % len(_METHODS)],
        "bits": None, "original": i == 0, "revision": None, "commit": None, "tokenizer": None, "error": None,
        "params": 8_030_261_248, "bytes": int(8.03e9 * (bits + 0.6) / 8), "bits_per_weight": bits, "bits_per_parameter": bits + 0.6,
        "formats": [{"format": "dense", "matrices": 1, "params": 8_030_261_248, "bytes": 1, "bits": bits}], "_kl": kl,
    }  # fmt: skip


def _cells(i: int, model: dict[str, Any], rng: random.Random) -> list[dict[str, Any]]:
    kl, base = model["_kl"] or FLOOR, 7.21
    ppl = base * math.exp(0.7 * model["_kl"])
    weights = [2047] * 148
    nll = [2047 * (math.log(base) + 0.2 * math.sin(w)) + 2047 * 0.7 * model["_kl"] * (1 + 0.1 * math.cos(3 * w + i)) for w in range(4)]
    text = {"text": "wikitext2", "source": "wiki.test.raw", "sha256": "ab" * 32, "windows": 4, "windows_of_text": WINDOWS, "max_windows": 4}
    perplexity = _cell(
        i, model, "methods", "gptq-2048", [_metric("wikitext2", "perplexity", ppl, ppl * 0.02, False)],
        _RULE | {"kind": "perplexity", "max_windows": 4, "texts": [text]},
        {"texts": [text | {"se_clusters": 4, "pieces": {"nll": nll, "weight": weights[:4]}}]},
    )  # fmt: skip
    tasks = [
        _cell(i, model, "task", task, [_metric(task, "acc", value - 0.8 * model["_kl"], 0.0089, True)],
              {"kind": "lm-eval task", "task": task, "lm_eval": "0.4.13", "num_fewshot": {task: 0},
               "n_docs": {task: n}, "n_docs_of": {task: 2376}}, {"samples": []})
        for task, value, n in (("arc_easy", 0.817, 2376), ("hellaswag", 0.792, 500))
    ]  # fmt: skip
    statistics = _statistics(kl, rng)
    numbers = [("kl", kl, 0.012 * kl, False), ("same_top", statistics["same_top"]["value"], 0.0007, True),
               ("kl_99.9", statistics["kl_percentiles"]["99.9"]["value"], 0.05 * kl, False)]  # fmt: skip
    details: dict[str, Any] = {"statistics": statistics, "worst": [], "notes": []}
    if i:
        details["layers"] = [_layer(layer, kl, rng) for layer in range(N_LAYERS + 1)]
    if 0 < i <= 3:
        details["matrices"] = _matrices(kl, rng)
    rule = {"name": "wikitext2", "source": "wiki.test.raw", "sha256": "ab" * 32, "windows": WINDOWS, "windows_of_text": WINDOWS,
            "targets": WINDOWS * 2047, "method": _RULE, "notes": []}  # fmt: skip
    compared = _cell(
        i, model, "comparison", "KL gptq-2048", [_metric("wikitext2", *number) for number in numbers],
        {"kind": "comparison", "reference": NAMES[0], "reference_dtype": "float32" if i == 0 else "bfloat16", **rule}, details,
    )  # fmt: skip
    return [perplexity, *tasks, compared]


def _cell(
    i: int, model: dict[str, Any], kind: str, work: str, metrics: list[dict[str, Any]], method: dict[str, Any], details: dict[str, Any]
) -> dict[str, Any]:
    metrics[0]["headline"] = True
    return {
        "key": f"{i:08x}{sum(map(ord, work)):08x}", "model": model["label"], "options": "", "kind": kind, "work": work, "settings": {},
        "option_values": {"dtype": "bfloat16"}, "reference": NAMES[0] if kind == "comparison" else None, "state": "done",
        "metrics": metrics, "source": {"identity": f"{i:064x}", "numerics": "cuda-sm90/bfloat16/3", "dtype": "bfloat16"},
        "method": method, "details": details, "versions": document.versions(),
        "run": {"device": "0", "attempts": 1, "seconds": 2.5, "finished": "2026-11-23T18:00:00+00:00", "n_tokens": 5},
    }  # fmt: skip


def _metric(task: str, name: str, value: float, stderr: float, higher: bool) -> dict[str, Any]:
    return {"task": task, "metric": name, "filter": "none", "value": value, "stderr": stderr, "higher_is_better": higher}


def _statistics(kl: float, rng: random.Random) -> dict[str, Any]:
    def estimate(value: float, se: float) -> dict[str, float]:
        return {"value": value, "se": se}

    spread = {"25": 0.02, "50": 0.16, "75": 0.7, "90": 2.1, "95": 4.0, "99": 11.0, "99.9": 41.0}
    shape = rng.uniform(0.85, 1.2)
    percentiles = {name: estimate(kl * factor**shape, 0.03 * kl * factor) for name, factor in spread.items()}
    return {
        "targets": WINDOWS * 2047, "clusters": WINDOWS, "errors_over": "windows", "kl": estimate(kl, 0.012 * kl),
        "same_top": estimate(1 - 0.45 * math.sqrt(kl), 0.0007), "ln_ppl_ratio": estimate(0.7 * kl, 0.03 * kl),
        "ppl": estimate(7.21 * math.exp(0.7 * kl), 0.14), "ref_ppl": estimate(7.21, 0.14),
        "kl_percentiles": percentiles | {"max": {"value": 90 * kl, "se": None}},
    }  # fmt: skip


def _layer(layer: int, kl: float, rng: random.Random) -> dict[str, Any]:
    error = math.sqrt(kl) * (0.15 + layer / N_LAYERS + 0.3 * (layer == N_LAYERS)) * rng.uniform(0.95, 1.05) if layer else 0.0
    values = {"relative_error": error, "token_error": error, "cosine": 1 - error * error / 2}
    return {
        "layer": layer, "name": "embedding" if layer == 0 else f"layer {layer - 1}",
        **{name: {"value": value, "se": 0.01 * error} for name, value in values.items()},
        "channel": 3, "channel_windows": 0.9, "channel_share": 0.1,
    }  # fmt: skip


def _matrices(kl: float, rng: random.Random) -> dict[str, Any]:
    alone = []
    for layer in range(N_LAYERS):
        for kind in KINDS:
            factor = 100 if (layer, kind) == (1, KINDS[-1]) else 4 if kind == KINDS[-1] else 1
            hurt = kl / 200 * rng.uniform(0.3, 1.7) * factor
            alone.append({"name": f"model.layers.{layer}.{kind}", "layer": layer, "kl": {"value": hurt, "se": None}})
    alone.append({"name": "lm_head", "layer": None, "kl": {"value": kl / 20, "se": None}})
    alone.sort(key=lambda each: -each["kl"]["value"])
    return {"windows": 4, "targets": 4 * 2047, "kl": {"value": kl, "se": None}, "alone": alone}


def _paired(cell: dict[str, Any]) -> dict[str, Any]:
    test = {"task": cell["work"], "filter": "none", "metric": "acc", "n": 2376, "mean_a": 0.8, "mean_b": 0.79, "difference": -0.01,
            "se": 0.0031, "low": -0.016, "high": -0.004, "lost": 61, "gained": 37, "p_mcnemar": 0.0195}  # fmt: skip
    return {"work": cell["work"], "options": "", "model": cell["model"], "reference": NAMES[0], "keys": [], "tests": [test], "notes": []}


def write(n: int, folder: Path) -> None:
    from ctworker.sweep import output

    class Folder:
        def write_text(self, name: str, text: str) -> None:
            self.write_bytes(name, text.encode())

        def write_bytes(self, name: str, data: bytes) -> None:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    output.write(Folder(), sweep(n))  # type: ignore[arg-type]


if __name__ == "__main__":
    write(int(sys.argv[1]), Path(sys.argv[2]))
