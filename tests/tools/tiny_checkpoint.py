#!/usr/bin/env python3
"""Writes small random checkpoints of every family and format, in both styles of configuration.

    tiny_checkpoint.py FAMILY FORMAT OUT [--hidden 2048 ...]      e.g. qwen3 w4a16_g32_asym OUT
    tiny_checkpoint.py --all OUT        one folder per checkpoint, and OUT/list.json

The same arguments always give the same bytes. The spread of the weights keeps activations near 1 and
log-probabilities varied, so that any error shows in the scores.
"""

import argparse
import os
import sys
import zlib

import numpy as np

import checkpoint_io as cio
import encoders
import families
import recipe
from encoders import IntScheme, Nvfp4Scheme

BOS, EOS, N_IDS = 256, 257, 258  # ids 0..255 are the bytes
LACKS = "lacks"  # of a key that a file does not have
SAFETENSORS = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}

# model_type -> architecture, and how its keys differ from those of every file
QWEN = {"sliding_window": None, "use_sliding_window": False, "max_window_layers": 28}
TYPES = {
    "llama": ("LlamaForCausalLM", {"attention_bias": False, "mlp_bias": False, "pretraining_tp": 1}),
    "mistral": ("MistralForCausalLM", {}),
    "phi3": ("Phi3ForCausalLM", {"head_dim": LACKS}),
    "qwen2": ("Qwen2ForCausalLM", {"head_dim": LACKS, **QWEN}),
    "qwen3": ("Qwen3ForCausalLM", {"attention_bias": False, **QWEN}),
}

# Family -> (model_type, differences). "rope" is the scaling, without theta.
FAMILIES = {
    "llama": ("llama", {}),
    "llama_tied": ("llama", {"tie_word_embeddings": True}),
    "llama_bias": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama_linear": ("llama", {"rope": {"rope_type": "linear", "factor": 2.5}}),
    "llama_yarn": ("llama", {"rope": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 24.0,
                                      "original_max_position_embeddings": 64}}),
    "llama_yarn_mscale": ("llama", {"rope": {"rope_type": "yarn", "factor": 8.0, "mscale": 0.8,
                                             "mscale_all_dim": 1.2, "truncate": False,
                                             "original_max_position_embeddings": 128}}),
    "llama_llama3": ("llama", {"rope_theta": 500000.0, "rope": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 256}}),
    # no head_dim in the file, one key-value head, and the keys of SmolLM2's own file
    "llama_smollm2": ("llama", {"head_dim": LACKS, "num_key_value_heads": 1, "rms_norm_eps": 1e-5,
                                "tie_word_embeddings": True, "rope_theta": 100000,
                                "is_llama_config": True, "rope_interleaved": False}),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral_swa": ("mistral", {"sliding_window": 24}),
    "phi3": ("phi3", {"sliding_window": None}),
    # a part of each head is rotated; a window
    "phi3_partial": ("phi3", {"sliding_window": 24, "rms_norm_eps": 1e-5, "rope": {
        "rope_type": "default", "partial_rotary_factor": 0.75}}),
    "qwen2": ("qwen2", {}),
    "qwen2_swa": ("qwen2", {"use_sliding_window": True, "sliding_window": 20,
                            "max_window_layers": 1}),
    "qwen3": ("qwen3", {}),
    "qwen3_tied": ("qwen3", {"tie_word_embeddings": True, "head_dim": 48}),
}

# The families that the worker opens: those of --all.
OPEN = tuple(FAMILIES)


def _formats():
    out = {"bf16": ("bfloat16", None), "fp16": ("float16", None), "fp32": ("float32", None),
           "nvfp4": ("bfloat16", Nvfp4Scheme()), "nvfp4_fp16": ("float16", Nvfp4Scheme())}
    for bits in (2, 3, 4, 6, 8):
        for group, tag in ((32, "_g32"), (0, "_channel")):
            out[f"w{bits}a16{tag}"] = ("bfloat16", IntScheme(bits, group))
            out[f"w{bits}a16{tag}_asym"] = ("bfloat16", IntScheme(bits, group, symmetric=False))
    out["w4a16_g32_fp16"] = ("float16", IntScheme(4, 32))
    out["w4a16_g32_asym_fp32"] = ("float32", IntScheme(4, 32, symmetric=False))
    out["w4a16_g32_asym_oldzero"] = ("bfloat16", IntScheme(4, 32, False, zero_unpacked=True))
    out["w4a16_g32_gidx"] = ("bfloat16", IntScheme(4, 32, actorder="group"))
    out["w3a16_g32_gidx_asym"] = ("float16", IntScheme(3, 32, False, "group"))
    out["w4a16_g32_actorder"] = ("bfloat16", IntScheme(4, 32, actorder="weight"))
    return out


FORMATS = _formats()

# The checkpoints of --all: every family once, every format once.
ALL = ([(f, "bf16") for f in OPEN] + [("llama", f) for f in FORMATS if f != "bf16"] +
       [("qwen2", "w4a16_g32_asym"), ("qwen3", "nvfp4"), ("mistral_swa", "w8a16_channel"),
        ("phi3", "w4a16_g32"), ("phi3_partial", "nvfp4"),
        ("llama_bias", "w4a16_g32"), ("llama_tied", "w4a16_g32"), ("qwen3_tied", "fp16")])

SIZES = {"hidden": 192, "inner": 320, "heads": 4, "kv_heads": 2, "head": 48, "layers": 2,
         "vocab": 300}


def configs(family, dtype, sizes, scheme):
    """config.json as (transformers 5 writes it, transformers 4 writes it)."""
    kind, changes = FAMILIES[family]
    architecture, own = TYPES[kind]
    changes = dict(changes)
    rope, theta = changes.pop("rope", None), changes.pop("rope_theta", 10000.0)
    common = {
        "architectures": [architecture], "attention_dropout": 0.0, "bos_token_id": BOS,
        "eos_token_id": EOS, "head_dim": sizes["head"], "hidden_act": "silu",
        "hidden_size": sizes["hidden"], "initializer_range": 0.02,
        "intermediate_size": sizes["inner"], "max_position_embeddings": 2048, "model_type": kind,
        "num_attention_heads": sizes["heads"], "num_hidden_layers": sizes["layers"],
        "num_key_value_heads": sizes["kv_heads"], "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False, "use_cache": True, "vocab_size": sizes["vocab"],
    } | own | changes
    common = {key: value for key, value in common.items() if value is not LACKS}
    if scheme:
        common["quantization_config"] = encoders.quantization_config(scheme, ["lm_head"])
    new = common | {"dtype": dtype, "rope_parameters": {"rope_theta": float(theta)} | (
        rope or {"rope_type": "default"}), "transformers_version": "5.17.0"}
    if common.get("use_sliding_window"):
        new["layer_types"] = [
            "sliding_attention" if i >= common["max_window_layers"] else "full_attention"
            for i in range(sizes["layers"])]
    old = common | {"torch_dtype": dtype, "rope_theta": theta, "rope_scaling": rope,
                    "transformers_version": "4.57.6"}
    return new, old


def values(name, shape, kind, seed, tied):
    """Deterministic fp32 content: a function of the tensor's name and the seed only."""
    rng = np.random.Generator(np.random.PCG64([seed, zlib.crc32(name.encode())]))
    x = rng.standard_normal(shape, dtype=np.float32)
    if kind == "norm":
        return 1 + np.float32(0.2) * x
    if kind == "bias":
        return np.float32(0.3) * x
    if kind == "embed" and not tied:
        return x
    gain = {"linear": 1.0, "head": 2.0, "embed": 2.0}[kind]
    # a few columns are larger than others, as in real models, so that scales differ
    spread = np.exp(np.float32(0.5) * rng.standard_normal(shape[-1], dtype=np.float32))
    return x * spread * np.float32(gain / np.sqrt(shape[-1]))


def batches(model, dtype, scheme, seed):
    st_dtype, tied = SAFETENSORS[dtype], model.head is None
    for name, shape, kind in recipe.tensors(model):
        def plain(n=name, s=shape, k=kind):
            return values(n, s, k, seed, tied)
        if scheme is None or kind != "linear":
            yield cio.Batch([(name, st_dtype, shape)],
                            lambda p=plain: [cio.encode(p(), st_dtype)])
            continue
        specs = scheme.specs(*shape, st_dtype)
        stem = name.removesuffix("weight")
        yield cio.Batch([(stem + s, *spec) for s, spec in specs.items()],
                        lambda p=plain, s=tuple(specs): [
                            dict(scheme.encode(p(), st_dtype))[k] for k in s])


def byte_alphabet():
    """GPT-2's printable character for each byte."""
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    other = iter(range(256, 512))
    return [chr(b) if b in keep else chr(next(other)) for b in range(256)]


def write_tokenizer(folder):
    """A byte-level tokenizer without merges: one token per byte."""
    vocab = {c: i for i, c in enumerate(byte_alphabet())}
    special = {"<s>": BOS, "</s>": EOS}
    added = [{"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": True} for t, i in special.items()]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
             "use_regex": False}
    cio.write_json(os.path.join(folder, "tokenizer.json"), {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": None, "pre_tokenizer": level, "post_processor": None, "decoder": level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None,
                  "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": vocab | special, "merges": []}})
    cio.write_json(os.path.join(folder, "tokenizer_config.json"), {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>",
        "model_max_length": 2048, "clean_up_tokenization_spaces": False})


def write(folder, family="llama", fmt="bf16", seed=1, shards=1, **sizes):
    """Writes one checkpoint with config.json and config.transformers4.json."""
    if family not in FAMILIES:
        raise ValueError(f"family {family} is unknown; known: {', '.join(FAMILIES)}")
    fmt = "bf16" if fmt == "dense" else fmt
    if fmt not in FORMATS:
        raise ValueError(f"format {fmt} is unknown; known: {', '.join(FORMATS)}")
    dtype, scheme = FORMATS[fmt]
    sizes = SIZES | {k: v for k, v in sizes.items() if v}
    if "num_key_value_heads" in FAMILIES[family][1]:
        sizes["kv_heads"] = FAMILIES[family][1]["num_key_value_heads"]
    new, old = configs(family, dtype, sizes, scheme)
    os.makedirs(folder, exist_ok=True)
    cio.write_sharded(folder, list(batches(families.describe(new), dtype, scheme, seed)), shards)
    cio.write_json(os.path.join(folder, "config.json"), new)
    cio.write_json(os.path.join(folder, "config.transformers4.json"), old)
    write_tokenizer(folder)


def write_all(out):
    names = []
    for i, (family, fmt) in enumerate(ALL):
        names.append(f"{family}-{fmt}")
        write(os.path.join(out, names[-1]), family, fmt, seed=i + 1, shards=3 if i == 1 else 1)
    cio.write_json(os.path.join(out, "list.json"), names)
    return names


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("family", nargs="?", metavar="FAMILY", help=", ".join(FAMILIES))
    parser.add_argument("format", nargs="?", metavar="FORMAT",
                        help="dense (bf16), " + ", ".join(FORMATS))
    parser.add_argument("out", nargs="?", metavar="OUT")
    parser.add_argument("--all", metavar="OUT", help="write one folder per family and format below OUT")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--shards", type=int, default=1)
    for name, size in SIZES.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, help=f"default {size}")
    args = vars(parser.parse_args())
    out, every, fmt = args.pop("out"), args.pop("all"), args.pop("format")
    try:
        if every:
            print(f"{every}: {len(write_all(every))} checkpoints")
        elif out is None:
            parser.error("give FAMILY FORMAT OUT, or --all OUT")
        else:
            write(out, fmt=fmt, **args)
    except (OSError, ValueError) as e:
        print(f"tiny_checkpoint: {e}", file=sys.stderr)
        return 65
    return 0


if __name__ == "__main__":
    sys.exit(main())
