#!/usr/bin/env python3
"""A sequence's score has the same bits alone or with others, in any order, with any chunk size, pass
size and number of threads: on the best CPU variant, and on every other checkpoint on one of the others, which take turns.

    check_invariance.py --tiny DIR [--golden DIR ..] --program PATH --worker PATH --scratch DIR

Two parts: the C program tests/invariance/invariance.c (random batches in one process, final hidden
states included) on the tiny checkpoints and some golden ones, and `ctworker score` in separate processes on checkpoints of
real widths. Ends with "N passed, N failed"; the seed is printed.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
import tiny_checkpoint  # noqa: E402
import worker_cli  # noqa: E402

# Real widths (SmolLM2-135M's and TinyLlama's), few layers.
WIDTHS = {
    "576": {"hidden": 576, "inner": 1536, "heads": 9, "kv_heads": 3, "head": 64, "vocab": 1500,
            "layers": 2},
    "2048": {"hidden": 2048, "inner": 5632, "heads": 32, "kv_heads": 4, "head": 64, "vocab": 700,
             "layers": 1},
}
WIDE = [("576", "llama", "bf16"), ("576", "qwen3", "w4a16_g32_asym"), ("576", "llama", "nvfp4"),
        ("576", "mistral_swa", "fp16"), ("2048", "llama_bias", "w4a16_g32"),
        ("2048", "llama", "w8a16_channel"), ("576", "phi3", "fp8_block"), ("576", "llama", "mixed"), ("576", "qwen2", "w3a16_g32")]
LENGTHS = (2, 3, 6, 7, 15, 64, 65, 129, 193)  # lengths around the sizes of tiles of rows and keys
MAX_CHUNKS = 16  # of a random batch with several sequences: every chunk decodes the weights again
# The checkpoints on which the C program also runs the plain C variant, which is slow.
# Golden checkpoints of families with recurrent layers that the tests do not write themselves.
RECURRENT = ("bailing_hybrid-dense", "zamba2-dense", "olmo_hybrid-dense", "kimi_linear-dense")
PLAIN_C = ("llama-bf16", "qwen3-nvfp4", "mistral_swa-w8a16_channel", "llama-w3a16_g32_gidx_asym")


def settings(rng):
    """Options that must not change a bit."""
    return ["--chunk-tokens", rng.choice([5, 6, 7, 11, 13, 63, 64, 65, 129, 4096]),
            "--pass-tokens", rng.choice([1, 64, 65, 300, 32768]),
            "--threads", rng.choice([1, 2, 3, 5])]


def bits(results):
    """id -> text of its result; floats are printed so that equal text is equal bits."""
    return {json.dumps(r["id"]): json.dumps([r["logprobs"], r["greedy"], r["sum"]])
            for r in results}


def batch(items, max_tok):
    """The first item and all that fit, with new ids: [place, id]."""
    some, n_tok = [], 0
    for item in items:
        if not some or n_tok + len(item["tokens"]) <= max_tok:
            some.append({**item, "id": [len(some), item["id"]]})
            n_tok += len(item["tokens"])
    return some


def compare_wide(worker, folder, variant, seed):
    """Complaints about one checkpoint of real width on one variant."""
    rng = random.Random(f"{seed} {folder.name} {variant}")
    vocab = json.loads((folder / "config.json").read_text())["vocab_size"]
    common = [rng.randrange(vocab) for _ in range(max(LENGTHS))]
    items = []
    for i, n in enumerate(LENGTHS):  # every third shares a prefix
        tokens = [rng.randrange(vocab) for _ in range(n)]
        items.append({"id": i, "tokens": common[:n] if i % 3 == 0 else tokens})
    options = ["--cpu-variant", variant]

    def run(some, *more):
        return bits(worker_cli.score(worker, folder, some, *options, *more))

    base, wrong = run(items), []
    runs = [(f"alone {i}", [items[i]], ["--threads", 1 + i % 3]) for i in (1, 4, 6, 8)]
    runs.append(("one token a chunk", items[:5], ["--chunk-tokens", 1, "--threads", 2]))
    for _ in range(6):
        options_now = settings(rng)
        some = batch(rng.choices(items, k=rng.randint(2, 9)), MAX_CHUNKS * options_now[1])
        runs.append((" ".join(map(str, options_now)), some, options_now))
    for name, some, more in runs:
        for key, value in run(some, *more).items():
            of = json.loads(key)
            of = of[1] if isinstance(of, list) else of
            if value != base[json.dumps(of)]:
                wrong.append(f"sequence {of} ({LENGTHS[of]} tokens) differs: {name}")
    return wrong


def turn_of(variants, i):
    """The best variant, and on every other checkpoint one of the others, which take turns: a family's or a format's
    other checkpoints meet the rest, and the next seed changes the turns."""
    *others, best = [v for v in variants if v != "c"] or ["c"]
    return [best, *others[i // 2 % len(others):][:1]] if others and i % 2 == 0 else [best]


def run_program(program, folder, variant, seed, rounds):
    done = subprocess.run([program, folder, variant, str(seed), str(rounds)], check=False,
                          capture_output=True, text=True, timeout=900)
    return [] if done.returncode == 0 else [f"seed {seed}", *(done.stderr.splitlines() or
                                            [f"exit status {done.returncode}"])[-2:]]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tiny", type=Path, required=True, help="by tiny_checkpoint.py --all")
    parser.add_argument("--golden", type=Path, nargs="*", default=[], help="folders of golden checkpoints")
    parser.add_argument("--scratch", type=Path, required=True, help="for the wide checkpoints")
    parser.add_argument("--program", required=True, help="the built tests/invariance/invariance.c")
    parser.add_argument("--worker", default=worker_cli.default_worker())
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10**6)
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    print(f"seed {args.seed}")
    variants = worker_cli.machine_variants(args.worker)
    jobs = []
    golden = [p for root in args.golden for p in root.iterdir() if p.name in RECURRENT]
    # Batches, chunks and passes are cut by the same code for every variant and every format.
    seen = set()
    for i, folder in enumerate([*worker_cli.chosen([args.tiny], args.seed, formats=True, always=PLAIN_C), *golden]):
        for v in turn_of(variants, i) + ["c"] * (folder.name in PLAIN_C):
            if v in variants:
                family = (folder.name.split("-")[0], v)
                first = v == variants[-1] and family not in seen
                seen.add(family)
                rounds = args.rounds if first else max(1, args.rounds - 1)
                # Each draws settings of its own: some draws take ten times as long as others.
                seed = random.Random(f"{args.seed} {folder.name} {v}").randrange(10**9)
                jobs.append((f"{folder.name} {v}", lambda f=folder, v=v, s=seed, n=rounds: run_program(
                    args.program, f, v, s, n)))
    for i, (width, family, fmt) in enumerate(WIDE):
        folder = args.scratch / f"wide{width}-{family}-{fmt}"
        tiny_checkpoint.write(folder, family, fmt, seed=5, **WIDTHS[width])
        for v in turn_of(variants, i + args.seed):
            jobs.append((f"{folder.name} {v}", lambda f=folder, v=v: compare_wide(args.worker, f, v, args.seed)))

    def attempt(job):
        try:
            return job[0], job[1]()
        except (worker_cli.Refused, subprocess.TimeoutExpired) as e:
            return job[0], [str(e)]

    failed = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for name, wrong in pool.map(attempt, jobs):
            print("FAIL" if wrong else "ok  ", name, *wrong[:3], sep="  ", flush=True)
            failed += bool(wrong)
    print(f"{len(jobs) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
