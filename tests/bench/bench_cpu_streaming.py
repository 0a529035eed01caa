#!/usr/bin/env python3
"""A CPU worker with a model four times as large as the memory that it may take: how near is it to the slower of disk
and processor, and how much memory does it take?

    bench_cpu_streaming.py [--worker BIN] [--model DIR] [--times 4] [--rounds 3] [--tokens 8 64 512]

In every round, in changing order: the disk's rate (the whole file by four threads, directly and, with a page cache that was
dropped, through it: the faster of the two), and for each number of tokens the seconds of a pass whose weights are in memory,
and of a pass whose weights are streamed by a worker that lives in a control group of a quarter of the file's size: what the
page cache holds counts, so every pass reads the disk. A pass is one sequence. ratio: the larger of the seconds that
computing and reading alone take, over those of the streamed pass; medians. The processor reads, too: with few of them, it
cannot reach 1 where both take as long.

Needs root for the control group. Prints a Markdown table, and what the worker said beforehand.
"""

import argparse
import mmap
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/tools"), str(ROOT / "tests/e2e")]
import worker_cli  # noqa: E402
import worker_process as w  # noqa: E402

MIB = 1 << 20
READERS = 4
REST = 64 * MIB  # of the process beside weights and passes


class ControlGroup:
    """Memory of this size for a process and its page cache, of version 1 or 2."""

    def __init__(self, limit):
        old = Path("/sys/fs/cgroup/memory")
        self.folder = (old if old.exists() else Path("/sys/fs/cgroup")) / f"ctw-bench-{os.getpid()}"
        self.folder.mkdir()
        name = "memory.limit_in_bytes" if old.exists() else "memory.max"
        (self.folder / name).write_text(str(limit))

    def program(self, folder, worker):
        """A program that is `worker` in this group."""
        path = Path(folder) / "worker-in-group"
        path.write_text(f'#!/bin/sh\necho $$ > {self.folder}/cgroup.procs\nexec {worker} "$@"\n')
        path.chmod(0o755)
        return path

    def close(self):
        self.folder.rmdir()


def drop_page_cache():
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("1")


def read_seconds(path, flags):
    size, at, lock = os.path.getsize(path), [0], threading.Lock()

    def read(fd):
        buffer = mmap.mmap(-1, MIB)
        while True:
            with lock:
                mine, at[0] = at[0], at[0] + MIB
            if mine >= size:
                return
            os.preadv(fd, [buffer], mine)
    drop_page_cache()
    fd = os.open(path, os.O_RDONLY | flags)
    threads = [threading.Thread(target=read, args=(fd,)) for _ in range(READERS)]
    start = time.monotonic()
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    took = time.monotonic() - start
    os.close(fd)
    return took


def disk_seconds(path):
    took = min(read_seconds(path, os.O_DIRECT), read_seconds(path, 0))
    drop_page_cache()
    return took


def pass_seconds(client, n_tok, vocab):
    ids = [random.randrange(vocab) for _ in range(n_tok + 1)]
    start = time.monotonic()
    job = client.pairs([(ids[:1], ids[1:])])
    reply = client.wait(job, timeout_s=3600)
    assert reply["state"] == "done", reply
    return time.monotonic() - start


def most_memory(pid):
    return int(re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())[1]) << 10


def measure(args, model, file, folder):
    size = os.path.getsize(file)
    limit = size // args.times
    passes = limit // 4
    options = ["--backend", "cpu", "--max-length", "2048", "--memory-limit", f"{passes}B"]
    group = ControlGroup(limit)
    took = {}
    try:
        with w.Worker(*options, "--placement", "resident", program=args.worker, models=[model]) as resident, \
                w.Worker(*options, "--weights-limit", f"{limit - passes - REST}B", models=[model],
                         program=group.program(folder, args.worker)) as streamed, resident.client() as fast:
            with streamed.client() as slow:
                for client in (fast, slow):
                    pass_seconds(client, 2, args.vocab)  # all bytes are read and digested once
                for _ in range(args.rounds):
                    took.setdefault("disk", []).append(disk_seconds(file))
                    for n in random.sample(args.tokens, len(args.tokens)):
                        for name, client in random.sample([("computing", fast), ("streamed", slow)], 2):
                            took.setdefault((name, n), []).append(pass_seconds(client, n, args.vocab))
                memory = most_memory(streamed.process.pid)
                said = re.findall(r"weights: (.*)", streamed.text())
    finally:
        group.close()
    report(args, took, size, limit, memory, said)


def report(args, took, size, limit, memory, said):
    def median(key):
        return statistics.median(took[key])
    disk = size / median("disk")
    read = re.search(r"every pass reads ([\d.]+) (.)iB", "\n".join(said))
    bytes_ = float(read[1]) * {"M": 1 << 20, "G": 1 << 30}[read[2]]
    print(f"file {size / 1e9:.2f} GB, memory allowed {limit / 1e6:.0f} MB, most resident {memory / 1e6:.0f} MB; "
          f"disk {disk / 1e9:.2f} GB/s; {args.rounds} rounds; {os.cpu_count()} processors\n")
    print("| tokens of a pass | computing alone, s | reading alone, s | streamed, s | spread | ratio |\n" + 6 * "| --- " + "|")
    for n in args.tokens:
        compute, streamed, reading = median(("computing", n)), median(("streamed", n)), bytes_ / disk
        all_ = took["streamed", n]
        print(f"| {n} | {compute:.2f} | {reading:.2f} | {streamed:.2f} | {min(all_):.2f} to {max(all_):.2f} | "
              f"{max(compute, reading) / streamed:.2f} |")
    print("\nsaid beforehand:\n" + "\n".join(said))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--worker", default=worker_cli.default_worker())
    parser.add_argument("--model", help="default: 16 layers of the shape of Mistral 7B in 4 bits, 1.9 GB")
    parser.add_argument("--vocab", type=int, default=8192)
    parser.add_argument("--times", type=int, default=4, help="the file's size over the memory allowed (default: 4)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, nargs="+", default=[8, 64, 512])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=os.environ.get("CTW_SCRATCH")) as folder:
        model = args.model
        if model is None:
            model = f"{folder}/model"
            subprocess.run([sys.executable, ROOT / "tests/tools/make_checkpoint.py", "mistral-7b", model, "--layers", "16",
                            "--vocab", str(args.vocab)], check=True)
        measure(args, model, f"{model}/model.safetensors", folder)


if __name__ == "__main__":
    main()
