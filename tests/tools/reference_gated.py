"""Qwen 4's residual streams, choice of keys and n-grams in float64, part of reference_model.py. gated.py has them as data."""

import numpy as np

import reference_experts
import reference_pooled
import reference_recurrent
from reference_math import sigmoid, silu


def normed(model, x, name, eps):
    """Each stream of x [n_tok, n, hidden] by itself, with weights of its own."""
    gain = 1 + model.weight(name + ".weight").reshape(x.shape[1:])
    return model.r(x / np.sqrt(np.mean(x * x, axis=2, keepdims=True) + eps) * gain)


def mixed(model, x, name):
    """What a branch reads [n_tok, hidden], and what its factors are made of."""
    streams = model.family.streams
    n = normed(model, x, name + ".hc_norm", streams.eps)
    flat = n.reshape(len(x), -1)
    low = model.r(silu(model.r(model.linear(flat, name + ".input_mix_weight_down") / streams.n)))
    gates = model.r(sigmoid(model.linear(low, name + ".input_mix_weight_up")))
    return model.r((gates.reshape(n.shape) * n).mean(axis=1)), flat


def ended(model, x):
    """What the head reads of x [n_tok, n, hidden]."""
    return mixed(model, x, model.family.streams.end)[0]


def layer(model, x, a, kept):
    """x [n_tok, n, hidden]."""
    streams = model.family.streams

    def mixer(y):
        return reference_recurrent.mix(model, y, a) if a.mixer else model.attention(y, a, kept)

    def around(name, branch):
        y, flat = mixed(model, x, a.stem + name)
        factors = model.r(2 * sigmoid(model.linear(flat, a.stem + name + ".block_inject_weight") / streams.n))
        return model.r(x + factors[:, :, None] * branch(y)[:, None])

    if a.ngrams:
        x = model.r(x + features(model, x, a))
    x = around(streams.around[0], mixer)
    return around(streams.around[1], lambda y: reference_experts.feed_forward(model, y, a))


# ---- the choice of keys -----------------------------------------------------------------------

def choose_pools(model, x, a):
    """[n_tok, n_tok]: whether a query sees a key."""
    p, n, stem = a.pools, len(x), a.stem + "self_attn.indexer."
    pools = n // p.pool
    qk = model.linear(x, stem + "index_qk_proj")
    q, k = qk[:, :p.heads * p.head].reshape(n, p.heads, p.head), qk[:pools * p.pool, p.heads * p.head:]
    q = model.turn(model.norm(q, stem + "q_layernorm", a.qk_norm), a.rope, n)
    at = np.zeros((n, 1, p.head))  # a pool's key turns by the position of its first token
    first = slice(0, pools * p.pool, p.pool)
    at[first, 0] = model.norm(model.r(k.reshape(pools, p.pool, p.head).mean(axis=1)), stem + "k_layernorm", a.qk_norm)
    k = model.turn(at, a.rope, n)[first, 0]
    scores = np.maximum(np.einsum("ihd,jd->hij", q, k), 0).sum(axis=0)
    return reference_pooled.seen_pools(scores, p.pool, p.chosen // p.pool)


# ---- n-grams ----------------------------------------------------------------------------------

def rows_of(g, tokens):
    """[n_tok, tables]: the row in all tables, one after another. A token behind an end is the end, too."""
    tokens = np.asarray(tokens, np.int64)
    before, last = [tokens], np.zeros(len(tokens), bool)
    for i in range(1, g.longest):
        earlier = np.concatenate([np.full(i, g.end), tokens[:-i]])[:len(tokens)]
        last = last | (earlier == g.end)
        before.append(np.where(last, g.end, earlier))
    mixed, out, first = before[0] * np.int64(g.multipliers[0]), [], 0
    for n in range(2, g.longest + 1):
        mixed = mixed ^ before[n - 1] * np.int64(g.multipliers[n - 1])  # wraps
        for size in g.sizes[(n - 2) * g.each:(n - 1) * g.each]:
            out.append(first + mixed % size)
            first += size
    return np.stack(out, axis=1)


def features(model, x, a):
    """What each stream of x [n_tok, n, hidden] gets from the last tokens."""
    g, stem, shape, eps = a.ngrams, a.stem + "ple.", x.shape, model.family.streams.eps
    table = np.concatenate([model.weight(f"{stem}ple_embedding.ngram_embedding.shard_{i}.weight") for i in range(g.parts)])
    e = table[rows_of(g, model.tokens)].reshape(len(x), -1)
    key = normed(model, model.linear(e, stem + "key_proj").reshape(shape), stem + "norm_key", eps)
    likeness = model.r((key * normed(model, x, stem + "norm_query", eps)).sum(axis=2) / np.sqrt(shape[2]))
    gate = model.r(sigmoid(model.r(np.sign(likeness) * np.sqrt(np.maximum(np.abs(likeness), 1e-6)))))
    y = model.r(gate[:, :, None] * model.linear(e, stem + "value_proj")[:, None])
    w = model.weight(stem + "conv1d.weight").reshape(shape[1] * shape[2], g.taps)
    flat = normed(model, y, stem + "norm_conv", eps).reshape(len(x), -1)
    padded = np.concatenate([np.zeros(((g.taps - 1) * g.longest, flat.shape[1])), flat])  # dilated by the longest n-gram
    summed = sum(padded[i * g.longest:i * g.longest + len(x)] * w[:, i] for i in range(g.taps))
    return model.r(y + model.r(silu(model.r(summed))).reshape(shape))
