"""One perplexity: texts to tokens, the worker's scores to a number with its standard error. docs/METHODS.md defines them."""

from __future__ import annotations

import math
import re
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..base.errors import ArgumentError, CtworkerError
from ..base.progress import Progress
from ..base.tables import counted
from ..client.results import Score
from ..client.token_client import TokenClient
from ..text.encoding import Encoder
from ..text.tokenizer import TextTokenizer
from .methods import Method, least_tokens, total
from .texts import Text


@dataclass(frozen=True)
class Document:
    """tokens: with the special tokens that the tokenizer adds. n_bytes, n_words: how many bytes, and how many words, of the
    text start before each token, and behind the last; for lm-eval, of the whole document before detokenisation."""

    tokens: array[int]
    n_bytes: list[int]
    n_words: list[int]


@dataclass(frozen=True)
class Tokens:
    """A tokenised text. bos: the token that the method puts into or before windows, or None. n_ids: the tokenizer's ids are
    below it; 0: unknown."""

    text: Text
    documents: list[Document]
    bos: int | None
    n_ids: int = 0

    @property
    def sizes(self) -> list[int]:
        """Tokens of each document."""
        return [len(document.tokens) for document in self.documents]

    def noted(self, note: str) -> Tokens:
        """The same with one more note on the text. The text itself stays: it may be used again."""
        return replace(self, text=replace(self.text, notes=[*self.text.notes, note]))


@dataclass(frozen=True)
class Span:
    """One window of document `document`: its targets are the tokens begin .. end-1 of the document."""

    document: int
    window: int
    begin: int
    end: int


@dataclass(frozen=True)
class Estimate:
    """nll: mean negative log-probability (natural log), over tokens or over words; se: its standard error, None if there are
    fewer than two clusters; clusters: what the standard error is over, and how many."""

    nll: float
    se: float | None
    over: str
    clusters: int

    @property
    def perplexity(self) -> float:
        return math.exp(self.nll)

    @property
    def perplexity_se(self) -> float | None:
        return None if self.se is None else self.se * self.perplexity


@dataclass(frozen=True)
class Result:
    """The numbers of one text. nll_sum: over all scored tokens. n_bytes, n_words: of the scored tokens, counted as often as
    they are scored (lm-eval: of the original documents). method: with the values that were used. vocabulary: probabilities
    are over so many ids. pieces: negative log-probability and weight of each piece of text (window, block or document): their
    ratio is the mean, and two models' pieces pair."""

    tokens: Tokens
    method: Method
    scores: list[Score]
    spans: list[Span]
    estimate: Estimate
    nll_sum: float
    n_scored: int
    n_bytes: int
    n_words: int
    vocabulary: int
    pieces: tuple[list[float], list[int]] = ([], [])

    @property
    def source(self) -> dict[str, str]:
        """What the numbers depend on besides tokens and method."""
        return {"identity": self.scores[0].identity, "numerics": self.scores[0].numerics}

    def fields(self) -> dict[str, Any]:
        """For JSON."""
        estimate, text = self.estimate, self.tokens.text
        per_byte = self.nll_sum / self.n_bytes if self.n_bytes else None
        return {
            "text": text.name, "source": text.source, "sha256": text.sha256, "bytes": text.n_bytes,
            "documents": len(self.tokens.documents), "tokens": sum(self.tokens.sizes),
            "windows": len(self.spans), "scored_tokens": self.n_scored, "vocabulary": self.vocabulary,
            "perplexity": estimate.perplexity, "perplexity_se": estimate.perplexity_se,
            "nll": estimate.nll, "nll_se": estimate.se, "se_over": estimate.over, "se_clusters": estimate.clusters,
            "nll_sum": self.nll_sum, "token_perplexity": math.exp(self.nll_sum / self.n_scored),
            "scored_bytes": self.n_bytes, "scored_words": self.n_words,
            "byte_perplexity": None if per_byte is None else math.exp(per_byte),
            "bits_per_byte": None if per_byte is None else per_byte / math.log(2),
            "word_perplexity": math.exp(self.nll_sum / self.n_words) if self.n_words else None,
            "method": self.method.fields(), "notes": text.notes,
        }  # fmt: skip


# ---- tokens ----


def check_bos(method: Method, tokenizer: TextTokenizer) -> int | None:
    """The token that the method puts into or before windows. Raises ArgumentError if the tokenizer has none."""
    if method.bos_token is not None and method.bos_token >= len(tokenizer):
        raise ArgumentError(f"--bos-token {method.bos_token}: the tokenizer has only {len(tokenizer)} tokens")
    if method.bos in ("none", "stream"):
        return None
    if method.bos == "lm-eval":
        return Encoder(tokenizer, add_bos_token=None, prefix_token_id=method.bos_token).prefix_token_id
    bos = tokenizer.bos_token_id if method.bos_token is None else method.bos_token
    adds = tokenizer.encode("a")[:1] == [tokenizer.bos_token_id]
    if method.bos == "replace-if-added":
        return bos if adds or method.bos_token is not None else None
    if bos is None:
        raise ArgumentError(
            f"method {method.name} with bos {method.bos} needs BOS, but the tokenizer of {tokenizer.name_or_path} has none: "
            "name a token with --bos-token ID, or choose --bos none"
        )
    if not adds and method.bos_token is None:
        raise ArgumentError(
            f"method {method.name} with bos {method.bos} needs BOS, but the tokenizer of {tokenizer.name_or_path} does not add "
            f"its BOS to texts, so the model was probably trained without: pass --bos-token {bos} to use it all the same, or "
            "choose --bos none"
        )
    return bos


def tokenize(text: Text, method: Method, tokenizer: TextTokenizer) -> Tokens:
    """Raises ArgumentError when the method needs a BOS that the tokenizer does not have or add."""
    bos = check_bos(method, tokenizer)
    if method.cut == "lm-eval":  # lm-eval counts words and bytes so
        encoder = Encoder(tokenizer, add_bos_token=None, prefix_token_id=method.bos_token)
        documents = [
            Document(array("i", ids), [len(original.encode())], [len(re.split(r"\s+", original))])
            for ids, original in zip(encoder.texts(text.documents), text.originals, strict=True)
        ]
        return Tokens(text, documents, bos, tokenizer.n_ids)
    special = method.bos in ("stream", "replace", "replace-if-added")
    documents = []
    for document in text.documents:
        ids, starts = tokenizer.encode_starts(document, add_special_tokens=special)
        documents.append(Document(array("i", ids), *count_before(document, [*starts, len(document)])))
    return Tokens(text, documents, bos, tokenizer.n_ids)


def count_before(text: str, places: Sequence[int]) -> tuple[list[int], list[int]]:
    """How many bytes, and how many words, of the text start before each place; the places ascend."""
    n_bytes, at, before = 0, 0, []
    for place in places:
        if place > at:
            n_bytes, at = n_bytes + len(text[at:place].encode()), place
        before.append(n_bytes)
    words = [match.start() for match in re.finditer(r"\S+", text)]
    return before, [bisect_left(words, place) for place in places]


def check(tokens: Tokens, method: Method) -> Tokens:
    """The tokens without documents that are too short for a window; the method is resolved. Raises ArgumentError when none is
    left."""
    least = least_tokens(method)
    kept = [document for document in tokens.documents if len(document.tokens) >= least]
    text = tokens.text
    if not kept:
        longest = max(tokens.sizes)
        raise ArgumentError(
            f"{text.source}: the text has {longest} tokens, but method {method.name} needs at least {least} for a window of "
            f"{method.window}: choose a smaller --window, or a longer text"
        )
    if len(kept) < len(tokens.documents):
        missing = len(tokens.documents) - len(kept)
        note = f"{text.source}: {missing} of {len(tokens.documents)} documents have fewer than {least} tokens, and are left out"
        return replace(tokens.noted(note), documents=kept)
    return tokens


# ---- scores ----


def limited(method: Method, tokens: Tokens) -> Method:
    """The method with the number of windows that the data set limits."""
    return replace(method, max_windows=method.max_windows or tokens.text.windows) if method.cut == "rule" else method


def inputs(method: Method, tokens: Tokens) -> list[array[int]]:
    """What the worker cuts into windows: each document without the method's spare tokens."""
    return [document.tokens[: len(document.tokens) - method.spare] for document in tokens.documents]


def rule(method: Method, tokens: Tokens) -> dict[str, Any]:
    """The keys of a job's head that cut the texts (docs/PROTOCOL.md, "Windows of a rule"); the method is resolved."""
    keys = ("window", "stride", "first", "new", "tail")
    found = {key: getattr(method, key) for key in keys} | {"rows": method.max_windows}
    if tokens.bos is None:
        return found
    return found | {"bos": tokens.bos, "bos_mode": "prefix" if method.bos == "prefix" else "replace"}


def measure(
    client: TokenClient,
    tokens: Tokens,
    method: Method,
    on_progress: Callable[[Progress], None] | None = None,
) -> Result:
    """The perplexity of one text; `method` is resolved, `tokens` are checked. Raises CtworkerError."""
    method = replace(limited(method, tokens), bos_token=tokens.bos)
    vocabulary = client.model["vocab"]
    if method.vocabulary == "tokenizer":  # many heads have more rows
        vocabulary = min(vocabulary, tokens.n_ids or vocabulary)
    texts = inputs(method, tokens)
    if method.cut == "lm-eval":
        assert tokens.bos is not None
        scores = client.score_rolling(
            texts, tokens.bos, max_length=int(method.window), vocabulary=vocabulary, on_progress=on_progress
        )
    else:
        scores = client.score_windows(texts, **rule(method, tokens), vocabulary=vocabulary, on_progress=on_progress)
    spans = list(_spans(tokens, method, scores))
    found, scored = len(spans), sum(score.count for score in scores)
    expected = total(method, tokens.sizes)
    if (found, scored) != (expected.windows, expected.targets):
        raise CtworkerError(
            f"the worker scored {counted(scored, 'token')} in {counted(found, 'window')}, expected {expected.targets} "
            f"in {expected.windows}: its version of the windows differs from this package's"
        )
    return _result(tokens, method, scores, spans, vocabulary)


def _spans(tokens: Tokens, method: Method, scores: Sequence[Score]) -> Iterator[Span]:
    """The windows as the worker cut them."""
    window, stride = int(method.window), int(method.stride or method.window)
    for i, score in enumerate(scores):
        n = len(tokens.documents[i].tokens) - method.spare
        if method.cut == "lm-eval":
            for k in range(0, n, window):
                yield Span(i, k // window, k, min(n, k + window))
        for k, n_counted in enumerate(score.window_counts):
            end = min(k * stride + window, n)
            yield Span(i, k, end - n_counted, end)


def logprobs_of(spans: Sequence[Span], scores: Sequence[Score]) -> Iterator[tuple[Span, array[float]]]:
    """Each window with the log-probabilities of its targets."""
    place, document = 0, -1
    for span in spans:
        place, document = (place, document) if span.document == document else (0, span.document)
        values = scores[span.document].logprobs
        yield span, values[place : place + span.end - span.begin]
        place += span.end - span.begin


def used_fields(method: Method, results: Sequence[Result]) -> dict[str, Any]:
    """The fields of the method as they were used; a field that differs between the texts (max_windows, if a data set limits them)
    as it was asked for."""
    used = [result.method.fields() for result in results]
    return {
        name: used[0][name] if all(fields[name] == used[0][name] for fields in used) else value
        for name, value in method.fields().items()
    }


# ---- statistics ----


def macro(results: Sequence[Result]) -> tuple[float, float | None]:
    """The mean of the perplexities with its standard error; each text counts once, whatever its length."""
    estimates = [result.estimate for result in results]
    errors = [estimate.perplexity_se for estimate in estimates if estimate.perplexity_se is not None]
    se = math.sqrt(math.fsum(e * e for e in errors)) / len(errors) if len(errors) == len(estimates) else None
    return math.fsum(estimate.perplexity for estimate in estimates) / len(estimates), se


def ratio(sums: Sequence[float], weights: Sequence[float], over: str) -> Estimate:
    """The ratio of two sums over clusters, with the standard error of a ratio estimator."""
    total = math.fsum(weights)
    mean = math.fsum(sums) / total
    k = len(sums)
    if k < 2:
        return Estimate(mean, None, over, k)
    squares = math.fsum((s - mean * w) ** 2 for s, w in zip(sums, weights, strict=True))
    return Estimate(mean, math.sqrt(squares * k / (k - 1)) / total, over, k)


def _by_tokens(scores: Sequence[Score]) -> Estimate:
    """As llama-perplexity: the tokens as independent draws."""
    values = [-value for score in scores for value in score.logprobs]
    n = len(values)
    mean = math.fsum(values) / n
    variance = max(0.0, math.fsum(value * value for value in values) / n - mean * mean)
    return Estimate(mean, math.sqrt(variance / (n - 1)) if n > 1 else None, "tokens", n)


def _blocks(spans: Sequence[Span], scores: Sequence[Score], length: int) -> tuple[list[float], list[int]]:
    """Sums and counts over blocks of `length` tokens of the text: windows that share scored tokens are not independent."""
    sums: dict[tuple[int, int], float] = {}
    counts: dict[tuple[int, int], int] = {}
    for span, values in logprobs_of(spans, scores):
        at = span.begin
        while at < span.end:
            block = (span.document, at // length)
            end = min(span.end, (at // length + 1) * length)
            sums[block] = sums.get(block, 0.0) - math.fsum(values[at - span.begin : end - span.begin])
            counts[block] = counts.get(block, 0) + end - at
            at = end
    return list(sums.values()), list(counts.values())


def _estimate(method: Method, scores: Sequence[Score], pieces: tuple[list[float], list[int], str]) -> Estimate:
    if method.error == "tokens" and method.mean == "token":
        return _by_tokens(scores)
    return ratio(*pieces)


def _pieces(
    method: Method, scores: Sequence[Score], spans: Sequence[Span], words: Sequence[int]
) -> tuple[list[float], list[int], str]:
    """(sums, weights, what they are over): pieces of the text that share no scored token."""
    if method.mean == "word":
        return [-score.sum for score in scores], list(words), "documents"
    if method.error == "documents" or method.cut == "lm-eval":
        return [-score.sum for score in scores], [score.count for score in scores], "documents"
    window, stride = int(method.window), int(method.stride or method.window)
    if not method.new and stride < window - int(method.first):
        return *_blocks(spans, scores, window), f"blocks of {window} tokens"
    sums = [-value for score in scores for value in score.window_sums]
    counts = [span.end - span.begin for span in spans]
    if method.mean == "huggingface":
        weights = [n - (span.window > 0) for n, span in zip(counts, spans, strict=True)]
        return [s / n * w for s, n, w in zip(sums, counts, weights, strict=True)], weights, "windows"
    return sums, counts, "windows"


def _result(
    tokens: Tokens, method: Method, scores: list[Score], spans: list[Span], vocabulary: int
) -> Result:
    words, n_bytes = [0] * len(scores), 0
    if method.cut == "lm-eval":
        words = [document.n_words[-1] for document in tokens.documents]
        n_bytes = sum(document.n_bytes[-1] for document in tokens.documents)
    for span in spans if method.cut == "rule" else ():
        document = tokens.documents[span.document]
        n_bytes += document.n_bytes[span.end] - document.n_bytes[span.begin]
        words[span.document] += document.n_words[span.end] - document.n_words[span.begin]
    sums, weights, over = _pieces(method, scores, spans, words)
    return Result(
        tokens, method, scores, spans, _estimate(method, scores, (sums, weights, over)),
        nll_sum=-math.fsum(score.sum for score in scores), n_scored=sum(score.count for score in scores),
        n_bytes=n_bytes, n_words=sum(words), vocabulary=vocabulary, pieces=(sums, weights),
    )  # fmt: skip
