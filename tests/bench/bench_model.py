#!/usr/bin/env python3
"""Tokens per second of whole models on windows of a text, on the CPU: ctworker and its peers, interleaved.

    bench_model.py --model MODEL [--text FILE] [--models w4a16=MODEL nvfp4=MODEL]
                   [--torch-python PY] [--llama-library LIB --gguf FILE ..] [--reps 5] [--windows 2]

MODEL is a folder, or SHAPE:FORMAT[:GROUP] (gemma3-270m:w4a16:64), which tools/make_checkpoint.py writes to
--scratch. Without a text, the windows are random ids. A peer is a long-lived process with its model loaded;
ctworker runs as `ctworker score`, and the time to start and to open the model (measured in the same
repetition, on a sequence of two tokens) is subtracted. The time of transformers includes its float32
log-softmax; llama.cpp's is that of all logits, without a log-softmax. Every repetition runs each program once, in
changing order. Prints a Markdown table of medians and spreads. With --cpu-time, seconds are processor
time divided by the threads, which a busy machine distorts less (set OMP_WAIT_POLICY=PASSIVE).
"""

import argparse
import json
import os
import platform
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

TOOLS = Path(__file__).resolve().parents[1] / "tools"
sys.path.insert(0, str(TOOLS))
import worker_cli  # noqa: E402

MAKE = TOOLS / "make_checkpoint.py"

# Peers read a JSON line {"windows": [[ids], ..]} and answer {"seconds": s}.
TRANSFORMERS = """
import json, sys, time, torch
from transformers import AutoModelForCausalLM
folder, dtype, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
clock = getattr(time, sys.argv[4])
torch.set_num_threads(threads)
model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
print(json.dumps({"name": "transformers " + __import__("transformers").__version__}), flush=True)
for line in sys.stdin:
    windows = json.loads(line)["windows"]
    start = clock()
    with torch.inference_mode():
        for w in windows:
            ids = torch.tensor([w])
            logits = model(ids).logits[0, :-1]
            lp = torch.log_softmax(logits, -1, dtype=torch.float32)
            float(lp.gather(1, ids[0, 1:, None]).double().sum())
    print(json.dumps({"seconds": clock() - start}), flush=True)
"""
LLAMA_CPP = """
import json, sys, time
sys.path.insert(0, sys.argv[5])
import llama_cpp_scores as llama
model = llama.Model(sys.argv[1], sys.argv[2], 2048, llama.F16, True, int(sys.argv[3]))
clock = getattr(time, sys.argv[4])
print(json.dumps({"name": "llama.cpp"}), flush=True)
for line in sys.stdin:
    windows = json.loads(line)["windows"]
    start = clock()
    for w in windows:
        model.logits(w)
    print(json.dumps({"seconds": clock() - start}), flush=True)
"""


class Peer:
    def __init__(self, python, code, label, *args):
        self.label = label
        self.process = subprocess.Popen([python, "-c", code, *map(str, args)], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.name = f"{self._answer()['name']}, {label}"

    def _answer(self):
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise SystemExit(f"bench_model: {self.label} ended before it answered")

    def seconds(self, windows):
        self.process.stdin.write(json.dumps({"windows": windows}) + "\n")
        self.process.stdin.flush()
        return self._answer()["seconds"]

    def close(self):
        self.process.stdin.close()
        self.process.wait(60)


class Ours:
    def __init__(self, worker, folder, label, options, clock):
        self.worker, self.folder, self.options, self.clock = worker, folder, options, clock
        self.name, self.peak_bytes = f"ctworker, {label}", 0

    def _run(self, windows):
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as f:
            for i, w in enumerate(windows):
                f.write(json.dumps({"id": i, "tokens": w}) + "\n")
            f.flush()
            start = self.clock()
            child = subprocess.Popen(
                [self.worker, "score", "--model", self.folder, "--in", f.name, "--out",
                 os.devnull, *self.options], stderr=subprocess.PIPE, text=True)
            watch = threading.Thread(target=self._watch, args=(child,))
            watch.start()
            message = child.communicate()[1]
            seconds = self.clock() - start
            watch.join()
        if child.returncode:
            raise SystemExit(f"bench_model: {message}")
        return seconds

    def _watch(self, child):
        """Peak resident memory, without the mapped weights."""
        while child.poll() is None:
            self.peak_bytes = max(self.peak_bytes, resident_beyond_weights(child.pid))
            time.sleep(0.1)

    def seconds(self, windows):
        idle = self._run([windows[0][:2]])
        return max(self._run(windows) - idle, 1e-9)

    def close(self):
        pass


def children_time():
    """Processor time of the programs that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def resident_beyond_weights(pid):
    total, counted = 0, True
    try:
        with open(f"/proc/{pid}/smaps", encoding="utf-8", errors="replace") as f:
            for line in f:
                head = line.split(" ", 1)[0]
                if "-" in head:
                    counted = ".safetensors" not in line
                elif counted and head == "Rss:":
                    total += int(line.split()[1]) * 1024
    except (OSError, ProcessLookupError):
        pass
    return total


def windows_of(folder, text, n, length):
    """n windows of the text: a file of lines {"page": ..}, or plain text."""
    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
    raw = Path(text).read_text(encoding="utf-8")
    if str(text).endswith(".jsonl"):
        raw = "".join(json.loads(line)["page"] for line in raw.splitlines())
    ids = tokenizer.encode(raw, add_special_tokens=False).ids
    found = [ids[i:i + length] for i in range(0, len(ids) - length + 1, length)]
    if not found:
        raise SystemExit(f"bench_model: {text} has {len(ids)} tokens, fewer than {length}")
    return found[:n] if n else found


def random_windows(folder, n, length):
    with open(Path(folder) / "config.json", encoding="utf-8") as f:
        n_ids = json.load(f)["vocab_size"]
    rng = random.Random(1)
    return [[rng.randrange(n_ids) for _ in range(length)] for _ in range(n or 2)]


def checkpoint(name, scratch):
    """The folder of a model: of that name, or written from SHAPE:FORMAT[:GROUP] unless it exists."""
    shape, *fmt = name.split(":")
    if Path(name).is_dir() or not fmt:
        return name
    folder = Path(scratch) / name.replace(":", "-")
    if not (folder / "config.json").exists():
        group = ["--group", fmt[1]] if len(fmt) > 1 else []
        done = subprocess.run([sys.executable, MAKE, shape, folder, "--format", fmt[0], *group], check=False)
        if done.returncode:
            raise SystemExit(f"bench_model: {name} was not written")
    return str(folder)


def machine():
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as f:
        model = next((x.split(":", 1)[1].strip() for x in f if x.startswith("model name")), "?")
    return f"{model}, {os.cpu_count()} CPUs, Linux {platform.release().split('-')[0]}"


def table(runners, rates, base):
    yield "| | tokens/s, median | lowest - highest | to the first | beyond the weights |"
    yield "| --- | ---: | ---: | ---: | ---: |"
    for r in runners:
        some = rates[r.name]
        peak = f"{r.peak_bytes / 1e6:.0f} MB" if isinstance(r, Ours) else ""
        yield (f"| {r.name} | {statistics.median(some):.1f} | {min(some):.1f} - {max(some):.1f} | "
               f"{statistics.median(some) / statistics.median(rates[base]):.3f} | {peak} |")


def measure(runners, windows, reps, share):
    rates = {r.name: [] for r in runners}
    n_tok = sum(map(len, windows)) * share
    for r in runners:  # reads files, starts threads, compiles
        r.seconds(windows)
    for rep in range(reps):
        shift = rep % len(runners)
        for r in runners[shift:] + runners[:shift]:
            rates[r.name].append(n_tok / r.seconds(windows))
            print(f"  {rep + 1}/{reps} {r.name}: {rates[r.name][-1]:.1f}", file=sys.stderr)
    return rates


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", required=True, help="the unquantised checkpoint, or SHAPE:FORMAT[:GROUP]")
    parser.add_argument("--text", help="text, or JSON lines with `page` (default: random ids)")
    parser.add_argument("--models", nargs="*", default=[], metavar="LABEL=MODEL",
                        help="more checkpoints for ctworker, e.g. quantised ones")
    parser.add_argument("--scratch", help="folder for written checkpoints, which are kept")
    parser.add_argument("--worker", default=worker_cli.default_worker())
    parser.add_argument("--torch-python", help="a Python with torch and transformers")
    parser.add_argument("--torch-dtypes", default="bfloat16,float32")
    parser.add_argument("--llama-library", help="exports llama.cpp's C interface (tools/llama_cpp_scores.py)")
    parser.add_argument("--gguf", nargs="*", default=[], help="the same model for llama.cpp, such as tools/gguf_to_bf16.py's")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--windows", type=int, default=2,
                        help="0: the whole text, or 2 windows of random ids")
    parser.add_argument("--cpu-time", action="store_true", help="measure processor time")
    parser.add_argument("--length", type=int, default=2048, help="tokens of a window")
    return parser.parse_args()


def run(args, scratch):
    model = checkpoint(args.model, scratch)
    windows = (windows_of(model, args.text, args.windows, args.length) if args.text else
               random_windows(model, args.windows, args.length))
    options = ["--threads", str(args.threads), "--backend", "cpu"]
    clock, clock_name = ((children_time, "process_time") if args.cpu_time else
                         (time.perf_counter, "perf_counter"))
    runners = [Ours(args.worker, model, "as stored", options, clock)]
    for label, _, name in (m.partition("=") for m in args.models):
        runners.append(Ours(args.worker, checkpoint(name, scratch), label, options, clock))
    if args.torch_python:
        runners += [Peer(args.torch_python, TRANSFORMERS, d, model, d, args.threads,
                         clock_name)
                    for d in args.torch_dtypes.split(",")]
    runners += [Peer(sys.executable, LLAMA_CPP, Path(file).name, args.llama_library, file, args.threads, clock_name, TOOLS)
                for file in args.gguf]
    try:
        rates = measure(runners, windows, args.reps, args.threads if args.cpu_time else 1)
    finally:
        for r in runners:
            r.close()
    print(f"{machine()}; {args.threads} threads; {len(windows)} windows of {args.length}; "
          f"{args.reps} interleaved repetitions"
          f"{', processor time' if args.cpu_time else ''}\n")
    print("\n".join(table(runners, rates, runners[0].name)))


def main():
    args = parse_args()
    with tempfile.TemporaryDirectory(prefix="ctw-bench-") as temporary:
        run(args, args.scratch or temporary)
    return 0


if __name__ == "__main__":
    sys.exit(main())
