"""What tests of a worker share: jobs of known length, waiting, endings, refused starts, one worker for a class."""

import functools
import subprocess
import sys
import time
import unittest

import pynng

import worker_process as w

SLOW = {"us_per_token": 2000}  # a pass of 256 tokens takes half a second
LONG = [([1] * 60, [2] * 4)]   # 63 tokens


def long_items(n):
    """n items of 63 tokens that share nothing."""
    return [([100 + i % 800] * (60 - i // 800) + [2] * (i // 800), [2] * 4) for i in range(n)]


# Five minutes on a SLOW engine: a worker that ends within ENDED_S did not wait for it, even on a slow machine.
ENDLESS, ENDED_S = long_items(2400), 60
ENDLESS_LOAD = {"open_ms": 300000}  # likewise


def timed(test):
    """For a test whose subject is a time of the worker, such as that to live of a job: made again if it fails, because any
    process of a busy machine may stand still for seconds."""
    @functools.wraps(test)
    def repeated(self):
        for left in (2, 1, 0):
            try:
                return test(self)
            except (AssertionError, w.Refused, pynng.exceptions.NNGException, subprocess.TimeoutExpired) as e:
                if left == 0:
                    raise
                print(f"{test.__name__} once more: {e}", file=sys.stderr)
                self.tearDown()
                self.setUp()
    return repeated


def until(what, timeout_s=15):
    end = time.monotonic() + timeout_s * w.PATIENCE
    while not what():
        assert time.monotonic() < end, "the condition did not become true"
        time.sleep(0.02)


def ended(worker, timeout_s=20):
    try:
        return worker.end(timeout_s)
    except subprocess.TimeoutExpired:
        raise AssertionError("the worker has not ended: " + worker.text())


def ended_at_once(worker):
    """The exit code of a worker with an ENDLESS job, which it must not wait for."""
    start = time.monotonic()
    code = ended(worker)
    assert time.monotonic() - start < ENDED_S, "it waited for its job"
    return code


def start_fails(code, part, *args, **kw):
    with w.Worker(*args, wait=False, **kw) as worker:
        got = ended(worker)
        assert got == code, f"exit code {got}, expected {code}: {worker.text()}"
        text = worker.text()
        assert part in text, f"{part!r} is not in: {text}"
        assert not worker.ready.exists()
        return text


def first_answer(worker, op, **fields):
    """Makes a call as every client must: after a lost connection it dials again and repeats the request."""
    while True:
        with worker.client(timeout_s=20) as c:
            try:
                return c.call(op, **fields)
            except pynng.exceptions.ConnectionReset:
                print("connection reset", file=sys.stderr)


class OneWorker(unittest.TestCase):
    ENGINE = {}
    ARGS = ()

    @classmethod
    def setUpClass(cls):
        cls.worker = w.Worker(*cls.ARGS, engine=cls.ENGINE)
        cls.c = cls.worker.client()

    @classmethod
    def tearDownClass(cls):
        cls.c.__exit__()
        with cls.worker:  # an orderly end, so that a leak sanitizer can report
            cls.worker.process.terminate()
            assert cls.worker.end(60) == 0, cls.worker.text()

    def tearDown(self):
        """Leaves no job behind. The worker itself may forget an orphan's job at any moment."""
        for job in self.c.call("info")["jobs"]:
            for op in ("cancel", "release"):
                try:
                    self.c.call(op, job=job["job"])
                except w.Refused as e:
                    self.assertEqual(e.code, "not_found", e)

    def refused(self, code, part, call, *args, **kw):
        with self.assertRaises(w.Refused) as e:
            call(*args, **kw)
        self.assertEqual(e.exception.code, code, e.exception)
        self.assertIn(part, e.exception.message)
        return e.exception
