#!/usr/bin/env python3
"""Prints docs/ARCHITECTURE.md's table: what the planner chooses for five machines and three models.

    planned_machines.py build/ci/worker/ctworker

The models' files are holes (make_checkpoint.py --holes), and no GPU is needed: `ctworker inspect` plans from sizes.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

TOOLS = Path(__file__).resolve().parent
MODELS = {"8B": ("llama-8b", "w4a16"), "123B": ("mistral-large-123b", "w4a16"), "671B": ("deepseek-v3", "w4a16")}
MORE = {"70B": ("llama-70b", "nvfp4")}  # not in the table
# Name -> what describes it. Rates: what products of 16 bits reach on such GPUs, PCIe with 16 lanes (4.0, 5.0) or NVLink,
# one NVMe disk.
MACHINES = {
    "1 x 24 GB": ["--device-memory", "24GB", "--host-memory", "56GiB", "--compute-rate", "150000", "--host-rate", "25GB",
                  "--disk-rate", "5GB"],
    "2 x 48 GB": ["--devices", "2", "--device-memory", "48GB", "--host-memory", "120GiB", "--compute-rate", "220000",
                  "--host-rate", "25GB", "--peer-rate", "20GB", "--disk-rate", "5GB"],
    "1 x 96 GB": ["--device-memory", "96GB", "--host-memory", "120GiB", "--compute-rate", "300000", "--host-rate", "50GB",
                  "--disk-rate", "7GB"],
    "8 x 80 GB": ["--devices", "8", "--device-memory", "80GB", "--host-memory", "900GiB", "--compute-rate", "600000",
                  "--host-rate", "50GB", "--peer-rate", "350GB", "--disk-rate", "7GB"],
    "laptop": ["--backend", "cpu", "--cpu-variant", "c", "--threads", "8", "--host-memory", "12GiB", "--compute-rate", "500",
               "--disk-rate", "3GB"],
}


def checkpoint(folder, name):
    shape, fmt = (MODELS | MORE)[name]
    subprocess.run([sys.executable, TOOLS / "make_checkpoint.py", shape, f"{folder}/{name}", "--format", fmt, "--holes"],
                   check=True, stdout=subprocess.DEVNULL)
    return f"{folder}/{name}"


def row(worker, path, name, machine):
    done = subprocess.run([worker, "inspect", *MACHINES[machine], path], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return f"| {name} | {machine} | refused: {done.stderr.strip().rsplit(': ', 1)[-1]} | | | |"
    where, need, of, rate = re.findall(r"^weights: (.*)$", done.stdout, re.MULTILINE)
    memory = re.search(r"needs? (.*?) of the .*: (.*) for weights, (.*) for passes", need)
    came = re.search(r"(reads|gathers) (.*?) at about .*? takes (.*?) s,", of)
    computes, tokens, bound = re.search(r"computes for about (.*?) s with (\d+) tokens: bound by (\w+)", of).groups()
    what = f"; {came[1]} {came[2]} in {came[3]} s" if came else ""
    per_s = int(re.match(r"about (\d+) tokens/s", rate)[1])
    return (f"| {name} | {machine} | {where} | {memory[2]} + {memory[3]} | {int(tokens):,} tokens: computes {computes} s{what} "
            f"| {per_s:,} tokens/s, bound by {bound} |")


def rows(worker, folder, models=MODELS):
    for name in models:
        path = checkpoint(folder, name)
        for machine in MACHINES:
            yield row(worker, path, name, machine)


def main():
    print("| model | machine | placement | memory: weights + passes | a pass, on each GPU | rate |\n"
          "| --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        for line in rows(sys.argv[1], folder):
            print(line)


if __name__ == "__main__":
    main()
