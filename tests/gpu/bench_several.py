"""The part `several` of tests/gpu/bench: all GPUs of the machine against one of them, replicated and sharded."""

import re

from bench_jobs import more_windows, time_served
from bench_plan import GEMM_FLOPS, WINDOW, matrices, token_flops
from bench_streaming import PART, note_of
from bench_tools import say
from gpu_programs import Late, Served, call, n_gpus, weight_bytes

LONG, LONG_S = 512, 40  # windows of the long job (1M tokens), unless one GPU would take longer than this
PLACES = {"one": ("--device", "0", "--placement", "resident"), "replicated": ("--devices", "all", "--placement", "resident"),
          "sharded": ("--devices", "all", "--placement", "sharded")}


def least_memory(b, fmt):
    """Options for the least memory of each GPU that sharded weights need, which the worker names when it refuses less."""
    argv = [b.p.worker, "inspect", b.folders[fmt], *b.options(fmt), *PLACES["sharded"], "--weights-limit", "1MiB"]
    found = re.search(r"the weights need ([\d.]+) ([MG]iB) on each", call(argv, b.clock.left(), b.p.env).stderr)
    return ["--weights-limit", f"{float(found[1]) * 1.01:.3f}{found[2]}"] if found else []


def measured(b, fmt, place, pairs, long):
    """Seconds of a job of the windows, of the long job and of one window; sums of the windows; the weights' bytes on a GPU."""
    more = least_memory(b, fmt) if place == "sharded" else []
    with Served(b.p, b.folders[fmt], *b.options(fmt), *PLACES[place], *more, limit_s=b.clock.left()) as worker:
        time_served(worker, pairs, b.clock.left(), reps=1, warm=0)
        job = time_served(worker, pairs, b.clock.left(), reps=1, warm=0)
        found = {"job": job["seconds"], "sums": job["sums"]}
        if long > len(pairs):
            many = more_windows(pairs, long)
            found["long"] = time_served(worker, many, b.clock.left(), reps=1, warm=0)["seconds"]
        found["single"] = time_served(worker, pairs[:1], b.clock.left())["seconds"]
        found["memory"], found["note"] = worker.client.info()["models"][0]["weights_memory"], note_of(worker)
    rate = long * WINDOW / found.get("long", found["job"])
    say(f"{fmt}, {place}: {len(pairs)} windows {found['job']:.2f} s; {rate:.0f} tokens/s; one window "
        f"{1e3 * found['single']:.1f} ms; {found['memory'] / 2**30:.2f} GiB of weights on a GPU {found['note']}")
    return found


def bytes_moved(text):
    """Of `serve --log debug`: bytes of weights that passes have had {from the host, from neighbours}."""
    units = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
    moved = re.findall(r"weights of a pass: .* from files, ([\d.]+) (\w+) from host memory, ([\d.]+) (\w+) from neigh", text)
    return {"host": sum(float(x) * units[u] for x, u, _, _ in moved),
            "neighbours": sum(float(x) * units[u] for _, _, x, u in moved)}


def hosted(b, fmt, n):
    """Weights that pass through a quarter of their bytes from host memory: a window on each of n GPUs at the same time, to
    one on one GPU, which reading bounds; and what they read."""
    stored, found = weight_bytes(b.folders[fmt]), {}
    options = ("--placement", "streamed", "--weights-limit", f"{stored // PART}B", "--host-memory-limit", f"{2 * stored}B",
               "--log", "debug")
    for name, devices, windows in (("one", ("--device", "0"), 1), ("all", ("--devices", "all"), n)):
        pairs = [(w[:1], w[1:]) for w in (b.tokens(WINDOW + 1) for _ in range(windows))]
        with Served(b.p, b.folders[fmt], *b.options(fmt), *devices, *options, limit_s=b.clock.left()) as worker:
            time_served(worker, pairs, b.clock.left(), reps=1, warm=0)  # the weights come into host memory
            before = bytes_moved(worker.text())
            job = time_served(worker, pairs, b.clock.left(), reps=7, warm=0)
            after = bytes_moved(worker.text())
            found[name] = {"seconds": job["seconds"]} | {k: (after[k] - before[k]) / 7 for k in after}
            host, neighbours = (found[name][k] / 2**30 for k in ("host", "neighbours"))
            say(f"{fmt}, from host memory, {name}: {windows} windows {1e3 * job['seconds']:.1f} ms; a job moves {host:.2f} GiB "
                f"from the host, {neighbours:.2f} GiB from neighbours; {note_of(worker)}")
    one, every = found["one"], found["all"]
    b.numbers["formats"][fmt]["hosted"] = found
    b.add(f"{fmt}: {n} GPUs, from host memory through 1/{PART}, a window on each, ms, to one on one",
          f"{1e3 * every['seconds']:.1f}", f"{1e3 * one['seconds']:.1f}", every["seconds"] / one["seconds"], 1.0, False)
    b.add(f"{fmt}: {n} GPUs, from host memory, GiB that a job of {n} windows reads there, to one window on one GPU",
          f"{every['host'] / 2**30:.2f}", f"{one['host'] / 2**30:.2f}", every["host"] / max(1, one["host"]), 1.2, False)


def limits(b, n):
    """A product on one GPU and on all, copies between two."""
    rows, (columns, k) = 8192, matrices(b.config)["down"]
    answer = b.peer.ask("several", m=rows, n=columns, k=k, seconds=b.args.loop)
    if "error" in answer:
        return
    b.numbers["several_limits"] = answer
    one, every = answer["gemm_tflops"]
    b.add(f"product of {rows} x {columns} x {k} on {n} GPUs at once, TFLOP/s of each, to one alone", f"{every:.0f}", f"{one:.0f}",
          every / one, None)
    gathered = answer.get("all_gather_bytes_per_s")
    say(f"a copy between GPUs: {answer['peer_bytes_per_s'] / 1e9:.0f} GB/s, both ways at once "
        f"{answer['both_ways_bytes_per_s'] / 1e9:.0f} GB/s" + (f"; NCCL's all-gather {gathered / 1e9:.0f} GB/s" if gathered else ""))


def part_several(b):
    n = n_gpus()
    if n < 2:
        return say("several: skipped, this machine has one GPU")
    if b.peer_ok:
        limits(b, n)
        b.peer.ask("drop")
    pairs = [(w[:1], w[1:]) for w in (b.tokens(WINDOW + 1) for _ in range(b.args.windows))]
    slow = LONG * WINDOW * token_flops(b.config) / GEMM_FLOPS > LONG_S
    long = len(pairs) if slow else max(LONG, len(pairs))
    for f in b.args.formats:
        found = {}
        try:
            hosted(b, f, n)
        except Late as e:
            say(f"{f}, from host memory: {e}")
        for place in PLACES:
            try:
                found[place] = measured(b, f, place, pairs, long)
            except Late as e:
                say(f"{f}, {place}: {e}")
        b.numbers["formats"][f]["several"] = {p: {k: v for k, v in x.items() if k != "sums"} for p, x in found.items()}
        one = found.pop("one", None)
        for place, x in found.items() if one else ():
            kind = "long" if "long" in one else "job"
            b.add(f"{f}: {n} GPUs, {place}, {long * WINDOW} tokens, s, to one GPU's", f"{x[kind]:.2f}", f"{one[kind]:.2f}",
                  one[kind] / x[kind], (0.98 if place == "replicated" else 0.97) * n)
            b.add(f"{f}: {n} GPUs, {place}, {len(pairs)} windows, s, to one GPU's", f"{x['job']:.2f}", f"{one['job']:.2f}",
                  one["job"] / x["job"], 0.95 * n if place == "replicated" else None)
            b.add(f"{f}: {n} GPUs, {place}, one window, ms, to one GPU's", f"{1e3 * x['single']:.1f}",
                  f"{1e3 * one['single']:.1f}", x["single"] / one["single"], 1.1, False)
            if place == "sharded":
                b.add(f"{f}: {n} GPUs, sharded, GiB of weights on each, to all", f"{x['memory'] / 2**30:.2f}",
                      f"{one['memory'] / 2**30:.2f}", x["memory"] / one["memory"], round(1 / n + 0.02, 3), False)
            other = sum(p != q for p, q in zip(one["sums"], x["sums"]))
            b.add(f"{f}: {place}: windows whose sums differ from one GPU's", str(other), "0", None if other else 1.0, 1.0)
