"""Sequences that begin with the same tokens, in the real worker: the bits of computing each of them whole, whoever asks
for them, on several devices, with streamed weights and little memory; what harms one does not harm the others."""

import json
import random
import re
import shutil
import sys
import tempfile
import unittest
from pathlib import Path

import worker_process as w
from real_worker import DEEP, N_IDS, REFERENCE, WORKER, Checkpoints, environment, run
from worker_cases import timed, until

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
import checkpoint_io  # noqa: E402

CHECKPOINTS = Checkpoints({"int4": ("qwen2", "w4a16_g32_asym", {}), "hybrid": ("granitemoehybrid", "bf16", {}),
                           "deep": DEEP})
setUpModule, tearDownModule, model = CHECKPOINTS.write, CHECKPOINTS.remove, CHECKPOINTS.path
RNG = random.Random(11)


def ids(n):
    return [RNG.randrange(N_IDS) for _ in range(n)]


def few_shot(trunk, n, rng=RNG):
    """Questions behind a trunk, each with four answers of a token and two longer ones."""
    pairs = []
    for _ in range(n):
        question = trunk + ids(rng.randint(17, 30))
        pairs += [(question, ids(1)) for _ in range(4)] + [(question, ids(rng.randint(2, 25))) for _ in range(2)]
    return pairs


TRUNKS = [ids(90), ids(70)]
PAIRS = [pair for trunk in TRUNKS for pair in few_shot(trunk, 4)]
RNG.shuffle(PAIRS)


def score(name, *options, pairs=PAIRS, **gpu):
    lines = [json.dumps({"id": i, "context": c, "continuation": k}) for i, (c, k) in enumerate(pairs)]
    return run("score", "--model", model(name), "--threads", 1, *options,
               text="".join(line + "\n" for line in lines), **gpu)


def gain(done):
    found = re.search(r"tokens were computed, ([\d.]+) times fewer", done.stderr)
    return float(found[1]) if found else 1


def expected(name, pairs):
    lines = score(name, "--backend", "cpu", "--no-share", pairs=pairs, program=REFERENCE).stdout.splitlines()
    return {r["id"]: [w.f32(x) for x in r["logprobs"]] for r in map(json.loads, lines)}


def server(*args, folder=None, name="int4", **gpu):
    return w.Worker("--threads", "1", *args, program=WORKER, models=[folder or model(name)], env=environment(**gpu))


def results(client, job):
    return {i: item[4] for i, item in client.fetch(job).items()}


class Scores(unittest.TestCase):
    def test_the_same_bits(self):
        for name in ("int4", "hybrid"):
            want = score(name, "--backend", "cpu", "--no-share", program=REFERENCE)
            self.assertEqual((want.returncode, gain(want)), (0, 1), want.stderr)
            for least, *options in ((6, "--backend", "cpu"), (6, "--backend", "cuda"),
                                    (6, "--backend", "cuda", "--pass-tokens", 200, "--chunk-tokens", 40),
                                    (4, "--devices", "0,1", "--pass-tokens", 200),
                                    (6, "--placement", "streamed", "--pass-tokens", 200, "--backend", "cpu")):
                done = score(name, *options, count=2)
                self.assertEqual((done.returncode, done.stdout), (0, want.stdout), (options, done.stderr))
                self.assertGreater(gain(done), least, (options, done.stderr))

    def test_little_memory(self):
        """Less is shared, or passes are smaller, rather than that a set does not fit which fits without sharing."""
        for name in ("int4", "hybrid"):
            want, fits = score(name, "--backend", "cpu", "--no-share", program=REFERENCE).stdout, 0
            for kib in range(400, 6000, 5600 // w.repeats(14)):
                options = ("--backend", "cpu", "--memory-limit", f"{kib}KiB", "--max-length", 256)
                whole = score(name, *options, "--no-share")
                done = score(name, *options)
                self.assertEqual(done.returncode, whole.returncode, done.stderr)
                if done.returncode == 0:
                    self.assertEqual(done.stdout, want)
                    fits += 1
            self.assertGreater(fits, 2)

    def test_a_branch_that_is_not_finite(self):
        """A token's embedding is NaN, which fails the job of the item with this token, and no item with the same trunk."""
        pairs = few_shot(TRUNKS[0], 5)
        nan = next(i for i in range(N_IDS) if not any(i in c + k for c, k in pairs))
        bad = (pairs[3][0] + [nan], ids(3))
        with tempfile.TemporaryDirectory(prefix="ctw-") as d:
            copy_with_nan(d, nan)
            with server("--backend", "cpu", folder=d) as a, a.client() as c, a.client() as other:
                good, fails = c.pairs(pairs, columns=["logprob"], seal=False), other.pairs([bad], seal=False)
                other.call("seal", job=fails, parts=1)
                c.call("seal", job=good, parts=1)
                r = other.wait(fails)
                self.assertEqual((r["state"], r["error"]["code"]), ("failed", "numeric"), r)
                self.assertEqual(c.wait(good)["state"], "done")
                got = results(c, good)
            self.assertEqual(got, expected_in(d, pairs))


def copy_with_nan(folder, token):
    """The checkpoint with an embedding that is not a number."""
    shutil.copytree(model("int4"), folder, dirs_exist_ok=True)
    dtype, (_, dim), _, at = checkpoint_io.Checkpoint(folder).records["model.embed_tokens.weight"][:4]
    with open(f"{folder}/model.safetensors", "r+b") as f:
        f.seek(at + token * dim * 2)
        f.write(b"\xc0\x7f" if dtype == "BF16" else b"\x00\x7e")


def expected_in(folder, pairs):
    lines = [json.dumps({"id": i, "context": c, "continuation": k}) for i, (c, k) in enumerate(pairs)]
    done = run("score", "--model", folder, "--backend", "cpu", "--no-share", text="".join(x + "\n" for x in lines))
    return {r["id"]: [w.f32(x) for x in r["logprobs"]] for r in map(json.loads, done.stdout.splitlines())}


class Jobs(unittest.TestCase):
    def test_clients_share_and_are_told(self):
        """Progress counts what is asked, and what was computed; the log gives the gain."""
        one, two = PAIRS[::2], PAIRS[1::2]
        with server("--backend", "cpu") as a, a.client() as c, a.client() as other:
            jobs = [(c, c.pairs(one, columns=["logprob"], seal=False), one),
                    (other, other.pairs(two, columns=["logprob"], seal=False), two)]
            for client, job, _ in jobs:
                client.call("seal", job=job, parts=1)
            for client, job, pairs in jobs:
                r = client.wait(job)
                self.assertEqual(r["state"], "done", r)
                self.assertEqual(results(client, job), expected("int4", pairs))
                asked = sum(len(c) + len(k) - 1 for c, k in pairs)
                self.assertEqual((r["progress"]["tokens"], r["progress"]["tokens_done"]), (asked, asked))
                self.assertTrue(0 < r["progress"]["tokens_computed"] < asked / 3, r)
            self.assertRegex(a.text(), r"job of 24 items, \d+ tokens: done .* times fewer computed")

    def test_passes_share(self):
        """A pass keeps what the next one begins with, though each is a call of its own."""
        inputs = [tuple(c + k[:-1]) for c, k in PAIRS]
        distinct = len({i[:n] for i in inputs for n in range(1, len(i) + 1)})
        for name in ("int4", "hybrid"):
            with server("--backend", "cpu", "--pass-tokens", "200", name=name) as a, a.client() as c:
                job = c.pairs(PAIRS, columns=["logprob"])
                r = c.wait(job)
                self.assertEqual(results(c, job), expected(name, PAIRS))
                self.assertLess(r["progress"]["tokens_computed"], distinct * 1.1)

    def test_without(self):
        with server("--backend", "cpu", "--no-share") as a, a.client() as c:
            job = c.pairs(PAIRS, columns=["logprob"])
            r = c.wait(job)
            self.assertEqual(r["progress"]["tokens_computed"], r["progress"]["tokens"])
            self.assertEqual(results(c, job), expected("int4", PAIRS))
            self.assertNotIn("fewer computed", a.text())

    @timed
    def test_a_cancelled_branch(self):
        """One of two jobs with the same trunk is cancelled while a pass of both runs."""
        with server("--backend", "cuda", name="deep", op_us=300) as a, a.client() as c, a.client() as other:
            kept, gone = few_shot(TRUNKS[0], 3), few_shot(TRUNKS[0], 3)
            c.run_pairs(kept[:1])
            good, bad = c.pairs(kept, columns=["logprob"], seal=False), other.pairs(gone, seal=False)
            c.call("seal", job=good, parts=1)
            other.call("seal", job=bad, parts=1)
            until(lambda: other.call("poll", job=bad)["progress"]["tokens_done"] > 0)
            other.call("cancel", job=bad)
            self.assertEqual(c.wait(good)["state"], "done")
            self.assertEqual(results(c, good), expected("deep", kept))

    def test_a_store_is_asked_first(self):
        """What is stored is not computed, and its neighbours share what they have in common."""
        with tempfile.TemporaryDirectory(prefix="ctw-") as d:
            for some in (PAIRS[::3], PAIRS):
                with server("--backend", "cpu", "--store", d) as a, a.client() as c:
                    job = c.pairs(some, columns=["logprob"])
                    r = c.wait(job)
                    self.assertEqual(results(c, job), expected("int4", some))
                    self.assertLess(r["progress"]["tokens_computed"], r["progress"]["tokens"] / 3)


if __name__ == "__main__":
    unittest.main()
