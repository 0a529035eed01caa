"""`ctworker info`: what the worker's devices are and do, on fake GPUs and on the CPU."""

import json
import re
import tempfile
import time
import unittest
from pathlib import Path

import worker_process as w
from real_worker import DEEP, WORKER, Checkpoints, environment, random_pairs
from worker_cases import timed

MODELS = {"int4": ("qwen2", "w4a16_g32_asym", {}), "deep": DEEP}
CHECKPOINTS = Checkpoints(MODELS)
setUpModule, tearDownModule, model = CHECKPOINTS.write, CHECKPOINTS.remove, CHECKPOINTS.path
MANY = random_pairs(60, seed=5)
MEMORY = 64 << 20


def server(*args, models=("int4",), backend="cuda", **gpu):
    return w.Worker("--threads", "1", "--backend", backend, *args, program=WORKER,
                    models=[model(m) for m in models], env=environment(**gpu))


def info(a):
    done = a.command("info", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def devices(a):
    return info(a)["devices"]


class Info(unittest.TestCase):
    def assert_narrow(self, text):
        table = text[text.index("\ndevices"):text.index("\nmodel")]
        self.assertLessEqual(max(len(line) for line in table.splitlines()), 100, table)
        return table

    def until(self, a, is_so):
        """The first list of devices of which is_so(device) holds for one; and that device."""
        end = time.monotonic() + 20 * w.PATIENCE
        while time.monotonic() < end:
            for d in devices(a):
                if is_so(d):
                    return d
        self.fail(f"not seen: {devices(a)}")

    def test_gpus(self):
        with server("--devices", "0-2", models=("int4", "deep"), count=4, memory=MEMORY) as a, a.client() as c:
            before = devices(a)
            self.assertEqual([d["device"] for d in before], [0, 1, 2])
            self.assertEqual({d["state"] for d in before} - {"idle", "loading"}, set())
            self.assertEqual([d["tokens_done"] for d in before], [0, 0, 0])
            models = info(a)["models"]
            held = sum(m["weights_memory"] for m in models)
            for d in before:
                self.assertEqual((d["weights"], d["memory_used"]), (held, held))
                self.assertEqual(d["memory_total"], MEMORY)
                self.assertLessEqual(d["memory_free"], MEMORY - held)
                self.assertEqual((d["name"], d["pci"]), (f"fake GPU {d['device']}", f"00000000:1{d['device']}:00.0"))
            c.wait(c.pairs(MANY, model="int4"))
            after = devices(a)
            n_tok = sum(len(x) + len(y) - 1 for x, y in MANY)
            self.assertEqual(sum(d["tokens_done"] for d in after), n_tok)
            self.assertEqual({(d["state"], d["weights_read"]) for d in after}, {("idle", 1)})
            busy = [d for d in after if d["tokens_done"]]  # a fast one may have left nothing for another
            for d in busy:
                self.assertEqual(d["model"], "int4")
                self.assertGreater(d["memory_used"], held)
                self.assertGreater(d["tokens_per_s"], 0)
            table = self.assert_narrow(a.command("info").stdout)
            n = busy[0]["device"]
            self.assertRegex(table, rf"\n  {n} +64\.0 MiB .*\n +fake GPU {n}, 00000000:1{n}:00\.0, GPU-0000000{n}-.*\n"
                                    r" +idle; \d+ % of the work so far: \d+ tokens, \d+ tokens/s\n")

    @timed
    def test_what_a_gpu_does(self):
        with server(models=("deep",), op_us=2000) as a, a.client() as c:
            job = c.pairs(MANY)
            d = self.until(a, lambda d: d["state"] == "computing" and d["layer"] > 1)
            self.assertEqual((d["model"], d["layers"]), ("deep", DEEP[2]["layers"] + 1))
            self.assertLessEqual(d["layer"], d["layers"])
            self.assertRegex(self.assert_narrow(a.command("info").stdout), r"computing, layer \d+ of 41 of deep")
            c.call("cancel", job=job)
            self.until(a, lambda d: d["state"] == "idle")

    @timed
    def test_loading(self):
        with server(models=("deep",), copy_us=200000) as a:
            d = self.until(a, lambda d: d["state"] == "loading" and 0 < d["weights_read"] < 1)
            self.assertEqual((d["model"], d["tokens_done"]), ("deep", 0))
            self.until(a, lambda d: d["state"] == "idle" and d["weights_read"] == 1)

    def test_a_gpu_that_fails(self):
        with tempfile.TemporaryDirectory(prefix="ctw-") as folder, \
                server("--devices", "all", count=2, fail_file=f"{folder}/now") as a, a.client() as c:
            Path(folder, "now.1").touch()
            c.wait(c.pairs(MANY))
            d = devices(a)
            self.assertEqual([x["state"] for x in d], ["idle", "failed"])
            self.assertEqual(d[1]["message"], "fake: the GPU has fallen off the bus")
            c.wait(c.pairs(MANY))
            self.assertEqual([x["state"] for x in devices(a)], ["idle", "failed"])
            self.assertIn("failed: fake: the GPU has fallen off the bus", self.assert_narrow(a.command("info").stdout))

    def test_where_weights_are(self):
        for options, kept in ((("--devices", "0,1", "--placement", "sharded"), ("gathered",)),
                              (("--host-memory-limit", "200KiB", "--weights-limit", "700KiB"), ("hosted", "streamed")),
                              (("--placement", "resident"), ())):
            with server(*options, models=("deep",)) as a:
                m = json.loads(a.command("info", "--json").stdout)["models"][0]
            where = {k: n for k, n in m["weights"].items() if k != "files"}
            self.assertEqual(sum(where.values()), m["weights_bytes"])
            self.assertEqual({k for k in ("gathered", "hosted", "streamed") if m["weights"][k] > 0}, set(kept), m)
            self.assertEqual(m["weights"]["streamed"], m["weights_streamed"])

    def test_cpu(self):
        with server(backend="cpu") as a, a.client() as c:
            c.wait(c.pairs(MANY))
            (d,) = devices(a)
            table = self.assert_narrow(a.command("info").stdout)
            total = int(re.search(r"MemTotal: *(\d+)", Path("/proc/meminfo").read_text())[1]) * 1024
            self.assertEqual((d["backend"], d["threads"], d["pci"], d["uuid"], d["state"]), ("cpu", 1, "", "", "idle"))
            self.assertLessEqual(d["memory_total"], total)
            self.assertTrue(0 < d["memory_free"] < d["memory_total"])
            resident = int(re.search(r"VmRSS:\s*(\d+)", Path(f"/proc/{a.process.pid}/status").read_text())[1]) * 1024
            self.assertLess(abs(d["memory_used"] - resident), resident / 4)
            self.assertRegex(table, r", 1 threads\n")


if __name__ == "__main__":
    unittest.main()
