"""ctworker: exact scores of compressed-tensors checkpoints, for lm-evaluation-harness and for programs.

    lm_eval --model ctworker --model_args pretrained=DIR --tasks wikitext

Importing this package imports nothing else; the names below load on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_LAZY = {"Client": "client", "Worker": "launcher", "CTWorkerLM": "lm", "TextTokenizer": "tokenizer"}
__all__ = ["CTWorkerLM", "Client", "TextTokenizer", "Worker", "__version__"]

if TYPE_CHECKING:
    from .client import Client
    from .launcher import Worker
    from .lm import CTWorkerLM
    from .tokenizer import TextTokenizer


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
