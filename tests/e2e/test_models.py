"""The models of a worker: named on the command line, loaded and unloaded while it runs."""

import os
import tempfile
import time
import unittest
from pathlib import Path

import worker_process as w
from worker_cases import LONG, start_fails, until


class Models(unittest.TestCase):
    def test_each_model_option_counts(self):
        with tempfile.TemporaryDirectory(prefix="ctw-") as d:
            for name in ("a", "b", "c", "e"):
                Path(d, name).mkdir()
            names = lambda a: [m["name"] for m in a.client().call("info")["models"]]
            more = ("--model", f"one={d}/a", "--model", f"two={d}/b", f"{d}/c")
            with w.Worker(*more) as a:
                self.assertEqual(names(a), ["model", "one", "two", "c"])
            with w.Worker(f"{d}/c", env={"CTW_MODEL": f"{d}/e"}) as a:  # the option takes precedence
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

    def test_an_initial_model_is_one_wherever_it_stands(self):
        with tempfile.TemporaryDirectory(prefix="ctw-") as d:
            Path(d, "broken").mkdir()
            with w.Worker("--allow-load", d, models=["one", "two"]) as a, a.client() as c:
                states = lambda: {m["name"]: m["state"] for m in c.call("info")["models"]}
                c.call("unload", model="one")
                until(lambda: "one" not in states())
                c.call("load", path=f"{d}/broken")
                until(lambda: states().get("broken") == "failed")
                time.sleep(0.3)
                self.assertEqual(c.call("health")["state"], "ready")
                self.assertEqual(len(c.run_pairs(LONG)), 1)
                with self.assertRaises(w.Refused) as e:  # the request is well formed, but cannot succeed
                    c.pairs(LONG, model="broken")
                self.assertEqual((e.exception.code, e.exception.retry_ms), ("invalid", None))
                self.assertIn("it is broken", e.exception.message)

    def test_busy_says_when_to_come_again(self):
        with w.Worker() as a, a.client() as c:
            job = c.pairs(LONG, seal=False)
            with self.assertRaises(w.Refused) as e:
                c.call("unload", model="model")
            self.assertEqual((e.exception.code, e.exception.retry_ms), ("busy", 1000))
            c.call("cancel", job=job)


if __name__ == "__main__":
    unittest.main()
