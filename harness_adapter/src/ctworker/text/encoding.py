"""Converts texts to token lists exactly as lm-eval's hf backend does: BOS, prefix token, context and continuation.

docs/METHODS.md explains the rules, "Tokens".
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ..base.errors import ArgumentError
from ..client.batches import Item
from .tokenizer import TextTokenizer
from .tokenizer_errors import check_text

log = logging.getLogger("lm_eval.ctworker")

_BATCH_TEXTS = 2048


@dataclass(frozen=True)
class Pair:
    """Token ids of one request; an empty continuation has nothing to score."""

    context: list[int]
    continuation: list[int]


class Encoder:
    """add_bos_token, prefix_token_id: lm-eval's arguments; None: the tokenizer decides."""

    def __init__(
        self, tokenizer: TextTokenizer, *, add_bos_token: bool | None, prefix_token_id: int | None
    ) -> None:
        self.tokenizer = tokenizer
        self.add_bos_token = add_bos_token
        self._prefix = prefix_token_id
        self._prefix_text: str | None = None

    @property
    def prefix_token_id(self) -> int:
        """The token that a text without context is conditioned on: the argument, else BOS, else EOS."""
        for token in (self._prefix, self.tokenizer.bos_token_id, self.tokenizer.eos_token_id):
            if token is not None:
                return token
        raise ArgumentError(
            f"the tokenizer of {self.tokenizer.name_or_path} has neither BOS nor EOS, one of which a text "
            "without context is conditioned on: pass a token's number with prefix_token_id="
        )

    def _adds_special(self, text: str, add_special_tokens: bool | None) -> bool:
        """Whether the tokenizer adds its special tokens to this text."""
        if add_special_tokens is not None:
            return add_special_tokens
        if self._prefix_text is None:
            self._prefix_text = self.tokenizer.decode(self.prefix_token_id)
        if text.startswith(self._prefix_text):
            return False  # a chat template has already written the token
        return True if self.add_bos_token is None else self.add_bos_token

    def encode(self, text: str, add_special_tokens: bool | None = None) -> list[int]:
        return self.tokenizer.encode(
            text, add_special_tokens=self._adds_special(text, add_special_tokens)
        )

    def encode_many(
        self, texts: Sequence[str], add_special_tokens: bool | None = None
    ) -> list[list[int]]:
        """encode() of each text; equal texts are encoded once."""
        known: dict[str, list[int]] = {}
        for special in (True, False):
            group = [
                text for text in dict.fromkeys(texts) if self._adds_special(text, add_special_tokens) == special
            ]
            for ids, text in zip(
                self.tokenizer.encode_batch(group, add_special_tokens=special), group, strict=True
            ):
                known[text] = ids
        return [known[text] for text in texts]

    def pairs(
        self,
        requests: Sequence[tuple[str, str]],
        where: Callable[[int], str] = "request {}".format,
    ) -> Iterator[Pair]:
        """Context and continuation of each request (one slice at a time, for memory and for progress).

        White space at the end of a context moves to the continuation. The two are encoded together and split
        where the context alone would end; a token that spans the boundary belongs to the context. If the context
        is empty, or is white space that encodes to nothing, the prefix token precedes the continuation, unless
        the continuation already begins with it. where(i) names a request in messages.
        """
        for start in range(0, len(requests), _BATCH_TEXTS):
            for i, texts in enumerate(requests[start : start + _BATCH_TEXTS], start):
                check_text("".join(texts), where(i))
            part = [_move_space(*request) for request in requests[start : start + _BATCH_TEXTS]]
            contexts = self.encode_many([context for context, _, _ in part])
            wholes = self.encode_many([context + continuation for context, continuation, _ in part])
            bare = iter(
                self.encode_many([continuation for _, continuation, empty in part if empty], False)
            )
            for i, (context, continuation, empty), context_ids, whole_ids in zip(
                range(start, start + len(part)), part, contexts, wholes, strict=True
            ):
                if empty:
                    yield self._after_prefix(next(bare))
                elif not context and not context_ids:
                    yield self._after_prefix(whole_ids)
                else:
                    pair = Pair(context_ids, whole_ids[len(context_ids) :])
                    if not pair.continuation and continuation:
                        raise ArgumentError(
                            f"{where(i)}: the continuation {continuation[:60]!r} has no token of its own after the context "
                            f"{context[-60:]!r}: it is part of the context's last token, so it has no "
                            "log-probability: leave this task out"
                        )
                    yield pair

    def _after_prefix(self, ids: list[int]) -> Pair:
        prefix = self.prefix_token_id
        return Pair(ids[:1], ids[1:]) if ids and ids[0] == prefix else Pair([prefix], ids)

    def texts(
        self, texts: Sequence[str], where: Callable[[int], str] = "text {}".format
    ) -> Iterator[list[int]]:
        """Token ids of whole texts. where(i) names a text in messages."""
        for start in range(0, len(texts), _BATCH_TEXTS):
            for i, text in enumerate(texts[start : start + _BATCH_TEXTS], start):
                check_text(text, where(i))
            yield from self.encode_many(texts[start : start + _BATCH_TEXTS])


def _move_space(context: str, continuation: str) -> tuple[str, str, bool]:
    """(context, continuation, whether the context was empty), with the context's trailing white space moved over."""
    kept = context.rstrip()
    return kept, context[len(kept) :] + continuation, context == ""


def make_item(pair: Pair, max_length: int, where: str) -> tuple[Item, int]:
    """The item of a pair, truncated from the left to max_length + 1 tokens, and the number of tokens removed.

    Raises ArgumentError when the continuation alone is longer than max_length.
    """
    if len(pair.continuation) > max_length:
        raise ArgumentError(
            f"{where}: the continuation has {len(pair.continuation)} tokens, the model takes at most {max_length}: raise "
            "max_length= if the model allows it, or leave this task out (nothing was scored)"
        )
    n_context = max(1, min(len(pair.context), max_length + 1 - len(pair.continuation)))
    cut = len(pair.context) - n_context
    return Item(array("i", pair.context[cut:] + pair.continuation), n_context), cut
