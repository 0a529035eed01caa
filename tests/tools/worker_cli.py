"""The `ctworker` program for the tests: its path, its CPU variants, `score` as a function."""

import functools
import json
import os
import random
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Variant -> CPU features (named as in /proc/cpuinfo) that the variant needs. The last variant that a machine can run is its
# default; amx and amx-emulated stand first because they run only on request.
_AVX2 = {"avx2", "fma", "f16c"}
_AVX512 = _AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
VARIANTS = {
    "c": set(),
    "amx-emulated": _AVX2,
    "amx": _AVX512 | {"amx_tile", "amx_bf16"},
    "avx2": _AVX2,
    "avx512": _AVX512,
    "avx512bf16": _AVX512 | {"avx512_bf16"},
}


class Refused(Exception):
    """The worker ended with an error message instead of results."""

    def __init__(self, code, message):
        super().__init__(f"exit status {code}: {message}")
        self.code, self.message = code, message


def default_worker():
    return os.environ.get("CTWORKER", str(ROOT / "build/release/worker/ctworker"))


@functools.cache
def machine_variants(worker):
    """The variants that this machine supports, according to /proc/cpuinfo. Some builds have one that emulates AMX."""
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as f:
        line = next((x for x in f if x.startswith("flags")), ":")
    flags = set(line.split(":", 1)[1].split())
    emulates = "amx-emulated" in run(worker, "score", "--help")
    return [v for v, needed in VARIANTS.items() if needed <= flags and (emulates or v != "amx-emulated")]


def chosen(roots, seed, formats=False, always=()):
    """Checkpoints FAMILY-FORMAT below `roots`: one of every family, and, with `formats`, one of every format. The seed chooses,
    so that other pairs of both come with another seed."""
    folders = sorted(p.parent for root in roots for p in root.glob("*/config.json"))
    random.Random(seed).shuffle(folders)
    found, seen = [], set()
    for folder in sorted(folders, key=lambda p: p.name not in always):
        family, _, fmt = folder.name.partition("-")
        parts = {("family", family)} | ({("format", fmt)} if formats else set())
        if folder.name in always or parts - seen:
            found.append(folder)
        seen |= parts
    return found


def run(worker, *arguments, text="", limit_s=600):
    """Standard output of one command. Raises Refused."""
    done = subprocess.run([str(worker), *map(str, arguments)], input=text, capture_output=True,
                          text=True, timeout=limit_s, check=False)
    if done.returncode:
        lines = [x for x in done.stderr.splitlines() if x.strip()]
        raise Refused(done.returncode, lines[-1] if lines else "(no message)")
    return done.stdout


def hashes(worker, model):
    """Matrix name -> [n, k, dtype, sha256 of the decoded bytes], as text."""
    rows = (line.split() for line in run(worker, "inspect", "--hashes", model).splitlines())
    return {row[0]: row[1:] for row in rows}


def score(worker, model, items, *options, limit_s=600):
    """Results of `ctworker score`, one dict per item. Raises Refused."""
    text = "".join(json.dumps(item) + "\n" for item in items)
    out = run(worker, "score", "--model", model, *options, text=text, limit_s=limit_s)
    results = [json.loads(line) for line in out.splitlines()]
    if [r["id"] for r in results] != [i["id"] for i in items]:
        raise Refused(0, f"{len(results)} results for {len(items)} items, or out of order")
    return results


def run_checks(worker, jobs):
    """jobs: (name, function, folder, arguments); function(worker, folder, *arguments) gives a list of what is wrong,
    and a text. Prints a line each, last "N passed, N failed"; returns the exit status: 1 also if there are none."""
    failed = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for (name, *_), (wrong, text) in zip(jobs, pool.map(lambda j: j[1](worker, j[2], *j[3]), jobs)):
            failed += bool(wrong)
            print("FAIL" if wrong else "ok  ", f"{name:30}", "; ".join([*wrong, text]), flush=True)
    print(f"{len(jobs) - failed} passed, {failed} failed")
    return 1 if failed or not jobs else 0
