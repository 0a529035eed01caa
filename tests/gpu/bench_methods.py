"""Parts of tests/gpu/bench: windows that the worker cuts, and two models compared in one worker."""

import statistics
import sys
import time

from bench_jobs import time_served
from bench_plan import WINDOW
from bench_tools import Watch, say
from gpu_programs import ROOT, Served, weight_bytes

REFERENCE = "bf16"
FORK_WINDOWS, FORK_STRIDE = 73, 512  # of the published run that took 41 hours


def api():
    sys.path[:0] = [str(ROOT / "harness_adapter/src")]
    from ctworker import api as module  # needs msgpack
    return module


def seconds_of(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def part_methods(b):
    """A text in windows by a rule, through the Python package, compared with jobs and a process that score the same
    windows as sequences; interleaved, medians."""
    text = b.tokens(b.args.windows * WINDOW)
    windows = [text[i:i + WINDOW] for i in range(0, len(text), WINDOW)]
    pairs = [(w[:1], w[1:]) for w in windows]
    path = b.item_file("windows", windows)
    for f in b.args.formats:
        times = {"rule": [], "sequences": [], "whole": [], "process": []}
        with Served(b.p, b.folders[f], *b.options(), limit_s=b.clock.left()) as worker, \
                api().Client(worker.client.url) as client:
            time_served(worker, pairs, b.clock.left(), reps=1, warm=0)
            for _ in range(2 * b.args.reps):
                times["rule"].append(seconds_of(lambda c=client: c.score_windows([text], WINDOW)))
                times["sequences"].append(time_served(worker, pairs, b.clock.left(), reps=1, warm=0)["seconds"])
            few = text[:WINDOW + (FORK_WINDOWS - 1) * FORK_STRIDE]
            fork = statistics.median(
                seconds_of(lambda c=client, t=few: c.score_windows([t], WINDOW, stride=FORK_STRIDE))
                for _ in range(3))

        for _ in range(b.args.reps):
            start = time.perf_counter()
            with Served(b.p, b.folders[f], *b.options(), limit_s=b.clock.left()) as worker, \
                    api().Client(worker.client.url) as client:
                client.score_windows([text], WINDOW)
                times["whole"].append(time.perf_counter() - start)
            times["process"].append(b.score_file(f, path)[0])
        b.numbers["formats"][f]["methods"] = {**times, "fork_s": fork}
        mid = {k: statistics.median(v) for k, v in times.items()}
        b.add(f"{f}: {len(windows)} windows by a rule, s, to the same as sequences", f"{mid['rule']:.3f}",
              f"{mid['sequences']:.3f}", mid["rule"] / mid["sequences"], 1.03, False)
        b.add(f"{f}: with start and load, s, to ctworker score", f"{mid['whole']:.2f}", f"{mid['process']:.2f}",
              mid["whole"] / mid["process"], 1.03, False)
        b.add(f"{f}: {FORK_WINDOWS} windows every {FORK_STRIDE} tokens, s", f"{fork:.2f}", "", fork, 4.0, False)


def part_compare(b):
    """A model compared with its bf16 original, both on the GPU, against scoring the model alone; interleaved, medians."""
    text = b.tokens(b.args.windows * WINDOW)
    reference = b.folders[REFERENCE]
    for f in b.args.formats:
        if f == REFERENCE:
            continue
        seconds, watch = {"one": [], "two": [], "layers": []}, Watch()
        with watch, Served(b.p, b.folders[f], "--model", f"reference={reference}", *b.options(),
                           limit_s=b.clock.left()) as worker, api().Client(worker.client.url) as client:
            calls = {"one": lambda c=client: c.score_windows([text], WINDOW),
                     "two": lambda c=client: c.compare_windows([text], WINDOW),
                     "layers": lambda c=client: c.compare_windows([text], WINDOW, layers=True)}
            for i in range(1 + b.args.reps):  # the first does not count
                for name, call in calls.items():
                    took = seconds_of(call)
                    seconds[name] += [took] if i else []
        one, two, layers = (statistics.median(seconds[k]) for k in ("one", "two", "layers"))
        stored = weight_bytes(b.folders[f]) + weight_bytes(reference)
        beyond = watch.summary()["peak_bytes"] - stored - (b.numbers.get("context_bytes") or 0)
        b.numbers["formats"][f]["compare"] = {**seconds, "beyond_weights": beyond}
        say(f"{f}: alone {one:.2f} s, compared {two:.2f} s, {beyond / 2**30:.2f} GiB beyond both models")
        b.add(f"{f}: compared with {REFERENCE}, s, to scoring it alone", f"{two:.2f}", f"{one:.2f}", two / one,
              2.15, False)
        b.add(f"{f}: compared with layers, s, to comparing", f"{layers:.2f}", f"{two:.2f}", layers / two, 1.3, False)
        b.add(f"{f}: compared, GiB beyond both models' weights and context", f"{beyond / 2**30:.2f}", "",
              beyond / 2**30, 3.0, False)
