"""Reads a checkpoint's tokenizer files and builds the `tokenizers` pipeline that transformers 5 builds.

transformers 5 uses tokenizer.json as it is, except for a few classes whose pipeline it rebuilds around the
file's vocabulary. Classes whose tokens can then differ from the file's tokens are rebuilt here too.
docs/METHODS.md, "Tokens", gives the rules; tests compare the ids with those of transformers.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field
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

from .errors import ArgumentError

log = logging.getLogger("lm_eval.ctworker")

SPECIAL_NAMES = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)

#: A class's default special tokens, used if no file names them.
_CLASS_DEFAULTS: dict[str, dict[str, str]] = {
    "LlamaTokenizer": {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"},
    "CodeLlamaTokenizer": {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"},
    "GemmaTokenizer": {
        "unk_token": "<unk>",
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "pad_token": "<pad>",
        "mask_token": "<mask>",
    },
    "Qwen2Tokenizer": {
        "unk_token": "<|endoftext|>",
        "eos_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
    },
    "GPT2Tokenizer": {
        "unk_token": "<|endoftext|>",
        "bos_token": "<|endoftext|>",
        "eos_token": "<|endoftext|>",
    },
    "GPTNeoXTokenizer": {
        "unk_token": "<|endoftext|>",
        "bos_token": "<|endoftext|>",
        "eos_token": "<|endoftext|>",
        "pad_token": "<|padding|>",
    },
    "CohereTokenizer": {
        "unk_token": "<UNK>",
        "bos_token": "<BOS_TOKEN>",
        "eos_token": "<|END_OF_TURN_TOKEN|>",
        "pad_token": "<PAD>",
        "cls_token": "<CLS>",
        "sep_token": "<SEP>",
        "mask_token": "<MASK_TOKEN>",
    },
}

#: Model types for which transformers ignores the tokenizer class and uses tokenizer.json itself.
_PLAIN_MODEL_TYPES = {
    "ministral",
    "ministral3",
    "mistral",
    "mistral3",
    "mixtral",
    "granite",
    "granitemoe",
    "olmo2",
    "olmo3",
    "stablelm",
    "glm",
    "glm4",
    "glm4_moe",
    "phi3",
    "phimoe",
    "nemotron",
    "internlm2",
    "internlm3",
    "minicpm3",
    "minimax_m2",
    "modernbert",
    "jamba",
    "arctic",
    "persimmon",
}

#: Model types for which transformers overrides the class that the files name.
_FORCED_CLASS = {"qwen2": "Qwen2Tokenizer"}

#: Model types with a default class, used if no file names a class.
_CLASS_WHEN_UNNAMED = {"qwen3": "Qwen2Tokenizer"}

#: Qwen2's pre-tokenizer, as in its tokenizer.json.
_QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

#: Classes that decided about BOS themselves in transformers 4, regardless of tokenizer.json.
_ADDED_BOS_IN_4 = {"LlamaTokenizer", "CodeLlamaTokenizer", "GemmaTokenizer", "CohereTokenizer"}


@dataclass
class TokenizerFiles:
    """The contents of one tokenizer's files."""

    folder: Path
    config: dict[str, Any]  # tokenizer_config.json; {} if missing
    model_config: dict[str, Any]  # config.json
    class_name: str  # without "Fast"; "" if no file names a class
    json: dict[str, Any] | None  # tokenizer.json
    special: dict[str, str] = field(default_factory=dict)  # bos_token ... -> text
    added: list[AddedToken] = field(default_factory=list)  # in order of their ids
    extra: list[AddedToken] = field(
        default_factory=list
    )  # further special tokens, without an explicit id


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ArgumentError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise ArgumentError(f"{path}: expected a JSON object, found {type(value).__name__}")
    return value


def _content(value: Any) -> str | None:
    """The text of a special token, which files store as a string or as a map."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _added_token(value: Any, *, special: bool | None = None) -> AddedToken:
    """From a map as stored in the files, or from a string."""
    if isinstance(value, str):
        return AddedToken(value, special=bool(special), normalized=False)
    flags = {
        name: bool(value[name])
        for name in ("single_word", "lstrip", "rstrip", "normalized")
        if name in value
    }
    return AddedToken(
        value["content"],
        special=bool(value.get("special", False)) if special is None else special,
        **flags,
    )


def read(folder: Path) -> TokenizerFiles:
    """Reads all tokenizer files of a folder. Raises an ArgumentError that names the file."""
    config = _read_json(folder / "tokenizer_config.json")
    model_config = _read_json(folder / "config.json")
    tokenizer_json = _read_json(folder / "tokenizer.json") or None
    model_type = model_config.get("model_type")
    name = config.get("tokenizer_class") or model_config.get("tokenizer_class")
    name = name or _CLASS_WHEN_UNNAMED.get(model_type, "")
    files = TokenizerFiles(
        folder, config, model_config, str(name).removesuffix("Fast"), tokenizer_json
    )
    files.class_name = _FORCED_CLASS.get(model_type, files.class_name)
    if model_type in _PLAIN_MODEL_TYPES:
        files.class_name = ""
    elif files.class_name == "LlamaTokenizer" and '"ByteLevel"' in json.dumps(tokenizer_json or {}):
        files.class_name = ""  # Llama 3, DeepSeek: LlamaTokenizer is wrong for a byte-level vocabulary
    _read_special(files)
    return files


def _read_special(files: TokenizerFiles) -> None:
    """Fills special, added and extra from tokenizer_config.json, special_tokens_map.json, added_tokens.json."""
    values: dict[str, Any] = dict(files.config)
    decoder = files.config.get("added_tokens_decoder")
    by_id: dict[int, AddedToken] = {}
    if isinstance(decoder, dict):
        by_id = {int(i): _added_token(token) for i, token in decoder.items()}
    else:
        values.update(_read_json(files.folder / "special_tokens_map.json"))
    for name in SPECIAL_NAMES:
        text = (
            _content(values[name])
            if name in values
            else _CLASS_DEFAULTS.get(files.class_name, {}).get(name)
        )
        if text is not None:
            files.special[name] = text
    extra = values.get("extra_special_tokens") or values.get("additional_special_tokens") or []
    extra = list(extra.values()) if isinstance(extra, dict) else list(extra)
    extra += [
        value
        for name, value in values.items()
        if name.endswith("_token") and name not in SPECIAL_NAMES and _content(value) is not None
    ]
    files.extra = [
        _added_token(token if isinstance(token, dict) else str(token), special=True)
        for token in extra
    ]
    if not isinstance(decoder, dict):
        known = {*files.special.values(), *(token.content for token in files.extra)}
        for text, i in _read_json(files.folder / "added_tokens.json").items():
            by_id[int(i)] = AddedToken(text, special=text in known, normalized=text not in known)
        for token in (files.json or {}).get("added_tokens") or []:
            by_id[int(token["id"])] = _added_token(token)
    files.added = [by_id[i] for i in sorted(by_id)]


def build(files: TokenizerFiles, add_bos_token: bool | None) -> Tokenizer:
    """The pipeline. add_bos_token: lm-eval's argument; None leaves the decision to the files.

    Raises ArgumentError with the remedy when there is no tokenizer.json.
    """
    if files.json is None:
        raise ArgumentError(_no_tokenizer_json(files.folder))
    try:
        tokenizer = stored = Tokenizer.from_file(str(files.folder / "tokenizer.json"))
        model = files.json.get("model") or {}
        if files.class_name in _ANEW and model.get("type", "BPE") == "BPE" and "merges" in model:
            tokenizer = _ANEW[files.class_name](files.config, model)
            if stored.post_processor is not None:
                tokenizer.post_processor = stored.post_processor
    except Exception as error:  # the binding raises plain Exception
        raise ArgumentError(f"{files.folder / 'tokenizer.json'}: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    _add_tokens(tokenizer, files)
    tokenizer.encode_special_tokens = bool(files.config.get("split_special_tokens", False))
    if (
        add_bos_token is not None
        or tokenizer.post_processor is None
        or files.class_name == "GPTNeoXTokenizer"
    ):
        _set_bos(tokenizer, files.special.get("bos_token") if add_bos_token else None)
    elif files.class_name in _ADDED_BOS_IN_4:
        _note_transformers_4(tokenizer, files)
    return tokenizer


def _no_tokenizer_json(folder: Path) -> str:
    if (folder / "tokenizer.model").is_file():
        return (
            f"{folder}: has tokenizer.model but no tokenizer.json. Convert it once, in an environment with transformers, "
            'sentencepiece and protobuf: python -c "from transformers import AutoTokenizer as A; '
            f"A.from_pretrained('{folder}').save_pretrained('TOKENIZER_DIR')\", and pass tokenizer=TOKENIZER_DIR"
        )
    return (
        f"{folder}: has no tokenizer.json. Pass a tokenizer's folder or hub name with tokenizer=; a quantised copy uses the "
        "original model's tokenizer"
    )


def _bpe(model: dict[str, Any], **flags: Any) -> Tokenizer:
    """A bare tokenizer with the vocabulary and merges of a tokenizer.json's model."""
    merges = [
        tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge)
        for merge in model["merges"]
    ]
    return Tokenizer(models.BPE(vocab=model["vocab"], merges=merges, **flags))


def _llama(config: dict[str, Any], model: dict[str, Any]) -> Tokenizer:
    """LlamaTokenizer: no normalizer; blanks become U+2581, and a text without a leading U+2581 gets one."""
    tokenizer = _bpe(model, fuse_unk=True, byte_fallback=True)
    prefix_space = config.get("add_prefix_space")
    prefix_space = True if prefix_space is None else bool(prefix_space)
    scheme = "never" if not prefix_space else "always" if config.get("legacy", False) else "first"
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(
        replacement="\u2581", prepend_scheme=scheme, split=False
    )
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(
        steps + ([decoders.Strip(content=" ", left=1)] if prefix_space else [])
    )
    return tokenizer


def _qwen2(config: dict[str, Any], model: dict[str, Any]) -> Tokenizer:
    """Qwen2Tokenizer: NFC, its own splits, bytes."""
    tokenizer = _bpe(model, continuing_subword_prefix="", end_of_word_suffix="")
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_QWEN2_SPLIT), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(
                add_prefix_space=bool(config.get("add_prefix_space")), use_regex=False
            ),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


_ANEW = {"LlamaTokenizer": _llama, "Qwen2Tokenizer": _qwen2}


def _add_tokens(tokenizer: Tokenizer, files: TokenizerFiles) -> None:
    """Adds the added tokens with their flags from tokenizer_config.json, then special tokens that are still missing,
    so that a text's special tokens are recognised as a whole."""
    if files.added:
        tokenizer.add_tokens(files.added)
    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    missing = [
        AddedToken(text, special=True, normalized=False)
        for text in files.special.values()
        if text not in known
    ]
    missing += [token for token in files.extra if token.content not in known]
    if missing:
        tokenizer.add_tokens(missing)


def _set_bos(tokenizer: Tokenizer, bos: str | None) -> None:
    """Sets a post-processor that puts `bos` first (None: nothing), and nothing at the end."""
    special = [(bos, tokenizer.token_to_id(bos))] if bos is not None else []
    single = f"{bos}:0 $A:0" if bos is not None else "$A:0"
    pair = f"{single} {bos}:1 $B:1" if bos is not None else "$A:0 $B:1"
    tokenizer.post_processor = processors.TemplateProcessing(
        single=single, pair=pair, special_tokens=special
    )


def _note_transformers_4(tokenizer: Tokenizer, files: TokenizerFiles) -> None:
    """Warns if transformers 4 would have decided differently about BOS."""
    bos = files.special.get("bos_token")
    adds = bool(bos) and tokenizer.encode("a").ids[:1] == [tokenizer.token_to_id(bos)]
    before = bool(files.config.get("add_bos_token", True))
    if bos and adds != before:
        log.warning(
            "%s: tokenizer.json %s BOS, but add_bos_token in tokenizer_config.json says otherwise; ctworker and "
            "transformers 5 follow tokenizer.json, transformers 4 did not: add_bos_token=True or False decides",
            files.folder,
            "adds" if adds else "does not add",
        )
