"""A worker's life at its edges: how it is started, told to stop, and waited for."""

import json
import os
import signal
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

import worker_process as w
from worker_cases import (ENDED_S, ENDLESS, ENDLESS_LOAD, LONG, SLOW, ended, ended_at_once, first_answer,
                          long_items, start_fails, timed, until)


def stop(worker, *args, env=None, timeout=60):
    return subprocess.run([str(w.FAKE), "stop", *args], env=worker.env | (env or {}),
                          capture_output=True, text=True, timeout=timeout,
                          stdin=subprocess.DEVNULL)


class Signals(unittest.TestCase):
    def test_nohup(self):
        """An ignored SIGHUP stays ignored; the worker handles the other signals."""
        with tempfile.TemporaryDirectory(prefix="ctw-") as d:
            argv = ["sh", "-c", "trap '' HUP; exec \"$@\"", "sh", str(w.FAKE), "serve", "--model", d,
                    "--listen", f"ipc://{d}/s", "--ready-file", f"{d}/ready"]
            p = subprocess.Popen(argv, stderr=subprocess.DEVNULL)
            try:
                until(Path(d, "ready").exists)
                p.send_signal(signal.SIGHUP)
                time.sleep(0.4)
                with w.Client(f"ipc://{d}/s") as c:
                    self.assertEqual(c.call("health")["state"], "ready")
                p.terminate()
                self.assertEqual(p.wait(20), 0)
            finally:
                p.kill()
                p.wait()

    @timed
    def test_the_socket_is_there_until_the_process_is_done(self):
        """The scoring thread opens a model for 2 s; meanwhile the worker still answers."""
        with w.Worker(engine={"open_ms": 2000}, wait=False) as a:
            until(lambda: (a.dir / "w.sock").exists())
            a.process.terminate()
            time.sleep(1)
            self.assertIsNone(a.process.poll())
            self.assertEqual(first_answer(a, "health")["state"], "draining")
            self.assertEqual(ended(a), 0)
            self.assertFalse((a.dir / "w.sock").exists())

    def test_a_second_signal_ends_the_wait_for_a_model(self):
        with w.Worker(engine=ENDLESS_LOAD, wait=False) as a:
            until(lambda: (a.dir / "w.sock").exists())
            a.process.terminate()
            time.sleep(0.5)
            self.assertIsNone(a.process.poll())
            start = time.monotonic()
            a.process.send_signal(signal.SIGINT)
            self.assertEqual(ended(a), 130)
            self.assertLess(time.monotonic() - start, ENDED_S, "it waited for the model")
            self.assertFalse((a.dir / "w.sock").exists())
            self.assertEqual(list((a.runtime / "ctworker").iterdir()), [])

    @timed
    def test_no_destructor_runs_under_a_live_thread(self):
        """A stop that does not wait for the scoring thread ends without exit(); a stop that waits calls exit()."""
        at_exit = {"CTW_FAKE_AT_EXIT": "1"}
        with w.Worker(engine={"us_per_token": 10000000}, env=at_exit) as a, a.client() as c:
            job = c.pairs(LONG)  # two minutes per layer
            until(lambda: c.call("poll", job=job)["state"] == "running")
            a.process.terminate()
            time.sleep(0.4)
            a.process.send_signal(signal.SIGTERM)
            time.sleep(0.4)
            a.process.send_signal(signal.SIGINT)
            self.assertEqual(ended(a), 128 + signal.SIGINT)
            self.assertIn("not waiting any longer", a.text())
            self.assertNotIn("destructors run", a.text())
            self.assertFalse((a.dir / "w.sock").exists())
            self.assertEqual(list((a.runtime / "ctworker").iterdir()), [])
        with w.Worker(env=at_exit) as a:
            a.process.terminate()
            self.assertEqual(ended(a), 0)
            self.assertIn("destructors run", a.text())

    def test_a_lost_owner_ends_the_wait_for_a_model(self):
        owner = subprocess.Popen(["sleep", "100"])
        with w.Worker("--owner-pid", str(owner.pid), engine=ENDLESS_LOAD, wait=False) as a:
            until(lambda: (a.dir / "w.sock").exists())
            owner.kill()
            owner.wait()
            start = time.monotonic()
            self.assertEqual(ended(a), 0)
            self.assertLess(time.monotonic() - start, ENDED_S, "it waited for the model")

    @timed
    def test_what_ends_within_the_grace_can_be_fetched_after_it(self):
        with w.Worker("--grace", "3", engine=SLOW) as a, a.client() as c:
            job = c.pairs(long_items(4))  # half a second
            a.process.terminate()
            end = time.monotonic() + 4
            while time.monotonic() < end:
                time.sleep(0.2)
                r = c.call("poll", job=job)
            self.assertEqual(r["state"], "done")
            self.assertEqual(len(c.fetch(job)), 4)
            c.call("release", job=job)
            self.assertEqual(ended(a), 0)


class Endings(unittest.TestCase):
    def setUp(self):
        """Workers inherit the default handling of SIGHUP: under nohup they would ignore it (test_nohup)."""
        before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
        self.addCleanup(signal.signal, signal.SIGHUP, before)

    @timed
    def test_first_signal_finishes(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            with w.Worker(engine=SLOW) as a, a.client() as c:
                job = c.pairs(long_items(8))
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

    @timed
    def test_cancel_on_signal(self):
        with w.Worker("--on-signal", "cancel", engine=SLOW) as a, a.client() as c:
            job = c.pairs(ENDLESS)
            time.sleep(0.2)
            a.process.send_signal(signal.SIGTERM)
            r = c.wait(job)
            self.assertEqual((r["state"], r["error"]["code"]), ("canceled", "canceled"))
            self.assertEqual(ended(a), 0)

    @timed
    def test_shutdown_lets_clients_fetch(self):
        with w.Worker(engine=SLOW) as a, a.client() as c:
            job, never = c.pairs(long_items(6)), c.pairs(LONG, seal=False)
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
            job = c.pairs(long_items(4))
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


class Stop(unittest.TestCase):
    def test_returns_when_the_process_has_ended(self):
        with w.Worker(engine={"open_ms": 2500}, wait=False) as a:
            until(lambda: a.command("info").returncode == 0)
            out = stop(a)
            self.assertEqual(out.returncode, 0, out.stderr)
            self.assertIsNotNone(a.process.poll(), "it runs yet")

    @timed
    def test_without_a_registry(self):
        """Over ipc, `stop` watches the lock; over tcp, it waits until calls are no longer answered."""
        for listen in (None, "tcp://127.0.0.1:0"):
            with tempfile.TemporaryDirectory(prefix="ctw-") as other, \
                    w.Worker(listen=listen, engine=SLOW) as a, a.client() as c:
                start = time.monotonic()
                c.pairs(long_items(12))  # 1.5 s
                out = stop(a, a.url, env={"XDG_RUNTIME_DIR": other})
                self.assertEqual(out.returncode, 0, out.stderr)
                self.assertGreater(time.monotonic() - start, 1)
                self.assertEqual(ended(a), 0)

    def test_private_workers_are_left_alone_unless_named(self):
        with w.Worker("--owner-pid", str(os.getpid()), "--name", "mine") as a:
            for command in ("stop", "info", "health"):
                out = a.command(command)
                self.assertEqual(out.returncode, 66, out.stdout)
                self.assertIn("private workers of other programs (mine): give the name", out.stderr)
            self.assertIs(json.loads(a.command("ps", "--json").stdout)[0]["private"], True)
            self.assertIn("(private)", a.command("ps").stdout)
            shared = {"XDG_RUNTIME_DIR": a.env["XDG_RUNTIME_DIR"]}
            with w.Worker("--name", "shared", env=shared) as b:
                self.assertEqual(b.command("health").returncode, 0)
                self.assertEqual(b.command("stop").returncode, 0)
                self.assertEqual(ended(b), 0)
                self.assertNotIn("private)", b.command("ps").stdout.split("mine")[0])
            self.assertEqual(a.command("health", "mine").returncode, 0)
            self.assertEqual(a.command("stop", "mine").returncode, 0)
            self.assertEqual(ended(a), 0)
            self.assertRegex(a.text(), r"process \d+ asks to stop")

    def test_timeout(self):
        with w.Worker(engine=SLOW) as a, a.client() as c:
            c.pairs(ENDLESS)
            out = stop(a, "--timeout", "1")
            self.assertEqual(out.returncode, 75)
            self.assertIn("still finishing 1 jobs after 1 s", out.stderr)
            self.assertEqual(stop(a, "--cancel").returncode, 0)
            self.assertEqual(ended(a), 0)


class Info(unittest.TestCase):
    @timed
    def test_percent_and_time_left_of_each_job(self):
        with w.Worker(engine=SLOW) as a, a.client() as c:
            job, waits = c.pairs(long_items(40)), c.pairs(LONG, seal=False)
            def running():
                jobs = json.loads(a.command("info", "--json").stdout)["jobs"]
                return jobs if jobs[0]["tokens_done"] > 0 and jobs[0]["seconds_left"] > 0 else None
            until(running)
            first, second = running() or running()
            self.assertEqual((first["job"], first["state"]), (job.hex(), "running"))
            self.assertEqual(first["tokens"], 40 * second["tokens"])
            self.assertTrue(0 < first["percent"] < 100, first)
            self.assertAlmostEqual(first["percent"], 100 * first["tokens_done"] / first["tokens"])
            self.assertLess(first["seconds_left"], 60)
            self.assertEqual((second["state"], second["tokens_done"], second["percent"],
                              second["seconds_left"]), ("open", 0, 0, -1))
            lines = a.command("info").stdout.splitlines()
            self.assertRegex(lines[-2], r"^  running   \d+ of 40 items, \d+ % of \d+ tokens, \d+ s left, logl")
            self.assertRegex(lines[-1], r"^  open      0 of 1 items, 0 % of \d+ tokens, loglikelihood, model$")
            c.call("cancel", job=job)
            c.call("cancel", job=waits)

    @timed
    def test_the_time_left_counts_the_shares_of_other_jobs(self):
        """The job of 40 waits for as much of the other job; that job, three times as long, for all of this one."""
        with w.Worker(engine=SLOW) as a, a.client() as c:
            short, long = c.pairs(long_items(40)), c.pairs(long_items(120))
            left = lambda: [j["seconds_left"] for j in c.call("info")["jobs"]]
            until(lambda: min(left()) > 0)
            of_short, of_long = left()
            self.assertTrue(1.9 < of_long / of_short < 2.6, (of_short, of_long))
            c.call("cancel", job=short)
            c.call("cancel", job=long)


class Start(unittest.TestCase):
    def test_wildcard_that_cannot_be_dialled(self):
        for host in ("*", ""):
            with w.Worker("--insecure-bind-any", listen=f"tcp://{host}:0") as a:
                self.assertRegex(a.url, r"^tcp://0\.0\.0\.0:[1-9]\d*$")
                self.assertEqual(a.command("health").returncode, 0)

    def test_values_are_checked_before_loading(self):
        with tempfile.TemporaryDirectory(prefix="ctw-") as d:
            Path(d, "file").write_text("")
            for code, part, *args in (
                    (64, "--queue-bytes 0: no job", "--queue-bytes", "0"),
                    (66, "/nowhere: No such file", "--ready-file", "/nowhere/ready"),
                    (64, "expected the name of a file", "--ready-file", d),
                    (64, "is not a folder", "--ready-file", f"{d}/file/ready"),
                    (64, "--ready-fd 77: the descriptor is not open", "--ready-fd", "77"),
                    (66, "/nowhere: No such file", "--allow-load", "/nowhere"),
                    (64, "is not a folder", "--allow-load", f"{d}/file")):
                start = time.monotonic()
                start_fails(code, part, *args, engine=ENDLESS_LOAD)
                self.assertLess(time.monotonic() - start, ENDED_S, "it loaded the model first")

    def test_named_models(self):
        with tempfile.TemporaryDirectory(prefix="ctw-") as d:
            for name in ("a/m", "b/m", "b/x=y"):
                Path(d, name).mkdir(parents=True)
            start_fails(64, "NAME=DIR", f"{d}/a/m", f"{d}/b/m")
            start_fails(64, "a name of 1..127 bytes", f"={d}/a/m")
            start_fails(66, "No such file", "name=/nowhere")
            with w.Worker(f"other={d}/a/m", f"{d}/b/m", f"{d}/b/x=y") as a, a.client() as c:
                models = [(m["name"], m["path"]) for m in c.call("info")["models"]]
                self.assertEqual(models[1:], [("other", f"{d}/a/m"), ("m", f"{d}/b/m"),
                                              ("x=y", f"{d}/b/x=y")])
                self.assertEqual(len(c.run_pairs(LONG, model="other")), 1)

    def test_a_model_has_a_dtype_of_its_own(self):
        with tempfile.TemporaryDirectory(prefix="ctw-") as d:
            for name in ("a", "c:bfloat16"):
                Path(d, name).mkdir()
            start_fails(64, "expected auto, bfloat16, float16 or float32", f"x:bf16={d}/a")
            start_fails(64, "a name of 1..127 bytes", f":bfloat16={d}/a")
            with w.Worker(f"x:bfloat16={d}/a", f"y={d}/a", f"{d}/c:bfloat16") as a, a.client() as c:
                dtypes = {m["name"]: m["dtype"] for m in c.call("info")["models"]}
                self.assertEqual(dtypes, {"model": "float32", "x": "bfloat16", "y": "float32",
                                          "c:bfloat16": "float32"})

    def test_a_long_folder_name_is_cut(self):
        with tempfile.TemporaryDirectory(prefix="ctw-") as d:
            long = "m" * 126 + "\u00e4" + "n" * 100  # the 127th byte is half a letter
            Path(d, long).mkdir()
            with w.Worker(f"{d}/{long}") as a, a.client() as c:
                self.assertEqual(c.call("info")["models"][1]["name"], "m" * 126 + "?")

    @timed
    def test_without_readers_nothing_waits(self):
        """No client has asked: a worker whose model fails to load ends at once."""
        with tempfile.TemporaryDirectory(prefix="ctw-") as d:
            Path(d, "broken").mkdir()
            start = time.monotonic()
            got = subprocess.run([str(w.FAKE), "serve", "--model", f"{d}/broken", "--listen",
                                  f"ipc://{d}/s"], capture_output=True, text=True, timeout=20,
                                 env=os.environ | {"CTW_FAKE_OPEN_MS": "2500"})
            self.assertEqual(got.returncode, 65)
            self.assertIn(f"error: {d}/broken: ", got.stderr)  # names the model, since there may be several
            self.assertLess(time.monotonic() - start, 6, "it waited for readers")

    def test_loading_names_the_model_and_no_path(self):
        with w.Worker(listen="tcp://127.0.0.1:0", engine=ENDLESS_LOAD, wait=False) as a:
            until(lambda: a.command("info").returncode == 0)
            url = json.loads(a.command("ps", "--json").stdout)[0]["url"]
            with w.Client(url) as c:
                r = c.call("health")
                self.assertEqual((r["state"], r["message"]), ("loading", "model"))


class Registry(unittest.TestCase):
    def test_an_entry_stays_while_its_address_is_held(self):
        """The process that holds the address may be about to write this file."""
        with w.Worker("--name", "new") as a:
            folder = a.runtime / "ctworker"
            e = json.loads((folder / "new.json").read_text())
            dead = subprocess.Popen(["true"])
            dead.wait()
            (folder / "old.json").write_text(json.dumps(e | {"pid": dead.pid, "started": 1}))
            names = lambda: [p["name"] for p in json.loads(a.command("ps", "--json").stdout)]
            self.assertEqual(names(), ["new"])
            self.assertTrue((folder / "old.json").exists())
            self.assertTrue((a.dir / "w.sock").exists())
            # a worker whose process cannot be seen from here lives while it holds its lock
            (folder / "new.json").write_text(json.dumps(e | {"started": 1}))
            self.assertEqual(names(), ["new"])
            a.process.kill()
            a.end()
            self.assertEqual(names(), [])
            self.assertEqual(list(folder.iterdir()), [])


if __name__ == "__main__":
    unittest.main()
