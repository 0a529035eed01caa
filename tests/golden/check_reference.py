#!/usr/bin/env python3
"""Checks the float64 model of tests/tools, which other tests trust, against golden checkpoints. Needs no worker.

    check_reference.py DIR ..     folders of golden checkpoints

For every checkpoint of a family that tests/tools/families.py describes: every spelling of the configuration gives the
log-probabilities in golden.json. If the checkpoint is not quantised or has MXFP4 experts, the model names tensors of the file with
their shapes, and leaves out none but those of other towers and unused ones. Sequences above 300 tokens are left out: they take minutes.
"""

import argparse
import json
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before importing numpy: checkpoints run in parallel
import numpy as np  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
import families  # noqa: E402
import recipe  # noqa: E402
import reference_model  # noqa: E402
from supported import configs_of  # noqa: E402

# transformers' float64 run has some steps in float32 if its golden file was not made with float64 throughout
EXACT, WITH_FLOAT32 = 1e-8, 1e-5
MOST_TOKENS = 300
NGRAM_NUMBERS = ("layer_multipliers", "ngram_heads_vocab_sizes", "ngram_heads_offsets")
NOT_TEXT = ("vision", "visual", "model.audio.", "multi_modal_projector", "patch_merge_mlp", "vit_large_projector", "mtp.")


def unused(name, model):
    """Whether a tensor of a text model is there although nothing reads it: keys and values of a layer that shares, numbers of
    n-grams, which the configuration gives."""
    if name.rpartition(".ple.ple_embedding.")[2] in NGRAM_NUMBERS:
        return True
    return any(name.startswith(a.stem) and a.kv_of is not None for a in model.layers)


def wrong_tensors(model):
    if model.config.get("quantization_config", {}).get("quant_method") not in (None, "mxfp4") or any(
            name.endswith("_scale") for name in model.tensors):
        return []  # the tensors of a format
    named = {name: tuple(shape) for name, shape, _ in recipe.tensors(model.family)}
    stored = {name: raw.shape for name, (_, raw) in model.tensors.items()}
    for name in [n for n in stored if n.endswith("_blocks")]:  # MXFP4 experts, which the recipe names as dense ones
        experts, outputs, blocks, _ = stored.pop(name)
        if stored.pop(name.replace("_blocks", "_scales"), None) == (experts, outputs, blocks):
            stored[name.removesuffix("_blocks")] = experts, 32 * blocks, outputs
    out = [f"{n}: named as {s}, stored as {stored.get(n)}" for n, s in named.items() if stored.get(n) != s]
    return out + [f"{n} is not named" for n in sorted(stored.keys() - named.keys())
                  if not any(part in n for part in NOT_TEXT) and not unused(n, model.family)]


def check(folder):
    """Lines (ok, text) of one checkpoint."""
    with open(folder / "golden.json", encoding="utf-8") as f:
        golden = json.load(f)
    exact = "names_in_file" in golden
    tables, bound = (np.float64, EXACT) if exact else (np.float32, WITH_FLOAT32)
    lines = []
    for config in configs_of(folder):
        model = reference_model.Model(folder, config, tables=tables, rounded=True)
        error = max(float(np.abs(model.score(s["tokens"])[0] - s["f64"]).max())
                    for s in golden["sequences"] if len(s["tokens"]) <= MOST_TOKENS)
        wrong = wrong_tensors(model)
        lines.append((error <= bound and not wrong,
                      "  ".join([f"{folder.name:24} {config:26} max {error:.1e}", *wrong[:2]])))
    return lines


def described(folder):
    with open(folder / "config.json", encoding="utf-8") as f:
        config = json.load(f)
    try:
        families.describe(config)
    except SystemExit:
        return False
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR")
    parser.add_argument("--only", default="", help="checkpoints whose name contains this")
    args = parser.parse_args()
    found = sorted(p for root in args.folders for p in root.iterdir()
                   if args.only in p.name and (p / "golden.json").exists() and described(p))
    failed = 0 if found else 1
    passed = 0
    with ProcessPoolExecutor() as pool:
        for lines in pool.map(check, found):
            for ok, text in lines:
                print("ok  " if ok else "FAIL", text, flush=True)
                passed, failed = passed + ok, failed + (not ok)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
