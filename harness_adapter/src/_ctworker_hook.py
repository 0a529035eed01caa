"""Registers `lm_eval --model ctworker` in lm-eval releases that do not look for plug-ins.

A .pth file imports this module whenever Python starts, so the module does almost nothing: it puts one
finder first in sys.meta_path. The finder acts on lm_eval and two of its modules, and ignores all others. This module
uses only the standard library, and imports nothing from ctworker before lm_eval asks for the model.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any


class _Finder:
    """Lets the other finders load `lm_eval.models` and `lm_eval.evaluator`, then extends the two modules."""

    @classmethod
    def find_spec(
        cls, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        if name == "lm_eval":
            _handle_ctrl_c()
        if name not in ("lm_eval.models", "lm_eval.evaluator"):
            return None
        for finder in sys.meta_path:
            if finder is not cls and hasattr(finder, "find_spec"):
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    break
        else:
            return None
        loader: Any = spec.loader
        load = getattr(loader, "exec_module", None)
        if load is None:
            return spec
        finish = _register if name == "lm_eval.models" else _guard

        def exec_module(module: "ModuleType") -> None:
            load(module)
            try:
                finish(module)
            except Exception as error:  # an error here must not break lm-eval
                sys.stderr.write(f"ctworker: could not register with {name}: {error!r}\n")

        loader.exec_module = exec_module
        return spec


def _handle_ctrl_c() -> None:
    """On lm_eval's command line with our model: from here on, Ctrl-C ends in one line."""
    if any(word == "ctworker" or word.endswith("=ctworker") for word in sys.orig_argv):
        from ctworker.base import command_line, interrupt

        if command_line.is_lm_eval():
            interrupt.install("ctworker")


def _register(module: "ModuleType") -> None:
    """Runs after the built-in models are loaded: registering earlier would keep lm-eval from loading them."""
    from lm_eval.api import registry

    if hasattr(registry, "load_plugins"):
        return  # this lm-eval finds our entry point itself
    if "ctworker" not in registry.model_registry:
        registry.model_registry.register("ctworker", target="ctworker.lm:CTWorkerLM")


def _guard(module: "Any") -> None:
    from ctworker.harness.guard import wrap

    module.evaluate = wrap(module.evaluate)


if not any(
    isinstance(finder, type) and finder.__name__ == "_Finder" and finder.__module__ == __name__
    for finder in sys.meta_path
):
    sys.meta_path.insert(0, _Finder)
