"""Weights that are streamed: the same bits as mapped ones whatever the limit, on the CPU and on the
fake GPU (tests/service/fake_device.c), in bounded memory; files that change; what users are told."""

import json
import os
import random
import re
import shutil
import tempfile
import unittest
from pathlib import Path

import worker_process as w
from real_worker import DEEP, PAIRS, REFERENCE, WORKER, Checkpoints, environment, random_pairs, run
from worker_cases import until

# `large` has weights of 100 MiB; with a sanitizer, which is slow at reading them, of 40.
LARGE_LAYERS = 16 if w.sanitizers(WORKER) else 40
CHECKPOINTS = Checkpoints({
    "tied": ("llama_tied", "bf16", {"layers": 12}), "int4": ("qwen2", "w4a16_g32_asym", {"layers": 9}),
    "fp4": ("qwen3", "nvfp4", {"layers": 7}), "order": ("llama", "w4a16_g32_actorder", {"layers": 5}),
    "own_inputs": ("gemma4_e", "bf16", {}), "delta": ("qwen3_next", "w4a16_g32_asym", {}),
    "mamba": ("granitemoehybrid_mamba", "fp8_block", {}), "deep": DEEP,
    "large": ("llama", "bf16", {"layers": LARGE_LAYERS, "hidden": 512, "inner": 1024, "heads": 4, "kv_heads": 2, "head": 128})})
setUpModule, tearDownModule, model = CHECKPOINTS.write, CHECKPOINTS.remove, CHECKPOINTS.path
FEW = random_pairs(2, 8, seed=6)  # for `large`: its subject is the weights
CANNOT = "cannot be streamed through"
MIB = 1 << 20


def lines(pairs):
    return "".join(json.dumps({"id": i, "context": c, "continuation": k}) + "\n" for i, (c, k) in enumerate(pairs))


def score(name, *options, backend="cpu", pairs=PAIRS, **gpu):
    return run("score", "--model", model(name), "--threads", 2, "--backend", backend, *options, text=lines(pairs), **gpu)


def size_of(name):
    return os.path.getsize(model(name) + "/model.safetensors")


def server(*args, names=("deep",), folder=None, **gpu):
    return w.Worker("--threads", "2", *args, program=WORKER, env=environment(**gpu),
                    models=[folder] if folder else [model(n) for n in names])


class Scores(unittest.TestCase):
    def test_the_same_bits_with_any_limit(self):
        rng = random.Random(5)
        streamed = 0
        for name in CHECKPOINTS.kinds:
            pairs = FEW if name == "large" else PAIRS
            want = score(name, "--placement", "mapped", pairs=pairs, program=REFERENCE)
            self.assertEqual(want.returncode, 0, want.stderr)
            for backend in ("cpu", "cuda"):
                limits = [int(size_of(name) * rng.uniform(0.1, 1.0)) for _ in range(w.repeats(3))]
                for options in ([], *(["--weights-limit", f"{n}B"] for n in limits)):
                    done = score(name, "--placement", "streamed", *options, "--pass-tokens", 90, "--chunk-tokens", 40,
                                 backend=backend, pairs=pairs, copy_us=rng.choice((0, 500)))
                    if options and CANNOT in done.stderr:
                        continue
                    self.assertEqual((done.returncode, done.stdout), (0, want.stdout), (name, options, done.stderr))
                    streamed += "every pass reads" in done.stderr
        self.assertGreater(streamed, 20 if w.repeats(3) == 3 else 10)

    def test_all_in_memory_on_the_cpu(self):
        done = score("deep", "--placement", "resident")
        self.assertEqual((done.returncode, done.stdout), (0, score("deep").stdout), done.stderr)
        self.assertIn("weights: resident, ", done.stderr)

    def test_a_gpu_that_is_too_small_streams(self):
        """Without any option; and every tensor is uploaded again in every pass, but for those that stay."""
        want = score("large", pairs=FEW).stdout
        for share in (0.3, 0.5):
            done = score("large", backend="cuda", pairs=FEW, memory=int(share * size_of("large")))
            self.assertEqual((done.returncode, done.stdout), (0, want), done.stderr)
            self.assertIn("weights: streamed, ", done.stderr)
        done = score("large", backend="cuda", pairs=FEW)
        self.assertEqual((done.returncode, done.stdout), (0, want), done.stderr)
        self.assertIn("weights: resident, ", done.stderr)


class MemoryOfTheProcess(unittest.TestCase):
    @unittest.skipIf(w.sanitizers(WORKER), "sanitizers take memory of their own")
    def test_it_stays_within_the_limit(self):
        """A quarter of `large` is allowed. The rest of the process takes less than 32 MiB."""
        peak, scores = {}, {}
        limit, rest = 25, 32
        for how in ("mapped", "streamed"):
            options = ["--weights-limit", f"{limit}MiB"] if how == "streamed" else []
            with server("--backend", "cpu", "--memory-limit", "20MiB", "--max-length", "64", "--pass-tokens", "64",
                        "--placement", how, *options, names=("large",)) as a, a.client() as c:
                scores[how] = c.run_pairs(random_pairs(6, 20))
                status = Path(f"/proc/{a.process.pid}/status").read_text()
                peak[how] = int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024
        self.assertEqual(scores["mapped"], scores["streamed"])
        self.assertLess(peak["streamed"], (limit + rest) * MIB)
        self.assertGreater(peak["mapped"], size_of("large"))


class Service(unittest.TestCase):
    def test_cancelled_jobs(self):
        """Passes end wherever they are; the next pass begins again with the first layer."""
        want = {i: json.loads(x)["logprobs"] for i, x in enumerate(score("deep").stdout.splitlines())}
        rng = random.Random(3)
        for backend in ("cpu", "cuda"):
            with server("--backend", backend, "--placement", "streamed", copy_us=2000) as a, a.client() as c:
                for _ in range(w.repeats(6)):
                    doomed = c.pairs([([1] * 300, [2, 3])] * 3)
                    layer = rng.randrange(40)
                    until(lambda j=doomed, n=layer: c.call("poll", job=j).get("progress", {}).get("layer", 0) >= n
                          or c.call("poll", job=j)["state"] == "done")
                    c.call("cancel", job=doomed)
                    job = c.pairs(PAIRS, columns=["logprob"])
                    self.assertEqual(c.wait(job)["state"], "done")
                    got = {i: r[4] for i, r in c.fetch(job).items()}
                    self.assertEqual(got, {i: [w.f32(x) for x in v] for i, v in want.items()})

    def test_info(self):
        with server("--backend", "cpu", "--weights-limit", "30MiB", names=("large",)) as a:
            m = json.loads(a.command("info", "--json").stdout)["models"][0]
            self.assertEqual(m["placement"], "streamed")
            self.assertEqual(m["weights_bytes"] // MIB, size_of("large") // MIB)
            self.assertLessEqual(m["weights_memory"], 30 * MIB)
            self.assertGreater(m["weights_streamed"], m["weights_bytes"] - 30 * MIB)
            self.assertRegex(m["weights_note"], r"every pass reads [\d.]+ MiB at about [\d.]+ .iB/s, which takes .* s, "
                             r"and computes for about .* s with \d+ tokens: bound by (reading|computing);about \d+ tokens/s, ")
            self.assertIn("  weights     streamed, ", a.command("info").stdout)
            self.assertIn("weights: streamed, ", a.text())

    def test_a_file_that_changes(self):
        """One sentence that names it; no score; another model goes on."""
        for backend in ("cpu", "cuda"):
            for spoil in ("cut", "changed"):
                with tempfile.TemporaryDirectory(prefix="ctw-") as d:
                    shutil.copytree(model("deep"), f"{d}/deep")
                    with server("--backend", backend, "--placement", "streamed", folder=f"{d}/deep") as a, \
                            a.client() as c:
                        self.assertEqual(len(c.run_pairs(PAIRS)), len(PAIRS))
                        path = f"{d}/deep/model.safetensors"
                        if spoil == "cut":
                            os.truncate(path, 2000)
                        else:
                            with open(path, "r+b") as f:
                                f.seek(-2000, os.SEEK_END)
                                byte = f.read(1)
                                f.seek(-1, os.SEEK_CUR)
                                f.write(bytes([byte[0] ^ 1]))
                        job = c.pairs(PAIRS)
                        r = c.wait(job)
                        self.assertEqual((r["state"], r["error"]["code"]), ("failed", "io"), r)
                        self.assertRegex(r["error"]["message"], "model.safetensors: .*load the model again")
                        self.assertEqual(c.fetch(job), {})
                        self.assertEqual(c.call("info")["models"][0]["state"], "failed")


class Failures(unittest.TestCase):
    def test_a_gpu_that_fails(self):
        """In an operation, or in an upload of any pass: one error, the exit code of `device`, and no hanging."""
        for fault in ({"fail_op": 1}, {"fail_op": 30}, {"fail_op": 400}, {"fail_copy": 1}, {"fail_copy": 20},
                      {"fail_copy": 90}):
            done = score("deep", "--placement", "streamed", "--pass-tokens", 90, backend="cuda", copy_us=200, **fault)
            self.assertEqual(done.returncode, 69, (fault, done.stderr))
            self.assertIn("the GPU has fallen off the bus", done.stderr.splitlines()[-1])
            self.assertLess(done.stdout.count("\n"), len(PAIRS))


class Choosing(unittest.TestCase):
    def test_inspect_tells_before(self):
        done = run("inspect", "--backend", "cpu", "--weights-limit", "30MiB", model("large"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"(?s)\nweights: streamed, .* bound by (reading|computing)\n")
        done = run("inspect", "--backend", "cpu", model("large"))
        self.assertRegex(done.stdout, r"\nweights: mapped, [\d.]+ MiB\n")
        done = run("inspect", "--backend", "cuda", "--placement", "streamed", model("large"))
        self.assertRegex(done.stdout, r"\nweights: streamed, ")

    def test_refusals(self):
        for backend, options, code, parts in (
                ("cuda", ("--placement", "mapped"), 64, ("a GPU does not compute from mapped files",)),
                ("cpu", ("--placement", "mapped", "--weights-limit", "30MiB"), 71,
                 ("--placement mapped: the weights need", "--weights-limit is 30.0 MiB")),
                ("cuda", ("--placement", "resident", "--weights-limit", "30MiB"), 71,
                 ("--placement resident: the weights need",)),
                ("cuda", ("--placement", "resident"), 71, ("of the GPU's memory is free",)),
                ("cpu", ("--weights-limit", "1MiB"), 71, (CANNOT, "raise --weights-limit")),
                ("cpu", ("--placement", "swapped"), 64, ("expected one of auto|mapped|resident|sharded|streamed",))):
            done = score("large", *options, backend=backend, memory=40 * MIB)
            self.assertEqual(done.returncode, code, done.stderr)
            for part in parts:
                self.assertIn(part, done.stderr.splitlines()[-1])


if __name__ == "__main__":
    unittest.main()
