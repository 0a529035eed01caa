#!/usr/bin/env python3
"""`--activations=checkpoint` against compressed-tensors' own run and the float64 model of tests/tools.

    check_activations.py [--golden DIR] [--variants]

Golden checkpoints have scores of transformers with compressed-tensors' QDQ in bf16. Checkpoints that this program writes
cover the schemes that no golden file has; there the float64 model's own 16-bit run, which agrees with golden scores to
0.0002 per token on most files, is what ours is compared with. Quantised codes are jumps, so that runs that differ only in
rounding are far apart (docs/NUMERICS.md): the mean error against float64 must be no larger than that of the other run in
the same dtype, with 10 % for chance. Also: chunks, passes and threads change no bit; results name their mode; changing a
stored scale changes the identity; unsupported schemes are refused by name. Ends with "N passed, N failed".
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
from supported import SUPPORTED  # noqa: E402

CHANCE = 1.10  # golden checkpoints
CHANCE_LOOSE = 1.25  # few tokens
# A golden mixture's tokens are few for choices of experts that jump, too: ours is 1.09 to 1.10 times as far as transformers' run there.
# On tokens drawn anew, eight times, it was 0.96 +- 0.01 times as far as the recipe's own 16-bit run, so these are compared as well.
CHANCE_MIXTURE, CHANCE_DRAWN = 1.15, 1.02
DRAWN = (40, 120, 300, 300) * 2
FEW_JUMPS = 0.1  # of the quantisation's effect. float32: a few jumps of codes where the other run has none
MOST_TOKENS = 1100  # of golden sequences
GOLDEN = "bf16_activations_quantised"
ON = ("--activations", "checkpoint")


# ---- checkpoints with schemes that no golden file has -------------------------------------------

def scheme(bits, kind, strategy, dynamic=True, **more):
    return {"num_bits": bits, "type": kind, "strategy": strategy, "dynamic": dynamic, "symmetric": True} | more


def same(value):
    """A stored number for every module; or one for each that `value` gives."""
    return value if callable(value) else lambda module: value


INT8_STATIC = scheme(8, "int", "tensor", False)
KV = {"kv_cache_scheme": scheme(8, "float", "tensor", False)}
BY_MODULE = {"q_proj": 0.02, "k_proj": 0.03, "v_proj": 0.025, "gate_proj": 0.02, "up_proj": 0.03}
# name: (family, format, input_activations, {part of a module: (dtype, value)}, more of quantization_config)
CASES = {
    "int4 group asymmetric": ("llama", "int8_channel", scheme(4, "int", "group", group_size=32, symmetric=False), {}, {}),
    "int8 token asymmetric": ("qwen3", "int8_channel", scheme(8, "int", "token", symmetric=False), {}, {}),
    "int6 group asymmetric": ("llama", "int8_channel", scheme(6, "int", "group", group_size=64, symmetric=False), {}, {}),
    "int8 static": ("phi3", "int8_channel", INT8_STATIC, {"input_scale": ("BF16", 0.03)}, {}),
    "int8 static asymmetric": ("llama", "int8_channel", INT8_STATIC | {"symmetric": False},
                               {"input_scale": ("BF16", 0.025), "input_zero_point": ("I8", -20)}, {}),
    "fp8 static, by module": ("llama", "fp8_channel", scheme(8, "float", "tensor", False),
                              {"input_scale": ("F32", lambda m: BY_MODULE.get(m.rsplit(".", 1)[1], 0.01))}, {}),
    "fp8 group, fp16": ("gemma2", "fp8_channel_fp16", scheme(8, "float", "group", group_size=64), {}, {}),
    "mxfp4": ("llama", "mxfp4", scheme(4, "float", "group", group_size=32, scale_dtype="torch.uint8"), {}, {}),
    "mxfp8, fp16": ("qwen2", "mxfp8_fp16", scheme(8, "float", "group", group_size=32, scale_dtype="torch.uint8"), {}, {}),
    "nvfp4 without dtype": ("llama", "nvfp4", scheme(4, "float", "tensor_group", False, group_size=16),
                            {"input_global_scale": ("F32", 500.0)}, {}),
    "experts, and a router that no entry names": ("granitemoe_apart", "fp8_channel", scheme(8, "float", "token"), {}, {}),
    "delta rules and K/V": ("qwen3_5_text", "int8_channel", scheme(8, "int", "token"), {}, KV),
    "delta rules by key head": ("qwen3_next", "int8_channel", scheme(8, "int", "group", group_size=32), {}, {}),
    "state spaces": ("nemotron_h", "int8_channel", scheme(8, "int", "token"), {}, {}),
    "state spaces of elements": ("jamba", "fp8_channel", scheme(8, "float", "token"), {}, {}),
    "short convolutions": ("lfm2_moe", "mxfp4", scheme(4, "float", "group", group_size=32, scale_dtype="torch.uint8"), {}, {}),
    "K/V": ("qwen3", "fp8_channel", scheme(8, "float", "token"), {}, KV),
    "K/V by head": ("qwen2", "fp8_channel", None, {}, {"kv_cache_scheme": scheme(8, "float", "attn_head", False)}),
    "K/V by head, of 12": ("qwen2", "fp8_channel", None, {}, {"kv_cache_scheme": scheme(8, "int", "attn_head", False),
                                                              "sizes": {"heads": 12, "kv_heads": 12, "head": 16}}),
    "K/V in groups": ("llama", "fp8_channel", None, {}, {"kv_cache_scheme": scheme(4, "int", "group", group_size=16, symmetric=False)}),
    "K/V in groups, FP8": ("phi3", "fp8_channel", None, {}, {"kv_cache_scheme": scheme(8, "float", "group", group_size=24)}),
    "K/V NVFP4": ("qwen3", "nvfp4", None, {}, {"kv_cache_scheme": scheme(
        4, "float", "tensor_group", "local", group_size=16, scale_dtype="torch.float8_e4m3fn")}),
    "K/V asymmetric": ("mistral", "int8_channel", None, {}, {"kv_cache_scheme": INT8_STATIC | {"symmetric": False}}),
    "K/V of latent attention": ("deepseek_v3", "fp8_channel", None, {}, {"kv_cache_scheme": INT8_STATIC | {"symmetric": False}}),
    "K/V of sparse attention": ("deepseek_v32", "fp8_channel", None, {}, {"kv_cache_scheme": scheme(8, "int", "attn_head", False)}),
    "latent attention in groups": ("deepseek_v2_lite", "fp8_channel", None, {}, {
        "attention": scheme(4, "int", "group", group_size=8), "targets": "DeepseekV2Attention"}),
    "attention": ("qwen3", "fp8_channel", scheme(8, "float", "token"), {}, {"attention": scheme(8, "float", "tensor", False)}),
    "attention by head, asymmetric": ("ministral3", "fp8_channel", None, {}, {
        "attention": scheme(8, "int", "attn_head", False, symmetric=False), "targets": "Ministral3Attention"}),
    "attention in groups, shared keys": ("gemma4_e", "fp8_channel", None, {}, {
        "attention": scheme(8, "float", "group", group_size=16)}),
    "K/V, shared": ("gemma4_e", "fp8_channel", None, {}, KV | {"kv_cache_scheme": INT8_STATIC}),
}
# name: (format, input_activations, more, words of the refusal)
REFUSED = {
    "dynamic tensor": ("fp8_channel", scheme(8, "float", "tensor"), {}, "depend on its batch"),
    "static group": ("fp8_channel", scheme(8, "float", "group", False, group_size=64), {}, "static scales of groups"),
    "fp6": ("fp8_channel", scheme(6, "float", "group", group_size=32), {}, "8 and 4 bits"),
    "group of 7": ("fp8_channel", scheme(8, "float", "group", group_size=7), {}, "do not divide"),
    "no scale": ("fp8_channel", scheme(8, "float", "tensor", False), {}, "no tensor model.layers.0.self_attn.q_proj.input_scale"),
    "K/V by head, dynamic": ("fp8_channel", None, {"kv_cache_scheme": scheme(8, "float", "attn_head")}, "not supported"),
    "K/V by head, no scales": ("fp8_channel", None, {"kv_cache_scheme": scheme(8, "float", "attn_head", False), "heads": 1},
                               "of 2 numbers"),
    "K/V dynamic": ("fp8_channel", None, {"kv_cache_scheme": scheme(8, "float", "token")}, "depend on the tokens after it"),
    "K/V of a batch": ("fp8_channel", None, {"kv_cache_scheme": scheme(8, "float", "tensor")}, "depend on its batch"),
    "K/V, groups of 32": ("fp8_channel", None, {"kv_cache_scheme": scheme(8, "int", "group", group_size=32)}, "do not divide the 48"),
    "K/V of latents by head": ("fp8_channel", None, {"kv_cache_scheme": scheme(8, "int", "attn_head", False), "family": "deepseek_v3"},
                               "have no heads"),
    "attention, no scale": ("fp8_channel", None, {"attention": scheme(8, "float", "tensor", False), "kinds": "kv"}, "q_scale"),
    "attention, dynamic": ("fp8_channel", None, {"attention": scheme(8, "float", "token")}, "depend on the tokens after it"),
    "attention of no module": ("fp8_channel", None, {"attention": scheme(8, "float", "tensor", False), "targets": "re:.*mlp$"},
                               "no linear layers and no attention"),
    "outputs": ("fp8_channel", None, {"output": scheme(8, "float", "token")}, "quantised outputs"),
}


def heads_numbers(args, which, heads):
    """{part of an attention module: (dtype, values)} that the scheme of keys ("k"), values or queries needs."""
    if args["dynamic"]:
        return {f"{which}_global_scale": ("F32", np.array([400.0], np.float32))} if args["dynamic"] == "local" else {}
    if args["strategy"] == "attn_head":
        scales, zeros = (0.02 * np.arange(1, heads + 1)).astype(np.float32).reshape(-1, 1, 1), np.arange(heads) - 20
    else:
        scales, zeros = np.array([0.015 if which == "v" else 0.02], np.float32), np.array([-30])
    out = {f"{which}_scale": ("F32" if heads > 4 else "BF16", scales)}
    return out if args["symmetric"] else out | {f"{which}_zero_point": ("I8", zeros.astype(np.int8).reshape(scales.shape))}


def add_attention(tensors, module, config, more):
    """The numbers of an attention module, if its keys, values or queries are quantised."""
    args = more.get("attention") or more.get("kv_cache_scheme")
    for which in more.get("kinds", "kvq" if "attention" in more else "kv") if args else "":
        heads = config["num_attention_heads"] if which == "q" else more.get("heads") or config["num_key_value_heads"]
        tensors |= {f"{module}.{part}": content for part, content in heads_numbers(args, which, heads).items()}


def write(folder, family, fmt, activations, stored, more):
    tiny_checkpoint.write(folder, family, fmt, seed=5, **more.get("sizes", {}))
    config = json.loads((folder / "config.json").read_text())
    tensors = reference_model.read_folder(folder)
    quantised = [n.removesuffix(".weight_scale") for n in tensors if n.endswith(".weight_scale")]
    for group in config["quantization_config"]["config_groups"].values():
        group |= {"input_activations": activations, "output_activations": more.get("output")}
    config["quantization_config"] |= {k: v for k, v in more.items() if k == "kv_cache_scheme"}
    ignore = config["quantization_config"]["ignore"]  # a router's module, not what files call its matrix
    config["quantization_config"]["ignore"] = [name.removesuffix(".layer") for name in ignore]
    if "attention" in more:
        config["quantization_config"]["config_groups"]["attention"] = {
            "format": "dense", "targets": [more.get("targets", "re:.*self_attn$")], "weights": None,
            "input_activations": more["attention"], "output_activations": None}
    for module in quantised:
        for part, (dtype, value) in stored.items():
            tensors[f"{module}.{part}"] = dtype, np.array([same(value)(module)], np.float32)
        if ".self_attn." in module:
            add_attention(tensors, module.rsplit(".", 1)[0], config, more)
    cio.write_json(folder / "config.json", config)
    cio.write_safetensors(folder / "model.safetensors", [
        cio.Batch([(name, dtype, raw.shape)], lambda d=dtype, r=raw: [cio.encode(r, d) if d in ("BF16", "F32") and r.dtype == np.float32
                                                                      else r])
        for name, (dtype, raw) in tensors.items()])


# ---- checks -------------------------------------------------------------------------------------

def joined(runs):
    return np.concatenate([np.asarray(r) for r in runs])


def scored(worker, folder, tokens, *options):
    items = [{"id": i, "tokens": t} for i, t in enumerate(tokens)]
    return [r["logprobs"] for r in worker_cli.score(worker, folder, items, "--threads", "1", *options)]


def compare(worker, folder, tokens, other, kind, variants, chance):
    """Texts of what is wrong, and what was found. other: another 16-bit run's scores; None: the float64 model's own."""
    plain = reference_model.Model(str(folder))

    def reference(dtype, quantise=True):
        model = reference_model.Model(str(folder), activations=dtype, quantise=quantise, like=plain)
        return joined(model.score(t)[0] for t in tokens)

    exact, wrong, found = reference(None), [], []
    effect = np.abs(exact - reference(None, False)).mean()
    sixteen = np.abs((reference(kind) if other is None else other) - exact).mean()
    f32 = np.abs(reference("F32") - exact).mean()
    for variant in variants:
        options = (*ON, "--cpu-variant", variant)
        whole = scored(worker, folder, tokens, "--dtype", "auto", *options)
        ours, ours_f32 = (np.abs(joined(x) - exact).mean() for x in (
            whole, scored(worker, folder, tokens, "--dtype", "float32", *options)))
        found.append(f"{variant}: 16 bit {ours:.4f}, expected {sixteen:.4f}; f32 {ours_f32:.4f}, expected {f32:.4f}")
        if not ours <= chance * sixteen or not ours_f32 <= chance * f32 + FEW_JUMPS * effect:
            wrong.append(f"{variant} is too far from float64")
        if not ours_f32 < 0.75 * effect:  # a run without quantised activations is as far as their effect
            wrong.append(f"{variant} is as far from float64 as a run without quantised activations, {effect:.4f}")
        cut = scored(worker, folder, tokens[::-1], "--dtype", "auto", *options, "--chunk-tokens", "7", "--pass-tokens", "64")
        if cut[::-1] != whole:
            wrong.append(f"{variant}: other bits in chunks of 7, in another order")
        if scored(worker, folder, tokens, "--dtype", "auto", "--cpu-variant", variant) == whole:
            wrong.append(f"{variant}: the option changes nothing")
    return wrong, f"effect {effect:.4f}; " + "; ".join(found)


def identities(worker, folder):
    """(weight-only identity, identity with activations), and the mode that inspect says."""
    out = []
    for options in ((), ON):
        told = json.loads(worker_cli.run(worker, "inspect", "--identity", "--json", *options, folder))
        out.append((told["identity"], told["activations_mode"]))
    return out


def check_golden(worker, folder, variants):
    with open(folder / "golden.json", encoding="utf-8") as f:
        sequences = [s for s in json.load(f)["sequences"] if len(s["tokens"]) <= MOST_TOKENS]
    mixture = "moe" in folder.name
    wrong, text = compare(worker, folder, [s["tokens"] for s in sequences], joined(s[GOLDEN] for s in sequences), "BF16", variants,
                          CHANCE_MIXTURE if mixture else CHANCE)
    if mixture:
        rng, all_tokens = np.random.default_rng(0), joined(s["tokens"] for s in sequences)
        drawn = [rng.choice(all_tokens, n).tolist() for n in DRAWN]
        more, about = compare(worker, folder, drawn, None, "BF16", variants[-1:], CHANCE_DRAWN)
        wrong, text = wrong + more, f"{text}; drawn tokens: {about}"
    return wrong, text


def check_written(worker, folder, case, variants):
    family, fmt, activations, stored, more = case
    write(folder, family, fmt, activations, stored, more)
    rng = np.random.default_rng(3)
    tokens = [rng.integers(0, 300, n).tolist() for n in (2, 3, 17, 64, 150, 200)]
    wrong, text = compare(worker, folder, tokens, None, "F16" if "fp16" in fmt else "BF16", variants, CHANCE_LOOSE)
    (plain, off), (full, on) = identities(worker, folder)
    covered = bool(stored) or fmt == "nvfp4" or any(
        not more.get(k, {"dynamic": True})["dynamic"] for k in ("kv_cache_scheme", "attention"))
    if (off, on) != ("none", "checkpoint") or (plain != full) != covered:
        wrong.append(f"modes {off}, {on}; identities {'equal' if plain == full else 'differ'}")
    return wrong, text


def check_refused(worker, folder, case):
    fmt, activations, more, words = case
    write(folder, more.get("family", "llama"), fmt, activations, {}, more)
    scored(worker, folder, [[1, 2, 3]])
    try:
        scored(worker, folder, [[1, 2, 3]], *ON)
    except worker_cli.Refused as e:
        good = e.code == 65 and words in e.message and "--activations=none" in e.message
        return [] if good else ["another message"], e.message
    return ["not refused"], ""


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--golden", type=Path)
    parser.add_argument("--worker", default=worker_cli.default_worker())
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--variants", action="store_true", help="all CPU variants that this machine runs")
    args = parser.parse_args()
    machine = worker_cli.machine_variants(args.worker)
    variants = machine if args.variants else machine[-1:]
    jobs = []
    for folder in sorted(args.golden.iterdir()) if args.golden else ():
        if folder.name in SUPPORTED and GOLDEN in (folder / "golden.json").read_text():
            jobs.append((folder.name, check_golden, folder, ()))
    with tempfile.TemporaryDirectory() as scratch:
        for checks, function, more in ((CASES, check_written, (variants,)), (REFUSED, check_refused, ())):
            jobs += [(name, function, Path(scratch) / f"{function.__name__}{i}", (case, *more))
                     for i, (name, case) in enumerate(checks.items())]
        jobs = [(n, f, d, a or (variants,)) for n, f, d, a in jobs if args.only in n]
        return worker_cli.run_checks(args.worker, jobs)


if __name__ == "__main__":
    sys.exit(main())
