"""Qwen 4's residual streams, its choice of keys and its n-grams, as data: a part of recipe.py. Names are relative to the layer's stem."""

from dataclasses import dataclass


@dataclass(frozen=True)
class GatedStreams:
    """Several residual streams: a branch reads their mean, each number times a gate, and adds to each stream by a factor."""

    n: int
    rank: int  # between the two products that give the gates
    eps: float  # of the norms, whose weights are 1 + w
    around: tuple = ("attn_hyper_connection", "mlp_hyper_connection")
    end: str = "model.hyper_connection_mixer"


@dataclass(frozen=True)
class PoolChoice:
    """Chooses the keys that a query sees, among means of the keys of `pool` tokens. The layer's rope turns both."""

    heads: int
    head: int
    pool: int
    chosen: int  # keys, a multiple of `pool`


@dataclass(frozen=True)
class Ngrams:
    """Features of the last 2 to `longest` tokens, from `each` tables for each length."""

    longest: int
    each: int
    dim: int  # of a table's rows
    taps: int
    sizes: tuple  # rows of each table
    multipliers: tuple  # of the last token, the one before ...
    rows: int  # of all tables, one after another
    parts: int  # tensors that hold them
    end: int  # the token before a sequence


def split_mix(v):
    v, low = v + 0x9E3779B97F4A7C15 & 2**64 - 1, 2**64 - 1
    v = (v ^ v >> 30) * 0xBF58476D1CE4E5B9 & low
    v = (v ^ v >> 27) * 0x94D049BB133111EB & low
    return v ^ v >> 31


def primes_from(least):
    n = least
    while True:
        if n > 1 and all(n % d for d in range(2, int(n ** 0.5) + 1)):
            yield n
        n += 1


def ngrams_of(c):
    """layer -> Ngrams, by the configuration's keys: tables have consecutive primes of rows."""
    longest, each, end = c.get("ngram_size", 3), c.get("heads_per_ngram", 8), c["eos_token_id"]
    n, pad, primes, out = (longest - 1) * each, c.get("make_ngram_vocab_size_divisible_by", 128), None, {}
    most = max(1, (2**63 - 1) // c["vocab_size"] // 2)
    primes = primes_from(c.get("ngram_vocab_size_base", 20000000))
    for order, layer in enumerate(sorted(c.get("ple_layer_ids") or ())):  # counted from 1
        sizes = tuple(next(primes) for _ in range(n))
        seed = c.get("seed", 1234) + 10007 * order
        multipliers = tuple(split_mix(seed + 0x9E3779B97F4A7C15 * (i + 1) & 2**64 - 1) % most * 2 + 1 for i in range(longest))
        out[layer - 1] = Ngrams(longest, each, (c.get("ple_embed_dim") or c["hidden_size"]) // n, c.get("ple_conv_kernel_size", 4), sizes,
                                multipliers, -(-sum(sizes) // pad) * pad, c.get("split_ngram_parts", 512),
                                end[0] if isinstance(end, list) else end)
    return out


def mix_tensors(name, streams, hidden, mixes=True):
    width = streams.n * hidden
    yield f"{name}.hc_norm.weight", (width,), "shifted norm"
    yield f"{name}.input_mix_weight_down.weight", (streams.rank, width), "gates"
    yield f"{name}.input_mix_weight_up.weight", (width, streams.rank), "gates"
    if mixes:
        yield f"{name}.block_inject_weight.weight", (streams.n, width), "gates"


def choice_tensors(p, hidden):
    yield "self_attn.indexer.index_qk_proj.weight", ((p.heads + 1) * p.head, hidden), "gates"
    for name in "qk":
        yield f"self_attn.indexer.{name}_layernorm.weight", (p.head,), "shifted norm"


def ngram_tensors(g, streams, hidden):
    width, columns = streams.n * hidden, len(g.sizes) * g.dim
    for i in range(g.parts):
        yield f"ple.ple_embedding.ngram_embedding.shard_{i}.weight", (g.rows // g.parts, g.dim), "embed"
    yield "ple.key_proj.weight", (width, columns), "gates"
    yield "ple.value_proj.weight", (hidden, columns), "gates"
    for name in ("key", "query", "conv"):
        yield f"ple.norm_{name}.weight", (width,), "shifted norm"
    yield "ple.conv1d.weight", (width, 1, g.taps), "taps"
