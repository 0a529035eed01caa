"""The real worker with the fake GPU (tests/service/fake_device.c), and tiny checkpoints for it."""

import os
import random
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


class Checkpoints:
    """The checkpoints of a test module: write() is its setUpModule, remove() its tearDownModule.

    kinds: name -> (family, format, sizes), arguments of tiny_checkpoint.write().
    """

    def __init__(self, kinds):
        self.kinds = kinds

    def write(self):
        self.temporary = tempfile.TemporaryDirectory(prefix="ctw-")
        for seed, (name, (family, fmt, sizes)) in enumerate(self.kinds.items()):
            tiny_checkpoint.write(self.path(name), family, fmt, seed=seed, **sizes)

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
