#!/usr/bin/env python3
"""Published configurations: a supported configuration opens, any other is refused with the missing feature.

    CTWORKER_CONFIGS=DIR check_configs.py CTWORKER

DIR holds NAME/config.json, as published, and ModelOpt's hf_quant_config.json if it was published. Each
configuration is inspected with a made-up checkpoint of a few small layers: sizes are reduced, every other
key stays. A configuration of a family that tests/tools/tiny_checkpoint.py lists as open must open, dense or in a
format that is supported, with the tensors of the float64 model's recipe; any other must be refused with exit code 65
and one line that names its model_type or its weight format. Prints one line per failure and "N passed, N failed".
"""

import fnmatch
import json
import math
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

TOOLS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tools")
sys.path.insert(0, TOOLS)
import encoders  # pylint: disable=wrong-import-position
import families  # pylint: disable=wrong-import-position
import native_encoders  # pylint: disable=wrong-import-position
import recipe  # pylint: disable=wrong-import-position
import tool_encoders  # pylint: disable=wrong-import-position
import tiny_checkpoint  # pylint: disable=wrong-import-position

# model_types that open, and wrappers whose text model does
OPEN = {tiny_checkpoint.FAMILIES[name][0] for name in tiny_checkpoint.OPEN}
OPEN |= {wrapper for wrapper, text in families.TEXTS.items() if text in OPEN}
OPEN |= {"kimi_k2", "deepseek_ref"}  # deepseek_v3 and deepseek_v4 by other names
OPEN |= {"qwen3_vl_moe", "step3p7"}  # whose text models are in no file alone
FORMAT_KEYS = ("quantization_config", "compression_config", "quantization", "quantize")
MODELOPT = "hf_quant_config.json"
SIZES = {"BF16": 2, "F16": 2, "F32": 4, "I32": 4, "U32": 4, "I64": 8}

# Each size, the names of its key, and the small model's value
VOCAB, INNER, HEADS = 32, 64, 4
# Numbers of layers to try: some files leave the first few unquantised.
LAYERS = (2, 4)
ALL_KINDS = {"deepseek_v4": (4,), "deepseek_ref": (4,)}  # with layers of every kind
HEAD_KEYS, KV_KEYS, HIDDEN_KEYS = (
    ("num_attention_heads", "n_head", "n_heads"),
    ("num_key_value_heads", "num_kv_heads", "multi_query_group_num"),
    ("hidden_size", "n_embd", "n_embed", "d_model", "word_embed_proj_dim"))


def first(config, keys, default=None):
    return next((config[key] for key in keys if config.get(key) is not None), default)


def shrink(config, n_layers):
    """The same text model's configuration with so many small layers; heads keep their size."""
    n_head, n_kv = first(config, HEAD_KEYS), first(config, KV_KEYS)
    head = first(config, ("head_dim", "kv_channels"))
    if not head:
        head = 64 if config.get("kv_lora_rank") else first(config, HIDDEN_KEYS, 0) // (n_head or 1) or 64
    sizes = [(("vocab_size", "padded_vocab_size", "embedding_size"), VOCAB), (HEAD_KEYS, HEADS), (HIDDEN_KEYS, HEADS * head),
             (("num_hidden_layers", "n_layer", "n_layers", "num_layers"), n_layers)]
    optional = [(("vocab_size_per_layer_input",), VOCAB), (KV_KEYS, HEADS if n_kv == n_head else 1),
                (("intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim"), INNER)]
    small = dict(config)
    for keys, value in sizes + optional:
        small |= {key: value for key in keys if config.get(key) is not None}
    small |= {keys[0]: value for keys, value in sizes if first(small, keys) is None}
    if n_head is None:  # the class's own numbers of heads
        small["num_key_value_heads"] = HEADS
    for key in ("layer_types", "no_rope_layers", "block_configs", "layers_block_type", "hybrid_override_pattern"):
        if small.get(key):  # with the last, which Gemma 4 has rules for
            small[key] = small[key][:n_layers - 1] + small[key][-1:]
    small |= {key: INNER for key in ("moe_latent_size", "routed_expert_hidden_size") if small.get(key)}
    if small.get("mamba_n_heads"):
        small["mamba_n_heads"] = small["mamba_expand"] * small["hidden_size"] // small["mamba_d_head"]
    if small.get("sparse_attention_config"):
        small["sparse_attention_config"] = small["sparse_attention_config"] | {"sparse_num_index_heads": first(small, KV_KEYS)}
    if (small.get("num_kv_shared_layers") or 0) >= n_layers:  # no layer would be left to share with
        small["num_kv_shared_layers"] = 0
    for block in small.get("block_configs", ()):
        if block["attention"]["n_heads_in_group"]:
            block["attention"]["n_heads_in_group"] = HEADS
    return small


class Listed(encoders.MixedScheme):
    """ModelOpt's modules, each with its method."""

    def of(self, module):
        algo = self.parts.get(module, {}).get("quant_algo")
        return algo and native_encoders.ModelOptScheme(algo.removeprefix("W4A16_"))


class DeepSeek(encoders.MixedScheme):
    """DeepSeek V4's FP8, with the experts' own scheme."""

    def of(self, module):
        return self.parts if ".ffn.experts." in module else native_encoders.Fp8Scheme(scale_dtype="F8_E8M0", scale_name="scale")


def scheme_of(group, quantization):
    """The encoder that stores weights as a group of the configuration says; None: these tests have none."""
    weights, fmt = group["weights"], group.get("format") or quantization.get("format")
    strategy, size = weights.get("strategy"), weights.get("group_size") or 0
    if fmt in ("float-quantized", "int-quantized", "naive-quantized") and weights["num_bits"] == 8:
        rows, columns = weights.get("block_structure") or (0 if strategy == "tensor" else 1, size)
        return encoders.ByteScheme(weights["type"] == "float", rows, columns, weights.get("symmetric", True))
    if fmt == "pack-quantized":
        return encoders.IntScheme(weights["num_bits"], size, weights.get("symmetric", True))
    return encoders.MxScheme(weights["num_bits"]) if fmt in (
        "mxfp4-pack-quantized", "mxfp6-pack-quantized", "mxfp8-quantized") else None


def the_scheme(quantization):
    """That of all quantised modules, and the list of the others; None: these tests do not write it."""
    method, algo = quantization.get("quant_method"), quantization.get("quant_algo")
    if method == "compressed-tensors":
        groups = list(quantization.get("config_groups", {}).values())
        whole = len(groups) == 1 and groups[0]["targets"] == ["Linear"]
        return scheme_of(groups[0], quantization) if whole else None, quantization.get("ignore") or ()
    if method == "fp8" and (algo or quantization.get("expert_dtype") == "fp4"):
        return DeepSeek(native_encoders.ModelOptScheme("NVFP4") if algo else native_encoders.Fp4Scheme()), ()
    if method == "fp8":
        rows, columns = quantization["weight_block_size"] or (0, 0)
        return native_encoders.Fp8Scheme(rows, columns), (*(quantization.get("modules_to_not_convert") or ()), "lm_head")
    if method == "awq":
        return native_encoders.AwqScheme(quantization["group_size"]), (*(quantization["modules_to_not_convert"] or ()), "lm_head")
    if method == "bitsandbytes":
        return tool_encoders.Bnb4Scheme(), quantization["llm_int8_skip_modules"] or ()
    if method is None and quantization.keys() >= {"bits", "group_size"}:
        return tool_encoders.MlxScheme(quantization["bits"], quantization["group_size"]), ()
    if algo == "MIXED_PRECISION":
        return Listed(quantization["quantized_layers"]), ()
    if algo in ("FP8", "NVFP4"):
        return native_encoders.ModelOptScheme(algo), quantization.get("exclude_modules") or quantization.get("ignore") or ()
    return None, ()


def is_listed(module, entry, method):
    if method == "compressed-tensors":
        return bool(re.match(entry[3:], module)) if entry.startswith("re:") else entry == module
    return fnmatch.fnmatch(module, entry) or fnmatch.fnmatch(module, entry + ".*") or module.endswith("." + entry)


def stored_blocks(tensors):
    """The same of gpt-oss' MXFP4, which has blocks of the experts' stacks alone."""
    out = []
    for name, shape, kind in tensors:
        if kind == "column stack":
            experts, inputs, outputs = shape
            out += [(f"{name}_blocks", "U8", [experts, outputs, inputs // 32, 16]),
                    (f"{name}_scales", "U8", [experts, outputs, inputs // 32])]
        else:
            out.append((name, "BF16", list(shape)))
    return out


def stored(tensors, quantization):
    """(name, dtype, shape) of what the file has; None: in a format that these tests do not write."""
    if quantization and quantization.get("quant_method") == "mxfp4":
        return stored_blocks(tensors)
    out = []
    scheme, others = the_scheme(quantization) if quantization else (None, ())
    if quantization and not scheme:
        return None
    for name, shape, kind in tensors:
        module = name.removesuffix(".weight")
        spellings = (module, "lm_head") if kind == "head" else (module,)
        own = encoders.part_of(scheme, module) if kind in ("linear", "head") else None
        if own and not any(is_listed(m, x, quantization.get("quant_method")) for x in others for m in spellings):
            specs = own.specs(*shape, "BF16")
            out += [(f"{module}.{suffix}", dtype, list(s)) for suffix, (dtype, s) in specs.items()
                    if suffix != "weight_shape"]  # whose contents the file of zeros would have wrong
        else:
            out.append((name, "I64" if kind.startswith("table ") else "BF16", list(shape)))
    return out


def contents(name, sizes):
    """What is not 0: layers' factors, and bitsandbytes' code books and states. sizes: of the matrices."""
    if name.endswith("layer_scalar"):
        return b"\x80\x3f"
    if name.endswith(".weight.quant_map"):
        return tool_encoders.NF4.tobytes()
    if ".weight.quant_state." in name:
        return tool_encoders.Bnb4Scheme().state(*sizes[name.split(".quant_state.")[0]], "BF16")
    return None


def write_checkpoint(folder, config, shapes, sizes):
    """With a sparse file of zeros, but for contents(), and for rows of tables: 0, 1, 2 .."""
    header, at = {}, 0
    for name, dtype, shape in shapes:
        size = SIZES.get(dtype, 1) * math.prod(shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        f.truncate(8 + len(text) + at)
        for name, entry in header.items():
            data = contents(name, sizes)
            if data:
                f.seek(8 + len(text) + entry["data_offsets"][0])
                f.write(data)
            elif entry["dtype"] == "I64":
                n_rows, n = entry["shape"]
                f.seek(8 + len(text) + entry["data_offsets"][0])
                f.write(struct.pack(f"<{n}q", *range(n)) * n_rows)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f)


def check(ctworker, path):
    """None, or a description of the error."""
    with open(path, encoding="utf-8") as f:
        config = json.load(f)
    kind = config.get("model_type")
    modelopt, quantization = os.path.join(os.path.dirname(path), MODELOPT), config.get("quantization_config")
    if not quantization and os.path.exists(modelopt):
        with open(modelopt, encoding="utf-8") as f:
            quantization = json.load(f)["quantization"]
    inside = families.text_key(config) if kind in families.TEXTS else None
    text = config[inside] if inside else config
    ours = kind in OPEN
    quantization = quantization or text.get("quantization_config")
    if quantization and text.get("expert_dtype"):
        quantization = quantization | {"expert_dtype": text["expert_dtype"]}
    formatted = bool(quantization) or any(config.get(key) for key in FORMAT_KEYS)
    small, shapes, sizes = config, [], {}
    for n_layers in ALL_KINDS.get(kind, LAYERS) if ours else ():
        small = shrink(text, n_layers)
        small = config | {inside: small} if inside else small
        # quantised files have a module for each expert, but for gpt-oss'
        names = [".experts.0.down_proj."] if formatted and kind not in ("gpt_oss", *ALL_KINDS) else []
        tensors = list(recipe.tensors(families.describe(small, names)))
        sizes = {name: shape for name, shape, _ in tensors}
        quantised = stored(tensors, quantization)
        shapes = quantised or stored(tensors, None)
        if not quantization or quantised is None or any(dtype != "BF16" for _, dtype, _ in shapes):
            break
    formatted &= not ours or quantised is None
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(folder, small, shapes, sizes)
        if os.path.exists(modelopt):
            shutil.copy(modelopt, folder)
        env = {k: v for k, v in os.environ.items() if not k.startswith("CTW_")}
        result = subprocess.run([ctworker, "inspect", "--backend", "cpu", folder], env=env,
                                capture_output=True, text=True, timeout=120, check=False)
    last = result.stderr.strip().splitlines()[-1:] or ["nothing"]
    if ours and not formatted:
        return None if result.returncode == 0 else f"refused: {last[0]}"
    names = 'format "' if ours else f'model_type "{kind}"'
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
