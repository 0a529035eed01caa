"""The part `streaming` of tests/gpu/run: streamed weights against resident ones, bit for bit."""

import random
import time

from bench_jobs import more_windows
from gpu_programs import Late, Refused, Served, bits, has_module, make_checkpoint, wide_items, weight_bytes

# Real widths, more layers than the other parts need: shape, format, layers, vocabulary. llama-1b has a tied head.
MODELS = (("llama-1b", "w4a16", 8, 8192), ("llama-1b", "bf16", 5, 4099), ("llama-8b", "nvfp4", 4, 16384))
LENGTHS = (2, 129, 700, 1025, 2049, 65, 300)
LIMITS = 3  # of each model and variant, besides the least
CANNOT = "cannot be streamed through"


def random_options(rng, weights):
    """A limit for the weights, and sizes of passes and chunks; None: as little as streaming needs."""
    limit = rng.uniform(0.2, 1.0)
    return ["--weights-limit", f"{int(limit * weights)}B", "--pass-tokens", str(rng.choice((1, 900, 2500, 67584))),
            "--chunk-tokens", str(rng.choice((64, 1000, 8448)))]


def same_bits(c, model, variant):
    """(ok, detail): the results of all limits have the bits of resident weights."""
    items, rng = wide_items(model, LENGTHS, c.seed), random.Random(c.seed)
    want, _ = c.p.score(model, items, *c.options(variant), "--placement", "resident", limit_s=c.left(60))
    tried = streamed = 0
    while tried <= LIMITS:
        options = random_options(rng, weight_bytes(model)) if tried else []
        try:
            got, log = c.p.score(model, items, *c.options(variant), "--placement", "streamed", *options,
                                 limit_s=c.left(60))
        except Refused as e:
            if CANNOT not in str(e):
                raise
            continue  # too little for the largest layers
        tried += 1
        streamed += "every pass reads" in log
        if bits(got) != bits(want):
            return False, f"{' '.join(options) or 'the least memory'}: other bits than resident"
    return streamed > 1, f"{tried} limits, of which {streamed} streamed: same bits"


def cancelled(c, model, variant):
    """(ok, detail): jobs after cancelled jobs have the same bits, although passes end anywhere."""
    rng = random.Random(c.seed)
    pairs = [(i["tokens"][:1], i["tokens"][1:]) for i in wide_items(model, LENGTHS, c.seed)]
    with Served(c.p, model, *c.options(variant), "--placement", "resident", limit_s=c.left(60)) as worker:
        want = worker.result(worker.submit(pairs), len(pairs), c.left(60))
    with Served(c.p, model, *c.options(variant), "--placement", "streamed", limit_s=c.left(60)) as worker:
        for n in range(8):
            doomed = worker.submit(more_windows(pairs, 20 * len(pairs)))
            time.sleep(rng.uniform(0, 0.3))
            worker.client.cancel(doomed)
            if worker.result(worker.submit(pairs), len(pairs), c.left(60)) != want:
                return False, f"other bits after {n + 1} cancelled jobs"
    return True, "8 cancelled jobs: same bits"


def written(c, models):
    """(name, folder) of each model, once its checkpoint is written. One that cannot be written is a failure."""
    for shape, fmt, layers, vocab in models:
        name = f"{shape}-{fmt}-{layers}"
        try:
            yield name, make_checkpoint(c.scratch / name, shape, fmt, "--layers", str(layers), "--vocab", str(vocab),
                                        limit_s=c.left(120))
        except (Refused, Late) as e:
            c.line(False, name, str(e)[:200], time.monotonic())


def part_streaming(c):
    """Weights that are streamed under random limits, with cancelled jobs: the bits of resident weights."""
    for name, model in written(c, MODELS):
        for v in c.variants:
            c.attempt(f"{name} {v}", same_bits, c, model, v)
            if has_module("msgpack"):
                c.attempt(f"{name} {v}, cancelled", cancelled, c, model, v)
