"""What goes wrong on real machines: early closes, babbling clients, lost connections, loads and devices that fail."""

import json
import os
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
from worker_cases import LONG, SLOW, ended, first_answer, long_items, timed, until


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
                    c.raw(bytes(w.REQUEST_BYTES + 61))  # and 4 of its id: 64 are allowed for a longer trace
                self.assertEqual(c.call("health")["state"], "ready")  # pynng dials again by itself
            self.assertEqual(other.call("health")["state"], "ready")
            # a message of exactly the largest size is read, and refused for its content
            size = w.REQUEST_BYTES - 5  # without the header of the bin
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
                job = c.pairs(long_items(8))
            with a.client() as c:
                self.assertEqual(c.wait(job)["state"], "done")
                self.assertEqual(len(c.fetch(job)), 8)


class Failures(unittest.TestCase):
    @timed
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

    @timed
    def test_a_failed_worker_that_is_asked_to_stop_waits_for_no_reader(self):
        with w.Worker(models=["broken"], wait=False) as a, a.client() as c:
            until(lambda: c.call("health")["state"] == "failed")
            start = time.monotonic()
            c.call("shutdown", mode="cancel")
            self.assertEqual(ended(a), 65)
            self.assertLess(time.monotonic() - start, 3, "it waited for readers")

    @timed
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

    @timed
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

    @timed
    def test_device_failure_ends_the_worker(self):
        with w.Worker(engine={"device_token": 13}) as a, a.client() as c:
            job = c.pairs([([1, 13], [2])])
            r = c.wait(job)
            self.assertEqual((r["state"], r["error"]["code"]), ("failed", "device"))
            self.assertEqual(c.call("health")["state"], "failed")
            self.assertEqual(ended(a), 69)

    def test_a_model_whose_files_change_is_not_ready(self):
        """The jobs of the model fail, the jobs of other models go on; loaded again, the model is ready."""
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


if __name__ == "__main__":
    unittest.main()
