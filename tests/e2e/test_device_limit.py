"""--device-memory-limit: weights and passes together stay within a part of a device's memory, with the same bits."""

import json
import re
import unittest

import worker_process as w
from real_worker import DEEP, REFERENCE, WORKER, Checkpoints, environment, random_pairs, run
from worker_cases import until

MODELS = {"deep": DEEP, "int4": ("qwen2", "w4a16_g32_asym", {})}
CHECKPOINTS = Checkpoints(MODELS)
setUpModule, tearDownModule, model = CHECKPOINTS.write, CHECKPOINTS.remove, CHECKPOINTS.path
MANY = random_pairs(w.repeats(40), seed=7)
MIB = 1 << 20


def score(*options, **gpu):
    lines = [json.dumps({"id": i, "context": c, "continuation": k}) + "\n" for i, (c, k) in enumerate(MANY)]
    return run("score", "--model", model("deep"), "--threads", 1, *options, text="".join(lines), **gpu)


class DeviceLimit(unittest.TestCase):
    def test_the_same_bits_in_less(self):
        want = score("--backend", "cpu", program=REFERENCE).stdout
        for backend in ("cpu", "cuda"):
            places = set()
            for limit in ("1536KiB" if backend == "cuda" else "3MiB", "4MiB", "7MiB", "20MiB", "50%"):
                done = score("--backend", backend, "--device-memory-limit", limit)
                self.assertEqual((done.returncode, done.stdout), (0, want), done.stderr)
                places.add(re.search(r"weights: (\w+),", done.stderr)[1])
                self.assertRegex(done.stderr, r"needs [\d.]+ .iB of the [\d.]+ .iB that it may use")
            self.assertEqual(places, {"streamed", "mapped" if backend == "cpu" else "resident"})

    def test_what_is_allocated(self):
        """Of two models and their passes, on each device."""
        for limit in (8 * MIB, 12 * MIB, "10%"):
            with w.Worker("--threads", "1", "--backend", "cuda", "--devices", "0,1", "--device-memory-limit", str(limit),
                          program=WORKER, models=[model(m) for m in MODELS],
                          env=environment(memory=100 * MIB)) as a, a.client() as c:
                most = limit if isinstance(limit, int) else 10 * MIB
                for name in ("deep", "int4", "deep"):
                    self.score_within(most, a, c, name)
                until(lambda: all(d["tokens_done"] > 0 for d in self.score_within(most, a, c, "deep")))

    def score_within(self, most, a, c, name):
        """Scores; returns what the devices then tell."""
        c.wait(c.pairs(MANY, model=name))
        devices = json.loads(a.command("info", "--json").stdout)["devices"]
        for d in devices:
            self.assertLessEqual(d["memory_used"], most)
            self.assertLessEqual(d["memory_total"] - d["memory_free"], most + MIB // 4)  # whole pages
        return devices

    def test_with_other_limits(self):
        def planned(*options):
            done = run("inspect", "--backend", "cuda", *options, model("deep"))
            return done.stdout, done
        text, _ = planned("--device-memory-limit", "5MiB", "--memory-limit", "4MiB")
        self.assertRegex(text, r"needs [\d.]+ .iB of the 5\.0 MiB that it may use: 1005\.8 KiB for weights")
        text, _ = planned("--device-memory-limit", "5MiB", "--weights-limit", "1MiB")
        self.assertRegex(text, r"streamed, 2\.4 MiB in 1005\.8 KiB")
        _, done = planned("--device-memory-limit", "4MiB", "--memory-limit", "4MiB")
        self.assertEqual(done.returncode, 71)
        self.assertIn("lower --memory-limit, or leave it out", done.stderr)
        _, done = planned("--device-memory-limit", "600KiB")
        self.assertEqual(done.returncode, 71)
        self.assertIn("--device-memory-limit leaves too little (raise it)", done.stderr)
        for text in ("0", "0%", "101%", "-5%", "5x", "%"):
            _, done = planned("--device-memory-limit", text)
            self.assertEqual(done.returncode, 64)
            self.assertIn("a share such as 90%", done.stderr)
        done = run("inspect", "--device-memory", "48GiB", "--device-memory-limit", "50%", model("deep"))
        self.assertIn("of the 24.0 GiB that it may use", done.stdout)


if __name__ == "__main__":
    unittest.main()
