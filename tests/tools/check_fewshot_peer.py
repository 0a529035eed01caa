#!/usr/bin/env python3
"""A whole subject of MMLU through lm_eval, with the hf backend and with ours, shared and with --no-share. Not part of tests/run.

    check_fewshot_peer.py --model DIR --questions FILE --scratch DIR --torch-python PY [--subject S] [--limit N] [--dtype D]
                          [--runs shared small-passes no-share]

FILE has one JSON object a line: subject, split (dev: the examples, or test), question, choices, answer. PY is a Python with
torch, transformers and lm_eval; ours runs in this Python. Both run the same task, five-shot, in D. Every choice's
log-likelihood must agree within the bound of the dtype, every choice of ours must have the same bits shared and not, in
passes of several sizes, and in float32 the answers must be the same. A model of 135M parameters takes about a second a question
in the hf backend, whose results in the scratch folder are used again; ours computes as much with no-share alone. Ends with
"N passed, N failed".
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/tools"))
import worker_cli  # noqa: E402

TASK = """task: fewshot_choices
custom_dataset: !function fewshot_task.questions
output_type: multiple_choice
test_split: test
fewshot_split: dev
fewshot_config:
  sampler: first_n
num_fewshot: 5
doc_to_text: !function fewshot_task.text
doc_to_choice: ["A", "B", "C", "D"]
doc_to_target: answer
metadata:
  version: 1.0
"""

PYTHON = """
import json, os
import datasets

def questions(**_):
    with open(os.environ["QUESTIONS"], encoding="utf-8") as f:
        rows = [r for r in map(json.loads, f) if r["subject"] == os.environ["SUBJECT"]]
    return {split: datasets.Dataset.from_list([r for r in rows if r["split"] == split]) for split in ("dev", "test")}

def text(doc):
    choices = "".join(f"\\n{letter}. {choice}" for letter, choice in zip("ABCD", doc["choices"]))
    return f"{doc['question'].strip()}{choices}\\nAnswer:"
"""

# The package need not be installed where ours runs.
LM_EVAL = "from lm_eval.__main__ import cli_evaluate; cli_evaluate()"
ADAPTER = f"import sys; sys.path.insert(0, {str(ROOT / 'harness_adapter/src')!r}); import _ctworker_hook; "
START = {"hf": LM_EVAL, "ctworker": ADAPTER + LM_EVAL}

# Of a sum: absolute, by dtype. A run in 16 bits rounds activations, ours and theirs in different places.
BOUNDS = {"float32": 2e-4, "bfloat16": 0.25, "float16": 0.03}

RUNS = {"shared": [], "small-passes": ["--pass-tokens", 2048], "no-share": ["--no-share"]}  # options of ours


class Runs:
    def __init__(self, args):
        self.args, self.folder = args, args.scratch / "task"
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "fewshot_choices.yaml").write_text(TASK)
        (self.folder / "fewshot_task.py").write_text(PYTHON)

    def lm_eval(self, name, python, model, model_args, *more):
        """({question: [log-likelihood of each choice]}, accuracy, seconds)."""
        out = self.args.scratch / name
        if model != "hf":
            subprocess.run(["rm", "-rf", str(out)], check=True)
        command = [python, "-c", START[model], "--model", model, "--model_args", model_args, "--tasks", "fewshot_choices",
                   "--include_path", self.folder, "--output_path", out, "--log_samples", "--batch_size", "1", *more]
        if self.args.limit:
            command += ["--limit", self.args.limit]
        start = time.monotonic()
        env = os.environ | {"QUESTIONS": str(self.args.questions), "SUBJECT": self.args.subject, "TQDM_DISABLE": "1"}
        if not out.exists():
            done = subprocess.run([str(a) for a in command], check=False, cwd=ROOT, env=env, capture_output=True, text=True)
            if done.returncode:
                sys.exit(done.stderr)
        took = time.monotonic() - start
        (samples,), (results,) = out.rglob("samples_*.jsonl"), out.rglob("results_*.json")
        rows = [json.loads(line) for line in samples.read_text().splitlines()]
        accuracy = json.loads(results.read_text())["results"]["fewshot_choices"]["acc,none"]
        return {r["doc_id"]: [float(x[0][0]) for x in r["resps"]] for r in rows}, accuracy, took

    def ours(self, name, *options):
        """The same through a worker with these options."""
        url = f"ipc://{self.args.scratch}/{name}.sock"
        worker = subprocess.Popen([self.args.worker, "serve", "--model", self.args.model, "--listen", url, "--backend", "cpu",
                                   "--dtype", self.args.dtype, *map(str, options)], stderr=subprocess.DEVNULL)
        try:
            return self.lm_eval(name, sys.executable, "ctworker", f"endpoint={url}")
        finally:
            worker.terminate()
            worker.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--questions", type=Path, required=True)
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--torch-python", required=True)
    parser.add_argument("--subject", default="abstract_algebra")
    parser.add_argument("--dtype", default="float32", choices=BOUNDS)
    parser.add_argument("--limit", type=int, help="so many questions; without it, all")
    parser.add_argument("--worker", default=worker_cli.default_worker())
    parser.add_argument("--runs", nargs="+", default=list(RUNS), choices=RUNS)
    args = parser.parse_args()
    args.scratch, args.questions = args.scratch.resolve(), args.questions.resolve()
    runs, failed = Runs(args), 0
    peer, accuracy, took = runs.lm_eval("hf", args.torch_python, "hf", f"pretrained={args.model},dtype={args.dtype}",
                                       "--device", "cpu")
    print(f"hf: {len(peer)} questions, accuracy {accuracy:.4f}, {took:.0f} s")
    first = None
    for name in args.runs:
        ours, acc, took = runs.ours(name, *RUNS[name])
        first = first or ours
        worst = max(abs(a - b) for i in peer for a, b in zip(ours[i], peer[i], strict=True))
        same = sum(max(range(4), key=ours[i].__getitem__) == max(range(4), key=peer[i].__getitem__) for i in peer)
        wrong = [text for text, bad in (("questions are missing", ours.keys() != peer.keys()),
                                        ("sums differ", worst > BOUNDS[args.dtype]), ("bits differ from the first run", ours != first),
                                        ("answers differ", args.dtype == "float32" and (acc, same) != (accuracy, len(peer)))) if bad]
        failed += bool(wrong)
        print(f"{'FAIL' if wrong else 'ok  '} {name}: accuracy {acc:.4f}, {same} of {len(peer)} answers the same, "
              f"sums within {worst:.1e}, {took:.0f} s", *wrong, sep="  ")
    print(f"{len(args.runs) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
