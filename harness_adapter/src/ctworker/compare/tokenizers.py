"""Whether two checkpoints' tokenizers agree on a text: otherwise their predictions cannot be compared token by token."""

from __future__ import annotations

from collections.abc import Sequence

from ..text.tokenizer import TextTokenizer

_SHOWN = 40  # characters of a text in a message


def difference(
    a: TextTokenizer, b: TextTokenizer, texts: Sequence[str], a_ids: Sequence[list[int]], b_ids: Sequence[list[int]]
) -> str | None:
    """How b differs from a, as the end of a sentence; None if they agree.

    They agree if every text has the same ids under both, and every id of the texts is the same token in both. So files
    that are written differently, unused tokens added at the end, and a padded vocabulary do not matter.
    a_ids, b_ids: the ids of the texts.
    """
    for text, before, after in zip(texts, a_ids, b_ids, strict=True):
        if before != after:
            return _first(a, b, text, before, after)
    a_tokens, b_tokens = ({i: token for token, i in x.get_vocab().items()} for x in (a, b))
    for i in sorted({i for ids in a_ids for i in ids}):
        if a_tokens.get(i) != b_tokens.get(i):
            return _named(i, a_tokens.get(i), b_tokens.get(i), a, b)
    return None


def _first(a: TextTokenizer, b: TextTokenizer, text: str, before: list[int], after: list[int]) -> str:
    for one, other, longer, shorter in ((a, b, before, after), (b, a, after, before)):
        if longer[1:] == shorter and longer[:1] == [one.bos_token_id]:
            return f"{one.name_or_path} puts {one.bos_token} before a text, {other.name_or_path} does not"
    k = next((k for k, (x, y) in enumerate(zip(before, after)) if x != y), min(len(before), len(after)))
    a_vocab, b_vocab = a.get_vocab(), b.get_vocab()
    if a_vocab != b_vocab:
        a_tokens, b_tokens = ({i: token for token, i in x.items()} for x in (a_vocab, b_vocab))
        i = min(i for i in {*a_tokens, *b_tokens} if a_tokens.get(i) != b_tokens.get(i))
        return _named(i, a_tokens.get(i), b_tokens.get(i), a, b)
    where = a.decode(before[max(0, k - 8) : k])[-_SHOWN:]
    split = [_tokens(x, ids[k : k + 3]) for x, ids in ((a, before), (b, after))]
    return (
        f"after {where!r}, {a.name_or_path} has {split[0]} and {b.name_or_path} has {split[1]} "
        f"({len(before)} and {len(after)} tokens in all)"
    )


def _tokens(tokenizer: TextTokenizer, ids: list[int]) -> str:
    return "the tokens " + " ".join(map(repr, tokenizer.convert_ids_to_tokens(ids))) if ids else "no token"


def _named(i: int, before: str | None, after: str | None, a: TextTokenizer, b: TextTokenizer) -> str:
    what = ["no token" if token is None else repr(token) for token in (before, after)]
    return f"token {i} is {what[0]} in {a.name_or_path} and {what[1]} in {b.name_or_path}"
