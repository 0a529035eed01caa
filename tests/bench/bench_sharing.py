#!/usr/bin/env python3
"""What shared beginnings save: sets of questions, scored with and without --no-share, interleaved.

    bench_sharing.py --model DIR [--set questions mmlu hellaswag arc zero-shot nothing] [--fraction F] [--seed N]
                     [--questions FILE] [--limit N] [--shots 5] [--reps 3] [--whole-reps N] [--whole-every N]
                     [options of `ctworker score`]

The set `questions` is FILE's: one JSON object a line, with subject, split (dev: the examples, or test), question, choices,
answer. Prompts are those of lm-eval's MMLU. Tokens come from DIR's tokenizer.json; without one, a word or a sign is a
token, so that a checkpoint of random weights meets prompts of real lengths. --limit takes so many questions of a subject.
The other sets are generated (question_sets.py), with a fraction F of the published number of questions. --whole-reps: as
many runs with --no-share, if not --reps; --whole-every N: they score every Nth item, and rates are compared. The time to
start and to open the model, measured on a sequence of two tokens, is subtracted; weights are read while the first pass
computes, so a run should take seconds. Prints medians and how much of the ratio of tokens becomes speed: of the command,
which also reads and writes the items, of its scoring, and of processor time (for a busy machine without a GPU). Exits 1 if
a bit differs.
"""

import argparse
import json
import platform
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
import question_sets  # noqa: E402
import worker_cli  # noqa: E402

QUESTIONS = Path(__file__).resolve().parents[3] / "shared/data/mmlu_four_subjects.jsonl"
LETTERS = "ABCD"
OPEN = '{"tokens": [1, 2]}\n'


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


def asked_of(item):
    return len(item["tokens"]) - 1 if "tokens" in item else len(item["context"]) + len(item["continuation"]) - 1


def scores_of(run):
    """The results of each item, as they are written."""
    return [line[line.index(b'"logprobs"'):] for line in run.out.splitlines()]


class Run:
    """One `ctworker score`: seconds of the command, of its scoring and of processors, computed tokens, results."""

    def __init__(self, args, text, options):
        with tempfile.TemporaryDirectory() as d:
            Path(d, "in").write_text(text)
            start, used = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
            done = subprocess.run([args.worker, "score", "--model", args.model, "--in", f"{d}/in", "--out", f"{d}/out",
                                   *options], capture_output=True, text=True, check=False)
            self.command, now = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
            self.processors = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
            if done.returncode:
                sys.exit(done.stderr)
            self.out = Path(d, "out").read_bytes()
        asked, rate = map(int, re.search(r"(\d+) tokens in [\d.]+ s: (\d+) tokens/s", done.stderr).groups())
        computed = re.search(r"(\d+) tokens were computed", done.stderr)
        self.scoring, self.computed = asked / max(rate, 1), int(computed[1]) if computed else asked


def measure(args, name, items, options):
    """Prints a set's figures; True if all runs have the same bits."""
    def lines(some):
        return "".join(json.dumps(item) + "\n" for item in some)

    some = items[::args.whole_every]
    asked, asked_whole, opened = sum(map(asked_of, items)), sum(map(asked_of, some)), Run(args, OPEN, options)
    shared, whole = [], []
    for i in range(args.reps):
        shared.append(Run(args, lines(items), options))
        if i < (args.whole_reps or args.reps):
            whole.append(Run(args, lines(some), [*options, "--no-share"]))
    computed = statistics.median(r.computed for r in shared)
    same = len({tuple(scores_of(r)[::args.whole_every]) for r in shared} | {tuple(scores_of(r)) for r in whole}) == 1
    print(f"{name}: {args.model.name} on {platform.node()}, {len(items)} items, {len(shared)} and {len(whole)} runs; "
          f"{'the same bits' if same else 'BITS DIFFER'}")
    print(f"  tokens: {asked} asked, {computed} computed, {asked / computed:.2f} times fewer")
    for what in ("command", "scoring", "processors"):
        times = [[getattr(r, what) - getattr(opened, what) for r in runs] for runs in (shared, whole)]
        fast, slow = map(statistics.median, times)
        speed = asked / fast / (asked_whole / slow)
        print(f"  {what}: shared {fast:.3f} s ({min(times[0]):.3f} .. {max(times[0]):.3f}), {asked / fast:.0f} tokens/s; "
              f"whole {slow:.2f} s ({min(times[1]):.2f} .. {max(times[1]):.2f}), {asked_whole / slow:.0f} tokens/s; "
              f"{speed:.2f} times, {speed * computed / asked:.3f} of the ratio of tokens", flush=True)
    return same


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--set", dest="sets", nargs="+", default=["questions"], choices=["questions", *question_sets.SETS])
    parser.add_argument("--questions", type=Path, default=QUESTIONS)
    parser.add_argument("--limit", type=int, default=10**9)
    parser.add_argument("--fraction", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--shots", type=int, default=5)
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--whole-reps", type=int, default=0)
    parser.add_argument("--whole-every", type=int, default=1)
    parser.add_argument("--worker", default=worker_cli.default_worker())
    args, options = parser.parse_known_args()
    Run(args, OPEN, options)  # its files are in the page cache now
    same = True
    for name in args.sets:
        items = (question_sets.items_of(name, args.seed, args.fraction) if name != "questions" else
                 list(items_of(args.questions, encoder_of(args.model), args.shots, args.limit)))
        same &= measure(args, name, items, options)
    return not same


if __name__ == "__main__":
    sys.exit(main())
