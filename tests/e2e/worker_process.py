"""Starts workers on the fake engine (tests/service) and speaks docs/PROTOCOL.md to them."""

import os
import re
import random
import struct
import subprocess
import tempfile
import time
from pathlib import Path

import msgpack
import pynng

ROOT = Path(__file__).resolve().parents[2]
FAKE = Path(os.environ.get("CTW_FAKE_WORKER", ROOT / "build/ci/tests/fake_worker"))
VOCAB, MAX_LENGTH = 1000, 64
MESSAGE_BYTES = 64 << 20
REQUEST_BYTES = (16 << 20) + (64 << 10)
# A factor on the time that tests wait for an event: sanitizers and other work on the machine delay events.
# Bounds that tests assert do not grow with it.
PATIENCE = float(os.environ.get("CTW_TEST_PATIENCE", "1"))


def ints(values):
    return struct.pack(f"<{len(values)}i", *values)


# ---- the fake engine's numbers, as in tests/service/fake_engine.c ----

MASK = (1 << 64) - 1


def _hash(tokens):
    h = 0x9E3779B97F4A7C15
    for t in tokens:
        h = ((h ^ t) * 0xBF58476D1CE4E5B9) & MASK
        h ^= h >> 31
    return h


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def logprob(tokens, at):
    return f32(f32(-f32(f32(_hash(tokens[: at + 1]) >> 40) / 1048576.0)) - f32(0.001))


def greedy(tokens, at):
    h = _hash(tokens[: at + 1])
    return tokens[at] if h % 3 else (tokens[at] + 1) % VOCAB


def expect_pair(context, continuation, max_length=MAX_LENGTH):
    """(sum, count, is_greedy, truncated, logprobs, greedy ids) of one loglikelihood item."""
    whole = context + continuation
    seq = whole[-(max_length + 1):]
    places = range(len(seq) - len(continuation), len(seq))
    return _expect([(seq, p) for p in places], len(whole) - len(seq))


def expect_rolling(tokens, prefix, max_length=MAX_LENGTH, context_length=1):
    """lm-eval's windows, written from their description in docs/PROTOCOL.md."""
    targets, done = [], min(len(tokens), max_length)
    first = [prefix] + tokens[:done]
    targets += [(first, p) for p in range(1, len(first))]
    while done < len(tokens):
        k = min(len(tokens) - done, max_length - context_length + 1)
        done += k
        window = tokens[done - max_length - 1:done]
        targets += [(window, p) for p in range(len(window) - k, len(window))]
    return _expect(targets, 0)


def expect_windows(tokens, window, stride=None, first=1, rows=0, new=False, tail=False, bos=None, bos_mode=None):
    """As expect_pair() of the kind loglikelihood_windows, and the (sum, count) of each window; written from
    docs/PROTOCOL.md."""
    stride, targets, of_windows, end = stride or window, [], [], 0
    for start in range(0, len(tokens), stride):
        if rows and len(of_windows) == rows:
            break
        whole = tokens[start:start + window]
        if len(whole) < window and (not tail or end == len(tokens)):
            break
        places = range(max(first, end - start) if new and start else first, len(whole))
        if not places:
            break
        end = start + len(whole)
        before = bos_mode == "prefix"
        seq = [bos] + whole if before else [bos] + whole[1:] if bos_mode else whole
        these = [(seq, whole[p], p + before) for p in places]
        of_windows.append((_sum(these), len(these)))
        targets += these
    lps, ids = [logprob(s, p) for s, _, p in targets], [greedy(s, p) for s, _, p in targets]
    is_greedy = all(i == token for i, (_, token, _) in zip(ids, targets))
    return (_sum(targets), len(lps), is_greedy, 0, lps, ids), of_windows


def _sum(targets):
    total = 0.0
    for seq, _, p in targets:
        total += logprob(seq, p)
    return total


def _expect(targets, truncated):
    lps = [logprob(seq, p) for seq, p in targets]
    ids = [greedy(seq, p) for seq, p in targets]
    total = 0.0
    for lp in lps:
        total += lp
    is_greedy = all(i == seq[p] for i, (seq, p) in zip(ids, targets))
    return total, len(lps), is_greedy, truncated, lps, ids


# ---- the client ----


def sanitizers(program):
    """The sanitizers of the program's build: "", "address,undefined" or "thread" (about twenty times slower)."""
    folder = Path(program).resolve().parents[1]
    return re.search(r"^CTW_SANITIZE:STRING=(.*)$", (folder / "CMakeCache.txt").read_text(), re.MULTILINE)[1]


def repeats(n, program=None):
    """How many of n rounds that differ in numbers alone: a build with a sanitizer runs a third of them."""
    return max(1, n // 3) if sanitizers(program or FAKE) else n


class Refused(Exception):
    def __init__(self, error):
        super().__init__(f"{error['code']}: {error['message']}")
        self.code, self.message = error["code"], error["message"]
        self.retry_ms, self.item = error.get("retry_ms"), error.get("item")


class Client:
    def __init__(self, url, timeout_s=10, resend_ms=-1):
        limit_ms = int(timeout_s * PATIENCE * 1000)
        self.sock = pynng.Req0(resend_time=resend_ms, recv_timeout=limit_ms, send_timeout=limit_ms,
                               recv_max_size=MESSAGE_BYTES + 1024)
        self.sock.dial(url, block=False)
        self.ids = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.sock.close()

    def raw(self, data):
        self.sock.send(data)
        return msgpack.unpackb(self.sock.recv(), strict_map_key=True)

    def call(self, op, **fields):
        self.ids += 1
        reply = self.raw(msgpack.packb({"v": 1, "op": op, "id": self.ids, **fields}))
        assert reply["v"] == 1 and reply["id"] == self.ids, reply
        if not reply["ok"]:
            raise Refused(reply["error"])
        return reply

    # jobs

    def submit(self, job, part, items, head=None):
        more = {} if head is None else {"head": head}
        return self.call("submit", job=job, part=part, items=items, **more)

    def pairs(self, pairs, job=None, columns=(), seal=True, **head):
        """Submits (context, continuation) pairs as one part; returns the job's id."""
        job = job or random.randbytes(16)
        self.submit(job, 0, pair_items(pairs), {"kind": "loglikelihood", "columns": list(columns),
                                                **head})
        if seal:
            self.call("seal", job=job, parts=1)
        return job

    def rolling(self, texts, prefix, job=None, columns=(), **head):
        job = job or random.randbytes(16)
        self.submit(job, 0, rolling_items(texts),
                    {"kind": "loglikelihood_rolling", "prefix_token": prefix,
                     "columns": list(columns), **head})
        self.call("seal", job=job, parts=1)
        return job

    def windows(self, texts, columns=(), **head):
        """Submits texts to be cut by a rule; returns the job's id."""
        job = random.randbytes(16)
        self.submit(job, 0, rolling_items(texts),
                    {"kind": "loglikelihood_windows", "columns": list(columns), **head})
        self.call("seal", job=job, parts=1)
        return job

    def wait(self, job, timeout_s=20):
        end = time.monotonic() + timeout_s * PATIENCE
        while time.monotonic() < end:
            r = self.call("poll", job=job, wait_ms=1000)
            if r["state"] in ("done", "failed", "canceled"):
                return r
        raise AssertionError(f"job is still {r['state']} after {timeout_s} s")

    def fetch(self, job, max_bytes=None):
        """All final items: {item: (sum, count, is_greedy, truncated, logprobs, greedy)}."""
        out, first = {}, 0
        while True:
            more = {} if max_bytes is None else {"max_bytes": max_bytes}
            r = self.call("fetch", job=job, first=first, **more)
            if r["n"] == 0:
                return out
            out.update(columns(r))
            first += r["n"]

    def run_pairs(self, pairs, **head):
        job = self.pairs(pairs, **head)
        r = self.wait(job, timeout_s=60)  # models of many layers take half a minute under thread sanitizer
        assert r["state"] == "done", r
        out = self.fetch(job)
        self.call("release", job=job)
        return out


def pair_items(pairs):
    return {"tokens": ints([t for c, k in pairs for t in c + k]),
            "n_context": ints([len(c) for c, _ in pairs]),
            "n_continuation": ints([len(k) for _, k in pairs])}


def rolling_items(texts):
    return {"tokens": ints([t for text in texts for t in text]),
            "n_tokens": ints([len(text) for text in texts])}


def columns(reply):
    r, n = reply["result"], reply["n"]
    item, count = (struct.unpack(f"<{n}i", r[k]) for k in ("item", "count"))
    total = struct.unpack(f"<{n}d", r["sum"])
    truncated = struct.unpack(f"<{n}i", r["truncated"])
    lps = struct.unpack(f"<{sum(count)}f", r["logprob"]) if "logprob" in r else None
    ids = struct.unpack(f"<{sum(count)}i", r["greedy"]) if "greedy" in r else None
    out, at = {}, 0
    for i in range(n):
        end = at + count[i]
        out[item[i]] = (total[i], count[i], bool(r["is_greedy"][i]), truncated[i],
                        list(lps[at:end]) if lps is not None else None,
                        list(ids[at:end]) if ids is not None else None)
        at = end
    return out


def random_pairs(n, seed=1, longest=40):
    rng = random.Random(seed)
    return [([rng.randrange(VOCAB) for _ in range(rng.randint(1, longest))],
             [rng.randrange(VOCAB) for _ in range(rng.randint(1, longest))]) for _ in range(n)]


# ---- the process ----


class Worker:
    """A fake worker (or `program`) in its own folder, which ends with the `with` block."""

    def __init__(self, *args, models=("model",), listen=None, wait=True, engine=None, env=None,
                 program=FAKE, access=None, preexec_fn=None):
        self.program = str(program)
        self.folder = tempfile.TemporaryDirectory(prefix="ctw-")
        self.dir = Path(self.folder.name)
        self.runtime = self.dir / "run"
        self.runtime.mkdir(mode=0o700)
        self.ready = self.dir / "ready"
        paths = []
        for name in models:
            (self.dir / name).mkdir(exist_ok=True)
            paths.append(str(self.dir / name))
        self.url = listen or f"ipc://{self.dir}/w.sock"
        # CTW_TIMEOUT: of commands, for an answer
        self.env = os.environ | {"XDG_RUNTIME_DIR": str(self.runtime), "CTW_TIMEOUT": "60"} | (env or {})
        engine = engine or {}
        if "open_ms" in engine:
            engine = engine | {"open_ms": int(engine["open_ms"] * PATIENCE)}
        self.env |= {f"CTW_FAKE_{k.upper()}": str(v) for k, v in engine.items()}
        tcp = self.url.startswith("tcp:")
        access = access if access is not None else ("--insecure",) if tcp else ()
        self.log = open(self.dir / "log", "w+", encoding="utf-8")
        self.argv = [self.program, "serve", "--model", *paths, "--listen", self.url,
                     "--ready-file", str(self.ready), *access, *args]
        self.process = subprocess.Popen(self.argv, env=self.env, stderr=self.log,
                                        stdin=subprocess.DEVNULL, stdout=self.log,
                                        preexec_fn=preexec_fn)
        if wait:
            self.wait_ready()

    def wait_ready(self, timeout_s=20):
        end = time.monotonic() + timeout_s * PATIENCE
        while not self.ready.exists():
            assert self.process.poll() is None, self.text()
            assert time.monotonic() < end, "not ready: " + self.text()
            time.sleep(0.01)
        self.url = self.ready.read_text().strip()

    def text(self):
        self.log.flush()
        return (self.dir / "log").read_text(errors="replace")

    def client(self, **kw):
        return Client(self.url, **kw)

    def command(self, *argv, timeout=60):
        return subprocess.run([self.program, *argv], env=self.env, capture_output=True, text=True,
                              timeout=timeout, stdin=subprocess.DEVNULL)

    def end(self, timeout_s=20):
        return self.process.wait(timeout_s * PATIENCE)

    def __enter__(self):
        return self

    def __exit__(self, failure, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        text = self.text()
        if failure is not None:
            print(f"the worker at {self.url}:\n{text}")
        # Sanitizers report on standard error; none of their reports may go unnoticed.
        self.log.close()
        self.folder.cleanup()
        assert "Sanitizer" not in text and "runtime error" not in text, text
