#!/usr/bin/env python3
"""The Python parts of quickstart.sh: the length of a window, and the report."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import textwrap
from pathlib import Path

from ctworker.base.tables import number, render, size

LONGEST = 2048  # tokens of a window, as in most published numbers


def context(program, model):
    """The window for this model. Raises SystemExit with the program's message."""
    done = subprocess.run([program, "inspect", model, "--json"], stdout=subprocess.PIPE, check=False)
    if done.returncode:
        sys.exit(done.returncode)
    return min(LONGEST, json.loads(done.stdout)["max_length"])


def word_perplexity(folder):
    """(word perplexity, document counts) of the newest result file."""
    files = sorted(Path(folder).rglob("results_*.json"), key=lambda p: p.stat().st_mtime)
    if not files:
        sys.exit(f"quickstart: lm_eval wrote no results to {folder}")
    result = json.loads(files[-1].read_text(encoding="utf-8"))
    ((task, values),) = result["results"].items()
    return values["word_perplexity,none"], result["n-samples"][task]


def weight_bytes(folder):
    return sum(path.stat().st_size for path in Path(folder).glob("*.safetensors"))


def say(text):
    print(textwrap.fill(" ".join(text.split()), 100), end="\n\n")


def table(args, words, compared):
    sizes = [weight_bytes(folder) for folder in args.folders]
    rows = [["", "word perplexity", "token perplexity", "weights"]]
    for i, (name, word) in enumerate(zip(args.names, words)):
        token = compared["statistics"]["ppl" if i else "ref_ppl"]["value"] if compared else None
        saved = f" ({sizes[i] / sizes[0] - 1:+.0%})" if i else ""
        rows.append([name, f"{word:.2f}", "-" if token is None else f"{token:.2f}", f"{size(sizes[i])}{saved}"])
    print(render(rows), end="\n\n")


def divergence(name, compared, text):
    """The sentence about what ctworker-compare found."""
    found = compared["statistics"]
    enough = found["clusters"] >= 5
    kl, top = (number(found[key]["value"], found[key]["se"] if enough else None, scale=scale, plain=3)
               for key, scale in (("kl", 1), ("same_top", 100)))
    error = f"±: standard error over {found['clusters']} windows" if enough else "too few windows for an error"
    say(f"Divergence of {name} from the unquantised model: {kl} nats a token (mean KL of {text['targets']:,} predictions); "
        f"the same most probable token in {top} % of them. ({error})")


def explain(args, words, samples):
    of = f"{samples['effective']} of {samples['original']} documents"
    say(f"Word perplexity: over {of}, by lm_eval. The unquantised model is as uncertain about the next word as if it chose among "
        f"{words[0]:.0f} equally likely words.")
    if len(words) > 1:
        say(f"{args.names[1]} is plain rounding: word perplexity {words[1] / words[0] - 1:+.1%}. Calibrated methods "
            "(llm-compressor's GPTQ, AWQ) cost less; score their checkpoints with the same commands.")
    if "widened" in args.model:
        say("The unquantised model here is itself a widened 4-bit file, because the hub does not answer: rounding it again costs "
            "more than rounding the original.")
    if samples["effective"] != samples["original"]:
        say("These numbers cover a part of the text; --full scores the whole text.")


def next_commands(args):
    """Three commands that run as printed."""
    other = "nvfp4" if args.names[-1] != "nvfp4" else "w4a16"
    options = f" {args.options}" if args.options else ""
    commands = [(f"examples/quickstart.sh{options} --quantize {other}", "another format; only what is new is computed")]
    if args.compare:
        commands.append((f"{args.compare} --max-windows 2 --layers", "after which layers the divergence arises"))
    else:
        commands.append((f"examples/quickstart.sh{options} --quantize w4a16", "what 4 bits cost"))
    wheel = f" --wheel {args.wheel}" if args.wheel else ""
    commands.append((f"examples/sweep.sh{wheel}", "five checkpoints in one report: tables, charts, an HTML page"))
    print("Next:")
    for command, about in commands:
        print(f"  # {about}\n  {command}")


def report(args):
    results = Path(args.results)
    words, samples = zip(*(word_perplexity(results / name) for name in args.names))
    compared = whole = None
    if len(args.names) > 1:
        whole = json.loads((results / f"compare-{args.names[1]}.json").read_text(encoding="utf-8"))
        (compared,) = whole["models"]
    table(args, words, compared)
    if compared:
        divergence(args.names[1], compared, whole["text"])
    explain(args, words, samples[0])
    next_commands(args)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    window = commands.add_parser("context", help="print the tokens of a window")
    window.add_argument("program")
    window.add_argument("model")
    made = commands.add_parser("report", help="compare result folders")
    made.add_argument("results")
    made.add_argument("names", nargs="+")
    made.add_argument("--folders", nargs="+", required=True)
    for name in ("model", "text", "options", "compare", "wheel"):
        made.add_argument(f"--{name}", required=True)
    args = parser.parse_args()
    if args.command == "context":
        print(context(args.program, args.model))
    else:
        report(args)


if __name__ == "__main__":
    main()
