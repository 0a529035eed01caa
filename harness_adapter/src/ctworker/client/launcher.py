"""Starts our own `ctworker serve`, waits until it is ready, and stops it.

The worker watches its owner (--owner-pid) and exits when that process is gone, for whatever reason.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import logging
import os
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from ..base import interrupt
from ..base.errors import ArgumentError, ConnectionLost, CtworkerError, WorkerDied
from ..options import spelling
from .connection import Connection

log = logging.getLogger("lm_eval.ctworker")

_live: weakref.WeakSet[WorkerProcess] = weakref.WeakSet()  # for end_all()
_starting: set[int] = set()  # threads that start a worker, which is not in _live yet
_PACKAGE = __name__.partition(".")[0]
_LOADING_NOTE_S = 15.0
_LOG_TAIL_BYTES = 16384
_STOP_S = 10.0
_INHERITED = {"CTW_LOG"}  # verbosity of the worker's log
_OUR_OWN = {"CTW_TOKEN", "CTW_TOKEN_FILE"}  # our own worker needs no token
_STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # the worker was asked to stop
_PREFIX = "ctworker-of-"  # of a worker's folder; the owner's process id follows
_LOCK = "lock"  # a file in that folder, locked while the owner lives


def find_binary() -> Path:
    """The worker program: CTWORKER_BIN, else the program in this package, else `ctworker` on PATH.

    Raises ArgumentError with the remedy when no worker program is found.
    """
    override = os.environ.get("CTWORKER_BIN")
    if override:
        if not _is_program(Path(override), script_ok=True):
            raise ArgumentError(
                f"CTWORKER_BIN={override} is not an executable program: correct CTWORKER_BIN or unset it"
            )
        if _is_console_script(Path(override)):
            raise ArgumentError(
                f"CTWORKER_BIN={override} is this package's own command, which only looks for the worker program: "
                "unset CTWORKER_BIN, or set it to a built worker (build/release/worker/ctworker)"
            )
        return Path(override)
    # An editable installation has two folders: one with the sources, one with the program.
    for package in dict.fromkeys([*sys.modules[_PACKAGE].__path__, str(Path(__file__).parents[1])]):
        packaged = Path(package) / "bin" / "ctworker"
        if _is_program(packaged):
            return packaged
    for folder in os.get_exec_path():
        candidate = Path(folder) / "ctworker"
        if _is_program(candidate):
            return candidate
    raise ArgumentError(
        "no ctworker program was found in this installation or on PATH: install the wheel "
        "(docs/INSTALL.md), or set CTWORKER_BIN to a built worker"
    )


def _is_program(path: Path, *, script_ok: bool = False) -> bool:
    """Whether path is an executable but not a script: this package's console script is also called ctworker."""
    try:
        if not (stat.S_ISREG(path.stat().st_mode) and os.access(path, os.X_OK)):
            return False
        with path.open("rb") as file:
            return script_ok or file.read(2) != b"#!"
    except OSError:
        return False


def _is_console_script(path: Path) -> bool:
    """Whether path is this package's console script, which would start itself for ever if CTWORKER_BIN names it."""
    with path.open("rb") as file:
        head = file.read(4096)
    return head.startswith(b"#!") and b"ctworker.__main__" in head


def environment() -> dict[str, str]:
    """The environment for our own worker, without `CTW_*` options, which a user sets for workers started by hand:
    a model argument that was not given must have its documented default."""
    ours = {name for name in os.environ if name.startswith("CTW_")} - _INHERITED
    options = tuple(sorted(ours - _OUR_OWN))
    if options:
        _tell_ignored(options)
    return {name: value for name, value in os.environ.items() if name not in ours}


@functools.cache
def _tell_ignored(names: tuple[str, ...]) -> None:
    log.warning(
        "ignored: %s (for workers started by hand; arguments alone configure this worker)", ", ".join(names)
    )  # fmt: skip


def _stop(
    process: subprocess.Popen[bytes], folder: str, url: str, owner: int, lock: BinaryIO
) -> None:
    """Stops the process and removes its folder. A no-op in a forked child."""
    if os.getpid() != owner:
        return
    if process.poll() is None:
        try:
            with Connection(url) as client:
                client.shutdown("cancel", timeout=1.0)
        except CtworkerError:
            process.terminate()
        for sign in (signal.SIGTERM, signal.SIGKILL):
            try:
                process.wait(_STOP_S / 2)
                break
            except subprocess.TimeoutExpired:
                process.send_signal(sign)
        process.wait()
    shutil.rmtree(folder, ignore_errors=True)
    lock.close()


class WorkerProcess:
    """Our own worker process. It stops at close(), when this object is dropped, and when this process ends in any
    way."""

    def __init__(self, options: Sequence[str], *, log_file: str | None = None) -> None:
        """Starts `ctworker serve OPTIONS...`; see wait_ready().

        log_file: path of the worker's log; None: a file that is removed with the worker's folder.
        """
        binary = find_binary()
        _remove_stale()
        folder = _make_folder()
        lock = _lock_folder(Path(folder))
        self.url = f"ipc://{folder}/w.sock"
        self.log_path = Path(log_file) if log_file else Path(folder) / "log"
        self._command = [
            str(binary),
            "serve",
            "--listen",
            self.url,
            "--owner-pid",
            str(os.getpid()),
            "--on-signal",
            "cancel",
            *options,
        ]
        log.debug("starting %s", shlex.join(self._command))
        self._folder = folder
        try:
            with interrupt.held(), _noted():
                self._process = self._launch()
                self._finalizer = weakref.finalize(
                    self, _stop, self._process, folder, self.url, os.getpid(), lock
                )
                _live.add(self)
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            lock.close()
            raise CtworkerError(
                f"cannot start {binary} with its log in {self.log_path}: {error.strerror}"
            ) from error
        except KeyboardInterrupt:
            if self in _live:
                self.close()
            raise

    def _launch(self) -> subprocess.Popen[bytes]:
        with self.log_path.open("ab") as sink:
            self._log_start = sink.tell()
            return subprocess.Popen(
                self._command,
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # this process handles Ctrl-C on the terminal
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def check_alive(self) -> None:
        """Raises WorkerDied, with the end of the worker's log, when the worker has ended."""
        code = self._process.poll()
        if code is not None:
            raise self._died(code)

    def _died(self, code: int) -> WorkerDied:
        how = (
            f"was killed by {signal.Signals(-code).name}"
            if code < 0
            else f"ended with exit code {code}"
        )
        hint = " (out of memory? see dmesg)" if code == -signal.SIGKILL else ""
        return WorkerDied(
            f"the worker (process {self.pid}) {how}{hint}; end of its log: {spelling.from_worker(self.last_words()) or '(empty)'}"
        )

    @property
    def crashed(self) -> bool:
        """Whether the worker has ended without being stopped and without reporting a reason, so a restart may help."""
        code = self._process.poll()
        if not code or -code in _STOPPING or code - 128 in _STOPPING:
            return False
        return code < 0 or self._error_line() is None

    def last_words(self, n_lines: int = 5) -> str:
        """The end of the worker's log."""
        try:
            with self.log_path.open("rb") as file:
                file.seek(0, os.SEEK_END)
                file.seek(max(self._log_start, file.tell() - _LOG_TAIL_BYTES))
                text = file.read().decode("utf-8", "replace")
        except OSError:
            text = ""
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return " | ".join(lines[-n_lines:])

    def error_text(self) -> str:
        """The reason why the worker ended before it was ready: its last error line, else the end of its log."""
        return self._error_line() or self.last_words() or (
            f"{self._command[0]} ended with exit code {self._process.returncode} and printed nothing (command: "
            f"{shlex.join(self._command)}): expected a ctworker; is CTWORKER_BIN set to another program?"
        )

    def _error_line(self) -> str | None:
        for line in reversed(self.last_words(50).split(" | ")):
            for mark in ("error: ", "fatal: "):
                if mark in line:
                    return line.split(mark, 1)[1]
        return None

    def wait_ready(self, timeout: float | None = None) -> None:
        """Returns when the model is loaded.

        Raises CtworkerError with the worker's message when loading fails, or when `timeout` seconds have passed
        (None: no limit; a dead worker is noticed at once).
        """
        start = noted = time.monotonic()
        with Connection(self.url) as client:
            while True:
                state, message = self._health(client)
                if state == "ready":
                    return
                now = time.monotonic()
                if timeout is not None and now - start > timeout:
                    raise CtworkerError(
                        f"the worker is not ready after {timeout:.0f} s: {message or state}"
                    )
                if now - noted >= _LOADING_NOTE_S:
                    noted = now
                    log.info("loading for %.0f s: %s", now - start, message or state)
                time.sleep(0.05)

    def _health(self, client: Connection) -> tuple[str, str]:
        """(state, message). Raises CtworkerError when loading has failed."""
        try:
            if not Path(self.url.removeprefix("ipc://")).exists():
                raise ConnectionLost("its socket does not exist yet")
            reply = client.health(timeout=1.0)
        except ConnectionLost as error:
            code = self._process.poll()
            if code is None:
                return "starting", str(error)
            if code < 0:
                raise self._died(code) from None
            raise CtworkerError(spelling.from_worker(self.error_text())) from None
        if reply["state"] == "failed":
            # The log names the folder, too; the reply only what is wrong with it.
            message = self._error_line() or reply.get("message") or "the worker has failed"
            raise CtworkerError(spelling.from_worker(message))
        return reply["state"], reply.get("message", "")

    def close(self) -> None:
        """Stops the worker. Idempotent."""
        self._finalizer()

    def signal(self, number: int) -> bool:
        """Sends a signal; whether the worker still runs. Takes no lock, so that a signal handler can call it."""
        if self._process.returncode is not None:
            return False
        try:
            if os.waitpid(self.pid, os.WNOHANG)[0] == 0:
                os.kill(self.pid, number)
                return True
        except OSError:  # ended, and waited for
            pass
        shutil.rmtree(self._folder, ignore_errors=True)
        return False


@contextlib.contextmanager
def _noted() -> Iterator[None]:
    """Meanwhile, end_all() waits for the worker that this thread starts."""
    _starting.add(threading.get_ident())
    try:
        yield
    finally:
        _starting.discard(threading.get_ident())


def end_all(number: int, seconds: float) -> None:
    """Ends all workers of this process by a signal, and by SIGKILL those that take longer. Only before the process ends at once:
    Python does not learn that they have ended."""
    deadline = time.monotonic() + seconds
    while _starting and time.monotonic() < deadline:
        time.sleep(0.01)
    workers = [worker for worker in _live if worker.signal(number)]
    while workers:
        time.sleep(0.01)
        late = time.monotonic() > deadline
        workers = [worker for worker in workers if worker.signal(signal.SIGKILL if late else 0)]


def _make_folder() -> str:
    """A folder for a worker's socket and log. Raises CtworkerError with the remedy."""
    base = _runtime_dir()
    try:
        return tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=base)
    except OSError as error:
        name = "XDG_RUNTIME_DIR" if base == os.environ.get("XDG_RUNTIME_DIR") else "TMPDIR"
        raise CtworkerError(
            f"no folder for the worker's socket can be made in {base or tempfile.gettempdir()} ({error.strerror}): set "
            f"{name} to a folder that this user can write to, or unset it"
        ) from error


def _lock_folder(folder: Path) -> BinaryIO:
    """Marks a worker's folder as in use while the returned file is open, here or in a forked child."""
    lock = (folder / f"{_LOCK}.new").open("wb")
    with contextlib.suppress(OSError):  # on a file system without locks, no other process can take the lock either
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.rename(lock.name, folder / _LOCK)  # the lock file never exists unlocked
    return lock


def _remove_stale() -> None:
    """Removes folders that killed owners left behind: our folders whose lock can be taken. Process ids are no
    criterion, since containers that share a folder number their processes separately."""
    base = Path(_runtime_dir() or tempfile.gettempdir())
    for folder in base.glob(f"{_PREFIX}*"):
        try:
            if folder.lstat().st_uid != os.getuid():
                continue
            with (folder / _LOCK).open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:  # in use, or being created right now
            continue


def _runtime_dir() -> str | None:
    """A folder with a short path for the socket (at most 107 bytes); None: tempfile's default."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and len(runtime) < 60 and os.access(runtime, os.W_OK):
        return runtime
    return "/tmp" if len(tempfile.gettempdir()) > 60 else None
