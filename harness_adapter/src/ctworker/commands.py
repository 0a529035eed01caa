"""The console scripts that score: each handles Ctrl-C before it imports what it needs."""

from __future__ import annotations

from importlib import import_module

from .base import interrupt


def _main(command: str, module: str, *, stores: bool = True) -> int:
    interrupt.install(command, stores=stores)
    status: int = import_module(f"{__package__}.{module}").main()
    return status


def compare() -> int:
    return _main("ctworker-compare", "compare.main")


def ppl() -> int:
    return _main("ctworker-ppl", "perplexity.main")


def sweep() -> int:
    return _main("ctworker-sweep", "sweep.main", stores=False)
