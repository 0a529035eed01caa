"""Access over tcp: tokens, roles, owners of jobs, what replies reveal, and what the worker logs."""

import contextlib
import os
import socket
import struct
import unittest
from pathlib import Path

import worker_process as w
from test_example import client as example
from worker_cases import ended, start_fails, timed, until

ALICE, BOB, ROOT = "alice-secret-0001", "bob-secret-000002", "root-secret-00003"
LINES = f"# who\n\nalice score {ALICE}\nbob  score\t{BOB}\nroot admin {ROOT}\n"
PAIR = [([1, 2], [3])]


class TokenClient(w.Client):
    def __init__(self, url, token=None):
        super().__init__(url)
        self.token = token

    def call(self, op, **fields):
        return super().call(op, **fields, **({} if self.token is None else {"token": self.token}))


class Files:
    def __init__(self):
        self.folder = w.tempfile.TemporaryDirectory(prefix="ctw-")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.folder.cleanup()

    def file(self, text, mode=0o600, name="tokens"):
        path = Path(self.folder.name, name)
        path.unlink(missing_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return str(path)


def worker(files, *args, text=LINES, **kw):
    return w.Worker("--token-file", files.file(text), *args, listen="tcp://127.0.0.1:0", access=(), **kw)


class Starting(unittest.TestCase):
    def test_tcp_needs_tokens_or_insecure(self):
        text = start_fails(64, "--token-file FILE", listen="tcp://127.0.0.1:0", access=())
        self.assertIn("--insecure", text)

    def test_insecure_is_repeated(self):
        with w.Worker(listen="tcp://127.0.0.1:0", access=("--insecure",)) as a, a.client() as c:
            self.assertIs(c.call("info")["insecure"], True)
            self.assertIn("warn: --insecure: anyone who reaches tcp://127.0.0.1:0", a.text())
            self.assertIn("(--insecure)", a.command("info").stdout)
        with w.Worker() as a, a.client() as c:
            self.assertIs(c.call("info")["insecure"], False)

    def test_bad_files(self):
        with Files() as f:
            for text, mode, words in (
                    (LINES, 0o640, "mode 0600"), ("", 0o600, "no token"),
                    ("a b\n", 0o600, "line 1: expected NAME ROLE TOKEN"),
                    (f"x boss {ALICE}\n", 0o600, "line 1: the role of x is neither"),
                    ("x score short\n", 0o600, "line 1: the token of x: expected 16 to"),
                    (f"x score {ALICE}\nx admin {ROOT}", 0o600, "line 2: x has the name or the token"),
                    (f"x score {ALICE}\ny admin {ALICE}", 0o600, "line 2: y has the name or the token"),
                    (f"x score {ALICE}\n{ROOT}", 0o600, "line 2: a token without a name"),
                    (f"a/b score {ALICE}\n", 0o600, "line 1: the name")):
                told = start_fails(64, words, "--token-file", f.file(text, mode), access=(),
                                   listen="tcp://127.0.0.1:0")
                for secret in (ALICE, ROOT, "short"):
                    self.assertNotIn(secret, told)
            pipe = f"{f.folder.name}/pipe"
            os.mkfifo(pipe, 0o600)
            start_fails(64, "expected a regular file", "--token-file", pipe, access=(),
                        listen="tcp://127.0.0.1:0")
            start_fails(64, "give only one of the two", "--token-file", f.file(LINES), "--insecure", access=(),
                        listen="tcp://127.0.0.1:0")
            start_fails(66, "No such file", "--token-file", "/nowhere/tokens", access=(),
                        listen="tcp://127.0.0.1:0")


def connect(worker):
    """A socket on which nng's handshake is done."""
    host, port = worker.url.removeprefix("tcp://").rsplit(":", 1)
    s = socket.create_connection((host, int(port)), timeout=10 * w.PATIENCE)
    s.sendall(b"\0SP\0\0\x30\0\0")
    s.recv(8)
    return s


def ask(s, **fields):
    request = w.msgpack.packb({"v": 1, "op": "health", "id": 1, **fields})
    s.sendall(struct.pack(">QI", len(request) + 4, 0x80000001) + request)


def reply(s):
    n, _ = struct.unpack(">QI", s.recv(12, socket.MSG_WAITALL))
    return w.msgpack.unpackb(s.recv(n - 4, socket.MSG_WAITALL))


class Asking(unittest.TestCase):
    def refused(self, call, *args, code="refused", **kw):
        with self.assertRaises(w.Refused) as e:
            call(*args, **kw)
        self.assertEqual(e.exception.code, code, e.exception.message)
        return e.exception.message

    def test_strangers_keep_nobody_out(self):
        """More connections than the worker accepts: the oldest of those without a token give way."""
        def answers(s):
            try:
                ask(s, token=ALICE)
                return len(s.recv(1)) == 1
            except ConnectionError:
                return False

        with Files() as f, worker(f) as a, contextlib.ExitStack() as opened:
            old = opened.enter_context(connect(a))
            ask(old, token=ALICE)
            self.assertTrue(reply(old)["ok"])
            with TokenClient(a.url, ALICE) as c:
                most = c.call("info")["limits"]["connections"]
            strangers = [opened.enter_context(connect(a))]
            ask(strangers[0])  # refused, so it stays a stranger
            self.assertEqual(reply(strangers[0])["error"]["code"], "refused")
            strangers += [opened.enter_context(connect(a)) for _ in range(most + 20)]
            with TokenClient(a.url, BOB) as new:
                new.call("health")
            ask(old, token=ALICE)
            self.assertTrue(reply(old)["ok"])
            for s in strangers[:2]:
                self.assertFalse(answers(s))
            self.assertTrue(answers(strangers[most // 2]))

    def test_one_token_leaves_connections_for_others(self):
        """A token at its bound gets no further connection, and the log names it; another token and an admin get in, an
        admin beyond the bound, too."""
        most, bound = 200, 150  # with 400 open files

        def answered(s, token):
            ask(s, token=token)
            try:
                return reply(s)["ok"]
            except (ConnectionError, struct.error):  # closed
                return False

        with Files() as f, contextlib.ExitStack() as opened:
            few = Path(f.folder.name, "few")
            few.write_text(f'#!/bin/sh\nulimit -n {2 * most}\nexec {w.FAKE} "$@"\n')
            few.chmod(0o700)
            for token, name in ((ALICE, "alice"), (ROOT, "root")):
                with worker(f, program=few) as a, TokenClient(a.url, BOB) as bob:
                    self.assertEqual(bob.call("info")["limits"]["connections"], most)
                    held = [opened.enter_context(connect(a)) for _ in range(bound)]
                    for s in held:
                        self.assertTrue(answered(s, token))
                    self.assertEqual(answered(opened.enter_context(connect(a)), token), token == ROOT)
                    full = f"token {name} has {bound} connections, the maximum for one client"
                    if token != ROOT:
                        until(lambda: full in a.text())
                    self.assertEqual(full in a.text(), token != ROOT)
                    out = a.command("health", a.url, "--timeout", "3", "--token-file", f.file(token + "\n", name="mine"))
                    self.assertEqual(out.returncode, 0 if token == ROOT else 75, out.stderr)
                    if token != ROOT:
                        self.assertIn("too many of its connections are in use; its log says who holds them", out.stderr)
                    for other in (BOB, ROOT):
                        self.assertTrue(answered(opened.enter_context(connect(a)), other))
                    for s in held:
                        self.assertTrue(answered(s, token))

    def test_one_token_leaves_slots_for_others(self):
        with Files() as f, worker(f) as a, TokenClient(a.url, ALICE) as alice, TokenClient(a.url, BOB) as bob:
            for n in range(48):
                self.assertEqual(bob.wait(bob.pairs(PAIR))["state"], "done")
            self.assertIn("the maximum for one token", self.refused(bob.pairs, PAIR, code="busy"))
            alice.run_pairs(PAIR)

    def test_without_a_token_nothing_is_told(self):
        with Files() as f, worker(f) as a:
            for token in (None, "", "x", ALICE[:-1], ALICE + "x", "A" + ALICE[1:]):
                with TokenClient(a.url, token) as c:
                    for op, fields in (("info", {}), ("health", {}), ("shutdown", {"mode": "cancel"}),
                                       ("nonsense", {}), ("poll", {"job": b"?", "what": 1})):
                        self.assertEqual(self.refused(c.call, op, **fields), "refused")
                    for raw in (b"", b"\xc1", b"\x80", w.msgpack.packb({"v": 9, "id": 3})):
                        error = c.raw(raw)["error"]
                        self.assertEqual(error, {"code": "refused", "message": "refused"})
            until(lambda: "with no token" in a.text())
            self.assertRegex(a.text(), r"warn: refused: a request of 127\.0\.0\.1:\d+ with no token")
            self.assertLess(a.text().count("refused:"), 20, "one line per request")
            for secret in (ALICE, BOB, ROOT):
                self.assertNotIn(secret[:-1], a.text())
            with TokenClient(a.url, ALICE) as c:
                self.assertEqual(c.call("health")["state"], "ready")

    def test_jobs_belong_to_their_token(self):
        with Files() as f, worker(f) as a, TokenClient(a.url, ALICE) as alice, \
                TokenClient(a.url, ALICE) as again, TokenClient(a.url, BOB) as bob, \
                TokenClient(a.url, ROOT) as root:
            job, open_ = alice.pairs(PAIR), alice.pairs(PAIR, seal=False)
            self.assertEqual(again.wait(job)["state"], "done")
            for op, fields in (("poll", {}), ("fetch", {"first": 0}), ("cancel", {}),
                               ("seal", {"parts": 1})):
                self.refused(bob.call, op, job=open_, code="not_found", **fields)
            self.assertEqual(bob.call("release", job=job)["state"], "released")  # the same as for an unknown job
            self.assertEqual(len(again.fetch(job)), 1)
            same = bob.pairs(PAIR, job=job)  # two owners may use the same id
            self.assertEqual(bob.wait(same)["state"], "done")
            ids = lambda c: sorted(j["job"] for j in c.call("info")["jobs"])
            self.assertEqual(ids(alice), sorted([job, open_]))
            self.assertEqual(ids(bob), [job])
            self.assertEqual(ids(root), sorted([job, job, open_]))
            for op, fields in (("poll", {}), ("fetch", {"first": 0}), ("cancel", {}), ("release", {})):
                message = self.refused(root.call, op, job=job, code="invalid", **fields)
                self.assertIn("the tokens alice and bob each have a job with this id", message)
            owners = lambda c: sorted((j["job"], j["owner"]) for j in c.call("info")["jobs"])
            self.assertEqual(owners(root), sorted([(job, "alice"), (job, "bob"), (open_, "alice")]))
            self.assertEqual(root.call("release", job=job, owner="bob")["state"], "released")
            self.assertEqual(owners(root), sorted([(job, "alice"), (open_, "alice")]))
            self.refused(root.call, "cancel", job=open_, owner="bob", code="not_found")
            self.refused(bob.call, "cancel", job=open_, owner="alice", code="not_found")
            self.assertEqual(root.call("poll", job=open_)["state"], "open")
            self.refused(root.submit, open_, 1, w.pair_items(PAIR), code="not_found")
            self.assertEqual(root.call("cancel", job=open_)["state"], "canceled")
            self.assertIn("administrator", alice.call("poll", job=open_)["error"]["message"])
            self.assertRegex(a.text(),
                             r"127\.0\.0\.1:\d+ \(token root\) cancelled a job of token alice")

    def test_roles_and_paths(self):
        with Files() as f:
            folder = f.folder.name
            Path(folder, "broken").mkdir()
            with worker(f, "--allow-load", folder, engine={"io_token": 15}) as a, \
                    TokenClient(a.url, ALICE) as alice, TokenClient(a.url, ROOT) as root:
                for op, fields in (("load", {"path": f"{folder}/broken"}), ("drain", {"mode": "finish"}),
                                   ("unload", {"model": "model"}), ("shutdown", {"mode": "finish"})):
                    self.assertIn("role admin", self.refused(alice.call, op, **fields))
                told = self.refused(root.call, "load", path="/etc", code="invalid")
                self.assertNotIn(folder, told)
                root.call("load", path=f"{folder}/broken")
                until(lambda: root.call("info")["models"][1]["state"] == "failed")
                m = alice.call("info")["models"][1]
                self.assertIn("broken/config.json", m["message"])
                told = self.refused(alice.pairs, PAIR, model="broken", code="invalid")
                self.assertIn("broken/config.json", told)
                for text in (m["message"], m["path"], told):
                    self.assertNotIn(folder, text)
                told = alice.wait(alice.pairs([([1, 15], [2])]))["error"]["message"]
                self.assertIn("model/model.safetensors was changed", told)
                self.assertNotIn(str(a.dir), told)
                root.call("unload", model="broken")
                root.call("shutdown", mode="finish")
                self.assertEqual(ended(a), 0)
                for words in ("loads model broken from", "unloads model broken",
                              "asks to stop: unfinished jobs are finished"):
                    self.assertRegex(a.text(), r"127\.0\.0\.1:\d+ \(token root\) " + words)

    def test_over_ipc_no_token_is_asked_for(self):
        with Files() as f, w.Worker("--token-file", f.file(ROOT + "\n"), access=()) as a, \
                a.client() as c:
            self.assertEqual(len(c.run_pairs(PAIR)), 1)
            c.call("shutdown", mode="finish")
            self.assertEqual(ended(a), 0)
            self.assertIn("process " + str(os.getpid()) + " asks to stop", a.text())


class Commands(unittest.TestCase):
    @timed
    def test_they_send_the_token(self):
        with Files() as f, worker(f, "--name", "far") as a:
            for command in (("info",), ("health",), ("stop",)):
                out = a.command(*command, a.url)
                self.assertEqual(out.returncode, 77, out.stderr)
                self.assertIn("give the worker's token (--token-file FILE, or CTW_TOKEN)", out.stderr)
            self.assertIn("refused", a.command("ps").stdout)
            good = f.file(ROOT + "\n", name="mine")
            for command in (("info",), ("health", "--ready")):
                out = a.command(*command, a.url, "--token-file", good)
                self.assertEqual(out.returncode, 0, out.stderr)
            self.assertIn("ready", a.command("ps", "--token-file", good).stdout)
            a.env["CTW_TOKEN"] = ALICE
            self.assertEqual(a.command("health", a.url).returncode, 0)
            out = a.command("stop", a.url)
            self.assertEqual(out.returncode, 77)
            self.assertIn("role admin", out.stderr)
            self.assertEqual(a.command("stop", a.url, "--token-file", good).returncode, 0)
            self.assertEqual(ended(a), 0)

    def test_the_example_sends_it(self):
        with Files() as f, worker(f) as a:
            out = example(a.url, *PAIR)
            self.assertEqual(out.returncode, 1)
            self.assertIn("refused", out.stderr)
            os.environ["CTW_TOKEN"] = BOB
            try:
                out = example(a.url, *PAIR)
            finally:
                del os.environ["CTW_TOKEN"]
            self.assertEqual(out.returncode, 0, out.stderr)


if __name__ == "__main__":
    unittest.main()
