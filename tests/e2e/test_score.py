"""`ctworker score` as a filter and a batch command: numbers, what it refuses first, streaming, whole lines, the record
beside the results. Numbers of real models are in tests/golden."""

import contextlib
import json
import os
import pty
import select
import signal
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

import worker_process as w

ITEMS = [([1, 2, i % w.VOCAB], [3, i % 7]) for i in range(2000)]
TEXT = "".join(json.dumps({"id": i, "context": c, "continuation": k}) + "\n"
               for i, (c, k) in enumerate(ITEMS))
SLOW = {"us_per_token": 2000}  # a pass of 256 tokens takes half a second
SANITIZED = b"__asan_init" in w.FAKE.read_bytes() or b"__tsan_init" in w.FAKE.read_bytes()


class Score(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ctw-")
        self.addCleanup(folder.cleanup)
        self.dir = Path(folder.name)
        (self.dir / "m").mkdir()
        self.out, self.meta = self.dir / "out.jsonl", self.dir / "out.jsonl.meta.json"

    def start(self, *args, before="exec", stderr=subprocess.PIPE, **engine):
        env = os.environ | {f"CTW_FAKE_{k.upper()}": str(v) for k, v in engine.items()}
        argv = [str(w.FAKE), "score", "--model", str(self.dir / "m"), *map(str, args)]
        p = subprocess.Popen(["sh", "-c", f'{before} "$0" "$@"', *argv], env=env,
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True)
        self.addCleanup(self.end, p)
        return p

    @staticmethod
    def end(p):
        p.kill()
        p.wait()
        for f in (p.stdin, p.stdout, p.stderr):
            with contextlib.suppress(BrokenPipeError):
                if f is not None:
                    f.close()

    def run_score(self, *args, text=TEXT, **kw):
        p = self.start(*args, **kw)
        out, err = p.communicate(text, timeout=60 * w.PATIENCE)
        self.assertNotIn("Sanitizer", err)
        return subprocess.CompletedProcess(p.args, p.returncode, out, err)

    def check(self, text, n=None):
        """Checks that the text is whole lines: the first n results of ITEMS."""
        self.assertTrue(text == "" or text.endswith("\n"), text[-80:])
        lines = [json.loads(line) for line in text.splitlines()]
        self.assertEqual([x["id"] for x in lines], list(range(len(lines))))
        for x in lines:
            self.assertEqual(x["sum"], w.expect_pair(*ITEMS[x["id"]])[0])
        if n is not None:
            self.assertEqual(len(lines), n)
        return len(lines)


class Numbers(Score):
    PAIRS = [([1, 2, i], [3]) for i in range(4, 44)]

    def score(self, *args, pairs=None, **kw):
        text = "".join(json.dumps({"context": c, "continuation": k}) + "\n"
                       for c, k in pairs or self.PAIRS)
        return self.run_score("--pass-tokens", 6, *args, text=text, **kw)

    def test_scores(self):
        got = self.score()
        self.assertEqual(got.returncode, 0, got.stderr)
        lines = [json.loads(line) for line in got.stdout.splitlines()]
        self.assertEqual([x["sum"] for x in lines], [w.expect_pair(*p)[0] for p in self.PAIRS])
        self.assertRegex(got.stderr, r": 120 tokens in ")

    def test_a_full_disk_is_named(self):
        for got in (self.score("--out", "/dev/full"), self.score(before="exec >/dev/full; exec")):
            self.assertEqual(got.returncode, 74, got.stderr)
            self.assertIn("cannot write: No space left on device", got.stderr)
            self.assertNotIn("cancelled", got.stderr)

    def test_nan_in_the_middle_is_named(self):
        pairs = [*self.PAIRS[:10], ([1, 666, 2], [3]), *self.PAIRS[10:]]
        got = self.score(pairs=pairs, nan_token=666)
        self.assertEqual(got.returncode, 65, got.stderr)
        self.assertIn("line 11: scores are not finite", got.stderr)
        self.assertIn("layer 2", got.stderr)
        self.assertEqual(len(got.stdout.splitlines()), 10)
        self.assertRegex(got.stderr, r": 36 tokens in ")
        got = self.score("--pass-tokens", 256, "--out", "/dev/full", pairs=pairs, nan_token=666)
        self.assertIn("line 11: scores are not finite", got.stderr)  # not the full disk after it


class Record(Score):
    def test_beside_the_results(self):
        got = self.run_score("--out", self.out)
        self.assertEqual(got.returncode, 0, got.stderr)
        self.check(self.out.read_text(), len(ITEMS))
        meta = json.loads(self.meta.read_text())
        self.assertEqual((meta["complete"], meta["items"], meta["scored_tokens"]),
                         (True, len(ITEMS), 2 * len(ITEMS)))
        self.assertEqual((meta["identity"], meta["numerics"]), ("a" * 64, "fake-c/float32/1"))
        self.assertEqual((meta["path"], meta["dtype"], meta["activations"]),
                         (str(self.dir / "m"), "float32", ""))
        self.assertIn(f"numerics fake-c/float32/1, identity {'a' * 64}", got.stderr)

    def test_of_standard_output_only_when_asked_for(self):
        got = self.run_score()
        self.check(got.stdout, len(ITEMS))
        self.assertEqual([p.name for p in self.dir.iterdir()], ["m"])
        got = self.run_score("--meta", self.meta)
        self.check(got.stdout, len(ITEMS))
        self.assertEqual(json.loads(self.meta.read_text())["items"], len(ITEMS))

    def test_longer_old_files_are_replaced(self):
        self.meta.write_text("x" * 5000)
        self.out.write_text("x" * 1_000_000)
        self.assertEqual(self.run_score("--out", self.out).returncode, 0)
        self.assertTrue(json.loads(self.meta.read_text())["complete"])
        self.check(self.out.read_text(), len(ITEMS))

    def test_none_beside_a_descriptor(self):
        got = self.run_score("--out", "/dev/fd/1", before=f"exec >{self.out}; exec")
        self.assertEqual(got.returncode, 0, got.stderr)
        self.check(self.out.read_text(), len(ITEMS))

    def test_the_first_record_is_replaced_by_a_shorter_one(self):
        """Of 4 items and 8 tokens, complete: one byte less than of 0 and 0, not complete."""
        self.assertEqual(self.run_score("--out", self.out, text="".join(TEXT.splitlines(True)[:4])).returncode, 0)
        self.assertEqual(self.meta.read_text().count("\n"), 1)

    def test_of_a_killed_run_is_not_complete(self):
        p = self.start("--out", self.out, **SLOW)
        p.stdin.write(TEXT)
        p.stdin.flush()
        end = time.monotonic() + 20 * w.PATIENCE
        while not (self.out.exists() and self.out.stat().st_size):
            self.assertLess(time.monotonic(), end)
            time.sleep(0.02)
        p.kill()
        p.wait()
        meta = json.loads(self.meta.read_text())
        self.assertFalse(meta["complete"])
        self.assertEqual(meta["numerics"], "fake-c/float32/1")


class Refused(Score):
    def refused(self, code, part, *args):
        start = time.monotonic()
        got = self.run_score(*args, open_ms=300000)
        self.assertLess(time.monotonic() - start, 100, "it loaded the model first")
        self.assertEqual(got.returncode, code, got.stderr)
        self.assertIn(part, got.stderr)
        self.assertEqual(len(got.stderr.splitlines()), 1)

    def test_before_the_model_is_loaded(self):
        self.refused(66, "none/out.jsonl: cannot open the file for writing", "--out", self.dir / "none/out.jsonl")
        self.refused(74, "m: cannot open the file for writing", "--out", self.dir / "m")
        self.refused(66, "none.jsonl: cannot read the input", "--in", self.dir / "none.jsonl")
        self.refused(74, "m: found a folder", "--in", self.dir / "m")
        self.refused(66, "none/meta: cannot open the file for writing", "--out", self.out, "--meta",
                     self.dir / "none/meta")
        self.assertFalse(self.out.exists())

    def test_one_file_for_two_purposes(self):
        self.out.write_text(TEXT)
        self.refused(64, "the output is the same file as the input", "--in", self.out, "--out", self.out)
        self.refused(64, "the record is the same file as", "--out", self.out, "--meta", self.out)
        self.refused(64, "the record is the same file as", "--in", self.out, "--meta", self.out)
        self.assertEqual(self.out.read_text(), TEXT)

    def test_old_results_stay_until_the_first_line_is_good(self):
        self.out.write_text("old\n")
        got = self.run_score("--out", self.out, text="{\n")
        self.assertEqual(got.returncode, 65, got.stderr)
        self.assertIn("line 1", got.stderr)
        self.assertEqual(self.out.read_text(), "old\n")
        self.assertFalse(self.meta.exists())


class BadModel(Score):
    def test_the_message_names_the_folder(self):
        folder = self.dir / "broken"
        folder.mkdir()
        got = self.run_score("--model", folder)  # the last --model counts
        self.assertEqual(got.returncode, 65, got.stderr)
        self.assertIn(f"error: score: {folder}: ", got.stderr)


class Streaming(Score):
    def test_a_result_comes_before_the_next_line(self):
        p = self.start()
        for i, line in enumerate(TEXT.splitlines()[:5]):
            p.stdin.write(line + "\n")
            p.stdin.flush()
            self.assertTrue(select.select([p.stdout], [], [], 20 * w.PATIENCE)[0], f"line {i}")
            self.assertEqual(json.loads(p.stdout.readline())["id"], i)
        p.stdin.close()
        self.assertEqual(p.wait(20 * w.PATIENCE), 0)

    def test_a_bad_line_comes_after_the_results_of_those_before(self):
        lines = TEXT.splitlines(keepends=True)
        got = self.run_score("--out", self.out, text="".join([*lines[:1500], "\n{]\n", *lines[1500:]]))
        self.assertEqual(got.returncode, 65, got.stderr)
        self.assertIn("line 1502", got.stderr)
        self.check(self.out.read_text(), 1500)
        meta = json.loads(self.meta.read_text())
        self.assertEqual((meta["complete"], meta["items"]), (False, 1500))

    def test_file_and_pipe_and_any_pass_give_one_text(self):
        source = self.dir / "in.jsonl"
        source.write_text(TEXT)
        texts = {self.run_score("--in", source, text="").stdout, self.run_score().stdout,
                 self.run_score("--pass-tokens", "7").stdout}
        self.assertEqual(len(texts), 1)
        self.check(texts.pop(), len(ITEMS))

    def test_nothing_to_score(self):
        got = self.run_score("--out", self.out, text="\n")
        self.assertEqual((got.returncode, self.out.read_text()), (0, ""), got.stderr)
        meta = self.meta.read_text()
        self.assertEqual((json.loads(meta)["items"], meta.index("\n")), (0, len(meta) - 1))
        got = self.run_score(text='{"tokens": [1]}\n' * 1000)
        self.assertEqual((got.returncode, len(got.stdout.splitlines())), (0, 1000), got.stderr)

    @staticmethod
    def memory(p):
        """The most that was held so far, in KiB."""
        status = Path(f"/proc/{p.pid}/status").read_text()
        return next(int(x.split()[1]) for x in status.splitlines() if x.startswith("VmHWM"))

    @unittest.skipIf(SANITIZED, "sanitizers keep what was freed")
    def test_memory_does_not_grow_with_the_input(self):
        def write(n):
            p.stdin.write('{"tokens": [1, 2, 3, 4]}\n' * n)
            p.stdin.flush()
            return self.memory(p)

        p = self.start("--out", "/dev/null")
        before = write(10_000)
        self.assertLess(write(200_000) - before, 16 << 10, "KiB")  # more than 30 MB if all lines were held
        p.communicate(timeout=60 * w.PATIENCE)
        self.assertEqual(p.returncode, 0)

    @unittest.skipIf(SANITIZED, "sanitizers keep what was freed")
    def test_memory_does_not_grow_with_results_that_nobody_reads(self):
        source = self.dir / "in.jsonl"
        most = []
        for n in (10_000, 300_000):
            source.write_text('{"tokens": [1, 2, 3, 4]}\n' * n)
            p = self.start("--in", source)
            time.sleep(1)
            most.append(self.memory(p))
            self.end(p)
        self.assertLess(most[1] - most[0], 16 << 10, "KiB")


class Ends(Score):
    def test_a_size_limit_leaves_whole_lines(self):
        got = self.run_score("--out", self.out, before="ulimit -f 64; exec")
        self.assertEqual(got.returncode, 74, got.stderr)
        self.assertIn("out.jsonl: cannot write: File too large; the file ends after ", got.stderr)
        n = self.check(self.out.read_text())
        self.assertGreater(n, 100)
        meta = json.loads(self.meta.read_text())
        self.assertEqual((meta["complete"], meta["items"], meta["scored_tokens"]), (False, n, 2 * n))

    def test_a_size_limit_of_standard_output_leaves_whole_lines(self):
        """What was in the file before stays; what the shell writes afterwards follows the last line."""
        for to in (">>", ">"):
            self.out.write_text("kept\n")
            got = self.run_score("--threads", "1", before=f"ulimit -f 64; exec {to}{self.out}; "
                                 'run() { "$@"; code=$?; echo end; exit $code; }; run')
            self.assertEqual(got.returncode, 74, got.stderr)
            text = self.out.read_text()
            self.assertEqual(text.startswith("kept\n"), to == ">>")
            self.assertTrue(text.endswith("\nend\n"), text[-80:])
            self.check(text.removeprefix("kept\n").removesuffix("end\n"))

    def test_a_full_disk_ends_it_while_the_input_is_silent(self):
        p = self.start("--out", "/dev/full")
        p.stdin.write(TEXT[:TEXT.index("\n") + 1])
        p.stdin.flush()
        self.assertEqual(p.wait(20 * w.PATIENCE), 74)
        self.assertIn("No space left on device", p.stderr.read())

    def test_signals_leave_whole_lines(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            p = self.start("--out", self.out, **SLOW)
            p.stdin.write(TEXT)  # the pipe stays open
            p.stdin.flush()
            time.sleep(1)
            p.send_signal(number)
            self.assertEqual(p.wait(20 * w.PATIENCE), 128 + number)
            n = self.check(self.out.read_text())
            last = p.stderr.read().splitlines()[-1]
            self.assertRegex(last, f"interrupted after {n} items: {self.out} keeps them; to go on, .* from item {n + 1} on")
            self.assertEqual(json.loads(self.meta.read_text())["items"], n)

    def test_a_signal_ends_the_wait_for_input(self):
        p = self.start()
        p.stdin.write(TEXT[:TEXT.index("\n") + 1])
        p.stdin.flush()
        p.stdout.readline()
        p.send_signal(signal.SIGINT)
        self.assertEqual(p.wait(20 * w.PATIENCE), 130)


class Terminal(Score):
    def shown(self, *args, text):
        """The progress that is drawn on a terminal on standard error."""
        ours, its = pty.openpty()
        p = self.start(*args, stderr=its, us_per_token=1000)
        os.close(its)
        p.stdin.write(text)
        p.stdin.close()
        drawn = b""
        with contextlib.suppress(OSError):  # the last user of the terminal has ended
            while got := os.read(ours, 4096):
                drawn += got
        os.close(ours)
        self.assertEqual(p.wait(20 * w.PATIENCE), 0)
        return drawn.decode()

    def test_a_file_has_an_estimate_and_a_pipe_has_none(self):
        source, text = self.dir / "in.jsonl", TEXT[:TEXT.index('{"id": 300')]
        source.write_text(text)
        drawn = self.shown("--in", source, "--out", self.out, text="")
        self.assertRegex(drawn, r"\d+ of about 1\d{3} tokens \(\d+ %\), \d+ tokens/s, \d+:\d\d left, pass")
        self.assertIn(": 1200 tokens in ", drawn)
        drawn = self.shown("--out", self.out, text=text)
        self.assertRegex(drawn, r"\r\d+ tokens, \d+ tokens/s, pass \d+, layer")
        self.assertNotIn("about", drawn)


if __name__ == "__main__":
    unittest.main()
