#!/usr/bin/env python3
"""A stand-in for the worker: docs/PROTOCOL.md over nng's own REP socket, with a toy model whose
log-probabilities can be computed by hand. Run as `fake_worker.py serve --listen URL --model DIR`.

Faults come from FAKE_FAULTS, a comma-separated list: load=TEXT, slow=SECONDS (a job's items become
final one after another, one per SECONDS), die=N (exits at the N-th poll with a reason), crash=N
(is killed at the N-th poll), busy=N (for the first N submits), full=N (for the N-th submit and the
three after it), nan, forget=N (forgets every job at the N-th poll, as after a restart), forgets=N
(the same at the N-th submit), device=NAME, loading=N (the first N infos report loading), unknown=N
(the first N infos give no identity), identity=HEX, numerics=TEXT, hidden (no path, as over tcp),
hidden=PATH (this path), restless (does not
vouch for the metadata of its files), token=TEXT (required in every request), hot (polls are answered at once),
again=MS (the same, with `again_ms`), scored=TEXT (numerics of the results), invalid=N (refuses the
N-th submit). FAKE_LOG names a file that gets one line per request.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import signal
import struct
import sys
import time
from array import array
from pathlib import Path

import msgpack
import pynng

import fake_divergence

VOCAB = 320


def logprob(previous: int, token: int) -> float:
    """The toy model looks at one token back; values are exact in float64."""
    return -(1 + (previous * 31 + token * 17) % 97) / 16


def greedy(previous: int) -> int:
    return (previous * 7 + 1) % VOCAB


def pair_sum(context: list[int], continuation: list[int]) -> tuple[float, bool]:
    tokens = [*context[-1:], *continuation]
    steps = list(itertools.pairwise(tokens))
    return sum(logprob(a, b) for a, b in steps), all(greedy(a) == b for a, b in steps)


def windows(tokens: list[int], prefix: int, length: int, context: int) -> list[tuple[list[int], list[int]]]:
    """(input, targets) of each window, as defined in docs/PROTOCOL.md."""
    n = min(len(tokens), length)
    out = [([prefix, *tokens[: n - 1]], tokens[:n])] if n else []
    done = n
    while done < len(tokens):
        k = min(len(tokens) - done, length - context + 1)
        done += k
        out.append((tokens[done - length - 1 : done - 1], tokens[done - k : done]))
    return out


def rolling_sum(tokens: list[int], prefix: int, length: int, context: int = 1) -> float:
    """The sum over all targets, each given the token before it in its window's input."""
    total = 0.0
    for inputs, targets in windows(tokens, prefix, length, context):
        total += sum(logprob(a, b) for a, b in zip(inputs[-len(targets) :], targets))
    return total


class Fault(Exception):
    def __init__(self, code: str, message: str, **more: int) -> None:
        super().__init__(message)
        self.error = {"code": code, "message": message, **more}


class Fake:
    def __init__(self, options: argparse.Namespace, faults: dict[str, str]) -> None:
        self.options, self.faults = options, faults
        self.boot, self.jobs, self.polls, self.submits = os.urandom(16), {}, 0, 0
        self.infos = 0
        self.identity = faults.get("identity", "ab" * 32)
        self.numerics = faults.get("numerics", "fake-1")
        self.models = dict(map(fake_divergence.named, options.model))
        self.folder = next(iter(self.models.values()))[0]
        folders = [folder for folder, _ in self.models.values()]
        self.stamps = {folder: files_stamp(Path(folder)) for folder in folders}
        self.identities = {folder: identity_of(Path(folder)) for folder in folders}
        config = json.loads((Path(self.folder) / "config.json").read_text())
        self.length = options.max_length or config.get("max_position_embeddings", 2048)
        self.stop = False
        self.seen: list[str] = []

    def model(self) -> dict:
        return {
            "name": next(iter(self.models)),
            "path": self.faults.get("hidden", self.folder),
            "state": "ready",
            "message": "",
            "architecture": "LlamaForCausalLM",
            "model_type": "llama",
            "identity": self.identity if self.infos > int(self.faults.get("unknown", 0)) else "",
            "numerics": self.numerics,
            "backend": "cpu",
            "variant": "toy",
            "device": self.faults.get("device", "abacus"),
            "reason": "no GPU: this is a toy",
            "threads": 1,
            "dtype": "float32" if self.options.dtype == "auto" else self.options.dtype,
            "activations": self.faults.get("activations", ""),
            "activations_mode": self.options.activations,
            "max_length": self.length,
            "vocab": VOCAB,
            "params": 1234,
            "weight_bits": 0.0 if "original" in self.folder else 4.5,
            "chunk_tokens": 16,
            "pass_tokens": 64,
            "memory_planned": 0,
            "memory_limit": 0,
            "weights": {"files": self.stamp(self.folder)},
        }

    def stamp(self, folder: str) -> str:
        return "" if "restless" in self.faults else self.stamps[folder]

    def others(self) -> list[dict]:
        """The models beside the first one."""
        return [
            self.model()
            | {"name": name, "path": folder, "identity": self.identities[folder], "weights": {"files": self.stamp(folder)}}
            | {"weight_bits": 0.0 if "original" in folder else 4.5}
            | ({"dtype": dtype, "numerics": f"{self.numerics}/{dtype}"} if dtype else {})
            for name, (folder, dtype) in list(self.models.items())[1:]
        ]  # fmt: skip

    def answer(self, request: dict) -> dict:
        known = {
            "submit": {"job", "part", "head", "items"},
            "seal": {"job", "parts"},
            "poll": {"job", "wait_ms", "seen"},
            "fetch": {"job", "first", "max_bytes"},
            "cancel": {"job"},
            "release": {"job"},
            "shutdown": {"mode"},
            "info": set(),
            "health": set(),
        }
        op = request["op"]
        if path := os.environ.get("FAKE_LOG"):
            with open(path, "a") as file:
                file.write(f"{op} {request.get('job', b'').hex()} {request.get('part', '')}\n")
        if "token" in self.faults and request.get("token") != self.faults["token"]:
            raise Fault("refused", "refused")
        extra = set(request) - {"v", "op", "id", "token"} - known[op]
        if extra or request["v"] != 1:
            raise Fault("format", f"unknown key {extra} in {op}")
        return getattr(self, op)(**{name: value for name, value in request.items() if name in known[op]})

    def info(self) -> dict:
        self.infos += 1
        loading = self.infos <= int(self.faults.get("loading", 0))
        return {
            "version": "0.1.0-fake",
            "protocol": 1,
            "boot": self.boot,
            "pid": os.getpid(),
            "state": "loading" if loading else "ready",
            "message": "weights" if loading else "",
            "models": [self.model() | ({"state": "loading"} if loading else {}), *self.others()],
            "jobs": [],
            "limits": {
                "message_bytes": 64 << 20,
                "part_bytes": int(self.faults.get("part", 16 << 20)),
                "fetch_bytes": 1024,
                "jobs": 4,
                "job_items": int(self.faults.get("items", 1000)),
                "queue_bytes": 1 << 28,
                "ttl_s": 604800,
                "wait_ms": 1000,
            },
        }

    def health(self) -> dict:
        failed = self.faults.get("load")
        return {
            "state": "failed" if failed else "ready",
            "message": failed or "",
            "boot": self.boot,
            "jobs": 0,
            "stalled_ms": 0,
        }

    def submit(self, job: bytes, part: int, items: dict, head: dict | None = None) -> dict:
        self.submits += 1
        if self.submits <= int(self.faults.get("busy", 0)):
            raise Fault("busy", "the queue is full", retry_ms=10)
        if 0 <= self.submits - int(self.faults.get("full", 1 << 30)) < 4:
            raise Fault("busy", "the queue is full", retry_ms=10)
        if self.submits == int(self.faults.get("invalid", 0)):
            raise Fault("invalid", "item 0: no", item=0)
        if self.submits == int(self.faults.get("forgets", 0)):
            self.jobs.clear()
        if part:
            self._job(job)
        if part == 0:
            self.jobs[job] = {"head": head, "items": [], "parts": 0, "sealed": False, "fetched": 0}
        entry = self.jobs[job]
        assert part == entry["parts"], "parts come in order"
        assert len(job) == 16
        assert sum(map(len, items.values())) <= int(self.faults.get("part", 16 << 20))
        tokens = array("i", items["tokens"])
        assert all(0 <= token < VOCAB for token in tokens)
        start = 0
        if entry["head"]["kind"] == "loglikelihood":
            for n_context, n_continuation in zip(array("i", items["n_context"]), array("i", items["n_continuation"])):
                assert n_context >= 1 and 1 <= n_continuation <= self.length
                end = start + n_context + n_continuation
                entry["items"].append((list(tokens[start : start + n_context]), list(tokens[start + n_context : end])))
                start = end
        else:
            for n in array("i", items["n_tokens"]):
                entry["items"].append(list(tokens[start : start + n]))
                start += n
        assert start == len(tokens)
        entry["parts"] += 1
        return {"state": "open", "parts": entry["parts"], "items": len(entry["items"]), "repeated": False}

    def _job(self, job: bytes) -> dict:
        if job not in self.jobs:
            raise Fault("not_found", f"no job {job.hex()}")
        return self.jobs[job]

    def seal(self, job: bytes, parts: int) -> dict:
        entry = self._job(job)
        assert parts == entry["parts"]
        entry["sealed"], entry["start"] = True, time.monotonic()
        entry["results"] = [self._score(entry["head"], item) for item in entry["items"]]
        # the longest first, as the worker's planner does: results come out of order
        entry["order"] = sorted(range(len(entry["items"])), key=lambda i: -len(str(entry["items"][i])))
        return {"state": "queued", "items": len(entry["items"])}

    def _score(self, head: dict, item: object) -> tuple[float, int, bool]:
        assert head["orphan"]["policy"] in ("keep", "cancel")
        length = head.get("max_length") or self.length
        if head["kind"] == "loglikelihood":
            context, continuation = item
            assert len(context) + len(continuation) <= length + 1
            return (*pair_sum(context, continuation), len(continuation))
        if head["kind"] == "divergence":
            mine, reference = next(iter(self.models.values())), self.models[head["reference"]]
            return fake_divergence.compare(item, head, mine, reference)
        return (rolling_sum(item, head["prefix_token"], length, head["context_length"]), True, len(item))

    def _final(self, entry: dict) -> int:
        slow = float(self.faults.get("slow", 0))
        n = len(entry["items"])
        if "crash" in self.faults:  # one more with each poll, so that a job of N items meets its crash however slow the client is
            n = min(n, self.polls)
        return n if not slow else min(n, int((time.monotonic() - entry["start"]) / slow))

    def poll(self, job: bytes, wait_ms: int = 0, seen: int = 0) -> dict:
        self.polls += 1
        if self.polls == int(self.faults.get("die", 0)):
            print("error: the toy model broke", file=sys.stderr, flush=True)
            os._exit(70)
        if self.polls == int(self.faults.get("crash", 0)):
            os.kill(os.getpid(), signal.SIGKILL)
        if self.polls == int(self.faults.get("forget", 0)):
            self.jobs.clear()
            self.boot = os.urandom(16)
        entry = self._job(job)
        if "nan" in self.faults:
            return {
                "state": "failed",
                "items_done": 0,
                "items": len(entry["items"]),
                "progress": {},
                "error": {"code": "numeric", "message": "NaN in a score", "item": 1, "layer": 3},
            }
        held = 0 if {"hot", "again"} & self.faults.keys() else min(wait_ms, 1000) / 1000
        until = time.monotonic() + held
        while self._final(entry) <= seen < len(entry["items"]) and time.monotonic() < until:
            time.sleep(0.01)
        n, total = self._final(entry), len(entry["items"])
        return {
            "state": "done" if n == total else "running",
            "items_done": n,
            "items": total,
            **({"again_ms": int(self.faults["again"])} if "again" in self.faults else {}),
            "progress": {
                "tokens_done": n * 10,
                "tokens": total * 10,
                "tokens_per_s": 100.0,
                "seconds_left": 1.0,
                "pass": 0,
                "passes": 1,
                "layer": 0,
                "layers": 2,
            },
        }

    def fetch(self, job: bytes, first: int, max_bytes: int = 1024) -> dict:
        entry = self._job(job)
        numbers = entry["order"][: self._final(entry)][first : first + 7]
        results = [entry["results"][i] for i in numbers]
        n = len(numbers)
        head = {
            "state": "running",
            "first": first,
            "n": n,
            "numerics": self.faults.get("scored", self.numerics),
            "identity": self.identity,
        }
        if entry["head"]["kind"] == "divergence":
            (other,) = (m for m in self.others() if m["name"] == entry["head"]["reference"])
            source = {f"ref_{name}": other[name] for name in ("numerics", "identity")}
            columns = {"item": struct.pack(f"<{n}i", *numbers), **fake_divergence.pack(results)}
            return head | source | {"result": columns}
        return head | {
            "result": {
                "item": struct.pack(f"<{n}i", *numbers),
                "sum": struct.pack(f"<{n}d", *(r[0] for r in results)),
                "is_greedy": bytes(r[1] for r in results),
                "count": struct.pack(f"<{n}i", *(r[2] for r in results)),
                "truncated": bytes(4 * n),
                "later_column": b"?",
                **self._columns(entry, numbers),
            },
        }

    def _columns(self, entry: dict, numbers: list[int]) -> dict[str, bytes]:
        """The per-target columns that the job requested; for texts, only if they fit in one window."""
        wanted = entry["head"].get("columns") or []
        logprobs, greedies = array("f"), array("i")
        for i in numbers if wanted else []:
            item, head = entry["items"][i], entry["head"]
            start = [head["prefix_token"]] if "prefix_token" in head else item[0][-1:]
            steps = itertools.pairwise([*start, *(item if "prefix_token" in head else item[1])])
            for before, token in steps:
                logprobs.append(logprob(before, token))
                greedies.append(greedy(before))
        columns = {"logprob": logprobs.tobytes(), "greedy": greedies.tobytes()}
        return {name: columns[name] for name in wanted}

    def cancel(self, job: bytes) -> dict:
        self._job(job)
        del self.jobs[job]
        return {"state": "canceled"}

    def release(self, job: bytes) -> dict:
        self.jobs.pop(job, None)
        return {"state": "released"}

    def shutdown(self, mode: str) -> dict:
        assert mode in ("finish", "cancel")
        self.stop = True
        return {"state": "draining", "jobs": 0}


def identity_of(folder: Path) -> str:
    """What `inspect --identity` prints."""
    return hashlib.sha256((folder / "config.json").read_bytes()).hexdigest()


def files_stamp(folder: Path) -> str:
    """See docs/PROTOCOL.md, "Identity"; without the conditions under which a worker does not give it."""
    stamp = bytes(32)
    for file in os.scandir(folder):
        if file.is_file() and file.name.endswith((".json", ".safetensors")):
            s = file.stat()
            numbers = b" ".join(b"%d" % n for n in (s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns))
            one = hashlib.sha256(os.fsencode(file.name) + b"\0" + numbers).digest()
            stamp = bytes(a ^ b for a, b in zip(stamp, one))
    return stamp.hex()


def main() -> int:
    if sys.argv[1] == "inspect":
        print(f"checkpoint    {sys.argv[-1]}")
        if "--identity" in sys.argv:
            print(f"identity      {identity_of(Path(sys.argv[-1]))}")
        return 0
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=["serve"])
    for name in (
        "listen",
        "model",
        "backend",
        "dtype",
        "cpu-variant",
        "device-memory-limit",
        "memory-limit",
        "weights-limit",
        "host-memory-limit",
        "placement",
        "store",
        "store-limit",
        "ready-file",
        "on-signal",
    ):
        parser.add_argument(f"--{name}", action="append" if name == "model" else "store")
    parser.add_argument("--activations", choices=["none", "checkpoint"], default="none")
    for name in ("owner-pid", "device", "max-length", "threads"):
        parser.add_argument(f"--{name}", type=int)
    options = parser.parse_args()
    faults = dict(entry.partition("=")[::2] for entry in os.environ.get("FAKE_FAULTS", "").split(",") if entry)
    for _, (folder, _) in map(fake_divergence.named, options.model):
        if not Path(folder, "config.json").is_file():
            print(f"error: {folder}/config.json: no such file", file=sys.stderr)
            return 66
    fake = Fake(options, faults)
    if record := os.environ.get("FAKE_RECORD"):
        given = {name: value for name, value in os.environ.items() if name.startswith("CTW_")}
        Path(record).write_text(json.dumps({"pid": os.getpid(), "argv": sys.argv[1:], "options": given}))
    with pynng.Rep0(listen=options.listen, recv_timeout=200) as socket:
        while not fake.stop:
            if options.owner_pid and os.getppid() != options.owner_pid:
                return 0
            try:
                data = socket.recv()
            except pynng.Timeout:
                continue
            request = msgpack.unpackb(data, raw=False)
            try:
                reply = {"ok": True, **fake.answer(request)}
            except Fault as fault:
                reply = {"ok": False, "error": fault.error}
            socket.send(msgpack.packb({"v": 1, "id": request["id"], **reply}))
        time.sleep(0.05)
    return 0


if __name__ == "__main__":
    sys.exit(main())
