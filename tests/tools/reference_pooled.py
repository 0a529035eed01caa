"""DeepSeek V4's attention and residual streams in float64, part of reference_model.py."""

import numpy as np

import reference_experts
import reference_recurrent
from recipe import Norm
from reference_math import sigmoid, softmax


# ---- residual streams -------------------------------------------------------------------------

def factors(model, x, name, streams, mixes=True):
    """pre [n_tok, n], and post [n_tok, n] and comb [n_tok, n, n], of streams x [n_tok, n, hidden]."""
    n, eps = streams.n, streams.eps
    f = x.reshape(len(x), -1)
    f = f / np.sqrt(np.mean(f * f, axis=1, keepdims=True) + streams.norm_eps)
    m = f @ model.weight(name + "_fn").T
    scale, base = model.weight(name + "_scale"), model.weight(name + "_base")
    pre = sigmoid(m[:, :n] * scale[0] + base[:n]) + eps
    if not mixes:
        return pre, None, None
    post = streams.post[0] * sigmoid(m[:, n:2 * n] * scale[1] + base[n:2 * n]) + streams.post[1]
    if not streams.iterations:
        return pre, post, np.broadcast_to(np.eye(n), (len(x), n, n))
    comb = softmax((m[:, 2 * n:] * scale[2] + base[2 * n:]).reshape(-1, n, n)) + eps
    comb = comb / (comb.sum(axis=1, keepdims=True) + eps)
    for _ in range(streams.iterations - 1):
        comb = comb / (comb.sum(axis=2, keepdims=True) + eps)
        comb = comb / (comb.sum(axis=1, keepdims=True) + eps)
    return pre, post, comb


def collapsed(model, x, pre):
    return model.r((pre[..., None] * x).sum(axis=1))


def ended(model, x):
    """What the final norm reads of x [n_tok, n, hidden]."""
    streams = model.family.streams
    if streams.end is None:
        return model.r(x.mean(axis=1))
    return collapsed(model, x, factors(model, x, streams.end, streams, mixes=False)[0])


def layer(model, x, a, kept):
    """x [n_tok, n, hidden]."""
    streams = model.family.streams

    def mixer(y):
        y = model.norm(y, a.stem + a.attention_in, a.norm)
        if a.mixer:
            return reference_recurrent.mix(model, y, a)
        return attention(model, y, a) if a.pooled else model.attention(y, a, kept)

    def mlp(y):
        return reference_experts.feed_forward(model, y, a) if a.experts else model.mlp(model.norm(y, a.stem + a.mlp_in, a.norm), a)

    def around(name, branch):
        pre, post, comb = factors(model, x, a.stem + name, streams)
        y = branch(collapsed(model, x, pre))
        mixed = model.r(np.einsum("ist,ish->ith", model.r(comb), x))
        return model.r(model.r(model.r(post)[..., None] * y[:, None]) + mixed)

    x = around(streams.around[0], mixer)
    return around(streams.around[1], mlp)


# ---- attention --------------------------------------------------------------------------------

def turn(model, x, p, rope, back=False):
    """x [n_tok, heads, head], its last elements rotated, or rotated back."""
    own, part = x[..., :-p.turning], x[..., -p.turning:]
    sign = np.tile([1, -1], p.turning // 2) if back else 1
    return np.concatenate([own, sign * model.turn(sign * part, rope, len(x))], axis=2)


def keys_of_blocks(model, x, stem, p, head, rope):
    """[blocks, head]"""
    n = len(x) // p.block
    values, gates = (model.linear(x[:n * p.block], f"{stem}.{name}").reshape(n, p.block, -1) for name in ("wkv", "wgate"))
    gates = gates + model.weight(stem + ".ape")
    if p.overlaps:
        nothing = np.zeros((1, p.block, head))
        values = np.concatenate([np.concatenate([nothing, values[:-1, :, :head]]), values[:, :, head:]], axis=1)
        gates = np.concatenate([np.concatenate([nothing - np.inf, gates[:-1, :, :head]]), gates[:, :, head:]], axis=1)
    shares = model.r(softmax(gates.transpose(0, 2, 1)).transpose(0, 2, 1))
    keys = model.norm(model.r((values * shares).sum(axis=1)), stem + ".norm", Norm(eps=p.eps, once=True))
    at = np.zeros((len(x), 1, head))  # rows of blocks' first tokens
    at[:n * p.block:p.block, 0] = keys
    return turn(model, at, p, rope)[:n * p.block:p.block, 0]


def keys_of_pools(model, x, k, stem, pool):
    """[pools, head] of an indexer's keys k [n_tok, head]."""
    n = len(x) // pool
    gates = model.r(x[:n * pool] @ model.weight(stem + "gate").T).reshape(n, pool, k.shape[1]) + model.weight(stem + "ape")
    shares = model.r(softmax(gates.transpose(0, 2, 1)).transpose(0, 2, 1))
    return model.r((k[:n * pool].reshape(gates.shape) * shares).sum(axis=1))


def seen_pools(scores, size, most):
    """[n_tok, n_tok]: whether a query sees a key: of pools that have ended [n_tok, pools] the best, and tokens after the last."""
    n, pools = scores.shape
    ended = np.arange(pools)[None] < (np.arange(n)[:, None] + 1) // size
    seen = np.zeros(scores.shape, bool)
    best = np.argsort(np.where(ended, -scores, np.inf), axis=1, kind="stable")[:, :most]
    np.put_along_axis(seen, best, True, axis=1)
    tail = np.arange(n)[None] >= (np.arange(n)[:, None] + 1) // size * size
    seen = np.repeat(seen & ended, size, axis=1)
    return np.pad(seen, ((0, 0), (0, n - seen.shape[1]))) | tail


def chosen_blocks(model, x, latent, p, stem, rope, seen):
    """Which of the blocks that have ended each query sees."""
    most, heads, head = p.index
    if seen.shape[1] <= most:
        return seen
    keys = keys_of_blocks(model, x, stem + "indexer.compressor", p, head, rope)
    q = turn(model, model.linear(latent, stem + "indexer.wq_b").reshape(len(x), heads, head), p, rope)
    scores = np.einsum("ih,ihj->ij", model.linear(x, stem + "indexer.weights_proj"), np.maximum(q @ keys.T, 0))
    out = np.zeros_like(seen)
    np.put_along_axis(out, reference_experts.best(np.where(seen, scores, -np.inf), most), True, axis=1)
    return out & seen


def attention(model, x, a):
    p, stem, n, norm = a.pooled, a.stem + "attn.", len(x), Norm(eps=a.pooled.eps, once=True)
    latent = model.norm(model.linear(x, stem + "wq_a"), stem + "q_norm", norm)
    q = model.linear(latent, stem + "wq_b").reshape(n, p.heads, p.head)
    q = turn(model, model.norm(q, "", Norm(eps=p.eps, weight=False)), p, a.rope)
    keys = turn(model, model.norm(model.linear(x, stem + "wkv"), stem + "kv_norm", norm)[:, None], p, a.rope)[:, 0]
    distance = np.arange(n)[:, None] - np.arange(n)[None]
    seen = (distance >= 0) & (distance < p.window)
    if p.block:
        blocks = np.arange(n // p.block)[None] < ((np.arange(n) + 1) // p.block)[:, None]
        if p.index and blocks.shape[1]:
            blocks = chosen_blocks(model, x, latent, p, stem, a.rope, blocks)
        if blocks.shape[1]:
            keys = np.concatenate([keys, keys_of_blocks(model, x, stem + "compressor", p, p.head, a.rope)])
        seen = np.concatenate([seen, blocks], axis=1)
    out, sinks = np.empty_like(q), model.weight(stem + "attn_sink")
    for h in range(p.heads):
        s = np.where(seen, model.r(model.r(q[:, h] @ keys.T) * p.head ** -0.5), -np.inf)
        top = np.maximum(s.max(axis=1, keepdims=True), sinks[h])
        e = np.exp(s - top)
        out[:, h] = model.r(e / (e.sum(axis=1, keepdims=True) + np.exp(sinks[h] - top))) @ keys
    out = turn(model, model.r(out), p, a.rope, back=True).reshape(n, p.groups, -1)
    low = model.weight(stem + "wo_a.weight").reshape(p.groups, p.group_rank, -1)
    return model.linear(model.r(np.einsum("igk,grk->igr", out, low)).reshape(n, -1), stem + "wo_b")
