"""`ctworker inspect ORG/NAME`, or ORG/NAME/FILE.gguf: a copy of a hub's checkpoint that has its configuration and the headers
of its files, in the user's cache.

Each file has its true size and no data; a bit in its first bytes says so (worker/checkpoint/container: safetensors.h, gguf.h). The worker
program describes such a copy and plans for it, and refuses to score it.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ..base import gguf
from ..base.errors import ArgumentError, CtworkerError
from ..options.settings import Settings
from . import hub

_HUB_NAME = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(/(?P<file>[\w./-]+\.gguf))?(@(?P<revision>[\w./-]+))?", re.ASCII)
_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
#: All that the worker reads beside the weights; a checkpoint has some of these files.
_CONFIGURATION = (
    "config.json", "hf_quant_config.json", "quantize_config.json", "quant_config.json", "adapter_config.json", _INDEX,
)  # fmt: skip
_MOST_BYTES = 100_000_000  # of a header, or of a file of the configuration
_FIRST_BYTES = 1 << 20  # of a header without a length
_AT_ONCE = 8  # files that are read at the same time
_TIMEOUT_S = 30.0


def localise(arguments: list[str]) -> list[str]:
    """The arguments of `ctworker inspect` with a folder in place of a hub name. Raises CtworkerError."""
    for i, argument in enumerate(arguments):
        match = _HUB_NAME.fullmatch(argument)
        if match and not os.path.lexists(argument):
            folder = fetch(match["name"], match["revision"] or "main", match["file"])
            return [*arguments[:i], str(folder), *arguments[i + 1 :]]
    return arguments


def fetch(name: str, revision: str, file: str | None = None) -> Path:
    """A folder with the configuration and the headers, or with the whole checkpoint if the hub does not answer and its
    cache has that. file: of a GGUF model. Raises CtworkerError."""
    try:
        from huggingface_hub import HfApi
    except ImportError as error:
        raise CtworkerError(
            f"there is no folder {name}, and a hub name needs the package huggingface_hub: pip install huggingface_hub"
        ) from error
    try:
        info = HfApi().model_info(name, revision=revision, files_metadata=True)
    except Exception as error:  # network, authorisation, no such name: many exception types
        return _of_hubs_cache(name, revision, error)
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
    model = _gguf_files(name, file, sizes)
    folder = _cache() / name / str(info.sha)
    if model:
        folder = folder.with_name(f"{info.sha}.gguf") / model[0].replace("/", ".")
    if not folder.is_dir():
        try:
            _write(folder, name, str(info.sha), sizes, model)
        except CtworkerError:
            raise
        except Exception as error:
            raise CtworkerError(_unavailable(name, revision, error)) from error
    return folder


def _gguf_files(name: str, file: str | None, sizes: dict[str, int]) -> list[str]:
    """The GGUF files of the model that a file has a part of, or of the repository's only model; []: it has safetensors."""
    if file is None and (_SINGLE in sizes or _INDEX in sizes):
        return []
    here = sorted(f for f in sizes if f.endswith(".gguf") and not Path(f).name.startswith("mmproj"))
    models = {gguf.model_of(f) for f in here if file is None or gguf.model_of(f) == gguf.model_of(file)}
    if file is not None and not models:
        raise ArgumentError(f"{name} has no {file} on the hub; it has {', '.join(here[:8]) or 'no GGUF files'}")
    if len(models) > 1:
        raise ArgumentError(f"{name} has {len(models)} GGUF models on the hub: name a file, such as {name}/{here[0]}")
    return [f for f in here if gguf.model_of(f) in models]


def _of_hubs_cache(name: str, revision: str, error: Exception) -> Path:
    try:
        return hub.resolve(name, Settings(revision=revision, local_files_only=True), weights=True).folder
    except CtworkerError:
        raise CtworkerError(_unavailable(name, revision, error)) from error


def _unavailable(name: str, revision: str, error: Exception) -> str:
    reason = " ".join(str(error).split())[:400] or type(error).__name__
    return (
        f"there is no folder {name}, and the hub's {name} (revision {revision}) is not available ({type(error).__name__}: "
        f"{reason}): give a local folder, or set HF_TOKEN for a gated model"
    )


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "ctworker" / "headers"


def _write(folder: Path, name: str, commit: str, sizes: dict[str, int], model: list[str]) -> None:
    """Writes the copy under another name first, so that a folder is whole if it is there."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix=f"{commit}.", dir=folder.parent))
    try:
        for file in _CONFIGURATION:
            if not model and file in sizes and not (file == _INDEX and _SINGLE in sizes):
                (new / file).write_bytes(_read(name, commit, file, 0, sizes[file]))
        weights = model or ([_SINGLE] if _SINGLE in sizes else sorted(hub.shards(new)))
        if not model:
            _check(name, weights, sizes)
        write = _write_gguf_header if model else _write_header
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(lambda file: write(new / Path(file).name, name, commit, file, sizes[file]), weights))
        try:
            new.rename(folder)
        except OSError:
            if not folder.is_dir():  # another process was first
                raise
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _check(name: str, weights: Iterable[str], sizes: dict[str, int]) -> None:
    if "config.json" not in sizes:
        raise ArgumentError(f"{name} has no config.json on the hub: it is not a transformers model")
    if not weights:
        raise ArgumentError(f"{name} has neither {_SINGLE} nor {_INDEX} nor GGUF files on the hub: only such checkpoints can be read")
    for file in weights:
        if file not in sizes or Path(file).name != file:
            raise ArgumentError(f"{name}: {_INDEX} names {file}, which is not among the files on the hub")


def _write_header(path: Path, name: str, commit: str, file: str, size: int) -> None:
    """A sparse file with the header's bytes, of the true size."""
    length = _read(name, commit, file, 0, min(8, size))
    n = int.from_bytes(length, "little")
    if size < 8 or n > min(size - 8, _MOST_BYTES):
        raise ArgumentError(f"{name}: {file}: is not a safetensors file: {size} bytes, of which the header has {n}")
    header = _read(name, commit, file, 8, n)
    with path.open("wb") as out:
        out.write(length[:7] + bytes([length[7] | 0x80]) + header)
        out.truncate(size)


def _write_gguf_header(path: Path, name: str, commit: str, file: str, size: int) -> None:
    """The same for a GGUF file, whose header has no length: reads twice as much until it ends."""
    start, found = b"", None
    while found is None:
        more = min(max(2 * len(start), _FIRST_BYTES), size, _MOST_BYTES) - len(start)
        if more <= 0:
            raise ArgumentError(f"{name}: {file}: no header of a GGUF file ends within {len(start)} bytes")
        start += _read(name, commit, file, len(start), more)
        found = gguf.header(start, f"{name}: {file}")
    end, places = found
    with path.open("wb") as out:
        out.write(start[:7] + bytes([start[7] | 0x80]) + start[8:end])
        for at, n in places:
            out.seek(at)
            out.write(_read(name, commit, file, at, n))
        out.truncate(size)


def _read(name: str, commit: str, file: str, first: int, n: int) -> bytes:
    """n bytes of a file from byte `first` on."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub import utils as hub_utils

    if n > _MOST_BYTES:
        raise ArgumentError(f"{name}: {file} has {n} bytes, at most {_MOST_BYTES} are read")
    if n == 0:
        return b""
    # Transparent compression would make a range one of the compressed bytes.
    utils: Any = hub_utils  # the names have moved within the package, which exports them without saying so
    headers = utils.build_hf_headers() | {"Range": f"bytes={first}-{first + n - 1}", "Accept-Encoding": "identity"}
    url = hf_hub_url(name, file, revision=commit)
    session = utils.get_session()
    if callable(session.stream):  # httpx; the package requests before huggingface_hub 1.0
        opened = session.stream("GET", url, headers=headers, timeout=_TIMEOUT_S)
    else:
        opened = session.get(url, headers=headers, timeout=_TIMEOUT_S, stream=True)
    with opened as response:
        utils.hf_raise_for_status(response)
        whole = first == 0 and response.headers.get("Content-Length") == str(n)
        if response.status_code != 206 and not whole:
            raise CtworkerError(
                f"{name}: the server of {file} does not answer requests for a part of a file (status "
                f"{response.status_code}): fetch the checkpoint (hf download {name} --local-dir DIR) and give DIR"
            )
        data: bytes = response.read() if callable(session.stream) else response.content
    if len(data) != n:
        raise CtworkerError(f"{name}: {file}: asked for {n} bytes from {first} on, got {len(data)}: try again")
    return data
