"""Shared by the parts of tests/gpu/bench: the torch process, the remaining time, and monitoring of the GPU."""

import json
import os
import queue
import statistics
import subprocess
import sys
import threading
import time

from gpu_programs import HERE, Late

MIB = 1 << 20


def say(*words):
    print("  ", *words, flush=True)


# ---- the torch process ---------------------------------------------------------------------------

class Peer:
    """bench_peer.py, started when first needed."""

    def __init__(self, clock, log):
        self.clock, self.log, self.process, self.answers = clock, log, None, queue.Queue()
        self.built = None  # the answer to `build`

    def ask(self, what, **fields):
        """The answer's map; {"error": ..} after a failure."""
        if self.process is None:
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / "bench_peer.py")], stdin=subprocess.PIPE, text=True,
                stdout=subprocess.PIPE, stderr=open(self.log, "w", encoding="utf-8"),
                env=os.environ | {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"})
            threading.Thread(target=self._read, daemon=True).start()
        if self.process.poll() is not None:
            return {"error": "the torch process ended"}
        self.process.stdin.write(json.dumps({"do": what, **fields}) + "\n")
        self.process.stdin.flush()
        try:
            answer = self.answers.get(timeout=self.clock.left())
        except queue.Empty as e:
            self.process.kill()
            raise Late(f"torch: {what} took too long") from e
        if "error" in answer:
            last = self.log.read_text(errors="replace").strip().splitlines()[-1:]
            say(f"torch: {what}: {answer['error']}", *(last if self.process.poll() else []))
        return answer

    def _read(self):
        for line in self.process.stdout:
            if line.startswith("{"):
                self.answers.put(json.loads(line))
        self.answers.put({"error": "the torch process ended"})

    def model(self, config):
        """Builds the dense model once; None if that fails."""
        if self.built is None:
            self.built = self.ask("build", config=config)
        return None if "error" in self.built else self.built

    def close(self):
        if self.process is not None:
            self.process.stdin.close()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


class Clock:
    def __init__(self, limit):
        self.start = time.monotonic()
        self.end = self.start + limit

    def left(self):
        left = self.end - time.monotonic()
        if left <= 1:
            raise Late("no time is left")
        return left


# ---- monitoring the GPU -----------------------------------------------------------------

class Watch:
    """Memory in use on the GPU, its power and clock, every few milliseconds while a block runs."""

    def __init__(self):
        self.samples, self._stop, self._thread = [], threading.Event(), None
        try:
            import pynvml
            pynvml.nvmlInit()
            self._nvml, self._handle = pynvml, pynvml.nvmlDeviceGetHandleByIndex(0)
        except Exception:  # the package is missing, or does not fit the driver
            self._nvml = None

    def sample(self):
        """(bytes used, watts, MHz)."""
        if self._nvml:
            n, h = self._nvml, self._handle
            return (n.nvmlDeviceGetMemoryInfo(h).used, n.nvmlDeviceGetPowerUsage(h) / 1e3,
                    n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_SM))
        out = subprocess.run(["nvidia-smi", "--query-gpu=memory.used,power.draw,clocks.sm",
                              "--format=csv,noheader,nounits"], capture_output=True, text=True,
                             check=True).stdout.splitlines()[0].split(",")
        return float(out[0]) * MIB, float(out[1]), float(out[2])

    def _run(self):
        while not self._stop.is_set():
            self.samples.append(self.sample())
            self._stop.wait(0.01)

    def __enter__(self):
        self.samples = [self.sample()]
        self.before = self.samples[0][0]
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()

    def summary(self):
        busy = self.samples[len(self.samples) // 4:]
        return {"peak_bytes": max(s[0] for s in self.samples) - self.before,
                "watts": statistics.mean(s[1] for s in busy),
                "mhz": statistics.mean(s[2] for s in busy)}
