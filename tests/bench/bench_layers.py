#!/usr/bin/env python3
"""What `--layers` and `--matrices` cost, compared with scoring both models.

    bench_layers.py REFERENCE MODEL [--text FILE] [--windows 8] [--window 512] [--matrix-windows 1] [--reps 5]

One worker has both models. Scoring the model, scoring the reference, comparing, and comparing with layers are
interleaved; medians, spreads, and ratios to the two scorings. Without a text, the windows are random ids. --matrix-windows
0 leaves the matrices out. The worker is CTWORKER_BIN, else that of build/release.
"""

import argparse
import os
import random
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
os.environ.setdefault("CTWORKER_BIN", str(ROOT / "build/release/worker/ctworker"))
sys.path.insert(0, str(ROOT / "harness_adapter/src"))
from ctworker import Client, TextTokenizer, Worker  # noqa: E402


def tokens_of(args, worker):
    n = args.windows * args.window
    if args.text is None:
        rng = random.Random(1)
        return [rng.randrange(worker.model["vocab"]) for _ in range(n)]
    tokens = TextTokenizer(Path(args.reference), name=args.reference).encode(args.text.read_text(encoding="utf-8"))
    if len(tokens) < n:
        sys.exit(f"{args.text} has {len(tokens)} tokens, {n} are needed: fewer --windows")
    return tokens[:n]


def seconds_of(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reference")
    parser.add_argument("model")
    parser.add_argument("--text", type=Path)
    parser.add_argument("--windows", type=int, default=8)
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--matrix-windows", type=int, default=1)
    parser.add_argument("--reps", type=int, default=5)
    args = parser.parse_args()
    with Worker(args.model, reference=args.reference) as worker, Client(worker.endpoint, model="reference") as other:
        text = tokens_of(args, worker)
        few = text[: args.matrix_windows * args.window]
        calls = {
            "model alone": lambda: worker.score_windows([text], args.window),
            "reference alone": lambda: other.score_windows([text], args.window),
            "compared": lambda: worker.compare_windows([text], args.window),
            "compared, layers": lambda: worker.compare_windows([text], args.window, layers=True),
        }
        times = {name: [] for name in calls}
        for name in calls:
            calls[name]()
        for rep in range(args.reps):
            for name in list(calls)[rep % len(calls):] + list(calls)[:rep % len(calls)]:
                times[name].append(seconds_of(calls[name]))
        middle = {name: statistics.median(values) for name, values in times.items()}
        both = middle["model alone"] + middle["reference alone"]
        print(f"{worker.model['device']}, {worker.numerics}, {args.windows} windows of {args.window}")
        print("| what | s | spread | to both scorings |\n| --- | --- | --- | --- |")
        for name, values in times.items():
            print(f"| {name} | {middle[name]:.3f} | {min(values):.3f} .. {max(values):.3f} | {middle[name] / both:.3f} |")
        if few:
            plain = seconds_of(lambda: worker.compare_windows([few], args.window))
            found = []
            whole = seconds_of(lambda: found.extend(worker.compare_windows([few], args.window, matrices=True)))
            n = len(found[0].matrices.names)
            print(f"{n} matrices on {args.matrix_windows} windows: {whole:.1f} s; of each {(whole - plain) / n:.3f} s, "
                  f"{(whole - plain) / n / plain:.3f} of comparing the two models")


if __name__ == "__main__":
    main()
