#!/usr/bin/env python3
"""The model families in float64 NumPy, written from their definitions: the reference for the worker.
families.py says what each family computes. This program shares no code with the worker.

    reference_model.py DIR [--config NAME] < sequences.jsonl > scores.jsonl
    reference_model.py DIR --hashes

Lines have the form of `ctworker score` and `ctworker inspect --hashes`. All arithmetic is float64,
except three parts that transformers computes in fp32: inverse frequencies, rotary angles, and the
decoding of weights (bit-equal to compressed-tensors' decompress).

With `activations` "BF16" or "F16", the model rounds every intermediate result that transformers'
eager model in that dtype rounds: this gives the error that a 16-bit run is allowed to have.
"""

import argparse
import hashlib
import itertools
import json
import math
import os
import struct
import sys
from dataclasses import replace

import numpy as np

import families
import gated
import recipe
import reference_altup
import reference_activations
import reference_experts
import reference_gated
import reference_pooled
import reference_recurrent
import reference_rotations
from family_keys import sqrt_bf16
from reference_formats import NUMPY, narrow_bytes, round_to, widen
from reference_native import decode
from reference_math import ACTIVATIONS

TORCH_NAME = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
BY_TORCH_NAME = {name: dtype for dtype, name in TORCH_NAME.items()}


# ---- tensors ----------------------------------------------------------------------------------

def read_folder(folder):
    """name -> (dtype, raw array) of every safetensors file in the folder."""
    out = {}
    for file in sorted(os.listdir(folder)):
        if not file.endswith(".safetensors"):
            continue
        with open(os.path.join(folder, file), "rb") as f:
            data = f.read()
        (n,) = struct.unpack_from("<Q", data)
        for name, rec in json.loads(data[8:8 + n]).items():
            if name == "__metadata__":
                continue
            first, last = rec["data_offsets"]
            raw = np.frombuffer(data[8 + n + first:8 + n + last], NUMPY[rec["dtype"]])
            out[name] = (rec["dtype"], raw.reshape(rec["shape"]))
    return out


# ---- rotary embedding ---------------------------------------------------------------------------

def yarn(plain, theta, head, s):
    """Interpolates low frequencies, keeps high frequencies, with a linear ramp in between (YaRN,
    2309.00071). Also returns the factor of cosine and sine."""
    factor, context = s["factor"], s["original_max_position_embeddings"]

    def dim_of(rotations):
        return head * math.log(context / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dim_of(s.get("beta_fast") or 32), dim_of(s.get("beta_slow") or 1)
    if s.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head - 1)
    ramp = (np.arange(head // 2, dtype=plain.dtype) - low) / max(high - low, 0.001)
    ramp = np.clip(ramp, 0, 1)

    def mscale(weight=1.0):
        return 0.1 * weight * math.log(factor) + 1 if factor > 1 else 1.0

    attention = s.get("attention_factor")
    if attention is None:
        m, m_all = s.get("mscale"), s.get("mscale_all_dim")
        attention = mscale(m) / mscale(m_all) if m and m_all else mscale()
    keep = 1 - ramp
    return plain / factor * (1 - keep) + plain * keep, attention


def llama3(plain, s):
    """Slows down long waves by `factor`, keeps short waves, with a smooth step in between."""
    wave = plain.dtype.type(2 * math.pi) / plain
    low, high = s["low_freq_factor"], s["high_freq_factor"]
    turns = s["original_max_position_embeddings"] / wave
    smooth = np.clip((turns - low) / (high - low), 0, 1) if high != low else (turns >= low).astype(plain.dtype)
    return (1 - smooth) * plain / s["factor"] + smooth * plain


def longrope_factor(s, long):
    """Of cosine and sine: at every length, or in Phi-MoE one each."""
    if "short_mscale" in s:
        return s["long_mscale" if long else "short_mscale"]
    if s.get("attention_factor") is not None:
        return s["attention_factor"]
    context = s["original_max_position_embeddings"]
    factor = s.get("factor") or s["max_position_embeddings"] / context
    return math.sqrt(1 + math.log(factor) / math.log(context)) if factor > 1 else 1.0


def rotary(rope, n_tok, tables):
    """cos, sin [n_tok, rotated elements of a head / 2] in float64 of angles in the dtype `tables`."""
    s, n = rope.settings, rope.rotated
    theta, kind, factor = s["rope_theta"], s["rope_type"], 1.0
    power = np.arange(0, n, 2, dtype=tables) / tables(n)
    plain = tables(1) / tables(theta) ** power
    if kind == "linear":
        plain = plain / s["factor"]
    elif kind == "yarn":
        plain, factor = yarn(plain, theta, n, s)
    elif kind == "llama3":
        plain = llama3(plain, s)
    elif kind == "longrope":
        long = n_tok > s["original_max_position_embeddings"]
        plain, factor = plain / np.asarray(s["long_factor" if long else "short_factor"], tables), longrope_factor(s, long)
    elif kind == "proportional":  # the last pairs of the head are not rotated
        plain[int(s.get("partial_rotary_factor", 1.0) * n / 2):] = 0
    elif kind == "dynamic" and "alpha" in s:
        plain = tables(1) / tables(theta * s["alpha"] ** (n / (n - 2))) ** power
    elif kind != "default":
        raise SystemExit(f"reference_model: rope_type {kind} is not supported")
    angle = np.arange(n_tok, dtype=tables)[:, None] * plain.astype(tables)[None]
    return np.cos(angle.astype(np.float64)) * factor, np.sin(angle.astype(np.float64)) * factor


# ---- the model ----------------------------------------------------------------------------------

class Model:
    """tables: the dtype of rotary angles; float32 as transformers has them, or float64. quantise: activations, as the
    checkpoint declares. rounded: decoded weights to the model's dtype, as most tools decode; to that of the activations in any case.
    like: a model of the same folder and configuration, whose tensors and decoded weights this one uses, too."""

    def __init__(self, folder, config_name="config.json", activations=None, tables=np.float32, quantise=False, rounded=False, like=None):
        with open(os.path.join(folder, config_name), encoding="utf-8") as f:
            self.config = json.load(f)
        self.tensors = like.tensors if like else read_folder(folder)
        self.decodings = like.decodings if like else {}
        self.family = families.describe(self.config, self.tensors)
        self.shapes = {name: shape for name, shape, _ in recipe.tensors(self.family)}
        self.cache, self.tokens = {}, None
        self.activations, self.tables, self.quantise = activations, tables, quantise
        self.weights = activations or (self.dtype if rounded and self.dtype != "F32" else None)

    @property
    def dtype(self):
        """Of the model, as its configuration says: BF16, F16 or F32."""
        return BY_TORCH_NAME[self.config.get("dtype") or self.config.get("torch_dtype") or self.config["text_config"]["dtype"]]

    def r(self, x):
        """x rounded to the activations' dtype."""
        if self.activations is None:
            return x
        return round_to(x.astype(np.float32), self.activations).astype(np.float64)

    def weight(self, name):
        if name not in self.cache:
            dtype, w = self.decoded(name)
            if self.weights and self.tensors.get(name, (None,))[0] != dtype:  # decoded, not stored as it is
                w = round_to(w, self.weights)
            self.cache[name] = w.astype(np.float64)
        return self.cache[name]

    def decoded(self, name):
        """(dtype, fp32 values) without the padding of EXL3's blocks."""
        if name not in self.decodings:
            dtype, w = decode(self.tensors, name, self.config)
            self.decodings[name] = dtype, w[tuple(slice(size) for size in self.shapes.get(name, w.shape))]
        return self.decodings[name]

    def integers(self, name):
        return self.tensors[name][1].astype(np.int64)

    def input(self, x, module):
        """x as the module reads it."""
        x = self.rotated(x, "input", module)
        if not self.quantise:
            return x
        return reference_activations.module_input(x, module, self.tensors, self.config, self.activations)

    def rotated(self, x, location, module):
        return reference_rotations.rotated(x, location, module, self.tensors, self.config, self.r)

    def linear(self, x, module, bias=False, columns=False):
        w = self.weight(module + ".weight")
        x = self.input(x, module)
        y = x @ (w if columns else w.T)
        y = self.rotated(self.r(y + self.weight(module + ".bias") if bias else y), "output", module)
        return reference_activations.module_output(y, module, self.tensors, self.activations) if self.quantise else y

    def norm(self, x, name, norm, gain=None):
        """Over the last axis; gain: the weight, if it is not the tensor of that name."""
        if norm.kind == "layer":
            x = x - x.mean(axis=-1, keepdims=True)
        x = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + norm.eps)
        if not norm.weight:
            return self.r(x)
        if norm.kind == "rms" and not norm.offset and not norm.once:
            x = self.r(x)
        x = x * ((self.weight(name + ".weight") if gain is None else gain) + norm.offset)
        return self.r(x + self.weight(name + ".bias") if norm.bias else x)

    def turn(self, x, rope, n_tok):
        """x [n_tok, heads, head], its first elements rotated in pairs."""
        if rope is None:
            return x
        key = id(rope), n_tok
        if key not in self.cache:
            self.cache[key] = rope, *map(self.r, rotary(rope, n_tok, self.tables))
        cos, sin = (t[:, None, :] for t in self.cache[key][1:])
        sin = -sin if rope.backwards else sin
        n = rope.rotated
        a, b = (x[:, :, :n:2], x[:, :, 1:n:2]) if rope.interleaved else np.split(x[:, :, :n], 2, axis=2)
        pair = (self.r(self.r(a * cos) - self.r(b * sin)), self.r(self.r(b * cos) + self.r(a * sin)))
        turned = np.stack(pair, axis=3).reshape(*x.shape[:2], n) if rope.interleaved else np.concatenate(pair, axis=2)
        return np.concatenate([turned, x[:, :, n:]], axis=2)

    def qk_norm(self, x, a, name):
        """x [n_tok, heads, head] after the norm of queries or keys."""
        heads, name = x.shape[1], a.stem + name
        if a.qk_over == "width":
            return self.norm(x.reshape(len(x), -1), name, a.qk_norm).reshape(x.shape)
        gain = None
        if "{}" in name:
            gain = np.stack([self.weight(name.format(h) + ".weight") for h in range(heads)])
        return self.norm(x, name, a.qk_norm, gain)

    def qkv(self, x, a):
        """Queries [n_tok, heads, head], keys and values [n_tok, kv_heads, head], before norms and RoPE."""
        own = a.projections if a.kv_of is None else a.projections[:1]
        parts = [self.linear(x, a.stem + p, a.qkv_bias, a.columns) for p in own]
        if a.clip is not None:
            parts = [np.clip(p, -a.clip, a.clip) for p in parts]
        if a.by_group:
            rows = parts[0].reshape(len(x), a.kv_heads, -1, a.head)
            parts = [rows[:, :, :-2], rows[:, :, -2], rows[:, :, -1]]
        elif a.blocks:
            rows = parts[0].reshape(len(x), a.blocks, 3, -1)
            parts = [rows[:, :, i] for i in (0, 2, 1)]
        elif len(parts) == 1 and a.kv_of is None:
            ranks = a.ranks or 1
            parts = np.split(parts[0].reshape(len(x), ranks, -1), np.cumsum([a.heads, a.kv_heads]) * a.head // ranks, axis=2)
        elif len(parts) == 2:
            parts.append(parts[1])
        widths = (a.head * (1 + a.gate_in_q), a.head, a.head_v or a.head)
        return [p.reshape(len(x), -1, width) for p, width in zip(parts, widths)]

    def queries_keys(self, q, k, a):
        """Queries and keys (None: another layer's are used) after norms and RoPE."""
        out = []
        for x, name in ((q, a.q_norm), (k, a.k_norm)):
            if x is not None and a.qk_norm and not a.qk_after_rope:
                x = self.qk_norm(x, a, name)
            if x is not None and a.clip_after is not None:
                x = np.clip(x, -a.clip_after, a.clip_after)
            if x is not None:
                x = self.turn(x, a.rope, len(x))
            if x is not None and a.qk_norm and a.qk_after_rope:
                x = self.qk_norm(x, a, name)
            out.append(x)
        return out

    def choose_keys(self, x, latent, a):
        """[n_tok, n_tok]: whether a query sees a key, as the layer's indexer chooses them."""
        m, n, stem = a.latent.index, len(x), f"{a.stem}{a.latent.module}.indexer."
        rope = replace(a.rope, interleaved=m.interleaved) if a.rope else None
        q = self.linear(latent, stem + "wq_b").reshape(n, m.heads, m.head)
        k = self.norm(self.linear(x, stem + "wk"), stem + "k_norm", m.norm)[:, None]
        own = m.head - rope.rotated if m.turns_last else 0
        q, k = (np.concatenate([part[..., :own], self.turn(part[..., own:], rope, n)], axis=2) for part in (q, k))
        k, size = k[:, 0], m.pool or 1
        if m.pool:
            k = reference_pooled.keys_of_pools(self, x, k, stem + "index_kpool_compress_", size)
        scores = np.einsum("ih,ihj->ij", self.linear(x, stem + "weights_proj"), np.maximum(q @ k.T, 0))
        return reference_pooled.seen_pools(scores, size, m.chosen // size)

    def choose_blocks(self, x, a):
        """[kv_heads, n_tok, n_tok]: whether a query of the key head sees a key."""
        b, n, stem = a.blocks_seen, len(x), a.stem + "self_attn."
        q = self.norm(self.linear(x, stem + "index_q_proj").reshape(n, -1, b.head), stem + "index_q_norm", a.qk_norm)
        k = self.norm(self.linear(x, stem + "index_k_proj"), stem + "index_k_norm", a.qk_norm)
        q, k = self.turn(q, a.rope, n), self.turn(k[:, None], a.rope, n)[:, 0]
        scores = np.einsum("ihd,jd->hij", q, k)
        scores[:, np.triu(np.ones((n, n), bool), 1)] = -np.inf
        firsts = range(0, n, b.size)
        scores = np.stack([scores[:, :, at:at + b.size].max(axis=2) for at in firsts], axis=2)
        behind = np.arange(n)[:, None] // b.size - np.arange(len(firsts))[None]
        scores[:, (behind >= 0) & (behind < b.local)] = np.inf
        seen = np.zeros(scores.shape, bool)
        np.put_along_axis(seen, np.argsort(-scores, axis=2, kind="stable")[:, :, :b.chosen], True, axis=2)
        return np.repeat(seen, b.size, axis=2)[:, :, :n]

    def heads(self, x, a, which):
        return reference_activations.heads(x, a.stem, which, self.tensors, self.config, self.activations)

    def latent_qkv(self, x, a, kept):
        """Queries, keys [n_tok, heads, head] and values of latent attention, after RoPE."""
        m, n, stem = a.latent, len(x), f"{a.stem}{a.latent.module}."
        own = a.head - m.turning
        if m.q_rank:
            latent = self.norm(self.linear(x, stem + "q_a_proj", m.bias), stem + "q_a_layernorm", m.norm)
            q = self.linear(latent, stem + "q_b_proj")
            if m.index and not m.index.shared:
                kept["seen"] = self.choose_keys(x, latent, a)
        else:
            q = self.linear(x, stem + "q_proj")
        latent = self.linear(x, stem + "kv_a_proj_with_mqa", m.bias)
        latent, turning = self.norm(latent[:, :m.rank], stem + "kv_a_layernorm", m.norm), self.turn(latent[:, None, m.rank:], a.rope, n)
        latent = self.r(latent * m.factor)
        if self.quantise and not m.index:  # a cache holds these
            latent, turning = self.heads(latent, a, "k"), self.heads(turning, a, "v")
        kv = self.linear(latent, stem + "kv_b_proj").reshape(n, a.heads, -1)
        q = q.reshape(n, a.heads, a.head)
        turning = np.broadcast_to(turning, (n, a.heads, m.turning))
        q = np.concatenate([q[:, :, :own], self.turn(q[:, :, own:], a.rope, n)], axis=2)
        return q, np.concatenate([kv[:, :, :own], turning], axis=2), kv[:, :, own:]

    def attention(self, x, a, kept):
        """kept: layer -> keys and values, as later layers may use them."""
        n_tok = len(x)
        if a.attention_factors[0] != 1:
            x = self.r(x * a.attention_factors[0])
        if a.latent:
            q, k, v = self.latent_qkv(x, a, kept)
        else:
            q, k, v = self.qkv(x, a) if a.kv_of is None else (self.qkv(x, a)[0], None, None)
            if a.gate_in_q:
                q, gate = np.split(q, 2, axis=2)
            if a.attention_factors[1] != 1:
                k = self.r(k * a.attention_factors[1])
            if a.kv_convs:
                k, v = (self.convolved(y, a.stem + name) for y, name in zip((k, v), a.kv_convs))
            q, k = self.queries_keys(q, k, a)
        if a.kv_of is not None:
            k, v = kept[self.family.layers[a.kv_of].stem]
        elif a.v_norm:
            v = self.norm(v, "", a.v_norm)
        if a.clip_after is not None:
            v = np.clip(v, -a.clip_after, a.clip_after)
        q = self.rotated(q, "q_attn", a.stem + "self_attn")
        if a.kv_of is None:
            k = self.rotated(k, "k_cache", a.stem + "self_attn")
        if a.value_scale != 1:
            v = self.r(v * a.value_scale)
        if self.quantise and a.kv_of is None and (not a.latent or a.latent.index):
            k, v = self.heads(k, a, "k"), self.heads(v, a, "v")
        kept[a.stem] = k, v
        if a.query_factor:
            beta, length, *first = a.query_factor
            q = self.r(q * (1 + beta * np.log1p((np.arange(n_tok) + sum(first)) // length))[:, None, None])
        bias = 0
        if a.relative:
            states = self.linear(x, a.stem + a.relative[0]).reshape(n_tok, a.heads, -1)
            bias = self.r(states @ self.weight(a.stem + a.relative[1]))
        if a.log_factor:
            factor = 1 + a.log_factor[0] * np.log(np.maximum(1, (np.arange(n_tok) + 1) / a.log_factor[1]))[:, None, None]
            q, bias = self.r(q * factor), self.r(bias * factor)
        if self.quantise:
            q = self.heads(q, a, "q")
        chosen = kept["seen"] if a.latent and a.latent.index else True
        if a.blocks_seen:
            chosen = self.choose_blocks(x, a)
        if a.pools:
            chosen = reference_gated.choose_pools(self, x, a)
        out = self.r(self.mix(q, k, v, a, chosen, bias))
        if a.gate_in_q:
            out = self.r(out * self.r(ACTIVATIONS["sigmoid"](gate)))
        if a.out_gate:
            gate = self.r(ACTIVATIONS[a.out_gate[1]](self.linear(x, a.stem + a.out_gate[0])))
            out = self.r(out * gate.reshape(n_tok, a.heads, -1))
        out = out.reshape(n_tok, -1)
        if a.attention_norm:
            out = self.norm(out, a.stem + a.attention_norm, a.norm)
        out = self.linear(out, a.stem + a.o, a.o_bias, a.columns)
        return self.r(out * a.attention_factors[2]) if a.attention_factors[2] != 1 else out

    def convolved(self, x, name):
        """x [n_tok, ..] plus its convolution over the tokens."""
        flat, w = x.reshape(len(x), -1), self.weight(name)
        w = w.reshape(len(w), -1)  # [channels, taps]
        padded = np.concatenate([np.zeros((w.shape[1] - 1, flat.shape[1])), flat])
        return self.r(flat + sum(padded[i:i + len(x)] * w[:, i] for i in range(w.shape[1]))).reshape(x.shape)

    def mix(self, q, k, v, a, chosen, bias=0):
        """Softmax attention [n_tok, heads, head] over the chosen keys, which may differ by key head."""
        distance = np.arange(len(q))[:, None] - np.arange(len(q))[None]
        seen = (distance >= 0) & chosen
        if a.window is not None:
            seen &= distance < a.window
        if a.chunk is not None:
            block = np.arange(len(q)) // a.chunk
            seen &= block[:, None] == block[None]
        sinks = self.weight(a.stem + a.sinks) if a.sinks else np.full(a.heads, -np.inf)
        out = np.empty((*q.shape[:2], v.shape[2]))
        for h, at in itertools.product(range(a.heads), range(0, len(q), 128)):
            kv, rows, end = h // (a.heads // a.kv_heads), slice(at, at + 128), at + 128  # these rows see no key from `end` on
            here = seen if seen.ndim == 2 else seen[kv]
            s = self.r(self.r(q[rows, h] @ k[:end, kv].T) * a.scale)
            if a.softcap is not None:
                s = self.r(self.r(np.tanh(self.r(s / a.softcap))) * a.softcap)
            if a.slopes is not None:
                s = self.r(s - a.slopes[h] * distance[rows, :end])
            if a.relative:  # bias: [n_tok, heads, distances], 0 from the last on
                far, d = a.relative[3], distance[rows, :end]
                own = np.take_along_axis(bias[rows, h], np.clip(d, 0, far - 1), axis=1)
                s = self.r(s + np.where((d >= 0) & (d < far), own, 0))
            s = np.where(here[rows, :end], s, -np.inf)
            top = np.maximum(s.max(axis=1, keepdims=True), sinks[h])
            p = np.exp(s - top)
            out[rows, h] = self.r(p / (p.sum(axis=1, keepdims=True) + np.exp(sinks[h] - top))) @ v[:end, kv]
        return out

    def mlp(self, x, a):
        parts = [self.linear(x, a.stem + p, a.mlp_bias, a.columns) for p in a.gate_up]
        if a.gated and len(parts) == 1:
            halves = (parts[0][:, ::2], parts[0][:, 1::2]) if a.mixed_rows else np.split(parts[0], 2, axis=1)
            parts = list(halves)[::-1 if a.up_first else 1]
        if a.mlp_factors[0] != 1:
            parts[0] = self.r(parts[0] * a.mlp_factors[0])
        if a.act in ("gpt_oss", "situ"):
            return self.linear(reference_experts.activated(self, *parts, a), a.stem + a.down, a.mlp_bias, a.columns)
        if a.limit_first:
            parts[0] = np.minimum(parts[0], a.limit)
        if a.cutoff:
            parts[0] = reference_altup.above_cutoff(self, parts[0], a.cutoff)
        y = self.r(self.xielu(parts[0], a) if a.act == "xielu" else ACTIVATIONS[a.act](parts[0]))
        if a.limit:
            y, parts[1] = y if a.limit_first else np.minimum(y, a.limit), np.clip(parts[1], -a.limit, a.limit)
        y = self.r(y * parts[1]) if a.gated else y
        if a.mlp_norm:
            y = self.norm(y, a.stem + a.mlp_norm, a.norm)
        y = self.linear(y, a.stem + a.down, a.mlp_bias, a.columns)
        if a.mlp_scale:
            y = self.r(y * self.weight(a.stem + a.mlp_scale))
        return self.r(y * a.mlp_factors[1]) if a.mlp_factors[1] != 1 else y

    def xielu(self, x, a):
        p, n, beta, eps = (float(self.weight(f"{a.stem}mlp.act_fn.{part}").reshape(()))
                           for part in ("alpha_p", "alpha_n", "beta", "eps"))
        p, n = np.log1p(np.exp(p)), beta + np.log1p(np.exp(n))
        return np.where(x > 0, p * x * x + beta * x, (np.expm1(np.minimum(x, eps)) - x) * n + beta * x)

    def layer(self, x, a, kept, extra):
        def norm(y, name):
            return self.norm(y, a.stem + name, a.norm) if name else y

        def add(y, f, name):
            f = norm(f, name)
            return self.r(y + (self.r(f * a.residual) if a.residual != 1 else f))

        def convolved(f, i):
            return self.convolved(f, a.stem + a.out_convs[i]) if a.out_convs else f

        if a.weights:
            return reference_recurrent.weighted_layer(self, x, a, kept)
        n = norm(x, a.attention_in)
        if a.parallel:
            f = self.r(self.attention(n, a, kept) + self.mlp(norm(x, a.mlp_in) if a.mlp_in else n, a))
            return add(x, f, None)
        if a.mixer:
            f = reference_recurrent.mix(self, n, a)
            x = add(x, self.r(f + self.attention(n, a, kept)) if a.heads else f, a.attention_out)
        elif a.heads:
            x = norm(add(x, convolved(self.attention(n, a, kept), 0), a.attention_out), a.attention_after)
        if a.shortcut == "leaves":
            n = norm(x, a.mlp_in)
            kept["shortcut"] = reference_experts.routed(self, n, n, a.experts, a.stem)
            x = add(x, self.mlp(n, a), None)
        elif a.experts:
            x = add(x, convolved(reference_experts.feed_forward(self, x, a), 1), a.mlp_out)
        elif a.inner:
            x = norm(add(x, convolved(self.mlp(norm(x, a.mlp_in), a), 1), a.mlp_out), a.mlp_after)
        if a.shortcut == "takes":
            x = add(x, kept["shortcut"], None)
        if a.extra:
            gate = self.r(ACTIVATIONS[a.act](self.linear(x, a.stem + "per_layer_input_gate")))
            f = self.linear(self.r(gate * extra), a.stem + "per_layer_projection")
            x = add(x, f, "post_per_layer_input_norm")
        return self.r(x * self.weight(a.stem + a.out_scalar)) if a.out_scalar else x

    def blend(self, sums, stem):
        """A sum of the sums [n_tok, hidden], weighted by themselves."""
        x, w = np.stack(sums), self.weight(stem + "_norm.weight") * self.weight(stem + "_proj.weight")[0]
        scores = x @ w / np.sqrt(np.mean(x * x, axis=-1) + self.family.norm.eps)
        p = np.exp(scores - scores.max(axis=0))
        return self.r((p[:, :, None] * x).sum(axis=0) / p.sum(axis=0)[:, None])

    def layers_of_blocks(self, x, kept):
        """What the final norm reads, of a model whose branches read blends of sums of blocks of layers."""
        sums, m = [x], self.family
        for i, a in enumerate(m.layers):
            n = self.norm(self.blend(sums, a.stem + "self_attention_res"), a.stem + a.attention_in, a.norm)
            if i % m.block == 0:
                sums.append(np.zeros_like(x))
            f = reference_recurrent.mix(self, n, a) if a.mixer else self.attention(n, a, kept)
            sums[-1] = self.r(sums[-1] + f)
            h = self.blend(sums, a.stem + "mlp_res")
            f = reference_experts.feed_forward(self, h, a) if a.experts else self.mlp(self.norm(h, a.stem + a.mlp_in, a.norm), a)
            sums[-1] = self.r(sums[-1] + f)
        return self.blend(sums, m.final.removesuffix("norm") + "output_attn_res")

    def extra_inputs(self, tokens, x):
        """[n_tok, layers, extra] of Gemma 4 E; x is the embedding."""
        m, stem = self.family, self.family.extra_stem
        shape = len(x), len(m.layers), m.extra
        table = self.weight(stem + "embed_tokens_per_layer.weight")
        own = table[np.where(tokens < len(table), tokens, 0)]
        own = own * self.embed_factor(sqrt_bf16(m.extra), m.extra, "embed_tokens_per_layer")
        other = self.r(self.linear(x, stem + "per_layer_model_projection") * m.hidden ** -0.5).reshape(shape)
        other = self.norm(other, stem + "per_layer_projection_norm", m.norm)
        return self.r(self.r(self.r(own).reshape(shape) + other) * 2 ** -0.5)

    def embed_factor(self, factor, width, name):
        """An embedding's factor; Gemma's of codes, the root of the width, is not rounded to bf16."""
        codes = any(t.endswith(f"{name}.embedding_quantized") for t in self.tensors)
        return np.sqrt(width) if codes else factor

    def embedding(self, tokens):
        m = self.family
        x = self.weight(m.embed + m.embed_suffix)[tokens]
        if m.embed_scale != 1:
            x = self.r(x * self.embed_factor(m.embed_scale, m.hidden, "embed_tokens"))
        if m.project_in:
            x = self.linear(x, m.project_in)
        if m.positions:
            x = self.r(x + self.weight(m.positions + ".weight")[np.arange(len(x)) + m.position_offset])
        return self.norm(x, m.embed_norm, m.norm) if m.embed_norm else x

    def logits(self, x):
        m = self.family
        if m.final:
            x = self.norm(x, m.final, m.norm)
        if m.project_out:
            x = self.linear(x, m.project_out)
        if m.unit_head:
            w = self.weight((m.head or m.embed) + ".weight")
            length = self.r(np.sqrt((w * w).sum(axis=1, keepdims=True)))
            logits = self.r(x @ self.r(w / np.maximum(length, 1e-12)).T)
        else:
            logits = self.linear(x, m.head or m.embed, m.head_bias)
        if m.logit_scale != 1:
            logits = self.r(logits * m.logit_scale)
        if m.softcap is not None:
            logits = self.r(self.r(np.tanh(self.r(logits / m.softcap))) * m.softcap)
        return logits[:, :m.tokens]

    def log_softmax(self, tokens):
        """[n, vocabulary]: ln of the probability of each id after each of the n tokens."""
        inputs, kept, streams = np.asarray(tokens), {}, self.family.streams
        self.tokens = inputs
        x = self.embedding(inputs)
        several = reference_gated if isinstance(streams, gated.GatedStreams) else reference_pooled
        if streams:
            x = np.repeat(x[:, None], streams.n, axis=1)
        extra = self.extra_inputs(inputs, x) if self.family.extra else None
        if self.family.block:
            x = self.layers_of_blocks(x, kept)
        if self.family.altup:
            x = reference_altup.layers(self, x, kept, extra)
        for i, a in enumerate(self.family.layers if not self.family.block and not self.family.altup else ()):
            x = several.layer(self, x, a, kept) if streams else self.layer(x, a, kept, extra[:, i] if a.extra else None)
        if streams:
            x = several.ended(self, x)
        logits = self.logits(x)
        top = logits.max(axis=1)
        return logits - (top + np.log(np.exp(logits - top[:, None]).sum(axis=1)))[:, None]

    def score(self, tokens):
        """(log-probabilities [n-1], greedy ids [n-1]) of tokens 1..n-1, each given all before."""
        logprobs = self.log_softmax(tokens[:-1])
        return logprobs[np.arange(len(logprobs)), tokens[1:]], logprobs.argmax(axis=1)

    def hashes(self):
        """(name, n, k, dtype, sha256 of the decoded row-major bytes) of every matrix."""
        m = self.family
        matrices = ("linear", "gates", "columns", "head", "long head", "router", "wide router")
        names = {n: n for n, _, kind in recipe.tensors(m) if kind in matrices or any(
            n.removesuffix("weight") + part in self.tensors for part in ("scales", "embedding_scale"))}
        names = {n: s for n, s in names.items() if self.tensors.get(n, (None, np.empty(0)))[1].ndim < 3}
        names = {n.removesuffix(".weight") + ".weight": s for n, s in names.items()}  # a parameter may be a matrix, too
        if m.head is None:
            names["lm_head.weight"] = m.embed + m.embed_suffix
        for name, stored in sorted(names.items()):
            yield name, *self.hash_of(*self.decoded(stored))
        for stored in sorted(n for n, _, kind in recipe.tensors(m) if kind == "heads"):
            dtype, heads = decode(self.tensors, stored, self.config)
            yield stored + ".weight", *self.hash_of(dtype, heads.transpose(0, 2, 1).reshape(-1, heads.shape[1]))
        for stored, kind in sorted((n, kind) for n, _, kind in recipe.tensors(m) if "stack" in kind):
            dtype, experts = decode(self.tensors, stored, self.config)
            for i, w in enumerate(np.split(experts, int(kind.split()[-1])) if kind.startswith("flat") else experts):
                yield f"{stored.removesuffix('.weight')}[{i}]", *self.hash_of(dtype, w)

    def hash_of(self, dtype, w):
        """(n, k, dtype, sha256) in the model's dtype, in which weights are used."""
        if dtype != self.dtype:
            dtype = self.dtype
            w = round_to(w, dtype)
        return *w.shape, TORCH_NAME[dtype], hashlib.sha256(narrow_bytes(w, dtype)).hexdigest()


def score_line(model, line):
    item = json.loads(line)
    tokens = item.get("tokens") or item["context"] + item["continuation"]
    first = len(item["context"]) if "context" in item else 1
    logprobs, greedy = model.score(tokens)
    logprobs, greedy = logprobs[first - 1:], [int(g) for g in greedy[first - 1:]]
    return {"id": item.get("id"), "logprobs": [float(v) for v in logprobs],
            "sum": float(logprobs.sum()), "greedy": greedy, "is_greedy": greedy == tokens[first:]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", metavar="DIR")
    parser.add_argument("--config", default="config.json", help="file name inside DIR")
    parser.add_argument("--hashes", action="store_true", help="list the decoded matrices instead")
    args = parser.parse_args()
    model = Model(args.model, args.config)
    if args.hashes:
        for row in model.hashes():
            print(*row, sep="  ")
        return
    for line in sys.stdin:
        if line.strip():
            print(json.dumps(score_line(model, line)))


if __name__ == "__main__":
    main()
