"""Runs blocks of cells on one device: a worker for each model, and one process for the cells of all models.

Events go to a queue: ("start", cell), ("progress", cell, fraction), ("done", cell, outcome, run),
("failed", cell, message, run), ("idle",) at the end.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ..base.errors import CtworkerError, WorkerDied
from ..client import session
from ..client.launcher import WorkerProcess
from ..client.token_client import TokenClient
from ..options import arguments
from ..options.spelling import for_sweep
from . import models
from .models import Files
from .plan import Cell
from .work import Model, Sweep

log = logging.getLogger("lm_eval.ctworker")

_LOOK_S = 0.5  # between looks at the worker while a cell runs
_ATTEMPTS = 2  # a cell whose worker or process dies runs once more: the store has what was scored


class CellProcess:
    """The process that runs cells (cell_process.py). base: its working folder; log_file: its output."""

    def __init__(self, base: Path, log_file: Path) -> None:
        answers, theirs = os.pipe()
        root = str(Path(__file__).resolve().parents[2])
        env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))}
        try:
            log_file.parent.mkdir(parents=True, exist_ok=True)
            with log_file.open("ab") as sink:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "ctworker.sweep.cell_process", str(theirs)],
                    stdin=subprocess.PIPE, stdout=sink, stderr=subprocess.STDOUT, pass_fds=(theirs,), cwd=base, env=env,
                    start_new_session=True,  # Ctrl-C is for the sweep, which ends this process
                )  # fmt: skip
        except OSError as error:
            os.close(answers)
            os.close(theirs)
            raise CtworkerError(f"the process of the cells cannot start with its log in {log_file}: {error.strerror}") from error
        os.close(theirs)
        self._answers = answers
        self._rest = b""

    def ask(
        self,
        request: dict[str, Any],
        on_progress: Callable[[float], None] = lambda fraction: None,
        check: Callable[[], None] = lambda: None,
    ) -> dict[str, Any]:
        """Sends a request and returns its last answer. `check` is called about twice per second and may raise. Raises
        WorkerDied when the process ends."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        while True:
            line = self._line()
            if line is None:
                check()
            elif "progress" in line:
                on_progress(line["progress"])
            else:
                return line

    def _line(self) -> dict[str, Any] | None:
        while b"\n" not in self._rest:
            if not select.select([self._answers], [], [], _LOOK_S)[0]:
                return None
            data = os.read(self._answers, 1 << 16)
            if not data:
                code = self._process.wait()
                how = (
                    f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
                )
                raise WorkerDied(f"the process of the cells {how} (out of memory? see dmesg)")
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        with contextlib.suppress(OSError):
            os.close(self._answers)
            self._answers = -1


def log_file_of(sweep: Sweep, device: str) -> Path:
    """The log of the process that runs this device's cells."""
    return sweep.output / "logs" / f"cells-{device.replace(':', '')}.log"


class Runner(threading.Thread):
    """One device. take(): the next block, and the block after it for reading ahead; None at the end. process: runs its cells; the
    runner starts it when it needs one, and ends it."""

    def __init__(
        self,
        sweep: Sweep,
        device: str,
        files: dict[str, Files],
        take: Callable[[], tuple[list[Cell], list[Cell] | None] | None],
        events: queue.Queue[tuple[Any, ...]],
    ) -> None:
        super().__init__(daemon=True, name=f"device {device}")
        self.device = device
        self._sweep, self._files, self._take, self._events = sweep, files, take, events
        self.process: CellProcess | None = None
        self._worker: WorkerProcess | None = None
        self._beside: tuple[str, str] | None = None  # the worker's second model (Cell.beside)
        self._shared: tuple[str, str] | None = None  # the second model that the block's worker loads from the start
        self._n_workers = 0  # started so far
        self._stopped = False

    def run(self) -> None:
        try:
            while not self._stopped and (taken := self._take()) is not None:
                self._run_block(*taken)
        except BaseException as error:  # told to the main thread, which ends the sweep
            if not self._stopped:
                self._events.put(("broken", error))
        finally:
            self._close()
            self._events.put(("idle",))

    def stop(self) -> None:
        """Ends the worker and the cells, from another thread."""
        self._stopped = True
        self._close()

    def _close(self) -> None:
        process, self.process = self.process, None
        worker, self._worker = self._worker, None
        if process is not None:
            process.close()
        if worker is not None:
            worker.close()

    # -- a block -------------------------------------------------------------------------------------------

    def _run_block(self, block: list[Cell], ahead: list[Cell] | None) -> None:
        model = block[0].model
        try:
            self._fetch(model)
            for cell in block:  # a hub model's size is known only now
                cell.params = max(cell.params, self._files[model.label].params)
        except CtworkerError as error:
            for cell in block:
                self._fail(cell, for_sweep(str(error)), {})
            return
        self._shared = next((cell.beside for cell in block if cell.beside is not None), None)
        for i, cell in enumerate(block):
            if self._stopped:
                return
            self._run_cell(cell)
            if i == 0 and ahead is not None:
                self._read_ahead(ahead[0].model)
        self._close_worker()

    def _fetch(self, model: Model) -> None:
        """Makes sure that the model's files are here. Raises CtworkerError."""
        self._files[model.label] = models.fetch(model, self._files[model.label])
        if self._files[model.label].error:
            raise CtworkerError(self._files[model.label].error)

    def _read_ahead(self, model: Model) -> None:
        if not self._files[model.label].error:
            models.read_ahead(model, self._files[model.label])

    def _run_cell(self, cell: Cell) -> None:
        self._events.put(("start", cell))
        began = time.monotonic()
        for attempt in range(1, _ATTEMPTS + 1):
            run = {"device": self.device, "attempts": attempt}
            try:
                answer = self._attempt(cell)
            except WorkerDied as error:
                self._close()
                if self._stopped:
                    return
                answer = {"error": for_sweep(str(error))}
                if attempt < _ATTEMPTS:
                    log.warning("%s: %s; the cell runs once more", cell.name, error)
                    continue
            except CtworkerError as error:
                answer = {"error": for_sweep(str(error))}
            break
        run |= {
            "worker": self._n_workers,
            "seconds": round(time.monotonic() - began, 3),
            "finished": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        }
        if "done" in answer:
            outcome = answer["done"]
            self._events.put(
                ("done", cell, outcome, run | {"n_tokens": outcome.pop("n_tokens", 0)})
            )
        elif not self._stopped:
            self._fail(cell, answer["error"], run)

    def _fail(self, cell: Cell, message: str, run: dict[str, Any]) -> None:
        self._events.put(("failed", cell, message, run))

    def _attempt(self, cell: Cell) -> dict[str, Any]:
        worker = self._worker_of(cell)
        if self.process is None:
            self.process = CellProcess(self._sweep.base, log_file_of(self._sweep, self.device))
        request = {
            "do": "run",
            "kind": cell.work.kind.name,
            "settings": cell.work.settings,
            "url": worker.url,
            "folder": str(self._files[cell.model.label].folder),
            "tokenizer": cell.model.tokenizer,
            "options": cell.options.values,
            "formats": self._files[cell.model.label].facts["formats"],
            "samples": str(self._sweep.output / cell.samples),
        }
        if cell.reference is not None:
            request["reference"] = {
                "label": cell.reference.label, "name": self._name_beside(cell.model), "floor": cell.is_floor,
            }  # fmt: skip
        answer = self.process.ask(
            request,
            on_progress=lambda fraction: self._events.put(("progress", cell, fraction)),
            check=worker.check_alive,
        )
        if "error" in answer:
            worker.check_alive()  # a dead worker is the reason of any other error
        return answer

    # -- the worker ----------------------------------------------------------------------------------------

    def _worker_of(self, cell: Cell) -> WorkerProcess:
        """A ready worker for the cell, with the reference if it has one. Raises CtworkerError when a model cannot be loaded.

        A worker that loads both models at once serves all cells of the block. If it cannot, or if the two do not fit the
        memory together, the cells that need one model have a worker with that model alone.
        """
        if self._worker is not None and cell.beside not in (None, self._beside):
            self._close_worker()
        if self._worker is not None:
            try:
                self._worker.check_alive()
                return self._worker
            except WorkerDied as error:
                log.warning("%s", error)
                self._close_worker()
        if cell.beside is None and self._shared is not None:
            try:
                worker = self._start(cell, self._shared)
                with TokenClient(worker.url) as client:
                    if client.model["placement"] != "streamed":
                        return worker
            except CtworkerError as error:
                log.info("%s alone: %s", cell.model.label, error)
            self._close_worker()
            self._shared = None
        return self._start(cell, cell.beside)

    def _start(self, cell: Cell, beside: tuple[str, str] | None) -> WorkerProcess:
        """Starts the worker of the cell's model. Raises CtworkerError when a model cannot be loaded."""
        settings = arguments.parse(
            {
                "pretrained": cell.model.path,
                "device": self.device,
                **self._store(),
                **cell.worker_options,
            }
        )
        folder = self._files[cell.model.label].folder
        assert folder is not None
        options = session.serve_options(settings, folder)
        if beside is not None:
            label, dtype = beside
            self._fetch(next(model for model in self._sweep.models if model.label == label))
            name = self._name_beside(cell.model) + (f":{dtype}" if dtype else "")
            options += ["--model", f"{name}={self._files[label].folder}"]
        self._beside = beside
        self._worker = WorkerProcess(options)
        self._n_workers += 1
        try:
            self._worker.wait_ready(cell.options.values.get("load_timeout"))
        except CtworkerError:
            self._close_worker()
            raise
        return self._worker

    def _store(self) -> dict[str, str]:
        if self._sweep.store is None:
            return {}
        limit = {"store_limit": self._sweep.store_limit} if self._sweep.store_limit else {}
        return {"store": str(self._sweep.store), **limit}

    def _name_beside(self, model: Model) -> str:
        """The worker's name of the reference, which is not the model's own: that is its folder's."""
        folder = self._files[model.label].folder
        return "reference" if folder is None or folder.name != "reference" else "the-reference"

    def _close_worker(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()
