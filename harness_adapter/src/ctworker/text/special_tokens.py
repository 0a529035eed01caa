"""Special and added tokens: which of a tokenizer's files decides, in the order of transformers 5.

tokenizer_config.json comes first. If it has `added_tokens_decoder`, the other files are ignored; else every key of
special_tokens_map.json replaces the configuration's, and added_tokens.json and tokenizer.json's `added_tokens` give
the added tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from ..base.errors import ArgumentError
from ..base.json_file import read_object
from . import tokenizer_classes as classes

NAMES = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized")


@dataclass
class SpecialTokens:
    """named: bos_token ... and names of a model's own, in the order in which they are added. extra: without a name.
    added: in the order of their ids. config: tokenizer_config.json, with the keys that special_tokens_map.json replaces."""

    config: dict[str, Any]
    named: dict[str, AddedToken] = field(default_factory=dict)
    extra: list[AddedToken] = field(default_factory=list)
    added: list[AddedToken] = field(default_factory=list)

    def text(self, name: str) -> str | None:
        """The text of a named token."""
        token = self.named.get(name)
        return None if token is None else token.content

    def texts(self) -> dict[str, str]:
        """bos_token ... -> text."""
        return {name: token.content for name, token in self.named.items() if name in NAMES}

    def all(self) -> list[AddedToken]:
        return [*self.named.values(), *self.extra]


def _token(value: Any, *, special: bool | None = None) -> AddedToken | None:
    """From a string, or from an object as the files store tokens; None: the value is no token. special: of an object
    without this flag; None: True, unless the object was an AddedToken when it was saved."""
    if isinstance(value, str):
        return AddedToken(value, special=True)
    if not isinstance(value, dict) or not isinstance(value.get("content"), str):
        return None
    flags = {name: bool(value[name]) for name in _FLAGS if name in value}
    default = "__type" not in value if special is None else special
    return AddedToken(value["content"], special=bool(value.get("special", default)), **flags)


def _is_own(name: str, value: Any) -> bool:
    """Whether a key names a special token that only this model has, such as image_token."""
    return name.endswith("_token") and name not in NAMES and _token(value) is not None


def _merge(config: dict[str, Any], overriding: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(the keys of both files, the model's own tokens by name). Lists of further special tokens: the configuration's
    wins over the other file's, except that two `extra_special_tokens` are joined."""
    values, own = dict(config), {}
    if not values.get("extra_special_tokens") and "additional_special_tokens" in values:
        values["extra_special_tokens"] = values.pop("additional_special_tokens")
    for name in [name for name, value in values.items() if isinstance(value, str) and _is_own(name, value)]:
        own[name] = values.pop(name)
    for more in ({}, overriding):
        for name, value in more.items():
            if name == "extra_special_tokens" and isinstance(value, list):
                before = list(values.get(name) or [])
                value = before + [token for token in value if token not in before]
            values[name] = {**value, "special": True} if isinstance(value, dict) and "content" in value else value
        if isinstance(values.get("extra_special_tokens"), dict):
            own.update(values.pop("extra_special_tokens"))
    values.setdefault("extra_special_tokens", values.get("additional_special_tokens"))
    return values, own


def _id(text: Any, path: Path) -> int:
    try:
        return int(text)
    except (TypeError, ValueError):
        raise ArgumentError(f"{path}: the id of an added token is {text!r}, expected a number") from None


def read(folder: Path, config: dict[str, Any], class_name: str, tokenizer_json: dict[str, Any] | None) -> SpecialTokens:
    """Reads the tokens of a folder whose tokenizer_config.json is `config`."""
    decoder = config.get("added_tokens_decoder")
    overriding = {} if isinstance(decoder, dict) else read_object(folder / "special_tokens_map.json")
    values, own = _merge(config, overriding)
    out = SpecialTokens(values)
    extra = values["extra_special_tokens"]
    if not isinstance(extra, (list, type(None))):
        raise ArgumentError(
            f"{folder}: extra_special_tokens (or additional_special_tokens) is a {type(extra).__name__}, expected a list of "
            "tokens"
        )
    out.extra = list(filter(None, (_token(token) for token in extra or [])))
    defaults = classes.CLASS_DEFAULTS.get(class_name, {})
    named = {name: values[name] if name in values else defaults.get(name) for name in NAMES}
    named |= {name: value for name, value in values.items() if _is_own(name, value)} | own
    if class_name == "CodeLlamaTokenizer":
        named = {name: values.get(name, text) for name, text in classes.CODE_LLAMA_TOKENS.items()} | named
    tokens = {name: _token(value) for name, value in named.items()}
    out.named = {name: token for name in (*NAMES, *tokens) if (token := tokens[name]) is not None}
    by_id: dict[int, AddedToken | None] = {}
    path = folder / "tokenizer_config.json"
    if isinstance(decoder, dict):
        by_id = {_id(i, path): _token(token, special=False) for i, token in decoder.items()}
    else:
        known = {token.content for token in out.all()}
        path = folder / "added_tokens.json"
        for text, i in read_object(path).items():
            by_id[_id(i, path)] = AddedToken(text, special=text in known, normalized=text not in known)
        path = folder / "tokenizer.json"
        for token in (tokenizer_json or {}).get("added_tokens") or []:
            by_id[_id(token.get("id"), path)] = _token(token, special=False)
    out.added = [added for _, added in sorted(by_id.items()) if added is not None]
    if len(out.added) < len(by_id):
        raise ArgumentError(f"{path}: an added token has no text ('content')")
    by_text = {token.content: token for token in out.added}
    out.named = {name: by_text.get(token.content, token) for name, token in out.named.items()}
    return out


def add(tokenizer: Tokenizer, tokens: SpecialTokens, class_name: str) -> None:
    """Adds the added tokens with their flags, then special tokens that are still missing, so that a text's special
    tokens are recognised as a whole."""
    stored = tokenizer.get_added_tokens_decoder().values()
    flags = {repr(token) for token in stored}
    new = [token for token in tokens.added if repr(token) not in flags]
    known = {token.content for token in [*stored, *new]}
    for token in tokens.all():
        if token.content not in known:
            new.append(token)
            known.add(token.content)
    named = {token.content for token in tokens.named.values()}
    for token in new:
        token.special = token.special or token.content in named
    tokenizer.add_tokens(new)
    if class_name == "Qwen2Tokenizer":  # the class adds its special tokens once more, with flags of its own
        tokenizer.add_tokens([AddedToken(text, special=True) for text in _unique(tokens.all())])
    elif class_name == "CohereTokenizer":
        tokenizer.add_special_tokens(tokens.all())


def _unique(tokens: Iterable[AddedToken]) -> list[str]:
    return list(dict.fromkeys(token.content for token in tokens))
