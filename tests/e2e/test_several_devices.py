"""The real worker with several fake GPUs (tests/service/fake_device.c): options, jobs, faults. The fake
GPUs compute with the CPU's kernels, so every score must equal the CPU's bit for bit."""

import json
import os
import tempfile
import time
import unittest
from pathlib import Path

import worker_process as w
from real_worker import DEEP, PAIRS, REFERENCE, WORKER, Checkpoints, environment, random_pairs, run
from worker_cases import timed

MODELS = {"int4": ("qwen2", "w4a16_g32_asym", {}), "int8": ("llama", "int8_channel", {}), "deep": DEEP,
          "delta": ("qwen3_5_text", "w4a16_g32", {}), "mamba": ("nemotron_h_latent", "fp8_block", {}),
          "many": ("llama", "bf16", {"layers": 160, "hidden": 64, "inner": 128, "heads": 2, "kv_heads": 1, "head": 32})}
CHECKPOINTS = Checkpoints(MODELS)
setUpModule, tearDownModule, model = CHECKPOINTS.write, CHECKPOINTS.remove, CHECKPOINTS.path
MANY = random_pairs(w.repeats(40), seed=3)


def score(name, *options, pairs=MANY, **gpu):
    lines = [json.dumps({"id": i, "context": c, "continuation": k}) for i, (c, k) in enumerate(pairs)]
    return run("score", "--model", model(name), "--threads", 1, *options,
               text="".join(line + "\n" for line in lines), **gpu)


def on_cpu(name, *options, pairs=MANY):
    """The lines that `score` prints on the CPU."""
    return score(name, "--backend", "cpu", *options, pairs=pairs, program=REFERENCE).stdout


def expected(name, pairs):
    lines = on_cpu(name, pairs=pairs).splitlines()
    return {r["id"]: [w.f32(x) for x in r["logprobs"]] for r in map(json.loads, lines)}


def server(*args, models=("int4",), **gpu):
    return w.Worker("--threads", "1", "--backend", "cuda", *args, program=WORKER,
                    models=[model(m) for m in models], env=environment(**gpu))


class SeveralDevices(unittest.TestCase):
    def assert_scored(self, client, job, name, pairs):
        r = client.wait(job)
        self.assertEqual(r["state"], "done", r)
        got = {i: item[4] for i, item in client.fetch(job).items()}
        self.assertEqual(got, expected(name, pairs))

    def test_score(self):
        want = on_cpu("int4")
        for devices, count in (("0,1", 2), ("all", 3), ("1-3", 8), ("all", 1)):
            done = score("int4", "--devices", devices, "--pass-tokens", 90, count=count, op_us=100)
            self.assertEqual((done.returncode, done.stdout), (0, want), done.stderr)
        done = score("int4", "--devices", "all", "--placement", "sharded", "--pass-tokens", 90, count=5)
        self.assertEqual((done.returncode, done.stdout), (0, want), done.stderr)
        self.assertRegex(done.stderr, r"(?s)sharded, .* over 5 devices, .*\n.*every pass gathers ")
        self.assertIn("3 devices of this kind share the work",
                      score("int4", "--devices", "all", count=3).stderr)

    def test_states(self):
        """Layers that carry a state, which a sequence's device has to itself."""
        for name in ("delta", "mamba"):
            want = on_cpu(name)
            for options in (("--devices", "0,1", "--pass-tokens", 90, "--chunk-tokens", 11),
                            ("--devices", "all", "--placement", "sharded", "--pass-tokens", 90)):
                done = score(name, *options, count=3, op_us=100)
                self.assertEqual((done.returncode, done.stdout), (0, want), done.stderr)

    def test_quantised_activations(self):
        for name in ("int8", "mamba"):
            want = on_cpu(name, "--activations", "checkpoint")
            self.assertNotEqual(want, on_cpu(name))
            done = score(name, "--devices", "all", "--activations", "checkpoint", "--chunk-tokens", 50, count=2)
            self.assertEqual((done.returncode, done.stdout), (0, want), done.stderr)

    def test_memory_of_shards(self):
        """Two GPUs hold little more than half of the weights each: planned, and taken (the GPUs have no more)."""
        note = score("many", "--devices", "0,1", "--placement", "sharded", pairs=MANY[:1]).stderr
        size = os.path.getsize(model("many") + "/model.safetensors")
        with server("--devices", "0,1", "--placement", "sharded", models=("many",)) as a:
            m = json.loads(a.command("info", "--json").stdout)["models"][0]
        self.assertLess(m["weights_memory"], 0.52 * size, note)
        want = on_cpu("many")
        options = ("--devices", "0,1", "--placement", "sharded", "--pass-tokens", 64, "--memory-limit", "2MiB")
        done = score("many", *options, memory=int(0.52 * size) + (2 << 20))
        self.assertEqual((done.returncode, done.stdout), (0, want), done.stderr)
        done = score("many", *options, memory=int(0.5 * size))
        self.assertEqual(done.returncode, 71, done.stderr)

    def test_wrong_lists(self):
        for devices, code, part in (("0,0", 64, "named twice"), ("a", 64, "0-3"), ("0,5", 64, "device 5"),
                                    ("0,1", 64, "numerics id")):
            done = score("int4", "--devices", devices, kind="0,1" if part == "numerics id" else "0")
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertIn(part, done.stderr)

    def test_uuids(self):
        want = on_cpu("int4")
        for devices in ("GPU-00000002,0", "GPU-00000001", "1,GPU-00000000-0000", "GPU-00000003-0000-0000"):
            done = score("int4", "--devices", devices, count=4)
            self.assertEqual((done.returncode, done.stdout), (0, want), done.stderr)
        self.assertRegex(done.stderr, r"device 3: fake GPU 3, 00000000:13:00\.0, GPU-00000003-0000-0000-0000-000000000000\n")
        for devices, part in (("GPU-0", "4 of the 4 GPUs that this program sees"), ("GPU-7", "0 of the 4"),
                              ("0,GPU-00000000", "device 0 is named twice"), ("MIG-1", "0 of the 4"), ("GPX-1", "UUIDs of GPUs")):
            done = score("int4", "--devices", devices, count=4)
            self.assertEqual(done.returncode, 64, done.stderr)
            self.assertIn(part, done.stderr)
        done = score("int4", "--backend", "cpu", "--devices", "GPU-00000000")
        self.assertEqual(done.returncode, 64)
        self.assertIn("GPU-00000000 is a GPU, and --backend is cpu", done.stderr)

    def test_hidden_gpus(self):
        done = score("int4", "--devices", "0,2", count=2)
        self.assertIn("device 2: this machine has 2 GPUs, numbered from 0", done.stderr)
        os.environ["CUDA_VISIBLE_DEVICES"] = "5,1"
        try:
            done = score("int4", "--devices", "0,2", count=2)
        finally:
            del os.environ["CUDA_VISIBLE_DEVICES"]
        self.assertEqual(done.returncode, 64, done.stderr)
        self.assertIn('device 2: this program sees 2 GPUs, numbered from 0, because CUDA_VISIBLE_DEVICES is "5,1"', done.stderr)

    def test_nothing_to_share_with(self):
        done = score("int4", "--placement", "sharded")
        self.assertEqual(done.returncode, 64, done.stderr)
        self.assertIn("needs several GPUs: give --devices all", done.stderr)

    def test_a_line_that_is_bad(self):
        """Results of all lines before it are written, in their order."""
        lines, good = [json.dumps({"id": i, "tokens": c + k}) for i, (c, k) in enumerate(MANY)], 3 * len(MANY) // 4
        done = run("score", "--model", model("int4"), "--devices", "all", "--pass-tokens", 60, "--threads", 1,
                   text="\n".join([*lines[:good], "{}", *lines[good:]]) + "\n", count=4)
        self.assertEqual(done.returncode, 65, done.stderr)
        self.assertEqual([json.loads(x)["id"] for x in done.stdout.splitlines()], list(range(good)))

    def test_jobs_of_two_models(self):
        with server("--devices", "0-2", models=("int4", "deep"), count=3) as a, a.client() as c:
            jobs = [(name, pairs, c.pairs(pairs, columns=["logprob"], model=name))
                    for name in ("int4", "deep") for pairs in (PAIRS, MANY)]
            cancelled = c.pairs(MANY, model="deep")
            c.call("cancel", job=cancelled)
            for name, pairs, job in jobs:
                self.assert_scored(c, job, name, pairs)

    @timed
    def test_a_gpu_that_fails(self):
        """The others score its items, in the running job and afterwards; the worker stays ready."""
        with tempfile.TemporaryDirectory(prefix="ctw-") as d, \
                server("--devices", "all", count=3, fail_file=f"{d}/now", op_us=2000) as a, a.client() as c:
            job = c.pairs(MANY, columns=["logprob"])
            time.sleep(0.2)
            Path(d, "now.1").touch()
            self.assert_scored(c, job, "int4", MANY)
            self.assert_scored(c, c.pairs(PAIRS, columns=["logprob"]), "int4", PAIRS)
            self.assertEqual(c.call("health")["state"], "ready")
            self.assertIn("device 1 (fake GPU 1) has failed and is used no more", a.text())
            for i in (0, 2):
                Path(d, f"now.{i}").touch()
            r = c.wait(c.pairs(PAIRS))
            self.assertEqual((r["state"], r["error"]["code"]), ("failed", "device"), r)
            self.assertEqual(c.call("health")["state"], "failed")


if __name__ == "__main__":
    unittest.main()
