#!/usr/bin/env python3
"""Sequences that share beginnings have the same bits as with --no-share, whatever the trie, and less is computed.

    check_sharing.py FOLDER... [--worker PATH] [--backend cpu] [--seed N]

FOLDER holds checkpoints, of which the seed chooses one of every family: which tokens are computed does not depend on the
format of weights (check_invariance.py has every format). Each scores the leaves of random tries, with borders at every
position around those of chunks and tiles: whole with --no-share, then shared, with other sizes of chunks and passes. Ends
with "N passed, N failed"; the seed is printed.
"""

import argparse
import json
import os
import random
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
import worker_cli  # noqa: E402

LENGTHS = (1, 15, 16, 17, 20, 31, 32, 33, 40, 63, 64, 65)  # of a node: around a branch's least and tiles
CHUNKS, PASSES = (5, 16, 17, 63, 64, 65, 130, 4096), (64, 200, 1000, 32768)
LONGEST, MOST_LEAVES, DEEPEST = 150, 24, 5


def grow(rng, vocab, prefix, depth, leaves):
    prefix = [*prefix, *(rng.randrange(vocab) for _ in range(rng.choice(LENGTHS)))]
    if len(prefix) >= LONGEST or depth == DEEPEST or (depth > 0 and rng.random() < 0.2):
        leaves.append(prefix[:LONGEST])
        return
    for _ in range(rng.choice((1, 2, 3))):
        grow(rng, vocab, prefix, depth + 1, leaves)
    if rng.random() < 0.3:  # ends where others go on
        leaves.append([*prefix, rng.randrange(vocab)])


def items_of(rng, vocab):
    leaves, items = [], []
    while len(leaves) < MOST_LEAVES // 2:
        grow(rng, vocab, [], 0, leaves)
    leaves = [leaf for leaf in leaves[:MOST_LEAVES] if len(leaf) > 1]
    leaves.append(max(leaves, key=len))  # twice
    for i, leaf in enumerate(leaves):
        first = rng.randrange(1, len(leaf))
        items.append({"id": i, "context": leaf[:first], "continuation": leaf[first:]})
        if rng.random() < 0.3:  # another answer of one token
            items.append({"id": [i], "context": leaf[:-1], "continuation": [rng.randrange(vocab)]})
    rng.shuffle(items)
    return items


def vocab_of(folder):
    config = json.loads((folder / "config.json").read_text())
    text = config.get("text_config") or {}
    return min(200, text.get("vocab_size") or config.get("vocab_size") or 32)


def score(command, folder, items, *options):
    return subprocess.run([*command, "--model", folder, *map(str, options)], check=False,
                          input="".join(json.dumps(item) + "\n" for item in items), capture_output=True, text=True,
                          timeout=600)


def compare(command, folder, seed):
    """Complaints about one checkpoint; None if the worker refuses it."""
    rng = random.Random(f"{seed} {folder.name}")
    items, wrong = items_of(rng, vocab_of(folder)), []
    base = score(command, folder, items, "--no-share")
    if base.returncode != 0:
        return None if base.returncode == 65 else [base.stderr.strip()]
    if "times fewer" in base.stderr:
        wrong.append("--no-share shares")
    for i in range(3):
        options = ["--threads", rng.choice((1, 2))]
        if i > 0:
            options += ["--chunk-tokens", rng.choice(CHUNKS), "--pass-tokens", rng.choice(PASSES)]
        done = score(command, folder, items, *options)
        if done.stdout != base.stdout:
            wrong.append(f"differs: {' '.join(map(str, options))} {done.stderr.strip()[-200:]}")
        gain = re.search(r"tokens were computed, ([\d.]+) times fewer", done.stderr)
        if gain is None or (i == 0 and float(gain[1]) < 1.5):
            wrong.append(f"nothing is shared: {' '.join(map(str, options))}")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--worker", default=worker_cli.default_worker())
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10**6)
    args = parser.parse_args()
    print(f"seed {args.seed}")
    found = worker_cli.chosen(args.folders, args.seed)
    command = [args.worker, "score", "--backend", args.backend]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(lambda f: compare(command, f, args.seed), found))
    failed = 0
    for folder, wrong in zip(found, results, strict=True):
        print("refused" if wrong is None else "FAIL" if wrong else "ok  ", folder.name, *(wrong or [])[:3], sep="  ")
        failed += bool(wrong)
    passed = sum(1 for wrong in results if wrong == [])
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
