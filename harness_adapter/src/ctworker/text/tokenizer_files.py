"""Reads a checkpoint's tokenizer files and builds the `tokenizers` pipeline that transformers 5 builds.

transformers 5 uses tokenizer.json as it is, except for some classes, whose pipeline it rebuilds around the file's
vocabulary; here they are rebuilt too.
docs/METHODS.md, "Tokens", gives the rules; tests compare the ids with those of transformers.
"""

from __future__ import annotations

import json
import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, processors

from ..base import gguf
from ..base.errors import ArgumentError
from ..base.json_file import read_object
from . import gguf_tokenizer, special_tokens, tokenizer_errors, tokenizer_json
from . import tokenizer_classes as classes
from .special_tokens import SpecialTokens

log = logging.getLogger("lm_eval.ctworker")

#: Vocabularies that transformers can read, without tokenizer.json.
_VOCABULARIES = ("tokenizer.model", "vocab.json", "merges.txt", "vocab.txt", "spiece.model", "tekken.json")

#: The version of transformers whose rules this package follows, for `fast_tokenizer_files`.
_TRANSFORMERS = (5, 24)


@dataclass
class TokenizerFiles:
    """The contents of one tokenizer's files."""

    folder: Path
    config: dict[str, Any]  # tokenizer_config.json with the keys of special_tokens_map.json; {} if missing
    class_name: str  # without "Fast"; "" if no file names a class
    path: Path  # of tokenizer.json
    json: dict[str, Any] | None  # its contents
    tokens: SpecialTokens
    special: dict[str, str]  # bos_token ... -> text
    built: Tokenizer | None = None  # the pipeline, if a GGUF file describes it


def read(folder: Path) -> TokenizerFiles:
    """Reads all tokenizer files of a folder, or the metadata of a GGUF file: of the file itself, or of the only one in a folder
    without tokenizer files. Raises an ArgumentError that names the file."""
    if folder.is_file() or not (_has_vocabulary(folder) or any(folder.glob("tokenizer*.json"))):
        path = gguf.find(folder)
        if path is not None:
            return _of_gguf(path)
    config = read_object(folder / "tokenizer_config.json")
    path = folder / _json_name(config)
    stored = read_object(path) or None
    class_name = _class_name(config, read_object(folder / "config.json"), stored)
    tokens = special_tokens.read(folder, config, class_name, stored)
    return TokenizerFiles(folder, tokens.config, class_name, path, stored, tokens, tokens.texts())


def _of_gguf(path: Path) -> TokenizerFiles:
    with tokenizer_errors.named(str(path)):
        built, config = gguf_tokenizer.build(path, gguf.read(path))
    tokens = special_tokens.read(path, config, "", None)
    return TokenizerFiles(path, config, "", path, None, tokens, tokens.texts(), built)


def _json_name(config: dict[str, Any]) -> str:
    """tokenizer.json, or its newest copy that is not newer than transformers, such as tokenizer.4.0.json."""
    name = "tokenizer.json"
    for candidate in sorted(map(str, config.get("fast_tokenizer_files") or [])):
        version = re.fullmatch(r"tokenizer\.(\d+(?:\.\d+)*)\.json", candidate)
        if version and tuple(map(int, version[1].split("."))) <= _TRANSFORMERS:
            name = candidate
    return name


def _class_name(
    config: dict[str, Any], model_config: dict[str, Any], stored: dict[str, Any] | None
) -> str:
    """The class that transformers chooses, without "Fast"; "": tokenizer.json as it is."""
    model_type = str(model_config.get("model_type"))
    declared = config.get("tokenizer_class") or model_config.get("tokenizer_class")
    name = str(declared or classes.CLASS_WHEN_UNNAMED.get(model_type, "")).removesuffix("Fast")
    if _has_code(config):  # transformers' rules for model types pass over checkpoints that bring code
        return name
    name = classes.FORCED_CLASS.get(model_type, name)
    if model_type in classes.PLAIN_MODEL_TYPES:
        return ""
    if name == "LlamaTokenizer" and '"ByteLevel"' in json.dumps(stored or {}):
        return ""  # Llama 3, DeepSeek: LlamaTokenizer is wrong for a byte-level vocabulary
    return name


def _has_code(config: dict[str, Any]) -> bool:
    code = config.get("auto_map")
    return bool(code.get("AutoTokenizer") if isinstance(code, dict) else code)


def build(files: TokenizerFiles, add_bos_token: bool | None) -> Tokenizer:
    """The pipeline. add_bos_token: lm-eval's argument; None leaves the decision to the files.

    Without tokenizer.json: built from vocab.json and merges.txt if the class is known, else by transformers if it is
    installed. Raises ArgumentError with the remedy.
    """
    if files.built is not None:
        tokenizer = files.built
    elif files.json is None:
        return _without_json(files, add_bos_token)
    else:
        with tokenizer_errors.named(str(files.path)):
            stored = tokenizer_json.load(files.path, files.json)
            tokenizer = _rebuilt(files, files.json, stored) or stored
    _finish(tokenizer, files)
    begins = classes.ADDS_BOS.get(files.class_name) if add_bos_token is None else add_bos_token
    if begins is not None or tokenizer.post_processor is None:
        _set_ends(tokenizer, files.special.get("bos_token") if begins else None, None)
    elif files.class_name in classes.ADDED_BOS_IN_4:
        _note_transformers_4(tokenizer, files)
    return tokenizer


def _rebuilt(files: TokenizerFiles, written: dict[str, Any], stored: Tokenizer) -> Tokenizer | None:
    """The pipeline of the class around the vocabulary of tokenizer.json (`written`), with that file's post-processor; None: the
    file's own pipeline."""
    model, name = written.get("model") or {}, files.class_name
    rebuild = classes.ANEW.get(name)
    if rebuild is None or model.get("type", "BPE") != "BPE" or "merges" not in model:
        if name in classes.REBUILT_ELSEWHERE:
            log.warning(
                "%s: transformers 5 replaces parts of a tokenizer.json of class %s, ctworker uses the file as it is: compare "
                "a few token ids",
                files.path, name,
            )  # fmt: skip
        return None
    splits = tokenizer_json.further_splits(written) if name in classes.KEEPS_SPLITS else []
    if splits:
        log.warning(
            "%s: has splits (%s) that %s lacks: ctworker keeps them, as the model was trained with them; transformers 5 drops "
            "them, so hf's token ids of some texts differ",
            files.path, ", ".join(splits), name,
        )  # fmt: skip
        if files.config.get("add_prefix_space") is not None:
            tokenizer_json.set_prefix_space(stored, written, classes.prefixes(files.config))
        return None
    tokenizer = rebuild(files.config, model)
    if stored.post_processor is not None:
        tokenizer.post_processor = stored.post_processor
    return tokenizer


def _finish(tokenizer: Tokenizer, files: TokenizerFiles) -> None:
    tokenizer.no_truncation()
    tokenizer.no_padding()
    special_tokens.add(tokenizer, files.tokens, files.class_name)
    tokenizer.encode_special_tokens = bool(files.config.get("split_special_tokens", False))


def _without_json(files: TokenizerFiles, add_bos_token: bool | None) -> Tokenizer:
    """The pipeline of a folder without tokenizer.json; here add_bos_token in tokenizer_config.json counts."""
    names = [files.folder / name for name in ("vocab.json", "merges.txt")]
    known = files.class_name in classes.FROM_VOCABULARY and "auto_map" not in files.config
    if not known or not all(name.is_file() for name in names):
        return _by_transformers(files, add_bos_token)
    with tokenizer_errors.named(f"{files.folder}: vocab.json and merges.txt"):
        vocab, merges = models.BPE.read_file(*map(str, names))
        build_class = classes.FROM_VOCABULARY[files.class_name]
        tokenizer = build_class(files.config, {"vocab": vocab, "merges": merges})
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
    if not bos:
        return
    adds = tokenizer.encode("a").ids[:1] == [tokenizer.token_to_id(bos)]
    before = bool(files.config.get("add_bos_token", True))
    if adds != before:
        log.warning(
            "%s: tokenizer.json %s BOS, but add_bos_token in tokenizer_config.json says otherwise; ctworker and "
            "transformers 5 follow tokenizer.json, transformers 4 did not: add_bos_token=True or False decides",
            files.folder,
            "adds" if adds else "does not add",
        )
