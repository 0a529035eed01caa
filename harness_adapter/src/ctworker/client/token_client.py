"""Clients that score and compare token ids. api.py adds texts."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ..base.errors import ArgumentError, CtworkerError
from ..options import arguments, values
from ..options.settings import OPTIONS, Settings
from . import hub
from .batches import Item
from .notebook import OnProgress, shown
from .results import Comparison, Score, Scores, nothing
from .session import Session
from .wire import INT32

if TYPE_CHECKING:
    from typing_extensions import Self

#: Token ids: a list, an array, a numpy array, ...
Tokens: TypeAlias = Iterable[int]
#: A text, of which every token but the first is scored, or (context, continuation), of which the continuation is scored.
Sequenced: TypeAlias = Tokens | tuple[Tokens, Tokens]

_COLUMNS = ["logprob", "greedy"]


class TokenClient:
    """Connects to a running worker. Not thread-safe; a forked process must create its own Client.

    Raises CtworkerError.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        model: str = "",
        token_file: str | os.PathLike[str] | None = None,
        tokenizer: str | os.PathLike[str] | None = None,
        timeout: float = 120.0,
        load_timeout: float | None = None,
    ) -> None:
        given = {"endpoint": endpoint, "token_file": token_file, "tokenizer": tokenizer, "timeout": timeout}
        settings = arguments.parse(given | {"load_timeout": load_timeout, "model": model})
        self._open(settings, None, [])

    def _open(self, settings: Settings, checkpoint: hub.Checkpoint | None, beside: Sequence[str]) -> None:
        self._settings, self._checkpoint = settings, checkpoint
        self._session = Session(settings, checkpoint, beside)
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stops a worker that this object started; any other worker keeps running. Then nothing can be scored."""
        self._closed = True
        self._session.close()

    @property
    def endpoint(self) -> str:
        """The worker's URL, for further clients."""
        return self._session.url

    @property
    def model(self) -> dict[str, Any]:
        """The worker's description of the model: `name`, `dtype`, `backend`, `vocab`, ... (docs/PROTOCOL.md, "info")."""
        return dict(self._session.model)

    def describe(self, name: str) -> dict[str, Any]:
        """The worker's description of another of its models."""
        return self._session.named(name)

    @property
    def folder(self) -> Path | None:
        """The folder that the worker's model was loaded from; None: it is not on this machine. Raises CtworkerError if the
        folder no longer holds that checkpoint."""
        return self._session.folder()

    @property
    def notes(self) -> list[str]:
        """What could not be checked, for a reader of the results."""
        return list(self._session.notes)

    @property
    def max_length(self) -> int:
        """Longest model input in tokens."""
        return int(self._session.model["max_length"])

    @property
    def identity(self) -> str:
        """sha256 over every byte of the checkpoint's tensors and config.json."""
        return self._session.source()["identity"]

    @property
    def numerics(self) -> str:
        """Scores of equal tokens under equal `identity` and `numerics` are equal bit for bit."""
        return self._session.source()["numerics"]

    def score(
        self,
        sequences: Iterable[Sequenced],
        *,
        max_length: int | None = None,
        vocabulary: int | None = None,
        on_score: Callable[[int, Score], None] | None = None,
        progress: bool | None = None,
        on_progress: OnProgress | None = None,
    ) -> Scores[Score]:
        """Log-probabilities of each sequence's tokens, in the order of the sequences.

        A list of n tokens: tokens 1 .. n-1 are scored, each given all tokens before it. A tuple (context,
        continuation): the continuation's tokens are scored; a context too long for max_length is truncated from
        the left (`truncated` is the number of tokens removed).
        vocabulary: probabilities over the first so many token ids only, which all tokens must be of.
        progress: whether a bar is shown (None: in a notebook). on_score(i, score) is called as soon as a sequence's score is
        final, on_progress(progress) about twice per second.
        Raises CtworkerError; an error in one sequence names the sequence's number.
        """
        items = [_item(i, sequence) for i, sequence in enumerate(_list(sequences))]
        head = {"max_length": self.max_length if max_length is None else max_length, **self._over(vocabulary)}
        return self._run("loglikelihood", items, head, on_score, shown("score", progress, on_progress))

    def score_rolling(
        self,
        texts: Iterable[Tokens],
        prefix_token: int,
        *,
        max_length: int | None = None,
        context_length: int = 1,
        vocabulary: int | None = None,
        on_score: Callable[[int, Score], None] | None = None,
        progress: bool | None = None,
        on_progress: OnProgress | None = None,
    ) -> Scores[Score]:
        """Log-probabilities of every token of texts of any length, in lm-eval's windows of max_length tokens; the first
        token is conditioned on prefix_token (for example BOS). Otherwise like score()."""
        items = [Item(_tokens(i, text)) for i, text in enumerate(_list(texts))]
        head = {
            "max_length": self.max_length if max_length is None else max_length,
            "prefix_token": prefix_token,
            "context_length": context_length,
            **self._over(vocabulary),
        }
        return self._run("loglikelihood_rolling", items, head, on_score, shown("score_rolling", progress, on_progress))

    def score_windows(
        self,
        texts: Iterable[Tokens],
        window: int,
        *,
        stride: int | None = None,
        first: int = 1,
        rows: int = 0,
        new: bool = False,
        tail: bool = False,
        bos: int | None = None,
        bos_mode: str = "replace",
        max_length: int | None = None,
        vocabulary: int | None = None,
        on_score: Callable[[int, Score], None] | None = None,
        progress: bool | None = None,
        on_progress: OnProgress | None = None,
    ) -> Scores[Score]:
        """Log-probabilities of texts that the worker cuts into windows by a rule (docs/PROTOCOL.md, "Windows of a rule"):
        `window` tokens every `stride` tokens, scored from position `first`; `rows` windows of each text (0: all); `new`:
        only tokens behind the window before; `tail`: also the shorter last window; `bos`: a token, which replaces each
        window's first token (bos_mode "replace") or precedes it ("prefix"). Otherwise like score()."""
        items = [Item(_tokens(i, text)) for i, text in enumerate(_list(texts))]
        head = _rule(window, stride, first, rows, new, tail, bos, bos_mode)
        head |= {"max_length": self.max_length if max_length is None else max_length, **self._over(vocabulary)}
        return self._run("loglikelihood_windows", items, head, on_score, shown("score_windows", progress, on_progress))

    def compare_windows(
        self,
        texts: Iterable[Tokens],
        window: int,
        *,
        reference: str = "reference",
        stride: int | None = None,
        first: int = 1,
        rows: int = 0,
        new: bool = False,
        tail: bool = False,
        bos: int | None = None,
        bos_mode: str = "replace",
        layers: bool = False,
        matrices: bool = False,
        on_result: Callable[[int, Comparison], None] | None = None,
        progress: bool | None = None,
        on_progress: OnProgress | None = None,
    ) -> list[Comparison]:
        """How the model's predictions differ from those of the worker's model `reference`, at every target of texts that are
        cut as score_windows() cuts them. Both models must read the same tokens. layers: their hidden states after each
        layer are compared, too, for which both need the same number of layers, of one width. matrices: each quantised
        matrix is put into the reference alone, too; it takes about half a scoring per matrix."""
        items = [Item(_tokens(i, text)) for i, text in enumerate(_list(texts))]
        head = {"reference": reference, **_rule(window, stride, first, rows, new, tail, bos, bos_mode)}
        if layers:
            head["layers"] = True
        if matrices:
            head["matrices"] = True
        results: dict[int, Comparison] = {}

        def keep(i: int, result: Comparison) -> None:
            results[i] = result
            if on_result is not None:
                on_result(i, result)

        self._submit("divergence", items, head, keep, shown("compare_windows", progress, on_progress), "text {}".format)
        return [results[i] for i in range(len(items))]

    def _over(self, vocabulary: int | None) -> dict[str, int]:
        return {} if vocabulary in (None, self.model["vocab"]) else {"vocabulary": vocabulary}

    def _run(
        self,
        kind: str,
        items: Sequence[Item],
        head: dict[str, Any],
        on_score: Callable[[int, Score], None] | None,
        progress: AbstractContextManager[OnProgress],
    ) -> Scores[Score]:
        scores: dict[int, Score] = {}
        asked = [i for i, item in enumerate(items) if len(item.tokens) > item.n_context]

        def keep(k: int, score: Score) -> None:
            scores[asked[k]] = score
            if on_score is not None:
                on_score(asked[k], score)

        head = {"columns": _COLUMNS, **head}
        self._submit(kind, [items[i] for i in asked], head, keep, progress, lambda k: f"sequence {asked[k]}")
        return Scores(scores[i] if i in scores else nothing(self.numerics, self.identity) for i in range(len(items)))

    def _submit(
        self,
        kind: str,
        items: Sequence[Item],
        head: dict[str, Any],
        keep: Callable[[int, Any], None],
        progress: AbstractContextManager[OnProgress],
        where: Callable[[int], str],
    ) -> None:
        if self._closed:
            raise CtworkerError(f"this {type(self).__name__} is closed: create another one")
        _check_numbers(head)
        with progress as tell:
            self._session.score(kind, items, head, on_score=keep, on_progress=tell, where=where)


class TokenWorker(TokenClient):
    """Starts a worker. It stops at close(), at the end of the `with` block, and when this object or process ends.

    model: checkpoint folder or hub name. reference: folder or hub name of a second model, which the worker loads under the
    name `reference` for compare() and compare_windows(); reference_dtype: dtype of its activations, if not `dtype`.
    Raises CtworkerError with the worker's message.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        dtype: str = "auto",
        device: str | None = None,
        reference: str | os.PathLike[str] | None = None,
        reference_dtype: str | None = None,
        tokenizer: str | os.PathLike[str] | None = None,
        revision: str = "main",
        subfolder: str = "",
        gguf_file: str | None = None,
        config: str | os.PathLike[str] | None = None,
        token: str | bool | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        local_files_only: bool = False,
        activations: str | None = None,
        max_length: int | None = None,
        devices: str | Sequence[int] | None = None,
        device_memory_limit: str | None = None,
        memory_limit: str | None = None,
        weights_limit: str | None = None,
        host_memory_limit: str | None = None,
        placement: str | None = None,
        cpu_variant: str | None = None,
        threads: int | None = None,
        vocabulary: int | None = None,
        store: str | os.PathLike[str] | None = None,
        store_limit: str | None = None,
        hidden: str | os.PathLike[str] | None = None,
        hidden_limit: str | None = None,
        timeout: float = 120.0,
        load_timeout: float | None = None,
        worker_log: str | os.PathLike[str] | None = None,
    ) -> None:
        given = {name: value for name, value in locals().items() if name in OPTIONS and name != "model"}
        settings = arguments.parse(given | {"pretrained": os.fspath(model)})
        checkpoint = hub.resolve(settings.pretrained or "", settings, weights=True)
        settings = hub.with_original(settings, checkpoint)
        beside = []
        if reference is not None:
            if settings.config is not None:
                raise ArgumentError(f"config={settings.config} would be the reference's, too: leave reference= out")
            name = "reference"
            if reference_dtype is not None:
                name += f":{values.dtype('reference_dtype', reference_dtype)}"
            other = replace(settings, pretrained=os.fspath(reference), gguf_file=None)
            beside.append(f"{name}={hub.resolve(os.fspath(reference), other, weights=True).folder}")
        self._open(settings, checkpoint, beside)

    @property
    def pid(self) -> int:
        """Process id of the worker."""
        return self._session.pid


def _rule(
    window: int, stride: int | None, first: int, rows: int, new: bool, tail: bool, bos: int | None, bos_mode: str
) -> dict[str, Any]:
    """The keys of a head that say how texts are cut (docs/PROTOCOL.md, "Windows of a rule")."""
    rule = {
        "window": window, "stride": window if stride is None else stride, "first": first, "rows": rows, "new": new, "tail": tail
    }  # fmt: skip
    return rule if bos is None else rule | {"bos": bos, "bos_mode": bos_mode}


_LEAST = {
    "max_length": 1, "context_length": 1, "window": 1, "stride": 1, "first": 0, "rows": 0,
    "prefix_token": 0, "bos": 0, "vocabulary": 1,
}  # fmt: skip


def _check_numbers(head: dict[str, Any]) -> None:
    """Raises ArgumentError for what is no number of the protocol; the worker checks the ranges."""
    for name, least in _LEAST.items():
        value = head.get(name, least)
        if not isinstance(value, int) or not least <= value < 1 << 31:
            raise ArgumentError(f"{name}={value!r}: expected a whole number from {least} to {(1 << 31) - 1}")


def _list(sequences: Any) -> list[Any]:
    try:
        return list(sequences)
    except TypeError:
        raise ArgumentError(f"expected a list of sequences, found {type(sequences).__name__}") from None


def _tokens(i: int, tokens: Any) -> array[int]:
    """The tokens as an array. Raises ArgumentError when they are not token ids."""
    try:
        return tokens if isinstance(tokens, array) and tokens.typecode == INT32 else array(INT32, list(tokens))
    except (TypeError, OverflowError) as error:
        raise ArgumentError(
            f"sequence {i}: expected token ids or a tuple (context, continuation) of token ids: {error}"
        ) from error


def _item(i: int, sequence: Any) -> Item:
    if isinstance(sequence, tuple) and len(sequence) == 2 and isinstance(sequence[0], Iterable):
        context, continuation = _tokens(i, sequence[0]), _tokens(i, sequence[1])
        if continuation and not context:
            raise ArgumentError(
                f"sequence {i}: the context has no token: it needs the token that the continuation's first token is "
                "conditioned on (for example BOS)"
            )
        return Item(context + continuation, len(context))
    tokens = _tokens(i, sequence)
    return Item(tokens, min(1, len(tokens)))
