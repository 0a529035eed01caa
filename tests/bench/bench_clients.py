#!/usr/bin/env python3
"""Throughput of one worker with 1 to 200 clients: the same work from more and more connections.

    bench_clients.py [--worker BIN] [--model DIR] [--clients 1 8 24 100 200] [--tokens 400000] [--rounds 3]
                     [--hot N]
    bench_clients.py --fair SECONDS [--clients 200]

Each client is one connection with one job; a few processes share the clients. Every round runs each number
of clients once, in changing order. Prints a Markdown table of medians: the rate relative to the first number
of clients in the same round, and the worker's CPU time per token, which other programs on the machine disturb
less. --hot N adds N connections that poll without a pause and ignore `again_ms`. --fair counts instead how many small
jobs each client gets done if all submit one after another for so long: clients of the Python adapter, and clients that
merely obey `retry_ms`.
"""

import argparse
import multiprocessing
import os
import random
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from array import array
from pathlib import Path

import msgpack
import pynng

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/tools"), str(ROOT / "harness_adapter/src")]
import worker_cli  # noqa: E402
from ctworker.client.batches import Item  # noqa: E402
from ctworker.client.connection import Connection  # noqa: E402
from ctworker.client.scoring import Scorer  # noqa: E402

PROCESSES, LENGTH, VOCAB = 4, 128, 256
MAKE = ROOT / "tests/tools/tiny_checkpoint.py"
FAIR_ITEMS = 4  # of a job under --fair


def ints(values):
    return struct.pack(f"<{len(values)}i", *values)


class Client:
    def __init__(self, url):
        self.sock = pynng.Req0(resend_time=-1, recv_timeout=60000, send_timeout=60000,
                               recv_max_size=65 << 20)
        self.sock.dial(url)
        self.n_requests = 0

    def call(self, op, **fields):
        """The reply; while the worker is busy, asks again when the worker says."""
        while True:
            self.n_requests += 1
            self.sock.send(msgpack.packb({"v": 1, "op": op, "id": 1, **fields}))
            reply = msgpack.unpackb(self.sock.recv())
            if reply["ok"]:
                return reply
            if "retry_ms" not in reply["error"]:
                raise SystemExit(f"bench_clients: {op}: {reply['error']['message']}")
            time.sleep(reply["error"]["retry_ms"] / 1000)

    def score(self, seed, n_items):
        rng, job = random.Random(seed), random.randbytes(16)
        items = {"tokens": ints([rng.randrange(VOCAB) for _ in range(n_items * LENGTH)]),
                 "n_tokens": ints([LENGTH] * n_items)}
        self.call("submit", job=job, part=0, items=items,
                  head={"kind": "loglikelihood_rolling", "prefix_token": 0})
        self.call("seal", job=job, parts=1)
        done, state = 0, ""
        while state != "done" or done < n_items:
            reply = self.call("poll", job=job, wait_ms=500, seen=done)
            state = reply["state"]
            while done < reply["items_done"]:
                done += self.call("fetch", job=job, first=done)["n"]
            time.sleep(reply.get("again_ms", 0) / 1000)
        self.call("release", job=job)


def some_clients(url, seeds, n_items, barrier, out):
    """One process, with one thread per client."""
    clients = [Client(url) for _ in seeds]
    barrier.wait()
    threads = [threading.Thread(target=c.score, args=(seed, n_items))
               for c, seed in zip(clients, seeds)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    out.put(sum(c.n_requests for c in clients))


class AdapterClient:
    """A client as lm_eval has it."""

    def __init__(self, url):
        self.connection = Connection(url)
        self.limits = self.connection.info()["limits"]

    def score(self, seed, n_items):
        rng = random.Random(seed)
        items = [Item(array("i", [rng.randrange(VOCAB) for _ in range(LENGTH)])) for _ in range(n_items)]
        Scorer(self.connection, "loglikelihood_rolling", items, {"prefix_token": 0}, self.limits,
               on_score=lambda i, score: None).run()


def fair_clients(kind, url, seeds, seconds, barrier, out):
    """One process; puts the number of jobs that each of its clients got done."""
    clients = [kind(url) for _ in seeds]
    barrier.wait()
    end = time.monotonic() + seconds

    def serve(i):
        n = 0
        while time.monotonic() < end:
            clients[i].score(seeds[i] + 1000 * n, FAIR_ITEMS)
            n += time.monotonic() < end
        out.put(n)

    threads = [threading.Thread(target=serve, args=(i,)) for i in range(len(seeds))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()


def measure_fairness(args, url):
    print("| clients | jobs | least served | median | best served | ratio |\n"
          "| --- | ---: | ---: | ---: | ---: | ---: |")
    for name, kind in (("Python adapter", AdapterClient), ("obey `retry_ms`", Client)):
        for n in args.clients:
            n_processes = min(PROCESSES, n)
            barrier, out = multiprocessing.Barrier(n_processes), multiprocessing.Queue()
            children = [multiprocessing.Process(target=fair_clients, args=(
                kind, url, range(1, n + 1)[i::n_processes], args.fair, barrier, out))
                for i in range(n_processes)]
            for c in children:
                c.start()
            served = sorted(out.get() for _ in range(n))
            for c in children:
                c.join()
            ratio = served[-1] / served[0] if served[0] else float("inf")
            print(f"| {n}, {name} | {sum(served)} | {served[0]} | {served[n // 2]} | {served[-1]} |"
                  f" {ratio:.2f} |", flush=True)


def hot_clients(url, n):
    """Polls an unknown job in a tight loop until the process is ended."""
    def loop(client):
        message = msgpack.packb({"v": 1, "op": "poll", "id": 1, "job": bytes(16), "wait_ms": 0})
        while True:
            client.sock.send(message)
            client.sock.recv()
    for _ in range(n):
        threading.Thread(target=loop, args=(Client(url),), daemon=True).start()
    time.sleep(1e6)


def cpu_seconds(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run(url, pid, n_clients, n_items):
    """(seconds, requests, CPU seconds of the worker) for n_items in equal jobs."""
    n_processes = min(PROCESSES, n_clients)
    barrier, out = multiprocessing.Barrier(n_processes + 1), multiprocessing.Queue()
    seeds = range(1, n_clients + 1)
    children = [multiprocessing.Process(target=some_clients, args=(
        url, seeds[i::n_processes], n_items // n_clients, barrier, out))
        for i in range(n_processes)]
    for c in children:
        c.start()
    barrier.wait()
    start, before = time.monotonic(), cpu_seconds(pid)
    n_requests = sum(out.get() for _ in children)
    seconds, cpu = time.monotonic() - start, cpu_seconds(pid) - before
    for c in children:
        c.join()
    return seconds, n_requests, cpu


def measure(args, url, pid):
    results = {n: [] for n in args.clients}
    run(url, pid, 1, 200)  # warm up
    for r in range(args.rounds):
        order = args.clients[r % len(args.clients):] + args.clients[:r % len(args.clients)]
        got = {}
        for n in order:
            n_items = args.tokens // LENGTH // n * n
            seconds, n_requests, cpu = run(url, pid, n, n_items)
            got[n] = (n_items * LENGTH / seconds, n_requests, n_requests / seconds,
                      cpu / (n_items * LENGTH) * 1e6)
            print(f"round {r + 1}: {n} clients, {got[n][0]:.0f} tokens/s, {n_requests} requests",
                  file=sys.stderr)
        first = got[args.clients[0]]
        for n in order:
            results[n].append((*got[n], got[n][0] / first[0], got[n][3] / first[3]))
    print("| clients | tokens/s | of one client's | requests | requests/s | worker's CPU s per million"
          " tokens | of one client's |\n| ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for n, rows in results.items():
        rate, requests, per_s, cpu, ratio, cpu_ratio = (statistics.median(x) for x in zip(*rows))
        print(f"| {n} | {rate:.0f} | {ratio:.3f} | {requests:.0f} | {per_s:.1f} | {cpu:.1f} |"
              f" {cpu_ratio:.3f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--worker", default=worker_cli.default_worker())
    parser.add_argument("--model", help="a checkpoint (default: a small one made for the run)")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 12, 24, 100, 200])
    parser.add_argument("--tokens", type=int, default=400000, help="tokens per run, all clients together")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--fair", type=int, metavar="SECONDS", help="count the jobs that each client gets done")
    parser.add_argument("--hot", type=int, default=0, help="connections that poll without a pause")
    args = parser.parse_args()
    multiprocessing.set_start_method("spawn")  # nng does not survive a fork
    with tempfile.TemporaryDirectory(prefix="bench-") as d:
        if args.model is None:
            args.model = f"{d}/model"
            size = [] if args.fair else ["--hidden", "512", "--inner", "1408", "--heads", "8", "--kv-heads", "4",
                                         "--head", "64", "--layers", "8"]
            subprocess.run([sys.executable, MAKE, "llama", "dense", args.model, *size], check=True)
        url, ready = f"ipc://{d}/w.sock", Path(d, "ready")
        worker = subprocess.Popen([args.worker, "serve", "--model", args.model, "--backend", "cpu",
                                   "--listen", url, "--ready-file", str(ready), "--log", "warn"])
        hot = multiprocessing.Process(target=hot_clients, args=(url, args.hot), daemon=True)
        try:
            while not ready.exists():
                if worker.poll() is not None:
                    sys.exit("bench_clients: the worker ended before it was ready")
                time.sleep(0.05)
            if args.hot:
                hot.start()
            if args.fair:
                measure_fairness(args, url)
            else:
                measure(args, url, worker.pid)
        finally:
            if hot.is_alive():
                hot.kill()
            worker.terminate()
            worker.wait()


if __name__ == "__main__":
    main()
