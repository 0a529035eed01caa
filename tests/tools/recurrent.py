"""Mixers that carry a state instead of keys, as data: a part of recipe.py. Names are relative to the layer's stem.

Kinds of tensors beside recipe.py's: gates (a matrix that tools never quantise), taps, decay (A_log of a head), decays (of an
element and a state), step (a time step's bias), skip (D).
"""

from dataclasses import dataclass

import numpy as np

KINDS = ("taps", "decay", "decays", "step", "skip", "fading")  # whose values() are drawn here


@dataclass(frozen=True)
class DeltaRule:
    """Qwen's gated delta rule."""

    key_heads: int
    value_heads: int
    key: int  # elements of a head's key
    value: int
    taps: int  # of the convolution over q | k | v
    eps: float
    by_head: bool = False  # two matrices whose rows are in the order of key heads, instead of four
    gate: str = "silu"
    wide: bool = False  # A_log and the norm's weight are stored as F32
    module: str = "linear_attn"
    by_mlx: bool = False  # mlx-lm's shape of the convolution
    in_one: bool = False  # one matrix in_proj: q, k, v, z, b, a; and out_norm (Lara)

    @property
    def norm(self):
        return "out_norm" if self.in_one else "norm"

    @property
    def channels(self):
        return 2 * self.key_heads * self.key + self.value_heads * self.value


@dataclass(frozen=True)
class ChannelDelta:
    """Kimi's delta rule, with a decay for each channel of a head's key."""

    heads: int
    head: int  # elements of a key, and of a value
    taps: int
    eps: float
    rank: int  # of the decays' product, and of the gate's; 0: one matrix each
    whole_gate: bool = False  # the gate's is one matrix even so
    bound: float = 0.0  # of the decays' logarithm; 0: none
    out: str = "o_proj"
    flat: bool = False  # A_log is [heads], not [1, 1, heads, 1]
    module: str = "self_attn"


@dataclass(frozen=True)
class Mamba2:
    """A state space with a scalar decay of each head."""

    heads: int
    head: int
    groups: int  # of B and C
    state: int
    taps: int
    eps: float
    module: str = "mixer"
    normed: bool = True  # the output with its gate
    norm_groups: int = 1
    norm_first: bool = False  # before the gate
    bias: bool = False
    out_bias: bool = False
    conv_bias: bool = True
    step: tuple = (0.0, np.inf)  # bounds of a time step
    factors: tuple = (1.0,) * 5  # of the product's z, x, B, C and dt
    factor_in: float = 1.0
    factor_out: float = 1.0

    @property
    def inner(self):
        return self.heads * self.head

    @property
    def channels(self):
        return self.inner + 2 * self.groups * self.state


@dataclass(frozen=True)
class Mamba1:
    """A state space with a decay of each element and state."""

    inner: int
    state: int
    rank: int  # of the time steps
    taps: int
    eps: float | None  # None: dt, B and C have no norms
    module: str = "mixer"
    norms: tuple | None = None  # of dt, B and C; None: without weights
    bias: bool = False
    conv_bias: bool = True


@dataclass(frozen=True)
class Lightning:
    """Linear attention with a fixed decay exp(-rate) of each head."""

    head: int
    rates: tuple  # of the heads
    act: str = "silu"
    eps: float = 1e-6
    module: str = "self_attn"
    names: tuple = ("qkv_proj", "output_gate", "norm", "out_proj")
    by_head: bool = True  # rows of qkv: for every head its q, k and v, which go through act; otherwise all q, then k, then v,
    rope: "recipe.Rope | None" = None  # which turns q and k
    qk_norm: "recipe.Norm | None" = None  # of q's and k's heads, before that
    scale: float = 1.0  # of the output
    groups: int = 1  # of the output's norm
    bias: bool = False  # of qkv
    out_bias: bool = False


@dataclass(frozen=True)
class Lru:
    """out(act(y) * lru(conv(x))): a channel's state fades by a gate, which a product of its head's channels gives."""

    heads: int
    head: int
    taps: int
    act: str
    module: str = "temporal_block"


@dataclass(frozen=True)
class ShortConv:
    """out(C * conv(B * x))."""

    taps: int
    bias: bool = False
    module: str = "conv"


def tensors(m, hidden):
    """(name, shape, kind) of a mixer's tensors."""
    of_kind = {DeltaRule: delta_rule, ChannelDelta: channel_delta, Mamba2: mamba2, Mamba1: mamba1, ShortConv: short_conv,
               Lightning: lightning, Lru: lru}
    for name, shape, kind in of_kind[type(m)](m, hidden):
        yield f"{m.module}.{name}", shape, kind


def delta_rule(m, hidden):
    values, wide = m.value_heads * m.value, "wide " if m.wide else ""
    if m.in_one:
        yield "in_proj.weight", (m.channels + values + 2 * m.value_heads, hidden), "linear"
    elif m.by_head:
        yield "in_proj_qkvz.weight", (m.channels + values, hidden), "linear"
        yield "in_proj_ba.weight", (2 * m.value_heads, hidden), "gates"
    else:
        yield "in_proj_qkv.weight", (m.channels, hidden), "linear"
        yield "in_proj_z.weight", (values, hidden), "linear"
        yield "in_proj_b.weight", (m.value_heads, hidden), "gates"
        yield "in_proj_a.weight", (m.value_heads, hidden), "gates"
    yield "conv1d.weight", (m.channels, m.taps, 1) if m.by_mlx else (m.channels, 1, m.taps), "taps"
    yield "A_log", (m.value_heads,), wide + "decay"
    yield "dt_bias", (m.value_heads,), "step"
    yield f"{m.norm}.weight", (m.value,), wide + "norm"
    yield "out_proj.weight", (hidden, values), "linear"


def channel_delta(m, hidden):
    n = m.heads * m.head
    for name in "qkv":
        yield f"{name}_proj.weight", (n, hidden), "linear"
        yield f"{name}_conv1d.weight", (n, 1, m.taps), "taps"
    yield "b_proj.weight", (m.heads, hidden), "gates"
    for name, whole in (("f", m.rank == 0), ("g", m.rank == 0 or m.whole_gate)):
        if whole:
            yield f"{name}_proj.weight", (n, hidden), "linear"
        else:
            yield f"{name}_a_proj.weight", (m.rank, hidden), "linear"
            yield f"{name}_b_proj.weight", (n, m.rank), "linear"
    yield "A_log", (m.heads,) if m.flat else (1, 1, m.heads, 1), "decay"
    yield "dt_bias", (n,), "step"
    yield "o_norm.weight", (m.head,), "norm"
    yield f"{m.out}.weight", (hidden, n), "linear"


def convolved(m, channels):
    yield "conv1d.weight", (channels, 1, m.taps), "taps"
    if m.conv_bias:
        yield "conv1d.bias", (channels,), "bias"


def product(name, n, k, bias):
    yield name + ".weight", (n, k), "linear"
    if bias:
        yield name + ".bias", (n,), "bias"


def mamba2(m, hidden):
    yield from product("in_proj", m.inner + m.channels + m.heads, hidden, m.bias)
    yield from convolved(m, m.channels)
    yield "A_log", (m.heads,), "decay"
    yield "D", (m.heads,), "skip"
    yield "dt_bias", (m.heads,), "step"
    if m.normed:
        yield "norm.weight", (m.inner,), "norm"
    yield from product("out_proj", hidden, m.inner, m.out_bias)


def mamba1(m, hidden):
    yield from product("in_proj", 2 * m.inner, hidden, m.bias)
    yield from convolved(m, m.inner)
    yield "x_proj.weight", (m.rank + 2 * m.state, m.inner), "linear"
    yield "dt_proj.weight", (m.inner, m.rank), "linear"
    yield "dt_proj.bias", (m.inner,), "step"
    for name, n in zip(m.norms or (), (m.rank, m.state, m.state)):
        yield name + ".weight", (n,), "norm"
    yield "A_log", (m.inner, m.state), "decays"
    yield "D", (m.inner,), "skip"
    yield from product("out_proj", hidden, m.inner, m.bias)


def lightning(m, hidden):
    inner, (qkv, gate, norm, out) = len(m.rates) * m.head, m.names
    yield from product(qkv, 3 * inner, hidden, m.bias)
    for name in ("query_layernorm", "key_layernorm") if m.qk_norm else ():
        yield name + ".weight", (m.head,), "norm"
    yield gate + ".weight", (inner, hidden), "linear"
    yield norm + ".weight", (inner,), "norm"
    yield from product(out, hidden, inner, m.out_bias)


def lru(m, hidden):
    dim = m.heads * m.head
    yield from product("linear_y", dim, hidden, True)
    yield from product("linear_x", dim, hidden, True)
    yield "conv_1d.weight", (dim, 1, m.taps), "taps"
    yield "conv_1d.bias", (dim,), "bias"
    for name in ("input", "recurrent"):
        yield f"rg_lru.{name}_gate_weight", (m.heads, m.head, m.head), "heads"
        yield f"rg_lru.{name}_gate_bias", (m.heads, m.head), "bias"
    yield "rg_lru.recurrent_param", (dim,), "fading"
    yield from product("linear_out", hidden, dim, True)


def short_conv(m, hidden):
    yield from product("in_proj", 3 * hidden, hidden, m.bias)
    yield "conv.weight", (hidden, 1, m.taps), "taps"
    if m.bias:
        yield "conv.bias", (hidden,), "bias"
    yield from product("out_proj", hidden, hidden, m.bias)


def values(kind, shape, uniform, normal):
    """Contents as trained models have them: a step keeps between 0.2 and 0.999 of the state. uniform, normal: draws of the shape."""
    if kind == "taps":
        return normal * np.float32(0.7 / np.sqrt(shape[-1]))
    if kind == "skip":
        return 1 + np.float32(0.2) * normal
    if kind == "fading":  # as the class initialises it: with an open gate, 0.9^8 to 0.999^8 of the state are left
        return np.log(np.expm1(-np.log(0.9 + 0.099 * uniform)))
    if kind == "decay":
        return np.log(1 + 15 * uniform)
    if kind == "decays":  # of state n: n + 1, as the class initialises them
        return np.log(np.broadcast_to(np.arange(1, shape[-1] + 1, dtype=np.float32), shape) * (1 + np.float32(0.1) * normal))
    time = np.exp(np.log(1e-3) + np.log(1e2) * uniform)
    return time + np.log(-np.expm1(-time))  # softplus gives `time`
