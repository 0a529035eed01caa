#!/usr/bin/env python3
"""Decoded weights of the golden checkpoints against compressed-tensors' own decompress().

    CTWORKER_GOLDEN=DIR[:DIR ..] check_hashes.py CTWORKER [OPTION ..]

OPTIONs go to `ctworker inspect` (--backend cuda: the GPU's decoding).

Every checkpoint is opened with each of its configurations. If supported.py lists it, every weight must have the
hash in golden.json; otherwise the checkpoint must be refused with exit code 65 and one line that names the
unsupported feature. Prints one line per checkpoint; exit code 1 if any fails.
"""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from supported import SUPPORTED, configs_of

FORMATS = {"dense", "pack-quantized", "nvfp4-pack-quantized", "float-quantized", "int-quantized", "naive-quantized",
           "mxfp4-pack-quantized", "mxfp6-pack-quantized", "mxfp8-quantized"}
# What a refusal names, if it is neither the architecture nor a format.
REFUSED_FOR = {"granitemoehybrid-dense": ["num_local_experts"],
               "granitehybrid-dense": ['"linear_attention"', '"mamba"']}
# Names in the files that golden.json does not give.
IN_FILE = {"gptneox-dense": {"lm_head.weight": "embed_out.weight"}, "mixtral-dense": {
    f"model.layers.{i}.mlp.experts.{e}.{name}_proj.weight": f"model.layers.{i}.block_sparse_moe.experts.{e}.{w}.weight"
    for i in range(2) for e in range(4) for name, w in (("gate", "w1"), ("up", "w3"), ("down", "w2"))}}

# Ends of names of F32 matrices, which golden.json does not list.
WIDE = {"hy_v4-dense": ("lm_head.weight", ".indexer.weights_proj.weight")}


def formats(config):
    """The formats that quantization_config names."""
    quantization = config.get("quantization_config")
    if quantization is None:
        return {"dense"}
    if "config_groups" not in quantization:
        return {quantization["quant_method"]}
    return {group.get("format") or quantization["format"]
            for group in quantization["config_groups"].values()}


def refused_for(name, config):
    """Words, one of which the refusal of a checkpoint must contain; empty: it is supported."""
    if name in SUPPORTED:
        return []
    return [*REFUSED_FOR.get(name, []), *config["architectures"], *sorted(formats(config) - FORMATS)]


def is_parameter(name):
    """Of a router, or of the gates of an indexer's pools."""
    return name.endswith((".index_kpool_compress_gate.weight", ".gate.weight", ".gate.wg.weight", ".router.weight", ".router.layer.weight"))


def run(ctworker, folder, config, options):
    # inspect must use these settings alone, not settings of the environment.
    env = {k: v for k, v in os.environ.items() if not k.startswith("CTW_")}
    return subprocess.run([ctworker, "inspect", "--hashes", "--config", config, *options, folder],
                          capture_output=True, text=True, timeout=300, env=env)


def check(ctworker, folder, config_name, options):
    """None, or a description of the error; and a word for the printed line."""
    with open(os.path.join(folder, config_name), encoding="utf-8") as f:
        config = json.load(f)
    with open(os.path.join(folder, "golden.json"), encoding="utf-8") as f:
        golden = json.load(f)
    # A tied head has no tensor of its own, and is listed as lm_head.weight.
    in_file = {name: file for name, file in golden.get("names_in_file", {}).items()
               if name != "lm_head.weight" or file.endswith(("head.weight", ".unembed.weight"))}
    in_file |= IN_FILE.get(os.path.basename(folder), {})
    golden = {in_file.get(name, name): entry for name, entry in golden["weights"].items()}
    result = run(ctworker, folder, config_name, options)
    words = refused_for(os.path.basename(folder), config)
    if words:
        last = result.stderr.strip().splitlines()[-1:] or ["nothing"]
        if result.returncode != 65 or result.stdout:
            return f"expected a refusal, got exit code {result.returncode}: {last[0]}", ""
        if not any(word in last[0] for word in words):
            return f"the refusal names none of {words}: {last[0]}", ""
        return None, "refused"
    if result.returncode != 0:
        return f"exit code {result.returncode}: {result.stderr.strip()}", ""
    found = {}
    for line in result.stdout.splitlines():
        name, n, k, dtype, sha256 = line.split()
        if name in found:
            return f"{name} is listed twice", ""
        found[name] = {"shape": [int(n), int(k)], "dtype": dtype, "sha256": sha256}
    # Golden files list a stack of experts as one tensor, no router or gate that transformers keeps as a bare parameter.
    stacks = {name for name, entry in golden.items() if len(entry["shape"]) == 3}
    listed = {name for name in found if not name.endswith("]") and (name in golden or not is_parameter(name))}
    listed = {name for name in listed if not name.endswith(WIDE.get(os.path.basename(folder), ()))}
    for name in sorted((golden.keys() - stacks) | listed):
        if golden.get(name) != found.get(name):
            return f"{name}: found {found.get(name)}, expected {golden.get(name)}", ""
    return None, f"{len(found)} weights"


def main():
    root = os.environ.get("CTWORKER_GOLDEN")
    if len(sys.argv) < 2 or not root:
        print(__doc__.strip(), file=sys.stderr)
        return 64
    folders = sorted((os.path.join(r, d) for r in root.split(":") for d in os.listdir(r)
                      if os.path.exists(os.path.join(r, d, "golden.json"))), key=os.path.basename)
    passed = bad = equal = refused = 0

    def all_configs(folder):
        return [(c, *check(sys.argv[1], folder, c, sys.argv[2:])) for c in configs_of(folder)]

    with ThreadPoolExecutor(min(8, os.cpu_count())) as pool:
        found = list(pool.map(all_configs, folders))
    for folder, outcomes in zip(folders, found):
        name, wrong = os.path.basename(folder), [o for o in outcomes if o[1]]
        for config, what, _ in wrong:
            print(f"{name}: FAILED with {config}: {what}")
        bad += len(wrong)
        passed += len(outcomes) - len(wrong)
        if not wrong:
            word = outcomes[0][2]
            refused += word == "refused"
            equal += word != "refused"
            print(f"{name}: {word}, {len(outcomes)} configurations")
    print(f"{equal} checkpoints equal, {refused} refused")
    print(f"{passed} passed, {bad} failed")
    return 1 if bad or not equal else 0


if __name__ == "__main__":
    sys.exit(main())
