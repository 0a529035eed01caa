#!/usr/bin/env python3
"""Quickly writes a checkpoint of a published shape with random weights in a supported format.

    make_checkpoint.py llama-8b OUT --format w4a16

For benchmarks, and for comparing backends, on machines without access to a hub: scores are finite and
vary, but mean nothing. Weights have a standard deviation of 0.02 (codes are uniform, scales vary by
a quarter), the factors of norms are about 1. The same seed gives the same file.
--repeat draws a few random MiB of each kind and repeats them: as fast as the disk, and as fast for a GPU.
"""

import argparse
import json
import os
import re
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import cache

import numpy as np

import checkpoint_io as cio
import encoders
import gguf_shapes
import mixture_shapes
import native_encoders
import recurrent_shapes

STD = 0.02
SHARD_BYTES = 4_800_000_000
BLOCK = 8 << 20  # bytes made at a time

LLAMA3_ROPE = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 8192, "rope_type": "llama3"}


def llama(hidden, inner, layers, heads, kv_heads, vocab, head=128, **more):
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden,
            "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": heads,
            "num_key_value_heads": kv_heads, "head_dim": head, "vocab_size": vocab,
            "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "rope_theta": 500000.0,
            "tie_word_embeddings": False, **more}


def mistral(*sizes, **more):
    return llama(*sizes, rope_theta=1e6, sliding_window=None, model_type="mistral",
                 architectures=["MistralForCausalLM"], **more)


def qwen3(*sizes):
    return llama(*sizes, max_position_embeddings=40960, rope_theta=1e6, rms_norm_eps=1e-06,
                 model_type="qwen3", architectures=["Qwen3ForCausalLM"])


def phi3(*sizes, **more):
    return llama(*sizes, sliding_window=None, model_type="phi3",
                 architectures=["Phi3ForCausalLM"], **more)


def gemma3(hidden, inner, layers, *sizes, **more):
    """The text model on its own, as Gemma3ForCausalLM saves it; every sixth layer sees all keys."""
    kinds = ["full_attention" if i % 6 == 5 else "sliding_attention" for i in range(layers)]
    return llama(hidden, inner, layers, *sizes, rope_theta=1e6, rope_local_base_freq=10000.0,
                 rms_norm_eps=1e-06, tie_word_embeddings=True, layer_types=kinds,
                 hidden_activation="gelu_pytorch_tanh", attn_logit_softcapping=None,
                 final_logit_softcapping=None, model_type="gemma3_text",
                 architectures=["Gemma3ForCausalLM"], **more)


def gemma2(hidden, inner, layers, *sizes, **more):
    """Every other layer sees a window of keys."""
    kinds = ["sliding_attention", "full_attention"]
    return llama(hidden, inner, layers, *sizes, rope_theta=10000.0, rms_norm_eps=1e-06,
                 tie_word_embeddings=True, layer_types=[kinds[i % 2] for i in range(layers)],
                 hidden_activation="gelu_pytorch_tanh", attn_logit_softcapping=50.0,
                 final_logit_softcapping=30.0, model_type="gemma2",
                 architectures=["Gemma2ForCausalLM"], **more)


def starcoder2(*sizes, **more):
    return llama(*sizes, hidden_act="gelu_pytorch_tanh", norm_epsilon=1e-05, use_bias=True,
                 model_type="starcoder2", architectures=["Starcoder2ForCausalLM"], **more)


# The shapes of published models, from their config.json.
SHAPES = {
    "smollm2-135m": llama(576, 1536, 30, 9, 3, 49152, head=64, max_position_embeddings=8192,
                          rope_theta=100000.0, tie_word_embeddings=True),
    "llama-1b": llama(2048, 8192, 16, 32, 8, 128256, head=64, tie_word_embeddings=True,
                      rope_scaling={**LLAMA3_ROPE, "factor": 32.0}),
    "llama-8b": llama(4096, 14336, 32, 32, 8, 128256, rope_scaling=LLAMA3_ROPE),
    "llama-70b": llama(8192, 28672, 80, 64, 8, 128256, rope_scaling=LLAMA3_ROPE),
    "mistral-7b": mistral(4096, 14336, 32, 32, 8, 32768, max_position_embeddings=32768),
    "mistral-large-123b": mistral(12288, 28672, 88, 96, 8, 32768),
    "qwen3-8b": qwen3(4096, 12288, 36, 32, 8, 151936),
    "qwen3-32b": qwen3(5120, 25600, 64, 64, 8, 151936),
    "phi-4": phi3(5120, 17920, 40, 40, 10, 100352, max_position_embeddings=16384,
                  original_max_position_embeddings=16384, rope_theta=250000.0),
    "starcoder2-15b": starcoder2(6144, 24576, 40, 48, 4, 49152, max_position_embeddings=16384,
                                 rope_theta=100000.0, sliding_window=4096),
    "gemma2-9b": gemma2(3584, 14336, 42, 16, 8, 256000, 256, max_position_embeddings=8192,
                        query_pre_attn_scalar=256, sliding_window=4096),
    "gemma3-270m": gemma3(640, 2048, 18, 4, 1, 262144, 256, max_position_embeddings=32768,
                          query_pre_attn_scalar=256, sliding_window=512),
    "gemma3-27b": gemma3(5376, 21504, 62, 32, 16, 262208, query_pre_attn_scalar=168,
                         sliding_window=1024, rope_scaling={"factor": 8.0, "rope_type": "linear"}),
}


SHAPES |= mixture_shapes.SHAPES | recurrent_shapes.SHAPES


# Other methods' formats: 4 bits, as their own tools write them.
NATIVE = {"gptq": native_encoders.GptqScheme, "awq": native_encoders.AwqScheme,
          "deepseek": lambda group_size: native_encoders.DeepSeekScheme(),
          "exl3": lambda group_size: native_encoders.Exl3Scheme(4),
          "q4_k_m": lambda group_size: gguf_shapes.Q4KM()}  # a GGUF file


class Dense:
    """Not quantised."""

    name = None

    def specs(self, n, k, dtype):
        return {"weight": (dtype, (n, k))}


def scheme_of(text, group):
    if text in ("bf16", "fp16"):
        return Dense()
    if text in encoders.NAMED:
        return encoders.NAMED[text]
    if text in NATIVE:
        return NATIVE[text](group_size=group)
    found = re.fullmatch(r"w([2-8])a16(_asym)?", text)
    if not found:
        raise SystemExit(f"make_checkpoint: format {text} is unknown; known: bf16, fp16, "
                         f"{', '.join([*encoders.NAMED, *NATIVE])}, w2a16 .. w8a16, w4a16_asym ..")
    return encoders.IntScheme(int(found[1]), group, not found[2], "")


# ---- contents of tensors: functions of random bits, one block at a time --------------------------

@cache
def normal_table(dtype, std):
    """16 random bits -> a value of N(0, std^2), as stored."""
    rng = np.random.default_rng(12)
    values = np.sort(rng.standard_normal(65536).astype(np.float32)) * np.float32(std)
    return cio.encode(values, dtype)


@cache
def scale_table(dtype, mean):
    values = mean * np.linspace(0.75, 1.25, 65536, dtype=np.float32)
    return cio.encode(values, dtype).view(np.uint16).copy()


@cache
def sign_table(mean):
    """16 random bits -> fp16 factors of either sign."""
    values = mean * np.linspace(0.5, 1.5, 65536, dtype=np.float32)
    values[::2] *= -1
    return cio.encode(values, "F16").view(np.uint16).copy()


@cache
def code_table(bits):
    """16 random bits -> integer codes, with the lowest code, -2^(bits-1), replaced by 0. Otherwise
    the mean of the codes is not 0, and the weights together act like one constant weight."""
    table = np.arange(65536, dtype=np.uint32)
    for at in range(0, 16, bits):
        lowest = (table >> at) & ((1 << bits) - 1) == 0
        table |= np.where(lowest, np.uint32(1 << (at + bits - 1)), np.uint32(0))
    return table.astype("<u2")


@cache
def zero_point_table(bits):
    """16 random bits -> integer zero points: the mean code or a neighbour of it. With other zero points,
    a group's weights would be a constant with a little noise, and the model would amplify rounding."""
    table, codes = np.arange(65536), np.zeros(65536, np.int64)
    beside = np.array([-1, 0, 0, 1]) + (1 << (bits - 1))
    for at in range(0, 16, bits):
        codes |= beside[(table >> at) & 3] << at
    return codes.astype("<u2")


@cache
def fp8_scale_table():
    """16 random bits -> E4M3 codes of 16 .. 60."""
    return (0x58 + np.arange(65536) * 16 // 65536).astype(np.uint8)


NVFP4_STD = 2.9  # of a random E2M1 code
NVFP4_SCALE = 33.0  # mean of fp8_scale_table()


BYTE_STD = {"F8_E4M3": 448 / 4.5, "I8": 127 / 4.5}  # of the codes of byte_table()


@cache
def byte_table(dtype):
    """16 random bits -> codes of FP8 or int8 values of a normal distribution."""
    rng = np.random.default_rng(12)
    values = np.sort(rng.standard_normal(65536)).clip(-4.4, 4.4) * BYTE_STD[dtype]
    if dtype == "I8":
        return np.rint(values).astype(np.int8)
    return encoders.nearest_code(np.abs(values), encoders.E4M3) | (np.signbit(values).astype(np.uint8) << 7)


@cache
def power_table(std):
    """16 random bits -> exponents of powers of two, so that codes of deviation std become about STD."""
    near = round(np.log2(STD / std)) + 127
    return np.where(np.arange(65536) % 4 == 0, near - 1, near).astype(np.uint8)


def content(suffix, dtype, shape, scheme, kind):
    """How a tensor's blocks are made: ("bits",), ("table", array) or ("all", array). kind is "linear"
    or "weight", else the mean of a norm's values."""
    if not isinstance(kind, str):
        values = kind + np.linspace(-0.1, 0.1, shape[0], dtype=np.float32)
        return "all", cio.encode(values, dtype)
    if suffix == "qweight":
        return "table", code_table(4)
    if suffix == "trellis":  # any words are one; its values' deviation is 1
        return ("bits",)
    if suffix in ("suh", "svh"):
        return "table", sign_table(1.0 if suffix == "suh" else STD)
    if suffix == "mul1":
        return "all", np.int32(-0x7C232ED3)
    if suffix == "qzeros" and scheme.symmetric:  # GPTQ's first version stores 8 as 7
        return "all", np.full(shape, 0x77777777, np.int32)
    if suffix == "scales":
        return "table", scale_table(dtype, STD / (2.0 ** 4 / np.sqrt(12)))
    four_bits = isinstance(scheme, native_encoders.Fp4Scheme)
    if suffix == "scale":
        return "table", power_table(NVFP4_STD if four_bits else BYTE_STD["F8_E4M3"])
    if suffix == "weight" and four_bits:
        return ("bits",)
    if suffix == "weight" and dtype in BYTE_STD:
        return "table", byte_table(dtype)
    if suffix == "weight":
        return "table", normal_table(dtype, STD)
    if suffix == "weight_packed" and dtype == "U8":
        return ("bits",)
    if suffix == "weight_packed":
        bits = getattr(scheme, "bits", 3)
        return ("bits",) if 16 % bits else ("table", code_table(bits))
    if suffix == "weight_global_scale":
        return "all", np.array([NVFP4_SCALE * NVFP4_STD / STD], np.float32)
    if suffix == "weight_scale" and dtype == "F8_E4M3":
        return "table", fp8_scale_table()
    if suffix == "weight_scale" and dtype == "U8":
        return "table", power_table(NVFP4_STD if scheme.bits == 4 else BYTE_STD["F8_E4M3"])
    if suffix == "weight_scale" and isinstance(scheme, encoders.ByteScheme):
        return "table", scale_table(dtype, STD / BYTE_STD["F8_E4M3" if scheme.is_float else "I8"])
    if suffix == "weight_scale":
        table = scale_table(dtype, STD / (2.0 ** scheme.bits / np.sqrt(12))).copy()
        if 16 % scheme.bits:  # if the mean of the codes is not 0, the mean of the scales is
            table[::2] ^= 0x8000
        return "table", table
    bits = getattr(scheme, "bits", 4)  # of zero points
    return ("bits",) if 16 % bits else ("table", zero_point_table(bits))


def unit_of(how):
    """Contents are made in whole multiples of so many bytes."""
    return gguf_shapes.TYPES[how[1]][2] if how[0] == "blocks" else 64


def random_block(rng, size, how):
    if how[0] == "bits":
        return rng.bytes(size)
    if how[0] == "blocks":
        return gguf_shapes.random_blocks(rng, how[1], size, STD)
    return how[1][np.frombuffer(rng.bytes(2 * (size // how[1].dtype.itemsize)), np.uint16)].tobytes()


POOLS = {}  # of this process: contents -> two blocks of it


def repeated_block(rng, size, how):
    """A piece of the content's two blocks, from a place that differs from block to block."""
    key = how if how[0] != "table" else (how[0], how[1].tobytes())
    unit = unit_of(how)
    if key not in POOLS:
        POOLS[key] = memoryview(random_block(np.random.Generator(np.random.SFC64(1)), 2 * BLOCK // unit * unit, how))
    at = unit * int(rng.integers(BLOCK // unit))
    return POOLS[key][at:at + size]


def write_block(path, at, size, seed, how, repeat):
    rng = np.random.Generator(np.random.SFC64(seed))
    data = (repeated_block if repeat else random_block)(rng, size, how)
    fd = os.open(path, os.O_WRONLY)
    try:
        done = 0
        while done < size:
            done += os.pwrite(fd, memoryview(data)[done:], at + done)
    finally:
        os.close(fd)
    return size


# ---- the checkpoint ------------------------------------------------------------------------------

def products(config, layer):
    """(name, n, k) of the matrices of a layer."""
    if mixture_shapes.n_experts(config)[0]:
        return mixture_shapes.products(config, layer)
    h, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    if config["model_type"] == "phi3":
        return [("self_attn.qkv_proj", q + 2 * kv, h), ("self_attn.o_proj", h, q),
                ("mlp.gate_up_proj", 2 * inner, h), ("mlp.down_proj", h, inner)]
    mlp = [("mlp.gate_proj", inner, h), ("mlp.up_proj", inner, h), ("mlp.down_proj", h, inner)]
    if config["model_type"] == "starcoder2":
        mlp = [("mlp.c_fc", inner, h), ("mlp.c_proj", h, inner)]
    return [("self_attn.q_proj", q, h), ("self_attn.k_proj", kv, h), ("self_attn.v_proj", kv, h),
            ("self_attn.o_proj", h, q), *mlp]


def norms(config):
    """(name, n) of the norms of a layer."""
    h, head = config["hidden_size"], config["head_dim"]
    out = [("input_layernorm", h), ("post_attention_layernorm", h)]
    if config["model_type"] in ("qwen3", "gemma3_text"):
        out += [("self_attn.q_norm", head), ("self_attn.k_norm", head)]
    if config["model_type"].startswith("gemma"):
        out += [("pre_feedforward_layernorm", h), ("post_feedforward_layernorm", h)]
    return out


def tensors_of(config, scheme, dtype):
    """(name, dtype, shape, how) of every tensor."""
    if isinstance(scheme, gguf_shapes.Q4KM):
        return gguf_shapes.tensors(config, scheme, products, norms)
    return tensors_of_safetensors(config, scheme, dtype)


def tensors_of_safetensors(config, scheme, dtype):
    h, vocab = config["hidden_size"], config["vocab_size"]
    mean = 0.0 if config["model_type"].startswith("gemma") else 1.0  # Gemma multiplies by 1 + w
    biased = config.get("use_bias", False)  # of every product and norm

    def plain(name, shape, kind="weight"):
        return (name, dtype, shape, content("weight", dtype, shape, scheme, kind))

    def linear(name, n, k, own=None):
        own = own or encoders.part_of(scheme, name)
        for suffix, (t, shape) in own.specs(n, k, dtype).items():
            if suffix == "weight_shape":
                how = ("all", np.array([n, k], np.int64))
            elif suffix == "g_idx":
                how = ("all", np.arange(k, dtype=np.int32) // own.group_size)
            elif suffix == "bias":  # that a method could have; no shape here has one
                continue
            else:
                how = content(suffix, t, shape, own, "linear")
            yield (f"{name}.{suffix}", t, shape, how)
        if biased:
            yield bias(name, n)

    def bias(name, n):
        return (f"{name}.bias", dtype, (n,), content("bias", dtype, (n,), scheme, 0.0))

    def norm(name, n):
        yield plain(f"{name}.weight", (n,), mean)
        if biased:
            yield bias(name, n)

    def others(i):
        """A mixture's tensors that are in no format of compressed-tensors."""
        for name, shape, kind in mixture_shapes.plain(config, i):
            yield plain(f"model.layers.{i}.{name}", shape, "weight" if kind is None else kind)
        for name, n, k in mixture_shapes.stacks(config):
            n_experts, own = mixture_shapes.n_experts(config)[0], encoders.NAMED["mxfp4"]
            for part, shape in (("blocks", (n_experts, n, k // 32, 16)), ("scales", (n_experts, n, k // 32))):
                suffix = "weight_packed" if part == "blocks" else "weight_scale"
                yield (f"model.layers.{i}.{name}_{part}", "U8", shape, content(suffix, "U8", shape, own, "linear"))

    def by_recipe():
        for name, shape, kind, value in recurrent_shapes.tensors(config):
            own = "F32" if kind.startswith("wide ") else "I64" if kind.startswith("table ") else dtype
            if isinstance(value, np.ndarray):
                yield (name, own, shape, ("all", cio.encode(value, own)))
            elif value == "linear":
                yield from linear(name.removesuffix(".weight"), *shape)
            else:
                yield (name, own, shape, content("weight", own, shape, scheme, value))

    if recurrent_shapes.is_by_recipe(config):
        yield from by_recipe()
        return
    yield plain("model.embed_tokens.weight", (vocab, h))
    mixture = mixture_shapes.n_experts(config)[0] > 0
    for i in range(config["num_hidden_layers"]):
        for name, n, k in products(config, i):
            yield from linear(f"model.layers.{i}.{name}", n, k)
        if mixture:
            yield from others(i)
            continue
        for name, n in norms(config):
            yield from norm(f"model.layers.{i}.{name}", n)
    yield from norm("model.norm", h)
    if hasattr(scheme, "head"):
        yield from linear("lm_head", vocab, h, scheme.head)
    elif not config["tie_word_embeddings"]:
        yield plain("lm_head.weight", (vocab, h))


def bytes_of(tensor):
    if tensor[1] in gguf_shapes.TYPES and tensor[3][0] == "blocks":
        return gguf_shapes.bytes_of(*tensor[1:3])
    return int(np.prod(tensor[2], dtype=np.int64)) * cio.item_bytes(tensor[1])


def split(tensors):
    """Lists of tensors, one list per file."""
    files, room = [[]], SHARD_BYTES
    for t in tensors:
        if bytes_of(t) > room and files[-1]:
            files.append([])
            room = SHARD_BYTES
        files[-1].append(t)
        room -= bytes_of(t)
    return files


def layout(path, tensors):
    """Writes a file's header and its size; returns (offset, tensor) pairs."""
    header, at, places = {"__metadata__": {"format": "pt"}}, 0, []
    for t in sorted(tensors, key=lambda t: -cio.item_bytes(t[1])):
        size = bytes_of(t)
        header[t[0]] = {"dtype": t[1], "shape": list(t[2]), "data_offsets": [at, at + size]}
        places.append((at, t))
        at += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % 4096)
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        f.truncate(8 + len(text) + at)
    return [(8 + len(text) + place, t) for place, t in places]


def make(config, scheme, dtype, out, seed, jobs, holes=False, repeat=False):
    gguf = isinstance(scheme, gguf_shapes.Q4KM)
    files = list(tensors_of(config, scheme, dtype))
    files = [files] if gguf else split(files)
    weight_map, total = {}, 0
    with ProcessPoolExecutor(jobs) as pool:
        pending = []
        for i, tensors in enumerate(files):
            name = ("model.gguf" if gguf else "model.safetensors" if len(files) == 1
                    else f"model-{i + 1:05d}-of-{len(files):05d}.safetensors")
            path = os.path.join(out, name)
            places = gguf_shapes.layout(path, config, tensors) if gguf else layout(path, tensors)
            with open(path, "r+b") as f:
                for at, t in places:
                    weight_map[t[0]] = name
                    total += bytes_of(t)
                    if t[3][0] == "all":
                        f.seek(at)
                        f.write(np.ascontiguousarray(t[3][1]).tobytes())
            for at, t in places if not holes else ():
                size = bytes_of(t) if t[3][0] != "all" else 0
                piece = BLOCK // unit_of(t[3]) * unit_of(t[3])
                for first in range(0, size, piece):
                    pending.append(pool.submit(write_block, path, at + first, min(piece, size - first),
                                               [seed, i, at + first], t[3], repeat))
        done = 0
        for p in pending:
            done += p.result()
            if sys.stderr.isatty():
                print(f"\r{done / 1e9:.1f} of {total / 1e9:.1f} GB", end="", file=sys.stderr)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    if len(files) > 1:
        cio.write_json(os.path.join(out, "model.safetensors.index.json"),
                       {"metadata": {"total_size": total}, "weight_map": weight_map})
    return total


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("shape", choices=sorted(SHAPES))
    parser.add_argument("out", metavar="OUT", help="folder to write")
    parser.add_argument("--format", default="w4a16",
                        help=f"bf16, fp16, {', '.join([*encoders.NAMED, *NATIVE])}, w2a16 .. w8a16, w4a16_asym "
                             "(default: w4a16)")
    parser.add_argument("--group", type=int, default=128, help="0: one scale per row (default: 128)")
    parser.add_argument("--layers", type=int, help="number of layers (default: as published)")
    parser.add_argument("--vocab", type=int, help="size of the vocabulary (default: as published)")
    parser.add_argument("--holes", action="store_true",
                        help="tensors are holes, all zero, which take no disk: `ctworker inspect` needs only their sizes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--repeat", action="store_true", help="fast: random blocks of each kind are repeated")
    args = parser.parse_args()
    dtype = "F16" if args.format == "fp16" else "BF16"
    config = {"hidden_act": "silu", "attention_bias": False, **SHAPES[args.shape], "mlp_bias": False,
              "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
              "dtype": "float16" if dtype == "F16" else "bfloat16"}
    for shapes in (recurrent_shapes, mixture_shapes):
        shapes.with_layers(config, args.layers or config["num_hidden_layers"])
    config["vocab_size"] = args.vocab or config["vocab_size"]
    if "layer_types" in config:
        config["layer_types"] = config["layer_types"][:config["num_hidden_layers"]]
    scheme = scheme_of(args.format, args.group)
    native = "quantization_config" in config  # of the maker: its experts are stored so
    if scheme.name and scheme.name != "ggml" and not native:
        ignore = mixture_shapes.IGNORE.get(config["model_type"], [])
        if recurrent_shapes.is_by_recipe(config):
            ignore = recurrent_shapes.IGNORE
        config["quantization_config"] = encoders.quantization_config(scheme, ["lm_head", *ignore])
    os.makedirs(args.out, exist_ok=True)
    start = time.monotonic()
    total = make(config, scheme, dtype, args.out, args.seed, args.jobs, args.holes, args.repeat)
    cio.write_json(os.path.join(args.out, "config.json"), recurrent_shapes.as_published(config))
    seconds = time.monotonic() - start
    print(f"{args.out}: {args.shape}, {config['num_hidden_layers']} layers, {args.format}, "
          f"{total / 1e9:.2f} GB in {seconds:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
