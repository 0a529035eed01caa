"""The real worker on the fake GPU (tests/service/fake_device.c): selection, loading, memory,
faults. The fake GPU computes with the CPU's kernels, so every score must equal the CPU's bit for bit."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import worker_process as w
from real_worker import BUILD, DEEP, PAIRS, REFERENCE, WORKER, Checkpoints, environment, random_pairs, run
from worker_cases import ended, timed, until

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "gpu"))
import checkpoint_io  # noqa: E402
from bench_plan import seconds_of_load  # noqa: E402
import tiny_checkpoint  # noqa: E402

MODELS = {"tied": ("llama_tied", "bf16", {}), "int4": ("qwen2", "w4a16_g32_asym", {}),
          "fp4": ("qwen3", "nvfp4", {}), "int8": ("mistral_swa", "w8a16_channel", {}),
          "tied_int4": ("llama_tied", "w4a16_g32", {}), "fp32": ("llama_bias", "fp32", {}),
          "fp16": ("qwen3_tied", "fp16", {}), "heads": ("stablelm_parallel", "bf16", {}),
          "narrow": ("opt_350m", "w4a16_g32", {}), "blocks": ("phi3", "fp8_block", {}),
          "mixed": ("llama", "mixed", {}), "delta": ("qwen3_5_moe_text", "fp8_block", {}),
          "mamba": ("nemotron_h", "w4a16_g32", {}), "scan": ("jamba", "bf16", {}), "conv": ("lfm2_moe", "nvfp4", {}),
          "sparse": ("minimax_m3_vl", "bf16", {}), "sums": ("kimi_k3", "bf16", {}), "deep": DEEP}
FAST = "avx2" if "avx2" in Path("/proc/cpuinfo").read_text() else "c"  # a variant that most machines have
CHECKPOINTS = Checkpoints(MODELS)
setUpModule, tearDownModule, model = CHECKPOINTS.write, CHECKPOINTS.remove, CHECKPOINTS.path


def score(name, *options, pairs=None, **gpu):
    lines = [json.dumps({"id": i, "context": c, "continuation": k})
             for i, (c, k) in enumerate(PAIRS if pairs is None else pairs)]
    return run("score", "--model", model(name), "--threads", 2, *options,
               text="".join(line + "\n" for line in lines), **gpu)


def on_cpu(name, pairs=None, *options):
    """The lines that `score` prints on the CPU."""
    done = score(name, "--backend", "cpu", *options, pairs=pairs, program=REFERENCE)
    assert done.returncode == 0, done.stderr
    return done.stdout


def expected(name, pairs, *options):
    """{item: log-probabilities} from the CPU, in the form of Client.fetch()."""
    lines = map(json.loads, on_cpu(name, pairs, *options).splitlines())
    return {r["id"]: [w.f32(x) for x in r["logprobs"]] for r in lines}


def server(*args, models=("tied",), **gpu):
    return w.Worker("--threads", "2", "--backend", "cuda", *args, program=WORKER,
                    models=[model(m) for m in models], env=environment(**gpu))


def scores_by(client, pairs, **head):
    job = client.pairs(pairs, columns=["logprob"], **head)
    r = client.wait(job)
    assert r["state"] == "done", r
    return {i: item[4] for i, item in client.fetch(job).items()}


def counts_of(model_info):
    """The counters that fake_device.c reports in place of a GPU's algorithms."""
    return {k: int(v) for k, v in (x.rsplit(" ", 1) for x in model_info["products"].split(";"))}


class Device(unittest.TestCase):
    def assert_refused(self, done, code, *parts):
        """The command ended with this exit code and one error, which contains these words."""
        errors = [x for x in done.stderr.splitlines() if x.startswith("ctworker: error")]
        self.assertEqual((done.returncode, len(errors)), (code, 1), done.stderr)
        for part in parts:
            self.assertIn(part, errors[0])

    def assert_failed(self, client, job, code, part):
        r = client.wait(job)
        self.assertEqual((r["state"], r["error"]["code"]), ("failed", code), r)
        self.assertIn(part, r["error"]["message"])

    def assert_ends(self, worker, client, code, part):
        """The worker refuses further jobs, gives the reason, and ends with this exit code."""
        self.assertEqual(client.call("health")["state"], "failed")
        with self.assertRaises(w.Refused) as e:
            client.pairs(PAIRS)
        self.assertEqual(e.exception.code, "device")
        self.assertIn(part, e.exception.message)
        self.assertIn(part, client.call("health")["message"])
        worker.process.terminate()  # no other client needs to read the reason
        self.assertEqual(ended(worker), code)


class Scores(Device):
    def test_the_same_bits_as_the_cpu(self):
        for name in MODELS:
            done = score(name, "--backend", "cuda", "--pass-tokens", 120, "--chunk-tokens", 40)
            self.assertEqual((done.returncode, done.stdout), (0, on_cpu(name)), done.stderr)
        variants = {"c", FAST}
        by = {v: [score("int4", "--backend", b, "--cpu-variant", v, pairs=PAIRS[:2]).stdout
                  for b in ("cpu", "cuda")] for v in variants}
        for v in variants:
            self.assertEqual(by[v][0], by[v][1])
            self.assertTrue(by[v][0])

    def test_the_first_pass_computes_while_layers_are_uploaded(self):
        pairs = random_pairs(3, seed=2) * 5
        n = sum(len(c) + len(k) - 1 for c, k in pairs[:3])
        done = score("deep", "--backend", "cuda", "--pass-tokens", n, pairs=pairs, copy_us=20000)
        self.assertEqual((done.returncode, done.stdout), (0, on_cpu("deep", pairs)), done.stderr)
        results = [json.loads(x)["logprobs"] for x in done.stdout.splitlines()]
        for i in range(3, 15):
            self.assertEqual(results[i], results[i % 3])

    def test_files_are_read_while_memory_is_allocated(self):
        done = score("deep", "--backend", "cuda", alloc_us=3000)
        self.assertEqual((done.returncode, done.stdout), (0, on_cpu("deep")), done.stderr)

    def test_a_load_is_told(self):
        """The log gives the time from the start of the load until all weights are loaded; copies of 20 ms each make it long."""
        for name, copy_us in (("deep", 20000), ("deep", 0), ("tied_int4", 0)):
            started = time.monotonic()
            done = score(name, "--backend", "cuda", env={"CTW_LOG": "debug"}, copy_us=copy_us)
            whole = time.monotonic() - started
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(done.stderr.count("on the GPU after"), 1, done.stderr)
            self.assertRegex(done.stderr, r"pass: \d+ tokens, queued after [\d.]+ ms, computed after ")
            seconds = seconds_of_load(done.stderr)
            began = re.search(r"weights: memory allocated after ([\d.]+) s, first copy begun after ([\d.]+) s",
                              done.stderr)
            times = [0, float(began[1]), float(began[2]), seconds, whole]
            self.assertEqual(times, sorted(times), done.stderr)
            if copy_us:
                self.assertGreater(seconds, 0.02 * 40)  # one layer per step
                self.assertGreater(seconds - float(began[2]), 0.02 * 38)  # all layers but the first follow

    def test_the_same_bits_in_any_company(self):
        done = subprocess.run([BUILD / "tests/invariance", model("int8"), "cuda-hopper", "7", "1"],
                              env=os.environ | environment(copy_us=3000), capture_output=True,
                              text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("same bits", done.stdout)
        self.assertIn("fake-", done.stdout)

    def test_hashes(self):
        for name in ("tied", "int4", "fp4"):
            here = run("inspect", "--hashes", "--backend", "cuda", model(name))
            there = run("inspect", "--hashes", model(name))
            self.assertEqual((here.returncode, there.returncode), (0, 0), here.stderr)
            self.assertEqual(here.stdout, there.stdout)
            self.assertTrue(here.stdout)

    def test_numbers_that_are_not_finite(self):
        with tempfile.TemporaryDirectory(prefix="ctw-") as d:
            shutil.copytree(model("tied"), d, dirs_exist_ok=True)
            name = "model.layers.1.mlp.down_proj.weight"
            at = checkpoint_io.Checkpoint(d).records[name][3]
            with open(f"{d}/model.safetensors", "r+b") as f:
                f.seek(at)
                f.write(b"\xc0\x7f")
            done = score(d, "--backend", "cuda")
            self.assert_refused(done, 65, "not finite", "from layer 1")
            self.assertEqual(score(d, "--backend", "cpu").stderr.splitlines()[-1],
                             done.stderr.splitlines()[-1])

    def test_info(self):
        with server() as a, a.client() as c:
            scores_by(c, PAIRS)
            m = json.loads(a.command("info", "--json").stdout)["models"][0]
            self.assertEqual((m["backend"], m["variant"], m["device"], m["reason"]),
                             ("cuda", "hopper", "fake GPU 0", "requested"))
            self.assertTrue(m["numerics"].startswith("fake-"), m)
            counts = counts_of(m)
            # every product of a decoder layer used weights that had been announced
            self.assertEqual(counts["products"], counts["prepared"])
            self.assertGreaterEqual(counts["products"], 8)
            # every tensor was uploaded once: the tied head is not a tensor of its own
            size = os.path.getsize(model("tied") + "/model.safetensors")
            self.assertLess(counts["uploaded bytes"], size + 30 * 256)
            text = a.command("info").stdout
            self.assertIn("cuda-hopper, fake GPU 0 (requested)", text)
            self.assertNotIn("bits per weight", text)
            self.assertIn(f"  products    products {counts['products']}\n              prepared ", text)


class Choosing(Device):
    def test_auto_takes_it_and_says_why(self):
        done = score("tied")
        self.assertEqual((done.returncode, done.stdout), (0, on_cpu("tied")), done.stderr)
        self.assertIn("cuda-hopper on fake GPU 0 (a GPU is present)", done.stderr)

    def test_auto_without_one_takes_the_cpu_and_says_why(self):
        done = score("tied", open="none")
        self.assertEqual((done.returncode, done.stdout), (0, on_cpu("tied")), done.stderr)
        self.assertRegex(done.stderr, r"cpu-.* \(no GPU: the fake driver shows none\)")

    def test_a_broken_one_is_an_error(self):
        for options in ((), ("--backend", "cuda")):
            self.assert_refused(score("tied", *options, open="broken"), 69, "the GPU does not answer")
        self.assertEqual(score("tied", "--backend", "cpu", open="broken").returncode, 0)

    def test_asked_for_and_not_there(self):
        for gpu, part in (({"open": "none"}, "no GPU: the fake driver shows none"),
                          ({"env": {"CTWORKER_CUDA_LIBRARY": "/nowhere/lib.so"}}, "/nowhere/lib.so"),
                          ({"env": {"CTWORKER_CUDA_LIBRARY": "libm.so.6"}}, "libm.so.6 has no contract")):
            done = run("inspect", "--backend", "cuda", model("tied"), **gpu)
            self.assert_refused(done, 65, part, "(--backend cpu needs no GPU)")
        done = score("tied", env={"CTWORKER_CUDA_LIBRARY": "libm.so.6"})
        self.assertRegex(done.stderr, r"cpu-.*\(no GPU: libm.so.6 has no contract, this program")

    def test_which_one_and_how(self):
        done = score("tied", "--device", 1, "--cuda-variant", "general")
        self.assertIn("cuda-general on fake GPU 1 (a GPU is present)", done.stderr)
        self.assert_refused(score("tied", "--device", 2), 64, "device 2: this machine has 2 GPUs")
        self.assertEqual(score("tied", "--cuda-variant", "fermi").returncode, 64)
        done = run("inspect", "--backend", "cuda", "--cuda-variant", "general", model("tied"))
        self.assertIn("with backend cuda-general, dtype bfloat16:\n", done.stdout)


class Memory(Device):
    def test_too_little_for_the_weights(self):
        self.assert_refused(score("tied", memory=300000), 71, "the weights need 1.", "MiB",
                            "only 293.0 KiB of the GPU's memory is free", "--backend cpu")

    def test_too_little_for_the_rest(self):
        for options, memory in ((("--memory-limit", "1MiB"), 1 << 28), ((), 3 << 20)):
            done = score("tied", *options, memory=memory)
            self.assert_refused(done, 71, "a sequence of 2048 tokens needs", "enough for",
                                "raise --memory-limit, use another GPU or lower --max-length")
            error = done.stderr.splitlines()[-1]
            fits = int(error.split("enough for ")[1].split()[0])
            self.assertGreater(fits, 0)
            again = score("tied", *options, "--max-length", fits, memory=memory)
            self.assertEqual((again.returncode, again.stdout), (0, on_cpu("tied")), again.stderr)

    def test_in_a_pass(self):
        """The job fails, the worker goes on, and the next job gets the right scores."""
        want = expected("tied", PAIRS)
        for op in (1, 8, 20):
            with server(nomem_op=op) as a, a.client() as c:
                self.assert_failed(c, c.pairs(PAIRS), "memory", "no memory for this operation")
                self.assertEqual(scores_by(c, PAIRS), want)
                self.assertEqual(c.call("health")["state"], "ready")

    def test_before_a_pass(self):
        """--memory-limit exceeds the free memory; a smaller job fits."""
        long, short = [([i] * 1500, [2]) for i in range(6)], PAIRS
        with server("--memory-limit", "1GiB", memory=8 << 20) as a, a.client() as c:
            for _ in range(2):
                self.assert_failed(c, c.pairs(long), "memory", "no memory for")
            self.assertEqual(scores_by(c, short), expected("tied", short))

    def test_two_jobs_of_which_one_does_not_fit(self):
        """The longest input that fits is published; a longer input is refused at once, and alone."""
        variant = ("--cpu-variant", FAST)  # other variants need other amounts of memory
        options = ("--backend", "cpu", *variant, "--memory-limit", "5MiB", "--max-length", "4096")
        with server(*options) as a, a.client() as c:
            m = c.call("info")["models"][0]
            fits = m["fit_length"]
            self.assertTrue(0 < fits < m["max_length"], m)
            self.assertIn(f"enough for inputs of {fits} tokens", a.command("info").stdout)
            self.assertIn(f"inputs of more than {fits} tokens do not fit", a.text())
            good = c.pairs(PAIRS, columns=["logprob"], seal=False)
            with self.assertRaises(w.Refused) as e:
                c.pairs([*PAIRS, ([1] * fits, [2, 3])])
            self.assertEqual((e.exception.code, e.exception.item), ("memory", len(PAIRS)))
            self.assertIn(f"item {len(PAIRS)}: its input of {fits + 1} tokens", e.exception.message)
            self.assertIn(f"--max-length {fits}", e.exception.message)
            with self.assertRaises(w.Refused) as e:
                c.rolling([[1] * 5, [1] * (fits + 9)], 1)
            self.assertEqual((e.exception.code, e.exception.item), ("memory", 1))
            longest = c.pairs([([1] * fits, [2])])
            c.call("seal", job=good, parts=1)
            self.assertEqual(c.wait(good)["state"], "done")
            self.assertEqual({i: r[4] for i, r in c.fetch(good).items()}, expected("tied", PAIRS, *variant))
            self.assertEqual(c.wait(longest)["state"], "done")
            c.run_pairs([([1] * (fits + 50), [2])], max_length=fits)  # truncated from the left
        with server("--backend", "cpu") as a, a.client() as c:
            m = c.call("info")["models"][0]
            self.assertEqual(m["fit_length"], m["max_length"])

    def test_a_pass_that_finds_no_memory_costs_the_long_job_only(self):
        """--memory-limit exceeds the free memory, which shows when the pass is prepared."""
        with server("--memory-limit", "1GiB", memory=8 << 20, models=("tied",)) as a, a.client() as c:
            long = c.pairs([([i] * 1500, [2]) for i in range(6)], seal=False)
            good = c.pairs(PAIRS, columns=["logprob"], seal=False)
            c.call("seal", job=good, parts=1)
            c.call("seal", job=long, parts=1)
            self.assert_failed(c, long, "memory", "its input of 1500 tokens is the longest of the pass: fake: no memory for")
            self.assertEqual(c.wait(good)["state"], "done")
            self.assertEqual({i: r[4] for i, r in c.fetch(good).items()}, expected("tied", PAIRS))

    def test_two_models_take_turns(self):
        """The memory holds the buffers of one model."""
        long = [([i] * 400, [2, 3]) for i in range(3)]
        want = {m: expected(m, long) for m in ("tied", "int4")}
        with server("--memory-limit", "5MiB", models=("tied", "int4"),
                    memory=6 << 20) as a, a.client() as c:
            for m in ("tied", "int4") * 2:
                self.assertEqual(scores_by(c, long, model=m), want[m])
            info = json.loads(a.command("info", "--json").stdout)
            for m in info["models"]:
                self.assertGreaterEqual(counts_of(m)["trims"], 1)


class Failures(Device):
    def test_at_every_moment_of_a_score(self):
        """All results written before the failure are right, and nothing else is written."""
        want, failed = on_cpu("tied"), 0
        for op in range(1, 800, 800 // w.repeats(44)):
            done = score("tied", "--backend", "cuda", "--pass-tokens", 120, fail_op=op)
            if done.returncode == 0:
                self.assertEqual(done.stdout, want)
                break
            self.assert_refused(done, 69, "the GPU has fallen off the bus")
            self.assertTrue(want.startswith(done.stdout) and done.stdout != want)
            failed += 1
        self.assertEqual(done.returncode, 0)
        self.assertGreater(failed, 5)

    def test_at_every_moment_of_loading(self):
        want = on_cpu("deep")
        for copy in (1, 2, 20, 41, 42):
            done = score("deep", "--backend", "cuda", fail_copy=copy, alloc_us=copy % 2 * 3000)
            self.assert_refused(done, 69, "the GPU has fallen off the bus")
            self.assertTrue(want.startswith(done.stdout) and done.stdout != want)
        self.assertEqual(score("deep", "--backend", "cuda", fail_copy=43).stdout, want)

    @timed
    def test_in_a_pass(self):
        with server(fail_op=15, op_us=80000) as a, a.client() as c:
            jobs = [c.pairs(PAIRS) for _ in range(3)]
            open_job = c.pairs(PAIRS, seal=False)
            for job in (*jobs, open_job):
                self.assert_failed(c, job, "device", "the GPU has fallen off the bus")
            self.assert_ends(a, c, 69, "the GPU has fallen off the bus")

    @timed
    def test_in_an_upload(self):
        with server(models=("deep",), fail_copy=30, copy_us=10000) as a, a.client() as c:
            self.assert_failed(c, c.pairs(PAIRS), "device", "the GPU has fallen off the bus")
            self.assert_ends(a, c, 69, "the GPU has fallen off the bus")

    @timed
    def test_while_idle(self):
        """The backend then reports no lack of memory, although no memory is free."""
        for models in (("tied",), ("tied", "int4")):  # with two models, while the first is trimmed
            with tempfile.TemporaryDirectory(prefix="ctw-") as d:
                with server(models=models, fail_file=f"{d}/now") as a, a.client() as c:
                    self.assertEqual(scores_by(c, PAIRS), expected("tied", PAIRS))
                    Path(d, "now").touch()
                    job = c.pairs(PAIRS, model=models[-1])
                    self.assert_failed(c, job, "device", "the GPU has fallen off the bus")
                    self.assert_ends(a, c, 69, "the GPU has fallen off the bus")

    def test_before_loading(self):
        with tempfile.TemporaryDirectory(prefix="ctw-") as d:
            Path(d, "now").touch()
            self.assert_refused(score("tied", fail_file=f"{d}/now"), 69, "fallen off the bus")


class Loading(Device):
    @timed
    def test_a_file_that_is_cut_meanwhile(self):
        with tempfile.TemporaryDirectory(prefix="ctw-") as d:
            for m in ("deep", "tied"):
                shutil.copytree(model(m), f"{d}/{m}")
            models = (f"{d}/deep", f"{d}/tied")
            with server(models=models, copy_us=100000) as a, a.client() as c:
                jobs = [c.pairs(PAIRS, model="deep")]
                time.sleep(0.3)
                os.truncate(f"{d}/deep/model.safetensors", 1000)
                try:
                    jobs += [c.pairs(PAIRS, model="deep")]
                except w.Refused as e:  # the load has already failed
                    self.assertIn("model.safetensors", e.message)
                for job in jobs:
                    self.assert_failed(c, job, "io", "model.safetensors")
                self.assertEqual(scores_by(c, PAIRS, model="tied"), expected("tied", PAIRS))

    @timed
    def test_layers_of_many_stages(self):
        """Tensors larger than a stage, more uploads than stages, a copy that fails, a truncated file."""
        with tempfile.TemporaryDirectory(prefix="ctw-") as d:
            tiny_checkpoint.write(f"{d}/m", "llama", "bf16", layers=2, hidden=1024, inner=4608, heads=8,
                                  kv_heads=2, head=64)
            pairs = random_pairs(2, longest=9)
            want = on_cpu(f"{d}/m", pairs)
            for copy_us in (0, 3000):
                done = score(f"{d}/m", "--backend", "cuda", pairs=pairs, copy_us=copy_us)
                self.assertEqual((done.returncode, done.stdout), (0, want), done.stderr)
            for copy in (3, 9):
                self.assert_refused(score(f"{d}/m", "--backend", "cuda", pairs=pairs, fail_copy=copy), 69,
                                    "the GPU has fallen off the bus")
            with server(models=(f"{d}/m",), copy_us=900000) as a, a.client() as c:
                job = c.pairs(pairs)
                time.sleep(0.15)
                os.truncate(f"{d}/m/model.safetensors", 50 << 20)
                self.assert_failed(c, job, "io", "model.safetensors")
                a.process.terminate()
                a.process.wait(20)
                self.assertNotIn("on the GPU after", a.text())

    @timed
    def test_signals(self):
        with server(models=("deep",), copy_us=15000) as a:
            a.process.terminate()
            self.assertEqual(ended(a), 0)
        with server("--on-signal", "cancel", models=("deep",), copy_us=50000) as a, a.client() as c:
            job = c.pairs(PAIRS)
            time.sleep(0.2)
            a.process.terminate()
            self.assertEqual(c.wait(job)["state"], "canceled")
            c.call("release", job=job)
            self.assertEqual(ended(a), 0)
        with server(models=("deep",), copy_us=15000) as a, a.client() as c:
            job = c.pairs(PAIRS)
            a.process.terminate()
            self.assertEqual(c.wait(job)["state"], "done")  # the job is finished, with the layers that are still to be loaded
            c.call("release", job=job)
            self.assertEqual(ended(a), 0)
        with server(models=("deep",), copy_us=100000) as a, a.client() as c:
            c.pairs(PAIRS)
            a.process.terminate()
            time.sleep(0.2)
            a.process.send_signal(signal.SIGTERM)
            self.assertEqual(ended(a, 10), 143)

    def test_unloaded_meanwhile(self):
        """The memory of an unloaded model is free for the next model: it does not hold two."""
        size = os.path.getsize(model("deep") + "/model.safetensors")
        with server("--allow-load", CHECKPOINTS.folder, "--memory-limit", "4MiB", models=("tied",),
                    copy_us=8000, memory=size + (7 << 20)) as a, a.client() as c:
            states = lambda: {m["name"]: m["state"] for m in c.call("info")["models"]}
            for _ in range(3):
                c.call("load", path=model("deep"))
                until(lambda: states()["deep"] == "ready")
                c.call("unload", model="deep")
                until(lambda: "deep" not in states())
            c.call("load", path=model("deep"))
            until(lambda: states()["deep"] == "ready")
            self.assertEqual(scores_by(c, PAIRS, model="deep"), expected("deep", PAIRS))
            a.process.terminate()
            self.assertEqual(ended(a), 0)

    def test_cancelled_in_a_pass(self):
        want = expected("tied", PAIRS)
        with server(op_us=15000, copy_us=50000) as a, a.client() as c:
            for wait_s in (0.05, 0.3):  # during the load and after it
                job = c.pairs(PAIRS)
                until(lambda: c.call("poll", job=job)["state"] == "running")
                time.sleep(wait_s)
                c.call("cancel", job=job)
                self.assertEqual(scores_by(c, PAIRS), want)


if __name__ == "__main__":
    unittest.main()
