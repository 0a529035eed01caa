#!/usr/bin/env python3
"""What ctworker-ppl costs beyond scoring the same windows with `ctworker score`.

    CTWORKER=PROGRAM bench_ppl.py --model DIR --text FILE [--window 512] [--max-windows 4] [--reps 5] [--device cpu] [--ppl COMMAND ..]

Both programs score the same windows, interleaved, in changing order. In the same repetition each also scores one window of
two tokens; that run is subtracted, so what is compared is scoring: opening the model, starting Python and tokenising the text
are not part of it (they are shown below the table). Processor time counts the worker and Python, and a busy machine distorts
it less than seconds. Prints a Markdown table of medians and spreads.
"""

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TOOLS = Path(__file__).resolve().parents[1] / "tools"
sys.path.insert(0, str(TOOLS))
import worker_cli  # noqa: E402


def timed(argv):
    """(seconds, processor time) of a command and its children."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([str(a) for a in argv], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.perf_counter() - start, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def windows_of(args, scratch):
    """Files of token windows for `ctworker score`: all, and one of two tokens. The tokens are ctworker-ppl's own."""
    import pyarrow.parquet

    path = scratch / "tokens.parquet"
    given = ["--window", args.window, "--max-windows", args.max_windows, "--first", 0, "--bos", "prefix", "--bos-token", 0]
    subprocess.run([*args.ppl, str(args.model), "--text", str(args.text), "--device", args.device, "--per-token", str(path),
                    *map(str, given), "--quiet"], check=True, stdout=subprocess.DEVNULL)  # fmt: skip
    table = pyarrow.parquet.read_table(path).to_pydict()
    windows = [[] for _ in range(max(table["window"]) + 1)]
    for window, token in zip(table["window"], table["token"]):
        windows[window].append(token)
    files = scratch / "all.jsonl", scratch / "one.jsonl"
    for file, rows in zip(files, (windows, [windows[0][:2]])):
        file.write_text("".join(json.dumps({"id": i, "tokens": row}) + "\n" for i, row in enumerate(rows)))
    return files


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--max-windows", type=int, default=4)
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--ppl", nargs="+", default=[sys.executable, "-m", "ctworker.perplexity.main"], help="the command")
    args = parser.parse_args()
    binary = worker_cli.default_worker()
    os.environ["CTWORKER_BIN"] = binary
    with tempfile.TemporaryDirectory() as folder:
        whole, one = windows_of(args, Path(folder))
        score = [binary, "score", "--model", args.model, "--backend", args.device, "--out", Path(folder) / "out", "--in"]
        ppl = [*args.ppl, args.model, "--text", args.text, "--device", args.device, "--quiet"]
        commands = {
            "score": [*score, whole], "score, one": [*score, one],
            "ppl": [*ppl, "--window", args.window, "--max-windows", args.max_windows],
            "ppl, one": [*ppl, "--window", 2, "--max-windows", 1],
        }  # fmt: skip
        times = {name: [] for name in commands}
        for rep in range(args.reps):
            for name in list(commands)[:: 1 if rep % 2 else -1]:
                times[name].append(timed(commands[name]))
    n_tok = args.max_windows * (args.window - 1)
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} processors; {args.model.name}, {args.max_windows} windows of "
          f"{args.window}, {args.reps} repetitions\n")  # fmt: skip
    print("| | seconds | processor seconds |\n| --- | --- | --- |")
    medians = {}
    for name in ("score", "ppl"):
        cells = []
        for k in (0, 1):
            values = [a[k] - b[k] for a, b in zip(times[name], times[f"{name}, one"])]
            medians[name, k] = statistics.median(values)
            cells.append(f"{medians[name, k]:.2f} ({min(values):.2f} .. {max(values):.2f})")
        print(f"| ctworker{'-' if name == 'ppl' else ' '}{name}, {n_tok} tokens | {' | '.join(cells)} |")
    print("| overhead | " + " | ".join(f"{100 * (medians['ppl', k] / medians['score', k] - 1):+.1f} %" for k in (0, 1)) + " |")
    fixed = [statistics.median(a[k] - b[k] for a, b in zip(times["ppl, one"], times["score, one"])) for k in (0, 1)]
    print(f"\nBefore and after scoring, ctworker-ppl takes {fixed[0]:.1f} s ({fixed[1]:.1f} s of processor time) more than ctworker "
          "score: Python, the tokenizer and tokenising the text, which ctworker score is given as tokens.")  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
