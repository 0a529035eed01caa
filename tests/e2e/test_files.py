"""The files of a checkpoint in use: their identity, and what happens when they change."""

import json
import mmap
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
from real_worker import DEEP, PAIRS, WORKER, Checkpoints, environment, random_pairs, run
from worker_cases import timed, until

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
import checkpoint_io  # noqa: E402

CHECKPOINTS = Checkpoints({
    "int4": ("qwen2", "w4a16_g32_asym", {}), "fp4": ("qwen3", "nvfp4", {}), "tied": ("llama_tied", "bf16", {}), "deep": DEEP,
    # tensors of several blocks of 1 MiB, the last block not full
    "wide": ("llama", "bf16", {"layers": 2, "hidden": 1024, "inner": 1500, "heads": 8, "kv_heads": 2, "head": 64})})
setUpModule, tearDownModule, model = CHECKPOINTS.write, CHECKPOINTS.remove, CHECKPOINTS.path
SINGLE = "model.safetensors"


def server(folder, *args, backend="cpu", **gpu):
    return w.Worker("--threads", "2", "--backend", backend, *args, program=WORKER, models=[folder],
                    env=environment(**gpu))


def identity(folder):
    """The identity that `inspect` prints."""
    done = run("inspect", "--identity", folder)
    assert done.returncode == 0, done.stderr
    return re.search(r"^identity      ([0-9a-f]{64})$", done.stdout, re.MULTILINE)[1]


def overwrite(folder, at, data):
    """Returns the previous bytes."""
    with open(f"{folder}/{SINGLE}", "r+b") as f:
        f.seek(at)
        before = f.read(len(data))
        f.seek(at)
        f.write(data)
    assert before != data
    return before


def reshard(source, folder, n_shards):
    c = checkpoint_io.Checkpoint(source)
    batches = [checkpoint_io.Batch([(name, c.dtype(name), c.shape(name))],
                                   lambda name=name: [c.carrier(name)]) for name in c.names()]
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns(SINGLE))
    checkpoint_io.write_sharded(folder, batches, n_shards)


# The slowest kernels take about a second for a pass of this many tokens.
SLOW_TOKENS = 24 if w.sanitizers(WORKER) == "thread" else 180


def slow_pairs(n):
    return [([1 + i] * SLOW_TOKENS, [2, 3]) for i in range(n)]


SLOW = ("--threads", "1", "--backend", "cpu", "--cpu-variant", "c")


def wait_for_layer(client, job, layer):
    """Waits until the pass with the job has reached the layer."""
    until(lambda: client.call("poll", job=job)["progress"]["layer"] >= layer)


def cut(path):
    os.truncate(path, 1000)


def copy_over(path):
    """Copies another checkpoint over the file, as cp does."""
    data = bytearray(Path(path).read_bytes())
    data[-1] ^= 1
    with open(path, "wb") as f:
        f.write(data)


def refusal(client, **head):
    try:
        client.pairs(PAIRS, **head)
    except w.Refused as e:
        return e.code, e.message
    raise AssertionError("it was not refused")


class Cut(unittest.TestCase):
    """A file is truncated during a pass: one sentence, and no SIGBUS."""

    @timed
    def test_serve(self):
        for spoil in (cut, copy_over):
            with tempfile.TemporaryDirectory(prefix="ctw-") as d:
                for name in ("deep", "tied"):
                    shutil.copytree(model(name), f"{d}/{name}")
                path = f"{d}/deep/{SINGLE}"
                with w.Worker(*SLOW, "--allow-load", d, program=WORKER, env=environment(),
                              models=[f"{d}/deep", f"{d}/tied"]) as a, a.client() as c:
                    job = c.pairs(slow_pairs(1), model="deep")
                    wait_for_layer(c, job, 2)
                    waiting = c.pairs(PAIRS, model="deep")
                    spoil(path)
                    for j in (job, waiting):
                        r = c.wait(j)
                        self.assertEqual((r["state"], r["error"]["code"]), ("failed", "io"), r)
                        self.assertRegex(r["error"]["message"], f"{SINGLE}: .*load the model again")
                        self.assertEqual(c.fetch(j), {})
                    state = {m["name"]: m["state"] for m in c.call("info")["models"]}
                    self.assertEqual(state, {"deep": "failed", "tied": "ready"})
                    code, message = refusal(c, model="deep")
                    self.assertEqual(code, "invalid")
                    self.assertIn(SINGLE, message)
                    self.assertEqual(len(c.run_pairs(PAIRS[:2], model="tied")), 2)
                    shutil.copy(f"{model('deep')}/{SINGLE}", path)
                    c.call("load", path=f"{d}/deep")
                    until(lambda: c.call("info")["models"][0]["state"] == "ready")
                    self.assertEqual(len(c.run_pairs(PAIRS[:2], model="deep")), 2)

    @timed
    def test_score(self):
        """Written lines stay; then one error, and the exit code of `io`."""
        lines = [json.dumps({"id": i, "context": c, "continuation": k})
                 for i, (c, k) in enumerate(slow_pairs(4))]
        for spoil in (cut, copy_over):
            with tempfile.TemporaryDirectory(prefix="ctw-") as d:
                shutil.copytree(model("deep"), f"{d}/m")
                Path(d, "in").write_text("".join(line + "\n" for line in lines))
                with subprocess.Popen([WORKER, "score", "--model", f"{d}/m", "--in", f"{d}/in", *SLOW,
                                       "--pass-tokens", str(SLOW_TOKENS + 2)], text=True, stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE) as p:
                    self.assertEqual(json.loads(p.stdout.readline())["id"], 0)
                    time.sleep(0.1)  # the next pass has begun
                    spoil(f"{d}/m/{SINGLE}")
                    _, said = p.communicate(timeout=60)
                self.assertEqual(p.returncode, 74, said)
                errors = [x for x in said.splitlines() if "error" in x]
                self.assertEqual(len(errors), 1, said)
                self.assertRegex(errors[0], f"score: {SINGLE}: .*load the model again")

    def test_for_a_moment_only(self):
        """What the pass read as zeros stays so, also if the file is whole again: it must not score."""
        with tempfile.TemporaryDirectory(prefix="ctw-") as d:
            shutil.copytree(model("deep"), f"{d}/deep")
            with w.Worker(*SLOW, program=WORKER, models=[f"{d}/deep"], env=environment()) as a, a.client() as c:
                want = c.run_pairs(slow_pairs(1))
                job = c.pairs(slow_pairs(1))
                wait_for_layer(c, job, 2)
                cut(f"{d}/deep/{SINGLE}")
                time.sleep(0.3)  # the pass reads what is missing
                shutil.copy(f"{model('deep')}/{SINGLE}", f"{d}/deep/{SINGLE}")
                if c.wait(job)["state"] == "done":  # it was slow, and read nothing meanwhile
                    self.assertEqual(c.fetch(job), want)
                else:
                    self.assertRegex(refusal(c)[1], f"{SINGLE}: .*load the model again")

    @timed
    def test_a_gpu_that_loads(self):
        with tempfile.TemporaryDirectory(prefix="ctw-") as d:
            shutil.copytree(model("deep"), f"{d}/deep")
            with server(f"{d}/deep", backend="cuda", copy_us=100000) as a, a.client() as c:
                job = c.pairs(PAIRS)
                wait_for_layer(c, job, 2)
                cut(f"{d}/deep/{SINGLE}")
                r = c.wait(job)
                self.assertEqual((r["state"], r["error"]["code"]), ("failed", "io"), r)
                self.assertRegex(r["error"]["message"], f"{SINGLE}: the file became shorter while it was "
                                 r"in use \(it had \d+ bytes, now 1000\); load the model again")
                self.assertIn(SINGLE, refusal(c)[1])

    def test_any_other_sigbus_is_fatal(self):
        theirs = {f"{x}_OPTIONS": f"{os.environ.get(f'{x}_OPTIONS', '')}:handle_sigbus=0"
                  for x in ("ASAN", "TSAN")}  # the previous handler is a sanitizer's, which would report
        with w.Worker("--backend", "cpu", program=WORKER, models=[model("tied")], env=theirs) as a:
            a.process.send_signal(signal.SIGBUS)
            self.assertEqual(a.end(), -signal.SIGBUS)


def touch(path):
    os.utime(path)


def overwrite_with_the_same(path):
    """Writes in place, without truncating the file."""
    data = Path(path).read_bytes()
    with open(path, "r+b") as f:
        f.write(data)


class Written(unittest.TestCase):
    """Files that are written to and keep their size."""

    def test_the_same_bytes(self):
        """Jobs continue, with one line in the log."""
        for backend in ("cpu", "cuda"):
            for write in (touch, overwrite_with_the_same):
                with tempfile.TemporaryDirectory(prefix="ctw-") as d:
                    shutil.copytree(model("tied"), f"{d}/tied")
                    with server(f"{d}/tied", backend=backend) as a, a.client() as c:
                        want = c.run_pairs(PAIRS)
                        for _ in range(2):
                            write(f"{d}/tied/{SINGLE}")
                            self.assertEqual(c.run_pairs(PAIRS), want)
                            self.assertEqual(c.run_pairs(PAIRS), want)
                        self.assertEqual(a.text().count("hold the same bytes"),
                                         2 if backend == "cpu" else 0)
                        self.assertEqual(a.command("health", "--ready").returncode, 0)

    @timed
    def test_the_same_bytes_in_a_pass(self):
        """The pass may have read other bytes from the map: it is computed again."""
        with tempfile.TemporaryDirectory(prefix="ctw-") as d:
            shutil.copytree(model("deep"), f"{d}/deep")
            name = "model.layers.20.mlp.up_proj.weight"
            first, last = checkpoint_io.Checkpoint(f"{d}/deep").records[name][3:]
            with w.Worker(*SLOW, program=WORKER, models=[f"{d}/deep"], env=environment()) as a, \
                    a.client() as c:
                want = c.run_pairs(slow_pairs(1))
                job = c.pairs(slow_pairs(1))
                wait_for_layer(c, job, 2)
                was = overwrite(f"{d}/deep", first, bytes(last - first))
                wait_for_layer(c, job, 25)
                overwrite(f"{d}/deep", first, was)
                self.assertEqual(c.wait(job)["state"], "done")
                self.assertEqual(c.fetch(job), want)
                self.assertEqual(a.text().count("hold the same bytes"), 1)

    def test_other_bytes_under_the_old_time(self):
        """As cp -p or rsync -t leave the file: its time of modification is unchanged."""
        with tempfile.TemporaryDirectory(prefix="ctw-") as d:
            shutil.copytree(model("tied"), f"{d}/tied")
            with server(f"{d}/tied") as a, a.client() as c:
                c.run_pairs(PAIRS)
                before = os.stat(f"{d}/tied/{SINGLE}")
                at = checkpoint_io.Checkpoint(f"{d}/tied").records["model.layers.1.mlp.down_proj.weight"][3]
                overwrite(f"{d}/tied", at, b"\x01\x02\x03\x04")
                os.utime(f"{d}/tied/{SINGLE}", ns=(before.st_atime_ns, before.st_mtime_ns))
                try:
                    r = c.wait(c.pairs(PAIRS))
                    self.assertEqual((r["state"], r["error"]["code"]), ("failed", "io"), r)
                except w.Refused as e:
                    self.assertIn(SINGLE, e.message)

    def test_other_bytes_through_a_mapping(self):
        """The file gets no new time. What was computed from the other bytes is neither returned nor stored; where nothing
        could tell (in memory), nothing is mapped."""
        name = "model.layers.1.mlp.down_proj.weight"
        at = checkpoint_io.Checkpoint(model("tied")).records[name][3]
        more = random_pairs(seed=7)
        with server(model("tied")) as a, a.client() as c:
            want = c.run_pairs(more)
        for where in (None, *(["/dev/shm"] if os.path.isdir("/dev/shm") else [])):
            with tempfile.TemporaryDirectory(prefix="ctw-", dir=where) as d:
                shutil.copytree(model("tied"), f"{d}/tied")
                store = ("--store", f"{d}/store")
                with open(f"{d}/tied/{SINGLE}", "r+b") as f, mmap.mmap(f.fileno(), 0) as m:
                    m[at] = m[at]  # from now on the page is dirty
                    with server(f"{d}/tied", *store) as a, a.client() as c:
                        c.run_pairs(PAIRS)
                        (found,) = c.call("info")["models"]
                        if where is not None:
                            self.assertEqual(found["placement"], "resident")
                        m[at] ^= 64
                        job = c.pairs(more)
                        r = c.wait(job)
                        if found["placement"] == "mapped":
                            self.assertEqual((r["state"], r["error"]["code"]), ("failed", "io"), r)
                            self.assertIn(f"{SINGLE}: the file changed while it was in use (tensor {name}", r["error"]["message"])
                        else:
                            self.assertEqual(found["placement"], "resident")
                            self.assertIn(f"copied, since the file system of {SINGLE} does not show writes", found["weights_note"])
                            self.assertEqual(c.fetch(job), want)
                        m[at] ^= 64
                    with server(f"{d}/tied", *store) as a, a.client() as c:
                        self.assertEqual(c.run_pairs(more), want)
                        self.assertEqual(c.call("info")["store"]["hits"], len(more) if found["placement"] == "resident" else 0)
                    if where is not None:
                        done = run("inspect", "--placement", "mapped", "--backend", "cpu", f"{d}/tied")
                        self.assertRegex(done.stderr, f"--placement mapped: {SINGLE} lies in .* use resident or streamed")

    def test_other_bytes(self):
        with tempfile.TemporaryDirectory(prefix="ctw-") as d:
            shutil.copytree(model("tied"), f"{d}/tied")
            with server(f"{d}/tied", "--allow-load", d) as a, a.client() as c:
                before = c.call("info")["models"][0]["identity"]
                waiting = c.pairs(PAIRS, seal=False)
                c.run_pairs(PAIRS)
                name = "model.layers.1.mlp.down_proj.weight"
                at = checkpoint_io.Checkpoint(f"{d}/tied").records[name][3]
                overwrite(f"{d}/tied", at, b"\1\2\3\4")
                job = c.pairs(PAIRS)
                for j in (job, waiting):
                    r = c.wait(j)
                    self.assertEqual((r["state"], r["error"]["code"]), ("failed", "io"), r)
                    self.assertRegex(r["error"]["message"], f"{SINGLE}: the file changed while it was in "
                                     f"use .tensor {name} has different bytes.; load the model again")
                code, message = refusal(c)
                self.assertEqual(code, "invalid")
                self.assertIn(f"tensor {name} has different bytes", message)
                self.assertNotEqual(a.command("health", "--ready").returncode, 0)
                c.call("load", path=f"{d}/tied")
                until(lambda: c.call("info")["models"][0]["state"] == "ready")
                c.run_pairs(PAIRS)
                self.assertNotEqual(c.call("info")["models"][0]["identity"], before)

    @timed
    def test_other_bytes_where_a_gpu_has_read(self):
        with tempfile.TemporaryDirectory(prefix="ctw-") as d:
            shutil.copytree(model("deep"), f"{d}/deep")
            at = checkpoint_io.Checkpoint(f"{d}/deep").records["model.layers.0.mlp.up_proj.weight"][3]
            with server(f"{d}/deep", backend="cuda", copy_us=50000) as a, a.client() as c:
                job = c.pairs(PAIRS)
                wait_for_layer(c, job, 2)
                overwrite(f"{d}/deep", at, b"\1\2\3\4")
                r = c.wait(job)
                self.assertEqual((r["state"], r["error"]["code"]), ("failed", "io"), r)
                self.assertIn("has different bytes", r["error"]["message"])
            with server(f"{d}/deep", backend="cuda") as a, a.client() as c:
                want = c.run_pairs(PAIRS)
                overwrite(f"{d}/deep", at, b"\5\6\7\10")  # the GPU has its own copy
                self.assertEqual(c.run_pairs(PAIRS), want)


class Replaced(unittest.TestCase):
    """The folder of a running worker becomes another checkpoint. A result stays that of the files that were loaded and carries
    their identity, or the job fails; nothing of it is stored under the new identity, or the other way round."""

    def replace_and_look(self, change, new):
        """Makes the folder of checkpoint `new` from a served copy of "tied" while jobs run. Returns the states of the jobs
        that the worker had afterwards."""
        wanted = {}
        for folder in (model("tied"), new):
            with server(folder) as a, a.client() as c:
                wanted[identity(folder)] = c.run_pairs(PAIRS)
        self.assertEqual(len(wanted), 2)
        old, other = wanted
        self.assertNotEqual(wanted[old], wanted[other])
        states = []
        with tempfile.TemporaryDirectory(prefix="ctw-") as d:
            store = ("--store", f"{d}/store")
            shutil.copytree(model("tied"), f"{d}/m")
            with server(f"{d}/m", *store) as a, a.client() as c:
                c.run_pairs(PAIRS[:2])
                change(new, f"{d}/m")
                self.assertEqual(identity(f"{d}/m"), other)
                for _ in range(2):
                    try:
                        job = c.pairs(PAIRS)
                    except w.Refused as e:
                        self.assertIn(f"{SINGLE}: the file changed while it was in use", e.message)
                        states.append("refused")
                        continue
                    r = c.wait(job)
                    states.append(r["state"])
                    if r["state"] == "done":
                        self.assertEqual(c.call("fetch", job=job, first=0)["identity"], old)
                        self.assertEqual(c.fetch(job), wanted[old])
                    else:
                        self.assertEqual((r["state"], r["error"]["code"]), ("failed", "io"), r)
                        self.assertEqual({i: x for i, x in c.fetch(job).items() if x != wanted[old][i]}, {})
                self.assertIn(c.call("info")["models"][0].get("identity"), (old,) if states[-1] == "done" else (old, None))
            for folder, which, hits in ((f"{d}/m", other, 0), (model("tied"), old, len(PAIRS) if "done" in states else 2)):
                with server(folder, *store) as a, a.client() as c:
                    self.assertEqual(c.run_pairs(PAIRS), wanted[which])
                    self.assertEqual(c.call("info")["store"]["hits"], hits)
                    self.assertEqual(c.call("info")["models"][0]["identity"], which)
        return states

    def changed(self, d, name):
        """A copy of "tied" whose file of this name has the same size and other contents."""
        shutil.copytree(model("tied"), f"{d}/new")
        if name == SINGLE:
            at = checkpoint_io.Checkpoint(model("tied")).records["model.layers.1.mlp.down_proj.weight"][3]
            overwrite(f"{d}/new", at, b"\1\2\3\4")
        else:
            path = Path(d, "new", name)
            config = json.loads(path.read_text())
            path.write_text(json.dumps(config | {"rms_norm_eps": 0.5}))
        return f"{d}/new"

    def test_weights(self):
        def rename(new, folder):
            shutil.copy(f"{new}/{SINGLE}", f"{folder}/next")
            os.replace(f"{folder}/next", f"{folder}/{SINGLE}")

        def write(new, folder):
            with open(f"{folder}/{SINGLE}", "r+b") as f:
                f.write(Path(new, SINGLE).read_bytes())

        def copy(new, folder):
            shutil.copy(f"{new}/{SINGLE}", f"{folder}/{SINGLE}")

        with tempfile.TemporaryDirectory(prefix="ctw-") as d:
            new = self.changed(d, SINGLE)
            self.assertEqual(self.replace_and_look(rename, new), ["done", "done"])
            for change in (write, copy):
                self.assertEqual(self.replace_and_look(change, new), ["failed", "refused"])

    def test_config(self):
        def rename(new, folder):
            os.replace(shutil.copy(f"{new}/config.json", f"{folder}/next"), f"{folder}/config.json")

        def copy(new, folder):
            shutil.copy(f"{new}/config.json", f"{folder}/config.json")

        with tempfile.TemporaryDirectory(prefix="ctw-") as d:
            new = self.changed(d, "config.json")
            for change in (rename, copy):
                self.assertEqual(self.replace_and_look(change, new), ["done", "done"])


class Identity(unittest.TestCase):
    def test_every_byte_counts(self):
        with tempfile.TemporaryDirectory(prefix="ctw-") as d:
            folder = f"{d}/m"
            shutil.copytree(model("wide"), folder)
            before, seen = identity(folder), set()
            records = checkpoint_io.Checkpoint(folder).records
            first, last = records["model.layers.1.mlp.down_proj.weight"][3:]
            row = records["model.embed_tokens.weight"][3] + 123 * 1024 * 2
            middle = first + (last - first) // 2
            for at, data in ((middle, b"\1\2\3\4"), (middle, b"\xc0\x7f"), (row, bytes(1024 * 2)),
                             (last - 1, b"\x55"), (first + (1 << 20) - 1, b"\x55"),
                             (first + (1 << 20), b"\x55")):
                was = overwrite(folder, at, data)
                seen.add(identity(folder))
                overwrite(folder, at, was)
            self.assertEqual(len(seen), 6)
            self.assertNotIn(before, seen)
            self.assertEqual(identity(folder), before)

    def test_files_do_not_count(self):
        for name in CHECKPOINTS.kinds:
            with tempfile.TemporaryDirectory(prefix="ctw-") as d:
                shutil.copytree(model(name), f"{d}/copy")
                for n in (2, 5):
                    reshard(model(name), f"{d}/{n}", n)
                self.assertEqual({identity(f"{d}/{x}") for x in os.listdir(d)},
                                 {identity(model(name))})

    def test_inspect_reads_the_weights_only_when_asked(self):
        self.assertNotIn("identity", run("inspect", model("tied")).stdout)

    def test_inspect_as_json(self):
        found = json.loads(run("inspect", "--json", "--identity", model("tied")).stdout)
        weights = sum(f.stat().st_size for f in Path(model("tied")).glob("*.safetensors"))
        self.assertEqual((found["bytes"], found["identity"]), (weights, identity(model("tied"))))
        self.assertTrue(found["tied"])
        self.assertEqual(sum(kind["bytes"] for kind in found["formats"]), 2 * sum(k["params"] for k in found["formats"]))
        self.assertGreater(found["params"], sum(kind["params"] for kind in found["formats"]))  # norms

    def test_inspect_opens_a_checkpoint_once(self):
        with tempfile.TemporaryDirectory(prefix="ctw-") as d:
            shutil.copytree(model("tied"), f"{d}/copy")
            with open(f"{d}/copy/config.json", encoding="utf-8") as f:
                config = json.load(f)
            del config["dtype"]
            with open(f"{d}/copy/config.json", "w", encoding="utf-8") as f:
                json.dump(config, f)
            self.assertEqual(run("inspect", f"{d}/copy").stderr.count("no dtype is given"), 1)

    def test_results_carry_it(self):
        for name in CHECKPOINTS.kinds:
            for backend in ("cpu", "cuda"):
                with server(model(name), backend=backend) as a, a.client() as c:
                    job = c.pairs(PAIRS)
                    c.wait(job)
                    self.assertEqual(c.call("fetch", job=job, first=0)["identity"],
                                     identity(model(name)))
                    self.assertEqual(c.call("info")["models"][0]["identity"],
                                     identity(model(name)))

    @timed
    def test_it_is_known_when_a_gpu_has_loaded(self):
        with server(model("deep"), backend="cuda", copy_us=80000) as a, a.client() as c:
            known = lambda: c.call("info")["models"][0]["identity"]
            self.assertEqual(known(), "")
            self.assertIn("(known once all weights have been read)", a.command("info").stdout)
            # An item without tokens needs no pass, but its result carries the identity too.
            job = c.rolling([[]], 1)
            self.assertEqual(c.wait(job)["state"], "done")
            self.assertEqual(c.call("fetch", job=job, first=0)["identity"], identity(model("deep")))
            until(lambda: known() == identity(model("deep")))
            self.assertIn(known(), a.command("info").stdout)
            self.assertEqual(json.loads(a.command("info", "--json").stdout)["models"][0]["identity"],
                             known())


if __name__ == "__main__":
    unittest.main()
