"""The tokenizer that the metadata of a GGUF file describes.

A file has the vocabulary and the merges or scores, but not the expression that splits a text, only llama.cpp's name for it
(tokenizer.ggml.pre), nor the normalizer. So only names whose token ids are proven are accepted; docs/METHODS.md, "Tokens",
lists them and what proves them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from ..base import gguf
from ..base.errors import ArgumentError

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4  # types of tokens
_BLANK = "\u2581"  # SentencePiece's

_ENDINGS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_MARKS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _cased(ending: str) -> str:
    """Words, which begin where small letters end."""
    head = r"[^\r\n\p{L}\p{N}]?"
    return f"{head}{_UPPER}*{_LOWER}+{ending}|{head}{_UPPER}+{_LOWER}*{ending}"


_GPT2 = [r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"]
_DIGITS = [r"\p{N}", *_GPT2]
_LLAMA_3 = [rf"{_ENDINGS}|{_LETTERS}|\p{{N}}{{1,3}}|{_MARKS}|{_REST}"]
_QWEN_2 = [rf"{_ENDINGS}|{_LETTERS}|\p{{N}}|{_MARKS}|{_REST}"]
_QWEN_35 = [
    rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_REST}"
]
_TEKKEN = [rf"{_cased('')}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_REST}"]
_GPT_4O = [rf"{_cased(_ENDINGS + '?')}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_REST}"]
_DEEPSEEK_3 = [
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"""
    rf"|{_REST}",
]

#: tokenizer.ggml.pre -> the expressions that split a text, one after another.
_SPLITS = {
    "gpt-2": _GPT2, "phi-2": _GPT2, "exaone4": _GPT2,
    "smollm": _DIGITS, "starcoder": _DIGITS, "command-r": _DIGITS,
    "llama-bpe": _LLAMA_3, "llama3": _LLAMA_3, "llama-v3": _LLAMA_3, "lfm2": _LLAMA_3, "falcon3": _LLAMA_3,
    "qwen2": _QWEN_2, "qwen35": _QWEN_35,
    "tekken": _TEKKEN, "gpt-4o": _GPT_4O, "llama4": _GPT_4O, "deepseek-v3": _DEEPSEEK_3,
}  # fmt: skip
#: Those whose original normalises to NFC, which no key of a file says.
_NFC = {"qwen2", "qwen35", "command-r"}
#: Those in which a whole word that is a token is not merged.
_WHOLE_WORDS = {"llama-bpe", "llama3", "llama-v3", "lfm2", "falcon3", "tekken"}
#: Those that begin with BOS if no key says so.
_BEGINS = _WHOLE_WORDS

_REMEDY = "pass the original model's tokenizer with tokenizer= (a folder or a hub name)"


class _Metadata:
    """The keys tokenizer.ggml.* of a file, checked where they are used."""

    def __init__(self, path: Path, keys: dict[str, Any]) -> None:
        self.path = path
        self._keys = keys
        self.tokens: list[str] = self._list("tokens", str)
        self.types: list[int] = self._list("token_type", int)
        self.ids = {token: i for i, token in enumerate(self.tokens)}

    def fail(self, problem: str) -> ArgumentError:
        return ArgumentError(f"{self.path}: {problem}: {_REMEDY}")

    def _list(self, name: str, kind: type) -> list[Any]:
        value = self._keys.get(f"tokenizer.ggml.{name}")
        if not isinstance(value, list) or not all(isinstance(item, kind) for item in value):
            raise self.fail(f"tokenizer.ggml.{name} is {'missing' if value is None else 'no list'}")
        if name not in ("tokens", "merges") and len(value) != len(self.tokens):
            raise self.fail(f"tokenizer.ggml.{name} has {len(value)} entries, expected {len(self.tokens)}, one a token")
        return value

    def scores(self) -> list[float]:
        return self._list("scores", float)

    def merges(self) -> list[tuple[str, str]]:
        out = []
        for merge in self._list("merges", str):
            left, _, right = merge[1:].partition(" ")  # a token may begin with a blank
            pair = (merge[:1] + left, right)
            if any(part not in self.ids for part in (*pair, "".join(pair))):
                raise self.fail(f"tokenizer.ggml.merges has {merge!r}, whose tokens are not in tokenizer.ggml.tokens")
            out.append(pair)
        return out

    def text(self, name: str) -> str | None:
        value: str | None = self._typed(f"tokenizer.ggml.{name}", str)
        return value

    def flag(self, name: str, default: bool) -> bool:
        value: bool | None = self._typed(f"tokenizer.ggml.{name}", bool)
        return default if value is None else value

    def token(self, name: str) -> str | None:
        """The text of tokenizer.ggml.NAME_token_id; None: no such token."""
        i: int | None = self._typed(f"tokenizer.ggml.{name}_token_id", int)
        if i is None or i == 2**32 - 1:  # some converters write -1
            return None
        if not 0 <= i < len(self.tokens):
            raise self.fail(f"tokenizer.ggml.{name}_token_id is {i}, but there are {len(self.tokens)} tokens")
        return self.tokens[i]

    def _typed(self, key: str, kind: type) -> Any:
        value = self._keys.get(key)
        if value is not None and not isinstance(value, kind):
            raise self.fail(f"{key} is {value!r}, expected {kind.__name__}")
        return value


def _byte_level(data: _Metadata) -> Tokenizer:
    """BPE over bytes, as in GPT-2."""
    pre = data.text("pre")
    if pre not in _SPLITS:
        named = "missing" if pre is None else f"{pre!r}, whose splits are not proven here"
        raise data.fail(f"tokenizer.ggml.pre is {named} (proven: {', '.join(_SPLITS)})")
    tokenizer = Tokenizer(models.BPE(vocab=data.ids, merges=data.merges(), ignore_merges=pre in _WHOLE_WORDS))
    splits: list[Any] = [pre_tokenizers.Split(Regex(split), behavior="isolated") for split in _SPLITS[pre]]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    if pre in _NFC:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _pieces(data: _Metadata) -> Tokenizer:
    """SentencePiece's BPE: it joins the two neighbours whose piece is a user's token, else those whose piece has the highest
    score, the left ones first."""
    scores, types = data.scores(), data.types
    known = {token: i for token, i in data.ids.items() if types[i] in (_NORMAL, _USER_DEFINED)}

    def rank(i: int) -> tuple[bool, float, int]:
        return types[i] == _NORMAL, 0.0 if types[i] == _USER_DEFINED else -scores[i], i

    merges = []
    for piece in sorted(known, key=lambda piece: rank(known[piece])):
        cuts = ((piece[:i], piece[i:]) for i in range(len(piece) - 1, 0, -1))
        merges += [pair for pair in cuts if pair[0] in known and pair[1] in known]
    unknown = data.token("unknown")
    tokenizer = Tokenizer(
        models.BPE(vocab=data.ids, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    )
    prefix = data.flag("add_space_prefix", True)
    if prefix and _USER_DEFINED in types:
        raise data.fail(
            f"tokenizer.ggml.tokens has {data.tokens[types.index(_USER_DEFINED)]!r} as a token of users, and texts get a blank "
            "before them (tokenizer.ggml.add_space_prefix): llama.cpp and SentencePiece disagree about the text after such a token"
        )
    blanks = normalizers.Replace(" ", _BLANK)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_BLANK), blanks]) if prefix else blanks
    steps = [decoders.Replace(_BLANK, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, *([decoders.Strip(content=" ", left=1)] if prefix else [])])
    return tokenizer


_MODELS: dict[str, Callable[[_Metadata], Tokenizer]] = {"gpt2": _byte_level, "llama": _pieces}
_NAMES = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}


def _add_tokens(tokenizer: Tokenizer, data: _Metadata) -> None:
    """Control tokens and tokens of users are found in a text before it is split."""
    for kind, special in ((_UNKNOWN, True), (_CONTROL, True), (_USER_DEFINED, False)):
        tokenizer.add_tokens(
            [
                AddedToken(token, special=special, normalized=False)
                for token, found in zip(data.tokens, data.types, strict=True)
                if found == kind
            ]
        )


def _set_ends(tokenizer: Tokenizer, data: _Metadata, model: str) -> None:
    begins = data.flag("add_bos_token", model == "llama" or data.text("pre") in _BEGINS)
    bos = data.token("bos") if begins else None
    eos = data.token("eos") if data.flag("add_eos_token", False) else None
    tokens = [token for token in (bos, eos) if token is not None]
    if tokens:
        around = [[bos] if bos else [], [eos] if eos else []]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[*around[0], "$A", *around[1]],
            pair=[*around[0], "$A", *around[1], *around[0], "$B:1", *around[1]],
            special_tokens=[(token, data.ids[token]) for token in dict.fromkeys(tokens)],
        )


def _templates(keys: dict[str, Any]) -> Any:
    """As tokenizer_config.json has chat templates: a text, or texts with names."""
    single = keys.get("tokenizer.chat_template")
    start = "tokenizer.chat_template."
    more = [{"name": key.removeprefix(start), "template": keys[key]} for key in keys if key.startswith(start)]
    if more and single is not None:
        more.insert(0, {"name": "default", "template": single})
    return more or single


def build(path: Path, keys: dict[str, Any]) -> tuple[Tokenizer, dict[str, Any]]:
    """(the pipeline, what tokenizer_config.json would say) of a file's metadata. Raises an ArgumentError with the remedy."""
    model = keys.get("tokenizer.ggml.model")
    if model not in _MODELS:
        named = "missing" if model is None else f"{model!r}, which is not supported"
        raise ArgumentError(f"{path}: tokenizer.ggml.model is {named} (supported: {', '.join(_MODELS)}): {_REMEDY}")
    data = _Metadata(path, keys)
    if len(data.ids) < len(data.tokens):
        twice = next(token for i, token in enumerate(data.tokens) if data.ids[token] != i)
        raise data.fail(f"tokenizer.ggml.tokens has {twice!r} twice")
    if model == "llama":  # users' tokens are stored with blanks, but pieces with U+2581
        respelt = [
            token.replace(" ", _BLANK) if kind == _USER_DEFINED and not token.strip(" ") else token
            for token, kind in zip(data.tokens, data.types, strict=True)
        ]
        data.tokens, data.ids = respelt, {token: i for i, token in enumerate(respelt)}
    tokenizer = _MODELS[model](data)
    _add_tokens(tokenizer, data)
    _set_ends(tokenizer, data, model)
    config: dict[str, Any] = {key: token for key, name in _NAMES.items() if (token := data.token(name)) is not None}
    config["chat_template"] = _templates(keys)
    config["model_max_length"] = keys.get(f"{keys.get('general.architecture')}.context_length")
    return tokenizer, config


def check(place: Path, vocabulary: dict[str, int], name: str) -> None:
    """Raises an ArgumentError if a tokenizer of that name gives tokens other ids than the GGUF file at a place does; the place
    may have none."""
    path = gguf.find(place)
    if path is None:
        return
    keys = gguf.read(path)
    stored, types = keys.get("tokenizer.ggml.tokens"), keys.get("tokenizer.ggml.token_type")
    if not isinstance(stored, list) or not isinstance(types, list):
        return
    texts = {i: token for token, i in vocabulary.items()}
    for i, (token, kind) in enumerate(zip(stored, types, strict=False)):
        if kind == _NORMAL and texts.get(i, token) != token:
            raise ArgumentError(
                f"{path}: tokenizer.ggml.tokens has {token!r} as token {i}, but the tokenizer of {name} has {texts[i]!r}: pass "
                "the tokenizer of the model that the file was made from, or leave tokenizer= out"
            )
