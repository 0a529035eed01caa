"""Many clients, some of them hostile: no client slows down the others (docs/PROTOCOL.md, Bounds)."""

import contextlib
import os
import random
import select
import socket
import struct
import subprocess
import sys
import threading
import time
import unittest
from pathlib import Path

import msgpack
import worker_process as w
from worker_cases import timed, until

HELLO = b"\0SP\0\0\x30\0\0"
SLOW = {"us_per_token": 100}
MIB = 1 << 20


#: Opens connections, and holds them until its standard input is closed.
HOLD = """
import resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
held = []
for _ in range(int(sys.argv[2])):
    s = socket.socket(socket.AF_UNIX)
    s.connect(sys.argv[1])
    s.sendall(b"\\0SP\\0\\0\\x30\\0\\0")
    assert s.recv(8, socket.MSG_WAITALL)
    # begin
    held.append(s)
print("held", flush=True)
sys.stdin.read()
"""


def connect(worker):
    """A socket on which nng's handshake is done."""
    s = socket.socket(socket.AF_UNIX)
    s.settimeout(20 * w.PATIENCE)
    s.connect(worker.url.removeprefix("ipc://"))
    s.sendall(HELLO)
    assert s.recv(8, socket.MSG_WAITALL) == b"\0SP\0\0\x31\0\0"
    return s


def frame(n, request_id=1):
    """nng's header of a message of n bytes."""
    return b"\x01" + struct.pack(">QI", n + 4, 0x80000000 | request_id)


def rss(worker):
    text = Path(f"/proc/{worker.process.pid}/status").read_text()
    return int(text.split("VmRSS:")[1].split()[0]) * 1024


class Crowd(unittest.TestCase):
    @timed
    def test_unfinished_requests_are_bounded(self):
        """40 connections each send 15 of a claimed 16 MiB: 600 MiB that would otherwise be held."""
        with w.Worker() as a, a.client() as c:
            c.call("health")
            before = rss(a)
            senders = []
            for _ in range(40):
                s = connect(a)
                s.settimeout(0.2)
                s.sendall(frame(16 * MIB))
                try:
                    s.sendall(bytes(15 * MIB))
                except TimeoutError:
                    pass  # the worker does not read it: the memory for requests is used up
                senders.append(s)
            if not w.sanitizers(w.FAKE):  # a sanitizer's own memory grows with the worker's
                self.assertLess(rss(a) - before, 256 * MIB + 32 * MIB)
            start = time.monotonic()
            for _ in range(25):
                c.call("health")
            self.assertLess(time.monotonic() - start, 1 * w.PATIENCE)
            for s in senders[6:]:
                s.close()
            # A large request is read: the worker closes connections whose large requests have stalled.
            n = 2 * MIB
            c.sock.recv_timeout = int(60000 * w.PATIENCE)
            job = random.randbytes(16)
            c.submit(job, 0, {"tokens": w.ints([7]) * n, "n_tokens": w.ints([n])},
                     {"kind": "loglikelihood_rolling", "prefix_token": 1})
            self.assertIn("it sends a large request too slowly while others wait", a.text())
            for s in senders:
                s.close()
            c.call("cancel", job=job)

    @contextlib.contextmanager
    def holding(self, worker, n, program=HOLD):
        """Another process with n connections; its id."""
        argv = [sys.executable, "-c", program, worker.url.removeprefix("ipc://"), str(n)]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as p:
            self.assertEqual(p.stdout.readline(), b"held\n")
            yield p.pid
            p.stdin.close()

    def test_idle_connections_make_room(self):
        """Two processes hold all connections without a word: whoever comes gets in, and the log says who holds them."""
        with w.Worker() as a, a.client() as first:
            most = first.call("info")["limits"]["connections"]
            with self.holding(a, most - most // 4) as larger, self.holding(a, most // 4 - 1) as smaller:
                others = [a.client() for _ in range(20)]
                for c in others:
                    c.call("health")
                command = subprocess.run([w.FAKE, "health", a.url], env=a.env, capture_output=True)
                self.assertEqual((command.returncode, command.stdout.split(b",")[0]), (0, b"ready"))
                until(lambda: "a new client needs its place" in a.text())
                self.assertRegex(a.text(), rf"process {larger} holds {most - most // 4} of {most} connections")
                self.assertNotIn(f"process {smaller} holds", a.text())
                first.call("health")  # over its old connection
                for c in others:
                    c.sock.close()
                self.assertEqual(subprocess.run([w.FAKE, "stop", a.url], env=a.env).returncode, 0)

    def test_busy_connections_make_room(self):
        """The same if each of them has begun a request, so that none is idle."""
        with w.Worker() as a, a.client() as first:
            most = first.call("info")["limits"]["connections"]
            begin = HOLD.replace("# begin", 's.sendall(b"\\1\\0\\0")')
            with self.holding(a, most - most // 4, begin) as larger, self.holding(a, most // 4 - 1, begin):
                command = subprocess.run([w.FAKE, "health", a.url], env=a.env, capture_output=True)
                self.assertEqual((command.returncode, command.stdout.split(b",")[0]), (0, b"ready"))
                others = [a.client() for _ in range(20)]
                for c in others:
                    c.call("health")
                until(lambda: f"process {larger} holds {most - most // 4} of {most} connections" in a.text())
                for c in others:
                    c.sock.close()

    def test_a_silent_connection_keeps_its_place(self):
        """A process that opens ever more connections is refused: those that it has are not given away."""
        with w.Worker() as a:
            with a.client() as c:
                most = c.call("info")["limits"]["connections"]
            silent = connect(a)
            others = []
            for _ in range(most + 20):
                s = socket.socket(socket.AF_UNIX)
                s.connect(a.url.removeprefix("ipc://"))
                others.append(s)
            until(lambda: f"process {os.getpid()} has {most - most // 4} connections, the maximum" in a.text())
            request = msgpack.packb({"v": 1, "op": "health", "id": 1})
            silent.sendall(frame(len(request)) + request)
            self.assertTrue(silent.recv(9, socket.MSG_WAITALL))
            for s in others:
                s.close()
            silent.close()

    def test_a_log_that_nobody_reads(self):
        """Standard error is a full pipe: polls still end in time, and lost lines are counted."""
        with w.tempfile.TemporaryDirectory(prefix="ctw-") as d:
            os.mkfifo(f"{d}/log")
            log = os.open(f"{d}/log", os.O_RDWR | os.O_NONBLOCK)
            for some in (bytes(4096), b"x"):
                with contextlib.suppress(BlockingIOError):
                    while os.write(log, some):
                        pass
            program = Path(d, "program")
            program.write_text(f'#!/bin/sh\nexec {w.FAKE} "$@" 2>{d}/log\n')
            program.chmod(0o700)

            def speak_another_protocol():
                with socket.socket(socket.AF_UNIX) as s:
                    s.connect(a.url.removeprefix("ipc://"))
                    s.sendall(b"\0SP\0\0\x31\0\0")
                    while s.recv(8):
                        pass

            with w.Worker("--log", "warn", program=program) as a, a.client() as c:
                job = c.pairs([([1], [2])], seal=False)
                for _ in range(3):
                    speak_another_protocol()
                for _ in range(2):
                    self.assertEqual(c.call("poll", job=job, wait_ms=100)["again_ms"], 0)
                with contextlib.suppress(BlockingIOError):
                    while os.read(log, 1 << 20):
                        pass
                speak_another_protocol()
                text = b""
                while not text.endswith(b"REQ socket\n"):
                    select.select([log], [], [], 20 * w.PATIENCE)
                    text += os.read(log, 1 << 20)
                self.assertRegex(text, rb"^ctworker: warn: [1-3] lines are missing here")
            os.close(log)

    def test_few_open_files(self):
        """`info` reports the connections that this process can open, not the built-in bound."""
        with w.tempfile.TemporaryDirectory(prefix="ctw-") as d:
            program = Path(d, "few")
            program.write_text(f'#!/bin/sh\nulimit -n 400\nexec {w.FAKE} "$@"\n')
            program.chmod(0o700)
            with w.Worker(program=program) as a, a.client() as c:
                self.assertEqual(c.call("info")["limits"]["connections"], 200)
                others = [connect(a) for _ in range(149)]
                with self.assertRaises((AssertionError, ConnectionError)):
                    connect(a)
                until(lambda: f"process {os.getpid()} has 150 connections, the maximum" in a.text())
                for s in others:
                    s.close()

    @timed
    def test_a_client_that_reads_nothing(self):
        """300 requests, and no reply read: the worker still answers `health` of others within a second."""
        with w.Worker() as a:
            with a.client() as c:
                n = 200000
                job = random.randbytes(16)
                c.submit(job, 0, {"tokens": w.ints([7]) * n, "n_tokens": w.ints([n])},
                         {"kind": "loglikelihood_rolling", "prefix_token": 1,
                          "columns": ["logprob"]})
                c.call("seal", job=job, parts=1)
                c.wait(job, timeout_s=60)
            s = connect(a)
            request = msgpack.packb({"v": 1, "op": "fetch", "id": 1, "job": job, "first": 0})
            s.sendall(b"".join(frame(len(request), i + 1) + request for i in range(300)))
            for _ in range(25):
                start = time.monotonic()
                with a.client() as c:
                    self.assertEqual(c.call("health")["state"], "ready")
                self.assertLess(time.monotonic() - start, 1 * w.PATIENCE)
            s.close()

    @timed
    def test_a_hundred_polls_wait(self):
        """All polls are held, and answered as soon as the job ends."""
        n = 100
        with w.Worker(engine={"us_per_token": 30000}) as a, a.client() as c:
            job = c.pairs([([1] * 30, [2] * 20)])
            clients = [a.client(timeout_s=20) for _ in range(n)]
            answers, n_requests = [], [0] * n

            def wait(i):
                time.sleep(i / n)  # so that no two of them would end their waits together
                while True:
                    n_requests[i] += 1
                    r = clients[i].call("poll", job=job, wait_ms=1000)
                    if r["state"] == "done":
                        answers.append(time.monotonic())
                        return
                    assert r["again_ms"] == 0, r

            threads = [threading.Thread(target=wait, args=(i,)) for i in range(n)]
            start = time.monotonic()
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            for each in clients:
                each.sock.close()
            self.assertEqual(len(answers), n)
            self.assertLess(max(answers) - min(answers), 0.5 * w.PATIENCE)
            seconds = max(answers) - start
            self.assertLessEqual(max(n_requests), seconds + 2)  # one per second: no busy loop

    def test_a_poll_in_a_tight_loop(self):
        """The reply asks the client to wait; a client that does not wait is slowed down."""
        at_once, per_s, n = 1000, 100, 1150  # limits.h: requests in one burst, sustained
        with w.Worker(engine=SLOW) as a:
            start = time.monotonic()  # the allowance is full, and refills from here on
            c = a.client()
            job = c.pairs([([1], [2])], seal=False)
            self.assertEqual(c.call("poll", job=job, wait_ms=0)["again_ms"], 100)
            self.assertEqual(c.call("poll", job=job, wait_ms=50)["again_ms"], 0)
            for _ in range(n):
                c.call("poll", job=job)
            self.assertGreaterEqual(time.monotonic() - start, (n - at_once) / per_s)
            self.assertEqual(c.call("cancel", job=job)["state"], "canceled")
            c.sock.close()


if __name__ == "__main__":
    unittest.main()
