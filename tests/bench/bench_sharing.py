#!/usr/bin/env python3
"""What shared beginnings save: five-shot multiple choice, scored with and without --no-share, interleaved.

    bench_sharing.py --model DIR [--questions FILE] [--limit N] [--shots 5] [--reps 3] [options of `ctworker score`]

FILE has the questions of some subjects, one JSON object a line: subject, split (dev: the examples, or test), question,
choices, answer. Prompts are those of lm-eval's MMLU. Tokens come from DIR's tokenizer.json; without one, a word or a
sign is a token, so that a checkpoint of random weights meets prompts of real lengths. --limit takes so many questions of
a subject. The time to start and to open the model, measured on a sequence of two tokens, is subtracted. Prints medians,
and how much of the ratio of tokens becomes speed; exits 1 if a bit differs.
"""

import argparse
import json
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
import worker_cli  # noqa: E402

QUESTIONS = Path(__file__).resolve().parents[3] / "shared/data/mmlu_four_subjects.jsonl"
LETTERS = "ABCD"


def encoder_of(folder):
    """Text -> token ids."""
    if (folder / "tokenizer.json").exists():
        from tokenizers import Tokenizer
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        return lambda text: tokenizer.encode(text, add_special_tokens=False).ids
    config = json.loads((folder / "config.json").read_text())
    vocab = (config.get("text_config") or config)["vocab_size"]
    return lambda text: [zlib.crc32(w.encode()) % vocab for w in re.findall(r" ?\w{1,7}|\W", text)]


def text_of(q):
    choices = "".join(f"\n{letter}. {choice}" for letter, choice in zip(LETTERS, q["choices"], strict=False))
    return f"{q['question'].strip()}{choices}\nAnswer:"


def items_of(path, encode, shots, limit):
    """All choices of all questions: one-token answers after the subject's examples."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for subject in dict.fromkeys(r["subject"] for r in rows):
        of = [r for r in rows if r["subject"] == subject]
        examples = [f"{text_of(q)} {LETTERS[q['answer']]}\n\n" for q in of if q["split"] == "dev"][:shots]
        title = subject.replace("_", " ")
        head = f"The following are multiple choice questions (with answers) about {title}.\n\n{''.join(examples)}"
        for q in [q for q in of if q["split"] != "dev"][:limit]:
            context = encode(head + text_of(q))
            for letter in LETTERS[:len(q["choices"])]:
                yield {"context": context, "continuation": encode(f" {letter}")}


def run(worker, model, text, options):
    """Seconds, results and what the command says."""
    with tempfile.TemporaryDirectory() as d:
        Path(d, "in").write_text(text)
        start = time.monotonic()
        done = subprocess.run([worker, "score", "--model", model, "--in", f"{d}/in", "--out", f"{d}/out", *options],
                              capture_output=True, text=True, check=False)
        seconds = time.monotonic() - start
        if done.returncode:
            sys.exit(done.stderr)
        return seconds, Path(d, "out").read_bytes(), done.stderr


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--questions", type=Path, default=QUESTIONS)
    parser.add_argument("--limit", type=int, default=10**9)
    parser.add_argument("--shots", type=int, default=5)
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--worker", default=worker_cli.default_worker())
    args, options = parser.parse_known_args()
    items = list(items_of(args.questions, encoder_of(args.model), args.shots, args.limit))
    text = "".join(json.dumps(item) + "\n" for item in items)
    asked = sum(len(i["context"]) + len(i["continuation"]) - 1 for i in items)
    seconds, kinds, outputs = {}, {"shared": [], "whole": ["--no-share"]}, set()
    run(args.worker, args.model, '{"tokens": [1, 2]}\n', options)  # its files are in the page cache now
    for _ in range(args.reps):
        opened = run(args.worker, args.model, '{"tokens": [1, 2]}\n', options)[0]
        for name, more in kinds.items():
            took, out, said = run(args.worker, args.model, text, [*options, *more])
            outputs.add(out)
            seconds.setdefault(name, []).append(took - opened)
            if name == "shared":
                computed = int(re.search(r"(\d+) tokens were computed", said)[1])
    median = {name: statistics.median(s) for name, s in seconds.items()}
    tokens, speed = asked / computed, median["whole"] / median["shared"]
    print(f"{platform.node()}: {args.model.name}, {len(items)} choices, {args.reps} repetitions")
    print(f"tokens: {asked} asked, {computed} computed, {tokens:.1f} times fewer")
    for name, s in median.items():
        print(f"{name}: {s:.2f} s ({min(seconds[name]):.2f} .. {max(seconds[name]):.2f}), {asked / s:.0f} tokens/s")
    print(f"speed: {speed:.1f} times, {speed / tokens:.2f} of the ratio of tokens; "
          f"{'the same bits' if len(outputs) == 1 else 'BITS DIFFER'}")
    return len(outputs) != 1


if __name__ == "__main__":
    sys.exit(main())
