"""Ctrl-C on a command line: one line says what is kept and which command goes on, and the exit status is 130.

A command installs the handler before it imports anything else, so this module imports little. The first Ctrl-C ends the
process from the handler itself: an exception could be lost in a library's `except`, in a destructor or in an import.
A second Ctrl-C ends the process and its workers at once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType

STATUS = 130
_HELD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_END_S = 5.0  # for workers to end by themselves
_AGAIN_S = 0.05


class _State:
    """command: begins the line; owner: the process that installed the handler, 0: none; stores: whether the command takes a
    store; store: what keeps this run's results; n_scored: results so far."""

    command = "ctworker"
    owner = 0
    stores = True
    store = ""
    n_scored = 0
    seen = False
    unwinds = False


def install(command: str, *, stores: bool = True) -> None:
    """Ctrl-C then ends this process. It stays as it is in a program that ignores or handles it, and outside the main thread.
    stores: whether the command has an argument `store`."""
    if _State.owner:
        return
    _State.command, _State.stores, _State.owner = command, stores, os.getpid()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        with contextlib.suppress(ValueError):  # not the main thread
            signal.signal(signal.SIGINT, on_signal)


def handler() -> Callable[[int, FrameType | None], object]:
    """For a signal that must act as Ctrl-C does."""
    return on_signal if _State.owner else signal.default_int_handler


def keep(store: str) -> None:
    """A worker is ready, and `store` keeps its results ("": nothing does)."""
    _State.store = store


def count(n: int) -> None:
    """n more results are final, and written if a store keeps them."""
    _State.n_scored += n


@contextlib.contextmanager
def unwinding() -> Iterator[None]:
    """Meanwhile, the first Ctrl-C raises KeyboardInterrupt: for work that must do more than say a line. A destructor or a callback
    of the garbage collector that is interrupted would lose the exception: it is then raised again."""
    hook = sys.unraisablehook

    def again(lost: sys.UnraisableHookArgs) -> None:
        if not issubclass(lost.exc_type, KeyboardInterrupt):
            hook(lost)
            return
        _State.seen = False
        threading.Timer(_AGAIN_S, os.kill, (os.getpid(), signal.SIGINT)).start()  # once the destructor has returned

    _State.unwinds, sys.unraisablehook = True, again
    try:
        yield
    finally:
        _State.unwinds, sys.unraisablehook = False, hook


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Meanwhile, signals with a handler in Python wait. A handler that raises or ends the process would lose a process that is
    being started."""
    if threading.current_thread() is not threading.main_thread():  # handlers run in the main thread only
        yield
        return
    waiting: list[int] = []
    handlers = {number: handler for number in _HELD if callable(handler := signal.getsignal(number))}
    try:
        for number in handlers:
            signal.signal(number, lambda number, frame: waiting.append(number))
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for again in waiting:
            signal.raise_signal(again)


def on_signal(number: int, frame: FrameType | None) -> None:
    if os.getpid() != _State.owner:  # a forked child, for instance of datasets: its parent says the line
        os._exit(STATUS)
    if _State.seen:
        _end_workers(signal.SIGKILL)
        os._exit(STATUS)
    _State.seen = True
    if _State.unwinds:
        raise KeyboardInterrupt
    from . import command_line

    if _State.stores:
        say(command_line.going_on(_State.store, _State.n_scored))
    else:
        say(f"the same command goes on: {command_line.typed()}")
    _end_workers(signal.SIGTERM)
    with contextlib.suppress(Exception):  # a write that was interrupted cannot be flushed
        sys.stdout.flush()
    os._exit(STATUS)


def say(text: str) -> None:
    """Writes the line past Python's buffers, since the handler may have interrupted a write."""
    bars = getattr(getattr(sys.modules.get("tqdm"), "tqdm", None), "_instances", ())
    start = "\r\033[K" if os.isatty(2) else "\n" if bars else ""
    with contextlib.suppress(OSError):
        os.write(2, f"{start}{_State.command}: interrupted: {text}\n".encode(errors="backslashreplace"))


def _end_workers(number: int) -> None:
    launcher = sys.modules.get("ctworker.client.launcher")  # the module is not imported here: without it there are no workers
    with contextlib.suppress(Exception):  # a module that is being imported has no workers
        launcher.end_all(number, _END_S)  # type: ignore[union-attr]  # suppressed if there is none
