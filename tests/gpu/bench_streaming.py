"""The part `stream` of tests/gpu/bench: weights that are streamed, compared with resident ones."""

import re
import statistics
import time

from bench_jobs import disk_rate, forget, time_served
from bench_plan import WINDOW
from bench_tools import say
from gpu_programs import Served, weight_bytes

PART = 4  # the weights' memory is a PART-th of the weights


def note_of(worker):
    found = re.search(r"weights: (streamed, .*)", worker.text())
    return found[1] if found else "not streamed"


def timed(b, fmt, pairs, *options, warm=1):
    """(seconds of a job of all windows after `warm` others, what the worker said about the weights)."""
    with Served(b.p, b.folders[fmt], *b.options(), *options, limit_s=b.clock.left()) as worker:
        seconds = time_served(worker, pairs, b.clock.left(), reps=1, warm=warm)["seconds"]
        return seconds, note_of(worker)


def part_stream(b):
    """Interleaved with resident weights: from the page cache, with a quarter of the weights' memory; then from the
    disk, in a process that has read nothing before."""
    pairs = [(w[:1], w[1:]) for w in (b.tokens(WINDOW + 1) for _ in range(b.args.windows))]
    n_tok = len(pairs) * WINDOW
    for f in b.args.formats:
        stored = weight_bytes(b.folders[f])
        limit = ("--placement", "streamed", "--weights-limit", f"{stored // PART}B")
        times = {"resident": [], "streamed": []}
        for _ in range(b.args.reps):
            times["resident"].append(timed(b, f, pairs, "--placement", "resident")[0])
            seconds, note = timed(b, f, pairs, *limit)
            times["streamed"].append(seconds)
        resident, streamed = (statistics.median(times[k]) for k in ("resident", "streamed"))
        say(f"{f}: weights {note}")
        say(f"{f}: {n_tok / resident:.0f} tokens/s resident, {n_tok / streamed:.0f} streamed")
        b.add(f"{f}: tokens/s streamed from the page cache through 1/{PART}, to resident", f"{n_tok / streamed:.0f}",
              f"{n_tok / resident:.0f}", resident / streamed, 0.97)
        found = b.numbers["formats"][f]["stream"] = {"resident_s": resident, "streamed_s": streamed, "note": note,
                                                     "all": times, "bytes": stored}
        forget(b.folders[f])
        disk = disk_rate(b.folders[f])
        forget(b.folders[f])
        start = time.perf_counter()
        cold, note = timed(b, f, pairs, *limit, warm=0)
        found |= {"cold_s": cold, "cold_note": note, "cold_process_s": time.perf_counter() - start,
                  "disk_bytes_per_s": disk}
        say(f"{f}: cold: weights {note}; {n_tok / cold:.0f} tokens/s")
        if disk:
            best = max(resident, stored / disk)
            b.add(f"{f}: tokens/s streamed from the disk, to the lesser of resident and the disk's rate",
                  f"{n_tok / cold:.0f}", f"{n_tok / best:.0f}", best / cold, 0.95)
