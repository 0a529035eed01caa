"""docs/PROTOCOL.md's messages, sentence by sentence, against a worker on the fake engine: parts, refusals, bounds, info.
Scores, polls and cancels are in test_jobs.py."""

import random
import unittest

import msgpack

import worker_process as w
from worker_cases import OneWorker


class Parts(OneWorker):
    head = {"kind": "loglikelihood"}
    one, two = w.pair_items([([1, 2], [3])]), w.pair_items([([1, 2], [4])])

    def test_repeats_are_harmless(self):
        job = random.randbytes(16)
        self.assertFalse(self.c.submit(job, 0, self.one, self.head)["repeated"])
        self.assertTrue(self.c.submit(job, 0, self.one, self.head)["repeated"])
        self.assertEqual(self.c.submit(job, 1, self.two)["items"], 2)
        self.assertEqual(self.c.submit(job, 0, self.one, self.head)["items"], 2)
        for _ in range(3):
            self.assertEqual(self.c.call("seal", job=job, parts=2)["items"], 2)
        self.c.wait(job)
        self.assertTrue(self.c.submit(job, 1, self.two)["repeated"])
        self.assertEqual(self.c.call("seal", job=job, parts=2)["state"], "done")
        self.assertEqual(len(self.c.fetch(job)), 2)

    def test_contradictions_are_errors(self):
        job = random.randbytes(16)
        self.c.submit(job, 0, self.one, self.head)
        self.refused("invalid", "other content", self.c.submit, job, 0, self.two, self.head)
        self.refused("invalid", "other content", self.c.submit, job, 0, self.one,
                     {"kind": "loglikelihood", "columns": ["greedy"]})
        self.refused("invalid", "before part 1", self.c.submit, job, 2, self.one)
        self.refused("invalid", "has 1 parts of the job, not 2", self.c.call, "seal", job=job, parts=2)
        self.refused("invalid", "head", self.c.submit, job, 1, self.one, self.head)
        self.refused("invalid", "head", self.c.submit, random.randbytes(16), 0, self.one)
        self.refused("not_found", "no such job", self.c.submit, random.randbytes(16), 1, self.one)
        self.refused("invalid", "16", self.c.submit, b"short", 0, self.one, self.head)
        self.c.call("seal", job=job, parts=1)
        self.refused("invalid", "takes no more parts", self.c.submit, job, 1, self.one)

    def test_nothing_is_scored_before_seal(self):
        job = self.c.pairs([([1], [2])], seal=False)
        r = self.c.call("poll", job=job, wait_ms=300)
        self.assertEqual((r["state"], r["items_done"]), ("open", 0))
        self.c.call("seal", job=job, parts=1)
        self.assertEqual(self.c.wait(job)["state"], "done")

    def test_a_refused_part_leaves_the_job_as_it_was(self):
        job = random.randbytes(16)
        self.c.submit(job, 0, self.one, self.head)
        e = self.refused("invalid", "item 2: token 1 is 1000", self.c.submit, job, 1,
                         w.pair_items([([1], [2]), ([1], [1000])]))
        self.assertEqual(e.item, 2)
        self.assertEqual(self.c.submit(job, 1, self.two)["items"], 2)

    def test_empty_job(self):
        job = self.c.pairs([])
        self.assertEqual(self.c.wait(job)["state"], "done")
        self.assertEqual(self.c.fetch(job), {})


class Refusals(OneWorker):
    def items(self, code, part, items, head=None, item=None):
        head = {"kind": "loglikelihood"} | (head or {})
        e = self.refused(code, part, self.c.submit, random.randbytes(16), 0, items, head)
        self.assertEqual(e.item, item)

    def test_items(self):
        pair, ints = w.pair_items, w.ints
        good = ([1, 2], [3])
        self.items("invalid", "context is empty", pair([good, ([], [3])]), item=1)
        self.items("invalid", "continuation is empty", pair([good, ([3], [])]), item=1)
        self.items("invalid", "65 tokens, more than max_length 64", pair([([1], [2] * 65)]), item=0)
        self.items("invalid", "9 tokens, more than max_length 8", pair([([1], [2] * 9)]),
                   {"max_length": 8}, item=0)
        self.items("invalid", "token 2 is -1", pair([([1, 2], [-1])]), item=0)
        self.items("invalid", "0..999", pair([([1, 2], [5000])]), item=0)
        self.items("invalid", "only 0 are left", {"tokens": b"", "n_context": ints([1]),
                                                  "n_continuation": ints([1])}, item=0)
        self.items("invalid", "column tokens 4", {"tokens": ints([1] * 4), "n_context": ints([1]),
                                                  "n_continuation": ints([1])})
        self.items("invalid", "negative", {"tokens": ints([1] * 4), "n_context": ints([-2]),
                                           "n_continuation": ints([6])}, item=0)
        self.items("invalid", "multiple of 4", {"tokens": b"123", "n_context": b"",
                                                "n_continuation": b""})
        self.items("invalid", "1 items, n_continuation 2",
                   {"tokens": ints([1] * 3), "n_context": ints([1]), "n_continuation": ints([1, 1])})
        self.items("invalid", "n_context, n_continuation", w.rolling_items([[1]]))
        self.items("invalid", "n_tokens", pair([good]),
                   {"kind": "loglikelihood_rolling", "prefix_token": 0})
        self.items("invalid", "only 1 are left", {"tokens": ints([1]), "n_tokens": ints([2**31 - 1])},
                   {"kind": "loglikelihood_rolling", "prefix_token": 0}, item=0)

    def test_heads(self):
        good = w.pair_items([([1], [2])])
        text = w.rolling_items([[1, 2]])
        rolling = {"kind": "loglikelihood_rolling"}
        self.items("unsupported", "loglikelihood, loglikelihood_rolling, loglikelihood_windows", good,
                   {"kind": "generate"})
        self.items("unsupported", '"rank"; this worker has logprob, greedy', good,
                   {"columns": ["logprob", "rank"]})
        self.items("invalid", "max_length 65 is more than the 64", good, {"max_length": 65})
        self.items("not_found", '"other"', good, {"model": "other"})
        self.items("invalid", "neither keep nor cancel", good,
                   {"orphan": {"policy": "drop", "ttl_s": 5}})
        self.items("invalid", "ttl_s 0", good, {"orphan": {"policy": "keep", "ttl_s": 0}})
        self.items("invalid", "belong to kind loglikelihood_rolling", good, {"prefix_token": 1})
        self.items("invalid", "needs prefix_token", text, rolling)
        self.items("invalid", "prefix_token 1000", text, rolling | {"prefix_token": 1000})
        self.items("invalid", "context_length 9", text,
                   rolling | {"prefix_token": 1, "max_length": 8, "context_length": 9})
        self.items("invalid", "context_length 0", text,
                   rolling | {"prefix_token": 1, "context_length": 0})

    def test_rules(self):
        text = w.rolling_items([[1, 2]])
        rule = {"kind": "loglikelihood_windows", "window": 8}
        prefix = {"bos": 1, "bos_mode": "prefix"}
        self.items("invalid", "needs window", text, {"kind": "loglikelihood_windows"})
        self.items("invalid", "belong to kind loglikelihood_windows, not loglikelihood_rolling", text,
                   {"kind": "loglikelihood_rolling", "prefix_token": 1, "tail": True})
        self.items("invalid", "belong to kind loglikelihood_rolling, not loglikelihood_windows", text,
                   rule | {"prefix_token": 1})
        self.items("invalid", "window 1 is not in 2..65 (max_length + 1)", text, rule | {"window": 1})
        self.items("invalid", "window 66 is not in 2..65", text, rule | {"window": 66})
        self.items("invalid", "window 65 is not in 2..64 (max_length, with bos", text,
                   rule | prefix | {"window": 65})
        self.items("invalid", "window 10 is not in 2..9", text, rule | {"window": 10, "max_length": 8})
        self.items("invalid", "stride 0 is not in 1..8", text, rule | {"stride": 0})
        self.items("invalid", "stride 9 is not in 1..8", text, rule | {"stride": 9})
        self.items("invalid", "first 0 is not in 1..7", text, rule | {"first": 0})
        self.items("invalid", "first 8 is not in 0..7", text, rule | prefix | {"first": 8})
        self.items("invalid", "rows 4294967296 is not in", text, rule | {"rows": 1 << 32})
        self.items("invalid", "bos is given without bos_mode", text, rule | {"bos": 1})
        self.items("invalid", "bos_mode is given without bos", text, rule | {"bos_mode": "replace"})
        self.items("invalid", "neither replace nor prefix", text, rule | prefix | {"bos_mode": "stream"})
        self.items("invalid", "bos 1000 is not in the vocabulary", text, rule | prefix | {"bos": 1000})
        self.items("format", '"new" must be', text, rule | {"new": 1})
        self.items("invalid", "needs exactly the columns tokens, n_tokens", w.pair_items([([1], [2])]), rule)
        self.items("invalid", "token 1 is 1000", w.rolling_items([[1, 1000]]), rule, item=0)
        long = w.rolling_items([[1], [1] * 2_000_000])
        self.items("invalid", "a reply has room for", long,
                   rule | {"window": 8, "stride": 1, "columns": ["logprob"]}, item=1)

    def test_calls(self):
        c, job = self.c, random.randbytes(16)
        self.refused("unsupported", "info, health, submit", c.call, "generate")
        self.refused("format", 'unknown key "extra"', c.call, "info", extra=1)
        self.refused("format", 'unknown key "?[31mred"', c.call, "info", **{"\x1b[31mred": 1})
        self.refused("format", '"parts" (an unsigned integer) is missing', c.call, "seal", job=job)
        self.refused("format", '"job" must be a bin', c.call, "poll", job="x" * 16)
        self.refused("format", "unsigned", c.call, "seal", job=job, parts=-1)
        self.refused("format", "unsigned", c.call, "seal", job=job, parts=1.0)
        self.refused("invalid", "wait_ms 1001", c.call, "poll", job=job, wait_ms=1001)
        self.refused("not_found", "no such job", c.call, "poll", job=job)
        self.refused("not_found", "no such job", c.call, "fetch", job=job, first=0)
        self.refused("not_found", "no such job", c.call, "cancel", job=job)
        self.assertEqual(c.call("release", job=job)["state"], "released")
        self.refused("invalid", "neither finish nor cancel", c.call, "drain", mode="now")
        self.refused("unsupported", "--allow-load", c.call, "load", path="/etc")
        self.refused("not_found", '"other"', c.call, "unload", model="other")
        self.refused("format", "longer than 8192", c.call, "unload", model="x" * 9000)

    def test_malformed(self):
        good = msgpack.packb({"v": 1, "op": "health", "id": 7})
        many = msgpack.packb({"v": 1, "op": "health", "id": 7, "x": [1] * 10000})
        deep = b"\x81\xa1x" + b"\x91" * 20 + b"\xc0"
        cases = [
            (b"", 0, "truncated"), (b"\xc0", 0, "not a msgpack map"),
            (b"\x93\x01\x02\x03", 0, "not a msgpack map"),
            (b"\xdd\xff\xff\xff\xff", 0, "claims 4294967295 elements"),
            (b"\xdf\xff\xff\xff\xff", 0, "claims 8589934590 elements"),
            (b"\xc6\xff\xff\xff\xff", 0, "claims 4294967295 bytes"),
            (b"\xdd\x10\x00\x00\x00" + b"\x01" * 100, 0, "elements"),
            (good + b"\xc0", 0, "1 bytes follow"), (good[:-1], 0, "truncated"), (b"\xc1", 0, "0xc1"),
            (b"\x81\xa1x\xd4\x01\x02", 0, "extension"), (many, 0, "more than 8192 elements"),
            (deep, 0, "more than 8 deep"),
            (b"\x84" + good[1:] + b"\xa2id\x08", 0, '"id"'),
            (b"\x84" + good[1:] + b"\xa2op\xa4info", 7, '"op"'),
            (b"\x85" + good[1:] + b"\xa1y\x01\xa1y\x02", 7, "unknown key"),
            (b"\x84" + good[1:] + b"\x01\x02", 7, "not text"),
            (msgpack.packb({"v": 1, "op": "health"}), 0, '"id"'),
            (msgpack.packb({"op": "health", "id": 9}), 9, '"v"'),
            (msgpack.packb({"v": 1, "op": 3, "id": 9}), 9, '"op"'),
        ]
        for data, ident, part in cases:
            reply = self.c.raw(data)
            self.assertFalse(reply["ok"], data)
            self.assertEqual((reply["id"], reply["error"]["code"]), (ident, "format"), reply)
            self.assertIn(part, reply["error"]["message"])
        reply = self.c.raw(msgpack.packb({"v": 2, "op": "health", "id": 9}))
        self.assertEqual((reply["id"], reply["error"]["code"]), (9, "unsupported"))
        twice = b"\x84\xa1v\x01\xa2op\xa6unload\xa2id\x05\xa5model\xa1a"
        reply = self.c.raw(b"\x85" + twice[1:] + b"\xa5model\xa1b")
        self.assertIn('"model" occurs twice', reply["error"]["message"])
        bad_text = b"\x84\xa1v\x01\xa2op\xa6unload\xa2id\x05\xa5model\xa2\xc0\xaf"
        self.assertIn("UTF-8", self.c.raw(bad_text)["error"]["message"])

    def test_random_bytes(self):
        """Mutations of a valid submit: each gets a reply, and the worker goes on."""
        rng = random.Random(6)
        good = bytearray(msgpack.packb(
            {"v": 1, "op": "submit", "id": 1, "job": b"j" * 16, "part": 0,
             "head": {"kind": "loglikelihood", "columns": ["logprob"],
                      "orphan": {"policy": "cancel", "ttl_s": 1}},
             "items": w.pair_items([([1, 2], [3])])}))
        for i in range(3000):
            if i % 900 == 0:  # further requests on one connection would be read late
                c = w.Client(self.worker.url)
                self.addCleanup(c.sock.close)
            data = bytearray(good)
            for _ in range(rng.randint(1, 4)):
                data[rng.randrange(len(data))] = rng.randrange(256)
            if rng.random() < 0.2:
                data = data[:rng.randrange(len(data))]
            self.assertIn("ok", c.raw(bytes(data)))
        self.assertEqual(self.c.call("health")["state"], "ready")


class Page(OneWorker):
    def test_the_example_of_the_page(self):
        """docs/PROTOCOL.md's own bytes, in and out."""
        text = (w.ROOT / "docs/PROTOCOL.md").read_text()
        block = text.split("byte by byte")[1].split("```")[1].replace("\n  ", " ")
        lines = [line for line in block.splitlines() if line]
        self.assertEqual([line[0] for line in lines], [">", "<"] * 3)
        for request, reply in zip(lines[::2], lines[1::2]):
            self.c.sock.send(bytes.fromhex(request[1:]))
            self.assertEqual(self.c.sock.recv().hex(" "), reply[1:].strip(), request)
        job = bytes(range(16))
        self.assertEqual(self.c.wait(job)["state"], "done")
        self.assertEqual(self.c.fetch(job)[0][:2], w.expect_pair([1, 5, 9], [12, 13])[:2])

    def test_every_operation_and_limit_is_on_the_page(self):
        text = (w.ROOT / "docs/PROTOCOL.md").read_text()
        with self.assertRaises(w.Refused) as e:
            self.c.call("none")
        for op in e.exception.message.split("has ")[1].split(", "):
            self.assertIn(f"| `{op}`", text.replace("| `load`, `unload`", "| `load` | `unload`"))
        info = self.c.call("info")
        for key in [*info, *info["models"][0], *info["limits"], *info["libraries"]]:
            if key not in ("v", "id", "ok"):
                self.assertTrue(f"`{key}`" in text, key)


class Bounds(OneWorker):
    ARGS = ("--queue-bytes", "40MiB")
    ENGINE = {"us_per_token": 100}

    def test_part_bytes(self):
        n = (16 << 20) // 4 - 2
        items = {"tokens": w.ints([1]) * (n + 1), "n_context": w.ints([n]),
                 "n_continuation": w.ints([1])}
        self.refused("invalid", "16777220 bytes", self.c.submit, random.randbytes(16), 0, items,
                     {"kind": "loglikelihood"})

    def test_queue_bytes(self):
        n = 3 << 20
        items = {"tokens": w.ints([1]) * n, "n_context": w.ints([n - 1]),
                 "n_continuation": w.ints([1])}
        jobs = [random.randbytes(16) for _ in range(4)]
        head = {"kind": "loglikelihood", "max_length": 4}
        for job in jobs[:3]:
            self.c.submit(job, 0, items, head)
        e = self.refused("busy", "release", self.c.submit, jobs[3], 0, items, head)
        self.assertGreater(e.retry_ms, 0)
        for job in jobs[1:3]:
            self.c.call("cancel", job=job)
            self.c.call("release", job=job)
        for part in (1, 2):
            self.c.submit(jobs[0], part, items)
        self.refused("invalid", "split the job", self.c.submit, jobs[0], 3, items)
        self.assertEqual(self.c.call("seal", job=jobs[0], parts=3)["items"], 3)
        self.c.wait(jobs[0])
        self.c.call("release", job=jobs[0])

    def test_jobs(self):
        begin = lambda c: c.pairs([([1], [2])], seal=False)
        jobs = [begin(self.c) for _ in range(16)]  # one client's unsealed jobs have a quarter of the slots
        e = self.refused("busy", "this client has 16 jobs that are not sealed", begin, self.c)
        self.assertGreater(e.retry_ms, 0)
        others = [self.worker.client() for _ in range(3)]
        jobs += [begin(c) for c in others for _ in range(16)]
        with self.worker.client() as c:
            e = self.refused("busy", "64 jobs", begin, c)
        self.assertGreater(e.retry_ms, 0)
        for c in others:
            c.sock.close()
        self.assertEqual(self.c.call("health")["jobs"], 64)
        self.assertEqual(len(self.c.call("info")["jobs"]), 64)
        for job in jobs:
            self.c.call("cancel", job=job)
            self.c.call("release", job=job)
        self.assertEqual(self.c.call("info")["jobs"], [])

    def test_fetch_bytes(self):
        pairs = w.random_pairs(40, seed=8)
        job = self.c.pairs(pairs, columns=["logprob"])
        self.c.wait(job)
        r = self.c.call("fetch", job=job, first=0, max_bytes=1)
        self.assertEqual(r["n"], 1)
        r = self.c.call("fetch", job=job, first=0, max_bytes=1000)
        size = sum(len(v) for v in r["result"].values())
        self.assertTrue(1 < r["n"] < 40 and size <= 1000, (r["n"], size))
        self.refused("invalid", "only 40 items", self.c.call, "fetch", job=job, first=41)
        self.assertEqual(self.c.call("fetch", job=job, first=40)["n"], 0)


class Info(OneWorker):
    def test_info(self):
        r = self.c.call("info")
        self.assertEqual((r["protocol"], r["state"], r["pid"]),
                         (1, "ready", self.worker.process.pid))
        self.assertEqual(len(r["boot"]), 16)
        self.assertEqual(r["boot"], self.c.call("health")["boot"])
        m = r["models"][0]
        self.assertEqual((m["name"], m["vocab"], m["max_length"], m["numerics"]),
                         ("model", w.VOCAB, w.MAX_LENGTH, "fake-c/float32/1"))
        self.assertEqual(set(r["limits"]), {"message_bytes", "part_bytes", "fetch_bytes", "jobs",
                                            "job_items", "queue_bytes", "ttl_s", "wait_ms",
                                            "request_bytes", "connections", "unanswered",
                                            "waiting", "requests_per_s", "unhandled_bytes"})
        self.assertEqual(r["limits"]["message_bytes"], 64 << 20)
        job = self.c.pairs([([1], [2])])
        self.c.wait(job)
        r = self.c.call("fetch", job=job, first=0)
        self.assertEqual((r["numerics"], r["identity"]), (m["numerics"], m["identity"]))

    def test_largest_part_and_reply(self):
        """16 MiB of items in, about as much out."""
        n = (16 << 20) // 4 - 1
        job = random.randbytes(16)
        self.c.submit(job, 0, {"tokens": w.ints([7]) * n, "n_tokens": w.ints([n])},
                      {"kind": "loglikelihood_rolling", "prefix_token": 1,
                       "columns": ["logprob", "greedy"]})
        self.c.call("seal", job=job, parts=1)
        r = self.c.wait(job, timeout_s=60)
        self.assertEqual(r["state"], "done", r)
        r = self.c.call("fetch", job=job, first=0)
        self.assertEqual((r["n"], len(r["result"]["logprob"])), (1, 4 * n))
        self.c.call("release", job=job)


if __name__ == "__main__":
    unittest.main()
