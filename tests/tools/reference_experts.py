"""Mixtures of experts in float64, part of reference_model.py: routers, experts, and the dense MLP beside them."""

from dataclasses import replace

import numpy as np

from reference_math import ACTIVATIONS, sigmoid, softmax


def best(x, n):
    """Ids [.., n] of the largest, the first of equal ones first."""
    return np.argsort(-x, axis=-1, kind="stable")[..., :n]


def candidates(scores, r):
    """Scores with those of groups that are out of the choice replaced."""
    grouped = scores.reshape(len(scores), r.groups, -1)
    order = best(np.sort(grouped, axis=-1)[..., ::-1][..., :r.group_best].sum(axis=-1), r.kept)
    keep = np.zeros(grouped.shape[:2], bool)
    np.put_along_axis(keep, order, True, axis=-1)
    return np.where(keep[..., None], grouped, r.outside).reshape(scores.shape)


def sparsemixer(logits, jitter):
    """Two experts (2310.00811, as Phi runs it): each has its share among the logits that are near the largest left."""
    left, ids, weights, rows = logits.copy(), [], [], np.arange(len(logits))
    for _ in range(2):
        top = left.max(axis=1, keepdims=True)
        far = (top - logits) / np.maximum(np.abs(logits), top) > 2 * jitter
        chosen = left.argmax(axis=1)
        ids.append(chosen)
        weights.append(softmax(np.where(far, -np.inf, left))[rows, chosen])
        left[rows, chosen] = -np.inf
    return np.stack(ids, axis=1), np.stack(weights, axis=1)


def route(model, x, e, stem):
    """Ids and weights [n_tok, chosen] of x [n_tok, hidden]."""
    r = e.router
    logits = x @ model.weight(stem + r.module + ".weight").T
    if r.bias:
        logits = logits + model.weight(stem + r.module + ".bias")
    logits = logits if r.exact else model.r(logits)
    if r.softcap:
        logits = np.tanh(logits / r.softcap) * r.softcap
    if r.scores == "sparsemixer":
        return sparsemixer(logits, r.jitter)
    scores = {"softmax": softmax, "sigmoid": sigmoid, "sqrtsoftplus": lambda x: np.sqrt(np.logaddexp(0, x)),
              "chosen": lambda x: x}[r.scores](logits)
    choice = (logits if r.corrects_logits else scores)[:, :e.n + e.identity]
    if r.correction:
        choice = choice + model.weight(stem + r.correction).reshape(-1)
    if r.groups > 1:
        choice = candidates(choice, r)
    ids = model.integers(stem + r.table)[model.tokens] if r.table else best(choice, e.chosen)
    ids = np.concatenate([ids, np.broadcast_to(e.n + np.arange(r.always), (len(ids), r.always))], axis=1)
    weights = np.take_along_axis(scores, ids, axis=-1)
    if r.scores == "chosen":
        weights = softmax(weights)
    elif r.normalised:
        weights = weights / np.maximum(weights.sum(axis=-1, keepdims=True) + r.added, r.least)
    weights = weights * r.scale * (model.weight(stem + r.factor)[0] if r.factor else 1)
    return ids, weights * model.weight(stem + r.by_expert)[ids] if r.by_expert else weights


def part(model, name, i, e):
    """Weight [outputs, inputs] of expert i."""
    if "{}" in name:
        return model.weight(name.format(i) + ".weight")
    if e.flat:
        w = model.weight(name)[i * e.inner:(i + 1) * e.inner]
        return w.T if name.endswith(e.down) else w
    w = model.weight(name)[i]
    return w.T if e.columns else w


def bias(model, name, i):
    return model.weight(name.format(i) + ".bias") if "{}" in name else model.weight(name + "_bias")[i]


def activated(model, gate, up, e):
    """The product before `down`."""
    if e.act == "gpt_oss":  # clamped first; up + 1
        gate, up = np.minimum(gate, e.limit), np.clip(up, -e.limit, e.limit)
        return model.r(model.r(up + 1) * model.r(gate * model.r(sigmoid(model.r(1.702 * gate)))))
    if e.act == "situ":
        up = np.tanh(up / e.limit) * e.limit if e.limit else up
        return model.r(np.tanh(gate / e.slope) * e.slope * sigmoid(gate) * up)
    y = model.r(ACTIVATIONS[e.act](np.minimum(gate, e.limit) if e.limit_first else gate))
    if e.limit:
        y, up = y if e.limit_first else np.minimum(y, e.limit), np.clip(up, -e.limit, e.limit)
    return model.r(y * up)


def expert(model, x, e, i, stem):
    def linear(x, name):
        x = model.input(x, (stem + name).format(i))
        y = x @ part(model, stem + name, i, e).T
        return model.r(y + bias(model, stem + name, i) if e.bias else y)

    rows = [linear(x, name) for name in e.gate_up]
    if not e.gated:
        return linear(model.r(ACTIVATIONS[e.act](rows[0])), e.down)
    if e.mixed_rows:
        rows = rows[0][:, ::2], rows[0][:, 1::2]
    elif len(rows) == 1:
        rows = np.split(rows[0], 2, axis=1)
    return linear(activated(model, *rows, e), e.down)


def routed(model, x, router_input, e, stem):
    """The weighted sum of the chosen experts."""
    ids, weights = route(model, router_input, e, stem)
    weights, y = model.r(weights), np.zeros_like(x)
    behind = replace(e, gate_up=e.always[:1], down=e.always[1]) if e.always else None
    for i in range(e.n + e.router.always):
        token, place = np.where(ids == i)
        if len(token) == 0:
            continue
        w = weights[token, place][:, None]
        if e.router.on_input:
            y[token] = model.r(y[token] + expert(model, model.r(x[token] * w), e, i, stem))
        else:
            one = expert(model, x[token], *((e, i) if i < e.n else (behind, i - e.n)), stem)
            y[token] = model.r(y[token] + model.r(one * w))
    for i in range(e.n, e.n + e.identity):
        token, place = np.where(ids == i)
        y[token] = model.r(y[token] + model.r(x[token] * weights[token, place][:, None]))
    return y


def feed_forward(model, x, a):
    """What the layer adds to x: the experts' sum and the dense MLP beside."""
    e, n = a.experts, model.norm(x, a.stem + a.mlp_in, a.norm) if a.mlp_in else x
    router_input, own = n, n
    if e.router.own_input:
        plain = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + a.norm.eps)
        router_input = model.r(model.r(model.r(plain) * model.weight(a.stem + "router.scale")) * x.shape[-1] ** -0.5)
    if e.norm_in:
        own = model.norm(x, a.stem + e.norm_in, a.norm)
    if e.latent:
        own = model.linear(own, a.stem + e.latent_products[0])
    y = routed(model, own, router_input, e, a.stem)
    if e.latent:
        y = model.norm(y, a.stem + e.latent_norm, a.norm) if e.latent_norm else y
        y = model.linear(y, a.stem + e.latent_products[1])
    if e.norm_out:
        y = model.norm(y, a.stem + e.norm_out, a.norm)
    if not a.inner:
        return y
    dense = model.mlp(n, a)
    if e.dense_out:
        dense = model.norm(dense, a.stem + e.dense_out, a.norm)
    if a.shared_gate:
        dense = model.r(dense * model.r(sigmoid(model.linear(n, a.stem + a.shared_gate))))
    return model.r(y + dense)
