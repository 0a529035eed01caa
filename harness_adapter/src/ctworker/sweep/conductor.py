"""Conducts a sweep: what is left to do, the runners of all devices, and the record of what they did."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

from rich.console import Console

from ..base import command_line, interrupt
from ..base.errors import ArgumentError
from ..client import hub
from ..client.token_client import TokenWorker
from ..options import arguments
from ..options.spelling import for_sweep
from . import document, output, paired
from .columns import number
from .definition import with_folder
from .models import Files, check_store, look, stamp_of, trial
from .plan import Cell, blocks_of, cells_of, selected
from .progress import Display, duration, show_plan
from .results import Results
from .runner import CellProcess, Runner, log_file_of
from .timing import Timing
from .work import Sweep

_WATCH_S = (
    5.0  # between looks into a watched folder; a folder is new when it has not changed for so long
)
_MEASURED_TOKENS, _MEASURED_LENGTH = 2048, 256  # of --dry-run, to know the rate
_STOP_S = 15.0


class Conductor:
    """only: patterns of --only; force: run finished cells again."""

    def __init__(self, sweep: Sweep, *, only: list[str], force: bool) -> None:
        self.sweep, self._only, self._force = sweep, only, force
        self._console = Console(stderr=False)
        self.results = Results(sweep)
        self.files: dict[str, Files] = {}
        self._refused: list[tuple[Cell, str]] = []  # cells that cannot run, with the reason
        self._ran: set[str] = set()  # keys of the cells that finished in this run
        self._look()

    def _look(self) -> None:
        """(Re)makes the cells of the sweep."""
        for model in self.sweep.models:
            if model.label not in self.files:
                self.files[model.label] = look(model)
        self.cells = cells_of(self.sweep, self.files)
        chosen = selected(self.cells, self._only)
        if not chosen:
            raise ArgumentError(
                f"--only {' '.join(self._only)}: no cell matches; --dry-run lists all cells"
            )
        self.todo = [cell for cell in chosen if self._is_todo(cell)]
        self.timing = Timing()
        for cell in self.cells:
            if self._state(cell) == "done":
                self.timing.learn(cell, self.results.cells[cell.key]["run"])

    def _is_todo(self, cell: Cell) -> bool:
        return (self._force and cell.key not in self._ran) or self._state(cell) != "done"

    def _state(self, cell: Cell) -> str:
        return str(self.results.cells.get(cell.key, {}).get("state", "pending"))

    # -- before the run ------------------------------------------------------------------------------------

    def prepare(self, log_file: Path) -> CellProcess | None:
        """Checks all work that is left, and learns its size. Raises CtworkerError for what the user must mend. The process that
        did it, with what it has loaded; None if nothing is left."""
        if self.todo and self.sweep.store is not None:
            check_store(self.sweep.store)
        self._try_options()
        process = CellProcess(self.sweep.base, log_file) if self.todo else None
        try:
            for work in dict.fromkeys(cell.work for cell in self.todo):
                assert process is not None
                refused = {cell for cell, _ in self._refused}
                cells = [cell for cell in self.todo if cell.work is work and cell not in refused]
                if cells:
                    self._prepare(process, cells)
        except BaseException:
            if process is not None:
                process.close()
            raise
        return process

    def _try_options(self) -> None:
        """Refuses the cells whose model no worker can load with their options. Raises ArgumentError if that is all."""
        errors: dict[tuple[str, str], str] = {}
        for cell in self.todo:
            files = self.files[cell.model.label]
            if files.folder is None or files.error:
                continue  # known when it is downloaded; known
            place = (cell.model.label, cell.options.name)
            if place not in errors:
                device = {"pretrained": cell.model.path, "device": self.sweep.devices[0]}
                errors[place] = for_sweep(trial(files.folder, arguments.parse({**device, **cell.worker_options})))
                if errors[place]:
                    self._say(f"{cell.model.label}: {errors[place]}")
            if errors[place]:
                self._refused.append((cell, errors[place]))
        if self._refused and len(self._refused) == len(self.todo):
            raise ArgumentError(self._refused[0][1])

    def _prepare(self, process: CellProcess, cells: list[Cell]) -> None:
        """Checks the cells of one work. What fails for some models only is recorded at once; the others run."""
        work = cells[0].work
        answers: dict[str, dict[str, Any]] = {}
        failed: list[tuple[Cell, str]] = []
        for cell in cells:
            usable = (
                self.files[cell.model.label].folder is not None
                and not self.files[cell.model.label].error
            )
            place = (
                f"{cell.model.label} {cell.options.name}" if work.kind.of_model and usable else ""
            )
            if place not in answers:
                answers[place] = process.ask(self._question(cell, usable))
            answer = answers[place]
            if "done" in answer:
                cell.tokens = answer["done"]["tokens"]
            elif answer["mend"]:
                failed.append((cell, answer["error"]))
        errors = {answer["error"] for answer in answers.values() if "error" in answer}
        if len(failed) == len(cells):
            raise ArgumentError(f"{work.line}: {failed[0][1]}")
        for error in sorted(errors):
            self._say(f"{work.name}: {error}")
        self._refused += failed

    def _say(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def _question(self, cell: Cell, usable: bool) -> dict[str, Any]:
        files = self.files[cell.model.label]
        return {
            "do": "prepare",
            "kind": cell.work.kind.name,
            "settings": cell.work.settings,
            "folder": str(files.folder) if usable else None,
            "tokenizer": cell.model.tokenizer,
            "options": cell.options.values,
            "formats": files.facts.get("formats", []) if usable else [],
            "max_length": files.facts.get("max_length") if usable else None,
            "reference": self._reference(cell),
        }

    def _reference(self, cell: Cell) -> dict[str, Any] | None:
        if cell.reference is None:
            return None
        files = self.files[cell.reference.label]
        folder = str(files.folder) if files.folder and not files.error else None
        return {"label": cell.reference.label, "folder": folder}

    def _record_refused(self) -> None:
        """Fails the cells that cannot run, before the others run."""
        for cell, message in self._refused:
            self.todo.remove(cell)
            self._keep(cell, document.failed(cell, message, {}))
        self._refused = []

    def dry_run(self) -> int:
        process = self.prepare(Path(os.devnull))  # a dry run writes nothing
        if process is not None:
            process.close()
        if self.todo and self.timing.of(self.todo[0]) is None:
            self._measure()
        rows, refused = [], dict(self._refused)
        for cell in self.cells:
            todo = cell in self.todo
            state = self._state(cell) if not todo else "to do"
            error = self.files[cell.model.label].error or refused.get(cell)
            if error:
                state = f"will fail: {error}"
            rows.append((cell, state, self.timing.of(cell) if todo else None))
        show_plan(self._console, rows, self.files)
        total = self.timing.left(self.todo, {}, len(self.sweep.devices))
        self._console.print(
            f"{len(self.todo)} of {len(self.cells)} cells to do, about {duration(total)}; results in {self.sweep.output}",
            highlight=False,
        )
        return 0

    def _measure(self) -> None:
        """Scores a few tokens with the smallest model, to know the rate."""
        usable = [
            m
            for m in self.sweep.models
            if self.files[m.label].folder and not self.files[m.label].error
        ]
        if not usable:
            return
        model = min(usable, key=lambda model: self.files[model.label].params)
        facts = self.files[model.label]
        texts = [
            [(7 * i + 13 * k) % facts.facts["vocab"] for i in range(_MEASURED_LENGTH)]
            for k in range(_MEASURED_TOKENS // _MEASURED_LENGTH)
        ]
        with TokenWorker(str(facts.folder), device=self.sweep.devices[0]) as worker:
            worker.score(texts[:1])
            began = time.monotonic()
            worker.score(texts)
        self.timing.measured(_MEASURED_TOKENS / (time.monotonic() - began), facts.params)

    # -- the run -------------------------------------------------------------------------------------------

    def run(self, *, watch: Path | None = None) -> int:
        if watch is not None and not watch.is_dir():
            raise ArgumentError(f"--watch {watch}: there is no such folder")
        self.results.lock()
        self._write()
        with interrupt.unwinding():
            try:
                self._run_todo()
                while watch is not None:
                    self._wait_for(watch)
                    self._write()
                    self._run_todo()
                return self._finish()
            except KeyboardInterrupt:
                n = sum(self._state(cell) == "done" for cell in self.cells)
                kept = f"{n} of {len(self.cells)} cells are finished and kept in {self.sweep.output}"
                if self.sweep.store is not None:
                    kept += f", and what the others have scored in {self.sweep.store}"
                interrupt.say(f"{kept}; the same command goes on: {command_line.typed()}")
                self._report()
                return interrupt.STATUS

    def _run_todo(self) -> None:
        process = self.prepare(log_file_of(self.sweep, self.sweep.devices[0]))
        try:
            self._record_refused()
            events: queue.Queue[tuple[Any, ...]] = queue.Queue()
            take = _take(blocks_of(self.todo))
            runners = [
                Runner(self.sweep, device, self.files, take, events)
                for device in self.sweep.devices
            ]
            n_done = len(self.cells) - len(self.todo)
            with Display(self._console, self.todo, n_done, self.timing, len(runners)) as display:
                runners[0].process, process = process, None
                try:
                    for runner in runners:
                        runner.start()
                    self._follow(events, display, len(runners))
                finally:
                    for runner in runners:
                        runner.stop()
                    for runner in runners:
                        runner.join(_STOP_S)
        finally:
            if process is not None:
                process.close()

    def _follow(
        self, events: queue.Queue[tuple[Any, ...]], display: Display, n_running: int
    ) -> None:
        """Records what the runners do, until all are idle."""
        while n_running:
            event, *rest = events.get()
            if event == "idle":
                n_running -= 1
            elif event == "broken":
                raise rest[0]
            elif event == "start":
                display.start(*rest)
            elif event == "progress":
                display.progress(*rest)
            elif event == "done":
                cell, outcome, run = rest
                if other := self._mixed(cell, outcome["source"]):
                    self._keep(cell, document.failed(cell, other, run))
                    display.finish(cell, f"failed: {other}", run["seconds"])
                    continue
                self._keep(cell, document.done(cell, outcome, run))
                self.timing.learn(cell, run)
                display.finish(cell, _headline(outcome), run["seconds"])
            elif event == "failed":
                cell, message, run = rest
                self._keep(cell, document.failed(cell, message, run))
                display.finish(cell, f"failed: {message}", run.get("seconds"))

    def _mixed(self, cell: Cell, source: dict[str, Any]) -> str:
        """Why the cell's numbers must not stand beside the finished ones of its label; "": they may. (With activations as the
        checkpoint declares, the identity of the same files is another one.)"""
        for other in self.cells:
            waits = other in self.todo and other.key not in self._ran
            if other.model.label != cell.model.label or waits or self._state(other) != "done":
                continue
            theirs = self.results.cells[other.key]["source"]
            same = theirs.get("activations_mode") == source.get("activations_mode")
            if same and theirs["identity"] != source["identity"]:
                return (
                    f"the files of {cell.model.label} ({cell.model.path}) have changed: this cell scored the checkpoint "
                    f"{source['identity']}, and {other.name} {theirs['identity']}: start the sweep again, with --force if that is "
                    "not enough, or give the new files a label of their own"
                )
        return ""

    def _keep(self, cell: Cell, record: dict[str, Any]) -> None:
        self._ran.add(cell.key)
        self.results.cells[cell.key] = record
        self._write()

    def _write(self) -> None:
        known, tests = self.results.cells, self.results.paired
        self.document = document.build(self.sweep, self.files, self.cells, known, tests)
        self.results.write(self.document)

    # -- after the run -------------------------------------------------------------------------------------

    def _report(self) -> None:
        self.results.paired = paired.tests(self.cells, self.results)
        self._write()
        output.write(self.results, self.document)

    def report(self) -> int:
        self.results.lock()
        self._report()
        self._console.print(f"written: {self.sweep.output / 'report.html'}", highlight=False)
        return 0

    def _finish(self) -> int:
        """Writes the reports; the exit code."""
        self._report()
        failed = [cell for cell in self.cells if self._state(cell) == "failed"]
        n_done = sum(self._state(cell) == "done" for cell in self.cells)
        self._console.print(
            f"{n_done} of {len(self.cells)} cells are finished"
            + (f", {len(failed)} failed (the same command tries them again)" if failed else "")
            + f": {self.sweep.output / 'report.html'}",
            highlight=False,
        )
        return 1 if failed else 0

    def _wait_for(self, watch: Path) -> None:
        """Returns when there is a new checkpoint below the folder, which then belongs to the sweep."""
        self._finish()
        self._console.print(
            f"watching {watch} for new checkpoints; Ctrl-C ends the sweep", highlight=False
        )
        seen: dict[Path, str] = {}
        while True:
            known = {Path(model.path).resolve() for model in self.sweep.models if not model.hub}
            for folder in sorted(path.parent for path in watch.glob("*/config.json")):
                if folder.resolve() in known:
                    continue
                stamp = _complete(folder)
                if stamp and seen.get(folder) == stamp:
                    self.sweep = with_folder(self.sweep, folder.resolve())
                    self._look()
                    return
                seen[folder] = stamp
            time.sleep(_WATCH_S)


def _complete(folder: Path) -> str:
    """The stamp of a folder whose weight files are all there; "" while some are missing."""
    there = all((folder / shard).is_file() for shard in hub.shards(folder))
    return stamp_of(folder) if there and any(folder.glob("*.safetensors")) else ""


def _take(blocks: list[list[Cell]]) -> Any:
    """A function that gives each block once, to any thread, with the one after it."""
    waiting, lock = deque(blocks), threading.Lock()

    def take() -> tuple[list[Cell], list[Cell] | None] | None:
        with lock:
            if not waiting:
                return None
            block = waiting.popleft()
            return block, waiting[0] if waiting else None

    return take


def _headline(outcome: dict[str, Any]) -> str:
    best = next(
        (metric for metric in outcome["metrics"] if metric.get("headline")), outcome["metrics"][0]
    )
    return f"{best['metric']} {number(best['value'], best['stderr'])}"
