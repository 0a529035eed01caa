"""The real worker with the fake GPU (tests/service/fake_device.c), and tiny checkpoints for it."""

import fcntl
import hashlib
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import worker_process as w

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
import tiny_checkpoint  # noqa: E402

BUILD = w.FAKE.parents[1]
WORKER, DEVICE = BUILD / "worker/ctworker", BUILD / "tests/libctw_fake_device.so"
# Gives the scores that others must equal. tests/run names the build without a sanitizer, which has the same bits in a tenth of the time.
REFERENCE = os.environ.get("CTWORKER", WORKER)
N_IDS = 300  # of tiny_checkpoint's vocabulary
# So many layers that a GPU's load waits for its copies.
DEEP = ("llama", "bf16", {"layers": 40, "hidden": 64, "inner": 96, "heads": 2, "kv_heads": 1, "head": 32})


def written(family, fmt, seed, sizes):
    """The folder of a checkpoint in build/, which the first caller writes: classes of a module run in processes of their own,
    and the stages of tests/run have the same tests. Nobody may change it."""
    tools = hashlib.sha256()
    for file in sorted((w.ROOT / "tests/tools").glob("*.py")):
        tools.update(file.read_bytes())
    name = hashlib.sha256(repr((tools.digest(), family, fmt, seed, sorted(sizes.items()))).encode()).hexdigest()[:16]
    folder = w.ROOT / "build/test-data/e2e" / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.with_suffix(".lock"), "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=folder.parent) as unfinished:
                tiny_checkpoint.write(f"{unfinished}/m", family, fmt, seed=seed, **sizes)
                os.rename(f"{unfinished}/m", folder)
    return folder


class Checkpoints:
    """The checkpoints of a test module, its own copies: write() is its setUpModule, remove() its tearDownModule.

    kinds: name -> (family, format, sizes), arguments of tiny_checkpoint.write().
    """

    def __init__(self, kinds):
        self.kinds = kinds

    def write(self):
        self.temporary = tempfile.TemporaryDirectory(prefix="ctw-")
        for seed, (name, (family, fmt, sizes)) in enumerate(self.kinds.items()):
            shutil.copytree(written(family, fmt, seed, sizes), self.path(name), copy_function=shutil.copyfile)

    def remove(self):
        self.temporary.cleanup()

    @property
    def folder(self):
        return self.temporary.name

    def path(self, name):
        return os.path.join(self.folder, name)


def environment(**gpu):
    return {"CTWORKER_CUDA_LIBRARY": str(DEVICE)} | {
        f"CTW_FAKE_GPU_{k.upper()}": str(v) for k, v in gpu.items()}


def random_pairs(n=9, longest=40, seed=1):
    rng = random.Random(seed)
    return [([rng.randrange(N_IDS) for _ in range(rng.randint(1, longest))],
             [rng.randrange(N_IDS) for _ in range(rng.randint(1, 8))]) for _ in range(n)]


PAIRS = random_pairs()


def run(*argv, text="", env=None, program=WORKER, **gpu):
    done = subprocess.run([str(program), *map(str, argv)], input=text, capture_output=True, text=True,
                          env=os.environ | environment(**gpu) | (env or {}), timeout=120, check=False)
    assert "Sanitizer" not in done.stderr and "fake GPU: " not in done.stderr, done.stderr
    return done
