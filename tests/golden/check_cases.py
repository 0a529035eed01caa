#!/usr/bin/env python3
"""Scores small files as other tools write them, rebuilt from what people reported, and compares the sums.

    check_cases.py WORKER DIR     DIR: the folder of the files, with tokens_a.jsonl, tokens_b.jsonl and tokens_c.jsonl

A sum is float64 (NumPy's, and transformers' where that opens the file) of one sequence. A worker with fp32 activations
must be within TOLERANCE a token.
"""

import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
import reference_model  # noqa: E402
import worker_cli  # noqa: E402

TOLERANCE = 1e-4  # a token

# folder -> the tokens' letter, the sum (None: that of the float64 model of tools/, which decodes the file itself)
CASES = {
    "autoround_int4_and_fp8": ("a", -472.249596),
    "e8m0_block_scales": ("a", -471.854020),
    "e8m0_by_transformers": ("a", None),
    "e8m0_u8": ("a", -471.854020),
    "granite_stacks_by_class": ("b", -392.409529),
    "index_lacks_tensor": ("a", -466.531989),
    "index_wrong_file": ("a", -466.531989),
    "kv_scale": ("a", -465.716294),
    "modelopt_head_excluded": ("a", -478.608139),
    "packed_stacks": ("c", -667.188868),
    "packed_stacks_shapes": ("c", -667.188868),
    "quant_method_mxfp8": ("a", -471.854020),
}


def tokens_of(root, letter):
    with open(root / f"tokens_{letter}.jsonl", encoding="utf-8") as f:
        return json.loads(f.readline())["tokens"]


def check(worker, folder, letter, expected):
    tokens = tokens_of(folder.parent, letter)
    try:
        result = worker_cli.score(worker, folder, [{"id": "s", "tokens": tokens}], "--dtype", "float32")[0]
    except worker_cli.Refused as e:
        return [f"refused: {e.message}"], ""
    if expected is None:
        expected = float(np.sum(reference_model.Model(folder).score(tokens)[0]))
    found, n = float(np.sum(result["logprobs"])), len(tokens) - 1
    text = f"sum {found:.6f}, expected {expected:.6f}"
    return ([] if len(result["logprobs"]) == n and abs(found - expected) <= TOLERANCE * n else ["a wrong sum"]), text


def main():
    worker, root = sys.argv[1], Path(sys.argv[2])
    unknown = sorted({p.name for p in root.iterdir() if (p / "config.json").exists()} - CASES.keys())
    jobs = [(name, check, root / name, case) for name, case in CASES.items()]
    jobs += [(name, lambda *_: (["no sum in the table"], ""), root / name, ()) for name in unknown]
    return worker_cli.run_checks(worker, jobs)


if __name__ == "__main__":
    sys.exit(main())
