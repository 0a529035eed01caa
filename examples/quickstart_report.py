#!/usr/bin/env python3
"""The Python parts of quickstart.sh: the fallback text, and the report."""

import argparse
import json
import pydoc_data.topics
import sys
import textwrap
from pathlib import Path

PAGE_CHARACTERS = 16000  # about as long as an article of WikiText-2


def write_pydoc(path):
    """Writes Python's manual in the form of the WikiText-2 file: JSON lines with `page`."""
    pages, page = [], ""
    for _, text in sorted(pydoc_data.topics.topics.items()):
        for line in text.splitlines(keepends=True):
            page += line
            if len(page) >= PAGE_CHARACTERS:
                pages, page = [*pages, page], ""
    if page:
        pages.append(page)
    with open(path, "w", encoding="utf-8") as f:
        for page in pages:
            f.write(json.dumps({"page": page}) + "\n")


def metrics(folder):
    """The newest result file's (metric -> value of the wikitext task, document counts)."""
    files = sorted(Path(folder).rglob("results_*.json"), key=lambda p: p.stat().st_mtime)
    if not files:
        sys.exit(f"quickstart: lm_eval wrote no results to {folder}")
    result = json.loads(files[-1].read_text(encoding="utf-8"))
    found = {k.split(",")[0]: v for k, v in result["results"]["wikitext"].items()
             if isinstance(v, float)}
    return found, result.get("n-samples", {}).get("wikitext", {})


def say(text):
    print(textwrap.fill(" ".join(text.split()), 96), end="\n\n")


def report(args):
    rows = [(name, *metrics(Path(args.results) / name)) for name in args.names]
    samples = rows[0][2]
    print(f"{'':10} {'word perplexity':>16} {'byte perplexity':>16} {'bits per byte':>14}")
    for name, m, _ in rows:
        print(f"{name:10} {m['word_perplexity']:16.4f} {m['byte_perplexity']:16.4f} "
              f"{m['bits_per_byte']:14.4f}")
    print()
    of = f"{samples.get('effective', '?')} of {samples.get('original', '?')} documents"
    say(f"Model: {args.model}. Text: {args.text}; {of}.")
    word = rows[0][1]["word_perplexity"]
    say(f"The model is as uncertain about the next word as if it chose among {word:.1f} equally likely "
        "words. Lower is better. Compare numbers only over the same documents and with the same "
        "max_length (here 2048).")
    for name, m, _ in rows[1:]:
        change = m["word_perplexity"] / word - 1
        bits = m["bits_per_byte"] - rows[0][1]["bits_per_byte"]
        say(f"Quantising to {name} by plain rounding changed word perplexity by {change:+.2%} "
            f"({bits:+.4f} bits per byte). Calibrated methods (llm-compressor's GPTQ, AWQ) cost "
            "less; score their checkpoints with the same command.")
    if samples.get("effective") != samples.get("original"):
        say("These numbers cover only a part of the text; --full scores the whole text.")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    pydoc = commands.add_parser("pydoc", help="write Python's manual as JSON lines")
    pydoc.add_argument("path")
    table = commands.add_parser("report", help="compare result folders")
    table.add_argument("results")
    table.add_argument("names", nargs="+")
    table.add_argument("--model", required=True)
    table.add_argument("--text", required=True)
    args = parser.parse_args()
    if args.command == "pydoc":
        write_pydoc(args.path)
    else:
        report(args)


if __name__ == "__main__":
    main()
