"""What the planner chooses, and what it says of it beforehand: for this machine, and for one that is described."""

import re
import sys
import unittest
from pathlib import Path

import worker_process as w
from real_worker import WORKER, Checkpoints, environment, run

sys.path.insert(0, str(w.ROOT / "tests/tools"))
import planned_machines  # noqa: E402

CHECKPOINTS = Checkpoints({
    "large": ("llama", "bf16", {"layers": 40, "hidden": 512, "inner": 1024, "heads": 4, "kv_heads": 2, "head": 128}),
    # an embedding and a head of 6 MiB; a layer has 4.5
    "wide": ("llama", "bf16", {"layers": 1, "hidden": 64, "inner": 12288, "heads": 2, "kv_heads": 1, "head": 32}),
    "headed": ("llama", "bf16", {"layers": 12, "hidden": 512, "inner": 1024, "heads": 4, "kv_heads": 2, "head": 128,
                                 "vocab": 6000})})
setUpModule, tearDownModule, model = CHECKPOINTS.write, CHECKPOINTS.remove, CHECKPOINTS.path
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def weights_lines(text):
    kinds = "mapped|resident|sharded|streamed|needs|passes|each device|every pass|about"
    return re.findall(rf"^(?:ctworker: )?weights: ((?:{kinds})[ ,].*)$", text, re.MULTILINE)


def bytes_of(text):
    number, unit = text.split()
    return float(number) * UNITS[unit]


def bytes_of_tensors(path):
    with path.open("rb") as f:
        return path.stat().st_size - 8 - int.from_bytes(f.read(8), "little")


def plan(*options, name="large"):
    done = run("inspect", *options, model(name))
    assert done.returncode == 0, done.stderr
    return weights_lines(done.stdout)


class Described(unittest.TestCase):
    """GPUs of 0.9 to 2 GiB, of which 600 MiB are not free and a pass takes about 500 MiB; the weights are 181 MiB."""

    def test_what_fits_is_resident(self):
        lines = plan("--devices", 3, "--device-memory", "2GiB")
        self.assertRegex(lines[0], r"^resident, [\d.]+ MiB on each device$")
        self.assertRegex(lines[1], r"^each device needs .* of the 1\.4 GiB that were free: ")
        self.assertRegex(lines[2], r"^every pass computes for about .* s with \d+ tokens: bound by computing$")
        self.assertRegex(lines[3], r"^about \d+ tokens/s on all devices together, by 150 TFLOP/s \(assumed\)$")

    def test_the_arithmetic(self):
        lines = plan("--device-memory", "2GiB", "--weights-limit", "30MiB", "--placement", "streamed",
                     "--host-memory", "50MiB", "--disk-rate", "1MiB", "--compute-rate", 2000)
        found = re.search(r"reads ([\d.]+ .iB) at about 1\.0 MiB/s, which takes ([\d.]+) s, and computes for about "
                          r"([\d.]+) s with (\d+) tokens: bound by reading$", lines[2])
        self.assertIsNotNone(found, lines)
        read_s = float(found[2])
        self.assertAlmostEqual(bytes_of(found[1]) / (1 << 20) / read_s, 1, delta=0.01)
        rate = re.match(r"about (\d+) tokens/s, by 2 TFLOP/s \(described\), reading from the disk \(described\)$", lines[3])
        self.assertIsNotNone(rate, lines)
        self.assertAlmostEqual(int(rate[1]) * read_s / int(found[4]), 1, delta=0.02)

    def test_devices_share_the_disk_and_not_the_link(self):
        def rate(devices, host):
            lines = plan("--devices", devices, "--device-memory", "2GiB", "--placement", "streamed", "--disk-rate", "8MiB",
                         "--host-rate", "16MiB", "--host-memory", host)
            return bytes_of(re.search(r"at about ([\d.]+ .iB)/s", lines[2])[1]) / (1 << 20)
        self.assertEqual([rate(1, "50MiB"), rate(4, "50MiB"), rate(1, "1GiB"), rate(4, "1GiB")], [8, 2, 16, 16])

    def test_passes_grow_until_reading_hides(self):
        tokens = []
        for rate in ("1GB", "20MB"):
            lines = plan("--device-memory", "2GiB", "--placement", "streamed", "--disk-rate", rate, "--host-memory", "1MiB",
                         "--compute-rate", 2000)
            found = re.search(r"with (\d+) tokens: bound by computing$", lines[2])
            self.assertIsNotNone(found, lines)
            tokens.append(int(found[1]))
        self.assertGreater(tokens[1], tokens[0])

    def test_sharded(self):
        lines = plan("--devices", 4, "--device-memory", "2GiB", "--placement", "sharded", "--peer-rate", "10MiB")
        self.assertRegex(lines[0], r"^sharded, .* over 4 devices, .* of memory on each: \d+ of 42 layers whole, 1/4 of")
        self.assertRegex(lines[2], r"^every pass gathers [\d.]+ MiB at about 10\.0 MiB/s, which takes [\d.]+ s, and .*: "
                         r"bound by gathering$")
        self.assertRegex(lines[3], r"the link between devices \(described\)$")

    def test_rings_of_shards_hold_the_next_layer(self):
        """With any limit that is enough: more memory never makes gathering wait. With all the memory, all layers stay."""
        options = ("--devices", 2, "--device-memory", "2GiB", "--placement", "sharded", "--weights-limit")
        n_enough = 0
        for limit in [*range(70, 140), 800]:
            done = run("inspect", *options, f"{limit * 512}KiB", model("headed"))
            if done.returncode == 0:
                n_enough += 1
                lines = weights_lines(done.stdout)
                self.assertNotIn("one after the other", lines[2], (limit, lines))
                self.assertIn("14 of 14" if limit == 800 else "sharded, ", lines[0])
        self.assertGreater(n_enough, 8)

    def test_a_ring_of_one_layer_waits(self):
        lines = plan("--device-memory", "2GiB", "--placement", "streamed", "--weights-limit", "6MiB", "--disk-rate", "1MiB",
                     "--host-memory", "50MiB", "--compute-rate", 20)
        found = re.search(r"takes ([\d.]+) s, and computes for about ([\d.]+) s with (\d+) tokens: bound by .*, one after the "
                          r"other$", lines[2])
        self.assertIsNotNone(found, lines)
        seconds = float(found[1]) + float(found[2])
        self.assertAlmostEqual(int(re.match(r"about (\d+) ", lines[3])[1]) * seconds / int(found[3]), 1, delta=0.02)

    def test_host_memory(self):
        """What neither stays nor is sharded comes from host memory, as far as that is allowed, else from the files."""
        def moved(limit):
            lines = plan("--devices", 2, "--device-memory", "2GiB", "--weights-limit", "60MiB", "--placement", "sharded",
                         "--host-rate", "16MiB", *(["--host-memory-limit", limit] if limit else []))
            return [bytes_of(re.search(rf"{what} ([\d.]+ .iB) at", lines[2])[1]) if what in lines[2] else 0
                    for what in ("gathers", "copies from host memory", "reads")]
        for limit, files in (("1GiB", False), ("20MiB", True)):
            gathered, hosted, read = moved(limit)
            self.assertGreater(gathered, 0)
            self.assertGreater(hosted, 0)
            self.assertEqual(read > 0, files)
            self.assertLessEqual(hosted, (1 << 30) if limit == "1GiB" else 20 * (1 << 20))
        done = run("inspect", "--backend", "cpu", "--host-memory-limit", "1GiB", model("large"))
        self.assertEqual(done.returncode, 64)
        self.assertIn("use --weights-limit", done.stderr)

    def test_devices_that_share_what_one_has_read(self):
        """Each reads a quarter, and takes the rest from the others, if these links are the faster ones."""
        for what, rate, options in (("copies from host memory", 16, ("--host-memory-limit", "1GiB")),
                                    ("reads", 2, ("--disk-rate", "8MiB", "--host-memory", "50MiB"))):
            moved = {}
            for peer in ("10MiB", "320MiB"):
                lines = plan("--devices", 4, "--device-memory", "2GiB", "--weights-limit", "60MiB", "--placement", "streamed",
                             "--host-rate", "16MiB", "--peer-rate", peer, "--compute-rate", 1000000, *options)
                found = dict(re.findall(r"(reads|copies from [\w ]+?) ([\d.]+ .iB at about [\d.]+ .iB/s, which takes [\d.]+ s)",
                                        lines[2]))
                self.assertIn(f"at about {rate}.0 MiB/s", found[what], lines)
                moved[peer] = {k: bytes_of(v.split(" at ")[0]) for k, v in found.items()}
                seconds = sum(float(re.search(r"takes ([\d.]+) s", v)[1]) for v in found.values())
            alone, shared = moved["10MiB"][what], moved["320MiB"][what]
            self.assertEqual(list(moved["10MiB"]), [what])
            self.assertAlmostEqual(4 * shared / alone, 1, delta=0.01)
            self.assertAlmostEqual(moved["320MiB"]["copies from neighbours"] / (3 * shared), 1, delta=0.01)
            self.assertIn("the link between devices (described)", lines[3])
            tokens = int(re.search(r"with (\d+) tokens: bound by reading", lines[2])[1])
            self.assertAlmostEqual(int(re.match(r"about (\d+) ", lines[3])[1]) * seconds / (4 * tokens), 1, delta=0.02)

    def test_without_a_gpu(self):
        lines = plan("--backend", "cpu", "--host-memory", "60MiB", "--disk-rate", "1GB", "--compute-rate", 100)
        self.assertRegex(lines[0], r"^streamed, .* MiB in [\d.]+ MiB of memory: \d+ of 42 layers stay, ")
        self.assertRegex(lines[3], r"by 0\.1 TFLOP/s \(described\), reading from the disk \(described\)$")
        self.assertRegex(plan("--backend", "cpu", "--host-memory", "200MiB")[0], r"^mapped, [\d.]+ MiB$")

    def test_refusals(self):
        for options, code, part in (
                (("--devices", "0-1", "--device-memory", "2GiB"), 64, "with --device-memory it is the number of GPUs"),
                (("--devices", "17", "--device-memory", "2GiB"), 64, "1 to 16"),
                (("--device-memory", "700MiB"), 71, "raise --memory-limit"),
                (("--device-memory", "2GiB", "--backend", "cpu"), 64, "leave it or --backend cpu out"),
                (("--device-memory", "2GiB", "--placement", "streamed", "--host-memory", "10MiB", "--host-memory-limit",
                  "1GiB"), 71, "would be locked, but 10.0 MiB are available")):
            done = run("inspect", *options, model("large"))
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertIn(part, done.stderr)


class LittleHostMemory(unittest.TestCase):
    """The CPU's default on machines and in control groups of any size: all is within what is free, or refused. "wide" takes
    100 MiB for passes at full rate, "large" has 181 MiB of weights."""

    @staticmethod
    def plan(name, memory, *options):
        return run("inspect", "--backend", "cpu", "--threads", 2, "--host-memory", memory, *options, model(name))

    def test_enough(self):
        """A quarter of what is free, at least 512 MiB, as long as that is there."""
        for memory, limit in (("24GiB", "6.0 GiB"), ("1GiB", "512.0 MiB"), ("640MiB", "512.0 MiB"), ("256MiB", "200.0 MiB")):
            done = self.plan("wide", memory)
            self.assertIn(f"(limit {limit})", done.stdout, done.stderr)

    def test_all_is_within_it(self):
        placed = set()
        for name in ("wide", "large"):
            for mib in (1024, 512, 384, 256, 200, 128, 96, 64):
                done = self.plan(name, f"{mib}MiB")
                self.assertEqual(done.returncode, 0, done.stderr)
                lines = weights_lines(done.stdout)
                found = re.search(r"([\d.]+ .iB) for weights, ([\d.]+ .iB) for passes|^passes need ([\d.]+ .iB) of", lines[1])
                placed.add(("mapped" if found[3] else "whole", lines[0].split(",")[0]))
                needs = bytes_of(found[3]) if found[3] else bytes_of(found[1]) + bytes_of(found[2])
                self.assertLess(needs, (mib - 12) << 20, lines)
        self.assertEqual(placed, {("whole", "mapped"), ("whole", "streamed"), ("mapped", "mapped")})

    def test_too_little(self):
        for options, remedy in (((), "or lower --max-length"), (("--pass-tokens", 4096), "or lower --pass-tokens"),
                                (("--memory-limit", "4GiB"), "or lower --max-length"),
                                (("--placement", "resident"), "")):
            done = self.plan("large", "34MiB", *options)
            self.assertEqual(done.returncode, 71, done.stdout)
            self.assertRegex(done.stderr, "^ctworker: error: inspect: .* needs .* beyond the weights, but the memory that is free "
                                          "leaves .*: end other programs or raise the limit of the container or control "
                                          f"group.*{remedy}")


class Links(unittest.TestCase):
    """Fake GPUs take at least 0.2 s for a copy of any size, and twice that without a path: 32 MiB at a time."""

    def gathering(self, *options, **gpu):
        done = run("inspect", "--backend", "cuda", "--devices", "0-2", "--placement", "sharded", *options, model("large"),
                   **{"count": 3, "copy_us": 200000} | gpu)
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = weights_lines(done.stdout)
        return bytes_of(re.search(r"gathers .* at about ([\d.]+ .iB)/s", lines[2])[1]) / (1 << 20), lines[3]

    def test_peers(self):
        rate, source = self.gathering()
        self.assertTrue(0 < rate <= 160, rate)
        self.assertRegex(source, r"the link between devices \(measured\)$")
        rate, source = self.gathering(no_path="0,1,0")
        self.assertTrue(0 < rate <= 80, rate)
        self.assertRegex(source, r"the link between devices \(measured, through the host\)$")

    def test_what_is_not_measured(self):
        rate, source = self.gathering("--peer-rate", "5MiB")
        self.assertEqual(rate, 5)
        self.assertRegex(source, r"\(described\)$")
        _, source = self.gathering("--devices", "0-7", count=8, memory=60 << 20)  # no room for it
        self.assertRegex(source, r"the link between devices \(assumed\)$")

    def test_host(self):
        done = run("inspect", "--backend", "cuda", "--placement", "streamed", "--weights-limit", "20MiB", "--host-memory-limit",
                   "1GiB", model("large"), copy_us=200000)
        found = re.search(r"copies from host memory .* at about ([\d.]+ .iB)/s", done.stdout)
        self.assertTrue(0 < bytes_of(found[1]) / (1 << 20) <= 160, done.stdout)
        self.assertIn("from host memory (measured)", done.stdout)


class OnePlanner(unittest.TestCase):
    def test_inspect_the_log_and_info_say_the_same(self):
        """All but measured rates, and what follows from them."""
        options = ("--threads", "2", "--backend", "cuda", "--devices", "0-2", "--memory-limit", "40MiB")
        for memory, more in ((256, ()), (90, ()), (256, ("--placement", "sharded")), (60, ("--placement", "streamed"))):
            gpu = {"memory": memory << 20, "count": 3}
            said = weights_lines(run("inspect", *options, *more, model("large"), **gpu).stdout)
            with w.Worker(*options, *more, program=WORKER, models=[model("large")], env=environment(**gpu)) as a:
                log = weights_lines(a.text())
                info = [x.strip() for x in re.search(r"^  weights     (.*(?:\n {14}.*)*)", a.command("info").stdout,
                                                     re.MULTILINE)[1].split("\n")]
            self.assertEqual(log, info)
            self.assertEqual(len(info), 4)
            self.assertEqual(info[:2], said[:2])
            self.assertEqual(re.sub(r"about .*?/s|takes .*? s", "", info[2]), re.sub(r"about .*?/s|takes .*? s", "", said[2]))


class Halves(unittest.TestCase):
    def test_weights_of_two_devices_take_hardly_more_than_half(self):
        """Each of two devices holds an 8B model of 4 bits, whose embedding and head are more than a third of it, and a 70B
        model in 0.52 of the weights."""
        for name in ("8B", "70B"):
            folder = planned_machines.checkpoint(CHECKPOINTS.folder, name)
            weights = sum(bytes_of_tensors(path) for path in Path(folder).glob("*.safetensors"))
            options = ("--devices", 2, "--device-memory", "80GB", "--placement", "sharded", "--weights-limit")
            done = run("inspect", *options, int(0.52 * weights), folder)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertRegex(weights_lines(done.stdout)[0], r"^sharded, ")
            done = run("inspect", *options, int(0.505 * weights), folder)
            self.assertIn("raise --weights-limit", done.stderr)


class Table(unittest.TestCase):
    def test_it_is_made_again(self):
        """docs/ARCHITECTURE.md has the planner's choices of today for the two smaller models."""
        text = (w.ROOT / "docs/ARCHITECTURE.md").read_text()
        for row in planned_machines.rows(WORKER, CHECKPOINTS.folder, models=("8B", "123B")):
            self.assertIn(row, text, "run tests/tools/planned_machines.py")


if __name__ == "__main__":
    unittest.main()
