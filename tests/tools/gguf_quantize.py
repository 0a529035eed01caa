#!/usr/bin/env python3
"""Writes a Hugging Face checkpoint of a Llama as a GGUF file, quantised by llama.cpp's own functions.

    gguf_quantize.py IN OUT.gguf --type Q4_K_M [--library xllamacpp.abi3.so]

Types: bf16, and those of RECIPES. Blocks are written by ggml_quantize_chunk() of the library, by default that of the PyPI
package xllamacpp. Each matrix has the type that llama-quantize of October 2026 chooses for a dense Llama without an
importance matrix. The script prints how many weights fall back to another type because their rows are no multiple of 256.
Without torch. Rows of q and k are put into llama.cpp's order. A tokenizer other than a byte-level BPE is refused.
"""

import argparse
import collections
import ctypes
import importlib.util
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np

import checkpoint_io as cio
from gguf_to_hf import BYTE_LEVEL, CONTROL, LAYER, NORMAL, TOP, USER_DEFINED, Refused

#: llama.cpp's file types: number in the metadata, and the type of a matrix without a rule of its own
RECIPES = {"Q2_K": (10, "Q2_K"), "Q3_K_M": (12, "Q3_K"), "IQ4_XS": (30, "IQ4_XS"), "Q4_0": (2, "Q4_0"), "Q4_K_M": (15, "Q4_K"),
           "Q5_K_M": (17, "Q5_K"), "Q6_K": (18, "Q6_K"), "Q8_0": (7, "Q8_0")}
FALL_BACK = {"Q2_K": "Q4_0", "Q3_K": "Q4_0", "IQ4_XS": "IQ4_NL", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
GGUF_NAMES = {hf: name for name, hf in TOP.items()}
ROLES = {hf: role for role, hf in LAYER.items()}


def more_bits(i, n):
    """The layers whose value and down projections the M files keep in Q6_K."""
    return i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2


def type_of(recipe, role, i, n, queries_per_key, tied):
    """llama-quantize's type of a matrix of layer i of n, before any fall-back."""
    base = RECIPES[recipe][1]
    if role == "output" or role == "token_embd" and tied:
        return "Q8_0" if base == "Q8_0" else "Q6_K"
    if recipe in ("Q4_K_M", "Q5_K_M"):
        return "Q6_K" if role in ("attn_v", "ffn_down") and more_bits(i, n) else base
    many = queries_per_key >= 4
    special = {
        ("Q2_K", "attn_v"): "Q4_K" if many else "Q3_K", ("Q2_K", "ffn_down"): "Q3_K", ("Q2_K", "attn_output"): "Q3_K",
        ("Q3_K_M", "attn_v"): "Q5_K" if i < 2 else "Q4_K", ("Q3_K_M", "ffn_down"): "Q5_K" if i < n // 16 else "Q4_K",
        ("Q3_K_M", "attn_output"): "Q4_K", ("IQ4_XS", "attn_v"): "Q5_K" if many else base,
        ("IQ4_XS", "ffn_down"): "Q5_K" if i < n // 8 else base}
    return special.get((recipe, role), base)


@dataclass
class Quantiser:
    """The functions of ggml in a shared library of llama.cpp."""
    library: ctypes.CDLL

    @staticmethod
    def of(path):
        if path is None:
            found = importlib.util.find_spec("xllamacpp")
            if found is None:
                raise Refused("the package xllamacpp is not installed; try: pip install xllamacpp, or give --library")
            path = Path(found.origin).with_name("xllamacpp.abi3.so")
        library = ctypes.CDLL(str(path))
        library.ggml_quantize_chunk.restype = ctypes.c_size_t
        library.ggml_quantize_chunk.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * 3, ctypes.c_void_p]
        return Quantiser(library)

    def blocks(self, w, kind):
        """fp32 [N, K] -> bytes [N, bytes of a row]."""
        n, k = w.shape
        per_block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        out = np.empty((n, k // per_block * block_bytes), np.uint8)
        w = np.ascontiguousarray(w, np.float32)
        written = self.library.ggml_quantize_chunk(int(kind), w.ctypes.data, out.ctypes.data, 0, n, k, None)
        if written != out.nbytes:
            raise Refused(f"{kind.name}: the library wrote {written} bytes, expected {out.nbytes}")
        return out


def permuted(w, n_heads):
    """The inverse of gguf_to_hf's undo_permutation()."""
    n, rest = w.shape[0], w.shape[1:]
    return w.reshape(n_heads, 2, n // n_heads // 2, *rest).swapaxes(1, 2).reshape(n, *rest)


def gguf_name(name):
    """(GGUF's name, role, layer)"""
    if name in GGUF_NAMES:
        return GGUF_NAMES[name], GGUF_NAMES[name].split(".")[0], -1
    parts = name.split(".")
    role = ROLES.get(".".join(parts[3:-1]))
    if parts[:2] != ["model", "layers"] or role is None:
        raise Refused(f"tensor {name} has no name in a GGUF file of a Llama")
    return f"blk.{parts[2]}.{role}.{parts[-1]}", role, int(parts[2])


def add_configuration(writer, config):
    if config.get("model_type") != "llama" or config.get("rope_scaling"):
        raise Refused(f"model_type is {config.get('model_type')}, rope_scaling {config.get('rope_scaling')}: expected a llama "
                      "without scaling")
    heads = config["num_attention_heads"]
    head = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_rope_dimension_count(head)
    writer.add_rope_freq_base(config["rope_theta"] if "rope_theta" in config else config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])


def add_tokenizer(writer, folder, config):
    with open(folder / "tokenizer.json", encoding="utf-8") as f:
        found = json.load(f)
    pieces = found["pre_tokenizer"].get("pretokenizers", [])
    digits = {"type": "Digits", "individual_digits": True}
    if found["model"]["type"] != "BPE" or pieces != [digits, {"type": "ByteLevel", "trim_offsets": True} | BYTE_LEVEL]:
        raise Refused("tokenizer.json is not SmolLM's (digits one by one, then GPT-2's expression): llama.cpp's name of it is not known")
    names = {i: token for token, i in found["model"]["vocab"].items()}
    kinds = dict.fromkeys(names, NORMAL)
    for added in found["added_tokens"]:
        names[added["id"]] = added["content"]
        kinds[added["id"]] = CONTROL if added["special"] else USER_DEFINED
    if sorted(names) != list(range(config["vocab_size"])):
        raise Refused(f"tokenizer.json has {len(names)} tokens, config.json a vocabulary of {config['vocab_size']}")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([names[i] for i in range(len(names))])
    writer.add_token_types([kinds[i] for i in range(len(names))])
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in found["model"]["merges"]])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(False)
    writer.add_add_space_prefix(False)


def stored_as(recipe, role, i, config, tied, width):
    """The type of a matrix, and the type that llama-quantize would choose for rows of any length."""
    queries = config["num_attention_heads"] // config["num_key_value_heads"]
    wanted = type_of(recipe, role, i, config["num_hidden_layers"], queries, tied)
    fits = width % gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[wanted]][0] == 0
    return wanted if fits else FALL_BACK[wanted], wanted


def convert(folder, out, recipe, library):
    with open(folder / "config.json", encoding="utf-8") as f:
        config = json.load(f)
    if "quantization_config" in config:
        raise Refused("the checkpoint is already quantised; expected an unquantised one")
    quantiser = None if recipe == "bf16" else Quantiser.of(library)
    writer = gguf.GGUFWriter(f"{out}.part", "llama")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16 if recipe == "bf16" else RECIPES[recipe][0])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    add_configuration(writer, config)
    add_tokenizer(writer, folder, config)
    source, used = cio.Checkpoint(folder), collections.Counter()
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    tied = "lm_head.weight" not in source.names()
    for name in source.names():
        target, role, i = gguf_name(name)
        w = source.f32(name)
        w = permuted(w, heads[role]) if role in heads else w
        if w.ndim < 2:
            writer.add_tensor(target, w)
            continue
        kind, wanted = ("BF16", "BF16") if recipe == "bf16" else stored_as(recipe, role, i, config, tied, w.shape[1])
        used[f"{kind}" + f" for {wanted}" * (kind != wanted)] += w.size
        kind = gguf.GGMLQuantizationType[kind]
        data = cio.bf16_from_f32(w).view(np.uint8) if recipe == "bf16" else quantiser.blocks(w, kind)
        writer.add_tensor(target, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.replace(f"{out}.part", out)
    shares = ", ".join(f"{count / sum(used.values()):.0%} {kind}" for kind, count in used.most_common())
    print(f"{out}: {recipe}, {os.path.getsize(out) / 1e6:.0f} MB; of the weights: {shares}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("source", metavar="IN", type=Path, help="folder with config.json, tokenizer.json and safetensors")
    parser.add_argument("out", metavar="OUT.gguf")
    parser.add_argument("--type", required=True, choices=["bf16", *RECIPES])
    parser.add_argument("--library", help="a shared library with ggml's functions (default: the installed package xllamacpp)")
    args = parser.parse_args()
    try:
        convert(args.source, args.out, args.type, args.library)
    except (Refused, OSError) as e:
        print(f"gguf_quantize: {args.source}: {e}", file=sys.stderr)
        return 65
    return 0


if __name__ == "__main__":
    sys.exit(main())
