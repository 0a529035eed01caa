"""The fate of a job whose client dies, falls silent, or comes back."""

import random
import subprocess
import sys
import time
import unittest
from pathlib import Path

import worker_process as w
from worker_cases import ENDLESS, LONG, SLOW, long_items, timed, until


class Orphans(unittest.TestCase):
    def submit_and_die(self, worker, policy, ttl_s, n=240):
        """Starts a client process that submits a long job, and kills it. Returns the job's id and the time of the kill."""
        job = random.randbytes(16)
        code = (f"import sys, time\nsys.path.insert(0, {str(Path(__file__).parent)!r})\n"
                f"import worker_process as w\nc = w.Client({worker.url!r})\n"
                f"c.pairs({LONG!r} * {n}, job={job!r}, orphan={{'policy': {policy!r}, 'ttl_s': {ttl_s}}})\n"
                f"print('ok', flush=True)\ntime.sleep(100)\n")
        p = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        self.assertEqual(p.stdout.readline(), b"ok\n")
        killed = time.monotonic()
        p.kill()
        p.wait()
        p.stdout.close()
        return job, killed

    def jobs(self, c):
        return {j["job"]: j["state"] for j in c.call("info")["jobs"]}

    @timed
    def test_cancel_when_the_connection_is_lost(self):
        with w.Worker(engine={"us_per_token": 50000}) as a, a.client() as c:  # a pass of 12.6 s
            job, killed = self.submit_and_die(a, "cancel", 600, 4)
            until(lambda: job not in self.jobs(c))
            self.assertGreaterEqual(time.monotonic() - killed, 5)
            until(lambda: "lost the client: cancelled" in a.text())
            begin = time.monotonic()
            c.run_pairs([([1], [2])])
            self.assertLess(time.monotonic() - begin, 5, "the orphan still computes")

    def test_cancel_when_the_client_is_silent(self):
        with w.Worker(engine=SLOW) as a, a.client() as c, a.client() as silent:
            start = time.monotonic()
            job = silent.pairs(ENDLESS, orphan={"policy": "cancel", "ttl_s": 1})
            until(lambda: job not in self.jobs(c))
            self.assertGreaterEqual(time.monotonic() - start, 1)
            until(lambda: "lost the client: cancelled" in a.text())

    @timed
    def test_polling_is_contact(self):
        ttl_s = int(w.PATIENCE)  # a slow machine may poll more than a second after the last poll
        with w.Worker(engine=SLOW) as a, a.client() as c:
            job = c.pairs(long_items(20) * ttl_s, orphan={"policy": "cancel", "ttl_s": ttl_s})
            self.assertEqual(c.wait(job)["state"], "done")

    @timed
    def test_another_connection_saves_the_job(self):
        with w.Worker(engine=SLOW) as a, a.client() as c:
            job, _ = self.submit_and_die(a, "cancel", 600)
            end = time.monotonic() + 7
            while time.monotonic() < end:
                self.assertEqual(c.call("poll", job=job, wait_ms=500)["state"], "running")
            c.call("cancel", job=job)

    @timed
    def test_keep(self):
        with w.Worker(engine={"us_per_token": 300}) as a, a.client() as c:
            job, _ = self.submit_and_die(a, "keep", 5, 60)
            until(lambda: self.jobs(c)[job] == "done")
            time.sleep(2.8)  # info does not count as contact
            self.assertEqual(len(c.fetch(job)), 60)
            time.sleep(2.8)
            self.assertEqual(len(c.fetch(job)), 60)  # fetch does
            until(lambda: job not in self.jobs(c))

    def test_unsealed_jobs_are_forgotten(self):
        with w.Worker() as a, a.client() as c:
            job = c.pairs(LONG, seal=False, orphan={"policy": "keep", "ttl_s": 1})
            until(lambda: job not in self.jobs(c))


if __name__ == "__main__":
    unittest.main()
