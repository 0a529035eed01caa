"""ctworker: exact scores from compressed-tensors checkpoints, for lm-evaluation-harness and Python programs.

    lm_eval --model ctworker --model_args pretrained=DIR --tasks wikitext

    from ctworker import Worker             # docs/PYTHON.md
    with Worker("DIR") as worker:
        print(worker.score([[1, 5, 9, 12]])[0].logprobs)

Importing this package imports no submodule; each name below is loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"

_LAZY = {
    "Client": "api",
    "Comparison": "client.results",
    "Divergence": "client.results",
    "Estimate": "client.results",
    "Perplexity": "client.results",
    "Scores": "client.results",
    "TextScore": "client.results",
    "CtworkerError": "base.errors",
    "Progress": "base.progress",
    "Score": "client.results",
    "TextTokenizer": "text.tokenizer",
    "Worker": "api",
    "CTWorkerLM": "lm",  # needs lm-eval
}
__all__ = [
    "CTWorkerLM",
    "Client",
    "Comparison",
    "CtworkerError",
    "Divergence",
    "Estimate",
    "Perplexity",
    "Progress",
    "Score",
    "Scores",
    "TextScore",
    "TextTokenizer",
    "Worker",
    "__version__",
]

if TYPE_CHECKING:
    from .api import Client, Worker
    from .base.errors import CtworkerError
    from .base.progress import Progress
    from .client.results import (
        Comparison,
        Divergence,
        Estimate,
        Perplexity,
        Score,
        Scores,
        TextScore,
    )
    from .lm import CTWorkerLM
    from .text.tokenizer import TextTokenizer


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> object:
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
