"""examples/client.c, which was written from docs/PROTOCOL.md alone."""

import os
import subprocess
import unittest
from pathlib import Path

import worker_process as w

CLIENT = Path(os.environ.get("CTW_EXAMPLE_CLIENT", w.FAKE.parents[1] / "examples/client"))


def client(url, *pairs):
    words = [",".join(map(str, tokens)) for pair in pairs for tokens in pair]
    return subprocess.run([str(CLIENT), url, *words], capture_output=True, text=True, timeout=60)


class Example(unittest.TestCase):
    def test_scores(self):
        pairs = w.random_pairs(20)
        with w.Worker() as a, a.client() as c:
            out = client(a.url, *pairs)
            self.assertEqual(out.returncode, 0, out.stderr)
            lines = out.stdout.splitlines()
            self.assertEqual(len(lines), 20)
            for line, pair in zip(lines, pairs):
                total, count, is_greedy, _, lps, _ = w.expect_pair(*pair)
                words = line.split()
                self.assertEqual(float(words[0]), total)
                self.assertEqual(words[1], "greedy" if is_greedy else "-")
                self.assertEqual([w.f32(float(x)) for x in words[2:]], lps)
            self.assertEqual(c.call("info")["jobs"], [], "it releases its job")

    def test_waits_while_the_model_loads(self):
        with w.Worker(engine={"open_ms": 1200}, wait=False) as a:
            while not (a.dir / "w.sock").exists():
                pass
            out = client(a.url, ([1], [2]))
            self.assertEqual(out.returncode, 0, out.stderr)

    def test_closed_streams(self):
        """The worker's socket does not become standard output or standard error; a lost result is an error."""
        with w.Worker(engine={"us_per_token": 60000}) as a:  # so long that progress is printed to standard error
            whole = client(a.url, ([1] * 20, [2]))
            self.assertRegex(whole.stderr, "0 of 1 items")
            for closed in ([0], [1], [2], [0, 2], [0, 1, 2]):
                with self.subTest(closed=closed):
                    streams = " ".join(f"{fd}>&-" for fd in closed)
                    p = subprocess.run(["sh", "-c", f'exec "$0" "$@" {streams}', CLIENT, a.url, ",".join(["1"] * 20), "2"],
                                       capture_output=True, text=True, timeout=60 * w.PATIENCE)
                    self.assertEqual((p.returncode, p.stdout), (1, "") if 1 in closed else (0, whole.stdout), p.stderr)
                    if 1 in closed and 2 not in closed:
                        self.assertIn("client: standard output: Bad file descriptor", p.stderr)
            self.assertNotIn("warn", a.text())

    def test_says_what_the_worker_says(self):
        with w.Worker() as a:
            out = client(a.url, ([1], [1000]))
            self.assertEqual(out.returncode, 1)
            self.assertIn("item 0: token 1 is 1000", out.stderr)
            out = client(a.url, ([], [1]))
            self.assertIn("context is empty", out.stderr)
        out = client("ipc:///tmp/nobody-is-here.sock", ([1], [2]))
        self.assertEqual(out.returncode, 1)
        self.assertIn("no answer", out.stderr)


if __name__ == "__main__":
    unittest.main()
