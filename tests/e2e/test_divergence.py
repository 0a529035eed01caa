"""Jobs of kind divergence (docs/PROTOCOL.md) on the fake engine, whose columns are made from the model's scores."""

import random
import struct
import tempfile
import unittest

import worker_process as w
from worker_cases import OneWorker, until

# Columns with one value per target, and what the fake engine makes of (log-probability, token).
COLUMNS = {"ref_logprob": ("f", lambda p, t: 2 * p), "ref_greedy": ("i", lambda p, t: t),
           "ref_top": ("f", lambda p, t: p / 2), "kl": ("f", lambda p, t: -p),
           "kl_reverse": ("f", lambda p, t: -p / 2), "tv": ("f", lambda p, t: -p / 4),
           "overlap5": ("B", lambda p, t: t % 6)}
RULE = {"window": 16, "stride": 7, "tail": True}


# Columns with values for each layer of each window, and what the fake engine makes of
# (1000 * layer + the window's first token + its tokens).
LAYERS, LAYER_COLUMNS = 5, {"layer_reference": 1, "layer_error": 2, "layer_cosine": 4, "layer_relative": 8,
                            "layer_channel_error": 16}


def divergence(c, texts, model="model", reference="other", seal=True, **head):
    job = random.randbytes(16)
    c.submit(job, 0, w.rolling_items(texts),
             {"kind": "divergence", "model": model, "reference": reference, **head})
    if seal:
        c.call("seal", job=job, parts=1)
    return job


def compared(reply):
    """{item: {column: values}} of a reply to fetch."""
    n, result, out, at = reply["n"], reply["result"], {}, 0
    counts = struct.unpack(f"<{n}i", result["count"])
    columns = {k: struct.unpack(f"<{sum(counts)}{code}", result[k]) for k, (code, _) in COLUMNS.items()}
    for item, count in zip(struct.unpack(f"<{n}i", result["item"]), counts):
        out[item] = {k: list(v[at:at + count]) for k, v in columns.items()}
        at += count
    return out


def compared_layers(reply):
    """{item: [(tokens, {column: values}) of each window]} of a reply to fetch with layers."""
    n, result, out, at = reply["n"], reply["result"], {}, 0
    windows = struct.unpack(f"<{n}i", result["windows"])
    tokens = struct.unpack(f"<{sum(windows)}i", result["window_tokens"])
    codes = dict.fromkeys(LAYER_COLUMNS, "d") | {"layer_channel": "i"}
    values = {k: struct.unpack(f"<{sum(windows) * reply['layers']}{code}", result[k]) for k, code in codes.items()}
    for item, count in zip(struct.unpack(f"<{n}i", result["item"]), windows):
        out[item] = [(tokens[i], {k: list(v[i * reply["layers"]:(i + 1) * reply["layers"]]) for k, v in values.items()})
                     for i in range(at, at + count)]
        at += count
    return out


def expect_layers(text, rule):
    out, end = [], 0
    for start in range(0, len(text), rule["stride"]):
        whole = text[start:start + rule["window"]]
        if len(whole) < 2 or end == len(text):
            break
        end = start + len(whole)
        v = [whole[0] + len(whole) + 1000 * layer for layer in range(LAYERS)]
        columns = {k: [x / factor for x in v] for k, factor in LAYER_COLUMNS.items()}
        out.append((len(whole) - 1, columns | {"layer_channel": list(range(LAYERS))}))
    return out


def expect(text, rule):
    """The model's item as in loglikelihood_windows, and the other columns."""
    item, of_windows = w.expect_windows(text, **rule)
    targets, end = [], 0
    for start in range(0, len(text), rule["stride"]):
        whole = text[start:start + rule["window"]]
        if len(whole) < 2 or end == len(text):
            break
        targets += whole[1:]
        end = start + len(whole)
    return item, of_windows, {k: [make(p, t) for p, t in zip(item[4], targets)] for k, (_, make) in COLUMNS.items()}


class Divergences(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.texts = [[random.Random(n).randrange(w.VOCAB) for _ in range(n)] for n in (0, 1, 2, 16, 17, 23, 90)]

    def test_columns(self):
        with w.Worker(models=["model", "other"]) as a, a.client() as c:
            job = divergence(c, self.texts, **RULE)
            r = c.wait(job)
            self.assertEqual(r["state"], "done")
            self.assertEqual(r["progress"]["tokens_done"], r["progress"]["tokens"])
            first = 0
            for max_bytes in (1, 600, 1 << 20):  # replies of any size have whole items
                got, items, first = {}, {}, 0
                while first < len(self.texts):
                    reply = c.call("fetch", job=job, first=first, max_bytes=max_bytes)
                    got |= compared(reply)
                    items |= w.columns(reply)
                    first += reply["n"]
                for i, text in enumerate(self.texts):
                    item, _, columns = expect(text, RULE)
                    self.assertEqual(items[i], item, f"item {i}")
                    self.assertEqual(got[i], columns, f"item {i}")
            models = {m["name"]: m for m in c.call("info")["models"]}
            for key in ("numerics", "identity"):
                self.assertEqual(reply[key], models["model"][key])
                self.assertEqual(reply["ref_" + key], models["other"][key])
                self.assertNotEqual(reply["ref_" + key], "")

    def test_layers(self):
        with w.Worker(models=["model", "other"]) as a, a.client() as c:
            plain, job = divergence(c, self.texts, **RULE), divergence(c, self.texts, layers=True, **RULE)
            self.assertEqual((c.wait(plain)["state"], c.wait(job)["state"]), ("done", "done"))
            reply = c.call("fetch", job=plain, first=0)
            self.assertNotIn("layers", reply)
            self.assertFalse([k for k in reply["result"] if "layer" in k or k == "window_tokens"])
            for max_bytes in (1, 1 << 20):
                layers, got, first = {}, {}, 0
                while first < len(self.texts):
                    reply = c.call("fetch", job=job, first=first, max_bytes=max_bytes)
                    self.assertEqual(reply["layers"], LAYERS)
                    layers |= compared_layers(reply)
                    got |= compared(reply)
                    first += reply["n"]
                self.assertEqual(layers, {i: expect_layers(t, RULE) for i, t in enumerate(self.texts)})
                self.assertEqual(got, {i: expect(t, RULE)[2] for i, t in enumerate(self.texts)})

    def test_matrices(self):
        names = ["layers.0.q", "layers.0.down", "head"]
        with tempfile.TemporaryDirectory(prefix="ctw-") as d:
            with w.Worker("--store", d, models=["model", "other"], engine={"us_per_token": 100}) as a, a.client() as c:
                plain = divergence(c, self.texts, **RULE)
                self.assertEqual(c.wait(plain)["state"], "done")
                self.assertNotIn("matrices", c.call("fetch", job=plain, first=0))
                twice = self.texts + self.texts  # the store has no matrices, and no twin's are copied
                for max_bytes in (1, 1 << 20):
                    job, got, values, first = divergence(c, twice, matrices=True, **RULE), {}, {}, 0
                    self.assertEqual(c.wait(job)["state"], "done")
                    while first < len(twice):
                        reply = c.call("fetch", job=job, first=first, max_bytes=max_bytes)
                        self.assertEqual(reply["matrices"], names)
                        got |= compared(reply)
                        windows = struct.unpack(f"<{reply['n']}i", reply["result"]["windows"])
                        kl = list(struct.unpack(f"<{3 * sum(windows)}d", reply["result"]["matrix_kl"]))
                        for item, n in zip(struct.unpack(f"<{reply['n']}i", reply["result"]["item"]), windows):
                            values[item], kl = kl[:3 * n], kl[3 * n:]
                        first += reply["n"]
                    self.assertEqual(got, {i: expect(t, RULE)[2] for i, t in enumerate(twice)})
                    # The layers' values have the windows' first tokens and lengths in them.
                    self.assertEqual(values, {i: [columns["layer_reference"][0] + k / 4 for _, columns in expect_layers(t, RULE)
                                                  for k in range(3)] for i, t in enumerate(twice)})

    def test_jobs_of_all_kinds_share_the_worker(self):
        with w.Worker(models=["model", "other"], engine={"us_per_token": 20}) as a, a.client() as c:
            pairs = w.random_pairs(60)
            jobs = [(divergence(c, self.texts, **RULE), c.pairs(pairs), c.pairs(pairs, model="other"),
                     divergence(c, self.texts, model="other", reference="model", **RULE)) for _ in range(3)]
            for one, scored, scored_too, reverse in jobs:
                for job in (one, scored, scored_too, reverse):
                    self.assertEqual(c.wait(job)["state"], "done")
                for job in (one, reverse):
                    got = compared(c.call("fetch", job=job, first=0))
                    self.assertEqual(got, {i: expect(t, RULE)[2] for i, t in enumerate(self.texts)})
                for job in (scored, scored_too):
                    self.assertEqual(c.fetch(job)[7][0], w.expect_pair(*pairs[7])[0])

    def test_a_store_keeps_scores_and_divergences(self):
        """A worker with a store runs divergences beside other jobs, and computes both once."""
        with tempfile.TemporaryDirectory(prefix="ctw-") as d:
            with w.Worker("--store", d, models=["model", "other"]) as a, a.client() as c:
                for round in range(2):
                    job, pairs = divergence(c, self.texts, **RULE), w.random_pairs(20)
                    self.assertEqual(c.run_pairs(pairs)[7][0], w.expect_pair(*pairs[7])[0])
                    self.assertEqual(c.wait(job)["state"], "done")
                    got = compared(c.call("fetch", job=job, first=0))
                    self.assertEqual(got, {i: expect(t, RULE)[2] for i, t in enumerate(self.texts)})
                    kept = c.call("info")["store"]["kept"] if round == 0 else kept
                store = c.call("info")["store"]
                self.assertTrue(store["kept"] == store["entries"] == kept > 20, store)

    def test_hidden_states_wait_for_the_identity(self):
        """Their files are named by the reference's identity, which a GPU's worker knows late."""
        with tempfile.TemporaryDirectory(prefix="ctw-") as d:
            with w.Worker("--hidden", d, models=["model", "other"], engine={"late_identity": 1}) as a, a.client() as c:
                self.assertEqual(c.wait(divergence(c, self.texts[3:], **RULE))["state"], "done")

    def test_a_reference_in_use_stays(self):
        with w.Worker(models=["model", "other"], engine={"us_per_token": 3000}) as a, a.client() as c:
            job = divergence(c, self.texts, **RULE)
            with self.assertRaises(w.Refused) as e:
                c.call("unload", model="other")
            self.assertEqual(e.exception.code, "busy")
            c.call("cancel", job=job)
            self.assertEqual(c.wait(job)["state"], "canceled")
            until(lambda: self._unload(c))

    def _unload(self, c):
        try:
            c.call("unload", model="other")
            return True
        except w.Refused as e:
            self.assertEqual(e.code, "busy")
            return False

    def test_nan_names_the_model(self):
        with w.Worker(models=["model", "other"], engine={"nan_token": 666}) as a, a.client() as c:
            r = c.wait(divergence(c, [[1, 2, 3], [1, 666, 3]], window=3))
            self.assertEqual((r["error"]["code"], r["error"]["item"], r["error"]["layer"]), ("numeric", 1, 2))
            self.assertIn("model other: item 1", r["error"]["message"])
            self.assertEqual(c.wait(divergence(c, self.texts, **RULE))["state"], "done")

    def test_a_changed_reference_fails_alone(self):
        with w.Worker(models=["model", "other"], engine={"io_token": 666}) as a, a.client() as c:
            r = c.wait(divergence(c, [[1, 666, 3]], window=3))
            self.assertEqual((r["state"], r["error"]["code"]), ("failed", "io"))
            states = {m["name"]: m["state"] for m in c.call("info")["models"]}
            self.assertEqual(states, {"model": "ready", "other": "failed"})
            self.assertEqual(c.run_pairs([([1], [2])])[0][0], w.expect_pair([1], [2])[0])

    def test_no_memory(self):
        with w.Worker(models=["model", "other"], engine={"memory_token": 666}) as a, a.client() as c:
            r = c.wait(divergence(c, [[1, 2, 3], [1, 666, 3]], window=3))
            self.assertEqual((r["state"], r["error"]["code"]), ("failed", "memory"))


class Refusals(OneWorker):
    def head(self, part, code="invalid", **head):
        self.refused(code, part, self.c.submit, random.randbytes(16), 0, w.rolling_items([[1, 2, 3]]), head)

    def test_heads(self):
        self.head("needs reference", kind="divergence", window=3)
        self.head("same loaded model", kind="divergence", window=3, reference="model")
        self.head("layers belongs to kind divergence, not loglikelihood_windows", kind="loglikelihood_windows",
                  window=3, layers=True)
        self.head("matrices belongs to kind divergence, not loglikelihood_windows", kind="loglikelihood_windows",
                  window=3, matrices=True)
        self.head('named "that"', "not_found", kind="divergence", window=3, reference="that")
        self.head('named "that"', "not_found", kind="divergence", window=3, model="that", reference="model")


class MoreRefusals(unittest.TestCase):
    def test_layers_of_other_models(self):
        with w.Worker(models=["model", "deeper"]) as a, a.client() as c:
            with self.assertRaises(w.Refused) as e:
                divergence(c, [[1, 2, 3]], reference="deeper", window=3, layers=True)
            self.assertEqual(e.exception.code, "invalid")
            self.assertIn("submit.head: the model has more layers", e.exception.message)
            job = divergence(c, [[1, 2, 3]], reference="deeper", window=3)
            self.assertEqual(c.wait(job)["state"], "done")

    def test_heads_of_two_models(self):
        with w.Worker(models=["model", "other"]) as a, a.client() as c:
            for part, head in (("needs window", {"kind": "divergence"}),
                               ("reference belongs to kind divergence, not loglikelihood_windows",
                                {"kind": "loglikelihood_windows", "window": 3}),
                               ("belong to kind loglikelihood_rolling, not divergence",
                                {"kind": "divergence", "window": 3, "prefix_token": 1})):
                with self.assertRaises(w.Refused) as e:
                    c.submit(random.randbytes(16), 0, w.rolling_items([[1, 2, 3]]), head | {"reference": "other"})
                self.assertEqual(e.exception.code, "invalid")
                self.assertIn(part, e.exception.message)


if __name__ == "__main__":
    unittest.main()
