"""The commands info, health, ps and stop: names of workers, and files that dead workers leave."""

import contextlib
import json
import socket
import subprocess
import tempfile
import threading
import unittest

import worker_process as w
from worker_cases import ended, start_fails, until


class Commands(unittest.TestCase):
    def test_a_full_worker_is_called_so(self):
        """It closes new connections at once, which nng's sockets try again without a word."""
        with w.Worker() as a, tempfile.TemporaryDirectory(prefix="ctw-") as d, \
                socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"{d}/s")
            listener.listen(16)

            def turn_away():
                with contextlib.suppress(OSError):
                    while True:
                        listener.accept()[0].close()

            thread = threading.Thread(target=turn_away)
            thread.start()
            try:
                for command in ("info", "health", "stop"):
                    out = a.command(command, f"ipc://{d}/s", *(() if command == "stop" else ("--timeout", "1")))
                    self.assertEqual(out.returncode, 75, out.stderr)
                    self.assertIn("closes new connections at once: all its connections are in use", out.stderr)
            finally:
                listener.shutdown(socket.SHUT_RDWR)
                thread.join()

    def test_info_ps_stop(self):
        with w.Worker("--name", "first") as a:
            out = a.command("info")
            self.assertEqual(out.returncode, 0, out.stderr)
            self.assertIn("fake-c/float32/1", out.stdout)
            info = json.loads(a.command("info", "first", "--json").stdout)
            self.assertEqual((info["url"], info["models"][0]["vocab"]), (a.url, w.VOCAB))
            ps = json.loads(a.command("ps", "--json").stdout)
            self.assertEqual([(p["name"], p["pid"], p["state"]) for p in ps],
                             [("first", a.process.pid, "ready")])
            self.assertIn("first", a.command("ps").stdout)
            self.assertEqual(json.loads(a.command("health", "--json").stdout)["state"], "ready")
            out = a.command("stop")
            self.assertEqual(out.returncode, 0, out.stderr)
            self.assertEqual(ended(a), 0)
            self.assertEqual(a.command("ps").stdout, "no workers\n")
            for command in ("info", "health", "stop"):
                out = a.command(command)
                self.assertEqual(out.returncode, 66)
                self.assertIn("no worker", out.stderr)
                out = a.command(command, a.url)
                self.assertEqual(out.returncode, 66)

    def test_two_workers_must_be_named(self):
        with w.Worker("--name", "x") as a, w.Worker("--name", "y", env=None) as b:
            env = b.env | {"XDG_RUNTIME_DIR": a.env["XDG_RUNTIME_DIR"]}
            extra = subprocess.Popen([str(w.FAKE), "serve", "--model", str(b.dir), "--name", "z-third"],
                                     env=env, stderr=subprocess.DEVNULL)
            try:
                until(lambda: "z-third" in a.command("ps").stdout)
                out = a.command("info")
                self.assertEqual(out.returncode, 64)
                self.assertIn("2 workers run here (x, z-third)", out.stderr)
                self.assertEqual(a.command("stop", "z-third").returncode, 0)
                self.assertEqual(extra.wait(20), 0)
                self.assertEqual(a.command("info").returncode, 0)
            finally:
                extra.kill()
                extra.wait()

    def test_a_name_is_taken_by_one(self):
        with w.Worker("--name", "same") as a:
            shared = {"XDG_RUNTIME_DIR": a.env["XDG_RUNTIME_DIR"]}
            start_fails(75, "a worker named same is already running", "--name", "same", env=shared)
            self.assertIn("same", a.command("ps").stdout)
            a.process.kill()
            a.end()
            with w.Worker("--name", "same", env=shared) as b:  # the name of a dead worker is free
                self.assertIn(str(b.process.pid), a.command("ps").stdout)

    def test_ps_cleans_up_after_a_killed_worker(self):
        with w.Worker("--name", "dead") as a:
            folder = a.runtime / "ctworker"
            a.process.kill()
            a.end()
            self.assertEqual([p.name for p in folder.iterdir()], ["dead.json"])
            (folder / "broken.json").write_text("{")
            out = a.command("ps")
            self.assertEqual(out.stdout, "no workers\n")
            self.assertIn("broken.json", out.stderr)
            self.assertEqual([p.name for p in folder.iterdir()], ["broken.json"])
            self.assertFalse((a.dir / "w.sock").exists())

    def test_only_ps_cleans_up(self):
        """Other commands ask one worker, and leave the files of others alone."""
        with w.Worker("--name", "dead") as a:
            folder = a.runtime / "ctworker"
            a.process.kill()
            a.end()
            (folder / "broken.json").write_text("{")
            with w.Worker("--name", "alive", env={"XDG_RUNTIME_DIR": a.env["XDG_RUNTIME_DIR"]}) as b:
                for command in (("info",), ("health", "alive"), ("stop", b.url)):
                    out = b.command(*command)
                    self.assertEqual((out.returncode, out.stderr), (0, ""))
                self.assertEqual(sorted(p.name for p in folder.iterdir()), ["broken.json", "dead.json"])

    def test_no_answer(self):
        with tempfile.TemporaryDirectory(prefix="ctw-") as d:
            s = socket.socket(socket.AF_UNIX)
            s.bind(f"{d}/deaf")
            s.listen()
            out = subprocess.run([str(w.FAKE), "health", f"ipc://{d}/deaf", "--timeout", "3"],
                                 capture_output=True, text=True, timeout=20)
            s.close()
            self.assertEqual(out.returncode, 74)
            self.assertIn("no answer within 3000 ms", out.stderr)

    def test_help(self):
        for command in ("serve", "info", "health", "ps", "stop"):
            out = subprocess.run([str(w.FAKE), command, "--help"], capture_output=True, text=True)
            self.assertEqual((out.returncode, out.stderr), (0, ""))
            self.assertTrue(max(map(len, out.stdout.splitlines())) <= 100, out.stdout)


if __name__ == "__main__":
    unittest.main()
