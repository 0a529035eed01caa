"""The messages if the NVIDIA driver is too old, reports no GPU, or does not start: the real CUDA backend on
a fake driver (stub_driver.c). Needs a build with CUDA (CTW_CUDA_BUILD names its folder) and a program of the same
sources (CTWORKER names it), no GPU."""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
import tiny_checkpoint  # noqa: E402

BUILD = Path(os.environ["CTW_CUDA_BUILD"])
UNSUPPORTED, DEVICE = 65, 69  # exit codes, base/status.c
NO_DEVICE, STUB_LIBRARY, NOT_INITIALIZED, UNKNOWN = 100, 34, 3, 999  # CUresult


class Drivers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="ctw-")
        tiny_checkpoint.write(cls.folder.name, "llama", "bf16", seed=1)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def score(self, backend, version, init):
        stub = BUILD / "tests/gpu/stub_driver"
        self.assertTrue((stub / "libcuda.so.1").exists(), "built by the target gpu_tests")
        path = os.pathsep.join(filter(None, [str(stub), os.environ.get("LD_LIBRARY_PATH")]))
        return subprocess.run(
            [os.environ["CTWORKER"], "score", "--model", self.folder.name, "--backend", backend],
            input='{"id": 0, "tokens": [1, 2, 3]}\n', capture_output=True, text=True, timeout=120,
            check=False, env={k: v for k, v in os.environ.items() if not k.startswith("CTW")} | {
                "CTWORKER_CUDA_LIBRARY": str(BUILD / "kernels/cuda/libctworker_cuda.so"), "LD_LIBRARY_PATH": path,
                "CTW_STUB_DRIVER_VERSION": str(version),
                "CTW_STUB_DRIVER_INIT": str(init)})

    def refused(self, backend, version, init, code, *parts):
        done = self.score(backend, version, init)
        lines = [x for x in done.stderr.splitlines() if "error: " in x]
        self.assertEqual((done.returncode, done.stdout, len(lines)), (code, "", 1), done.stderr)
        for part in (*parts, "--backend cpu"):
            self.assertIn(part, lines[0])

    def falls_back(self, version, init, why):
        """The CPU computes, and the log gives the reason."""
        done = self.score("auto", version, init)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(json.loads(done.stdout)["logprobs"]), 2)
        line = next(x for x in done.stderr.splitlines() if " cpu-" in x)
        self.assertIn(why, line)

    def test_too_old(self):
        for version, name in ((12040, "12.4"), (11080, "11.8")):
            why = f"no GPU: the NVIDIA driver is for CUDA {name}, this program needs "
            self.refused("cuda", version, 0, UNSUPPORTED, why, "update the driver")
            self.falls_back(version, 0, why)

    def test_no_driver(self):
        self.refused("cuda", 0, 0, UNSUPPORTED, "there is no NVIDIA driver")
        self.falls_back(0, 0, "no GPU: there is no NVIDIA driver")

    def test_shows_no_gpu(self):
        why = "no GPU: the driver reports none (check CUDA_VISIBLE_DEVICES)"
        self.refused("cuda", 99000, NO_DEVICE, UNSUPPORTED, why)
        self.falls_back(99000, NO_DEVICE, why)

    def test_a_stub(self):
        why = "no GPU: the driver's library is unusable: "
        self.refused("cuda", 99000, STUB_LIBRARY, UNSUPPORTED, why)
        self.falls_back(99000, STUB_LIBRARY, why)

    def test_does_not_start(self):
        """`auto` does not ignore a broken GPU: its owner wants to know."""
        for init in (NOT_INITIALIZED, UNKNOWN):
            for backend in ("cuda", "auto"):
                self.refused(backend, 99000, init, DEVICE, "looking for GPUs", "nvidia-smi")


if __name__ == "__main__":
    unittest.main()
