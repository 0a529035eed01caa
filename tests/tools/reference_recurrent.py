"""Mixers that carry a state in float64, step by step, part of reference_model.py. A 16-bit run computes recurrences in fp32 and
rounds what goes into them and what comes out."""

from dataclasses import replace

import numpy as np

import reference_experts
from reference_math import ACTIVATIONS, sigmoid, silu, softplus
from recurrent import ChannelDelta, DeltaRule, Lightning, Lru, Mamba1, Mamba2, ShortConv


def conv(model, x, stem, bias, act=None):
    """Causal convolution of each column of x [n_tok, channels]; the last tap is of the token itself."""
    w = model.weight(stem + ".weight")
    w = w.reshape(len(w), -1)  # [channels, taps]
    taps = w.shape[1]
    padded = np.concatenate([np.zeros((taps - 1, x.shape[1])), x])
    y = sum(padded[i:i + len(x)] * w[:, i] for i in range(taps))
    y = model.r(y + model.weight(stem + ".bias") if bias else y)
    return model.r(act(y)) if act else y


def rms(x, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)


def unit(x):
    return x / np.sqrt(np.sum(x * x, axis=-1, keepdims=True) + 1e-6)


def delta_inputs(model, x, m, stem):
    """The product of q | k | v, z [n_tok, heads, value], b and a [n_tok, heads]."""
    n, heads = len(x), m.value_heads
    if m.in_one:
        values = heads * m.value
        qkv, z, b, a = np.split(model.linear(x, stem + ".in_proj"), np.cumsum([m.channels, values, heads]), axis=1)
        return qkv, z.reshape(n, heads, m.value), b, a
    if not m.by_head:
        qkv, z, b, a = (model.linear(x, f"{stem}.in_proj_{name}") for name in ("qkv", "z", "b", "a"))
        return qkv, z.reshape(n, heads, m.value), b, a
    share = heads // m.key_heads
    rows = model.linear(x, stem + ".in_proj_qkvz").reshape(n, m.key_heads, -1)
    parts = np.split(rows, np.cumsum([m.key, m.key, share * m.value]), axis=2)
    b, a = np.split(model.linear(x, stem + ".in_proj_ba").reshape(n, m.key_heads, -1), 2, axis=2)
    qkv = np.concatenate([p.reshape(n, -1) for p in parts[:3]], axis=1)
    return qkv, parts[3].reshape(n, heads, m.value), b.reshape(n, heads), a.reshape(n, heads)


def delta_rule(model, x, m, stem):
    n, share = len(x), m.value_heads // m.key_heads
    qkv, z, b, a = delta_inputs(model, x, m, stem)
    qkv = conv(model, qkv, stem + ".conv1d", False, silu)
    keys = m.key_heads * m.key
    q, k = (np.repeat(unit(part.reshape(n, m.key_heads, m.key)), share, axis=1) for part in (qkv[:, :keys], qkv[:, keys:2 * keys]))
    q, v, beta = q * m.key ** -0.5, qkv[:, 2 * keys:].reshape(n, -1, m.value), model.r(sigmoid(b))
    decay = np.exp(-np.exp(model.weight(stem + ".A_log")) * softplus(a + model.weight(stem + ".dt_bias")))
    state, out = np.zeros((m.value_heads, m.key, m.value)), np.empty((n, m.value_heads, m.value))
    for t in range(n):
        state *= decay[t][:, None, None]
        change = beta[t][:, None] * (v[t] - np.einsum("hkv,hk->hv", state, k[t]))
        state += k[t][:, :, None] * change[:, None]
        out[t] = np.einsum("hkv,hk->hv", state, q[t])
    normed = model.r(model.r(rms(model.r(out), m.eps)) * model.weight(f"{stem}.{m.norm}.weight"))
    return model.linear(model.r(normed * ACTIVATIONS[m.gate](z)).reshape(n, -1), stem + ".out_proj")


def channel_delta(model, x, m, stem):
    n, shape = len(x), (len(x), m.heads, m.head)

    def low(name, whole):
        return model.linear(x if whole else model.linear(x, f"{stem}.{name}_a_proj"), f"{stem}.{name}{'' if whole else '_b'}_proj")

    q, k, v = (conv(model, model.linear(x, f"{stem}.{name}_proj"), f"{stem}.{name}_conv1d", False, silu).reshape(shape)
               for name in "qkv")
    q, k, beta = unit(q) * m.head ** -0.5, unit(k), model.r(sigmoid(model.linear(x, stem + ".b_proj")))
    f = (low("f", m.rank == 0) + model.weight(stem + ".dt_bias").reshape(-1)).reshape(shape)
    rate = np.exp(model.weight(stem + ".A_log").reshape(m.heads, 1))
    decay = np.exp(m.bound * sigmoid(rate * f) if m.bound else -rate * softplus(f))
    state, out = np.zeros((m.heads, m.head, m.head)), np.empty(shape)
    for t in range(n):
        state *= decay[t][:, :, None]
        change = beta[t][:, None] * (v[t] - np.einsum("hkv,hk->hv", state, k[t]))
        state += k[t][:, :, None] * change[:, None]
        out[t] = np.einsum("hkv,hk->hv", state, q[t])
    normed = model.r(model.r(rms(model.r(out), m.eps)) * model.weight(stem + ".o_norm.weight"))
    gate = model.r(sigmoid(low("g", m.rank == 0 or m.whole_gate)))
    return model.linear(model.r(normed.reshape(n, -1) * gate), f"{stem}.{m.out}")


def gated_norm(model, y, z, m, stem):
    """y [n_tok, inner] with its gate, and its norm if there is one."""
    gate = silu(z)
    if not m.normed:
        return model.r(y * gate)

    def norm(v):
        return rms(v.reshape(len(v), m.norm_groups, -1), m.eps).reshape(v.shape)

    w = model.weight(stem + ".norm.weight")
    return model.r(norm(y) * w * gate) if m.norm_first else model.r(model.r(norm(y * gate)) * w)


def mamba2(model, x, m, stem):
    n, b_width = len(x), m.groups * m.state
    sizes = [m.inner, m.inner, b_width, b_width, m.heads]
    if m.factor_in != 1:
        x = model.r(x * m.factor_in)
    product = model.linear(x, stem + ".in_proj", m.bias)
    if m.factors != (1.0,) * 5:
        product = model.r(product * np.repeat(m.factors, sizes))
    z, xbc, dt = np.split(product, [m.inner, m.inner + m.channels], axis=1)
    xbc = conv(model, xbc, stem + ".conv1d", m.conv_bias, silu)
    u, b, c = np.split(xbc, [m.inner, m.inner + b_width], axis=1)
    u = u.reshape(n, m.heads, m.head)
    b, c = (np.repeat(part.reshape(n, m.groups, m.state), m.heads // m.groups, axis=1) for part in (b, c))
    dt = np.clip(softplus(dt + model.weight(stem + ".dt_bias")), *m.step)
    decay = np.exp(-np.exp(model.weight(stem + ".A_log")) * dt)
    state, y = np.zeros((m.heads, m.head, m.state)), np.empty((n, m.heads, m.head))
    for t in range(n):
        state = state * decay[t][:, None, None] + (dt[t][:, None] * u[t])[:, :, None] * b[t][:, None]
        y[t] = np.einsum("hps,hs->hp", state, c[t])
    y = model.r(y + model.weight(stem + ".D")[:, None] * u).reshape(n, -1)
    out = model.linear(gated_norm(model, y, z, m, stem), stem + ".out_proj", m.out_bias)
    return model.r(out * m.factor_out) if m.factor_out != 1 else out


def mamba1(model, x, m, stem):
    u, z = np.split(model.linear(x, stem + ".in_proj", m.bias), 2, axis=1)
    u = conv(model, u, stem + ".conv1d", m.conv_bias, silu)
    parts = np.split(model.linear(u, stem + ".x_proj"), [m.rank, m.rank + m.state], axis=1)
    if m.eps is not None:
        parts = [model.r(rms(p, m.eps)) for p in parts]
    if m.norms:
        parts = [model.r(p * model.weight(f"{stem}.{name}.weight")) for p, name in zip(parts, m.norms)]
    dt, b, c = parts
    dt = softplus(model.linear(dt, stem + ".dt_proj") + model.weight(stem + ".dt_proj.bias"))
    a = -np.exp(model.weight(stem + ".A_log"))
    state, y = np.zeros((m.inner, m.state)), np.empty_like(u)
    for t in range(len(x)):
        state = state * np.exp(dt[t][:, None] * a) + (dt[t] * u[t])[:, None] * b[t]
        y[t] = state @ c[t]
    y = model.r((y + model.weight(stem + ".D") * u) * silu(z))
    return model.linear(y, stem + ".out_proj", m.bias)


def lightning_qkv(model, x, m, stem):
    """Each [n_tok, heads, head]."""
    n, heads = len(x), len(m.rates)
    qkv = model.linear(x, f"{stem}.{m.names[0]}", m.bias)
    if m.by_head:
        qkv = model.r(ACTIVATIONS[m.act](qkv)).reshape(n, heads, 3, m.head)
        return [qkv[:, :, i] for i in range(3)]
    q, k, v = (part.reshape(n, heads, m.head) for part in np.split(qkv, 3, axis=1))
    if m.qk_norm:
        q, k = model.norm(q, stem + ".query_layernorm", m.qk_norm), model.norm(k, stem + ".key_layernorm", m.qk_norm)
    return model.turn(q, m.rope, n), model.turn(k, m.rope, n), v


def lightning(model, x, m, stem):
    n, (_, gate, norm, last) = len(x), m.names
    q, k, v = lightning_qkv(model, x, m, stem)
    distance = np.arange(n)[:, None] - np.arange(n)[None]
    out = np.empty((n, len(m.rates), m.head))
    for h, rate in enumerate(m.rates):  # as attention whose scores fade with the distance, which has no state
        fading = np.where(distance >= 0, q[:, h] @ k[:, h].T * np.exp(-rate * np.maximum(distance, 0)), 0)
        out[:, h] = m.scale * fading @ v[:, h]
    normed = model.r(rms(model.r(out).reshape(n, m.groups, -1), m.eps)).reshape(n, -1)
    normed = model.r(normed * model.weight(f"{stem}.{norm}.weight"))
    gated = model.r(normed * model.r(sigmoid(model.linear(x, f"{stem}.{gate}"))))
    return model.linear(gated, f"{stem}.{last}", m.out_bias)


def lru(model, x, m, stem):
    n, r, at = len(x), model.r, stem + ".rg_lru."
    y = r(ACTIVATIONS[m.act](model.linear(x, stem + ".linear_y", True)))
    u = conv(model, model.linear(x, stem + ".linear_x", True), stem + ".conv_1d", True)

    def gate(name):
        product = np.einsum("nhi,hio->nho", u.reshape(n, m.heads, m.head), model.weight(f"{at}{name}_gate_weight"))
        return r(sigmoid(r(product + model.weight(f"{at}{name}_gate_bias")))).reshape(n, -1)

    fading = r(-8 * gate("recurrent") * r(softplus(model.weight(at + "recurrent_param"))))
    share = r(np.sqrt(r(1 - r(np.exp(2 * fading)))))
    share[0] = 1
    added, left = r(r(u * gate("input")) * share), r(np.exp(fading))
    state, out = np.zeros(u.shape[1]), np.empty_like(u)
    for t in range(n):
        out[t] = state = left[t] * state + added[t]
    return model.linear(r(r(out) * y), stem + ".linear_out", True)


def short_conv(model, x, m, stem):
    b, c, u = np.split(model.linear(x, stem + ".in_proj", m.bias), 3, axis=1)
    y = model.r(c * conv(model, model.r(b * u), stem + ".conv", m.bias))
    return model.linear(y, stem + ".out_proj", m.bias)


def mix(model, x, a):
    """What a layer's mixer makes of x [n_tok, hidden]."""
    run = {DeltaRule: delta_rule, ChannelDelta: channel_delta, Mamba2: mamba2, Mamba1: mamba1, ShortConv: short_conv,
           Lightning: lightning, Lru: lru}[type(a.mixer)]
    return run(model, x, a.mixer, a.stem + a.mixer.module)


def weighted_layer(model, x, a, kept):
    """A layer whose norms' outputs are the stream: x = alpha x + beta branch(x) for its mixer and for its experts."""
    def step(x, name, weights, branch):
        x = model.norm(x, a.stem + name, a.norm)
        alpha, beta = weights
        return model.r(model.r(x * alpha) + model.r(branch(x) * beta))

    x = step(x, a.attention_in, a.weights[0], lambda n: mix(model, n, a) if a.mixer else model.attention(n, a, kept))
    return step(x, a.mlp_in, a.weights[1], lambda n: reference_experts.feed_forward(model, n, replace(a, mlp_in=None)))
