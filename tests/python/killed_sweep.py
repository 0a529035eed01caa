#!/usr/bin/env python3
"""A sweep that is killed with SIGKILL at random instants ends with the scores of one that was not, and computes nothing twice.

    killed_sweep.py --models FOLDER .. --text FILE --scratch DIR [--kills 20] [--windows 8] [--seed 1]

By hand, with real checkpoints, such as the five of examples/sweep.sh: three methods on each, with short windows. tests/python/test_sweep.py
does the same with tiny ones. Prints how long each life was and what it left, and ends with "N passed, N failed".

Every other kill takes the sweep alone, the others also its worker and the process of its cells. A trigger in the result store
counts records that are written although they are there: what was acknowledged and computed again.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

_SWEEP = ("-m", "ctworker.sweep.main")
_END_S = 20.0  # a worker without its owner ends within seconds, also on a loaded machine

_TRIGGER = """
CREATE TABLE written(again INTEGER);
CREATE TRIGGER on_write BEFORE INSERT ON results BEGIN
  INSERT INTO written VALUES (EXISTS (SELECT 1 FROM results WHERE key = NEW.key)); END;
"""


def scores(document: dict[str, Any]) -> list[Any]:
    """Everything of the cells but how they ran."""
    return [{name: value for name, value in cell.items() if name != "run"} for cell in document["cells"]]


class Killed:
    """text: the sweep's YAML file, without output and store; its paths start at `folder`, where both are made."""

    def __init__(self, text: str, folder: Path, *, limit_s: float, seed: int, program: Sequence[str] = _SWEEP) -> None:
        self._folder, self._limit_s, self._random, self._program = folder, limit_s, random.Random(seed), program
        for name in ("whole", "killed"):
            for old in (folder / name, folder / f"{name}.store"):
                shutil.rmtree(old, ignore_errors=True)
            (folder / f"{name}.yaml").write_text(f"output: {name}\nstore: {name}.store\n{text}")
        self.lives: list[str] = []

    def run(self, kills: int) -> None:
        """Raises AssertionError."""
        began = time.monotonic()
        self._finish("whole")
        # Some lives end before anything is scored, and some see several cells.
        longest_s = (time.monotonic() - began) / 2
        expected = _document(self._folder / "whole")
        self._new_store()
        done, finished = 0, {}
        while done < kills:
            life_s = self._random.uniform(0.2, longest_s)
            alone = done % 2 == 0
            whole = self._live(life_s, alone=alone)
            now = self._finished()
            assert {key: now.get(key) for key in finished} == finished, "a finished cell ran again"
            finished = now
            self.lives[-1] += f"; {len(now)} cells finished, {self._count('killed')} records"
            done += not whole
            if whole:  # too early for the next kills: once more from the start
                self._check(expected)
                shutil.rmtree(self._folder / "killed")
                shutil.rmtree(self._folder / "killed.store")
                self._new_store()
                finished = {}
        self._finish("killed")
        self._check(expected)

    # -- processes -----------------------------------------------------------------------------------------

    def _start(self, name: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, *self._program, str(self._folder / f"{name}.yaml")],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip

    def _finish(self, name: str) -> None:
        child = self._start(name)
        began = time.monotonic()
        try:
            said, _ = child.communicate(timeout=self._limit_s)
        except subprocess.TimeoutExpired:
            child.kill()
            said, _ = child.communicate()
            raise AssertionError(f"the sweep has not ended after {self._limit_s:.0f} s: {said[-2000:]}") from None
        assert child.returncode == 0, said
        self.lives.append(f"{time.monotonic() - began:.1f} s, to the end")

    def _live(self, life_s: float, *, alone: bool) -> bool:
        """One life of the sweep; whether it came to its end before it was killed."""
        child = self._start("killed")
        self.lives.append(f"{life_s:.1f} s, {'the sweep' if alone else 'all of its processes'} killed")
        try:
            said, _ = child.communicate(timeout=life_s)
            assert child.returncode == 0, said
            self.lives[-1] = f"less than {life_s:.1f} s, to the end"
        except subprocess.TimeoutExpired:
            for pid in (child.pid, *([] if alone else _children(child.pid))):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            child.communicate()
        began = time.monotonic()
        while left := self._left():
            assert time.monotonic() < began + _END_S, f"processes of a killed sweep are still there: {left}"
            time.sleep(0.02)
        self.lives[-1] += f", its worker was gone {time.monotonic() - began:.2f} s later"
        return child.returncode == 0

    def _left(self) -> str:
        """Workers of this sweep, by their store."""
        command = ["pgrep", "-a", "-f", f"serve .*{self._folder}/killed.store"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout

    # -- what they left ------------------------------------------------------------------------------------

    def _finished(self) -> dict[str, Any]:
        folder = self._folder / "killed"
        cells = _document(folder)["cells"] if (folder / "results.json").exists() else []
        return {cell["key"]: cell for cell in cells if cell["state"] == "done"}

    def _new_store(self) -> None:
        """An empty store with the trigger."""
        (self._folder / "killed.store").mkdir()
        shutil.copy(self._folder / "whole.store/results.sqlite", self._folder / "killed.store")
        with self._database("killed") as base:
            base.executescript("DELETE FROM results; DELETE FROM sources;" + _TRIGGER)

    @contextlib.contextmanager
    def _database(self, name: str) -> Iterator[sqlite3.Connection]:
        base = sqlite3.connect(self._folder / f"{name}.store/results.sqlite", timeout=30)
        try:
            yield base
        finally:
            base.close()

    def _count(self, name: str, what: str = "results") -> int:
        with self._database(name) as base:
            return base.execute(f"SELECT count(*) FROM {what}").fetchone()[0]

    def _check(self, expected: dict[str, Any]) -> None:
        assert scores(_document(self._folder / "killed")) == scores(expected), "other scores than without kills"
        again = self._count("killed", "written WHERE again")
        assert again == 0, f"{again} records were computed again"
        n = self._count("whole")
        assert n > 0 and self._count("killed") == self._count("killed", "written") == n, "the trigger missed records"


def _document(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "results.json").read_text())


def _children(pid: int) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False).stdout
    return [int(word) for word in found.split()]


def real(scratch: Path, models: list[Path], text: Path, windows: int) -> str:
    """The YAML text of three methods on the models, with short windows of the beginning of the text."""
    for model in models:
        link = scratch / "models" / model.name
        link.parent.mkdir(exist_ok=True)
        if not link.exists():
            link.symlink_to(model.resolve())
    (scratch / "text.txt").write_bytes(text.read_bytes()[:50_000])
    few = f"text: text.txt, max_windows: {windows}"
    return "\n".join([
        "name: killed", "options: {max_length: 256, memory_limit: 10MiB}  # a pass has two windows of SmolLM2",
        "models:", *(f"  - models/{model.name}" for model in models), "methods:",
        f"  - {{method: gptq-2048, window: 256, stride: 256, {few}}}",
        f"  - {{method: llama.cpp-512, window: 256, stride: 256, first: 128, {few}}}",
        f"  - {{method: hf-sliding, window: 256, stride: 128, {few}}}",
    ])  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", type=Path, nargs="+", required=True, help="checkpoint folders")
    parser.add_argument("--text", type=Path, required=True, help="a text file of 50 kB or more")
    parser.add_argument("--scratch", type=Path, required=True, help="folder for the sweep's file and its results")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--windows", type=int, default=8, help="of each method (default: 8)")
    parser.add_argument("--limit", type=float, default=3600, metavar="SECONDS", help="for a sweep that is not killed (default: 3600)")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    scratch = args.scratch.resolve()
    scratch.mkdir(parents=True, exist_ok=True)
    sweep = Killed(real(scratch, args.models, args.text, args.windows), scratch, limit_s=args.limit, seed=args.seed)
    failed = ""
    try:
        sweep.run(args.kills)
    except AssertionError as error:
        failed = str(error)
    print(*sweep.lives, sep="\n")
    print(f"FAIL {failed}\n0 passed, 1 failed" if failed else "1 passed, 0 failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
