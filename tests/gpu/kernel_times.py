"""Where a pass's time goes: the sums of a worker's kernels by name, from libkernel_times.so (kernel_times.c)."""

import glob
import json
import os
import re
import site
import sys
from pathlib import Path

from gpu_programs import Refused, call

LIBRARY = "libkernel_times.so"


def short(name):
    """A function's name without namespaces, types and arguments; a library's kernel keeps its first words."""
    mangled = re.match(r"_Z(?:N\d+\w*?(?=\d+[a-z_]+E)|L)?(\d+)(\w+)", name)
    if mangled:
        return mangled[2][:int(mangled[1])]
    return "_".join(name.split("_")[:3]) if name.startswith("nvjet") else name.split("(")[0][:60]


def cupti_folders():
    packages = [p for p in (*sys.path, *site.getsitepackages()) if p]
    return [str(Path(f).parent) for p in packages for f in glob.glob(os.path.join(p, "nvidia/*/lib/libcupti.so*"))]


def library(p):
    """The library beside the bundle's programs; None: it was not built."""
    path = Path(p.worker).parent / LIBRARY
    return path if path.is_file() else None


def times(p, folder, sequences, out, limit_s):
    """[(us a token, launches, kernel)] of one pass over the sequences, the longest first."""
    given, found = out.with_suffix(".jsonl"), out.with_suffix(".txt")
    given.write_text("".join(json.dumps({"id": i, "tokens": t}) + "\n" for i, t in enumerate(sequences)))
    env = p.env | {"CUDA_INJECTION64_PATH": str(library(p)), "KERNEL_TIMES": str(found)}
    env["LD_LIBRARY_PATH"] = ":".join([*cupti_folders(), str(library(p).parent), env.get("LD_LIBRARY_PATH", "")])
    argv = [p.worker, "score", "--model", folder, "--in", given, "--out", os.devnull, "--backend", "cuda"]
    done = call(argv, limit_s, env)
    given.unlink()
    if done.returncode:
        raise Refused(done, argv)
    n_tok, sums = sum(len(t) for t in sequences), {}
    for line in found.read_text().splitlines():
        ns, count, name = line.split(" ", 2)
        before = sums.get(short(name), (0.0, 0))
        sums[short(name)] = (before[0] + int(ns) / 1e3 / n_tok, before[1] + int(count))
    return sorted(((us, count, name) for name, (us, count) in sums.items()), reverse=True)
