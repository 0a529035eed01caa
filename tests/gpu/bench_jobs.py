"""Short parts of tests/gpu/bench: one window, some questions, loading."""

import mmap
import os
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from bench_plan import LOADS, MIX_DOCUMENT, MIX_ITEMS, QUESTION_BATCHES, WINDOW, seconds_of_load
from bench_tools import MIB, say
from gpu_programs import Served, make_checkpoint, weight_bytes, weight_files


# ---- small jobs ----------------------------------------------------------------------------------

def question_pairs(b, n=40, choices=4):
    pairs = []
    for _ in range(n):
        context = b.tokens(b.rng.randint(95, 180))
        pairs += [(context, b.tokens(b.rng.randint(5, 20))) for _ in range(choices)]
    return pairs


def more_windows(pairs, n):
    """n windows that all differ, of the windows' tokens: equal sequences of a job are computed once."""
    turns = [(*pairs[i % len(pairs)], i // len(pairs)) for i in range(n)]
    return [(context, tokens[turn:] + tokens[:turn]) for context, tokens, turn in turns]


def time_served(worker, pairs, limit_s, reps=7, warm=2):
    """Median seconds from submit to the last result, after `warm` jobs that do not count; the last job's sums."""
    if len({(*c, *k) for c, k in pairs}) < len(pairs):
        raise ValueError("a job's sequences must differ: equal ones are computed once, see more_windows()")
    times = []
    for i in range(reps + warm):
        start = time.perf_counter()
        got = worker.result(worker.submit(pairs, columns=()), len(pairs), limit_s)
        if i >= warm:
            times.append(time.perf_counter() - start)
    return {"seconds": statistics.median(times), "all": times, "sums": [got[i][0] for i in range(len(pairs))]}


def part_small(b, parts):
    jobs = {}
    if "single" in parts:
        window = b.tokens(WINDOW + 1)
        jobs["single"] = ([(window[:1], window[1:])], (1,), "a single window")
    if "questions" in parts:
        jobs["questions"] = (question_pairs(b), QUESTION_BATCHES, "40 questions of 4 choices")
    theirs = {}
    for name, (pairs, batches, about) in jobs.items():
        if not b.peer_ok or b.peer.model(b.config) is None:
            continue
        rows, found = [[len(c), c + k] for c, k in pairs], {}
        for batch in batches:
            answer = b.peer.ask("score", rows=rows, batch=batch, reps=7)
            if "error" not in answer:
                found[batch] = answer["seconds"]
        if found:
            theirs[name] = min(found.values())
            b.numbers[f"transformers_{name}"] = found
            say(f"transformers, {about}, ms by batch: " + ", ".join(
                f"{k}: {1e3 * v:.1f}" for k, v in found.items()))
    for f in b.args.formats:
        with Served(b.p, b.folders[f], *b.options(f), limit_s=b.clock.left()) as worker:
            for name, (pairs, _, about) in jobs.items():
                ours = time_served(worker, pairs, b.clock.left())
                b.numbers["formats"][f][name] = {k: ours[k] for k in ("seconds", "all")}
                say(f"{f}, {about}: {1e3 * ours['seconds']:.1f} ms")
                peer = theirs.get(name)
                b.add(f"{f}: {about}, ms", f"{1e3 * ours['seconds']:.1f}",
                      f"{1e3 * peer:.1f}" if peer else "", ours["seconds"] / peer if peer else None,
                      0.9 if peer else None, False)


def n_inputs(pairs):
    return sum(len(c) + len(k) - 1 for c, k in pairs)


def part_mix(b):
    """A long document among short questions, and windows of as many tokens (which have logits at each
    token, not only at the answers'); interleaved."""
    document = b.tokens(MIX_DOCUMENT + 1)
    mixed = [(document[:1], document[1:])] + question_pairs(b, MIX_ITEMS // 4)
    windows = []
    while n_inputs(windows) < n_inputs(mixed):
        window = b.tokens(WINDOW + 1)
        windows.append((window[:1], window[1:]))
    for f in b.args.formats:
        seconds = {"mixed": [], "windows": []}
        with Served(b.p, b.folders[f], *b.options(), limit_s=b.clock.left()) as worker:
            for i in range(4):  # the first does not count
                for name, pairs in (("mixed", mixed), ("windows", windows)):
                    took = time_served(worker, pairs, b.clock.left(), reps=1, warm=0)["seconds"]
                    seconds[name] += [took] if i else []
        rates = [n_inputs(mixed) / statistics.median(seconds["mixed"]),
                 n_inputs(windows) / statistics.median(seconds["windows"])]
        b.numbers["formats"][f]["mix"] = {"tokens_per_s": rates[0], "windows_tokens_per_s": rates[1],
                                          "tokens": n_inputs(mixed)}
        say(f"{f}: a document among {MIX_ITEMS} questions, {n_inputs(mixed)} tokens: {rates[0]:.0f} tokens/s")
        b.add(f"{f}: a document among questions, tokens/s, to windows", f"{rates[0]:.0f}",
              f"{rates[1]:.0f}", rates[0] / rates[1], None)


# ---- loading -------------------------------------------------------------------------------------

def forget(folder):
    """Drops a checkpoint's pages from the page cache."""
    for path in weight_files(folder):
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def disk_rate(folder, most=4 << 30):
    """Bytes per second of reading past the page cache, in 8 threads."""
    path = max(weight_files(folder), key=lambda p: p.stat().st_size)
    block, size = 16 * MIB, min(path.stat().st_size, most) // (16 * MIB) * 16 * MIB
    if size == 0:
        return None
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    local = threading.local()

    def read(at):
        if not hasattr(local, "page"):
            local.page = mmap.mmap(-1, block)
        return os.preadv(fd, [local.page], at)
    try:
        with ThreadPoolExecutor(8) as pool:
            start = time.perf_counter()
            done = sum(pool.map(read, range(0, size, block)))
            return done / (time.perf_counter() - start)
    except OSError as e:
        say(f"reading past the page cache: {e}")
        return None
    finally:
        os.close(fd)


def part_load(b):
    """Loads, from the worker's log, and processes that score three tokens, compared with processes without a
    model; interleaved, medians."""
    short = b.item_file("short", [[1, 2, 3]])
    tiny = b.tiny()
    b.score_file(tiny, short)
    copies = b.numbers.get("copies") or {}
    for f in b.args.formats:
        folder, found = b.folders[f], b.numbers["formats"][f]
        stored = weight_bytes(folder)
        b.score_file(f, short)
        idle, warm, loads = [], [], []
        for _ in range(LOADS):
            idle.append(b.score_file(tiny, short)[0])
            seconds, log = b.score_file(f, short, log="debug")
            warm.append(seconds)
            loads.append(seconds_of_load(log))
        forget(folder)
        disk = disk_rate(folder)
        forget(folder)
        cold, log = b.score_file(f, short, log="debug")
        load = {"warm": statistics.median(loads), "cold": seconds_of_load(log)}
        found["load"] = {"warm_s": statistics.median(warm), "cold_s": cold,
                         "start_s": statistics.median(idle), "loads_s": loads, "cold_load_s": load["cold"],
                         "all_warm_s": warm, "all_start_s": idle, "disk_bytes_per_s": disk,
                         "bytes": stored}
        say(f"{f}: first score after {found['load']['warm_s']:.2f} s warm, {cold:.2f} s cold "
            f"({found['load']['start_s']:.2f} s without a model); loads of {1e3 * min(loads):.0f} to "
            f"{1e3 * max(loads):.0f} ms")
        for name, most in (("warm", copies.get("host_bytes_per_s")), ("cold", disk)):
            rate = stored / load[name]
            b.add(f"{f}: load, {name}, GB/s", f"{rate / 1e9:.1f}",
                  f"{most / 1e9:.1f}" if most else "", rate / most if most else None,
                  0.9 if most else None)


def part_peerload(b):
    """transformers from a dense checkpoint on disk, in a fresh process (imports not counted)."""
    more = [] if b.args.layers is None else ["--layers", str(b.args.layers)]
    folder = make_checkpoint(b.scratch / f"{b.args.shape}-dense", b.args.shape, "bf16", *more,
                             limit_s=b.clock.left())
    b.peer.ask("drop")
    for name in ("warm", "cold"):
        if name == "cold":
            forget(folder)
        answer = b.peer.ask("first_score", folder=str(folder))
        b.peer.ask("drop")
        if "error" not in answer:
            b.numbers[f"transformers_first_score_{name}_s"] = answer["seconds"]
            for f in b.args.formats:
                ours = b.numbers["formats"][f].get("load", {}).get(f"{name}_s")
                if ours:
                    b.add(f"{f}: first score, {name}, s, to transformers", f"{ours:.2f}",
                          f"{answer['seconds']:.2f}", ours / answer["seconds"], None)
    b.peer.built = None
