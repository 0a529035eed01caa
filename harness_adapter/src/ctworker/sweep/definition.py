"""A sweep as its YAML file defines it: models, options and work, checked before anything runs (docs/SWEEP.md)."""

from __future__ import annotations

import glob
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..base import gguf
from ..base.errors import ArgumentError
from ..options import arguments, values
from ..options.settings import On, options_on
from ..options.spelling import for_sweep
from .kinds import KINDS
from .nodes import Node, read
from .work import Model, Options, Sweep, Work

_MODEL_FIELDS = ("path", "label", "group", "method", "bits", "original", "revision", "tokenizer")
#: Options of a cell that are arguments of the model `ctworker` (docs/LM_EVAL.md) with the same meaning.
_OPTION_FIELDS = ("name", *(option.name for option in options_on(On.SWEEP)))
_TOP_FIELDS = ("name", "output", "devices", "store", "store_limit", "models", "options")
_LEAST_STORE = 1 << 20  # bytes; the worker refuses less
_GLOB = re.compile(r"[*?\[]")


def load(file: Path, output: str | None = None) -> Sweep:
    """Reads and checks a sweep. Raises ArgumentError with file, line, key, and what was expected."""
    file = file.absolute()
    root = read(file)
    fields = root.fields([*_TOP_FIELDS, *(key for kind in KINDS for key in kind.keys)], "a sweep")
    if "models" not in fields:
        raise root.error(
            "the key models is missing: expected a list of folders, globs or hub names"
        )
    models = _models(fields["models"], file.parent)
    work = [item for kind in KINDS for item in kind.parse(fields, models, file.parent)]
    if not work:
        keys = ", ".join(kind.keys[0] for kind in KINDS)
        raise root.error(f"there is nothing to do: expected at least one of {keys}")
    _unique(work)
    name = fields["name"].text() if "name" in fields else file.stem
    folder = fields["output"].text() if "output" in fields else f"{file.stem}-results"
    results = Path(output) if output else file.parent / Path(folder).expanduser()
    results = Path(os.path.abspath(results))  # without ..
    return Sweep(
        name=name,
        file=file,
        output=results,
        devices=_devices(fields.get("devices")),
        models=models,
        options=_options(fields.get("options")),
        work=work,
        store=_store(fields.get("store"), results, file.parent),
        store_limit=_size(fields.get("store_limit")),
    )


def with_folder(sweep: Sweep, folder: Path) -> Sweep:
    """The sweep with one more model, which --watch has found."""
    taken = {model.label for model in sweep.models}
    label, n = folder.name, 2
    while label in taken:
        label, n = f"{folder.name} ({n})", n + 1
    return replace(sweep, models=[*sweep.models, Model(label, str(folder))])


# -- models ------------------------------------------------------------------------------------------------


def _models(node: Node, base: Path) -> list[Model]:
    models: list[Model] = []
    for item in node.items("a list of folders, globs or hub names"):
        for model in _entry(item, base):
            if any(model.label == other.label for other in models):
                raise item.error(
                    f"two models have the label {model.label}: give each a label of its own (label:; for a glob, a label "
                    "with {name})"
                )
            models.append(model)
    if not models:
        raise node.error("expected at least one model")
    for group in {model.group for model in models}:
        originals = [m.label for m in models if m.group == group and m.original]
        if len(originals) > 1:
            where = f"group {group}" if group else "the group without a name"
            raise node.error(
                f"{where} has several models with original: true ({', '.join(originals)}): expected one"
            )
    return models


def _entry(node: Node, base: Path) -> list[Model]:
    """The models of one element of the list: one, or all that a glob matches."""
    if not isinstance(node.value, dict):
        node = Node({"path": node}, node.file, node.line, node.path)
    fields = node.fields(_MODEL_FIELDS, "a model")
    if "path" not in fields:
        raise node.error("the key path is missing: expected a folder, a glob or a hub name")
    text = os.path.expandvars(os.path.expanduser(fields["path"].text()))
    known: dict[str, Any] = {
        name: fields[name].text() for name in ("group", "method", "revision") if name in fields
    }
    if "tokenizer" in fields:
        known["tokenizer"] = _local(fields["tokenizer"].text(), base)
    if "bits" in fields:
        known["bits"] = float(fields["bits"].number())
    if "original" in fields:
        known["original"] = fields["original"].flag()
    label = fields["label"].text() if "label" in fields else "{name}"
    found = _folders(fields["path"], text, base)
    if not found:  # a hub name
        return [Model(label.replace("{name}", text), text, hub=True, **known)]
    if len(found) > 1 and known.get("original"):
        raise fields["original"].error(
            f"{text} matches {len(found)} folders, and a group has one original"
        )
    if len(found) > 1 and "{name}" not in label:
        raise fields["label"].error(
            f"{text} matches {len(found)} folders: expected a label with {{name}}, which stands for the folder's name"
        )
    return [Model(label.replace("{name}", f.name.removesuffix(".gguf")), str(f), **known) for f in found]


def _is_checkpoint(place: Path) -> bool:
    is_folder = (place / "config.json").is_file() or any(place.glob("*.gguf"))
    return is_folder or (place.is_file() and place.suffix == ".gguf")


def _folders(node: Node, text: str, base: Path) -> list[Path]:
    """The checkpoint folders and GGUF files that a path or a glob names; empty: it is a hub name."""
    path = base / text
    if path.is_dir():
        if not _is_checkpoint(path):
            raise node.error(f"{path} has no config.json: expected the folder of a checkpoint, or a GGUF file")
        return [path]
    if _GLOB.search(text):
        matched = sorted(Path(name) for name in glob.glob(str(path)))
        found = [place for place in matched if _is_checkpoint(place) and gguf.parts(place)[:1] in ([], [place])]
        if not found:
            raise node.error(f"{text} matches no folder with a config.json and no GGUF file (below {base})")
        return found
    if _is_checkpoint(path):
        return [path]
    if path.exists():
        raise node.error(f"{path} is a file: expected the folder of a checkpoint, or a GGUF file")
    if text.startswith((".", "/", "~", "$")) or not re.fullmatch(r"[\w.-]+/[\w.-]+", text):
        raise node.error(
            f"there is no folder {path}, and {text} is not a hub name (expected ORGANISATION/MODEL)"
        )
    return []


def _local(text: str, base: Path) -> str:
    """A path of the file as an absolute path; a hub name stays as it is."""
    path = base / os.path.expandvars(os.path.expanduser(text))
    return str(path) if path.exists() else text


# -- the rest ----------------------------------------------------------------------------------------------


def _devices(node: Node | None) -> list[str]:
    if node is None:
        return ["auto"]
    devices = [item.text() for item in node.items("a list of devices")]
    for item, device in zip(node.items(), devices):
        if not re.fullmatch(r"auto|cpu|(cuda:)?\d+|cuda", device):
            raise item.wrong("auto, cpu, or the number of a GPU")
    if not devices or len(set(devices)) < len(devices):
        raise node.error("expected at least one device, and each one once")
    if len(devices) > 1 and {"auto", "cuda"} & set(devices):
        raise node.error("several devices are named by number: expected a list such as [0, 1]")
    return devices


def _store(node: Node | None, results: Path, base: Path) -> Path | None:
    """The folder of the result store: in the results, or one that several sweeps share."""
    if node is None or node.value is True:
        return results / "store"
    if node.value is False:
        return None
    folder = base / os.path.expanduser(node.text())
    if folder.exists() and not folder.is_dir():
        raise node.error(f"{folder} is a file: expected true, false, or a folder")
    if not os.access(folder if folder.exists() else folder.parent, os.W_OK | os.X_OK):
        raise node.error(f"{folder} cannot be written to, or made: expected a folder, or a new one in a folder that is there")
    return folder


def _size(node: Node | None) -> str | None:
    if node is None:
        return None
    try:
        size = values.size(node.path, node.scalar())
    except ArgumentError as error:
        raise node.wrong("a size such as 20GiB") from error
    number, prefix, binary = re.findall(r"([\d.]+)([KMGT]?)(i?)", size, re.IGNORECASE)[0]
    if float(number) * (1024 if binary else 1000) ** " KMGT".index(prefix.upper() or " ") < _LEAST_STORE:
        raise node.wrong("at least 1MiB")
    return size


def _options(node: Node | None) -> list[Options]:
    if node is None:
        return [Options()]
    found = []
    items = node.items("a mapping, or a list of mappings")
    for item in items:
        fields = item.fields(_OPTION_FIELDS, "options")
        chosen = {}
        for name, value in fields.items():
            if name == "name":
                continue
            if isinstance(value.value, bool) and name != "add_bos_token":  # not 1 or 0
                raise value.wrong("a number or text")
            try:
                settings = arguments.parse({"pretrained": "x", name: value.scalar()})
            except ArgumentError as error:
                raise value.error(for_sweep(str(error)).removeprefix(f"{name}: ")) from error
            chosen[name] = getattr(settings, name)
        if len(items) > 1 and "name" not in fields:
            raise item.error("the key name is missing: each of several sets of options has a name")
        found.append(Options(fields["name"].text() if "name" in fields else "", chosen))
    names = [options.name for options in found]
    if not found or len(set(names)) < len(names):
        raise node.error("expected at least one set of options, each with a name of its own")
    return found


def _unique(work: list[Work]) -> None:
    seen: dict[str, Work] = {}
    for item in work:
        if item.name in seen:
            raise ArgumentError(
                f"{item.line}: the name {item.name} is taken by {seen[item.name].line}: give one of the two a label"
            )
        seen[item.name] = item
