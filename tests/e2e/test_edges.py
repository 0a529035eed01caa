"""The machine's edges: processes that are started with closed standard streams, and control groups with little memory."""

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import real_worker as r
import worker_process as w
from worker_cases import until

# "wide": passes at full rate take 100 MiB, twice that in float32. "large": 120 MiB of weights.
SHAPE = {"heads": 2, "kv_heads": 1, "head": 32, "hidden": 64}
checkpoints = r.Checkpoints({"m": ("llama", "bf16", {}),
                             "wide": ("llama", "bf16", SHAPE | {"layers": 1, "inner": 12288}),
                             "large": ("llama", "bf16", SHAPE | {"layers": 24, "inner": 13312})})
setUpModule, tearDownModule = checkpoints.write, checkpoints.remove
LINES = "".join(json.dumps({"id": i, "context": c, "continuation": k}) + "\n" for i, (c, k) in enumerate(r.PAIRS))
IN, OUT, ERR = 0, 1, 2
CANNOT_WRITE = 74  # or read


class ClosedStreams(unittest.TestCase):
    """Each command, with each of descriptors 0 to 2 closed, and with all of them."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ctw-")
        self.addCleanup(folder.cleanup)
        self.dir = Path(folder.name)
        self.model = checkpoints.path("m")
        self.env = {"PATH": "/usr/bin:/bin", "XDG_RUNTIME_DIR": folder.name}
        (self.dir / "in.jsonl").write_text(LINES)

    def run_closed(self, closed, *args):
        redirections = " ".join(f"{fd}>&-" for fd in closed)
        return subprocess.run(["sh", "-c", f'exec "$0" "$@" {redirections}', str(r.WORKER), *map(str, args)],
                              env=self.env, input=LINES, capture_output=True, text=True, timeout=60 * w.PATIENCE)

    def check(self, closed, *args):
        """A command that prints: its output, which may name the memory that is free just now, or an error where that cannot
        be printed."""
        with self.subTest(args=args, closed=closed):
            whole, p = self.run_closed([], *args), self.run_closed(closed, *args)
            self.assertEqual(whole.returncode, 0, whole.stderr)
            if OUT not in closed:
                self.assertEqual(p.returncode, 0, p.stderr)
                self.assertEqual(len(p.stdout.splitlines()), len(whole.stdout.splitlines()))
                return
            self.assertEqual(p.returncode, CANNOT_WRITE, p.stderr)
            if ERR not in closed:
                self.assertRegex(p.stderr, "ctworker: .*standard output: ")

    def files(self):
        return {f: hashlib.sha256(f.read_bytes()).hexdigest()
                for folder in (self.model, self.dir) for f in Path(folder).rglob("*") if f.is_file()}

    def test_commands_that_print(self):
        before = self.files()
        for closed in ([IN], [OUT], [ERR], [IN, OUT, ERR]):
            for args in (["--help"], ["--version"], ["score", "--help"], ["ps"], ["inspect", self.model],
                         ["inspect", "--tensors", self.model], ["inspect", "--hashes", self.model],
                         ["score", "--model", self.model, "--in", self.dir / "in.jsonl"]):
                self.check(closed, *args)
        self.assertEqual(self.files(), before)

    def test_scores_go_to_their_file(self):
        expected = self.run_closed([], "score", "--model", self.model).stdout
        out = self.dir / "out.jsonl"
        for closed in ([IN], [OUT], [ERR], [IN, OUT, ERR]):
            with self.subTest(closed=closed):
                source = ["--in", self.dir / "in.jsonl"] if IN in closed else []
                p = self.run_closed(closed, "score", "--model", self.model, *source, "--out", out)
                self.assertEqual((p.returncode, out.read_text()), (0, expected), p.stderr)
                self.assertTrue(json.loads(out.with_suffix(".jsonl.meta.json").read_text())["complete"])
                out.unlink()

    def test_standard_input(self):
        """What cannot be read is no empty input."""
        p = self.run_closed([IN], "score", "--model", self.model)
        self.assertEqual((p.returncode, p.stdout), (CANNOT_WRITE, ""), p.stderr)
        self.assertIn("standard input: cannot read the input: Bad file descriptor", p.stderr)

    def test_serve_and_its_clients(self):
        store = self.dir / "store"
        for closed in ([IN], [OUT], [ERR], [IN, OUT, ERR]):
            with self.subTest(closed=closed):
                with self.serving(closed, "--store", store):
                    for args in (["info"], ["health"], ["ps"], ["store", "list", store], ["store", "verify", store]):
                        for of_client in ([IN], [OUT], [ERR], [IN, OUT, ERR]):
                            p = self.run_closed(of_client, *args)
                            self.assertEqual(p.returncode, CANNOT_WRITE if OUT in of_client else 0,
                                             (args, of_client, p.stdout, p.stderr))
                with self.serving(closed):  # without a store: SQLite opens such descriptors itself
                    for f in self.dir.iterdir():
                        if f.is_file():
                            self.assertNotIn(b"ctworker: ", f.read_bytes(), f"{f} has lines of the log")

    @contextlib.contextmanager
    def serving(self, closed, *args):
        ready = self.dir / "ready"
        redirections = " ".join(f"{fd}>&-" for fd in closed)
        p = subprocess.Popen(
            ["sh", "-c", f'exec "$0" "$@" {redirections}', str(r.WORKER), "serve", "--model", self.model,
             "--listen", f"ipc://{self.dir}/w.sock", "--ready-file", str(ready), *map(str, args)],
            env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            until(lambda: ready.exists() or p.poll() is not None)
            self.assertIsNone(p.poll())
            yield
            stopped = self.run_closed(closed, "stop")
            self.assertIn(stopped.returncode, (0, CANNOT_WRITE) if OUT in closed else (0,), stopped.stderr)
            self.assertEqual(p.wait(20 * w.PATIENCE), 0)
        finally:
            p.kill()
            p.wait()
            ready.unlink(missing_ok=True)


class Group:
    """A control group with a limit of memory; None where this machine, or this user, cannot make one."""

    MOUNTS = (("/sys/fs/cgroup", "memory.max"), ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"))

    @classmethod
    def make(cls):
        for mount, limit in cls.MOUNTS:
            path = Path(mount) / f"ctw-test-{os.getpid()}"
            try:
                path.mkdir()
            except OSError:
                continue
            if (path / limit).exists():
                return cls(path, path / limit)
            path.rmdir()
        return None

    def __init__(self, path, limit):
        self.path, self.limit = path, limit

    def enter(self):
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def set_limit(self, mib, model):
        """The model's pages leave the cache, so that they count to the group that reads them."""
        for f in Path(model).iterdir():
            with f.open("rb") as data:
                os.posix_fadvise(data.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        self.limit.write_text(str(mib << 20))

    def remove(self):
        for _ in range(100):  # a process that has ended leaves its group a little later
            with contextlib.suppress(OSError):
                return self.path.rmdir()
            time.sleep(0.05)
        raise AssertionError(f"{self.path} is still in use")


@unittest.skipIf(w.sanitizers(r.WORKER), "sanitizers take memory of their own")
class ControlGroups(unittest.TestCase):
    """None gets the process killed: all are planned within, or refused with the remedy. The scores are the same."""

    LIMITS = (1024, 512, 384, 256, 200, 128, 96, 64, 32)  # MiB

    def setUp(self):
        self.group = Group.make()
        if self.group is None:
            self.skipTest("no control group with a limit of memory can be made here")
        self.addCleanup(self.group.remove)

    def score(self, name, dtype, text):
        return subprocess.run([str(r.WORKER), "score", "--model", checkpoints.path(name), "--dtype", dtype, "--threads", "2"],
                              input=text, capture_output=True, text=True, timeout=120 * w.PATIENCE,
                              preexec_fn=self.group.enter)

    def test_score(self):
        n_refused = 0
        for name, n_seqs, dtypes in (("m", 4, ["float32"]), ("wide", 8, ["bfloat16", "float32"]),
                                     ("large", 1, ["bfloat16"])):
            text = "".join(json.dumps({"id": i, "tokens": [(i * j) % r.N_IDS for j in range(600)]}) + "\n"
                           for i in range(1, n_seqs + 1))
            for dtype in dtypes:
                expected = None
                for limit in self.LIMITS:
                    with self.subTest(model=name, dtype=dtype, limit=limit):
                        self.group.set_limit(limit, checkpoints.path(name))
                        p = self.score(name, dtype, text)
                        expected = expected or p.stdout
                        if p.returncode == 0:
                            self.assertEqual(p.stdout, expected)
                            continue
                        n_refused += 1
                        self.assertLess(limit, 64)
                        self.check_refusal(p.returncode, p.stderr)
        print(f"control groups in {self.group.path.parent}: {n_refused} refused", file=sys.stderr)

    def check_refusal(self, code, log):
        self.assertEqual(code, 71, log)
        self.assertRegex(log, "needs .* but the memory that is free leaves .* control group")

    def test_serve(self):
        pairs = [([i % r.N_IDS for i in range(600)], [k]) for k in range(8)]
        expected = None
        for limit in (1024, 128, 64):
            with self.subTest(limit=limit):
                self.group.set_limit(limit, checkpoints.path("wide"))
                with w.Worker("--threads", "2", "--dtype", "float32", program=r.WORKER,
                              models=[checkpoints.path("wide")], preexec_fn=self.group.enter) as a, a.client(timeout_s=60) as c:
                    scores = c.run_pairs(pairs)
                    expected = expected or scores
                    self.assertEqual(scores, expected)
                    self.assertEqual(c.call("health")["state"], "ready")


if __name__ == "__main__":
    unittest.main()
