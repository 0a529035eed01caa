"""What the functions of families.py and more_families.py read config.json with."""

import math
from dataclasses import replace

import numpy as np

from recipe import Layer, Model, Norm, Rope


def rope_settings(c, kind=None):
    """Settings of RoPE with theta, from either style of configuration; kind: of one sort of layers."""
    new = c.get("rope_parameters") or {}
    new = new.get(kind, new)
    out = dict(new or c.get("rope_scaling") or {})
    out["rope_theta"] = float(new.get("rope_theta", c.get("rope_theta", 10000.0)))
    kind = out.get("rope_type", out.get("type", "default"))
    out["rope_type"] = {"mrope": "default", "su": "longrope"}.get(kind, kind)  # as text sees them; an old name
    for key in ("original_max_position_embeddings", "max_position_embeddings"):
        if c.get(key) is not None:
            out.setdefault(key, c[key])
    return out


def partial(c, default=1.0, key="partial_rotary_factor"):
    return rope_settings(c).get("partial_rotary_factor", c.get(key, default))


def head_of(c, default=None):
    return c.get("head_dim") or default or c["hidden_size"] // c["num_attention_heads"]


def layer_types(c, every=None):
    """Whether each layer sees only a window; `every`: each such layer sees everything, if the file has no list."""
    if c.get("layer_types"):
        return [t == "sliding_attention" for t in c["layer_types"]]
    every = c.get("sliding_window_pattern") or c.get("_sliding_window_pattern") or every
    return [bool((i + 1) % every) for i in range(c["num_hidden_layers"])]


def build(c, norm, *, stem="model.layers.{}.", head_dim=None, layer=None, rope="default", windows=None, own=None,
          tied=False, **model):
    """A Model with equal layers. layer: changes of all; windows: per layer; own(i): changes of layer i."""
    heads, head = c["num_attention_heads"], head_dim or head_of(c)
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


def act_of(c, default="silu"):
    """The activation's name; GPT-2's has several."""
    name = next((c[k] for k in ("hidden_activation", "hidden_act", "activation_function", "activation") if c.get(k)),
                default)
    return "gelu_tanh" if name in ("gelu_new", "gelu_pytorch_tanh", "gelu_fast") else name


def plain_mlp(act, up="mlp.up_proj", down="mlp.down_proj", bias=False):
    return {"gated": False, "gate_up": (up,), "down": down, "act": act, "mlp_bias": bias}


def interleaved(c, head, factor=1.0):
    return Rope(int(head * factor), rope_settings(c), True)


def alibi(n):
    """Slopes of n heads, as in the paper's code (2108.12409)."""
    power = 2 ** math.floor(math.log2(n))
    first = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    return (*first, *(2 ** (-4 * (2 * i + 1) / power) for i in range(n - power)))


def sqrt_bf16(n):
    """sqrt(n) rounded to bf16, as Gemma multiplies its embedding by it."""
    bits = np.float32(math.sqrt(n)).view(np.uint32).astype(np.uint64)
    return float(((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32))


SANDWICH = {"attention_out": "post_attention_layernorm", "mlp_in": "pre_feedforward_layernorm",
            "mlp_out": "post_feedforward_layernorm"}
NORMS_AFTER = {"attention_in": None, "attention_out": "post_attention_layernorm", "mlp_in": None,
               "mlp_out": "post_feedforward_layernorm"}
