#!/usr/bin/env python3
"""The model families in float64 NumPy, written from their definitions: the reference for the worker.
This program shares no code with the worker or with the tools that write checkpoints.

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
import json
import math
import os
import struct
import sys

import numpy as np

NUMPY = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4",
         "I8": "i1", "U8": "u1", "F8_E4M3": "u1"}
TORCH_NAME = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


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


def widen(dtype, raw):
    """fp32 values of a stored F32, F16 or BF16 tensor."""
    if dtype == "BF16":
        return np.left_shift(raw.astype(np.uint32), 16).view(np.float32)
    return raw.astype(np.float32)


def round_to(x, dtype):
    """fp32 values rounded to nearest even in `dtype`, as fp32."""
    if dtype == "F32":
        return x.astype(np.float32)
    if dtype == "F16":
        return x.astype(np.float16).astype(np.float32)
    bits = x.astype(np.float32).view(np.uint32).astype(np.uint64)
    bits = (bits + 0x7FFF + ((bits >> np.uint64(16)) & np.uint64(1))) & np.uint64(0xFFFF0000)
    return bits.astype(np.uint32).view(np.float32)


def narrow_bytes(x, dtype):
    """Row-major bytes of values that `dtype` holds exactly."""
    if dtype == "BF16":
        return (x.view(np.uint32) >> 16).astype("<u2").tobytes()
    return x.astype(NUMPY[dtype]).tobytes()


# ---- formats: compressed-tensors' decompress ----------------------------------------------------

def bit_fields(words, count, bits):
    """The first `count` fields of each row of int32 words, least significant bit first."""
    at = np.arange(count) * bits
    low = words.astype(np.int64) & 0xFFFFFFFF
    low = np.concatenate([low, np.zeros((len(low), 1), np.int64)], axis=1)  # for the last field
    pair = low[:, at // 32] | (low[:, at // 32 + 1] << 32)
    # fields never reach bit 63, since at % 32 + bits <= 39
    return (pair >> (at % 32)) & ((1 << bits) - 1)


def decode_packed(t, stem, args):
    """pack-quantized: (q - zero) * scale, rounded to the scale's dtype."""
    bits = args["num_bits"]
    n, k = (int(v) for v in t[stem + "weight_shape"][1])
    scale_dtype, scale = t[stem + "weight_scale"][0], widen(*t[stem + "weight_scale"])
    q = bit_fields(t[stem + "weight_packed"][1], k, bits)
    n_groups = scale.shape[1]
    if stem + "weight_g_idx" in t and not np.any(t[stem + "weight_g_idx"][1] < 0):
        group = t[stem + "weight_g_idx"][1].astype(np.int64)
    else:
        group = np.arange(k) // (k // n_groups)
    zero = np.full((n, n_groups), 1 << (bits - 1))
    if stem + "weight_zero_point" in t:
        dtype, stored = t[stem + "weight_zero_point"]
        if dtype == "I8":  # unpacked and signed
            zero = stored.astype(np.int64) + (1 << (bits - 1))
        else:  # a stream of fields down each column
            zero = bit_fields(stored.T, n, bits).T
    exact = (q - zero[:, group]).astype(np.float32) * scale[:, group]
    return scale_dtype, round_to(exact, scale_dtype)


def e4m3_values(codes):
    sign = np.where(codes & 0x80, -1.0, 1.0)
    exponent, mantissa = (codes >> 3) & 15, (codes & 7).astype(np.float64)
    value = np.where(exponent == 0, np.ldexp(mantissa, -9),
                     np.ldexp(8 + mantissa, exponent.astype(np.int64) - 10))
    return (sign * value).astype(np.float32)


def decode_nvfp4(t, stem, args):
    """nvfp4-pack-quantized: e2m1 * fl32(e4m3 / global), rounded to fp32 and then to bf16."""
    packed = t[stem + "weight_packed"][1]
    codes = np.stack([packed & 15, packed >> 4], axis=2).reshape(len(packed), -1)
    e2m1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6], np.float32)
    divisor = widen(*t[stem + "weight_global_scale"]).reshape(())
    scale = e4m3_values(t[stem + "weight_scale"][1]) / divisor
    return "BF16", round_to(e2m1[codes] * np.repeat(scale, 16, axis=1), "BF16")


def decode(t, name, config):
    """(dtype, fp32 values) of one weight matrix, as decompress gives it to the model."""
    if name in t:
        dtype, raw = t[name]
        return dtype, widen(dtype, raw)
    stem = name.removesuffix("weight")
    # files of our tools and golden files have one group; the file itself shows whether it covers the matrix
    (group,) = config["quantization_config"]["config_groups"].values()
    if stem + "weight_global_scale" in t:
        dtype, w = decode_nvfp4(t, stem, group["weights"])
        model = config.get("dtype") or config.get("torch_dtype")
        return ("F16", round_to(w, "F16")) if model == "float16" else (dtype, w)
    return decode_packed(t, stem, group["weights"])


def matrix_names(t, config):
    names = {n for n, (_, raw) in t.items() if n.endswith(".weight") and raw.ndim == 2}
    names |= {n.removesuffix("_packed") for n in t if n.endswith(".weight_packed")}
    names.discard("model.embed_tokens.weight")
    return sorted(names | ({"lm_head.weight"} if config.get("tie_word_embeddings") else set()))


# ---- rotary embedding ---------------------------------------------------------------------------

def rope_settings(config):
    """(theta, settings) from either style of configuration."""
    new = config.get("rope_parameters") or {}
    settings = dict(new or config.get("rope_scaling") or {})
    theta = new.get("rope_theta", config.get("rope_theta", 10000.0))
    settings["rope_type"] = settings.get("rope_type", settings.get("type", "default"))
    return float(theta), settings


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
    ramp = (np.arange(head // 2, dtype=np.float32) - low) / max(high - low, 0.001)
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
    wave = np.float32(2 * math.pi) / plain
    low, high = s["low_freq_factor"], s["high_freq_factor"]
    smooth = (s["original_max_position_embeddings"] / wave - low) / (high - low)
    smooth = np.clip(smooth, 0, 1)
    return (1 - smooth) * plain / s["factor"] + smooth * plain


def rotary(config, head, n_tok):
    """cos, sin [n_tok, rotated elements of a head / 2] in float64 of fp32 angles."""
    theta, s = rope_settings(config)
    if config["model_type"] == "phi3":
        head = int(head * s.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0)))
    power = np.arange(0, head, 2, dtype=np.float32) / np.float32(head)
    plain, factor = np.float32(1) / np.float32(theta) ** power, 1.0  # fp32 all along
    kind = s["rope_type"]
    if kind == "linear":
        plain = plain / s["factor"]
    elif kind == "yarn":
        plain, factor = yarn(plain, theta, head, s)
    elif kind == "llama3":
        plain = llama3(plain, s)
    elif kind != "default":
        raise SystemExit(f"reference_model: rope_type {kind} is not supported")
    angle = np.arange(n_tok, dtype=np.float32)[:, None] * plain.astype(np.float32)[None]
    return np.cos(angle.astype(np.float64)) * factor, np.sin(angle.astype(np.float64)) * factor


# ---- the model ----------------------------------------------------------------------------------

class Model:
    def __init__(self, folder, config_name="config.json", activations=None):
        with open(os.path.join(folder, config_name), encoding="utf-8") as f:
            self.config = c = json.load(f)
        if c["model_type"] not in ("llama", "mistral", "phi3", "qwen2", "qwen3"):
            raise SystemExit(f"reference_model: model_type {c['model_type']} is not supported")
        self.tensors = read_folder(folder)
        self.heads = c["num_attention_heads"]
        self.kv_heads = c.get("num_key_value_heads") or self.heads
        self.head = c.get("head_dim") or (128 if c["model_type"] == "qwen3" else
                                          c["hidden_size"] // self.heads)
        self.cache = {}
        self.activations = activations

    def r(self, x):
        """x rounded to the activations' dtype."""
        if self.activations is None:
            return x
        return round_to(x.astype(np.float32), self.activations).astype(np.float64)

    def weight(self, name):
        if name not in self.cache:
            self.cache[name] = decode(self.tensors, name, self.config)[1].astype(np.float64)
        return self.cache[name]

    def linear(self, x, module):
        y = x @ self.weight(module + ".weight").T
        bias = self.tensors.get(module + ".bias")
        return self.r(y if bias is None else y + widen(*bias).astype(np.float64))

    def norm(self, x, name):
        gain = widen(*self.tensors[name + ".weight"]).astype(np.float64)
        mean_square = np.mean(x * x, axis=-1, keepdims=True)
        x = self.r(x / np.sqrt(mean_square + self.config.get("rms_norm_eps", 1e-5 if self.config["model_type"] == "phi3" else 1e-6)))
        return self.r(x * gain)

    def turn(self, x, cos, sin):
        """x [n_tok, heads, head]: of the first n elements, element i turns with element i + n/2."""
        n = 2 * cos.shape[1]
        a, b = np.split(x[:, :, :n], 2, axis=2)
        cos, sin = cos[:, None, :], sin[:, None, :]
        turned = self.r(np.concatenate([self.r(a * cos) - self.r(b * sin),
                                        self.r(b * cos) + self.r(a * sin)], axis=2))
        return np.concatenate([turned, x[:, :, n:]], axis=2)

    def window(self, layer):
        """How many keys a query sees, including its own; None: its own and all earlier keys."""
        c = self.config
        if c["model_type"] == "mistral":
            return c.get("sliding_window", 4096)
        if c["model_type"] == "phi3":
            return c.get("sliding_window")
        if c["model_type"] == "llama" or not c.get("use_sliding_window", False):
            return None
        window = c.get("sliding_window", 4096)
        if c.get("layer_types"):
            return window if c["layer_types"][layer] == "sliding_attention" else None
        return window if layer >= c.get("max_window_layers", 28) else None

    def attention(self, x, layer, cos, sin):
        name, n_tok = f"model.layers.{layer}.self_attn.", len(x)
        if self.config["model_type"] == "phi3":
            ends = np.cumsum([self.heads, self.kv_heads]) * self.head
            q, k, v = np.split(self.linear(x, name + "qkv_proj"), ends, axis=1)
        else:
            q, k, v = (self.linear(x, f"{name}{part}_proj") for part in "qkv")
        q = q.reshape(n_tok, self.heads, self.head)
        k, v = (part.reshape(n_tok, self.kv_heads, self.head) for part in (k, v))
        if self.config["model_type"] == "qwen3":
            q, k = self.norm(q, name + "q_norm"), self.norm(k, name + "k_norm")
        q, k = self.turn(q, cos, sin), self.turn(k, cos, sin)
        distance = np.arange(n_tok)[:, None] - np.arange(n_tok)[None]
        seen = distance >= 0
        window = self.window(layer)
        if window is not None:
            seen &= distance < window
        out = np.empty_like(q)
        for h in range(self.heads):
            kv = h // (self.heads // self.kv_heads)
            s = self.r(self.r(q[:, h] @ k[:, kv].T) / math.sqrt(self.head))
            s = np.where(seen, s, -np.inf)
            p = np.exp(s - s.max(axis=1, keepdims=True))
            out[:, h] = self.r(self.r(p / p.sum(axis=1, keepdims=True)) @ v[:, kv])
        return self.linear(out.reshape(n_tok, -1), name + "o_proj")

    def mlp(self, x, layer):
        name = f"model.layers.{layer}.mlp."
        if self.config["model_type"] == "phi3":
            gate, up = np.split(self.linear(x, name + "gate_up_proj"), 2, axis=1)
        else:
            gate, up = self.linear(x, name + "gate_proj"), self.linear(x, name + "up_proj")
        with np.errstate(over="ignore"):  # exp(-gate) = inf correctly gives 0
            silu = self.r(gate / (1 + np.exp(-gate)))
        return self.linear(self.r(silu * up), name + "down_proj")

    def score(self, tokens):
        """(log-probabilities [n-1], greedy ids [n-1]) of tokens 1..n-1, each given all before."""
        x = self.weight("model.embed_tokens.weight")[np.asarray(tokens[:-1])]
        cos, sin = map(self.r, rotary(self.config, self.head, len(x)))
        for layer in range(self.config["num_hidden_layers"]):
            name = f"model.layers.{layer}."
            x = self.r(x + self.attention(self.norm(x, name + "input_layernorm"), layer, cos, sin))
            x = self.r(x + self.mlp(self.norm(x, name + "post_attention_layernorm"), layer))
        x = self.norm(x, "model.norm")
        tied = self.config.get("tie_word_embeddings", False)
        head = self.weight("model.embed_tokens.weight" if tied else "lm_head.weight")
        logits = self.r(x @ head.T)
        top = logits.max(axis=1)
        norm = top + np.log(np.exp(logits - top[:, None]).sum(axis=1))
        return logits[np.arange(len(x)), tokens[1:]] - norm, logits.argmax(axis=1)

    def hashes(self):
        """(name, n, k, dtype, sha256 of the decoded row-major bytes) of every matrix."""
        for name in matrix_names(self.tensors, self.config):
            stored = name if name != "lm_head.weight" or name in self.tensors else \
                "model.embed_tokens.weight"
            dtype, w = decode(self.tensors, stored, self.config)
            yield name, *w.shape, TORCH_NAME[dtype], hashlib.sha256(
                narrow_bytes(w, dtype)).hexdigest()


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
