#!/usr/bin/env python3
"""Writes a tiny checkpoint as a GGUF file, as llama.cpp's converter does, and as safetensors of the same values.

    gguf_writer.py ARCHITECTURE OUT [--blocks]

OUT/ARCHITECTURE.gguf and OUT/hf score to the same bits. Matrices are BF16, or with --blocks, random blocks of several
types, whose values OUT/hf has as F32. Names, order of rows and added numbers follow llama.cpp's conversion/*.py, not the
worker's tables.
"""

import json
import os
import re
import sys

import checkpoint_io as cio
import ggml_blocks
import gguf_made
import numpy as np
import reference_model
import tiny_checkpoint
from gguf_architectures import ARCHITECTURES, KDA, KEYS, LACKS, NAMES, PERMUTED, PLUS_ONE, block_heads, llama3_divisors
from gguf_file import write_gguf

F32_TENSOR, I32_TENSOR, BF16_TENSOR = 0, 26, 30
BLOCKS = ("Q4_0", "Q8_0", "Q5_1", "IQ4_NL", "Q4_1", "Q5_0")


def tiled(values, config, dim, size):
    """Qwen3_5TextModel: heads of values, of `size`, one of each key head in turn."""
    n, keys = config["linear_num_value_heads"], config["linear_num_key_heads"]
    order = np.arange(n * size).reshape(keys, n // keys, size).swapaxes(0, 1).ravel()
    first = values.shape[dim] - n * size
    return np.take(values, [*range(first), *(order + first)], axis=dim)


def pairs_adjacent(rows, heads):
    """llama.cpp's permute()."""
    return rows.reshape(heads, 2, len(rows) // heads // 2, -1).swapaxes(1, 2).reshape(rows.shape)


def halves_apart(rows, heads):
    return rows.reshape(heads, len(rows) // heads // 2, 2, -1).swapaxes(1, 2).reshape(rows.shape)


def config_of(folder, changes):
    """The checkpoint's config, with what llama.cpp assumes."""
    with open(os.path.join(folder, "config.json")) as f:
        config = json.load(f)
    if "rope" in changes:
        config["rope_parameters"] |= changes["rope"]
    config |= {k: v for k, v in changes.items() if k != "rope"}
    return {k: v for k, v in config.items() if v is not LACKS}


def metadata(arch, config, keys, more):
    out = {"general.architecture": arch, "general.type": "model"}
    for name, key in (KEYS | keys).items():
        if config.get(name) is not None:
            out[f"{arch}.{key}"] = config[name]
    if "rope_parameters" not in config or "main" in config["rope_parameters"]:
        return out | {f"{arch}.{key}": found for key, found in more.items()}
    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    rope = config["rope_parameters"].get("full_attention", config["rope_parameters"])
    rotated = int(head * rope.get("partial_rotary_factor", 1))
    out |= {f"{arch}.rope.dimension_count": rotated, f"{arch}.rope.freq_base": float(rope["rope_theta"])}
    if config.get("head_dim"):
        out |= {f"{arch}.attention.key_length": head, f"{arch}.attention.value_length": head}
    if rope["rope_type"] in ("linear", "yarn"):
        out |= {f"{arch}.rope.scaling.type": rope["rope_type"], f"{arch}.rope.scaling.factor": rope["factor"]}
    if rope["rope_type"] == "yarn":
        out[f"{arch}.rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
    return out | {f"{arch}.{key}": found for key, found in more.items()}


class Writer:
    """Collects a GGUF file's tensors, and the same values as safetensors."""

    def __init__(self, arch, blocks, config, names, whole):
        self.arch, self.blocks, self.config, self.names, self.whole = arch, blocks, config, NAMES | names, whole
        self.tensors, self.safetensors, self.stacks = {}, [], {}
        self.plain_norms = ("output_norm.weight",) if arch == "muse-glimmer" else ()
        self.shards = {}  # of Qwen 4's table, by number
        self.blends = {}  # of Kimi K3, by name: the first of two vectors
        self.numbers = {}  # keys with an array of one number for each layer
        self.rng = np.random.default_rng(7)

    def heads(self, module):
        """Of a matrix whose rows the converter reorders; else 0."""
        if self.arch == "deci" and module.endswith(("q_proj", "k_proj")):
            return block_heads(self.config, int(module.split(".")[2]))[module.endswith("k_proj")]
        key = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}.get(module.rsplit(".", 1)[-1])
        return self.config[key] if key and self.arch in PERMUTED else 0

    def stored(self, name):
        """GGUF's name, and the expert."""
        name = re.sub(r"^(model\.language_model\.|language_model\.model\.)", "model.", name).replace("language_model.lm_head", "lm_head")
        layer = re.fullmatch(r"(?:model\.|gpt_neox\.|transformer\.(?:encoder\.)?|backbone\.|)(?:layers|h|blocks)\.(\d+)\.(.+)", name)
        inside = layer[2] if layer else name
        if inside in self.whole:
            return (f"blk.{layer[1]}." if layer else "") + self.whole[inside], None
        module, ending = inside.rsplit(".", 1)
        expert = re.search(r"(?:experts|_projections)\.(\d+)(?=\.|$)", module)
        module = re.sub(r"(experts|_projections)\.\d+(?=\.|$)", r"\1.#", module)
        if self.arch in ("kimi-k3", "bailingmoe3") and module.endswith(".g_proj"):  # one name for two kinds of gates
            kimi, i = self.arch == "kimi-k3", int(layer[1]) + 1
            full = i in self.config["linear_attn_config"]["full_attn_layers"] if kimi else i % self.config["layer_group_size"] == 0
            return f"blk.{layer[1]}.{'attn_gate' if full else 'ssm_g' if kimi else 'ssm_g_a'}.weight", None
        return (f"blk.{layer[1]}." if layer else "") + f"{self.names[module]}.{ending}", expert and int(expert[1])

    def put(self, name, kind, shape, data, expert=None):
        if expert is None:
            self.tensors[name] = (kind, shape, data)
        else:
            self.stacks.setdefault(name, []).append((expert, kind, shape, data))

    def keep(self, name, dtype, values):
        self.safetensors.append(cio.Batch([(name, dtype, values.shape)], lambda: [cio.encode(values, dtype)]))

    def add_latent(self, name, dtype, values):
        """The keys and values of all heads: two tensors, of which keys are transposed; here values are in blocks, too."""
        layer, c = re.search(r"layers\.(\d+)\.", name)[1], self.config
        heads = values.reshape(c["num_attention_heads"], c["qk_nope_head_dim"] + c["v_head_dim"], -1).copy()
        keys, rows = heads[:, :c["qk_nope_head_dim"]], np.ascontiguousarray(heads[:, c["qk_nope_head_dim"]:])
        kind, data = BF16_TENSOR, cio.encode(rows, "BF16").tobytes()
        if self.blocks:
            n, k = rows.shape[0] * rows.shape[1], rows.shape[2]
            data = ggml_blocks.make("Q8_0", n, k, self.rng, float(values.std()))
            kind, rows = ggml_blocks.TYPES["Q8_0"][0], ggml_blocks.decode("Q8_0", data, n, k).reshape(rows.shape)
        both = np.concatenate([keys, rows], axis=1).reshape(values.shape)
        self.keep(name, "F32" if self.blocks else dtype, both)
        keys = np.ascontiguousarray(keys.swapaxes(1, 2))
        self.put(f"blk.{layer}.attn_k_b.weight", BF16_TENSOR, keys.shape, cio.encode(keys, "BF16").tobytes())
        self.put(f"blk.{layer}.attn_v_b.weight", kind, rows.shape, data)

    def in_turn(self, name, values):
        """Rows of q, k and v of all heads one after another; GPT-2's [outputs, inputs]."""
        if self.arch == "gpt2" and values.ndim == 2 and ".c_" in name:
            return np.ascontiguousarray(values.T)
        if "query_key_value" not in name:
            return values
        heads = self.config["num_attention_heads"]
        kv = self.config.get("num_kv_heads", heads)
        rows = values.reshape(kv, heads // kv + 2, self.config["hidden_size"] // heads, -1)
        return np.concatenate([part.reshape(-1, rows.shape[-1]) for part in (rows[:, :-2], rows[:, -2], rows[:, -1])]).reshape(values.shape)

    def add_fused(self, name, dtype, values):
        self.keep(name, dtype, values)
        rows, stored = self.in_turn(name, values), self.stored(name)[0]
        if rows.ndim == 1:
            self.put(stored, F32_TENSOR, rows.shape, rows.astype("<f4").tobytes())
        else:
            self.put(stored, BF16_TENSOR, rows.shape, cio.encode(rows, "BF16").tobytes())

    def add(self, name, dtype, raw):
        if name.endswith(".tid2eid"):
            self.add_table(name, dtype, raw)
            return
        values = cio.decode(raw, dtype)
        module = name.rsplit(".", 1)[0]
        if module.endswith("kv_b_proj") and "self_attn.kv_b_proj.weight" not in self.whole:
            self.add_latent(name, dtype, values)
            return
        if self.arch in ("gptneox", "gpt2", "falcon"):
            self.add_fused(name, dtype, values)
            return
        if ".act_fn." in name:
            self.keep(name, dtype, values)
            self.numbers.setdefault("xielu." + name.rsplit(".", 1)[1], []).append(float(values.ravel()[0]))
            return
        if name.endswith(("_res_norm.weight", "_res_proj.weight")):
            self.add_blend(name, dtype, values)
            return
        if self.arch == "qwen4exp" and ("shard_" in name or "index_qk_proj" in name):
            self.add_qwen4(name, dtype, values)
            return
        stored, expert = self.stored(name)
        if ".experts.mlp." in name:
            self.add_flat(name, dtype, values, stored)
            return
        if self.arch == "falcon-h1":
            self.add_multiplied(name, dtype, values, stored)
            return
        if "linear_attn" in name and "linear_attn.norm" not in name:
            self.add_tiled(name, dtype, values, stored)
            return
        f32 = stored.endswith(("ffn_gate_inp.weight", ".ssm_a")) or dtype == "F32"
        if values.ndim == 1 or f32 or "shared_expert_gate" in name or ".conv.conv." in name or "conv1d." in name:
            self.keep(name, dtype, values)
            if stored.endswith(".ssm_a"):
                values = np.exp(values)[:, None] if self.arch == "bailingmoe3" else -np.exp(values)
            plus = self.arch in PLUS_ONE and (name.endswith("norm.weight") or ".ple.norm_" in name)
            plus = plus and "linear_attn" not in name and stored not in self.plain_norms
            plus = values + np.float32(1) if plus else values
            plus = plus.reshape(-1) if "shared_expert_gate" in name else plus
            plus = plus.reshape(1, len(plus), 1, -1) if self.arch in KDA and "conv1d" in name else plus
            plus = plus[:, 0] if plus.ndim == 3 else plus
            self.put(stored, F32_TENSOR, plus.shape, plus.astype("<f4").tobytes())
            return
        heads = self.heads(module)
        if not self.blocks:
            self.keep(name, dtype, values)
            rows = pairs_adjacent(values, heads) if heads else values
            self.put(stored, BF16_TENSOR, rows.shape, cio.encode(rows, "BF16").tobytes(), expert)
            return
        n_types = len(self.tensors) + len(self.stacks) if expert is None else 3 * len(self.stacks)
        kind = BLOCKS[(len(stored) + n_types) % len(BLOCKS)] if expert is None else BLOCKS[len(stored) % len(BLOCKS)]
        n, k = values.size // values.shape[-1], values.shape[-1]
        data = ggml_blocks.make(kind, n, k, self.rng, float(values.std()))
        rows = ggml_blocks.decode(kind, data, n, k).reshape(values.shape)
        self.keep(name, "F32", halves_apart(rows, heads) if heads else rows)
        self.put(stored, ggml_blocks.TYPES[kind][0], values.shape, data, expert)

    def add_table(self, name, dtype, raw):
        """The experts of each token."""
        self.safetensors.append(cio.Batch([(name, dtype, raw.shape)], lambda: [raw]))
        self.put(self.stored(name)[0], I32_TENSOR, raw.shape, np.ascontiguousarray(raw, "<i4").tobytes())

    def add_blend(self, name, dtype, values):
        """KimiK3Model._try_fuse_res: a product of two vectors."""
        self.keep(name, dtype, values)
        inside = re.sub(r"_(norm|proj)\.weight$", "", name).removeprefix("language_model.model.")
        other = self.blends.pop(inside, None)
        if other is None:
            self.blends[inside] = values
            return
        product = np.ravel(values) * np.ravel(other)
        stored = {"self_attention_res": "attn_res_score", "mlp_res": "ffn_res_score"}.get(inside.split(".")[-1])
        stored = f"blk.{inside.split('.')[1]}.{stored}.weight" if stored else "output_res_score.weight"
        self.put(stored, F32_TENSOR, product.shape, product.astype("<f4").tobytes())

    def add_qwen4(self, name, dtype, values):
        """Tables of n-grams in one tensor, the indexer's queries and key apart."""
        self.keep(name, dtype, values)
        layer, rows = re.search(r"layers\.(\d+)\.", name)[1], self.config["indexer_n_heads"] * self.config["indexer_head_dim"]
        if "shard_" in name:
            self.shards[int(re.search(r"shard_(\d+)", name)[1])] = values
            table = np.concatenate([self.shards[i] for i in sorted(self.shards)])
            parts = {"per_layer_token_embd": table}
        else:
            parts = {f"blk.{layer}.indexer.q_proj": values[:rows], f"blk.{layer}.indexer.k_proj": values[rows:]}
        for stored, part in parts.items():
            part = np.ascontiguousarray(part)
            self.put(stored + ".weight", BF16_TENSOR, part.shape, cio.encode(part, "BF16").tobytes())

    def add_flat(self, name, dtype, values, stored):
        """DbrxModel: rows of all experts in one matrix, down transposed."""
        self.keep(name, dtype, values)
        stack = values.reshape(self.config["ffn_config"]["moe_num_experts"], -1, values.shape[1])
        stack = np.ascontiguousarray(stack.swapaxes(1, 2) if name.endswith("w2") else stack)
        self.put(stored, BF16_TENSOR, stack.shape, cio.encode(stack, "BF16").tobytes())

    def add_tiled(self, name, dtype, values, stored):
        """Of a delta rule: _LinearAttentionVReorderBase."""
        self.keep(name, dtype, values)
        part, size = name.split("linear_attn.")[1], self.config["linear_value_head_dim"]
        dim = 1 if part == "out_proj.weight" else 0
        values = values[:, 0] if values.ndim == 3 else values
        one = ("in_proj_a.weight", "in_proj_b.weight", "A_log", "dt_bias")
        rows = np.ascontiguousarray(tiled(values, self.config, dim, 1 if part in one else size))
        rows = -np.exp(rows) if part == "A_log" else rows
        if values.ndim == 1 or part == "conv1d.weight":
            self.put(stored, F32_TENSOR, rows.shape, rows.astype("<f4").tobytes())
        else:
            self.put(stored, BF16_TENSOR, rows.shape, cio.encode(rows, "BF16").tobytes())

    def add_multiplied(self, name, dtype, values, stored):
        """FalconH1Model: weights times factors."""
        self.keep(name, dtype, values)
        c, part = self.config, name.removesuffix(".weight").rsplit(".", 1)[-1]
        attention, ssm = c["attention_in_multiplier"], c["ssm_multipliers"]
        factor = {"gate_proj": c["mlp_multipliers"][0], "down_proj": c["mlp_multipliers"][1], "q_proj": attention, "v_proj": attention,
                  "k_proj": attention * c["key_multiplier"], "o_proj": c["attention_out_multiplier"], "out_proj": c["ssm_out_multiplier"],
                  "in_proj": c["ssm_in_multiplier"], "lm_head": c["lm_head_multiplier"], "embed_tokens": c["embedding_multiplier"]}
        values = values * np.float32(factor.get(part, 1))
        if part == "in_proj":
            inner, state = c["mamba_d_ssm"], c["mamba_n_groups"] * c["mamba_d_state"]
            for first, n, by in zip(np.cumsum([0, inner, inner, state, state]), (inner, inner, state, state, len(values)), ssm):
                values[first:first + n] *= np.float32(by)
        values = -np.exp(values) if part == "A_log" else values
        shape = (-1, 1) if part in ("A_log", "D") else (c["mamba_n_groups"], -1) if "mamba.norm" in name else None
        values = values.reshape(shape) if shape else values[:, 0] if values.ndim == 3 else values
        if part in factor:
            self.put(stored, BF16_TENSOR, values.shape, cio.encode(values, "BF16").tobytes())
        else:
            self.put(stored, F32_TENSOR, values.shape, values.astype("<f4").tobytes())

    def add_llama4(self, name, dtype, raw):
        """Stacks [experts, in, out] with gate before up."""
        values = cio.decode(raw, dtype)
        self.keep(name, dtype, values)
        layer, part = re.fullmatch(r"model\.layers\.(\d+)\.feed_forward\.experts\.(.+)", name).groups()
        rows, half = values.swapaxes(1, 2), values.shape[2] // 2
        for part, one in (("gate", rows[:, :half]), ("up", rows[:, half:])) if part == "gate_up_proj" else (("down", rows),):
            one = np.ascontiguousarray(one)
            self.put(f"blk.{layer}.ffn_{part}_exps.weight", BF16_TENSOR, one.shape, cio.encode(one, "BF16").tobytes())

    def add_gpt_oss(self, name, dtype, raw):
        """Stacks [experts, in, out] with gate and up in turns, and their biases."""
        values = cio.decode(raw, dtype)
        self.keep(name, dtype, values)
        layer, part = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", name).groups()
        if part == "self_attn.sinks":
            self.put(f"blk.{layer}.attn_sinks.weight", F32_TENSOR, values.shape, values.tobytes())
            return
        part, bias = part.removeprefix("mlp.experts.").removesuffix("_bias"), part.endswith("_bias")
        rows = values if bias else values.swapaxes(1, 2)
        for name, one in ((("gate", rows[:, ::2]), ("up", rows[:, 1::2])) if part == "gate_up_proj" else (("down", rows),)):
            kind, data = (F32_TENSOR, one.astype("<f4")) if bias else (BF16_TENSOR, cio.encode(np.ascontiguousarray(one), "BF16"))
            self.put(f"blk.{layer}.ffn_{name}_exps.{'bias' if bias else 'weight'}", kind, one.shape,
                     np.ascontiguousarray(data).tobytes())

    def finish(self):
        for name, experts in self.stacks.items():
            experts.sort(key=lambda e: e[0])
            _, kind, shape, _ = experts[0]
            self.tensors[name] = (kind, (len(experts), *shape), b"".join(e[3] for e in experts))

    def fuse(self):
        """The converter's --fuse-qkv and --fuse-gate-up-exps."""
        fusions = {"attn_qkv": ("attn_q", "attn_k", "attn_v"), "ffn_gate_up_exps": ("ffn_gate_exps", "ffn_up_exps")}
        for fused, stems in fusions.items():
            for first in [name for name in self.tensors if f".{stems[0]}." in name and name.endswith("weight")]:
                parts = [self.tensors.pop(first.replace(stems[0], stem)) for stem in stems]
                dim = len(parts[0][1]) - 2
                rows = [np.frombuffer(data, np.uint16).reshape(own) for _, own, data in parts]
                joined = np.ascontiguousarray(np.concatenate(rows, axis=dim))
                self.put(first.replace(stems[0], fused), parts[0][0], joined.shape, joined.tobytes())


def write(name, out, blocks=False):
    """Returns the paths of the GGUF file and of the folder with safetensors."""
    rules = ARCHITECTURES[name]
    arch = rules.get("arch") or re.sub("-(llama3|linear|mixtral|partial|longrope|windows|experts|fused|softmax|lite|older)$", "", name)
    folder = os.path.join(out, "hf")
    if "made" in rules:
        gguf_made.write(folder, *rules["made"])
    else:
        tiny_checkpoint.write(folder, rules["tiny"], "bf16", seed=3)
    config = config_of(folder, rules.get("set", {}))
    original, config = config, config | config.get("text_config", {})
    w = Writer(arch, blocks, config, rules.get("names", {}), rules.get("whole", {}))
    for tensor, (dtype, raw) in reference_model.read_folder(folder).items():
        add = w.add_gpt_oss if "sinks" in tensor or (arch == "gpt-oss" and "experts" in tensor) else w.add
        add = w.add_llama4 if "feed_forward.experts." in tensor and arch == "llama4" else add
        add(tensor, dtype, raw)
    w.finish()
    if arch == "muse-glimmer":  # norms of heads hold the one factor of queries
        for i in range(config["num_hidden_layers"]):
            for stem, factor in (("attn_q_norm", config["qk_scale_factor"]), ("attn_k_norm", 1)):
                norm = np.full(config["head_dim"], factor, "<f4")
                w.put(f"blk.{i}.{stem}.weight", F32_TENSOR, norm.shape, norm.tobytes())
    if name.endswith("-fused"):
        w.fuse()
    rope = config.get("rope_parameters", {})
    if rope.get("rope_type") == "llama3":
        divisors = llama3_divisors(rope, config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])
        w.put("rope_freqs.weight", F32_TENSOR, divisors.shape, divisors.tobytes())
    if arch == "gemma4":  # generate_extra_tensors(): the rotated part of full layers' heads
        n = config["global_head_dim"] // 2
        turned = int(n * rope["full_attention"]["partial_rotary_factor"])
        divisors = np.array([1] * turned + [1e30] * (n - turned), "<f4")
        w.put("rope_freqs.weight", F32_TENSOR, divisors.shape, divisors.tobytes())
    if rope.get("rope_type") == "longrope":
        for kind in ("short", "long"):
            factors = np.array(rope[f"{kind}_factor"], "<f4")
            w.put(f"rope_factors_{kind}.weight", F32_TENSOR, factors.shape, factors.tobytes())
            rope[f"{kind}_factor"] = [float(str(f)) for f in factors]
    more = rules["more"](config) if "more" in rules else {}
    view = config | {key: config[own] for own, key in rules.get("alias", {}).items()}
    write_gguf(os.path.join(out, f"{name}.gguf"), metadata(arch, view, rules.get("keys", {}), more) | w.numbers, w.tensors)
    cio.write_safetensors(os.path.join(folder, "model.safetensors"), w.safetensors)
    cio.write_json(os.path.join(folder, "config.json"), original)
    return os.path.join(out, f"{name}.gguf"), folder


def main():
    if len(sys.argv) not in (3, 4) or sys.argv[1] not in ARCHITECTURES:
        print(__doc__, "Architectures:", ", ".join(ARCHITECTURES), file=sys.stderr)
        return 64
    os.makedirs(sys.argv[2], exist_ok=True)
    print(*write(sys.argv[1], sys.argv[2], sys.argv[3:] == ["--blocks"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
