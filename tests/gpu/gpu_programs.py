"""Shared by tests/gpu/run and tests/gpu/bench: the paths of the programs and CUDA's libraries, calls with a
time limit, generated checkpoints, and a client of a running worker."""

import glob
import importlib.util
import json
import os
import random
import re
import shutil
import signal
import site
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TOOLS = ROOT / "tests/tools"
SHIM = "libgpu_fault.so"  # fault_shim.cu
# Unless CTWORKER_GOLDEN and CTWORKER_GOLDEN_FAMILIES, or a bundle, name folders.
GOLDEN, GOLDEN_FAMILIES = ROOT / "../shared/data/golden", ROOT / "../shared/data/golden_families"


class Late(Exception):
    """A command ran past its limit."""


class Refused(Exception):
    """A command ended with an exit status other than 0."""

    def __init__(self, done, argv):
        lines = [x for x in (done.stderr or done.stdout).splitlines() if x.strip()]
        super().__init__(f"{Path(str(argv[0])).name}: exit status {done.returncode}: "
                         f"{lines[-1] if lines else '(no message)'}")
        self.code = done.returncode


def call(argv, limit_s, env=None, text=""):
    """Like subprocess.run with both outputs as text, but no process that it started outlives the limit."""
    argv = [str(a) for a in argv]
    with tempfile.TemporaryFile("w+") as given:
        given.write(text)
        given.seek(0)
        child = subprocess.Popen(argv, stdin=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                 text=True, errors="replace", env=env, start_new_session=True)
        try:
            out, err = child.communicate(timeout=max(1.0, limit_s))
        except subprocess.TimeoutExpired as e:
            raise Late(f"{Path(argv[0]).name} took more than {limit_s:.0f} s") from e
        finally:
            try:
                os.killpg(child.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            child.wait()
    return subprocess.CompletedProcess(argv, child.returncode, out, err)


# ---- libraries -----------------------------------------------------------------------------------

def library_folders():
    """Folders in which CUDA's own libraries may be."""
    found = ["/usr/local/cuda/lib64", *glob.glob("/usr/local/cuda*/targets/*/lib")]
    packages = {sysconfig.get_path("purelib"), *sys.path}
    try:
        packages |= {*site.getsitepackages(), site.getusersitepackages()}
    except AttributeError:  # some virtual environments
        pass
    for folder in sorted(p for p in packages if p):
        found += sorted(glob.glob(os.path.join(folder, "nvidia/*/lib")))
    return found


def missing_libraries(programs, env):
    """Names of shared libraries that the programs need and the loader does not find."""
    names = set()
    for program in programs:
        out = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False,
                             env=env).stdout
        names |= set(re.findall(r"^\s*(\S+) => not found", out, re.MULTILINE))
    return names


def with_libraries(programs, own):
    """The environment in which the programs find their libraries, and the libraries that are still missing."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("CTW_")}
    path = [str(own)] if own else []
    path += [p for p in env.get("LD_LIBRARY_PATH", "").split(":") if p]
    env["LD_LIBRARY_PATH"] = ":".join(path)
    for folder in library_folders():
        wanted = missing_libraries(programs, env)
        if any(os.path.exists(os.path.join(folder, name)) for name in wanted):
            path.append(folder)
            env["LD_LIBRARY_PATH"] = ":".join(path)
    return env, missing_libraries(programs, env)


# ---- programs ------------------------------------------------------------------------------------

class Programs:
    """Paths of one bundle or build folder, and the environment to run them in."""

    def __init__(self, bundle=None, build=None, scratch=None):
        if bundle:
            place = Path(bundle).resolve()
            self.worker, self.invariance = place / "bin/ctworker", place / "bin/invariance"
            self.library, own = place / "bin/libctworker_cuda.so", place / "lib"
            self.tests, self.golden = place / "bin", place / "golden"
            self.golden_folders = [self.golden]
        else:
            place, own = Path(build).resolve(), None
            self.worker, self.invariance = place / "worker/ctworker", place / "tests/invariance"
            self.library = place / "kernels/cuda/libctworker_cuda.so"
            self.tests = place / "tests/gpu"
            self.golden = Path(os.environ.get("CTWORKER_GOLDEN", GOLDEN)).resolve()
            self.golden_folders = [
                self.golden, Path(os.environ.get("CTWORKER_GOLDEN_FAMILIES", GOLDEN_FAMILIES)).resolve()]
        for path in (self.worker, self.library):
            if not path.exists():
                raise SystemExit(f"{path} is not there: build it, or name another --bundle or --build")
        self.env, self.missing = with_libraries(
            [self.worker, self.library], own if own and own.is_dir() else None)
        # Choices of GEMM algorithms are kept for one run only.
        if scratch:
            self.env["XDG_CACHE_HOME"] = str(Path(scratch) / "cache")

    def test_programs(self):
        return sorted(p for p in self.tests.glob("test_*")
                      if p.is_file() and os.access(p, os.X_OK) and p.suffix == "")

    def score(self, model, items, *options, limit_s=120, env=None):
        """(results by order, stderr) of one `ctworker score`. Raises Refused, Late."""
        argv = [self.worker, "score", "--model", model, *options]
        text = "".join(json.dumps(item) + "\n" for item in items)
        done = call(argv, limit_s, self.env | (env or {}), text)
        if done.returncode:
            raise Refused(done, argv)
        results = [json.loads(line) for line in done.stdout.splitlines()]
        if [r["id"] for r in results] != [i["id"] for i in items]:
            done.returncode, done.stderr = 1, "results are missing or out of order"
            raise Refused(done, argv)
        return results, done.stderr


def make_checkpoint(folder, shape, fmt, *options, limit_s=300):
    """Writes a generated checkpoint unless it exists. Returns its folder."""
    folder = Path(folder)
    if not (folder / "config.json").exists():
        argv = [sys.executable, TOOLS / "make_checkpoint.py", shape, folder, "--format", fmt, *options]
        done = call(argv, limit_s, os.environ | {"OPENBLAS_NUM_THREADS": "1"})
        if done.returncode:
            raise Refused(done, argv)
    return folder


def weight_files(folder):
    """The files of a checkpoint's tensors."""
    return [p for p in sorted(Path(folder).iterdir()) if p.suffix in (".safetensors", ".gguf")]


def weight_bytes(folder):
    """Bytes of the tensors in a checkpoint, without the headers; of a GGUF file (few KiB of header), all."""
    total = 0
    for path in weight_files(folder):
        total += path.stat().st_size
        if path.suffix == ".safetensors":
            with open(path, "rb") as f:
                total -= 8 + int.from_bytes(f.read(8), "little")
    return total


def has_module(name):
    return importlib.util.find_spec(name) is not None


def gpu_line():
    """Name, driver and memory of the first GPU; None: this machine has no GPU."""
    if not shutil.which("nvidia-smi"):
        return None
    done = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version,memory.used,memory.total",
                           "--format=csv,noheader"], capture_output=True, text=True, check=False)
    lines = done.stdout.strip().splitlines()
    return lines[0] if done.returncode == 0 and lines else None


def n_gpus():
    """GPUs that the worker sees: CUDA_VISIBLE_DEVICES may hide some."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([x for x in visible.split(",") if x.strip()])
    done = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, check=False)
    return len(done.stdout.strip().splitlines())


def compute_capability():
    """Compute capability of the first GPU: 90 for 9.0."""
    text = subprocess.run(["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"],
                          capture_output=True, text=True, check=True).stdout.split()[0]
    return int(text.replace(".", ""))


# ---- items and results ---------------------------------------------------------------------------

def bits(results):
    """(its sequence, text of its numbers) of every result; equal text is equal bits."""
    return [(r["id"] if isinstance(r["id"], int) else r["id"][1],
             json.dumps([r["logprobs"], r["greedy"], r["sum"]])) for r in results]


def wide_items(model, lengths, seed):
    """Random sequences; every third shares a prefix."""
    vocab = json.loads((model / "config.json").read_text())["vocab_size"]
    rng = random.Random(seed)
    common = [rng.randrange(vocab) for _ in range(max(lengths))]
    return [{"id": i, "tokens": common[:n] if i % 3 == 0
             else [rng.randrange(vocab) for _ in range(n)]} for i, n in enumerate(lengths)]


def hazards(said):
    """Of compute-sanitizer's lines: what it found in our kernels, and how often in cuBLASLt's (racecheck
    does not see all that those of CUDA 13 wait for). What it kept to itself may be ours."""
    found = [x for x in said if x.startswith("Error:") or x.startswith("Warning:") or "Invalid" in x
             or "not printed" in x]
    theirs = [x for x in found if re.search(r" access at nvjet_", x)]
    return [x for x in found if x not in theirs], len(theirs)


# ---- a worker that serves ------------------------------------------------------------------------

class Served:
    """`ctworker serve` with one model, spoken to through the Python package's client."""

    def __init__(self, programs, model, *options, limit_s=120, env=None):
        sys.path.insert(0, str(ROOT / "harness_adapter/src"))
        from ctworker.client import connection as client, wire  # needs msgpack
        self._wire = wire
        self._dir = tempfile.TemporaryDirectory(prefix="ctw-gpu-")
        ready, self._log = Path(self._dir.name) / "ready", Path(self._dir.name) / "log"
        with open(self._log, "wb") as log:
            self.process = subprocess.Popen(
                [str(programs.worker), "serve", "--model", str(model), "--listen",
                 f"ipc://{self._dir.name}/w.sock", "--ready-file", str(ready), "--owner-pid",
                 str(os.getpid()), *map(str, options)], env=programs.env | (env or {}),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        end = time.monotonic() + limit_s
        while not ready.exists():
            if self.process.poll() is not None or time.monotonic() > end:
                text = self.text()
                self.close()
                raise Late(f"ctworker serve is not ready: {text[-300:]}")
            time.sleep(0.01)
        self.client = client.Connection(ready.read_text().strip())

    def text(self):
        return self._log.read_text(errors="replace")

    def submit(self, pairs, columns=("logprob", "greedy")):
        """Begins a job of (context, continuation) pairs; returns its id."""
        pack, job = self._wire.pack, self.client.new_job()
        items = {"tokens": pack([t for pair in pairs for side in pair for t in side]),
                 "n_context": pack([len(c) for c, _ in pairs]),
                 "n_continuation": pack([len(k) for _, k in pairs])}
        self.client.submit(job, 0, items, {"kind": "loglikelihood", "columns": list(columns)})
        self.client.seal(job, 1)
        return job

    def wait(self, job, limit_s=120):
        """The poll's reply when the job has ended. Raises Late."""
        end, seen = time.monotonic() + limit_s, 0
        while True:
            reply = self.client.poll(job, wait_ms=1000, seen=seen)
            seen = reply["items_done"]
            if reply["state"] in ("done", "failed", "canceled"):
                return reply
            if time.monotonic() > end:
                raise Late(f"a job took more than {limit_s:.0f} s")

    def result(self, job, n, limit_s=120):
        """Item -> (sum, log-probabilities, greedy ids). Raises Late."""
        reply = self.wait(job, limit_s)
        if reply["state"] != "done":
            raise Late(f"a job is {reply['state']}: {reply.get('error')}")
        out, first = {}, 0
        while first < n:
            reply = self.client.fetch(job, first)
            got = self._wire.decode_columns(reply["result"], reply["n"])
            at = 0
            for i in range(reply["n"]):
                to = at + got["count"][i]
                out[got["item"][i]] = (got["sum"][i], tuple(got.get("logprob", ())[at:to]),
                                       tuple(got.get("greedy", ())[at:to]))
                at = to
            first += reply["n"]
        self.client.release(job)
        return out

    def close(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()
        self._dir.cleanup()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.client.close()
        self.close()
