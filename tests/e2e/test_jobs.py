"""Jobs of docs/PROTOCOL.md on the fake engine: their scores, their progress while they run, cancel, NaN."""

import os
import random
import struct
import threading
import time
import unittest

import worker_process as w
from worker_cases import OneWorker, timed, until


class Scores(OneWorker):
    def test_loglikelihood(self):
        pairs = w.random_pairs(50)
        job = self.c.pairs(pairs, columns=["logprob", "greedy"])
        self.assertEqual(self.c.wait(job)["state"], "done")
        got = self.c.fetch(job)
        self.assertEqual(len(got), 50)
        for i, (context, continuation) in enumerate(pairs):
            self.assertEqual(got[i], w.expect_pair(context, continuation), f"item {i}")
        self.assertTrue(any(x[3] > 0 for x in got.values()), "nothing was truncated")
        self.assertTrue(any(x[2] for x in got.values()) and not all(x[2] for x in got.values()))

    def test_rolling(self):
        rng = random.Random(2)
        for length, context in ((0, None), (10, 1), (10, 5), (7, 7), (1, 1)):
            texts = [[rng.randrange(w.VOCAB) for _ in range(n)] for n in (0, 1, 9, 10, 11, 64, 65, 200)]
            head = {} if context is None else {"context_length": context}
            job = self.c.rolling(texts, 5, columns=["logprob", "greedy"], max_length=length, **head)
            self.c.wait(job)
            got = self.c.fetch(job)
            for i, text in enumerate(texts):
                want = w.expect_rolling(text, 5, length or w.MAX_LENGTH, context or 1)
                self.assertEqual(got[i], want, f"{length} {context} item {i}")
            self.assertEqual(got[0][:2], (0.0, 0))

    def test_windows(self):
        """Each rule, against the rule's definition: sums, per-target columns, and the sums of the windows."""
        rng = random.Random(7)
        texts = [[rng.randrange(w.VOCAB) for _ in range(n)] for n in (0, 1, 2, 15, 16, 17, 31, 32, 33, 200)]
        for rule in (
            {"window": 16}, {"window": 16, "stride": 4}, {"window": 16, "stride": 4, "rows": 3},
            {"window": 16, "first": 9, "bos": 5, "bos_mode": "replace"},
            {"window": 16, "stride": 4, "first": 12, "bos": 5, "bos_mode": "replace"},
            {"window": 16, "stride": 4, "new": True, "tail": True},
            {"window": 16, "stride": 16, "tail": True}, {"window": 65, "tail": True},
            {"window": 16, "first": 0, "bos": 5, "bos_mode": "prefix", "tail": True, "new": True},
            {"window": 64, "stride": 7, "bos": 5, "bos_mode": "prefix"}, {"window": 2, "stride": 1},
        ):
            with self.subTest(**rule):
                job = self.c.windows(texts, columns=["logprob", "greedy"], **rule)
                self.assertEqual(self.c.wait(job)["state"], "done")
                reply = self.c.call("fetch", job=job, first=0)
                got, result = w.columns(reply), reply["result"]
                order = struct.unpack(f"<{reply['n']}i", result["item"])
                n = struct.unpack(f"<{reply['n']}i", result["windows"])
                sums = struct.unpack(f"<{sum(n)}d", result["window_sum"])
                counts = struct.unpack(f"<{sum(n)}i", result["window_count"])
                pairs, at = list(zip(sums, counts)), 0
                for i, k in zip(order, n):
                    item, of_windows = w.expect_windows(texts[i], **rule)
                    self.assertEqual(got[i], item, f"item {i}")
                    self.assertEqual(pairs[at:at + k], of_windows, f"item {i}")
                    at += k

    def test_windows_in_small_replies(self):
        """A reply holds whole items: fetched one by one or together, the results are the same."""
        texts = [[i % w.VOCAB for i in range(k, k + 50)] for k in range(30)]
        job = self.c.windows(texts, columns=["logprob"], window=10, stride=3)
        self.c.wait(job)
        whole = self.c.fetch(job)
        self.assertEqual(len(whole), 30)
        self.assertEqual(self.c.fetch(job, max_bytes=1), whole)
        self.assertEqual(self.c.call("fetch", job=job, first=0, max_bytes=1)["n"], 1)
        progress = self.c.call("poll", job=job)["progress"]
        self.assertEqual(progress["tokens"], 30 * 14 * 9)
        self.assertEqual(progress["tokens_done"], progress["tokens"])

    def test_max_length_of_the_job(self):
        context, continuation = list(range(30)), list(range(8))
        got = self.c.run_pairs([(context, continuation)], max_length=8)[0]
        self.assertEqual(got[:4], w.expect_pair(context, continuation, 8)[:4])
        self.assertEqual(got[3], 29)

    def test_no_columns_unless_asked(self):
        got = self.c.run_pairs([([1], [2])])[0]
        self.assertEqual(got[4:], (None, None))

    def test_a_vocabulary_of_the_job(self):
        """Jobs of several vocabularies at once: each has its own scores and its own numerics id."""
        pairs = [([t % 500 for t in a], [t % 500 for t in b]) for a, b in w.random_pairs(90, seed=8)]
        jobs = [self.c.pairs(pairs[k::9], columns=["logprob"], **({"vocabulary": 500 + k} if k % 3 else {}))
                for k in range(9)]
        for k, job in enumerate(jobs):
            self.assertEqual(self.c.wait(job)["state"], "done")
            numerics = self.c.call("fetch", job=job, first=0)["numerics"]
            self.assertEqual(numerics, "fake-c/float32/1" + (f"/vocabulary-{500 + k}" if k % 3 else ""))
            for at, got in self.c.fetch(job).items():
                want = w.expect_pair(*pairs[k::9][at])[4]
                self.assertEqual(got[4], [x / 2 for x in want] if k % 3 else want)

    def test_a_wrong_vocabulary_is_refused(self):
        for vocabulary, words in ((0, "vocabulary 0 is not in 1..1000"), (1001, "vocabulary 1001 is not in 1..1000"),
                                  (9, "is 9, the vocabulary of model model has 0..8")):
            with self.assertRaises(w.Refused) as caught:
                self.c.pairs([([1, 9], [2])], vocabulary=vocabulary)
            self.assertIn(words, str(caught.exception))
        self.assertEqual(self.c.run_pairs([([1, 9], [2])], vocabulary=1000), self.c.run_pairs([([1, 9], [2])]))

    def test_company_changes_nothing(self):
        pairs = w.random_pairs(60, seed=3)
        alone = {}
        for i, p in enumerate(pairs):
            alone[i] = self.c.run_pairs([p])[0]
        order = list(range(60))
        random.Random(4).shuffle(order)
        jobs = [self.c.pairs([pairs[i] for i in order[k::7]]) for k in range(7)]
        for k, job in enumerate(jobs):
            self.c.wait(job)
            for at, got in self.c.fetch(job).items():
                self.assertEqual(got, alone[order[k::7][at]])

    def test_many_items_and_parts(self):
        pairs = w.random_pairs(3000, seed=5, longest=6)
        job = random.randbytes(16)
        for part in range(3):
            r = self.c.submit(job, part, w.pair_items(pairs[part * 1000:(part + 1) * 1000]),
                              {"kind": "loglikelihood"} if part == 0 else None)
            self.assertEqual((r["state"], r["parts"], r["items"]),
                             ("open", part + 1, (part + 1) * 1000))
        self.c.call("seal", job=job, parts=3)
        self.assertEqual(self.c.wait(job)["state"], "done")
        got = self.c.fetch(job, max_bytes=5000)
        self.assertEqual(sorted(got), list(range(3000)))
        for i in range(0, 3000, 97):
            self.assertEqual(got[i][0], w.expect_pair(*pairs[i])[0])


class Running(OneWorker):
    """A slow engine: 2 ms a token, passes of 256 tokens (half a second)."""

    ENGINE = {"us_per_token": 2000}

    @timed
    def test_progress(self):
        start = time.monotonic()
        job = self.c.pairs([([1] * 60, [2] * 4)] * 16)
        done, items, seen, last = 0, 0, set(), None
        while True:
            r = self.c.call("poll", job=job, wait_ms=100, seen=items)
            p = r["progress"]
            self.assertGreaterEqual(p["tokens_done"], done)
            self.assertGreaterEqual(r["items_done"], items)
            done, items = p["tokens_done"], r["items_done"]
            self.assertEqual(p["tokens"], 16 * 63)
            if r["state"] == "done":
                break
            seen.add((p["pass"], p["layer"]))
            if p["tokens_per_s"] > 0:
                last = p
                self.assertGreaterEqual(p["seconds_left"], 0)
            self.assertLessEqual(p["pass"], p["passes"])
        self.assertEqual((done, items, p["seconds_left"]), (16 * 63, 16, 0))
        self.assertGreater(len(seen), 4)
        self.assertIsNotNone(last)
        seen_per_s = done / (time.monotonic() - start)
        self.assertTrue(seen_per_s / 2 < last["tokens_per_s"] < 600, (last, seen_per_s))

    @timed
    def test_items_are_final_before_the_job_ends(self):
        job = self.c.pairs([([1] * 60, [2] * 4)] * 24 + [([1], [2])])  # 3 s
        r = {"items_done": 0}
        while r["items_done"] == 0:
            r = self.c.call("poll", job=job, wait_ms=1000, seen=0)
        self.assertEqual(r["state"], "running")
        self.assertLess(r["items_done"], 25)
        got = self.c.fetch(job)
        self.assertGreaterEqual(len(got), r["items_done"])
        self.assertNotIn(24, got, "the longest come first")
        for i, x in got.items():
            self.assertEqual(x[0], w.expect_pair([1] * 60, [2] * 4)[0])
        self.c.wait(job)
        self.assertEqual(len(self.c.fetch(job)), 25)

    def test_small_job_does_not_wait_for_a_large_one(self):
        """The small job waits for the running pass and its own pass; the large job takes about 60 passes."""
        large = self.c.pairs([([i] * 60, [2] * 4) for i in range(240)])
        time.sleep(0.1)
        small = self.c.pairs([([3], [4])] * 5)
        self.assertEqual(self.c.wait(small)["state"], "done")
        r = self.c.call("poll", job=large)
        self.assertEqual(r["state"], "running")
        self.assertLess(r["progress"]["tokens_done"], r["progress"]["tokens"] / 3)
        self.c.call("cancel", job=large)

    def test_cancel(self):
        job = self.c.pairs([([1] * 60, [2] * 4)] * 240)
        time.sleep(0.2)
        self.refused("invalid", "cancel it first", self.c.call, "release", job=job)
        self.assertEqual(self.c.call("cancel", job=job)["state"], "canceled")
        r = self.c.call("poll", job=job)
        self.assertEqual((r["state"], r["error"]["code"]), ("canceled", "canceled"))
        self.assertEqual(self.c.call("cancel", job=job)["state"], "canceled")
        self.c.call("release", job=job)
        self.refused("not_found", "no such job", self.c.call, "poll", job=job)

    @timed
    def test_cancel_ends_a_pass(self):
        with w.Worker(engine={"us_per_token": 50000}) as a, a.client() as c:  # a pass of 12.6 s
            job = c.pairs([([1] * 60, [2] * 4)] * 4)
            while not c.call("poll", job=job)["progress"]["tokens_done"]:
                time.sleep(0.05)
            start = time.monotonic()
            c.call("cancel", job=job)
            c.run_pairs([([1], [2])])
            self.assertLess(time.monotonic() - start, 5, "the pass went on")

    @timed
    def test_cancelled_jobs_stay_cancelled_while_others_share_the_pass(self):
        a = self.c.pairs([([1] * 20, [2] * 4)] * 4)
        b = self.c.pairs([([1] * 20, [2] * 4)] * 4)
        time.sleep(0.1)
        self.c.call("cancel", job=a)
        self.assertEqual(self.c.wait(b)["state"], "done")
        self.assertEqual(len(self.c.fetch(b)), 4)
        self.assertEqual(self.c.call("poll", job=a)["state"], "canceled")

    def test_control_is_answered_while_many_poll(self):
        job = self.c.pairs([([1] * 60, [2] * 4)] * 240)
        stop = threading.Event()

        def poll():
            with self.worker.client() as c:
                while not stop.is_set():
                    c.call("poll", job=job, wait_ms=1000)

        threads = [threading.Thread(target=poll) for _ in range(24)]
        for t in threads:
            t.start()
        try:
            with self.worker.client() as c:
                took = []
                for _ in range(50):
                    start = time.monotonic()
                    c.call("health")
                    took.append(time.monotonic() - start)
                    time.sleep(0.01)
            self.assertLess(sorted(took)[25], 0.5, "it waits for polls, which wait a second")
        finally:
            self.c.call("cancel", job=job)
            stop.set()
            for t in threads:
                t.join()

    def test_poll_wakes_at_once(self):
        """The end of the job (after 66 ms) or its first items (after 0.5 s) end a poll that would wait for a second."""
        for n, length, more, state in ((1, 34, {}, "done"), (8, 64, {"seen": 0}, "running")):
            took = []
            while min(took, default=1) >= 0.9 and len(took) < 5:  # a machine may stall, but not every time
                job = self.c.pairs([([1] * (length - 4), [2] * 4)] * n)
                start = time.monotonic()
                r = self.c.call("poll", job=job, wait_ms=1000, **more)
                took.append(time.monotonic() - start if r["state"] == state else 1)
                self.c.call("cancel", job=job)
            self.assertLess(min(took), 0.9)

    def test_resends_score_once(self):
        """A client with nng's resend timer on: the same requests arrive again and again."""
        before = self.c.call("info")["jobs"]
        with self.worker.client(resend_ms=50) as c:
            job = c.pairs([([1] * 60, [2] * 4)] * 8)
            for _ in range(5):
                c.call("poll", job=job, wait_ms=400, seen=100)
            r = c.wait(job)
            self.assertEqual(r["items_done"], 8)
            self.assertEqual(r["progress"]["tokens_done"], 8 * 63)
            self.assertEqual(len(c.fetch(job)), 8)
        self.assertEqual(len(self.c.call("info")["jobs"]), len(before) + 1)


class Numeric(OneWorker):
    ENGINE = {"nan_token": 666}

    def test_nan_names_item_and_layer_and_spares_others(self):
        good = w.random_pairs(40, seed=9)
        good = [(c, k) for c, k in good if 666 not in c + k]
        bad = self.c.pairs(good[:10] + [([1, 666, 2], [3])])
        other = self.c.pairs(good)
        r = self.c.wait(bad)
        self.assertEqual(r["state"], "failed")
        e = r["error"]
        self.assertEqual((e["code"], e["item"], e["layer"]), ("numeric", 10, 2))
        self.assertIn("item 10", e["message"])
        self.assertIn("layer 2", e["message"])
        self.assertNotIn(10, self.c.fetch(bad))
        self.assertEqual(self.c.wait(other)["state"], "done")
        for i, p in enumerate(good):
            self.assertEqual(self.c.fetch(other)[i][0], w.expect_pair(*p)[0])
        self.assertEqual(self.c.call("health")["state"], "ready")


class Room(unittest.TestCase):
    def test_finished_jobs_of_an_absent_client_make_room(self):
        """64 finished jobs of a client that is gone: five seconds later others have their slots, and the log names it."""
        with w.Worker() as a, a.client() as c:
            with a.client() as gone:
                for _ in range(64):
                    gone.wait(gone.pairs([([1], [2])]))

            def is_served():
                try:
                    return c.run_pairs([([1], [2])])
                except w.Refused as e:
                    self.assertEqual(e.code, "busy")

            until(is_served)
            until(lambda: f"finished job whose client is absent, of process {os.getpid()}" in a.text())

    def test_open_jobs_leave_room_for_their_own_parts(self):
        items = w.rolling_items([[1] * 100000])
        head = {"kind": "loglikelihood_rolling", "prefix_token": 1}
        with w.Worker("--queue-bytes", "16MiB") as a, a.client() as c:
            jobs = []
            with self.assertRaises(w.Refused) as e:
                while len(jobs) < 60:
                    job = random.randbytes(16)
                    c.submit(job, 0, items, head)
                    jobs.append(job)
            self.assertEqual((e.exception.code, e.exception.retry_ms), ("busy", 1000))
            self.assertIn("not sealed yet", e.exception.message)
            self.assertFalse(c.submit(jobs[0], 1, items)["repeated"])  # there is room for this
            c.call("seal", job=jobs[0], parts=2)
            c.wait(jobs[0])
            c.submit(random.randbytes(16), 0, items, head)


if __name__ == "__main__":
    unittest.main()
