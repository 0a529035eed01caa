#!/usr/bin/env python3
"""Published configurations: a supported configuration opens, any other is refused with the missing feature.

    CTWORKER_CONFIGS=DIR check_configs.py CTWORKER

DIR holds NAME/config.json, as published, and ModelOpt's hf_quant_config.json if it was published. Each
configuration is inspected with a made-up checkpoint of two small layers: sizes are reduced, every other
key stays. A dense configuration of a family below must open; any other must be refused with exit code 65
and one line that names its model_type or its weight format. Prints one line per failure and
"N passed, N failed".
"""

import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

# model_type -> the family of the layers
FAMILIES = {**{name: name for name in ("llama", "mistral", "phi3", "qwen2", "qwen3")},
            "mistral3": "mistral", "qwen2_5_vl": "qwen2", "qwen3_vl": "qwen3"}
WRAPPERS = {"mistral3", "qwen2_5_vl", "qwen3_vl"}
FORMAT_KEYS = ("quantization_config", "compression_config", "quantization", "quantize")
MODELOPT = "hf_quant_config.json"
VOCAB, INNER = 32, 48


def shrink(config, family):
    """The same text model's configuration with two small layers."""
    n_head, n_kv = config["num_attention_heads"], config.get("num_key_value_heads")
    small = dict(config, vocab_size=VOCAB, intermediate_size=INNER, num_hidden_layers=2)
    small["num_attention_heads"] = heads = n_head // n_kv if n_kv else 2
    if n_kv:
        small["num_key_value_heads"] = 1
    head = config.get("head_dim") or (128 if family == "qwen3" else 8)
    small["hidden_size"] = heads * 8
    if small.get("layer_types"):
        small["layer_types"] = small["layer_types"][:2]
    return small, heads, 1 if n_kv else heads, head


def tensors(config, family, heads, kv, head):
    """Name -> shape of the tensors of transformers' class for the family."""
    hidden = config["hidden_size"]
    yield "model.embed_tokens.weight", [VOCAB, hidden]
    yield "model.norm.weight", [hidden]
    if not config.get("tie_word_embeddings"):
        yield "lm_head.weight", [VOCAB, hidden]
    reads_bias = family in ("llama", "qwen3") and config.get("attention_bias")
    for layer in (f"model.layers.{i}." for i in range(2)):
        yield f"{layer}input_layernorm.weight", [hidden]
        yield f"{layer}post_attention_layernorm.weight", [hidden]
        if family == "phi3":
            yield f"{layer}self_attn.qkv_proj.weight", [(heads + 2 * kv) * head, hidden]
            yield f"{layer}self_attn.o_proj.weight", [hidden, heads * head]
            yield f"{layer}mlp.gate_up_proj.weight", [2 * INNER, hidden]
            yield f"{layer}mlp.down_proj.weight", [hidden, INNER]
            continue
        rows = {"q": heads * head, "k": kv * head, "v": kv * head, "o": hidden}
        for name, n in rows.items():
            yield f"{layer}self_attn.{name}_proj.weight", [n, heads * head if name == "o" else hidden]
            if reads_bias or (family == "qwen2" and name != "o"):
                yield f"{layer}self_attn.{name}_proj.bias", [n]
            if family == "qwen3" and name in "qk":
                yield f"{layer}self_attn.{name}_norm.weight", [head]
        for name, shape in {"gate": [INNER, hidden], "up": [INNER, hidden], "down": [hidden, INNER]}.items():
            yield f"{layer}mlp.{name}_proj.weight", shape
            if family == "llama" and config.get("mlp_bias"):
                yield f"{layer}mlp.{name}_proj.bias", shape[:1]


def write_checkpoint(folder, config, shapes):
    header, at = {}, 0
    for name, shape in shapes:
        size = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + bytes(at))
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f)


def check(ctworker, path):
    """None, or a description of the error."""
    with open(path, encoding="utf-8") as f:
        config = json.load(f)
    kind = config.get("model_type")
    family, ours, wrapped = FAMILIES.get(kind), kind in FAMILIES, kind in WRAPPERS
    modelopt = os.path.join(os.path.dirname(path), MODELOPT)
    opens = ours and not os.path.exists(modelopt) and not any(config.get(key) for key in FORMAT_KEYS)
    small, shapes = config, []
    if ours:
        inside = wrapped and "text_config" in config
        text, *heads = shrink(config["text_config"] if inside else config, family)
        small = dict(config, text_config=text) if inside else text
        tied = config.get("tie_word_embeddings", text.get("tie_word_embeddings"))
        shapes = tensors(dict(text, tie_word_embeddings=tied), family, *heads)
    if wrapped:
        shapes = [(name.replace("model.", "model.language_model.", 1), shape)
                  for name, shape in shapes]
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(folder, small, shapes)
        if os.path.exists(modelopt):
            shutil.copy(modelopt, folder)
        env = {k: v for k, v in os.environ.items() if not k.startswith("CTW_")}
        result = subprocess.run([ctworker, "inspect", "--backend", "cpu", folder], env=env,
                                capture_output=True, text=True, timeout=120, check=False)
    last = result.stderr.strip().splitlines()[-1:] or ["nothing"]
    if opens:
        return None if result.returncode == 0 else f"refused: {last[0]}"
    names = 'format "' if ours else f'model_type "{config.get("model_type")}"'
    if result.returncode != 65 or names not in last[0]:
        return f"expected a refusal that says {names}, got {result.returncode}: {last[0]}"
    return None


def main():
    configs = os.environ["CTWORKER_CONFIGS"]
    paths = sorted(os.path.join(configs, name, "config.json") for name in os.listdir(configs))
    paths = [path for path in paths if os.path.isfile(path)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(lambda path: check(sys.argv[1], path), paths))
    for path, wrong in zip(paths, results):
        if wrong:
            print(f"{os.path.basename(os.path.dirname(path))}: {wrong}")
    failed = sum(wrong is not None for wrong in results)
    print(f"{len(results) - failed} passed, {failed} failed")
    return 1 if failed or not results else 0


if __name__ == "__main__":
    sys.exit(main())
