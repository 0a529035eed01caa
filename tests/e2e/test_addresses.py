"""Where a worker listens: sockets, folders, files that exist already, other users."""

import os
import signal
import stat
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import worker_process as w
from worker_cases import ended, start_fails, until


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
        """The folder is refused with a remedy that works: with --listen the worker serves, but `ps` does not list it."""
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
            with a.client() as new:
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


if __name__ == "__main__":
    unittest.main()
