"""The part `several` of tests/gpu/run: several GPUs against one of them, bit for bit, wherever the weights are."""

import json
import random
import re
import time
from contextlib import nullcontext

from bench_jobs import more_windows
from gpu_faults import EXIT_DEVICE, FALLING, SHIM, fault_env
from gpu_programs import Refused, Served, bits, call, has_module, n_gpus, weight_bytes, wide_items
from gpu_streaming import random_options, written

# As in gpu_streaming.py: shape, format, layers, vocabulary.
MODELS = (("llama-1b", "w4a16", 8, 8192), ("llama-8b", "nvfp4", 4, 16384))
LENGTHS = (2, 129, 700, 1025, 2049, 65, 300, 1500, 33, 2048)
LIMITS = 4  # random ones, of each model and variant
ALL = ("--devices", "all")
TOO_LITTLE = re.compile("cannot be streamed through|raise --weights-limit")


def hosted(model):
    """Options: all that does not stay is in host memory."""
    return ["--placement", "streamed", "--host-memory-limit", f"{2 * weight_bytes(model)}B"]


def same_bits(c, model, variant):
    """(ok, detail): replicated, sharded, streamed and under random limits, as one GPU that holds everything."""
    items, rng = wide_items(model, LENGTHS, c.seed), random.Random(c.seed)
    want, _ = c.p.score(model, items, *c.options(variant), "--placement", "resident", limit_s=c.left(60))
    todo = [["--placement", p] for p in ("resident", "sharded", "streamed")] + [hosted(model)]
    todo += [["--placement", "sharded", "--chunk-tokens", 1000]]  # the head's parts come again for each chunk
    todo += [["--placement", rng.choice(("auto", "sharded", "streamed")), *random_options(rng, weight_bytes(model))]
             for _ in range(LIMITS)]
    done = set()
    for options in todo:
        try:
            got, log = c.p.score(model, items, *c.options(variant), *ALL, *options, limit_s=c.left(60))
        except Refused as e:
            if not TOO_LITTLE.search(str(e)):
                raise
            continue
        if bits(got) != bits(want):
            return False, f"{' '.join(options)}: other bits than one GPU"
        done |= {word for word in ("resident", "sharded", "streamed") if f"weights: {word}" in log}
    return len(done) == 3, f"{', '.join(sorted(done))}; {len(todo)} placements: same bits"


def served(c, model, variant, placement, disturb):
    """(ok, detail): jobs that arrive at any time beside others that are cancelled, while (disturb) another process
    keeps the last GPU busy: the bits of one GPU."""
    rng = random.Random(f"{c.seed} {placement}")
    pairs = [(i["tokens"][:1], i["tokens"][1:]) for i in wide_items(model, LENGTHS, c.seed)]
    options = [*c.options(variant), "--pass-tokens", 4096]
    with Served(c.p, model, *options, "--placement", "resident", limit_s=c.left(60)) as one:
        want = one.result(one.submit(pairs), len(pairs), c.left(60))
    last = ["--device", c.n_gpus - 1, "--placement", "resident"]
    busy = Served(c.p, model, *options, *last, limit_s=c.left(60)) if disturb else nullcontext()
    with busy, Served(c.p, model, *options, *ALL, "--placement", placement, limit_s=c.left(60)) as worker:
        hog = busy.submit(more_windows(pairs, 200 * len(pairs))) if disturb else None
        jobs, doomed = [], []
        for _ in range(12):
            some = rng.choices(range(len(pairs)), k=rng.randint(1, 2 * len(pairs)))
            jobs.append((some, worker.submit([pairs[i] for i in some])))
            if rng.random() < 0.4:
                doomed.append(worker.submit(more_windows(pairs, 5 * len(pairs))))
            time.sleep(rng.uniform(0, 0.1))
            if doomed and rng.random() < 0.7:
                worker.client.cancel(doomed.pop())
        for job in doomed:
            worker.client.cancel(job)
        for some, job in jobs:
            got = worker.result(job, len(some), c.left(60))
            if [got[at] for at in range(len(some))] != [want[i] for i in some]:
                return False, "other bits than one GPU"
        if disturb:
            busy.client.cancel(hog)
    return True, f"{len(jobs)} jobs beside cancelled ones: same bits"


def falls_over(c, model):
    """(ok, detail): one GPU's fault ends CUDA for the whole process, as CUDA documents: `score` ends with the exit code of a
    device, one error line, and no result but right ones."""
    items, options = wide_items(model, LENGTHS, c.seed), ["--backend", "cuda", *FALLING]
    want = dict(bits(c.p.score(model, items, *options, "--placement", "resident", limit_s=c.left(60))[0]))
    text, n_results, n = "".join(json.dumps(i) + "\n" for i in items), 0, 0
    for placed in (["--placement", "resident"], ["--placement", "sharded"], hosted(model)):
        for at in (60, 300):
            argv = [c.p.worker, "score", "--model", model, *options, *ALL, *placed, "--pass-tokens", 700]
            done = call(argv, c.left(60), c.p.env | {"CTW_LOG": "error"} | fault_env(c, at), text)
            got, lines = bits([json.loads(x) for x in done.stdout.splitlines()]), done.stderr.strip().splitlines()
            about = f"{placed[1]}, after a fault in product {at}"
            if done.returncode != EXIT_DEVICE or len(lines) != 1 or "error: score: " not in lines[0]:
                return False, f"{about}: exit {done.returncode}, {len(lines)} line(s): {lines[-1][:150] if lines else ''}"
            if any(want[i] != numbers for i, numbers in got):
                return False, f"{about}: other bits than one GPU"
            n_results, n = n_results + len(got), n + 1
    return True, f"{n} faults: exit {EXIT_DEVICE} and one line each; {n_results} results before them, the same bits"


def part_several(c):
    """Several GPUs, replicated, sharded and streamed, under random limits, beside cancelled jobs, one of them held
    back: the bits of one GPU. Skipped on one."""
    c.n_gpus = n_gpus()
    if c.n_gpus < 2:
        return c.skip("several", "this machine has one GPU")
    for name, model in written(c, MODELS):
        if (c.p.tests / SHIM).exists():
            c.attempt(f"{name}, a GPU that falls over", falls_over, c, model)
        for v in c.variants:
            c.attempt(f"{name} {v}", same_bits, c, model, v)
            for placement in ("resident", "sharded", "streamed") if has_module("msgpack") else ():
                c.attempt(f"{name} {v}, {placement}, served", served, c, model, v, placement, False)
                c.attempt(f"{name} {v}, {placement}, one GPU held back", served, c, model, v, placement, True)
