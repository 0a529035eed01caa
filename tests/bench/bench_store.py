#!/usr/bin/env python3
"""What a result store costs, and what Ctrl-C loses with one: SmolLM2-135M on WikiText-2, on the CPU.

    bench_store.py --model DIR --text WIKITEXT.jsonl rates [--windows 8] [--reps 5]
    bench_store.py --model DIR --text WIKITEXT.jsonl kills [--kills 8]

rates: processor time of a worker with one thread, with and without a store in turn, each time with a new store.
kills: `lm_eval --tasks wikitext` on one store, interrupted at random instants while it scores, again and again. Lost is the
worker's time since the last result that the store got before the interruption.
"""

import argparse
import os
import random
import re
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "harness_adapter/src"))
WINDOW = 2048
MOST_S = 20.0  # of scoring before an interruption


def processor_s(pid):
    """Processor time of a process; None if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rates(args):
    from ctworker import TextTokenizer, Worker

    ids = TextTokenizer(Path(args.model), name="").encode(args.text.read_text(encoding="utf-8"), False)
    windows = [ids[i * WINDOW : (i + 1) * WINDOW] for i in range(args.windows)]
    found = {"without": [], "with": []}
    for rep in range(args.reps):
        for name in list(found)[:: 1 if rep % 2 == 0 else -1]:
            with tempfile.TemporaryDirectory() as folder:
                more = {"store": folder} if name == "with" else {}
                with Worker(args.model, device="cpu", threads=1, **more) as worker:
                    worker.score(windows[:1])
                    before = processor_s(worker.pid)
                    worker.score([[*window[1:], window[0]] for window in windows])  # other results than those before
                    found[name].append(processor_s(worker.pid) - before)
            print(f"{name:8} store: {found[name][-1]:6.2f} s", flush=True)
    n_tok = sum(len(window) - 1 for window in windows)
    medians = {name: n_tok / statistics.median(seconds) for name, seconds in found.items()}
    for name, rate in medians.items():
        print(f"| {name} store | {rate:.1f} | {n_tok / max(found[name]):.1f} to {n_tok / min(found[name]):.1f} |")
    print(f"ratio {medians['with'] / medians['without']:.4f}")


def n_kept(store):
    try:
        with sqlite3.connect(f"file:{store}/results.sqlite?mode=ro", uri=True) as db:
            return db.execute("SELECT count(*) FROM results").fetchone()[0]
    except sqlite3.Error:  # no store yet
        return 0


def worker_of(pid):
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return next(child for child in children if Path(f"/proc/{child}/comm").read_text() == "ctworker\n")


def life(command, env, store, life_s):
    """One interrupted run: (results before it, results after it, seconds and processor seconds lost); None: it ended first."""
    with tempfile.TemporaryFile() as said:
        child = subprocess.Popen(command, env=env, stdout=said, stderr=said)
        while b"Running loglikelihood_rolling" not in os.pread(said.fileno(), 1 << 20, 0):
            assert child.poll() is None, os.pread(said.fileno(), 1 << 20, 0).decode()
            time.sleep(0.05)
        worker = worker_of(child.pid)
        began, before = time.monotonic(), n_kept(store)
        n, at, used = before, began, processor_s(worker)
        while time.monotonic() < began + life_s and child.poll() is None:
            if (now := n_kept(store)) != n:
                n, at, used = now, time.monotonic(), processor_s(worker)
            time.sleep(0.05)
        used_now = processor_s(worker)
        child.send_signal(signal.SIGINT)
        lost = time.monotonic() - at, (used_now or 0) - (used or 0)
        code = child.wait(60)
        last = os.pread(said.fileno(), 1 << 20, 0).decode().strip().splitlines()[-1]
    if code == 0:
        return None
    assert code == 130 and re.search("interrupted: .*to go on: ", last), last
    return before, n_kept(store), *lost


def kills(args):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job would hand SIG_IGN on
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        arguments = f"pretrained={args.model},device=cpu,max_length={WINDOW},store={store}"
        command = [sys.executable, "-m", "ctworker.run_lm_eval", "--model", "ctworker", "--tasks", "wikitext",
                   "--include_path", str(ROOT / "tasks"), "--model_args", arguments]
        env = os.environ | {"CTWORKER_WIKITEXT": str(args.text), "PYTHONPATH": str(ROOT / "harness_adapter/src")}
        seen, rng = [], random.Random(args.seed)
        while len(seen) < args.kills:
            life_s = rng.uniform(0, MOST_S)
            found = life(command, env, store, life_s)
            if found is None:
                print("the run came to its end: fewer instants than asked for")
                break
            seen.append(found)
            before, after, lost_s, used_s = found
            print(f"| {len(seen)} | {life_s:.1f} s | {after - before} | {lost_s:.1f} s | {used_s:.1f} s |", flush=True)
        print(f"lost at most {max(s for *_, s, _ in seen):.1f} s, {max(s for *_, s in seen):.1f} s of processor time")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("what", choices=("rates", "kills"))
    parser.add_argument("--windows", type=int, default=8)
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--kills", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    {"rates": rates, "kills": kills}[args.what](args)


if __name__ == "__main__":
    main()
