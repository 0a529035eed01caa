"""Checks of a build with CUDA (CTW_CUDA_BUILD names its folder) that need no GPU."""

import json
import os
import re
import subprocess
import unittest
from pathlib import Path

BUILD = Path(os.environ["CTW_CUDA_BUILD"])
CUDA = Path(__file__).resolve().parents[2] / "kernels/cuda"
DECODER = re.compile(r'#include "kernels/formats/(all|bytes|\w+/decode)\.h"')


class Build(unittest.TestCase):
    def test_decoders_have_no_multiply_adds_but_written_ones(self):
        """Otherwise the compiler fuses them, and a decoded weight is not bit-equal to the host's."""
        commands = {Path(c["file"]).name: c["command"] for c in
                    json.loads((BUILD / "compile_commands.json").read_text()) if "/kernels/cuda/" in c["file"]}
        texts = {p.name: p.read_text() for p in CUDA.rglob("*") if p.suffix in (".cu", ".cuh", ".h")}
        decoders = {name for name, text in texts.items() if DECODER.search(text)}
        self.assertEqual({name for name in decoders if not name.endswith(".cu")}, set())
        self.assertGreaterEqual(len(decoders), 3)
        for name in decoders:
            self.assertIn("-fmad=false", commands[name], name)

    def test_the_file_of_choices(self):
        done = subprocess.run([BUILD / "tests/gpu/test_gemm_file"], text=True, capture_output=True, timeout=60,
                              check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"\n\d+ passed, 0 failed\n$")


if __name__ == "__main__":
    unittest.main()
