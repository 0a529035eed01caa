"""The result store (`serve --store`) on the fake engine: what is found, kept, lost and shared."""

import random
import tempfile
import unittest

import worker_process as w


class Stored(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ctw-store-")
        self.addCleanup(folder.cleanup)
        self.dir = folder.name + "/store"

    def worker(self, *args, **kw):
        return w.Worker("--store", self.dir, *args, **kw)


class Found(Stored):
    def test_nothing_is_scored_twice(self):
        pairs = w.random_pairs(300)
        expected = {i: w.expect_pair(*pair) for i, pair in enumerate(pairs)}
        with self.worker() as worker, worker.client() as c:
            self.assertEqual(c.run_pairs(pairs, columns=["logprob", "greedy"]), expected)
            store = c.call("info")["store"]
            self.assertEqual((store["hits"], store["kept"], store["lost"]), (0, 300, 0))
            self.assertEqual((store["entries"], store["path"]), (300, self.dir))
        # Whatever is scored now is a failure of the device.
        with self.worker(engine={"device_token": pairs[0][1][0]}) as worker, worker.client() as c:
            self.assertEqual(c.run_pairs(pairs, columns=["logprob", "greedy"]), expected)
            store = c.call("info")["store"]
            self.assertEqual((store["hits"], store["kept"]), (300, 0))

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
            store = c.call("info")["store"]
            self.assertEqual((store["hits"], store["kept"]), (4, 14))


if __name__ == "__main__":
    unittest.main()
