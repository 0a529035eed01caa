"""Gemma 4's factor of a layer's output, also 0, which a checkpoint of zeros has (to plan with, say)."""

import json
import math
import shutil
import subprocess
import sys
import unittest
from pathlib import Path

import numpy as np
from real_worker import N_IDS, WORKER, Checkpoints

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
import checkpoint_io  # noqa: E402

CHECKPOINTS = Checkpoints({"gemma4": ("gemma4_text", "bf16", {})})
setUpModule, tearDownModule, model = CHECKPOINTS.write, CHECKPOINTS.remove, CHECKPOINTS.path


def logprobs(folder, *options):
    done = subprocess.run([WORKER, "score", "--model", folder, "--backend", "cpu", *options], check=True, text=True,
                          input='{"id": 0, "tokens": [1, 2, 3, 4]}\n', stdout=subprocess.PIPE)
    return json.loads(done.stdout)["logprobs"]


class LayerScalar(unittest.TestCase):
    def test_zero(self):
        """Nothing is left of the tokens: all of the vocabulary is equally likely."""
        c, folder = checkpoint_io.Checkpoint(model("gemma4")), model("zero")
        shutil.copytree(model("gemma4"), folder)
        last = max(name for name in c.names() if name.endswith("layer_scalar"))
        batches = [checkpoint_io.Batch([(name, c.dtype(name), c.shape(name))],
                                       lambda name=name: [c.carrier(name) * np.uint16(name != last)])
                   for name in c.names()]
        checkpoint_io.write_safetensors(f"{folder}/model.safetensors", batches)
        for dtype in ("bfloat16", "float32"):
            np.testing.assert_allclose(logprobs(folder, "--dtype", dtype), [-math.log(N_IDS)] * 3, rtol=1e-6)
            self.assertGreater(np.ptp(logprobs(model("gemma4"), "--dtype", dtype)), 0.01)


if __name__ == "__main__":
    unittest.main()
