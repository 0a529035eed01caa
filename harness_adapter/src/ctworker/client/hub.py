"""Resolves `pretrained=` and `tokenizer=` to folders: a local folder as it is, a hub name by downloading only the
files needed. huggingface_hub is imported only for a hub name."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..base import gguf
from ..base.errors import ArgumentError, CtworkerError
from ..base.json_file import read_value
from ..options.settings import Settings

log = logging.getLogger("lm_eval.ctworker")

_TOKENIZER_FILES = (
    "config.json",
    "tokenizer.json",
    "tokenizer.*.json",  # copies for older versions of transformers (fast_tokenizer_files)
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates/*.jinja",
)
#: `model*` and not `*`: repositories also contain consolidated.safetensors, original/*.pth, onnx/ ...
_WEIGHT_FILES = ("model*.safetensors", "model.safetensors.index.json", "generation_config.json")
_REPO_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


@dataclass(frozen=True)
class Checkpoint:
    """folder: path of the files, or of a GGUF file; name: as the user wrote it; revision, commit: of a hub repository, else ""."""

    folder: Path
    name: str
    revision: str = ""
    commit: str = ""


def resolve(name: str, settings: Settings, *, weights: bool) -> Checkpoint:
    """The folder of a checkpoint (weights) or of a tokenizer, or a GGUF file, which is both. Raises ArgumentError or
    CtworkerError."""
    local = Path(name).expanduser()
    file = settings.gguf_file if weights or name == settings.pretrained else None
    if local.exists():
        folder = local / settings.subfolder
        if file:
            folder = folder / file
            if not folder.is_file():
                raise ArgumentError(f"there is no file {folder}, which gguf_file= names")
        if not folder.is_dir() and not (folder.is_file() and folder.suffix == ".gguf"):
            raise ArgumentError(
                f"{folder} is not a folder: expected one with config.json and safetensors files, or a GGUF file"
                if weights
                else f"{folder} is not a folder: expected one with tokenizer.json"
            )
        return Checkpoint(folder.resolve(), name)
    if not _REPO_NAME.fullmatch(name) or name.endswith((".safetensors", ".gguf", ".bin", ".json")):
        raise ArgumentError(
            f"there is no folder {name}, and it is not a hub name (expected ORGANISATION/MODEL)"
        )
    return _download(name, settings, file, weights=weights)


def with_original(settings: Settings, checkpoint: Checkpoint | None) -> Settings:
    """The settings with the folder that config= names, whose tokenizer counts unless tokenizer= names another. Raises
    ArgumentError or CtworkerError."""
    if settings.config is None:
        return settings
    if checkpoint is not None and gguf.find(checkpoint.folder) is None:
        raise ArgumentError(f"config={settings.config}: {checkpoint.name} has a config.json of its own, and no GGUF file")
    folder = resolve(settings.config, settings, weights=False).folder
    if not (folder / "config.json").is_file():
        raise ArgumentError(f"config={settings.config}: there is no {folder}/config.json: name the original model")
    return replace(settings, config=str(folder), tokenizer=settings.tokenizer or settings.config)


def _download(name: str, settings: Settings, file: str | None, *, weights: bool) -> Checkpoint:
    prefix = f"{settings.subfolder}/" if settings.subfolder else ""
    files = (gguf.parts_pattern(file),) if file else _WEIGHT_FILES if weights else ()
    patterns = [prefix + pattern for pattern in (*_TOKENIZER_FILES, *files)]
    if weights:
        log.info(
            "fetching %s (revision %s) from the Hugging Face hub or the local cache",
            name,
            settings.revision,
        )
    root = _snapshot(name, settings, patterns)
    folder = root / settings.subfolder
    if file and not (folder / file).is_file():
        raise CtworkerError(f"{name} (revision {settings.revision}) has no {prefix}{file}, which gguf_file= names")
    if weights and not file:
        named = shards(folder)
        missing = sorted(shard for shard in named if not (folder / shard).exists())
        if missing:  # an index may name files that the patterns do not match
            _snapshot(name, settings, [prefix + shard for shard in missing])
            missing = [shard for shard in missing if not (folder / shard).exists()]
        if missing:
            raise CtworkerError(
                f"{name}: {len(missing)} of {len(named)} weight files are missing, first {missing[0]}: the download "
                "was interrupted, or the cache is incomplete (is HF_HUB_OFFLINE set?)"
            )
        if not named and not any(folder.glob("model*.safetensors")):
            raise CtworkerError(
                f"{name} (revision {settings.revision}) has no model*.safetensors: only safetensors "
                "checkpoints, and GGUF files named by gguf_file=, can be read; convert the checkpoint, or choose another revision="
            )
    if not (folder / "config.json").is_file() and weights and not file:
        raise CtworkerError(
            f"{name} (revision {settings.revision}) has no {prefix}config.json: it is not a transformers model"
        )
    commit = root.name if root.parent.name == "snapshots" else ""
    return Checkpoint(folder / file if file else folder, name, settings.revision, commit)


def commit_of(name: str, revision: str) -> str:
    """The commit that the revision is on the hub now; "" if the hub does not say."""
    try:
        from huggingface_hub import HfApi

        return HfApi().model_info(name, revision=revision).sha or ""
    except Exception as error:  # no package, network, authorisation: many exception types
        log.info("the commit of %s (revision %s) is not known: %s", name, revision, error)
        return ""


def shards(folder: Path) -> set[str]:
    """The files that the index names; empty without an index."""
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return set()
    try:
        return set(read_value(index)["weight_map"].values())
    except (KeyError, TypeError, AttributeError) as error:
        raise CtworkerError(f"{index} is not an index of safetensors files: {error!r}") from error


def _snapshot(name: str, settings: Settings, patterns: list[str]) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise CtworkerError(
            f"there is no folder {name}, and a hub name needs the package huggingface_hub: "
            "pip install huggingface_hub"
        ) from error
    options: dict[str, Any] = {"revision": settings.revision, "allow_patterns": patterns}
    if settings.token is not None:
        options["token"] = settings.token
    if settings.cache_dir is not None:
        options["cache_dir"] = settings.cache_dir
    if settings.local_files_only:
        options["local_files_only"] = True
    try:
        return Path(snapshot_download(name, **options))
    except Exception as error:  # network, authorisation, cache: many exception types
        reason = " ".join(str(error).split()) or type(error).__name__
        raise CtworkerError(
            f"there is no folder {name}, and the hub's {name} (revision {settings.revision}) is not "
            f"available ({type(error).__name__}: {reason[:400]}): pass a local folder, or set HF_TOKEN for a "
            "gated model"
        ) from error
