"""The files of a model: where they are, what they hold (`ctworker inspect --json`), and reading them ahead."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..base import gguf
from ..base.errors import CtworkerError
from ..client import hub
from ..client.launcher import environment, find_binary
from ..client.session import engine_options
from ..options.settings import Settings
from ..options.spelling import from_worker
from .digest import digest
from .work import Model

log = logging.getLogger("lm_eval.ctworker")

_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "*.gguf")
_OTHERS = ("*.json", "*.jinja", "tokenizer.model", "merges.txt")
_BLOCK = 16 << 20
_NO_STORE = 66  # exit code: no store in the folder


@dataclass
class Files:
    """facts: of inspect; error: why the model cannot be used; stamp: changes when a file changes, or the commit; commit: of a
    hub model, also before it is downloaded; "" if the hub does not say."""

    folder: Path | None
    stamp: str
    facts: dict[str, Any]
    commit: str = ""
    error: str = ""

    @property
    def bytes(self) -> int:
        return int(self.facts.get("bytes", 0))

    @property
    def params(self) -> int:
        return int(self.facts.get("params", 0))


def look(model: Model) -> Files:
    """What is known of a model without loading it. A hub model that is not in the local cache has no facts yet."""
    if not model.hub:
        return _inspect(Path(model.path), stamp_of(Path(model.path)), "")
    try:
        return _of_hub(model, model.revision, local_files_only=True)
    except CtworkerError:
        commit = hub.commit_of(model.path, model.revision)
        return Files(None, _hub_stamp(model, commit), {}, commit)


def fetch(model: Model, files: Files) -> Files:
    """The files of a hub model, downloaded: of the commit that its cells are named after. Raises CtworkerError."""
    if files.folder is not None:
        return files
    found = _of_hub(model, files.commit or model.revision, local_files_only=False)
    if found.stamp != files.stamp:
        raise CtworkerError(
            f"when the sweep began, the hub did not say which commit revision {model.revision} of {model.path} is; now it is "
            f"{found.commit}: start the sweep again"
        )
    return found


def _of_hub(model: Model, revision: str, *, local_files_only: bool) -> Files:
    settings = Settings(revision=revision, local_files_only=local_files_only)
    found = hub.resolve(model.path, settings, weights=True)
    return _inspect(found.folder, _hub_stamp(model, found.commit), found.commit)


def _hub_stamp(model: Model, commit: str) -> str:
    """A revision may be a branch, which moves; a commit's files never change."""
    return digest(["hub", model.path, commit or model.revision])


def stamp_of(folder: Path) -> str:
    """Changes when a file of the checkpoint is written, as with make: names, sizes and times."""
    files = gguf.parts(folder) if folder.is_file() else []
    names = {*files, *(path for pattern in (*_WEIGHTS, *_OTHERS) for path in folder.glob(pattern))}
    found = [(path.name, path.stat()) for path in sorted(names)]
    return digest([(name, stat.st_size, stat.st_mtime_ns) for name, stat in found])


def _inspect(folder: Path, stamp: str, commit: str) -> Files:
    done = _run("inspect", "--json", "--backend", "cpu", str(folder))
    if done.returncode != 0:
        return Files(folder, stamp, {}, commit, _words(done, "inspect"))
    try:
        return Files(folder, stamp, json.loads(done.stdout), commit)
    except ValueError as error:
        raise CtworkerError(
            f"{find_binary()} inspect --json printed no JSON: the worker is older than this package; unset CTWORKER_BIN, or "
            "set it to a worker of the same version"
        ) from error


def trial(folder: Path, settings: Settings) -> str:
    """Why no worker can load the model with these arguments, as far as that is known without reading weights; "": nothing
    is in the way."""
    done = _run("inspect", *engine_options(settings), str(folder))
    return _words(done, "inspect") if done.returncode != 0 else ""


def check_store(folder: Path) -> None:
    """Raises CtworkerError when no worker can use the result store in this folder: it is damaged, or of a newer version."""
    done = _run("store", "list", "--json", str(folder))
    if done.returncode not in (0, _NO_STORE):
        raise CtworkerError(f"store: {_words(done, 'store')}")


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [find_binary(), *words], capture_output=True, text=True, errors="replace", check=False, env=environment(),
        stdin=subprocess.DEVNULL,
    )  # fmt: skip


def _words(done: subprocess.CompletedProcess[str], command: str) -> str:
    """What a command of the worker said last."""
    lines = done.stderr.strip().splitlines() or [f"{done.args[0]} {command} printed nothing"]
    return from_worker(re.sub(rf"^ctworker:? (error: )?{command}: ", "", lines[-1]))


def read_ahead(model: Model, files: Files) -> None:
    """Downloads a model, and asks the kernel to read its files, in a thread, while another model computes."""
    threading.Thread(target=_read_ahead, args=(model, files), daemon=True).start()


def _read_ahead(model: Model, known: Files) -> None:
    try:
        folder = fetch(model, known).folder
    except CtworkerError as error:
        log.info("%s", error)  # said again when it is the model's turn
        return
    assert folder is not None
    place = gguf.parts(folder) if folder.is_file() else [*folder.glob("*.safetensors"), *folder.glob("*.gguf")]
    files = [path for path in sorted(place) if path.is_file()]
    if sum(path.stat().st_size for path in files) > _available() // 2:
        log.info("not reading %s ahead: it is larger than half of the available memory", folder)
        return
    for path in files:
        try:
            fd = os.open(path, os.O_RDONLY)
        except OSError:
            return  # the worker will say what is wrong
        try:
            for offset in range(0, os.fstat(fd).st_size, _BLOCK):
                os.posix_fadvise(fd, offset, _BLOCK, os.POSIX_FADV_WILLNEED)
        finally:
            os.close(fd)


def _available() -> int:
    """Bytes of memory that can be used without swapping."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 0
