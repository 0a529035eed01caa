"""What each model family computes, as data: one description of every decoder layer and of what is around the layers.

reference_model.py computes a description in float64, tiny_checkpoint.py writes the tensors that it names. Written
from the definitions of the families; shares nothing with the worker. A family is one function from config.json,
in either style of configuration, to a Model; the defaults of Layer and Model are Llama's.
"""

import math
from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True)
class Norm:
    kind: str = "rms"  # or "layer": with the mean removed
    eps: float = 1e-6
    offset: float = 0.0  # added to the weight
    weight: bool = True
    bias: bool = False
    once: bool = False  # 16 bit: rounded after the weight only


@dataclass(frozen=True)
class Rope:
    rotated: int  # the first elements of a head, which are rotated
    settings: dict  # rope_type, rope_theta and the scaling's own keys
    interleaved: bool = False  # pairs (2i, 2i + 1) instead of (i, i + rotated / 2)


@dataclass(frozen=True)
class Layer:
    """One decoder layer. Names are relative to `stem`."""

    heads: int
    kv_heads: int
    head: int
    inner: int
    norm: Norm
    stem: str = ""
    # norms: of the inputs, of the outputs before they are added, of the sums; None: there is none
    attention_in: str | None = "input_layernorm"
    attention_out: str | None = None
    attention_after: str | None = None
    mlp_in: str | None = "post_attention_layernorm"
    mlp_out: str | None = None
    mlp_after: str | None = None
    parallel: bool = False  # x + attention(n) + mlp(m), m = n if there is no mlp_in
    residual: float = 1.0  # factor of what is added
    out_scalar: str | None = None  # tensor whose value multiplies the layer's result
    # attention; one projection: q, k and v in one matrix; no third one: the values are the keys before their norm
    projections: tuple = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    by_group: bool = False  # rows of one matrix: for every key-value head its queries, its key, its value
    o: str = "self_attn.o_proj"
    qkv_bias: bool = False
    o_bias: bool = False
    columns: bool = False  # weights are stored as [inputs, outputs]
    clip: float | None = None  # of q, k and v
    qk_norm: Norm | None = None
    q_norm: str = "self_attn.q_norm"  # "{}" in a name: one tensor per head
    k_norm: str = "self_attn.k_norm"
    qk_over: str = "head"  # "width": over all heads together; "own": over a head, with a weight per head
    qk_after_rope: bool = False
    v_norm: Norm | None = None
    scale: float = 1.0
    rope: Rope | None = None
    slopes: tuple | None = None  # ALiBi, per head, of the distance between key and query
    query_factor: tuple | None = None  # beta, length: queries times 1 + beta * ln(1 + floor(position / length))
    window: int | None = None  # keys that a query sees, with its own
    softcap: float | None = None
    attention_norm: str | None = None  # before o
    kv_of: int | None = None  # another layer whose keys and values are used
    # MLP; one of `gate_up`: a plain MLP, or gate and up in one matrix
    gate_up: tuple = ("mlp.gate_proj", "mlp.up_proj")
    down: str = "mlp.down_proj"
    gated: bool = True
    act: str = "silu"
    mlp_bias: bool = False
    mlp_norm: str | None = None  # before down


@dataclass(frozen=True)
class Model:
    layers: tuple
    hidden: int
    vocab: int
    norm: Norm
    embed: str = "model.embed_tokens"
    embed_width: int | None = None  # None: hidden
    embed_scale: float = 1.0
    embed_norm: str | None = None
    positions: str | None = None  # learned
    n_positions: int = 0
    position_offset: int = 0
    project_in: str | None = None
    project_out: str | None = None
    final: str | None = "model.norm"
    head: str | None = "lm_head"  # None: the embedding
    head_bias: bool = False
    logit_scale: float = 1.0
    softcap: float | None = None
    per_layer: int = 0  # Gemma 3n and 4 E: width of each layer's own input


def tensors(m):
    """(name, shape, kind) of every tensor; kind: embed, linear, bias, norm, head, scalar."""
    width = m.embed_width or m.hidden
    yield m.embed + ".weight", (m.vocab, width), "embed"
    if m.positions:
        yield m.positions + ".weight", (m.n_positions, m.hidden), "positions"
    if m.embed_norm:
        yield from norm_tensors(m.embed_norm, m.hidden, m.norm)
    if m.project_in:
        yield m.project_in + ".weight", (m.hidden, width), "linear"
    for layer in m.layers:
        for name, shape, kind in layer_tensors(layer, m.hidden):
            yield layer.stem + name, shape, kind
    if m.final:
        yield from norm_tensors(m.final, m.hidden, m.norm)
    if m.project_out:
        yield m.project_out + ".weight", (width, m.hidden), "linear"
    if m.head:
        yield m.head + ".weight", (m.vocab, m.hidden), "head"
    if m.head_bias:
        yield m.head + ".bias", (m.vocab,), "bias"


def norm_tensors(name, n, norm):
    shape = n if isinstance(n, tuple) else (n,)
    if norm.weight:
        yield name + ".weight", shape, "shifted norm" if norm.offset else "norm"
    if norm.bias:
        yield name + ".bias", shape, "bias"


def layer_tensors(a, hidden):
    q, kv = a.heads * a.head, a.kv_heads * a.head
    for name in (a.attention_in, a.attention_out, a.attention_after, a.mlp_in, a.mlp_out, a.mlp_after):
        if name:
            yield from norm_tensors(name, hidden, a.norm)
    rows = (q + 2 * kv,) if len(a.projections) == 1 else (q, kv, kv)
    products = [(p, n, hidden, a.qkv_bias) for p, n in zip(a.projections, rows)]
    wide = a.inner * (1 + (a.gated and len(a.gate_up) == 1))
    products += [(a.o, hidden, q, a.o_bias), *((p, wide, hidden, a.mlp_bias) for p in a.gate_up),
                 (a.down, hidden, a.inner, a.mlp_bias)]
    for name, n, k, bias in products:
        yield name + ".weight", (k, n) if a.columns else (n, k), "columns" if a.columns else "linear"
        if bias:
            yield name + ".bias", (n,), "bias"
    for name, heads in ((a.q_norm, a.heads), (a.k_norm, a.kv_heads)) if a.qk_norm else ():
        for stem in [name.format(h) for h in range(heads)] if "{}" in name else [name]:
            shape = {"head": a.head, "width": heads * a.head, "own": (heads, a.head)}[a.qk_over]
            yield from norm_tensors(stem, shape, a.qk_norm)
    if a.attention_norm:
        yield from norm_tensors(a.attention_norm, q, a.norm)
    if a.mlp_norm:
        yield from norm_tensors(a.mlp_norm, a.inner, a.norm)
    if a.out_scalar:
        yield a.out_scalar, (1,), "norm"
    if a.act == "xielu":
        for name, shape, kind in (("alpha_p", (1,), "bias"), ("alpha_n", (1,), "bias"), ("beta", (), "half"),
                                  ("eps", (), "tiny")):
            yield f"mlp.act_fn.{name}", shape, kind


# ---- reading config.json --------------------------------------------------------------------------

def rope_settings(c, kind=None):
    """Settings of RoPE with theta, from either style of configuration; kind: of one sort of layers."""
    new = c.get("rope_parameters") or {}
    new = new.get(kind, new)
    out = dict(new or c.get("rope_scaling") or {})
    out["rope_theta"] = float(new.get("rope_theta", c.get("rope_theta", 10000.0)))
    out["rope_type"] = out.get("rope_type", out.get("type", "default"))
    for key in ("original_max_position_embeddings", "max_position_embeddings"):
        if c.get(key) is not None:
            out.setdefault(key, c[key])
    return out


def partial(c, default=1.0, key="partial_rotary_factor"):
    return rope_settings(c).get("partial_rotary_factor", c.get(key, default))


def head_of(c, default=None):
    return c.get("head_dim") or default or c["hidden_size"] // c["num_attention_heads"]


def layer_types(c, every=None, first_full=False):
    """Whether each layer sees only a window; `every`: each such layer sees everything, if the file has no list."""
    if c.get("layer_types"):
        return [t == "sliding_attention" for t in c["layer_types"]]
    every = c.get("sliding_window_pattern") or c.get("_sliding_window_pattern") or every
    return [bool((i + 1) % every) for i in range(c["num_hidden_layers"])]


def build(c, norm, *, stem="model.layers.{}.", head=None, layer=None, rope="default", windows=None, own=None,
          tied=False, **model):
    """A Model with equal layers. layer: changes of all; windows: per layer; own(i): changes of layer i."""
    heads, head = c["num_attention_heads"], head or head_of(c)
    layer = {"scale": head ** -0.5} | (layer or {})
    if rope == "default":
        rope = Rope(head, rope_settings(c))
    one = Layer(heads=heads, kv_heads=c.get("num_key_value_heads") or heads, head=head,
                inner=c["intermediate_size"], norm=norm, rope=rope)
    n = c["num_hidden_layers"]
    windows = windows if isinstance(windows, list) else [windows] * n
    layers = tuple(replace(one, **({"stem": stem.format(i), "window": windows[i]} | layer | (own(i) if own else {})))
                   for i in range(n))
    if c.get("tie_word_embeddings", tied):
        model["head"] = None
    return Model(**({"layers": layers, "hidden": c["hidden_size"], "vocab": c["vocab_size"], "norm": norm} | model))


def rms(c, default=1e-6, **more):
    return Norm(eps=c.get("rms_norm_eps", default), **more)


# ---- the families -----------------------------------------------------------------------------------

def llama(c):
    bias = c.get("attention_bias", False)
    return build(c, rms(c), layer={"qkv_bias": bias, "o_bias": bias, "mlp_bias": c.get("mlp_bias", False)})


def mistral(c):
    return build(c, rms(c), windows=c.get("sliding_window", 4096))


def phi3(c):
    head = head_of(c)
    return build(c, rms(c, 1e-5), rope=Rope(int(head * partial(c)), rope_settings(c)),
                 windows=c.get("sliding_window"),
                 layer={"projections": ("self_attn.qkv_proj",), "gate_up": ("mlp.gate_up_proj",)})


def _qwen_windows(c):
    if not c.get("use_sliding_window", False):
        return None
    window, n = c.get("sliding_window", 4096), c["num_hidden_layers"]
    slides = layer_types(c) if c.get("layer_types") else [i >= c.get("max_window_layers", 28) for i in range(n)]
    return [window if s else None for s in slides]


def qwen2(c):
    return build(c, rms(c), windows=_qwen_windows(c), layer={"qkv_bias": True})


def qwen3(c):
    bias = c.get("attention_bias", False)
    return build(c, rms(c), head=head_of(c, 128), windows=_qwen_windows(c),
                 layer={"qkv_bias": bias, "o_bias": bias, "qk_norm": rms(c)})


FAMILIES = {"llama": llama, "mistral": mistral, "phi3": phi3, "qwen2": qwen2, "qwen3": qwen3}

# Text models inside a multimodal checkpoint: model_type -> (its family, stem of its tensors, its head)
WRAPPERS = {}


def describe(config):
    """The Model of a config.json."""
    kind = config["model_type"]
    if kind not in FAMILIES:
        raise SystemExit(f"families: model_type {kind} is not supported")
    return FAMILIES[kind](config)
