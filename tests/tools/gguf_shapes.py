"""Of make_checkpoint.py: a Llama shape as a GGUF file of random blocks, in a mix of types as llama.cpp's quantiser chooses them."""

import gguf_architectures
import gguf_file
import numpy as np

ALIGNMENT = 32
# Type -> its id in the file, elements and bytes of a block.
TYPES = {"F32": (0, 1, 4), "Q4_K": (12, 256, 144), "Q6_K": (14, 256, 210)}
Q4_STD, Q4_MEAN, Q6_STD = 4.61, 7.5, 18.5  # of uniform codes of 4 bits, and of 6 bits less 32
NAMES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
         "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}


class Q4KM:
    """Q4_K_M: Q4_K, with Q6_K for the head, and for values and the MLP's last product of half of the layers."""

    name = "ggml"

    def type_of(self, name, layer, layers):
        first = layers // 8
        better = layer < first or layer >= 7 * layers // 8 or (layer - first) % 3 == 2
        return "Q6_K" if better and name in ("self_attn.v_proj", "mlp.down_proj") else "Q4_K"


def bytes_of(kind, shape):
    _, elements, size = TYPES[kind]
    return int(np.prod(shape, dtype=np.int64)) // elements * size


def tensors(config, scheme, products, norms):
    """(name, type, shape, how) of every tensor of a Llama; products and norms: of a layer, as make_checkpoint has them."""
    if config["model_type"] != "llama":
        raise SystemExit(f"make_checkpoint: GGUF files of the family {config['model_type']} are not generated, only of llama")
    h, vocab, layers = config["hidden_size"], config["vocab_size"], config["num_hidden_layers"]
    factors = np.linspace(0.9, 1.1, h, dtype=np.float32)
    yield ("token_embd.weight", "Q4_K", (vocab, h), ("blocks", "Q4_K"))
    for i in range(layers):
        for name, n, k in products(config, i):
            kind = scheme.type_of(name, i, layers)
            yield (f"blk.{i}.{NAMES[name]}.weight", kind, (n, k), ("blocks", kind))
        for name, n in norms(config):
            yield (f"blk.{i}.{NAMES[name]}.weight", "F32", (n,), ("all", factors))
    yield ("output_norm.weight", "F32", (h,), ("all", factors))
    if not config["tie_word_embeddings"]:
        yield ("output.weight", "Q6_K", (vocab, h), ("blocks", "Q6_K"))
    if "rope_scaling" in config:
        divisors = gguf_architectures.llama3_divisors({"rope_theta": config["rope_theta"], **config["rope_scaling"]}, config["head_dim"])
        yield ("rope_freqs.weight", "F32", divisors.shape, ("all", divisors))


def layout(path, config, all_tensors):
    """Writes the file's header and its size; returns (offset, tensor) pairs."""
    head = config["head_dim"]
    keys = {"general.architecture": "llama", "general.type": "model", "llama.rope.dimension_count": head,
            "llama.rope.freq_base": float(config["rope_theta"]), "llama.attention.key_length": head,
            "llama.attention.value_length": head, **{f"llama.{key}": config[name] for name, key in gguf_architectures.KEYS.items()}}
    sizes = [bytes_of(kind, shape) for _, kind, shape, _ in all_tensors]
    text, offsets = gguf_file.header(keys, {name: (TYPES[kind][0], shape, size) for (name, kind, shape, _), size in
                                            zip(all_tensors, sizes)}, ALIGNMENT)
    with open(path, "wb") as f:
        f.write(text)
        f.truncate(len(text) + offsets[-1] + -(-sizes[-1] // ALIGNMENT) * ALIGNMENT)
    return [(len(text) + at, t) for at, t in zip(offsets, all_tensors)]


def half(value):
    return np.frombuffer(np.float16(value).tobytes(), np.uint8)


def random_blocks(rng, kind, size, std):
    """Blocks of uniform codes, whose scales vary; their weights have the mean 0."""
    blocks = np.frombuffer(rng.bytes(size), np.uint8).reshape(-1, TYPES[kind][2]).copy()
    if kind == "Q6_K":  # the scales' signs are random
        scale = 64 + (blocks[:, 192:208] & 63).astype(np.int16)
        blocks[:, 192:208] = np.where(blocks[:, 192:208] & 64, scale, -scale).astype(np.int8).view(np.uint8)
        blocks[:, 208:210] = half(std / Q6_STD / 95.5)
        return blocks.tobytes()
    scale = 40 + blocks[:, 4:12] % 24  # minima are the same numbers, so that a mean code stands for 0
    low, high = scale[:, :4], scale[:, 4:]
    blocks[:, 4:8] = blocks[:, 8:12] = low | (high >> 4) << 6
    blocks[:, 12:16] = (high & 15) * 17
    blocks[:, 0:2] = half(std / Q4_STD / 51.5)
    blocks[:, 2:4] = half(std / Q4_STD / 51.5 * Q4_MEAN)
    return blocks.tobytes()
