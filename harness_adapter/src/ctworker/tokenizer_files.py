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

from tokenizers import AddedToken, Tokenizer, models, processors

from . import tokenizer_classes as classes
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

#: Vocabularies that transformers can read.
_VOCABULARIES = ("tokenizer.model", "vocab.json", "merges.txt", "vocab.txt", "spiece.model", "tekken.json")


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
    name = name or classes.CLASS_WHEN_UNNAMED.get(model_type, "")
    files = TokenizerFiles(
        folder, config, model_config, str(name).removesuffix("Fast"), tokenizer_json
    )
    files.class_name = classes.FORCED_CLASS.get(model_type, files.class_name)
    if model_type in classes.PLAIN_MODEL_TYPES:
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
            else classes.CLASS_DEFAULTS.get(files.class_name, {}).get(name)
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

    Without tokenizer.json: built from vocab.json and merges.txt if the class is known, else by transformers if it is
    installed. Raises ArgumentError with the remedy.
    """
    if files.json is None:
        return _without_json(files, add_bos_token)
    try:
        tokenizer = stored = Tokenizer.from_file(str(files.folder / "tokenizer.json"))
        model = files.json.get("model") or {}
        rebuilt = files.class_name in classes.ANEW and model.get("type", "BPE") == "BPE"
        if rebuilt and "merges" in model:
            tokenizer = classes.ANEW[files.class_name](files.config, model)
            if stored.post_processor is not None:
                tokenizer.post_processor = stored.post_processor
    except Exception as error:  # the binding raises plain Exception
        raise ArgumentError(f"{files.folder / 'tokenizer.json'}: {error}") from error
    _finish(tokenizer, files)
    if (
        add_bos_token is not None
        or tokenizer.post_processor is None
        or files.class_name == "GPTNeoXTokenizer"
    ):
        _set_ends(tokenizer, files.special.get("bos_token") if add_bos_token else None, None)
    elif files.class_name in classes.ADDED_BOS_IN_4:
        _note_transformers_4(tokenizer, files)
    return tokenizer


def _finish(tokenizer: Tokenizer, files: TokenizerFiles) -> None:
    tokenizer.no_truncation()
    tokenizer.no_padding()
    _add_tokens(tokenizer, files)
    tokenizer.encode_special_tokens = bool(files.config.get("split_special_tokens", False))


def _without_json(files: TokenizerFiles, add_bos_token: bool | None) -> Tokenizer:
    """The pipeline of a folder without tokenizer.json; here add_bos_token in tokenizer_config.json counts."""
    names = [files.folder / name for name in ("vocab.json", "merges.txt")]
    known = files.class_name in classes.FROM_VOCABULARY and "auto_map" not in files.config
    if not known or not all(name.is_file() for name in names):
        return _by_transformers(files, add_bos_token)
    try:
        vocab, merges = models.BPE.read_file(*map(str, names))
        build_class = classes.FROM_VOCABULARY[files.class_name]
        tokenizer = build_class(files.config, {"vocab": vocab, "merges": merges})
    except Exception as error:  # the binding raises plain Exception
        raise ArgumentError(f"{files.folder}: vocab.json and merges.txt: {error}") from error
    _finish(tokenizer, files)
    begins = files.config.get("add_bos_token", False) if add_bos_token is None else add_bos_token
    ends = files.config.get("add_eos_token", False)
    _set_ends(
        tokenizer,
        files.special.get("bos_token") if begins else None,
        files.special.get("eos_token") if ends else None,
    )
    return tokenizer


def _by_transformers(files: TokenizerFiles, add_bos_token: bool | None) -> Tokenizer:
    """transformers' own pipeline, which it builds from files of any kind. Code of a checkpoint is never run."""
    problem = _no_tokenizer_json(files)
    if "auto_map" in files.config or not _has_vocabulary(files.folder):
        raise ArgumentError(problem)
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise ArgumentError(problem) from None
    options = {} if add_bos_token is None else {"add_bos_token": add_bos_token}
    try:
        built = AutoTokenizer.from_pretrained(str(files.folder), **options)
    except Exception as error:  # anything: sentencepiece is missing, the file is broken
        raise ArgumentError(f"{problem}; transformers says: {error}") from error
    tokenizer = getattr(built, "backend_tokenizer", None)
    if not isinstance(tokenizer, Tokenizer):
        raise ArgumentError(
            f"{problem}; transformers runs it in Python ({type(built).__name__}), which ctworker does not support"
        )
    log.info("%s has no tokenizer.json: transformers builds the tokenizer", files.folder)
    files.special.update({name: str(text) for name, text in built.special_tokens_map.items() if isinstance(text, str)})
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _has_vocabulary(folder: Path) -> bool:
    return any((folder / name).is_file() for name in _VOCABULARIES)


def _no_tokenizer_json(files: TokenizerFiles) -> str:
    """What is missing, and the remedy."""
    folder = files.folder
    convert = (
        'python -c "from transformers import AutoTokenizer as A; '
        f"A.from_pretrained('{folder}'%s).save_pretrained('TOKENIZER_DIR')\", and pass tokenizer=TOKENIZER_DIR"
    )
    if "auto_map" in files.config:
        name = files.config.get("tokenizer_class") or "of its own"
        return (
            f"{folder}: has no tokenizer.json, and its tokenizer class ({name}, auto_map in tokenizer_config.json) is code of the "
            "checkpoint, which ctworker never runs. If you trust that code, convert the tokenizer once, in an environment with "
            f"transformers: {convert % ', trust_remote_code=True'}"
        )
    found = [name for name in _VOCABULARIES if (folder / name).is_file()]
    if found:
        return (
            f"{folder}: has {' and '.join(found)} but no tokenizer.json. Install transformers beside ctworker (pip install "
            f"transformers sentencepiece protobuf), or convert the tokenizer once where they are: {convert % ''}"
        )
    return (
        f"{folder}: has no tokenizer.json. Pass a tokenizer's folder or hub name with tokenizer=; a quantised copy uses the "
        "original model's tokenizer"
    )


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


def _set_ends(tokenizer: Tokenizer, bos: str | None, eos: str | None) -> None:
    """Sets a post-processor that puts `bos` first and `eos` last (None: nothing)."""

    def around(text: str, kind: int) -> str:
        ends = [f"{bos}:{kind}" if bos else "", f"{text}:{kind}", f"{eos}:{kind}" if eos else ""]
        return " ".join(filter(None, ends))

    tokens = dict.fromkeys(token for token in (bos, eos) if token)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=around("$A", 0),
        pair=f"{around('$A', 0)} {around('$B', 1)}",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in tokens],
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
