#!/usr/bin/env python3
"""Checkpoints that llm-compressor writes, against the model that it has in memory.

    PEER/bin/python check_llmcompressor.py [--worker WORKER] [--only WORD] [--keep DIR]

Run by hand, with llm-compressor 0.14 or newer on the CPU (PEER: its virtual environment); tests/run does not. Writes tiny random
models with every preset scheme of compressed-tensors, with llm-compressor's modifiers, caches, rotations, targets, ways to save and
families of mixtures, and compares: `inspect --hashes` with compressed-tensors' decompress() of every weight; --dtype float32 and the
default with the model in memory, its weights replaced by these, in float64 and in the checkpoint's dtype; --activations=checkpoint
with that model's own QDQ. Ends with "N passed, N failed".
"""

import argparse
import copy
import hashlib
import itertools
import os
import sys
import tempfile
import weakref
from pathlib import Path

os.environ |= {"TQDM_DISABLE": "1", "TOKENIZERS_PARALLELISM": "false"}
import numpy as np  # noqa: E402
import tokenizers  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from compressed_tensors.compressors import BaseCompressor  # noqa: E402
from compressed_tensors.quantization import (  # noqa: E402
    QuantizationArgs, QuantizationScheme, QuantizationStatus, preset_name_to_scheme)
from compressed_tensors.quantization.quant_scheme import PRESET_SCHEMES  # noqa: E402
from datasets import Dataset  # noqa: E402
from llmcompressor import oneshot  # noqa: E402
from llmcompressor.modeling.moe.linearize import load_quantizable_moe  # noqa: E402
from llmcompressor.modifiers.gptq import GPTQModifier  # noqa: E402
from llmcompressor.modifiers.pruning.reap import REAPPruningModifier  # noqa: E402
from llmcompressor.modifiers.pruning.sparsegpt import SparseGPTModifier  # noqa: E402
from llmcompressor.modifiers.quantization import QuantizationModifier  # noqa: E402
from llmcompressor.modifiers.transform.awq import AWQModifier  # noqa: E402
from llmcompressor.modifiers.transform.quip import QuIPModifier  # noqa: E402
from llmcompressor.modifiers.transform.smoothquant import SmoothQuantModifier  # noqa: E402
from llmcompressor.modifiers.transform.spinquant import SpinQuantModifier  # noqa: E402
from loguru import logger  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
import worker_cli  # noqa: E402

TOLERANCE, CHANCE, CHANCE_QUANTISED = 1e-4, 1.30, 1.30  # few tokens
LENGTHS, VOCABULARY = (2, 40, 130, 200, 300), 320
COMMON = {"vocab_size": VOCABULARY, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4,
          "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 512, "bos_token_id": 0, "eos_token_id": 1,
          "pad_token_id": None}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 128}
LOCAL = {"num_experts_per_tok": 2, "num_local_experts": 4}
LATENT = {"q_lora_rank": 128, "kv_lora_rank": 128, "qk_rope_head_dim": 64, "qk_nope_head_dim": 64, "v_head_dim": 64,
          "num_key_value_heads": 4}
BASES = {  # name: (model_type, changes of COMMON)
    "llama": ("llama", {}), "llama, tied": ("llama", {"tie_word_embeddings": True}), "qwen2": ("qwen2", {}),
    "ragged": ("llama", {"hidden_size": 192, "intermediate_size": 320, "head_dim": 48}),
    "qwen3": ("qwen3", {"tie_word_embeddings": True}),
    "qwen3_moe": ("qwen3_moe", EXPERTS | {"num_experts": 4}), "mixtral": ("mixtral", LOCAL),
    "gpt_oss": ("gpt_oss", LOCAL | {"intermediate_size": 256, "sliding_window": 32}), "phimoe": ("phimoe", LOCAL),
    "granitemoe": ("granitemoe", LOCAL | {"logits_scaling": 4.0}),
    "glm4_moe": ("glm4_moe", EXPERTS | {"n_routed_experts": 4, "n_shared_experts": 1}),
    "deepseek_v3": ("deepseek_v3", EXPERTS | LATENT | {
        "n_routed_experts": 8, "n_group": 4, "topk_group": 2, "first_k_dense_replace": 1}),
}
IGNORED = ["lm_head", "re:.*mlp.gate$", "re:.*block_sparse_moe.gate$", "re:.*router.*"]


def quantised(scheme, **more):
    return QuantizationModifier(**{"targets": "Linear", "scheme": scheme, "ignore": IGNORED} | more)


def groups(*pairs, **more):
    """Schemes by targets: (targets, a preset's name or a scheme's parts)."""
    made = {f"g{i}": preset_name_to_scheme(s, t) if isinstance(s, str) else QuantizationScheme(targets=t, **s)
            for i, (t, s) in enumerate(pairs)}
    return QuantizationModifier(**{"config_groups": made, "ignore": IGNORED} | more)


def args(bits, kind, strategy, symmetric=True, **more):
    return QuantizationArgs(num_bits=bits, type=kind, strategy=strategy, symmetric=symmetric, **{"dynamic": False} | more)


def cases():
    """name -> (base, function that makes the recipe, options of save_pretrained)."""
    out = {f"preset {s}": ("llama", lambda s=s: quantised(s), {}) for s in PRESET_SCHEMES if s != "UNQUANTIZED"}
    out |= {f"GPTQ {s} {order}": ("llama", lambda s=s, o=order: GPTQModifier(
        targets="Linear", scheme=s, ignore=IGNORED, actorder=o), {})
            for s, order in (("W4A16", None), ("W4A16", "weight"), ("W4A16", "static"), ("W8A8", None), ("NVFP4", None), ("MXFP4", None))}
    out |= {f"AWQ {s}": ("qwen3", lambda s=s: [AWQModifier(), quantised(s)], {}) for s in ("W4A16_ASYM", "FP8_DYNAMIC")}
    out["SmoothQuant"] = "llama", lambda: [SmoothQuantModifier(smoothing_strength=0.8), quantised("W8A8")], {}
    out["SparseGPT 2:4"] = "llama", lambda: [
        SparseGPTModifier(sparsity=0.5, mask_structure="2:4"), quantised("FP8_DYNAMIC")], {}
    out["REAP"] = "qwen3_moe", lambda: [REAPPruningModifier(sparsity=0.5), quantised("W4A16")], {}
    turns = [r for n in range(1, 5) for r in itertools.combinations(("R1", "R2", "R3", "R4"), n)]
    out |= {f"SpinQuant {' '.join(r)}": ("llama", lambda r=r: [
        SpinQuantModifier(rotations=r, transform_type="hadamard"), quantised("W4A16")], {}) for r in turns}
    out["SpinQuant, ragged"] = "ragged", lambda: [
        SpinQuantModifier(rotations=turns[-1], transform_type="random-hadamard"), quantised("FP8_DYNAMIC")], {}
    out |= {f"QuIP {''.join(r)} {kind} {size}": (base, lambda r=r, k=kind, b=size: [
        QuIPModifier(rotations=r, transform_type=k, transform_block_size=b), quantised("W4A16")], {})
        for base, r, kind, size in (("llama", ["v"], "hadamard", 64), ("llama", ["u"], "random-hadamard", None),
                                    ("qwen2", ["v", "u"], "random-hadamard", None))}
    static = {"tensor": args(8, "float", "tensor"), "of heads": args(8, "float", "attn_head"), "int8": args(8, "int", "tensor", False)}
    out |= {f"K/V {name}": ("llama", lambda a=a: quantised("W4A16", kv_cache_scheme=a), {}) for name, a in static.items()}
    out["K/V, latent"] = "deepseek_v3", lambda: quantised("W4A16", kv_cache_scheme=static["tensor"]), {}
    out |= {f"attention {name}": ("llama", lambda a=a: groups((["LlamaAttention"], {"input_activations": a})), {})
            for name, a in static.items()}
    out["mixed"] = "llama", lambda: groups((["re:.*mlp.*"], "NVFP4"), (["re:.*self_attn.*_proj"], "FP8_DYNAMIC")), {}
    out["head"] = "llama", lambda: groups((["Linear"], "W4A16"), (["lm_head"], "W8A16"), ignore=[]), {}
    out |= {f"embedding, {base}": (base, lambda: groups((["Embedding", "Linear"], "W8A16"), ignore=[]), {})
            for base in ("llama", "llama, tied")}
    out["blocks, ragged"] = "ragged", lambda: groups((["Linear"], {
        "weights": args(8, "float", "block", block_structure=[128, 128])})), {}
    out["static, asymmetric"] = "llama", lambda: groups((["Linear"], {
        "weights": args(8, "int", "channel"), "input_activations": args(8, "int", "tensor", False)})), {}
    out |= {f"saved as {f}": ("llama", lambda: quantised("W8A8"), {"quantization_format": f})
            for f in ("naive-quantized", "pack-quantized")}
    out["saved in shards"] = "llama", lambda: quantised("W4A16"), {"max_shard_size": "200KB"}
    out |= {f"{base} {s}": (base, lambda s=s: quantised(s), {}) for base, s in itertools.product(
        ("mixtral", "gpt_oss", "granitemoe", "phimoe", "glm4_moe", "deepseek_v3", "qwen3_moe"), ("W4A16", "NVFP4"))}
    return out


# ---- the library's side -----------------------------------------------------------------------------

def write_base(folder, name):
    kind, changes = BASES[name]
    config = transformers.AutoConfig.for_model(kind, **COMMON | changes, dtype="bfloat16")
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn_like(parameter)
            parameter.copy_(noise * 0.08 if parameter.ndim >= 2 else parameter + noise * 0.05)
    model.save_pretrained(folder)


def logprobs(model, tokens):
    out = []
    for t in map(torch.tensor, tokens):
        with torch.no_grad():
            p = torch.log_softmax(model(t[None], use_cache=False).logits[0].double(), -1)
        out.append(p[torch.arange(len(t) - 1), t[1:]])
    return torch.cat(out).numpy()


def any_tokenizer():
    words = tokenizers.models.WordLevel({"<s>": 0}, unk_token="<s>")
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer(words), pad_token="<s>")


def copied(model):
    model = copy.deepcopy(model)
    for m in model.modules():  # a weak reference, which a copy does not follow
        if "kv_cache" in m._modules:
            m.kv_cache.attn_module = weakref.ref(m)
    return model


def own_tensors(module):
    return {name: t.data for name, t in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]}


def decompressed(model):
    """Name -> weight of every module that save_pretrained() compressed."""
    out = {}
    for name, m in model.named_modules():
        if getattr(m, "quantization_status", None) == QuantizationStatus.COMPRESSED and m.quantization_scheme.weights:
            fmt = m.quantization_scheme.format
            out[name] = BaseCompressor.get_value_from_registry(getattr(fmt, "value", fmt)).decompress(
                own_tensors(m), m.quantization_scheme)["weight"].data
    return out


def switch(models, on):
    """The models' QDQ of activations; weights are quantised already."""
    for m in itertools.chain(*(model.modules() for model in models)):
        if hasattr(m, "quantization_status"):
            m.quantization_enabled, m.quantization_status = on, QuantizationStatus.COMPRESSED


def write(folder, base, recipe, saving, tokens):
    """Writes the checkpoint. Hashes of its weights; scores in float64 and 16 bit, and with QDQ in float32 and 16 bit, or None."""
    write_base(folder / "base", base)
    with load_quantizable_moe():
        model = transformers.AutoModelForCausalLM.from_pretrained(folder / "base", dtype=torch.bfloat16)
    rng = np.random.default_rng(1)
    rows = [{"input_ids": rng.integers(0, VOCABULARY, 48).tolist(), "attention_mask": [1] * 48} for _ in range(8)]
    oneshot(model=model, recipe=recipe(), tokenizer=any_tokenizer(), dataset=Dataset.from_list(rows), num_calibration_samples=8,
            max_seq_length=48)
    for m in model.modules():  # 0.14 does not calibrate queries
        if getattr(m, "q_scale", None) is not None:
            m.q_scale.data.fill_(0.02)
    memory = copied(model.eval())
    schemes = [s for m in model.modules() if (s := getattr(m, "quantization_scheme", None))]
    model.save_pretrained(folder / "saved", **saving)
    weights = decompressed(model)
    for name, w in weights.items():
        memory.get_submodule(name).weight.data = w
    both, scores = [memory, model], [None, None]
    if any(s.input_activations for s in schemes):
        switch(both, True)
        scores = [logprobs(copied(memory).float(), tokens), logprobs(memory, tokens)]
    switch(both, False)
    scores = [logprobs(copied(memory).double(), tokens), logprobs(memory, tokens), *scores]
    digests = {hashlib.sha256(w.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest() for w in weights.values()}
    return digests, scores


# ---- the comparison ---------------------------------------------------------------------------------

def check(worker, folder, base, recipe, saving):
    tokens = [np.random.default_rng(n).integers(0, VOCABULARY, n).tolist() for n in LENGTHS]
    digests, (exact, sixteen, qdq, qdq_sixteen) = write(folder, base, recipe, saving, tokens)

    def scored(*options):
        items = [{"id": i, "tokens": t} for i, t in enumerate(tokens)]
        return np.concatenate([r["logprobs"] for r in worker_cli.score(worker, folder / "saved", items, *options)])

    missing = len(digests - {row[-1] for row in worker_cli.hashes(worker, folder / "saved").values()})
    furthest = np.abs(scored("--dtype", "float32") - exact).max()
    ours, theirs = np.abs(scored() - exact).mean(), np.abs(sixteen - exact).mean()
    wrong = [f"{missing} of {len(digests)} weights differ"] if missing else []
    wrong += ["float32 is too far from float64"] if not furthest <= TOLERANCE else []
    wrong += ["16 bit is too far from float64"] if not ours <= CHANCE * theirs else []
    text = f"{len(digests)} weights; f32 max {furthest:.1e}; 16 bit {ours:.4f} = {ours / theirs:.2f} x theirs"
    if qdq is not None:
        on = "--activations", "checkpoint"
        ours, theirs = np.abs(scored(*on) - qdq).mean(), np.abs(qdq_sixteen - qdq).mean()
        wrong += ["quantised activations are too far from theirs"] if not ours <= CHANCE_QUANTISED * theirs else []
        text += f"; QDQ {ours:.4f} = {ours / theirs:.2f} x theirs, f32 mean {np.abs(scored(*on, '--dtype', 'float32') - qdq).mean():.1e}"
    return wrong, text


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--worker", default=worker_cli.default_worker())
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--keep", help="write the checkpoints here and keep them")
    options = parser.parse_args()
    logger.remove()
    torch.set_num_threads(1)
    torch.Tensor.pin_memory = lambda self, *_: self  # AWQ pins memory even without a GPU
    failed, chosen = 0, {name: case for name, case in cases().items() if options.only in name}
    with tempfile.TemporaryDirectory() as scratch:
        for i, (name, case) in enumerate(chosen.items()):
            folder = Path(options.keep or scratch) / f"{i:03} {name}".replace("/", "")
            try:
                wrong, text = check(options.worker, folder, *case)
            except Exception as e:  # the library's refusal, or the worker's
                wrong, text = [type(e).__name__], str(e)[:200]
            failed += bool(wrong)
            print("FAIL" if wrong else "ok  ", f"{name:34}", "; ".join([*wrong, text]), flush=True)
    print(f"{len(chosen) - failed} passed, {failed} failed")
    return 1 if failed or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
