#!/usr/bin/env python3
"""Decoded weights of the golden checkpoints against compressed-tensors' own decompress().

    CTWORKER_GOLDEN=DIR check_hashes.py CTWORKER [OPTION ..]

OPTIONs go to `ctworker inspect` (--backend cuda: the GPU's decoding).

Every checkpoint is opened with both of its configurations. If its format and family are listed below,
every weight must have the hash in golden.json; otherwise the checkpoint must be refused with exit code 65
and one line that names the unsupported feature. Prints one line per checkpoint; exit code 1 if any fails.
"""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

CONFIGS = ("config.json", "config.transformers4.json")
FAMILIES = {"LlamaForCausalLM", "MistralForCausalLM", "Phi3ForCausalLM",
            "Qwen2ForCausalLM", "Qwen3ForCausalLM"}
FORMATS = {"dense", "pack-quantized", "nvfp4-pack-quantized"}


def formats(config):
    """The formats that quantization_config names."""
    quantization = config.get("quantization_config")
    if quantization is None:
        return {"dense"}
    named = {group.get("format") or quantization["format"]
             for group in quantization["config_groups"].values()}
    return named


def unsupported(config):
    """Words, one of which the refusal must contain; empty: the checkpoint is supported."""
    words = [a for a in config["architectures"] if a not in FAMILIES]
    return words or sorted(formats(config) - FORMATS)


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
        golden = json.load(f)["weights"]
    result = run(ctworker, folder, config_name, options)
    words = unsupported(config)
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
    for name in sorted(golden.keys() | found.keys()):
        if golden.get(name) != found.get(name):
            return f"{name}: found {found.get(name)}, expected {golden.get(name)}", ""
    return None, f"{len(found)} weights"


def main():
    root = os.environ.get("CTWORKER_GOLDEN")
    if len(sys.argv) < 2 or not root:
        print(__doc__.strip(), file=sys.stderr)
        return 64
    names = sorted(d for d in os.listdir(root)
                   if os.path.exists(os.path.join(root, d, "golden.json")))
    bad = equal = refused = 0

    def both(name):
        return [check(sys.argv[1], os.path.join(root, name), c, sys.argv[2:]) for c in CONFIGS]

    with ThreadPoolExecutor(min(8, os.cpu_count())) as pool:
        found = list(pool.map(both, names))
    for name, outcomes in zip(names, found):
        for config, (wrong, _) in zip(CONFIGS, outcomes):
            if wrong:
                bad += 1
                print(f"{name}: FAILED with {config}: {wrong}")
        if not any(wrong for wrong, _ in outcomes):
            word = outcomes[0][1]
            refused += word == "refused"
            equal += word != "refused"
            print(f"{name}: {word}, both configurations")
    print(f"{equal} checkpoints equal, {refused} refused")
    print(f"{len(names) * len(CONFIGS) - bad} passed, {bad} failed")
    return 1 if bad or not equal else 0


if __name__ == "__main__":
    sys.exit(main())
