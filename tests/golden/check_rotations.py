#!/usr/bin/env python3
"""Rotations of activations (transform_config) against the float64 model of tests/tools.

Writes checkpoints whose configuration rotates inputs, outputs, queries and keys, with the matrices as compressed-tensors stores
them: beside each module, once for all that share it, or not at all (Sylvester's). Their weights are not rotated back, so that a
rotation that is left out, transposed or scaled otherwise changes every score. --dtype float32 must be within 1e-4 of float64; the mean
error of --dtype auto no larger than that of the float64 model's own 16-bit run, with 10 % for chance. Chunks, order and passes
change no bit; changing a matrix changes the identity; unsupported rotations are refused by name. Ends with "N passed, N failed".
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before importing numpy: checkpoints run in parallel
import numpy as np  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
import checkpoint_io as cio  # noqa: E402
import reference_model  # noqa: E402
import tiny_checkpoint  # noqa: E402
import worker_cli  # noqa: E402

TOLERANCE, CHANCE = 1e-4, 1.10
LOOSE = 1.25  # with quantised activations, whose codes jump


def paley12():
    """A Hadamard matrix of 12 rows, which no power of two gives."""
    q = 11
    squares = {i * i % q for i in range(1, q)}
    jacobsthal = [[0 if i == j else 1 if (j - i) % q in squares else -1 for j in range(q)] for i in range(q)]
    s = np.zeros((12, 12))
    s[0, 1:], s[1:, 0], s[1:, 1:] = 1, -1, jacobsthal
    return s + np.eye(12)


def hadamard(size, rng):
    """As random_hadamard_matrix(): signs of rows, sums and differences, and a known matrix."""
    m = paley12() if size % 12 == 0 else np.ones((1, 1))
    while len(m) < size:
        m = np.block([[m, m], [m, -m]])
    return m * rng.choice([-1.0, 1.0], (size, 1))


def use(targets, location, inverse=False, ignore=()):
    return {"targets": [targets] if isinstance(targets, str) else targets, "location": location, "inverse": inverse,
            "ignore": list(ignore)}


def scheme(kind, *uses, **more):
    return {"type": kind, "apply": list(uses), "randomize": False, "requires_grad": False, "head_dim": None,
            "precision": "torch.float32"} | more


HEAD = ("lm_head",)
WEIGHTS = (use("Linear", "weight_input", True), use("Linear", "weight_output"))  # in the weights: nothing to do
Q, DOWN, LAYER_0 = "model.layers.0.self_attn.q_proj", "model.layers.0.mlp.down_proj", "model.layers.0.mlp.up_proj"
# name: (family, format, transforms, {tensor: (kind, size)}, options of the worker); tensors "MODULE.TRANSFORM_LOCATION.PART"
CASES = {
    "R4": ("llama", "bf16", {"R4": scheme("hadamard", use("re:.*down_proj$", "input"), *WEIGHTS, head_dim=64)}, {}, ()),
    "R4, stored": ("llama_bias", "w4a16_g32", {"R4": scheme("random-hadamard", use(["re:.*down_proj$"], "input"), head_dim=64)},
                   {DOWN + ".R4_input.weight": ("hadamard, F64", 64)}, ()),
    "R4, transposed, fp16": ("llama", "nvfp4_fp16",
                             {"R4": scheme("random-hadamard", use("re:.*down_proj$", "input", True), head_dim=32)},
                             {f"model.layers.{i}.mlp.down_proj.R4_input.weight": ("hadamard", 32) for i in range(2)}, ()),
    "QuIP": ("qwen2", "w4a16_g32", {
        "v": scheme("random-hadamard", use("Linear", "input", ignore=HEAD), *WEIGHTS),
        "u": scheme("random-hadamard", use("Linear", "output", True, ignore=HEAD), *WEIGHTS)},
        {Q + ".v_input.weight": ("hadamard", 192), DOWN + ".v_input.weight": ("matrix", 320), Q + ".u_output.weight": ("hadamard", 192),
         "model.layers.0.self_attn.k_proj.u_output.weight": ("hadamard", 96), LAYER_0 + ".u_output.weight": ("matrix", 320)}, ()),
    "QuIP, the head, by blocks": ("llama_tied", "bf16", {"v": scheme("hadamard", use("Linear", "input"), head_dim=16),
                                                         "u": scheme("hadamard", use("re:.*layers.*_proj$", "output", True), head_dim=16)},
                                  {}, ()),
    "permuted": ("qwen3", "fp8_channel", {"a": scheme("hadamard", use("re:.*(q|k|v)_proj$", "input"), head_dim=64, randomize=True)},
                 {Q + ".a_input.weight": ("sylvester", 64), Q + ".a_input.perm": ("perm", 64)}, ()),
    "random matrices": ("mistral_swa", "int8_channel", {"m": scheme("random-matrix", use("re:.*o_proj$", "input"),
                                                                    use("re:.*k_proj$", "output", True), head_dim=48)},
                        {"model.layers.1.self_attn.o_proj.m_input.weight": ("matrix, F64", 48),
                         "model.layers.0.self_attn.k_proj.m_output.weight": ("matrix", 48)}, ()),
    "R3": ("qwen3", "bf16", {"R3": scheme("hadamard", use("re:.*self_attn$", "q_attn"), use("Qwen3Attention", "k_cache"), head_dim=16)},
           {}, ()),
    "R3, K/V quantised": ("qwen3", "fp8_channel", {"R3": scheme("hadamard", use("re:.*self_attn$", "q_attn"),
                                                                use("re:.*self_attn$", "k_cache"), head_dim=48 // 3)},
                          {f"model.layers.{i}.self_attn.{which}_scale": ("scale", size) for i in range(2) for which, size in (
                              ("k", 0.04), ("v", 0.015))}, ("--activations", "checkpoint")),
    "R3 of keys alone, shared keys": ("gemma4_e", "bf16", {"R3": scheme("random-hadamard", use("re:.*self_attn$", "k_cache"), head_dim=16)},
                                      {"model.layers.0.self_attn.R3_k_cache.weight": ("hadamard", 16)}, ()),
    "fused": ("phi3", "bf16", {"u": scheme("hadamard", use(["re:.*qkv_proj", "re:.*gate_up_proj"], "output"), head_dim=16),
                               "v": scheme("hadamard", use(["re:.*qkv_proj", "re:.*gate_up_proj"], "input"), head_dim=64)}, {}, ()),
    "norms around branches": ("gemma2", "bf16", {"u": scheme("hadamard", use("re:.*(o|down|up|q)_proj", "output"), head_dim=32)}, {}, ()),
    "experts": ("mixtral", "w4a16_g32", {"v": scheme("hadamard", use("re:.*experts.*w[123]$", "input"), head_dim=32)}, {}, ()),
    "R4, quantised": ("llama", "fp8_channel", {"R4": scheme("hadamard", use("re:.*(down|gate|q)_proj$", "input"), head_dim=64)}, {},
                      ("--activations", "checkpoint")),
}
# name: (family, transforms, {tensor: (kind, size)}, words of the refusal)
REFUSED = {
    "no matrix": ("llama", {"R4": scheme("random-hadamard", use("re:.*down_proj", "input"))}, {}, "has no matrix for it"),
    "no power of two": ("llama", {"R4": scheme("hadamard", use("re:.*down_proj", "input"))}, {}, "not a power of two"),
    "no permutation": ("llama", {"R4": scheme("hadamard", use("re:.*down_proj", "input"), head_dim=64, randomize=True)}, {}, "\"perm\""),
    "several": ("llama", {"R4": scheme("random-hadamard", use(["re:.*down_proj", "re:.*up_proj"], "input"), head_dim=64)},
                {DOWN + ".R4_input.weight": ("hadamard", 64), LAYER_0 + ".R4_input.weight": ("hadamard", 64)}, "several that it might be"),
    "an inverse": ("llama", {"m": scheme("random-matrix", use("re:.*o_proj", "input"), use("re:.*up_proj", "input", True), head_dim=64)},
                   {"model.layers.0.self_attn.o_proj.m_input.weight": ("matrix", 64)}, "has no matrix for it"),
    "another size": ("llama", {"R4": scheme("hadamard", use("re:.*down_proj", "input"), head_dim=64)},
                     {DOWN + ".R4_input.weight": ("hadamard", 32)}, "is not F64, F32, BF16 or F16 [size, size]"),
    "no divisor": ("llama", {"R4": scheme("hadamard", use("re:.*down_proj", "input"), head_dim=128)}, {}, "does not divide its width"),
    "twice": ("llama", {"a": scheme("hadamard", use("Linear", "input", ignore=HEAD), head_dim=64),
                        "b": scheme("hadamard", use("re:.*up_proj", "input"), head_dim=64)}, {}, "rotated twice"),
    "an embedding": ("llama", {"a": scheme("hadamard", use("Embedding", "output"), head_dim=64)}, {}, "this kind of module"),
    "a block": ("llama", {"a": scheme("hadamard", use("re:.*mlp", "input"), head_dim=64)}, {}, "layers.0.mlp: rotations of this kind"),
    "a norm": ("llama", {"a": scheme("hadamard", use("re:.*(up_proj|layernorm)", "input"), head_dim=64)}, {},
               "input_layernorm: rotations of this kind"),
    "logits": ("llama", {"a": scheme("hadamard", use("lm_head", "output"), head_dim=4)}, {}, "logits are not supported"),
    "nothing": ("llama", {"a": scheme("hadamard", use("re:.*wq$", "input"), head_dim=64)}, {}, "has no such module"),
    "a router": ("mixtral", {"a": scheme("hadamard", use("Linear", "input"), head_dim=64)}, {}, "rotations of routers"),
    "outputs of experts": ("mixtral", {"a": scheme("hadamard", use("re:.*experts.*w[123]$", "output"), head_dim=64)}, {},
                           "inputs of experts"),
    "parts of a fused module": ("phi3", {"a": scheme("hadamard", use("re:.*qkv_proj", "output"), head_dim=128)}, {}, "span several parts"),
    "an unused matrix": ("llama", {"a": scheme("hadamard", use("re:.*up_proj", "input"), head_dim=64)},
                         {DOWN + ".a_input.weight": ("hadamard", 64)}, "no use"),
    "another place": ("llama", {"a": scheme("hadamard", use("Linear", "v_cache"))}, {}, "\"v_cache\" is not supported"),
    "another type": ("llama", {"a": scheme("fourier", use("Linear", "input"))}, {}, "\"fourier\" is not supported"),
}


def made(kind, size, rng):
    if kind.endswith(", F64"):  # as llm-compressor stores them
        return "F64", made(kind[:-5], size, rng)[1].astype(np.float64)
    if kind == "scale":
        return "F32", np.array([size], np.float32)
    if kind == "perm":
        return "I64", rng.permutation(size).astype(np.int64)
    if kind == "matrix":
        return "F32", (rng.standard_normal((size, size)) / np.sqrt(size)).astype(np.float32)
    return "F32", (hadamard(size, rng) if kind == "hadamard" else hadamard(size, rng) * hadamard(size, rng)[:, :1] ** 0).astype(np.float32)


def write(folder, family, fmt, transforms, stored):
    tiny_checkpoint.write(folder, family, fmt, seed=5)
    rng = np.random.default_rng(11)
    tensors = reference_model.read_folder(folder) | {name: made(*what, rng) for name, what in stored.items()}
    cio.write_safetensors(folder / "model.safetensors", [
        cio.Batch([(name, dtype, raw.shape)], lambda r=raw: [r]) for name, (dtype, raw) in tensors.items()])
    config = json.loads((folder / "config.json").read_text())
    dense = {"quant_method": "compressed-tensors", "quantization_status": "compressed", "config_groups": {}}
    config["quantization_config"] = config.get("quantization_config", dense) | {"transform_config": {"config_groups": transforms}}
    if any(name.endswith("k_scale") for name in stored):
        config["quantization_config"]["kv_cache_scheme"] = {
            "num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
    cio.write_json(folder / "config.json", config)


def joined(runs):
    return np.concatenate([np.asarray(r) for r in runs])


def scored(worker, folder, tokens, *options):
    items = [{"id": i, "tokens": t} for i, t in enumerate(tokens)]
    return [r["logprobs"] for r in worker_cli.score(worker, folder, items, "--threads", "2", *options)]


def check_written(worker, folder, case, variants):
    family, fmt, transforms, stored, more = case
    write(folder, family, fmt, transforms, stored)
    rng, quantise = np.random.default_rng(3), bool(more)
    tokens = [rng.integers(0, 300, n).tolist() for n in (2, 3, 17, 64, 150, 300)]

    def reference(dtype):
        model = reference_model.Model(str(folder), activations=dtype, quantise=quantise)
        return joined(model.score(t)[0] for t in tokens)

    exact, wrong, found = reference(None), [], []
    sixteen = np.abs(reference("F16" if "fp16" in fmt else "BF16") - exact).mean()
    for variant in variants:
        options = (*more, "--cpu-variant", variant)
        whole = scored(worker, folder, tokens, *options)
        ours = np.abs(joined(whole) - exact).mean()
        f32 = np.abs(joined(scored(worker, folder, tokens, "--dtype", "float32", *options)) - exact).max()
        found.append(f"{variant}: f32 max {f32:.1e}; 16 bit {ours:.4f} = {ours / sixteen:.2f} x reference")
        if not ours <= (LOOSE if quantise else CHANCE) * sixteen or (not f32 <= TOLERANCE and not quantise):
            wrong.append(f"{variant} is too far from float64")
        cut = scored(worker, folder, tokens[::-1], *options, "--chunk-tokens", "7", "--pass-tokens", "64")
        if cut[::-1] != whole:
            wrong.append(f"{variant}: other bits in chunks of 7, in another order")
    return wrong + check_identity(worker, folder, stored), "; ".join(found)


def check_identity(worker, folder, stored):
    """A matrix with another sign is another checkpoint."""
    def identity():
        return json.loads(worker_cli.run(worker, "inspect", "--identity", "--json", folder))["identity"]

    if not any(".weight" in name for name in stored):
        return []
    before, tensors = identity(), reference_model.read_folder(folder)
    name = next(n for n in stored if n.endswith(".weight"))
    dtype, raw = tensors[name]
    tensors[name] = dtype, -raw
    cio.write_safetensors(folder / "model.safetensors", [
        cio.Batch([(name, dtype, raw.shape)], lambda r=raw: [r]) for name, (dtype, raw) in tensors.items()])
    return [] if identity() != before else ["the identity does not cover a matrix"]


def check_refused(worker, folder, case):
    family, transforms, stored, words = case
    write(folder, family, "bf16", transforms, stored)
    try:
        scored(worker, folder, [[1, 2, 3]])
    except worker_cli.Refused as e:
        return [] if e.code == 65 and words in e.message else ["another message"], e.message
    return ["not refused"], ""


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--worker", default=worker_cli.default_worker())
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--variants", action="store_true", help="all CPU variants that this machine runs")
    args = parser.parse_args()
    machine = worker_cli.machine_variants(args.worker)
    variants = machine if args.variants else machine[-1:]
    with tempfile.TemporaryDirectory() as scratch:
        jobs = [(name, function, Path(scratch) / f"{function.__name__}{i}", (case, *more))
                for checks, function, more in ((CASES, check_written, (variants,)), (REFUSED, check_refused, ()))
                for i, (name, case) in enumerate(checks.items()) if args.only in name]
        return worker_cli.run_checks(args.worker, jobs)


if __name__ == "__main__":
    sys.exit(main())
