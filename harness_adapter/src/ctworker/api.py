"""The Python API: scores, perplexities and divergences, without lm-eval. See docs/PYTHON.md and docs/API.md.

Scoring token ids needs msgpack only: what texts need is imported by the methods for texts."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .base.errors import ArgumentError, CtworkerError
from .client import hub
from .client.notebook import OnProgress, shown
from .client.results import Divergence, Estimate, Perplexity, Score, Scores, TextScore
from .client.token_client import TokenClient, TokenWorker
from .options import spelling
from .options.settings import On, parameters
from .perplexity import methods, texts

if TYPE_CHECKING:
    from .perplexity.methods import Method
    from .perplexity.texts import Text
    from .text.tokenizer import TextTokenizer

#: A text, or the rows of a text, or a file with a text.
TextOrFile = str | os.PathLike[str] | Sequence[str]


class Client(TokenClient):
    """Connects to a running worker. Not thread-safe; a forked process must create its own Client.

    endpoint: `ipc:///path` or `tcp://host:port`. The other parameters are options:
    """

    _text_tokenizer: TextTokenizer | None = None

    @property
    def tokenizer(self) -> TextTokenizer:
        """The tokenizer: that of the parameter `tokenizer`, else the model's. Raises CtworkerError."""
        if self._text_tokenizer is None:
            from .text.tokenizer import TextTokenizer

            name = self._settings.tokenizer or self._settings.pretrained or str(self.folder or "")
            if not name:
                raise ArgumentError(
                    f"the files of the model at {self.endpoint} are not on this machine: pass its tokenizer with tokenizer= (a "
                    "folder or a hub name)"
                )
            source = hub.resolve(name, self._settings, weights=False)
            self._text_tokenizer = TextTokenizer(source.folder, name=source.name)
        return self._text_tokenizer

    def score_text(
        self,
        texts: Iterable[str | tuple[str, str]],
        *,
        max_length: int | None = None,
        vocabulary: int | None = None,
        progress: bool | None = None,
        on_progress: OnProgress | None = None,
    ) -> Scores[TextScore]:
        """Log-probabilities (nats) of texts, in the order of the texts, tokenised as by lm-eval.

        A str: every token is scored, in lm-eval's windows, the first one after BOS (else EOS), as a request of
        loglikelihood_rolling. A tuple (context, continuation): the continuation's tokens are scored, as a request of
        loglikelihood. progress: a bar (None: in a notebook). Raises CtworkerError.
        """
        from .text.encoding import Encoder

        given = list(texts)
        encoder = Encoder(self.tokenizer, add_bos_token=None, prefix_token_id=None)
        whole = [text for text in given if isinstance(text, str)]
        pairs = [(text[0], text[1]) for text in given if not isinstance(text, str)]
        ids = [array("i", each) for each in encoder.texts(whole)]
        split = [(array("i", pair.context), array("i", pair.continuation)) for pair in encoder.pairs(pairs)]
        found: dict[str, Iterator[TextScore]] = {}
        with shown("score_text", progress, on_progress) as tell:
            scores = self.score_rolling(
                ids, encoder.prefix_token_id, max_length=max_length, vocabulary=vocabulary, on_progress=tell
            )
            found["whole"] = (_of_text(*each) for each in zip(whole, ids, scores, strict=True))
            scores = self.score(split, max_length=max_length, vocabulary=vocabulary, on_progress=tell)
            found["pair"] = (_of_text(text, part[1], score) for text, part, score in zip(pairs, split, scores, strict=True))
        return Scores(next(found["whole" if isinstance(text, str) else "pair"]) for text in given)

    def perplexity(
        self,
        text: TextOrFile | None = None,
        *,
        dataset: str | None = None,
        column: str | None = None,
        method: str = methods.DEFAULT,
        join: str | None = None,
        bos: str | None = None,
        window: int | str | None = None,
        stride: int | None = None,
        first: int | str | None = None,
        new: bool | None = None,
        tail: bool | None = None,
        spare: int | None = None,
        max_windows: int | None = None,
        vocabulary: str | None = None,
        mean: str | None = None,
        error: str | None = None,
        bos_token: int | None = None,
        progress: bool | None = None,
        on_progress: OnProgress | None = None,
    ) -> Perplexity:
        """One perplexity by a named method, with its standard error: the numbers of `ctworker-ppl`, bit for bit.

        text: the text itself; a list: its rows; a path object: a file (plain text, Parquet, JSON lines). dataset: instead of a
        text, a data set as of `ctworker-ppl --dataset`; without both, wikitext2. column: of Parquet and JSON lines. method: the
        method's name (docs/METHODS.md), of which the following parameters replace single fields. progress: a bar (None: in a
        notebook). Raises CtworkerError.
        """
        from .perplexity import measure

        with _in_python():
            chosen = methods.choose(method, _given(locals()))
            loaded = _load(text, dataset, column, chosen, join_given=join is not None)
            tokens = measure.tokenize(loaded, chosen, self.tokenizer)
            used = methods.resolve(chosen, self.max_length)
            with shown(loaded.name, progress, on_progress) as tell:
                result = measure.measure(self, measure.check(tokens, used), used, tell)
        fields = result.fields() | result.source
        return Perplexity(**{name: fields[name] for name in Perplexity.__dataclass_fields__})

    def compare(
        self,
        text: TextOrFile | None = None,
        *,
        reference: str = "reference",
        dataset: str | None = None,
        column: str | None = None,
        method: str = methods.DEFAULT,
        join: str | None = None,
        bos: str | None = None,
        window: int | str | None = None,
        stride: int | None = None,
        first: int | str | None = None,
        new: bool | None = None,
        tail: bool | None = None,
        spare: int | None = None,
        max_windows: int | None = None,
        bos_token: int | None = None,
        layers: bool = False,
        matrices: int | None = None,
        worst: int = 5,
        progress: bool | None = None,
        on_progress: OnProgress | None = None,
    ) -> Divergence:
        """How the model's predictions differ from those of the worker's model `reference`: the numbers of `ctworker-compare`,
        bit for bit. Needs numpy (`ctworker[compare]`).

        text, dataset, column, method and its fields, progress: as of perplexity(). layers: hidden states are compared after
        each layer, too. matrices: each quantised matrix is also put into the reference alone, on the first so many windows of
        each document. worst: number of positions to report. Raises CtworkerError.
        """
        from .compare import main, models

        main.require_numpy()
        with _in_python():
            chosen = methods.choose(method, _given(locals()))
            loaded = _load(text, dataset, column, chosen, join_given=join is not None)
            asked = models.Options(
                reference, [self.model["name"]], loaded, chosen, endpoint=self.endpoint, worst=worst, layers=layers,
                matrices=matrices, token_file=self._settings.token_file, tokenizer=self._settings.tokenizer,
            )  # fmt: skip
            with shown(loaded.name, progress, on_progress) as tell:
                report = models.compare(models.prepare(asked), lambda i, n, label, now: tell(now))
        return _divergence(report)


class Worker(TokenWorker, Client):
    """Starts a worker. It stops at close(), at the end of the `with` block, and when this object or process ends.

    model: checkpoint folder or hub name. reference: folder or hub name of a second model, which the worker loads under the
    name `reference` for compare() and compare_windows(); reference_dtype: dtype of its activations, if not `dtype`.
    The other parameters are options:
    """


for _class, _interface in ((Client, On.CLIENT), (Worker, On.WORKER)):
    _class.__doc__ = f"{(_class.__doc__ or '').rstrip()}\n\n{parameters(_interface)}"


@contextmanager
def _in_python() -> Iterator[None]:
    """Errors about texts and methods, which the commands share, speak of parameters."""
    try:
        yield
    except CtworkerError as error:
        message = spelling.for_python(str(error), (*methods.FIELDS, "method", "dataset", "text", "column"))
        if message == str(error):
            raise
        raise (ArgumentError if isinstance(error, ArgumentError) else CtworkerError)(message) from error


def _given(parameters: dict[str, Any]) -> dict[str, Any]:
    """The fields of a method among a call's parameters."""
    return {name: parameters[name] for name in methods.FIELDS if parameters.get(name) is not None}


def _load(text: TextOrFile | None, dataset: str | None, column: str | None, method: Method, *, join_given: bool) -> Text:
    if text is not None and dataset is not None:
        raise ArgumentError("text and dataset: pass only one of them")
    if text is None:
        return texts.load(dataset or "wikitext2", method.join, join_given=join_given, column=column)
    if isinstance(text, os.PathLike):
        return texts.load_file(str(Path(text)), method.join, column)
    return texts.given([text] if isinstance(text, str) else list(text), method.join)


def _of_text(text: str | tuple[str, str], tokens: array[int], score: Score) -> TextScore:
    return TextScore(**vars(score), text=text, tokens=tokens)


def _divergence(report: dict[str, Any]) -> Divergence:
    (found,) = report["models"]
    estimates = {
        name: Estimate(**found["statistics"][name])
        for name in ("kl", "kl_reverse", "total_variation", "same_top", "ln_ppl_ratio")
    }
    return Divergence(
        **estimates, statistics=found["statistics"], worst=found["worst"], text=report["text"], model=found["model"],
        reference=found["reference"], notes=[*report["text"]["notes"], *found["notes"]], layers=found.get("layers"),
        matrices=found.get("matrices"),
    )  # fmt: skip
