"""What goes wrong on real machines: dead clients, dead workers, foreign files, signals, early closes."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import pynng

import worker_process as w

SLOW = {"us_per_token": 2000}  # a pass of 256 tokens takes half a second
LONG = [([1] * 60, [2] * 4)]   # 63 tokens
# Half a minute when SLOW: what ends within ENDED_S did not wait for it, however slow the machine is.
ENDLESS, ENDED_S = LONG * 240, 5


def until(what, timeout_s=15):
    end = time.monotonic() + timeout_s * w.PATIENCE
    while not what():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.02)


def ended(worker, timeout_s=20):
    try:
        return worker.end(timeout_s)
    except subprocess.TimeoutExpired:
        raise AssertionError("the worker goes on: " + worker.text())


def ended_at_once(worker):
    """Its exit code, of one that has an ENDLESS job."""
    start = time.monotonic()
    code = ended(worker)
    assert time.monotonic() - start < ENDED_S, "it waited for its job"
    return code


def start_fails(code, part, *args, **kw):
    with w.Worker(*args, wait=False, **kw) as worker:
        got = ended(worker)
        assert got == code, f"exit code {got}, expected {code}: {worker.text()}"
        text = worker.text()
        assert part in text, f"{part!r} is not in: {text}"
        assert not worker.ready.exists()
        return text


def first_answer(worker, op, **fields):
    """As a client must: a lost connection is dialled again and the request repeated."""
    while True:
        with worker.client(timeout_s=20) as c:
            try:
                return c.call(op, **fields)
            except pynng.exceptions.ConnectionReset:
                print("connection reset", file=sys.stderr)


class Addresses(unittest.TestCase):
    def test_places_and_modes(self):
        with w.Worker() as a:
            path = a.dir / "w.sock"
            self.assertEqual(stat.S_IMODE(path.stat().st_mode), 0o600)
            self.assertTrue((a.dir / "w.sock.lock").exists())
            a.process.send_signal(signal.SIGTERM)
            self.assertEqual(ended(a), 0)
            self.assertEqual(sorted(p.name for p in a.dir.iterdir()), ["log", "model", "run"])
            self.assertEqual(list((a.runtime / "ctworker").iterdir()), [])

    def test_default_address(self):
        with tempfile.TemporaryDirectory(prefix="ctw-") as d:
            os.chmod(d, 0o700)
            (Path(d) / "m").mkdir()
            argv = [str(w.FAKE), "serve", "--model", f"{d}/m", "--name", "here", "--ready-file",
                    f"{d}/ready"]
            p = subprocess.Popen(argv, env=os.environ | {"XDG_RUNTIME_DIR": d},
                                 stderr=subprocess.DEVNULL)
            try:
                until(Path(d, "ready").exists)
                self.assertEqual(Path(d, "ready").read_text(), f"ipc://{d}/ctworker/here.sock\n")
                self.assertEqual(stat.S_IMODE(os.stat(f"{d}/ctworker").st_mode), 0o700)
            finally:
                p.terminate()
                self.assertEqual(p.wait(20), 0)
            self.assertEqual(os.listdir(f"{d}/ctworker"), [])

    def test_runtime_folder_of_others(self):
        """Refused, with a way out that works: with --listen the worker serves, and is not listed."""
        with tempfile.TemporaryDirectory(prefix="ctw-") as d:
            os.chmod(d, 0o700)
            os.mkdir(f"{d}/ctworker", 0o755)
            os.chmod(f"{d}/ctworker", 0o755)
            env = {"XDG_RUNTIME_DIR": d}
            out = subprocess.run([str(w.FAKE), "serve", "--model", d], env=os.environ | env, text=True,
                                 capture_output=True, timeout=60)
            self.assertEqual(out.returncode, 74)
            self.assertIn("mode 0700", out.stderr)
            self.assertIn("--listen ipc:///PATH", out.stderr)
            with w.Worker(env=env) as a:
                self.assertIn("`ctworker ps` will not list this worker", a.text())
                self.assertEqual(os.listdir(f"{d}/ctworker"), [])
                out = a.command("health", a.url)
                self.assertEqual((out.returncode, out.stderr), (0, ""))
                self.assertEqual(a.command("stop", a.url).returncode, 0)
                self.assertEqual(ended(a), 0)

    def test_a_runtime_folder_that_is_passed_over_is_named(self):
        with tempfile.TemporaryDirectory(prefix="ctw-") as d:
            for folder, mode, words in ((f"{d}/open", 0o755, "(mode 0700)"), (f"{d}/none", 0, "No such"),
                                        ("relative", 0, "not an absolute path")):
                if mode:
                    os.mkdir(folder)
                    os.chmod(folder, mode)
                with w.Worker(env={"XDG_RUNTIME_DIR": folder}) as a:
                    told = f"warn: XDG_RUNTIME_DIR={folder} is ignored"
                    self.assertIn(told, a.text())
                    self.assertIn(words, a.text())
                    self.assertIn(told, a.command("info", "nobody").stderr)
            with w.Worker() as a:
                self.assertNotIn("is ignored", a.text())

    def test_a_second_worker_is_told_and_the_first_lives(self):
        with w.Worker() as a, a.client() as c:
            for _ in range(5):
                start_fails(75, f"another worker (process {a.process.pid})", listen=a.url)
            self.assertEqual(c.call("health")["state"], "ready")
            with a.client(timeout_s=1) as new:
                self.assertEqual(new.call("health")["state"], "ready")

    def test_other_files_are_left_alone(self):
        with tempfile.TemporaryDirectory(prefix="ctw-") as d:
            place = Path(d, "model.safetensors")
            place.write_bytes(b"precious")
            start_fails(64, "exists and is not a socket", listen=f"ipc://{place}")
            self.assertEqual(place.read_bytes(), b"precious")
            link = Path(d, "link")
            link.symlink_to(place)
            start_fails(64, "is not a socket", listen=f"ipc://{link}")
            self.assertEqual(place.read_bytes(), b"precious")
            start_fails(64, "is not a socket", listen=f"ipc://{d}")
            lock = Path(d, "w.sock.lock")
            lock.symlink_to(place)
            start_fails(74, "w.sock.lock", listen=f"ipc://{d}/w.sock")
            self.assertEqual(place.read_bytes(), b"precious")

    def test_bad_addresses(self):
        start_fails(64, "the system allows 107", listen="ipc:///tmp/" + "x" * 120)
        start_fails(64, "does not exist", listen="ipc:///nowhere/at/all/w.sock")
        start_fails(64, "expected ipc:///PATH or tcp://HOST:PORT", listen="http://localhost:80")
        start_fails(64, "expected tcp://HOST:PORT", listen="tcp://127.0.0.1")
        for host in ("0.0.0.0", "*", "", "[::]", "0", "0x0", "[::ffff:0.0.0.0]"):
            start_fails(64, "--insecure-bind-any", listen=f"tcp://{host}:0")

    def test_tcp(self):
        with w.Worker(listen="tcp://127.0.0.1:0") as a, a.client() as c:
            self.assertRegex(a.url, r"^tcp://127\.0\.0\.1:[1-9]\d*$")
            self.assertEqual(c.call("info")["models"][0]["path"], "")
            pairs = w.random_pairs(5)
            self.assertEqual(c.run_pairs(pairs)[3][0], w.expect_pair(*pairs[3])[0])
            start_fails(75, "in use", listen=a.url)
        with w.Worker("--insecure-bind-any", listen="tcp://0.0.0.0:0") as a:
            with w.Client(a.url.replace("0.0.0.0", "127.0.0.1")) as c:
                self.assertEqual(c.call("health")["state"], "ready")

    def test_a_killed_workers_socket_is_taken_over(self):
        with w.Worker() as a:
            a.process.kill()
            a.end()
            self.assertTrue((a.dir / "w.sock").exists())
            with w.Worker(listen=a.url) as b, b.client() as c:
                self.assertEqual(c.call("health")["state"], "ready")

    @unittest.skipUnless(os.geteuid() == 0, "only root can become another user")
    def test_other_users_are_refused(self):
        with w.Worker() as a, a.client() as c:
            for p in (a.dir, a.runtime, a.dir / "w.sock"):
                os.chmod(p, 0o777)
            code = (f"import os, pynng\nos.setuid(65534)\n"
                    f"s = pynng.Req0(resend_time=-1, recv_timeout=1500, send_timeout=1500)\n"
                    f"s.dial({a.url!r}, block=False)\n"
                    f"try:\n    s.send(b'x'); s.recv(); print('answered')\n"
                    f"except pynng.exceptions.NNGException as e: print('refused', e)\n")
            got = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                                 timeout=30)
            self.assertTrue(got.stdout.startswith("refused"), got)
            self.assertIn("a connection was refused: it belongs to another user", a.text())
            self.assertEqual(c.call("health")["state"], "ready")


class Connections(unittest.TestCase):
    def test_early_closes(self):
        """nng 1.5 stops accepting for good when a client closes before the handshake."""
        with w.Worker() as a, a.client() as old:
            path = a.url.removeprefix("ipc://")
            job = old.pairs(w.random_pairs(3), seal=False)
            for _ in range(200):
                s = socket.socket(socket.AF_UNIX)
                s.connect(path)
                s.close()
            self.assertEqual(old.call("poll", job=job)["state"], "open")
            start = time.monotonic()
            self.assertEqual(first_answer(a, "poll", job=job)["state"], "open")
            print(f"early closes: a new client was answered after {time.monotonic() - start:.1f} s; "
                  f"healed {a.text().count('listening anew')} times", file=sys.stderr)
            self.assertEqual(old.call("health")["state"], "ready")
            self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), 0o600)

    def test_half_open_and_babbling_clients(self):
        with w.Worker() as a:
            path = a.url.removeprefix("ipc://")
            keep = []
            for data in (b"", b"\0", b"GET / HTTP/1.1\r\n\r\n", b"\0SP\0\0\x30\0\0",
                         b"\0SP\0\0\x30\0\0" + b"\x01" + b"\xff" * 8):
                s = socket.socket(socket.AF_UNIX)
                s.connect(path)
                s.sendall(data)
                keep.append(s)
            with a.client(timeout_s=20) as c:
                self.assertEqual(c.call("health")["state"], "ready")
            for s in keep:
                s.close()
            with a.client(timeout_s=20) as c:
                self.assertEqual(c.call("health")["state"], "ready")

    def test_oversized_message(self):
        """The worker closes the connection; a client with resends off sees it at once."""
        with w.Worker() as a, a.client() as other:
            with a.client(timeout_s=10) as c:
                c.call("health")
                with self.assertRaises((pynng.exceptions.ConnectionReset, pynng.exceptions.Closed)):
                    c.raw(bytes(w.REQUEST_BYTES + 2048))
                self.assertEqual(c.call("health")["state"], "ready")  # dials again by itself
            self.assertEqual(other.call("health")["state"], "ready")
            # exactly as large as allowed is read, and refused for what it is
            size = w.REQUEST_BYTES - 5  # and the header of the bin
            reply = other.raw(b"\xc6" + size.to_bytes(4, "big") + bytes(size))
            self.assertIn("not a msgpack map", reply["error"]["message"])

    def test_bombs_take_no_memory(self):
        with w.Worker() as a, a.client() as c:
            def rss():
                text = Path(f"/proc/{a.process.pid}/status").read_text()
                return int(text.split("VmHWM:")[1].split()[0])
            before = rss()
            for bomb in (b"\xdd\xff\xff\xff\xff", b"\xdd\x10\x00\x00\x00" + bytes(1000),
                         b"\xdd\x00\x7f\xff\xff" + bytes(0x7fffff), b"\x91" * 500000 + b"\xc0"):
                self.assertFalse(c.raw(bomb)["ok"])
            grown = rss() - before
            self.assertLess(grown, 64 << 10, "KiB")

    def test_a_lost_client_finds_its_job_again(self):
        with w.Worker(engine=SLOW) as a:
            with a.client() as c:
                job = c.pairs(LONG * 8)
            with a.client() as c:
                self.assertEqual(c.wait(job)["state"], "done")
                self.assertEqual(len(c.fetch(job)), 8)


class Endings(unittest.TestCase):
    def setUp(self):
        """As a worker inherits it: under nohup it would leave SIGHUP alone (test_life.py)."""
        before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
        self.addCleanup(signal.signal, signal.SIGHUP, before)

    def test_first_signal_finishes(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            with w.Worker(engine=SLOW) as a, a.client() as c:
                job = c.pairs(LONG * 8)
                time.sleep(0.2)
                a.process.send_signal(number)
                until(lambda: c.call("health")["state"] == "draining")
                with self.assertRaises(w.Refused) as e:
                    c.pairs(LONG)
                self.assertEqual((e.exception.code, e.exception.retry_ms), ("busy", None))
                self.assertEqual(c.wait(job)["state"], "done")
                self.assertEqual(len(c.fetch(job)), 8)
                c.call("release", job=job)
                self.assertEqual(ended(a), 0)
                self.assertFalse((a.dir / "w.sock").exists())
                self.assertFalse(a.ready.exists())

    def test_second_signal_stops_at_once(self):
        with w.Worker(engine=SLOW) as a, a.client() as c:
            c.pairs(ENDLESS)
            time.sleep(0.2)
            a.process.send_signal(signal.SIGTERM)
            until(lambda: c.call("health")["state"] == "draining")
            a.process.send_signal(signal.SIGTERM)
            self.assertEqual(ended_at_once(a), 143)
            self.assertFalse((a.dir / "w.sock").exists())
            self.assertEqual(list((a.runtime / "ctworker").iterdir()), [])

    def test_grace(self):
        with w.Worker("--grace", "1", engine=SLOW) as a, a.client() as c:
            c.pairs(ENDLESS)
            time.sleep(0.2)
            start = time.monotonic()
            a.process.send_signal(signal.SIGINT)
            self.assertEqual(ended_at_once(a), 130)
            self.assertGreaterEqual(time.monotonic() - start, 1)

    def test_cancel_on_signal(self):
        with w.Worker("--on-signal", "cancel", engine=SLOW) as a, a.client() as c:
            job = c.pairs(ENDLESS)
            time.sleep(0.2)
            a.process.send_signal(signal.SIGTERM)
            r = c.wait(job)
            self.assertEqual((r["state"], r["error"]["code"]), ("canceled", "canceled"))
            self.assertEqual(ended(a), 0)

    def test_shutdown_lets_clients_fetch(self):
        with w.Worker(engine=SLOW) as a, a.client() as c:
            job, never = c.pairs(LONG * 6), c.pairs(LONG, seal=False)
            r = c.call("shutdown", mode="finish")
            self.assertEqual((r["state"], r["jobs"]), ("draining", 1))
            self.assertEqual(c.call("poll", job=never)["state"], "canceled")
            self.assertEqual(c.wait(job)["state"], "done")
            for _ in range(8):
                time.sleep(0.5)  # not silent for 2 s
                self.assertEqual(len(c.fetch(job)), 6)
            self.assertEqual(ended(a), 0)

    def test_shutdown_cancel(self):
        with w.Worker(engine=SLOW) as a, a.client() as c:
            job = c.pairs(ENDLESS)
            c.call("shutdown", mode="cancel")
            self.assertEqual(c.call("poll", job=job)["state"], "canceled")
            c.call("release", job=job)
            self.assertEqual(ended_at_once(a), 0)

    def test_drain_keeps_answering(self):
        with w.Worker(engine=SLOW) as a, a.client() as c:
            job = c.pairs(LONG * 4)
            c.call("drain", mode="finish")
            self.assertEqual(c.wait(job)["state"], "done")
            time.sleep(2.5)
            self.assertEqual(len(c.fetch(job)), 4)
            self.assertIsNone(a.process.poll())

    def test_owner(self):
        owner = subprocess.Popen(["sleep", "100"])
        with w.Worker("--owner-pid", str(owner.pid), engine=SLOW) as a, a.client() as c:
            c.pairs(ENDLESS)
            time.sleep(0.3)
            self.assertIsNone(a.process.poll())
            owner.kill()
            owner.wait()
            self.assertEqual(ended_at_once(a), 0)
        start_fails(64, "there is no process", "--owner-pid", str(owner.pid))

    def test_ready_fd(self):
        r, wr = os.pipe()
        with tempfile.TemporaryDirectory(prefix="ctw-") as d:
            p = subprocess.Popen([str(w.FAKE), "serve", "--model", d, "--listen", f"ipc://{d}/s",
                                  "--ready-fd", str(wr)], pass_fds=[wr], stderr=subprocess.DEVNULL)
            os.close(wr)
            with os.fdopen(r) as f:
                self.assertEqual(f.read(), f"ipc://{d}/s\n")
            p.terminate()
            self.assertEqual(p.wait(20), 0)


class Failures(unittest.TestCase):
    def test_a_load_error_can_be_read(self):
        with w.Worker(models=["broken"], wait=False) as a:
            until(lambda: (a.dir / "w.sock").exists())
            with a.client() as c:
                until(lambda: c.call("health")["state"] == "failed")
                self.assertIn("broken/config.json: it is broken", c.call("health")["message"])
                m = c.call("info")["models"][0]
                self.assertEqual(m["state"], "failed")
                self.assertIn("it is broken", m["message"])
                with self.assertRaises(w.Refused) as e:
                    c.pairs(LONG)
                self.assertIn("it is broken", e.exception.message)
            self.assertEqual(ended(a), 65)
            self.assertIn("it is broken", a.text())
            self.assertFalse((a.dir / "w.sock").exists())

    def test_a_load_error_without_a_reader_ends_at_once(self):
        with tempfile.TemporaryDirectory(prefix="ctw-") as d:
            Path(d, "broken").mkdir()
            start = time.monotonic()
            got = subprocess.run([str(w.FAKE), "serve", "--model", f"{d}/broken", "--listen",
                                  f"ipc://{d}/s"], capture_output=True, text=True, timeout=20)
            self.assertEqual(got.returncode, 65)
            self.assertLess(time.monotonic() - start, 4, "it waited for readers")

    def test_missing_folder(self):
        got = subprocess.run([str(w.FAKE), "serve", "--model", "/nowhere/at/all"],
                             capture_output=True, text=True, timeout=20)
        self.assertEqual(got.returncode, 66)
        self.assertIn("/nowhere/at/all: No such file", got.stderr)

    def test_loading(self):
        with w.Worker(engine={"open_ms": 1500}, wait=False) as a:
            until(lambda: (a.dir / "w.sock").exists())
            with a.client() as c:
                self.assertEqual(c.call("health")["state"], "loading")
                self.assertEqual(c.call("info")["models"][0]["state"], "loading")
                self.assertFalse(a.ready.exists())
                with self.assertRaises(w.Refused) as e:
                    c.pairs(LONG)
                self.assertEqual((e.exception.code, e.exception.retry_ms), ("busy", 500))
                self.assertEqual(a.command("health", a.url).returncode, 0)
                self.assertEqual(a.command("health", a.url, "--ready").returncode, 1)
                until(lambda: c.call("health")["state"] == "ready")
                a.wait_ready()
                self.assertEqual(a.command("health", a.url, "--ready").returncode, 0)

    def test_a_signal_while_loading(self):
        with w.Worker(engine={"open_ms": 1500}, wait=False) as a:
            until(lambda: (a.dir / "w.sock").exists())
            a.process.terminate()
            self.assertEqual(ended(a), 0)

    def test_device_failure_ends_the_worker(self):
        with w.Worker(engine={"device_token": 13}) as a, a.client() as c:
            job = c.pairs([([1, 13], [2])])
            r = c.wait(job)
            self.assertEqual((r["state"], r["error"]["code"]), ("failed", "device"))
            self.assertEqual(c.call("health")["state"], "failed")
            self.assertEqual(ended(a), 69)

    def test_a_model_whose_files_change_is_not_ready(self):
        """Its jobs fail, those of other models go on; loaded again it is ready."""
        with w.Worker(models=["one", "two"], engine={"io_token": 15}) as a, a.client() as c:
            ready = lambda: a.command("health", "--ready").returncode
            state = lambda: json.loads(a.command("ps", "--json").stdout)[0]["state"]
            bad, open_ = c.pairs([([1, 15], [2])], seal=False), c.pairs(LONG, seal=False)
            c.call("seal", job=bad, parts=1)
            self.assertEqual(c.wait(bad)["error"]["code"], "io")
            self.assertEqual(c.wait(open_)["error"]["code"], "io")
            self.assertEqual([m["state"] for m in c.call("info")["models"]], ["failed", "ready"])
            self.assertEqual((c.call("health")["state"], ready(), state()), ("ready", 0, "ready"))
            self.assertEqual(len(c.run_pairs(LONG, model="two")), 1)
            with self.assertRaises(w.Refused) as e:
                c.pairs(LONG)
            self.assertIn("model.safetensors was changed", e.exception.message)
            self.assertEqual(c.wait(c.pairs([([1, 15], [2])], model="two"))["error"]["code"], "io")
            r = c.call("health")
            self.assertEqual((r["state"], ready(), state()), ("failed", 1, "failed"))
            self.assertIn("model.safetensors was changed", r["message"])

    def test_a_worker_without_models_is_not_ready(self):
        with tempfile.TemporaryDirectory(prefix="ctw-") as d:
            for args, words in (((), "start another worker"), (("--allow-load", d), "load one")):
                with w.Worker(*args) as a, a.client() as c:
                    self.assertEqual(a.command("health", "--ready").returncode, 0)
                    c.call("unload", model="model")
                    until(lambda: not c.call("info")["models"])
                    r = c.call("health")
                    self.assertEqual(r["state"], "empty")
                    self.assertIn(words, r["message"])
                    out = a.command("health", "--ready")
                    self.assertEqual(out.returncode, 1)
                    self.assertIn(f"empty: {r['message']}", out.stdout)
                    self.assertEqual(a.command("health").returncode, 0)
                    self.assertIn("empty", a.command("ps").stdout)
                    if args:
                        Path(d, "new").mkdir()
                        c.call("load", path=f"{d}/new")
                        until(lambda: c.call("health")["state"] == "ready")

    def test_memory_failure_spares_other_jobs(self):
        with w.Worker(engine={"memory_token": 14, "pass_tokens": 64}) as a, a.client() as c:
            bad = c.pairs([([1, 14], [2])])
            error = c.wait(bad)["error"]
            self.assertEqual((error["code"], error["item"]), ("memory", 0))
            self.assertEqual(len(c.run_pairs(LONG)), 1)


class Models(unittest.TestCase):
    def test_each_model_option_counts(self):
        with tempfile.TemporaryDirectory(prefix="ctw-") as d:
            for name in ("a", "b", "c", "e"):
                Path(d, name).mkdir()
            names = lambda a: [m["name"] for m in a.client().call("info")["models"]]
            more = ("--model", f"one={d}/a", "--model", f"two={d}/b", f"{d}/c")
            with w.Worker(*more) as a:
                self.assertEqual(names(a), ["model", "one", "two", "c"])
            with w.Worker(f"{d}/c", env={"CTW_MODEL": f"{d}/e"}) as a:  # the option wins
                self.assertEqual(names(a), ["model", "c"])
            start_fails(64, "a model named a exists already", "--model", f"{d}/a",
                        "--model", f"{d}/a")

    def test_several(self):
        with w.Worker(models=["one", "two"]) as a, a.client() as c:
            self.assertEqual([m["name"] for m in c.call("info")["models"]], ["one", "two"])
            pairs = w.random_pairs(5)
            for name in ("", "one", "two"):
                self.assertEqual(c.run_pairs(pairs, model=name)[2][0], w.expect_pair(*pairs[2])[0])

    def test_load_and_unload(self):
        with tempfile.TemporaryDirectory(prefix="ctw-") as d:
            for name in ("b", "slow", "broken", "out"):
                Path(d, name).mkdir()
            Path(d, "root").mkdir()
            for name in ("b", "broken"):
                os.rename(f"{d}/{name}", f"{d}/root/{name}")
            Path(d, "root/link").symlink_to(f"{d}/out")
            root = f"{d}/root"
            with w.Worker("--allow-load", root) as a, a.client() as c:
                states = lambda: {m["name"]: m["state"] for m in c.call("info")["models"]}
                r = c.call("load", path=f"{root}/b")
                self.assertEqual((r["model"], r["state"]), ("b", "loading"))
                until(lambda: states()["b"] == "ready")
                c.call("load", path=f"{root}/b", model="again")
                until(lambda: states()["again"] == "ready")
                for path in (f"{d}/out", f"{root}/../out", f"{root}/link", "b", f"{root}x", "/",
                             f"{root}/none"):
                    with self.assertRaises(w.Refused) as e:
                        c.call("load", path=path)
                    self.assertEqual(e.exception.code, "invalid")
                with self.assertRaises(w.Refused) as e:
                    c.call("load", path=f"{root}/b")
                self.assertIn("exists already", e.exception.message)
                c.call("load", path=f"{root}/broken")
                until(lambda: states()["broken"] == "failed")
                self.assertEqual(c.call("health")["state"], "ready")
                job = c.pairs(LONG, model="b", seal=False)
                with self.assertRaises(w.Refused) as e:
                    c.call("unload", model="b")
                self.assertEqual(e.exception.code, "busy")
                c.call("cancel", job=job)
                c.call("unload", model="b")
                until(lambda: "b" not in states())
                with self.assertRaises(w.Refused) as e:
                    c.pairs(LONG, model="b")
                self.assertEqual(e.exception.code, "not_found")
                c.run_pairs(LONG, model="again")
                c.run_pairs(LONG)


if __name__ == "__main__":
    unittest.main()
