#!/usr/bin/env python3
"""Compares `ctworker score` with float64 log-probabilities.

    check_scores.py --golden DIR ..  golden checkpoints: scores by transformers, in float64 and in
                                     16 bit, with either style of configuration
    check_scores.py --tiny DIR       checkpoints of tests/tools/tiny_checkpoint.py: the same two
                                     scores, and every decoded weight's hash, by
                                     tests/tools/reference_model.py

--dtype float32 must give every log-probability within 1e-4; --dtype auto must have a mean error
no larger than that of the 16-bit run (with 10 % for chance). Prints one line per checkpoint,
configuration and variant, and ends with "N passed, N failed". CTW_ variables of the environment set
the worker's other options (CTW_BACKEND=cuda: on the GPU).
"""

import argparse
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before importing numpy: checkpoints run in parallel
import numpy as np  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
import reference_model  # noqa: E402
import worker_cli  # noqa: E402
from supported import CONFIGS, SUPPORTED, configs_of  # noqa: E402

# Their weights are products in fp32, which ModelOpt rounds to the run's dtype: the goldens' float64 scores are of weights rounded to
# bf16, those of a float32 run are not rounded. What such a run must give is computed by tests/tools/reference_model.py, which
# gives the goldens' scores if it rounds the weights (check_reference.py).
ROUNDED_TO_BF16 = {"nemotron_h_moe-fp8_modelopt", "nemotron_h_moe-nvfp4_modelopt", "qwen3_5_moe_vl-mixed_modelopt",
                   "qwen3_5_moe_vl-nvfp4_modelopt"}
TOLERANCE = 1e-4   # float32 against float64, every log-probability
CHANCE = 1.10      # mean error of 16 bit: ours / the reference's
GREEDY_F32, GREEDY_16 = 0.998, 0.93  # equal argmax ids; the models are random: near-ties abound
# Checkpoints whose choices of experts or keys are so close that 16 bits flip some of them: the share must not be smaller than
# that of the float64 model with the roundings of transformers' 16-bit run, less a little for chance.
CLOSE = {"deepseek_v32-dense", "deepseek_v32-bf16", "glm_moe_dsa-dense", "glm5_next-dense", "glm5_next-bf16", "hy_v4-dense",
         "kimi_linear-dense", "mistral4-dense", "mistral4_vl-dense", "phimoe-dense",
         "qwen3_5-fp8_dynamic", "qwen3_5_moe-dense", "qwen3_5_moe-fp8_dynamic", "qwen3_5_moe_vl-dense",
         "qwen3_5_moe_vl-mixed_modelopt", "qwen3_5_moe_vl-nvfp4", "qwen3_5_moe_vl-nvfp4_modelopt", "qwen3_next-dense",
         "qwen3_next-w4a16_g128"}
GREEDY_CHANCE = 0.005
# The same of families that the float64 model does not have. (In 16 bits, transformers has 0.896 of zamba2-dense, 0.940 of
# olmo_hybrid-dense, 0.874 of bailing_hybrid-dense.)
GREEDY_OF = {"bailing_hybrid-dense": 0.88, "olmo_hybrid-dense": 0.92, "zamba2-dense": 0.91}
# The share of log-probabilities that may be further off in fp32: at a near tie, rounding chooses another key. One does: at position
# 1022 of the sequence of 1100 tokens, layer 2's 256th best key (787) has score 10.379947 and the 257th (265) 10.379903, the smallest
# margin of that layer. float64 with key 265 instead gives the fp32 log-probability, and no other is then off by more than 1.9e-5.
JUMPS = {"deepseek_v32-dense": 0.001}
# Where fp32 is not enough for TOLERANCE: with all else exact, summing layer 0's product in fp32, in any of 100 orders, moves one
# log-probability by up to 1.2e-4, which is what AVX2's order of it gives (NUMERICS.md, "Where fp32 is not enough"). By CPU variant.
TOLERANCE_OF = {("qwen3_next-w4a16_g128", "avx2"): 1.3e-4}


class Expected:
    """The expected scores of a checkpoint's sequences."""

    def __init__(self, sequences, name):
        self.name, self.jumps, self.model = name, JUMPS.get(name, 0.0), None
        self.greedy_16 = GREEDY_OF.get(name, GREEDY_16)
        self.tokens = [s["tokens"] for s in sequences]
        self.f64 = np.concatenate([s["f64"] for s in sequences])
        self.greedy = np.concatenate([s["greedy"] for s in sequences])
        self.exact, self.exact_greedy = self.f64, self.greedy  # of a float32 run
        key = next((k for k in ("bf16", "fp16") if k in sequences[0]), None)
        self.error_16 = None  # mean; None: the checkpoint is fp32
        if key:
            run = np.concatenate([s[key] for s in sequences])
            self.error_16 = float(np.mean(np.abs(run - self.f64)))

    def allow_flips(self, greedy):
        """greedy: of every sequence, by the float64 model with 16-bit roundings."""
        self.greedy_16 = min(GREEDY_16, float(np.mean(np.concatenate(greedy) == self.greedy)) - GREEDY_CHANCE)

    def items(self):
        """Every sequence as a whole, then split in two: the worker must give the same bits."""
        whole = [{"id": i, "tokens": t} for i, t in enumerate(self.tokens)]
        split = [{"id": f"split {i}", "context": t[:len(t) // 2 + 1],
                  "continuation": t[len(t) // 2 + 1:]}
                 for i, t in enumerate(self.tokens) if len(t) > 2]
        return whole + split


def golden_expected(folder):
    with open(folder / "golden.json", encoding="utf-8") as f:
        expected = Expected(json.load(f)["sequences"], folder.name)
    if folder.name in CLOSE:
        rounded = reference_model.Model(folder, activations="BF16", tables=np.float64)
        expected.allow_flips([rounded.score(t)[1] for t in expected.tokens])
    if folder.name in ROUNDED_TO_BF16:
        runs = [reference_model.Model(folder, tables=np.float64).score(t) for t in expected.tokens]
        expected.exact, expected.exact_greedy = (np.concatenate(column) for column in zip(*runs))
    return expected


def tiny_expected(folder, longest):
    """Scored by the reference model, with both configurations (which must agree)."""
    rng = np.random.default_rng(7)
    model = reference_model.Model(folder)
    kind = model.config["dtype"]
    n_ids = model.family.head_rows or model.family.vocab
    tokens = [rng.integers(0, n_ids, n).tolist()
              for n in (2, 3, 33, 130, *longest)]
    runs = [model.score(t) for t in tokens]
    sequences = [{"tokens": t, "f64": f, "greedy": g} for t, (f, g) in zip(tokens, runs)]
    old = reference_model.Model(folder, CONFIGS[1])
    # Not the longest: the worker scores it with either configuration, against `runs`.
    if not same_model(old, model) and any(not np.array_equal(old.score(t)[0], f) for t, (f, _) in zip(tokens[:4], runs)):
        raise ValueError(f"{folder}: the two configurations mean different models")
    if kind != "float32":
        key, activations = {"bfloat16": ("bf16", "BF16"), "float16": ("fp16", "F16")}[kind]
        rounded = reference_model.Model(folder, activations=activations, like=model)
        runs = [rounded.score(t) for t in tokens]
        for s, run in zip(sequences, runs):
            s[key] = run[0]
    expected = Expected(sequences, Path(folder).name)
    expected.model = model
    if kind != "float32" and Path(folder).name in CLOSE:
        expected.allow_flips([greedy for _, greedy in runs])
    return expected


def same_model(a, b):
    """Whether two reference models of one folder compute the same by what they have read: their layers, and how weights are stored."""
    return a.family == b.family and a.dtype == b.dtype and all(
        a.config.get(key) == b.config.get(key) for key in ("quantization_config", "quantization", "num_key_value_heads", "model_type"))


def longest_of(folder, is_first):
    """The length of a tiny checkpoint's longest sequence. What depends on positions is the family's, not the format's: its first
    checkpoint has it. Of experts, a choice that 16 bits flip must be one of many."""
    return (700,) if is_first or "expert" in (folder / "config.json").read_text() else (300,)


def inconsistencies(expected, results):
    """Complaints about results that contradict themselves."""
    out, n = [], len(expected.tokens)
    by_id = {r["id"]: r for r in results}
    for i, tokens in enumerate(expected.tokens):
        whole, split = results[i], by_id.get(f"split {i}")
        if len(whole["logprobs"]) != len(tokens) - 1:
            out.append(f"sequence {i}: {len(whole['logprobs'])} scores for {len(tokens)} tokens")
        first = len(tokens) // 2 + 1
        if split and (split["logprobs"] != whole["logprobs"][first - 1:] or
                      split["greedy"] != whole["greedy"][first - 1:]):
            out.append(f"sequence {i}: context and continuation score otherwise than tokens")
        for r, targets in ((whole, tokens[1:]), (split, tokens[first:])):
            if r is None:
                continue
            # fp32 values, printed so that they read back as such; summed in double
            total = float(np.sum(np.float32(r["logprobs"]).astype(np.float64)))
            if abs(r["sum"] - total) > 1e-12 * abs(total):
                out.append(f"{r['id']}: sum is {r['sum']!r}, its scores give {total!r}")
            if r["is_greedy"] != (r["greedy"] == targets):
                out.append(f"{r['id']}: is_greedy contradicts greedy")
    return out if len(results) > n else [*out, "no split results"]


def compare(expected, results, exact, tolerance=TOLERANCE):
    """(ok, text) of one run; `exact`: fp32 activations."""
    ours = np.concatenate([r["logprobs"] for r in results[:len(expected.tokens)]])
    greedy = np.concatenate([r["greedy"] for r in results[:len(expected.tokens)]])
    if ours.shape != expected.f64.shape or not np.all(np.isfinite(ours)):
        return False, "wrong number of scores, or not finite"
    error = np.abs(ours - (expected.exact if exact else expected.f64))
    same = float(np.mean(greedy == (expected.exact_greedy if exact else expected.greedy)))
    if exact:
        ok = float(np.mean(error > tolerance)) <= expected.jumps and same >= GREEDY_F32
        text = f"f32 max {error.max():.1e} greedy {same:6.2%}"
    else:
        ratio = float(error.mean()) / expected.error_16
        ok = ratio <= CHANCE and same >= expected.greedy_16
        text = f"16-bit mean {error.mean():.5f} = {ratio:.3f} x reference, greedy {same:6.2%}"
    wrong = inconsistencies(expected, results)
    return ok and not wrong, "; ".join([text, *wrong[:2]])


def check_one(worker, folder, expected, config, variant, dtypes, threads):
    """One line: (ok, text)."""
    options = ["--config", config, "--threads", threads]
    options += ["--cpu-variant", variant] if variant else []
    ok, texts = True, []
    for dtype in dtypes:
        exact = dtype == "float32" or expected.error_16 is None
        results = worker_cli.score(worker, folder, expected.items(), "--dtype", dtype, *options)
        tolerance = TOLERANCE_OF.get((expected.name, variant or worker_cli.machine_variants(worker)[-1]), TOLERANCE)
        good, text = compare(expected, results, exact, tolerance)
        ok, texts = ok and good, [*texts, text]
    return ok, "  ".join(texts)


def refusal_is_clear(error):
    """A refusal must have exit code 65 (bad data) and a message of some length."""
    return error.code == 65 and len(error.message) > 30 and "\n" not in error.message


def check_hashes(worker, folder, model):
    """One line (ok, text): `inspect --hashes` against the reference model's decoding."""
    expected = {row[0]: [str(x) for x in row[1:]] for row in model.hashes()}
    found = worker_cli.hashes(worker, folder)
    wrong = [n for n in sorted(expected.keys() | found.keys()) if expected.get(n) != found.get(n)]
    text = f"{len(expected)} decoded weights" if not wrong else (
        f"{wrong[0]}: found {found.get(wrong[0])}, expected {expected.get(wrong[0])}")
    return not wrong, f"{folder.name:26} {text}"


def check_folder(args, folder, required, variants, configs, longest):
    """Lines (ok, text) of one checkpoint: both configurations with the best variant, and every
    other variant with the first. A configuration names tensors and says how they are decoded, whatever the dtype: of the
    checkpoints of the tests, the older style is scored in one."""
    lines, runs = [], [(c, None) for c in configs] + [(CONFIGS[0], v) for v in variants]
    expected = golden_expected(folder) if args.golden else tiny_expected(folder, longest)
    for config, variant in runs:
        name = f"{folder.name:26} {config.removesuffix('.json'):20} {variant or 'best':10}"
        dtypes = ("auto",) if args.tiny and config != CONFIGS[0] else ("float32", "auto")
        try:
            ok, text = check_one(args.worker, folder, expected, config, variant, dtypes, args.threads)
            if not required:
                ok, text = False, f"supported, but not in supported.py: {text}"
        except worker_cli.Refused as e:
            ok, text = not required and refusal_is_clear(e), f"refused, {e}"
            if not required and variant is None and config != CONFIGS[0]:
                continue
        lines.append((ok, f"{name} {text}"))
        if not required:
            break
    if args.tiny:
        lines.append(check_hashes(args.worker, folder, expected.model))
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--golden", type=Path, nargs="+")
    parser.add_argument("--tiny", type=Path)
    parser.add_argument("--worker", default=worker_cli.default_worker())
    parser.add_argument("--only", help="folders whose name contains this")
    parser.add_argument("--variants", action="store_true",
                        help="also every CPU variant that this machine runs")
    parser.add_argument("--one-config", action="store_true", help="leave out the older style")
    parser.add_argument("--short", action="store_true", help="--tiny without the longest sequence")
    parser.add_argument("--threads", default="1", help="of the worker")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="checkpoints side by side")
    args = parser.parse_args()
    if (args.golden is None) == (args.tiny is None):
        parser.error("give --golden DIR or --tiny DIR")
    folders = sorted((p for root in args.golden or [args.tiny] for p in root.iterdir()
                      if (p / "config.json").exists()), key=lambda p: p.name)
    lines = [(False, f"{n}: not in any folder") for n in sorted(SUPPORTED - {p.name for p in folders})
             if args.golden]
    for _, text in lines:
        print("FAIL", text)
    first = {p.name.split("-")[0]: p for p in reversed(folders)}
    folders = [p for p in folders if not args.only or args.only in p.name]
    variants = worker_cli.machine_variants(args.worker) if args.variants else []

    def check(folder):
        configs = CONFIGS[:1] if args.one_config else configs_of(folder)
        required = args.tiny is not None or folder.name in SUPPORTED
        is_first = first[folder.name.split("-")[0]] == folder
        return check_folder(args, folder, required, variants, configs, () if args.short else longest_of(folder, is_first))

    with ThreadPoolExecutor(args.jobs) as pool:
        for some in pool.map(check, folders):
            for ok, text in some:
                print("ok  " if ok else "FAIL", text, flush=True)
            lines += some
    if not folders:
        lines.append((False, "no checkpoint"))
    failed = sum(not ok for ok, _ in lines)
    print(f"{len(lines) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
