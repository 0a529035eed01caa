"""The part `stream` of tests/gpu/bench: weights that are streamed, compared with resident ones."""

import re
import statistics
import time

from bench_jobs import disk_rate, forget, time_served
from bench_plan import WINDOW
from bench_tools import say
from gpu_programs import Served, weight_bytes

PART = 4  # the weights' memory is a PART-th of the weights
WARM = 16  # windows of the job that brings the GPU to its power limit


def note_of(worker):
    """What the worker said about weights that are streamed or sharded, else "": their places, what bounds a pass."""
    found = re.search(r"weights: (?=streamed|sharded).*(?:\n.*weights: .*)*", worker.text())
    return "; ".join(re.findall(r"weights: (.*)", found[0])) if found else ""


def timed(b, fmt, pairs, *options, warm=WARM):
    """(a job of all windows after one of `warm`, as time_served(); what the worker said about the weights; seconds of
    the whole process until the result)."""
    start = time.perf_counter()
    with Served(b.p, b.folders[fmt], *b.options(fmt), *options, limit_s=b.clock.left()) as worker:
        if warm:
            time_served(worker, pairs[:warm], b.clock.left(), reps=1, warm=0)
        job = time_served(worker, pairs, b.clock.left(), reps=1, warm=0)
        return job, note_of(worker), time.perf_counter() - start


def disk_rates(folder, reading):
    """Forgets the checkpoint, and runs reading() between two measurements of the disk: (its result, their mean)."""
    forget(folder)
    before = disk_rate(folder)
    forget(folder)
    result = reading()
    forget(folder)
    after = disk_rate(folder)
    return result, statistics.mean([before, after]) if before and after else None


def part_stream(b):
    """Interleaved with resident weights: from the page cache, with a quarter of the weights' memory; then from the
    disk, in a process that has read nothing before. All sums of log-probabilities must be the same."""
    pairs = [(w[:1], w[1:]) for w in (b.tokens(WINDOW + 1) for _ in range(b.args.windows))]
    n_tok = len(pairs) * WINDOW
    for f in b.args.formats:
        stored = weight_bytes(b.folders[f])
        limit = ("--placement", "streamed", "--weights-limit", f"{stored // PART}B")
        jobs = {"resident": [], "streamed": []}
        for _ in range(b.args.reps):
            for kind, options in (("resident", ("--placement", "resident")), ("streamed", limit)):
                job, note, _ = timed(b, f, pairs, *options)
                jobs[kind].append(job)
                say(f"{f}: {kind}: {n_tok / job['seconds']:.0f} tokens/s; {note}")
        resident, streamed = (statistics.median(job["seconds"] for job in jobs[k]) for k in ("resident", "streamed"))
        b.add(f"{f}: tokens/s streamed from the page cache through 1/{PART}, to resident", f"{n_tok / streamed:.0f}",
              f"{n_tok / resident:.0f}", resident / streamed, 0.97)
        (job, note, process_s), disk = disk_rates(b.folders[f], lambda f=f, o=limit: timed(b, f, pairs, *o, warm=0))
        cold = job["seconds"]
        say(f"{f}: cold: {n_tok / cold:.0f} tokens/s, {process_s:.1f} s with start and load; {note}")
        if disk:
            best, bound = max((resident, "resident"), (stored / disk, f"reading the file once at {disk / 1e9:.2f} GB/s"))
            b.add(f"{f}: tokens/s streamed from the disk, to {bound}", f"{n_tok / cold:.0f}", f"{n_tok / best:.0f}",
                  best / cold, 0.95)
        base = jobs["resident"][0]["sums"]
        other = sum(x != y for j in (*jobs["resident"], *jobs["streamed"], job) for x, y in zip(base, j["sums"]))
        b.add(f"{f}: windows whose sums differ in any of these jobs", str(other), "0", None if other else 1.0, 1.0)
        b.numbers["formats"][f]["stream"] = {
            "resident_s": resident, "streamed_s": streamed, "cold_s": cold, "cold_process_s": process_s, "cold_note": note,
            "all": {k: [job["seconds"] for job in v] for k, v in jobs.items()}, "disk_bytes_per_s": disk, "bytes": stored,
            "other_sums": other}
