"""What the commands share besides their tables: the parser, the line of progress, the JSON file of a report, exit codes."""

from __future__ import annotations

import argparse
import io
import json
import logging
import os
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from .. import __version__
from ..base.progress import Progress
from .errors import ArgumentError, CtworkerError

log = logging.getLogger("lm_eval.ctworker")


class Parser(argparse.ArgumentParser):
    """Has --version. A wrong command line ends with the exit code 64, as of ctworker itself; argparse's own is 2."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.add_argument("--version", action="version", version=f"{self.prog} {__version__}")

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(64, f"{self.prog}: error: {message}\n")


class ProgressLine:
    """One line on standard error: in place on a terminal, otherwise soon, and then ever rarer, up to every half minute."""

    def __init__(self, name: str, *, live: bool | None = None) -> None:
        """live: in place; None: as standard error is a terminal or not."""
        self._name, self._live = name, sys.stderr.isatty() if live is None else live
        self._start = time.monotonic()
        self._next = 0.0 if self._live else self._start + 5

    def __call__(self, progress: Progress) -> None:
        self.show(self._name, progress)

    def show(self, name: str, progress: Progress, more: str = "") -> None:
        """more: stands behind the time left."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + (0.5 if self._live else min(30.0, max(5.0, (now - self._start) / 4)))
        parts = [f"{name}: {100 * progress.fraction:3.0f} %"]
        if progress.tokens_per_s is not None:
            parts.append(f"{progress.tokens_per_s:.0f} tokens/s")
        if progress.seconds_left is not None:
            parts.append(f"{duration(progress.seconds_left)} left{more}")
        line = ", ".join(parts)
        print(f"\r\033[K{line}" if self._live else line, end="" if self._live else "\n", file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._live:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


class ReportFile:
    """The file of --json; None: no file; "-": standard output."""

    def __init__(self, file: str | None) -> None:
        """Opens the file, before hours of work. Raises ArgumentError."""
        self._name = file
        try:
            self._file = Path(file).expanduser().open("w", encoding="utf-8") if file not in (None, "-") else None
        except OSError as error:
            raise ArgumentError(f"--json {file}: cannot be written: {error.strerror}") from error
        self._regular = self._file is not None and stat.S_ISREG(os.fstat(self._file.fileno()).st_mode)

    def keep(self, report: dict[str, Any]) -> None:
        """Writes the report so far, so that an interruption loses no finished part; only to a regular file, which can be
        written again."""
        if self._regular:
            try:
                self._replace(report)
            except OSError as error:
                log.warning("--json %s: cannot be written yet: %s", self._name, error.strerror)

    def finish(self, report: dict[str, Any], text: str) -> None:
        """Writes the file, and prints the report. Raises CtworkerError, after both were tried."""
        if self._name == "-":
            say(_json(report, sys.stdout.encoding).removesuffix("\n"))
            return
        failed = None
        try:
            if self._regular:
                self._replace(report)
            elif self._file is not None:
                with self._file:
                    self._file.write(_json(report))
        except OSError as error:
            failed = CtworkerError(f"--json {self._name}: cannot be written: {error.strerror}")
        say(text)
        if failed is not None:
            raise failed

    def _replace(self, report: dict[str, Any]) -> None:
        assert self._file is not None
        path = Path(self._file.name).resolve()
        new = path.with_name(path.name + ".new")
        try:
            new.write_text(_json(report), encoding="utf-8")
            os.replace(new, path)
        finally:
            new.unlink(missing_ok=True)


def _json(report: dict[str, Any], encoding: str = "utf-8") -> str:
    return json.dumps(report, indent=1, ensure_ascii=encoding.lower() != "utf-8", allow_nan=False) + "\n"


def say(text: str) -> None:
    """Prints to standard output. Raises CtworkerError if it is a full disk or a closed pipe."""
    try:
        print(text, flush=True)
    except OSError as error:
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, sys.stdout.fileno())  # Python writes what is left once more at its end
        os.close(nothing)
        raise CtworkerError(f"standard output: cannot be written: {error.strerror}") from error


def open_closed_streams() -> None:
    """Opens the standard streams that were closed when Python started, which are None: reading and printing fail, and
    messages are lost. Otherwise the next file that is opened gets such a descriptor, and a report is lost without a word."""
    modes = {"stdin": os.O_WRONLY, "stdout": os.O_RDONLY, "stderr": os.O_WRONLY}
    for fd, (name, mode) in enumerate(modes.items()):
        if getattr(sys, name) is None:
            got = os.open(os.devnull, mode)
            if got != fd:
                os.dup2(got, fd)
                os.close(got)
            setattr(sys, name, open(fd, "r" if fd == 0 else "w", encoding="utf-8", closefd=False))  # noqa: SIM115


def replace_unknown_letters() -> None:
    """Standard output and error then print `?` for what the terminal's encoding lacks, as ± in ASCII, and do not fail."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def exit_code(command: str, run: Callable[[], int], respell: Callable[[str], str] = str) -> int:
    """Runs the command, and tells an error as one sentence: 64 for wrong input, 70 for other errors, 130 if interrupted.

    respell: writes options as the command does (options/spelling.py)."""
    open_closed_streams()
    replace_unknown_letters()
    try:
        return run()
    except CtworkerError as error:
        print(f"{command}: {respell(str(error))}", file=sys.stderr)
        return 64 if isinstance(error, ArgumentError) else 70
    except KeyboardInterrupt:
        print(f"{command}: interrupted", file=sys.stderr)
        return 130
