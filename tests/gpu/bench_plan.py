"""Shape arithmetic of tests/gpu/bench: the operations of a model's pass, the size of a checkpoint, the expected
duration of a run's parts, and parsing of the test programs' tables. Needs no GPU."""

import os
import re
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "tools")]
import make_checkpoint as mc  # noqa: E402
import recurrent_shapes as rs  # noqa: E402

WINDOW = 2048
DATA_ROUNDS, DATA_SLICE_S = 5, 0.3  # of the part `data`: rounds that count, a slice of each kind
LOADS = 9  # of the part `load`
LIMIT_ROWS = 8192, 8448  # of the limit's products: four windows; whole waves of an H200, as chunks are
MIX_DOCUMENT, MIX_ITEMS = 8192, 1000  # of the part `mix`: tokens, contexts with an answer
BATCHES, QUESTION_BATCHES = (1, 2, 4, 8), (8, 16, 32, 64)  # of transformers

# The rates behind predicted durations: one H200, 16 cores and a network disk, as seen in 2026-11.
GEMM_FLOPS = 6.4e14
PEER_SHARE = 0.75  # transformers' rate over ours
WRITE_BYTES_PER_CORE, WRITE_BYTES = 1.5e8, 1.5e9  # make_checkpoint.py, per second
WARM_BYTES, COLD_BYTES = 2.5e10, 1.3e9  # read per second
PEER_MOST_BYTES = 1.3e11  # a larger dense model is left out
START_S, CHOOSE_S, TORCH_S = 0.7, 2.5, 12.0
QUESTION_TOKENS = 160 * 150  # of the part `questions`


# ---- shapes --------------------------------------------------------------------------------------

def config_of(shape, layers=None):
    """The keys of the shape's config that arithmetic needs."""
    config = dict(mc.SHAPES[shape])
    rs.with_layers(config, layers or config["num_hidden_layers"])
    config["num_hidden_layers"] = layers or config["num_hidden_layers"]
    return config


def times(c):
    """Name -> how often a token passes each of matrices()."""
    found = {name: c["num_hidden_layers"] for name in matrices(c)}
    if rs.is_by_recipe(c):
        found = {name: layers * passes for name, (_, _, layers, passes) in rs.products(c).items()}
    return found | {"lm_head": 1}


def matrices(c):
    """Name -> (n, k) of the decoder layers' products, as few as can be, and of the head."""
    if rs.is_by_recipe(c):
        return {name: p[:2] for name, p in rs.products(c).items()} | {"lm_head": (c["vocab_size"], c["hidden_size"])}
    h, inner, head = c["hidden_size"], c["intermediate_size"], c["head_dim"]
    q, kv = c["num_attention_heads"] * head, c["num_key_value_heads"] * head
    plain = c["model_type"] == "starcoder2"
    wide = {"up": (inner, h)} if plain else {"gate_up": (2 * inner, h)}
    return {"qkv": (q + 2 * kv, h), "o": (h, q), **wide, "down": (h, inner), "lm_head": (c["vocab_size"], h)}


def attention_flops(c, length):
    """Operations of one sequence in one layer, the causal half."""
    if rs.is_by_recipe(c):
        heads, _, head, head_v = rs.attention_heads(c)
        return length * length * heads * (head + head_v)
    return 2 * length * length * c["num_attention_heads"] * c["head_dim"]


def attention_layers(c):
    return rs.attention_layers(c) if rs.is_by_recipe(c) else c["num_hidden_layers"]


def pairs_share(c, length=WINDOW):
    """Query-key pairs of a sequence in all layers, over those of attention without a window in every layer."""
    if rs.is_by_recipe(c):
        return attention_layers(c) / c["num_hidden_layers"]
    types = c.get("layer_types", [])[:c["num_hidden_layers"]]
    if not types:
        return 1.0
    window = min(c["sliding_window"], length)
    windowed = (window * (window + 1) / 2 + (length - window) * window) / (length * (length + 1) / 2)
    return sum(windowed if t == "sliding_attention" else 1.0 for t in types) / len(types)


def tokens_per_s(c, gemm_tflops, attention_s, factors=None):
    """The limit: a token's products at these rates (by name, TFLOP/s; factors multiply some of them), and
    its attention, attention_s seconds a layer without a window."""
    seconds, passes = c["num_hidden_layers"] * attention_s * pairs_share(c), times(c)
    for name, (n, k) in matrices(c).items():
        rate = gemm_tflops[name] * 1e12 * (factors or {}).get(name, 1.0)
        seconds += 2 * n * k / rate * passes[name]
    return 1 / seconds


def token_flops(c, length=WINDOW):
    """Operations of one token in a window, in all layers and the head."""
    passes = times(c)
    attention = attention_flops(c, length) / length * pairs_share(c, length) * c["num_hidden_layers"]
    return attention + sum(2 * n * k * passes[name] for name, (n, k) in matrices(c).items())


def stored_format(fmt):
    """The checkpoint's own format: of int8:checkpoint, whose activations are quantised too, int8."""
    name, _, activations = fmt.partition(":")
    if activations not in ("", "checkpoint"):
        raise SystemExit(f"{fmt}: expected FORMAT or FORMAT:checkpoint")
    return name


def stored_bytes(config, fmt, group=128):
    """Bytes of a checkpoint's tensors."""
    fmt = stored_format(fmt)
    dtype = "F16" if fmt == "fp16" else "BF16"
    return sum(map(mc.bytes_of, mc.tensors_of(config, mc.scheme_of(fmt, group), dtype)))


# ---- durations -----------------------------------------------------------------------------------

def predict(args):
    """[(what, seconds)] of a run with these arguments, in the order in which it goes."""
    c, parts = config_of(args.shape, args.layers), set(args.parts)
    token_s = token_flops(c) / GEMM_FLOPS
    window_s = WINDOW * token_s
    peer_s = window_s / PEER_SHARE
    write = min(WRITE_BYTES, WRITE_BYTES_PER_CORE * (os.cpu_count() or 1))
    dense = stored_bytes(c, "bf16")
    stored = {f: stored_bytes(c, f) for f in args.formats}
    written = sum({stored_format(f): n for f, n in stored.items()}.values()) + (dense if "compare" in parts and "bf16" not in stored else 0)
    once = {f: START_S + n / WARM_BYTES for f, n in stored.items()}  # a process that loads the checkpoint
    n_windows, reps, loop = args.windows, args.reps, args.loop
    torch = bool(parts & {"limit", "several", "data", "transformers", "single", "questions", "peerload"})
    peer = bool(parts & {"transformers", "single", "questions"}) and dense < PEER_MOST_BYTES
    peer_s = peer_s if peer else 0
    batches = sum(b + 16 for b in BATCHES) + 16 + max(BATCHES)
    return [(name, s) for name, s in (
        ("checkpoints", written / write),
        ("torch", (TORCH_S if torch else 0) + (6 + dense / 1e10 if peer else 0)),
        ("limit", (2 + len(matrices(c)) * len(LIMIT_ROWS)) * (loop + 0.5) + max(loop, 3.0) + 4
         if "limit" in parts else 0),
        ("data", 4 * (1 + len(stored)) * ((1 + DATA_ROUNDS) * DATA_SLICE_S + 0.5) + 4 if "data" in parts else 0),
        ("ours", 6 + sum(once[f] + CHOOSE_S + reps * (once[f] + 3 * n_windows * window_s)
                         for f in stored) if "ours" in parts else 0),
        ("memory", 6 + sum(once[f] + CHOOSE_S + n_windows * window_s for f in stored)
         if "memory" in parts and "ours" not in parts else 0),
        ("transformers", (batches + reps * (n_windows + 4)) * peer_s if "transformers" in parts else 0),
        ("single", 8 * peer_s + sum(once.values()) + 9 * len(stored) * window_s
         if "single" in parts else 0),
        ("questions", QUESTION_TOKENS / WINDOW * (8 * len(QUESTION_BATCHES) * peer_s +
                                                  9 * len(stored) * window_s) + sum(once.values())
         if "questions" in parts else 0),
        ("mix", sum(once.values()) + 8 * len(stored) * (MIX_DOCUMENT / WINDOW + MIX_ITEMS * 150 / WINDOW) *
         window_s if "mix" in parts else 0),
        ("methods", len(stored) * (n_windows * (1 + 6 * reps) + 300) * window_s + sum(once.values()) * (1 + 2 * reps)
         if "methods" in parts else 0),
        ("compare", len(stored) * (START_S + n_windows * 3.2 * (1 + reps) * window_s) + dense / WARM_BYTES
         if "compare" in parts else 0),
        ("stream", sum((2 * reps * (n_windows + 16) + n_windows) * window_s + 3 * once[f] + (2 * min(n, 4e9) + n) /
                       COLD_BYTES for f, n in stored.items()) if "stream" in parts else 0),
        ("several", 20 + sum(3 * once[f] + 4 * n_windows * window_s + (2 * 512 * window_s if 512 * window_s <= 40 else 0)
                             for f in stored) if "several" in parts else 0),
        ("load", START_S + sum(LOADS * START_S + (LOADS + 2) * once[f] + (min(n, 4e9) + n) / COLD_BYTES
                               for f, n in stored.items()) if "load" in parts else 0),
        ("peerload", dense / write + dense / 4e9 + dense / COLD_BYTES + 4 if "peerload" in parts else 0),
        ("head", 25 if "head" in parts else 0),
        ("stages", 40 if "stages" in parts else 0),
        ("decoding", 45 if "decoding" in parts else 0),
        ("kernels", 150 if "kernels" in parts else 0)) if s]


def plan_lines(args):
    """The lines that are printed before anything is measured."""
    steps = predict(args)
    total = sum(s for _, s in steps)
    yield ("predicted seconds: " + ", ".join(f"{name} {s:.0f}" for name, s in steps) +
           f"; {total:.0f} of --limit {args.limit:.0f}")
    if total > args.limit:
        yield ("warning: that is more than the limit, and what comes last will be left out: fewer --windows, "
               "--formats or --parts, or a larger --limit")


# ---- output of programs -------------------------------------------------------------------------

LOADED = re.compile(r"weights: \S+ \S+ on the GPU after ([\d.]+) s")


def seconds_of_load(log):
    """Seconds, from a worker's log at level debug, from the start of the load until all weights were on the GPU."""
    found = LOADED.search(log)
    if found is None:
        raise ValueError(f"no load in the log: {log[-200:]}")
    return float(found[1])


RATE = re.compile(r"^\s*(\d+) x\s+(\d+) x (\d+)\s+(\S.*?)\s+burst\s+([\d.]+)\s+sustained\s+([\d.]+) "
                  r"TFLOP/s\s+[\d.]+ us\s+([\d.]+) of cuBLASLt$", re.MULTILINE)


def head_rates(text):
    """[(n, k, the head's TFLOP/s, its product's by cuBLASLt)] of `test_gemm head`."""
    found = {}
    for m, n, k, what, _, rate, _ in RATE.findall(text):
        found.setdefault((int(m), int(n), int(k)), {})[what] = float(rate)
    return [(n, k, by["bf16 head"], by["cuBLASLt"]) for (_, n, k), by in found.items()
            if "bf16 head" in by and "cuBLASLt" in by]
