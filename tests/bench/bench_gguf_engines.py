#!/usr/bin/env python3
"""The perplexity of a GGUF file by ctworker and by llama.cpp, and where the difference comes from.

    CTWORKER=PROGRAM bench_gguf_engines.py LIBRARY MODEL.gguf TEXT [--windows 16] [--exact F32.gguf] [--threads 2]

Windows, tokens and targets are those of `ctworker-ppl --method llama.cpp-512`: windows of 512 tokens, of which the second half
counts. LIBRARY exports llama.cpp's C interface (see tests/tools/llama_cpp_scores.py). --exact: the same weights in F32, as
tests/tools/gguf_to_bf16.py --exact writes them; there, llama.cpp does not quantise activations. Prints a Markdown table: the
perplexity, and per target the mean difference of log-probabilities from ctworker's in float32, and the mean size of it.
"""

import argparse
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/tools"), str(ROOT / "harness_adapter/src")]
import worker_cli  # noqa: E402

WINDOW, FIRST = 512, 257  # as llama-perplexity -c 512


def windows_of(model, text, most):
    from ctworker.text.tokenizer import TextTokenizer

    tokenizer = TextTokenizer(model, name=model.name)
    tokens = tokenizer.encode(text, add_special_tokens=True)
    plain = tokenizer.encode(text, add_special_tokens=False)
    out = [tokens[i : i + WINDOW] for i in range(0, len(tokens) - WINDOW + 1, WINDOW)][:most]
    if tokens[:1] != plain[:1]:  # BOS is added: then it stands in place of each window's first token
        out = [tokens[:1] + window[1:] for window in out]
    return out


def targets(lines):
    return np.array([json.loads(line)["logprobs"][FIRST - 1 :] for line in lines.splitlines()]).ravel()


def run(command, text):
    done = subprocess.run([str(part) for part in command], input=text, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{command[0]}: {done.stderr.splitlines()[-1:]}")
    return targets(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library")
    parser.add_argument("model", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--windows", type=int, default=16)
    parser.add_argument("--exact", type=Path)
    parser.add_argument("--threads", type=int, default=2, help="of llama.cpp, whose threads spin: 1 on a busy machine")
    parser.add_argument("--python", default=sys.executable, help="the interpreter for the library")
    args = parser.parse_args()
    text = args.text.read_text().removesuffix("\n")
    windows = windows_of(args.model, text, args.windows)
    lines = "".join(json.dumps({"id": i, "tokens": window}) + "\n" for i, window in enumerate(windows))
    llama = [args.python, ROOT / "tests/tools/llama_cpp_scores.py", "--threads", args.threads, args.library]
    ours = [os.environ.get("CTWORKER") or worker_cli.default_worker(), "score", "--backend", "cpu", "--model", args.model, "--dtype"]
    rows = {f"ctworker, {dtype}": [*ours, dtype] for dtype in ("float32", "float16", "bfloat16")}
    rows |= {"llama.cpp, as by default: flash attention, keys and values in F16": [*llama, args.model, "--cache", "f16", "--flash"],
             "llama.cpp, keys and values in F32": [*llama, args.model]}
    if args.exact:
        rows["llama.cpp, the same weights in F32"] = [*llama, args.exact]
    print(f"{args.model.name}, {len(windows)} windows, {len(windows) * (WINDOW - FIRST)} targets\n")
    print("| | perplexity | mean difference | mean size |\n| --- | ---: | ---: | ---: |", flush=True)
    reference = None
    for name, command in rows.items():
        found = run(command, lines)
        reference = found if reference is None else reference
        difference = found - reference
        print(f"| {name} | {math.exp(-found.mean()):.6f} | {difference.mean():+.1e} | {np.abs(difference).mean():.1e} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
