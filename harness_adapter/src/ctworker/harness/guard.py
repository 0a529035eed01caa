"""Refuses tasks that need generated text before any request is run, and puts the worker's device into lm-eval's results.

lm-eval runs one kind of request after another, so a mixed task list would fail only after hours of
log-likelihoods. Its `evaluate` is therefore wrapped, by the import hook or when a model is created. If the
model is ours, the wrapper checks the tasks' output types first.

lm-eval stores the value of its option --device, cuda:0 by default, as the device of the results, wherever the worker
computes. The last function that it calls with its results is wrapped for that.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any

from ..base.errors import CtworkerError

_MARK = "_ctworker_guard"


class GenerationRefusedError(CtworkerError, NotImplementedError):
    """Some tasks need generated text."""


def no_generation(names: list[str]) -> GenerationRefusedError:
    """The error for tasks of these names."""
    return GenerationRefusedError(
        f"ctworker scores text and cannot generate, but {', '.join(names)} "
        f"{'needs' if len(names) == 1 else 'need'} generate_until: leave "
        f"{'it' if len(names) == 1 else 'them'} out of --tasks, or run {'it' if len(names) == 1 else 'them'} with another "
        "--model (no request was run)"
    )


def _tasks(tree: Any) -> Iterator[tuple[str, Any]]:
    """(name, task) of every task in lm-eval's task mapping, in the old nested form or the new form."""
    if isinstance(tree, dict):
        if isinstance(tree.get("tasks"), dict):
            tree = tree["tasks"]
        for name, value in tree.items():
            if isinstance(value, dict):
                yield from _tasks(value)
            elif isinstance(value, tuple):
                yield str(name), value[-1]
            else:
                yield str(name), value


def _output_type(task: Any) -> str | None:
    kind = getattr(task, "OUTPUT_TYPE", None)
    return (
        kind
        if isinstance(kind, str)
        else getattr(getattr(task, "config", None), "output_type", None)
    )


def check(lm: Any, task_dict: Any) -> None:
    """Raises GenerationRefusedError, naming the tasks, when `lm` is ours and some tasks need generation."""
    lm = getattr(lm, "lm", lm)  # --use_cache wraps the model
    if not type(lm).__module__.startswith("ctworker."):
        return
    names = sorted(
        {name for name, task in _tasks(task_dict) if _output_type(task) == "generate_until"}
    )
    if names:
        raise no_generation(names)


def wrap(evaluate: Callable[..., Any]) -> Callable[..., Any]:
    """lm-eval's evaluate(), with check() called first."""
    if getattr(evaluate, _MARK, False):
        return evaluate
    signature = inspect.signature(evaluate)

    @functools.wraps(evaluate)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        try:
            bound = signature.bind(*args, **kwargs).arguments
        except TypeError:
            bound = {}  # lm-eval reports the error
        if "lm" in bound and "task_dict" in bound:
            check(bound["lm"], bound["task_dict"])
        return evaluate(*args, **kwargs)

    setattr(guarded, _MARK, True)
    return guarded


def with_device(add_info: Callable[..., Any]) -> Callable[..., Any]:
    """lm-eval's add_env_info(results), which also sets the device if the results are ours."""
    if getattr(add_info, _MARK, False):
        return add_info

    @functools.wraps(add_info)
    def add(results: dict[str, Any]) -> Any:
        config = results.get("config") or {}
        ours = config.get("ctworker")
        if isinstance(ours, dict) and "device" in ours:
            config["device"] = f"{ours['backend']} ({ours['device']})"
        return add_info(results)

    setattr(add, _MARK, True)
    return add


def install() -> None:
    """Wraps the functions of lm_eval.evaluator if that module is loaded. Idempotent."""
    module: Any = sys.modules.get("lm_eval.evaluator")
    if module is not None and hasattr(module, "evaluate"):
        module.evaluate = wrap(module.evaluate)
        if hasattr(module, "add_env_info"):
            module.add_env_info = with_device(module.add_env_info)
