"""The result store (`serve --store`) on the fake engine: what is found, kept, lost and shared."""

import json
import os
import random
import resource
import shutil
import signal
import tempfile
import time
import unittest
from pathlib import Path

import worker_process as w
from real_worker import DEEP, PAIRS, WORKER, Checkpoints, environment, random_pairs
from test_divergence import RULE, compared, compared_layers, divergence, expect, expect_layers
from worker_cases import start_fails, timed, until


CHECKPOINTS = Checkpoints({"int4": ("qwen2", "w4a16_g32_asym", {}), "deep": DEEP, "delta": ("qwen3_5_text", "fp8_block", {})})
setUpModule, tearDownModule = CHECKPOINTS.write, CHECKPOINTS.remove


class Stored(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ctw-store-")
        self.addCleanup(folder.cleanup)
        self.dir = folder.name + "/store"
        self.file = Path(self.dir) / "results.sqlite"

    def worker(self, *args, **kw):
        return w.Worker("--store", self.dir, *args, **kw)

    def fill(self, pairs):
        with self.worker() as worker, worker.client() as c:
            c.run_pairs(pairs)
            worker.process.terminate()
            worker.end()


def expected(pairs):
    return {i: w.expect_pair(*pair) for i, pair in enumerate(pairs)}


def run(client, pairs):
    return client.run_pairs(pairs, columns=["logprob", "greedy"])


def store_of(client):
    return client.call("info")["store"]


class Found(Stored):
    def test_nothing_is_scored_twice(self):
        pairs = w.random_pairs(300)
        with self.worker() as worker, worker.client() as c:
            self.assertEqual(run(c, pairs), expected(pairs))
            store = store_of(c)
            self.assertEqual((store["hits"], store["kept"], store["lost"]), (0, 300, 0))
            self.assertEqual((store["entries"], store["path"]), (300, self.dir))
            self.assertTrue(0 < store["bytes"] < store["limit"])
        # Whatever is scored now is a failure of the device.
        with self.worker(engine={"device_token": pairs[0][1][0]}) as worker, worker.client() as c:
            self.assertEqual(run(c, pairs), expected(pairs))
            store = store_of(c)
            self.assertEqual((store["hits"], store["kept"]), (300, 0))
            self.assertIn("300 of 300 sequences stored before", worker.text())

    def test_some_are_found(self):
        rng = random.Random(5)
        texts = [[rng.randrange(w.VOCAB) for _ in range(n)] for n in (0, 1, 64, 65, 200, 333)]
        with self.worker() as worker, worker.client() as c:
            c.wait(c.rolling(texts[:4], 7))
            job = c.rolling(texts, 7, columns=["logprob", "greedy"])
            end = c.wait(job)
            self.assertEqual(end["progress"]["tokens_done"], end["progress"]["tokens"])
            got = c.fetch(job)
            for i, text in enumerate(texts):
                self.assertEqual(got[i], w.expect_rolling(text, 7), f"text {i}")
            store = store_of(c)
            self.assertEqual((store["hits"], store["kept"]), (4, 14))

    @timed
    def test_progress_counts_what_is_found(self):
        pairs = [([i] * 60, [2] * 4) for i in range(1, 25)]
        self.fill(pairs[:12])
        with self.worker(engine={"us_per_token": 2000}) as worker, worker.client() as c:
            job = c.pairs(pairs)
            until(lambda: c.call("poll", job=job, wait_ms=0)["items_done"] > 0)
            reply = c.call("poll", job=job, wait_ms=0)
            self.assertEqual((reply["items_done"], reply["state"] in ("queued", "running")), (12, True))
            self.assertGreaterEqual(reply["progress"]["tokens_done"], 12 * 63)
            self.assertEqual(reply["progress"]["tokens"], 24 * 63)
            self.assertEqual(len(c.fetch(job)), 12)

    def test_other_kinds_of_jobs_find_the_same_sequences(self):
        rng = random.Random(6)
        text = [rng.randrange(w.VOCAB) for _ in range(40)]
        with self.worker() as worker, worker.client() as c:
            c.wait(c.rolling([text], 7))
            self.assertEqual(run(c, [([7], text)]), expected([([7], text)]))
            self.assertEqual(store_of(c)["hits"], 1)

    def test_each_vocabulary_has_results_of_its_own(self):
        pair = ([1, 2, 3], [4, 5])
        with self.worker() as worker, worker.client() as c:
            for _ in range(2):
                jobs = [c.pairs([pair] * 3, columns=["logprob"], **head) for head in ({"vocabulary": 500}, {})]
                for job, share in zip(jobs, (2, 1)):
                    c.wait(job)
                    got = {tuple(item[4]) for item in c.fetch(job).values()}
                    self.assertEqual(got, {tuple(x / share for x in w.expect_pair(*pair)[4])})
            store = store_of(c)
            self.assertEqual((store["entries"], store["kept"]), (2, 2))

    def test_without_a_store_info_has_none(self):
        with w.Worker() as worker, worker.client() as c:
            self.assertNotIn("store", c.call("info"))

    def test_over_tcp_no_path_is_told(self):
        with self.worker(listen="tcp://127.0.0.1:0") as worker, worker.client() as c:
            self.assertEqual(store_of(c)["path"], "")
            self.assertNotIn(self.dir, json.dumps(c.call("info"), default=repr))

    def test_info_shows_it(self):
        with self.worker() as worker, worker.client() as c:
            run(c, w.random_pairs(10))
            text = worker.command("info", worker.url).stdout
            self.assertRegex(text, r"store      10 sequences, .* of 4.0 GiB, in " + self.dir)
            self.assertIn("this worker found 0 sequences, kept 10", text)
            self.assertEqual(json.loads(worker.command("info", worker.url, "--json").stdout)["store"]["kept"], 10)


class Compared(Stored):
    """Jobs of kind divergence have records of their own."""

    def test_a_comparison_is_not_computed_twice(self):
        rng = random.Random(14)
        texts = [[rng.randrange(3, w.VOCAB) for _ in range(n)] for n in (0, 16, 23, 90)]
        texts.append(texts[2])
        models = {"models": ["model", "other"]}

        def run_and_check(c):
            job = divergence(c, texts, columns=["logprob", "greedy"], **RULE)
            self.assertEqual(c.wait(job)["state"], "done")
            reply = c.call("fetch", job=job, first=0)
            got = compared(reply)
            for i, text in enumerate(texts):
                self.assertEqual(got[i], expect(text, RULE)[2])
            return reply["result"], reply["identity"], reply["ref_identity"], reply["ref_numerics"]

        with self.worker(**models) as worker, worker.client() as c:
            first = run_and_check(c)
            kept = store_of(c)["kept"]
            self.assertEqual(kept, 1 + 2 + 12)  # windows; those of an equal text are not computed again
            hits = store_of(c)["hits"]
            c.wait(c.pairs([(texts[1][:1], texts[1][1:])]))  # another kind of result of the same tokens
            self.assertEqual((store_of(c)["hits"], store_of(c)["kept"]), (hits, kept + 1))
            text = worker.command("store", "list", self.dir).stdout
            self.assertRegex(text, "fake-c/float32/1, compared with a{12} fake-c/float32/1")
        with self.worker(engine={"device_token": texts[1][3]}, **models) as worker, worker.client() as c:
            self.assertEqual([sorted(x.items()) if isinstance(x, dict) else x for x in run_and_check(c)][1:],
                             list(first[1:]))
            self.assertEqual(store_of(c)["kept"], 0)


    def test_compared_layers_are_kept(self):
        rng = random.Random(15)
        texts = [[rng.randrange(w.VOCAB) for _ in range(n)] for n in (16, 30, 16)]
        models = {"models": ["model", "other"]}
        for new in (True, False):
            with self.worker(**models) as worker, worker.client() as c:
                for layers in (False, True):
                    job = divergence(c, texts, layers=layers, **RULE)
                    self.assertEqual(c.wait(job)["state"], "done")
                    reply = c.call("fetch", job=job, first=0)
                    got = compared(reply)
                    self.assertEqual(got, {i: expect(t, RULE)[2] for i, t in enumerate(texts)})
                    if layers:
                        self.assertEqual(compared_layers(reply), {i: expect_layers(t, RULE) for i, t in enumerate(texts)})
                self.assertEqual(store_of(c)["kept"] > 0, new)


class Real(Stored):
    """The real worker, on the CPU and on the fake GPU, which knows the identity late."""

    def test_each_source_has_results_of_its_own(self):
        for name in ("deep", "int4", "delta"):
            for backend in ("cuda", "cpu"):
                bits = None
                for store, counts in (((), None), (("--store", self.dir), (0, len(PAIRS))),
                                      (("--store", self.dir), (len(PAIRS), 0))):
                    with w.Worker("--threads", "2", "--backend", backend, *store, program=WORKER,
                                  models=[CHECKPOINTS.path(name)], env=environment()) as worker, worker.client() as c:
                        got = run(c, PAIRS)
                        bits = bits or got
                        self.assertEqual(got, bits)
                        if counts is not None:
                            self.assertEqual((store_of(c)["hits"], store_of(c)["kept"]), counts)


class Changed(Stored):
    """Files that are removed, replaced or truncated while workers use them: the scores are the same, and what is kept
    afterwards survives."""

    def real(self):
        return w.Worker("--threads", "2", "--backend", "cpu", "--store", self.dir, program=WORKER,
                        models=[CHECKPOINTS.path("int4")], env=environment())

    def test_scoring_goes_on(self):
        more = random_pairs(seed=7)
        with self.real() as a, a.client() as c:
            expected_first, expected_more = run(c, PAIRS), run(c, more)
        for end, how, act in (("", "removed", Path.unlink), ("-wal", "removed", Path.unlink),
                              ("-wal", "truncated", lambda f: os.truncate(f, 0)),
                              ("-shm", "truncated", lambda f: os.truncate(f, 0))):
            with self.subTest(end=end, how=how):
                shutil.rmtree(self.dir)
                with self.real() as a, self.real() as b, a.client() as c, b.client() as other:
                    self.assertEqual(run(c, PAIRS), expected_first)
                    self.assertEqual(run(other, PAIRS), expected_first)  # it has mapped the file, too
                    act(Path(f"{self.file}{end}"))
                    self.assertEqual(run(c, more), expected_more)
                    self.assertEqual(run(other, more), expected_more)
                    self.assertEqual(run(other, PAIRS), expected_first)
                    self.assertEqual(a.text().count(f"results.sqlite{end} was {how} while in use"), 1, a.text())
                    store = store_of(c)
                    self.assertEqual(store["kept"] + store["lost"] + store["hits"], len(PAIRS) + len(more))
                with self.real() as a, a.client() as c:
                    self.assertEqual(run(c, more), expected_more)
                    self.assertEqual(store_of(c)["hits"], len(more))


class Killed(Stored):
    @timed
    def test_what_was_acknowledged_is_found(self):
        pairs = [([i % 900, i // 900, 5, 6] * 5, [2, 3]) for i in range(400)]
        rng, acknowledged, lives = random.Random(7), 0, 0
        while True:
            with self.worker(engine={"us_per_token": 100}) as worker, worker.client() as c:
                job = c.pairs(pairs)
                until(lambda: c.call("poll", job=job, wait_ms=100)["items_done"] >= acknowledged)
                self.assertGreaterEqual(store_of(c)["hits"], acknowledged)
                time.sleep(rng.uniform(0, 0.12))
                reply = c.call("poll", job=job, wait_ms=0)
                self.assertGreaterEqual(reply["items_done"], acknowledged)
                acknowledged = reply["items_done"]
                lives += 1
                if reply["state"] == "done":
                    break
                worker.process.kill()
                worker.process.wait()
        self.assertGreaterEqual(lives, 4)
        with self.worker(engine={"device_token": 2}) as worker, worker.client() as c:
            self.assertEqual(run(c, pairs), expected(pairs))

    def test_two_workers_at_once(self):
        pairs = w.random_pairs(600, seed=8)
        halves = [pairs[:400], pairs[200:]]
        with self.worker(engine={"us_per_token": 10}) as a, self.worker(engine={"us_per_token": 10}) as b, \
                a.client() as ca, b.client() as cb:
            jobs = [c.pairs(half, columns=["logprob", "greedy"]) for c, half in zip((ca, cb), halves)]
            for c, half, job in zip((ca, cb), halves, jobs):
                self.assertEqual(c.wait(job)["state"], "done")
                self.assertEqual(c.fetch(job), expected(half))
            kept = store_of(ca)["kept"] + store_of(cb)["kept"]
            self.assertTrue(600 <= kept <= 800, kept)
            self.assertEqual(run(ca, pairs), expected(pairs))
            self.assertEqual(store_of(ca)["entries"], 600)

    def test_a_stopped_worker_holds_up_nobody(self):
        pairs = w.random_pairs(50, seed=9)
        with self.worker() as a, self.worker() as b, a.client() as ca, b.client() as cb:
            run(ca, pairs[:10])
            a.process.send_signal(signal.SIGSTOP)
            self.assertEqual(run(cb, pairs), expected(pairs))
            a.process.send_signal(signal.SIGCONT)
            self.assertEqual(run(ca, pairs), expected(pairs))
            self.assertEqual(store_of(ca)["hits"], 50)


class Full(Stored):
    def test_scoring_goes_on_without_space(self):
        with self.worker() as worker, worker.client() as c:
            before = resource.prlimit(worker.process.pid, resource.RLIMIT_FSIZE)
            resource.prlimit(worker.process.pid, resource.RLIMIT_FSIZE, (200_000, before[1]))
            for seed in range(12):
                pairs = w.random_pairs(200, seed=seed)
                self.assertEqual(run(c, pairs), expected(pairs))
            store, text = store_of(c), worker.text()
            self.assertTrue(store["lost"] >= 200 and store["kept"] > 0, store)
            self.assertEqual(store["lost"] + store["kept"], 12 * 200)
            self.assertEqual(text.count("Scoring goes on without keeping them"), 1, text)
            self.assertIn("is the disk full", text)
            self.assertEqual(worker.command("store", "verify", self.dir).returncode, 0)
            resource.prlimit(worker.process.pid, resource.RLIMIT_FSIZE, before)

            def kept_again():
                run(c, w.random_pairs(5, seed=time.monotonic_ns()))
                return "results are kept again" in worker.text()
            until(kept_again, 30)

    def test_a_small_limit(self):
        with self.worker("--store-limit", "1MiB") as worker, worker.client() as c:
            for seed in range(20, 40):
                pairs = w.random_pairs(250, seed=seed)
                self.assertEqual(run(c, pairs), expected(pairs))
                store = store_of(c)
                self.assertLessEqual(store["bytes"], 1 << 20)
            self.assertLess(store["entries"], 20 * 250)
            self.assertEqual(run(c, pairs), expected(pairs))
            self.assertEqual(store_of(c)["hits"], 250)  # the last are there
        self.assertLess(self.file.stat().st_size, 3 << 19)


class Damaged(Stored):
    def test_flipped_bytes_change_no_score(self):
        pairs = w.random_pairs(400, seed=10)
        self.fill(pairs)
        whole, rng = self.file.read_bytes(), random.Random(11)
        for _ in range(6):
            damaged = bytearray(whole)
            for _ in range(40):
                damaged[rng.randrange(4096, len(whole))] ^= 1 << rng.randrange(8)
            self.file.write_bytes(damaged)
            with self.worker() as worker, worker.client() as c:
                self.assertEqual(run(c, pairs), expected(pairs))
                self.assertLess(store_of(c)["hits"], 400)
                worker.process.terminate()
                worker.end()
            for end in ("-wal", "-shm"):
                Path(f"{self.file}{end}").unlink(missing_ok=True)

    def test_what_cannot_be_used_is_refused_at_the_start(self):
        self.fill(w.random_pairs(5))
        whole = bytearray(self.file.read_bytes())
        whole[63] = 7  # user_version
        self.file.write_bytes(whole)
        text = start_fails(65, "a newer ctworker wrote it (version 7", "--store", self.dir)
        self.assertIn("another folder", text)
        self.file.write_bytes(b"no database at all, but some other text\n" * 30)
        start_fails(65, "`ctworker store clear " + self.dir, "--store", self.dir)
        start_fails(74, "a file has its name", "--store", str(self.file))
        start_fails(66, "cannot make the folder", "--store", "/nowhere/at/all")
        start_fails(64, "--store-limit: expected at least 1MiB", "--store", self.dir, "--store-limit", "10KiB")
        start_fails(64, "--store", "--store", self.dir, "--store-limit", "much")


class Commands(Stored):
    def test_list_verify_clear(self):
        with self.worker() as worker, worker.client() as c:
            def store(*words, code=0):
                done = worker.command("store", *words)
                self.assertEqual(done.returncode, code, done.stderr)
                return done.stdout + done.stderr
            self.assertEqual(store("list", self.dir), "the store is empty\n")
            pairs = w.random_pairs(30)
            run(c, pairs)
            self.assertRegex(store("list", self.dir), r"^a{12} +30 sequences +\d+ targets .* fake-c/float32/1\n$")
            (source,) = json.loads(store("list", self.dir, "--json"))
            self.assertEqual((source["sequences"], source["targets"]), (30, sum(len(k) for _, k in pairs)))
            self.assertEqual(store("verify", self.dir), "30 sequences, 0 damaged\n")
            self.assertEqual(json.loads(store("verify", self.dir, "--json")), {"sequences": 30, "damaged": 0})
            self.assertEqual(store("clear", self.dir), "30 sequences removed\n")
            self.assertEqual(store("list", self.dir), "the store is empty\n")
            self.assertEqual(run(c, pairs), expected(pairs))
            self.assertEqual(store_of(c)["kept"], 60)
            self.assertIn('did you mean "list"', store("lst", self.dir, code=64))
            self.assertIn("DIR is missing", store("list", code=64))
            self.assertIn("no result store", store("verify", worker.dir, code=66))
            self.assertIn("list|verify|clear DIR", store("--help"))

    def test_a_damaged_file_in_use_is_not_removed(self):
        pairs = w.random_pairs(20, seed=16)
        self.fill(pairs)
        with self.worker() as worker, worker.client() as c:
            with open(self.file, "r+b") as f:
                f.write(b"not SQLite")
            done = worker.command("store", "clear", self.dir)
            self.assertEqual(done.returncode, 75, done.stderr)
            self.assertIn(f"process {worker.process.pid} uses the store", done.stderr)
            self.assertEqual(run(c, pairs), expected(pairs))
            worker.process.kill()
            worker.end()
            self.assertEqual(worker.command("store", "clear", self.dir).returncode, 0)
        self.assertFalse(self.file.exists())
        self.fill(pairs)

    def test_verify_names_damage(self):
        self.fill(w.random_pairs(200, seed=12))
        whole = bytearray(self.file.read_bytes())
        rng = random.Random(13)
        for _ in range(60):
            whole[rng.randrange(4096 * 6, len(whole))] ^= 255
        self.file.write_bytes(whole)
        with w.Worker() as worker:
            done = worker.command("store", "verify", self.dir)
            self.assertEqual(done.returncode, 65, done.stdout)
            self.assertIn("damaged", done.stderr)
            self.assertEqual(worker.command("store", "clear", self.dir).returncode, 0)
        self.fill(w.random_pairs(5))


if __name__ == "__main__":
    unittest.main()
