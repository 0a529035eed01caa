"""Hub names: which files are downloaded, which come from the cache, and the errors."""

from __future__ import annotations

import fnmatch
import json
import shutil
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from ctworker.base.errors import ArgumentError, CtworkerError
from ctworker.client import hub, session
from ctworker.options.settings import Settings
from ctworker.sweep import models
from ctworker.sweep.work import Model

REPOSITORY = [
    "config.json", "generation_config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
    "model.safetensors.index.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "chat_template.jinja", "additional_chat_templates/rag.jinja",
]  # fmt: skip
UNWANTED = [
    "original/consolidated.00.pth", "original/tokenizer.model", "consolidated.safetensors", "pytorch_model.bin",
    "onnx/model.onnx", "README.md", ".gitattributes", "original/model.safetensors", "flax_model.msgpack", "x.gguf",
]  # fmt: skip


@pytest.fixture
def fake_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Replaces the hub by one repository; returns the list of calls."""
    calls: list[dict[str, Any]] = []
    remote = {name: b"x" for name in REPOSITORY + UNWANTED}
    remote["model.safetensors.index.json"] = json.dumps(
        {"weight_map": {"a": REPOSITORY[2], "b": REPOSITORY[3], "c": "odd-name.safetensors"}}
    ).encode()
    remote["odd-name.safetensors"] = b"x"

    def snapshot_download(name: str, *, revision: str, allow_patterns: list[str], **more: Any) -> str:
        calls.append({"name": name, "revision": revision, **more})
        if name != "org/model":
            raise OSError(f"401 Client Error: {name}")
        root = tmp_path / "snapshots" / "c0ffee"
        for file, data in remote.items():
            if any(fnmatch.fnmatch(file, pattern) for pattern in allow_patterns):
                (root / file).parent.mkdir(parents=True, exist_ok=True)
                (root / file).write_bytes(data)
        return str(root)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return calls


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_only_what_is_needed(fake_hub: list[dict[str, Any]]) -> None:
    got = hub.resolve("org/model", Settings(revision="v1", token="t"), weights=True)
    assert files(got.folder) == {*REPOSITORY, "odd-name.safetensors"}
    assert (got.name, got.revision, got.commit) == ("org/model", "v1", "c0ffee")
    assert fake_hub[0] == {"name": "org/model", "revision": "v1", "token": "t"}


def test_a_tokenizer_needs_no_weights(fake_hub: list[dict[str, Any]]) -> None:
    got = hub.resolve("org/model", Settings(), weights=False)
    assert "tokenizer.json" in files(got.folder) and not any("safetensors" in name for name in files(got.folder))


def test_a_gguf_file_of_a_repository(fake_hub: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    names = ["q4-00001-of-00002.gguf", "q4-00002-of-00002.gguf", "q8.gguf"]
    root = tmp_path / "snapshots/c0ffee"

    def snapshot_download(name: str, *, allow_patterns: list[str], **more: Any) -> str:
        root.mkdir(parents=True, exist_ok=True)
        for file in names:
            if any(fnmatch.fnmatch(file, pattern) for pattern in allow_patterns):
                (root / file).write_bytes(b"GGUF")
        return str(root)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    got = hub.resolve("org/model", Settings(gguf_file=names[0]), weights=True)
    assert got.folder == root / names[0] and got.commit == "c0ffee"
    assert files(root) == set(names[:2])
    with pytest.raises(CtworkerError, match=r"has no q3.gguf, which gguf_file= names"):
        hub.resolve("org/model", Settings(gguf_file="q3.gguf"), weights=True)


def test_a_gguf_file_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    assert hub.resolve(str(tmp_path / "m.gguf"), Settings(), weights=True).folder == tmp_path / "m.gguf"
    assert hub.resolve(str(tmp_path), Settings(gguf_file="m.gguf"), weights=True).folder == tmp_path / "m.gguf"
    assert hub.resolve(str(tmp_path), Settings(gguf_file="m.gguf"), weights=False).folder == tmp_path
    settings = Settings(pretrained=str(tmp_path), gguf_file="m.gguf")
    assert hub.resolve(str(tmp_path), settings, weights=False).folder == tmp_path / "m.gguf"  # its tokenizer
    with pytest.raises(ArgumentError, match=r"there is no file .*x.gguf, which gguf_file= names"):
        hub.resolve(str(tmp_path), Settings(gguf_file="x.gguf"), weights=True)


def test_the_original_of_a_gguf_model(tmp_path: Path) -> None:
    """Its folder gives the configuration, and the tokenizer unless tokenizer= does."""
    for name in ("original", "plain", "empty"):
        (tmp_path / name).mkdir()
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    (tmp_path / "original/config.json").write_text("{}")
    original, model = str(tmp_path / "original"), hub.Checkpoint(tmp_path / "m.gguf", "m.gguf")
    settings = hub.with_original(Settings(config=original), model)
    assert settings.tokenizer == original and f"--config {original}" in " ".join(session.engine_options(settings))
    assert hub.with_original(Settings(config=original, tokenizer="other"), model).tokenizer == "other"
    assert hub.with_original(Settings(), None) == Settings()
    with pytest.raises(ArgumentError, match=r"config=.*plain has a config.json of its own, and no GGUF file"):
        hub.with_original(Settings(config=original), hub.Checkpoint(tmp_path / "plain", "plain"))
    with pytest.raises(ArgumentError, match=r"there is no .*/empty/config.json"):
        hub.with_original(Settings(config=str(tmp_path / "empty")), model)


def test_unknown_repository(fake_hub: list[dict[str, Any]]) -> None:
    with pytest.raises(CtworkerError, match=r"no folder org/none.*OSError: 401 Client Error.*HF_TOKEN"):
        hub.resolve("org/none", Settings(), weights=True)


@pytest.mark.parametrize("name", ["/no/such/folder", "./none", "a/b/c", "~/none", "org/model.gguf"])
def test_paths_are_not_asked_from_the_hub(name: str) -> None:
    with pytest.raises(ArgumentError, match="no folder"):
        hub.resolve(name, Settings(), weights=True)


def test_a_file_is_no_checkpoint(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"")
    with pytest.raises(ArgumentError, match="is not a folder"):
        hub.resolve(str(file), Settings(), weights=True)
    (tmp_path / "sub").mkdir()
    assert (hub.resolve(str(tmp_path), Settings(subfolder="sub"), weights=True).folder == tmp_path / "sub")


def cache(folder: Path, checkpoint: Path) -> Path:
    """A cache as huggingface_hub lays it out, with one snapshot under `main`."""
    repository = folder / "models--org--model"
    snapshot = repository / "snapshots" / ("ab" * 20)
    shutil.copytree(checkpoint, snapshot)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("ab" * 20)
    return snapshot


def test_offline_from_the_cache(checkpoint: Path, tmp_path: Path) -> None:
    """The real huggingface_hub, offline (HF_HUB_OFFLINE=1 is set for all tests)."""
    snapshot = cache(tmp_path, checkpoint)
    got = hub.resolve("org/model", Settings(cache_dir=str(tmp_path)), weights=True)
    assert got.folder == snapshot and got.commit == "ab" * 20
    with pytest.raises(CtworkerError, match=r"org/other.*not available"):
        hub.resolve("org/other", Settings(cache_dir=str(tmp_path)), weights=True)
    with pytest.raises(CtworkerError, match=r"revision v9"):
        hub.resolve("org/model", Settings(cache_dir=str(tmp_path), revision="v9"), weights=True)


def test_a_cache_with_holes(checkpoint: Path, tmp_path: Path) -> None:
    snapshot = cache(tmp_path, checkpoint)
    for file in snapshot.glob("*.safetensors"):
        file.unlink()
    with pytest.raises(CtworkerError, match=r"no model\*\.safetensors"):
        hub.resolve("org/model", Settings(cache_dir=str(tmp_path)), weights=True)
    (snapshot / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-1.safetensors"}}')
    with pytest.raises(CtworkerError, match=r"1 of 1 weight files.*model-1\.safetensors.*HF_HUB_OFFLINE"):
        hub.resolve("org/model", Settings(cache_dir=str(tmp_path)), weights=True)
    (snapshot / "model.safetensors.index.json").write_text("[]")
    with pytest.raises(CtworkerError, match="is not an index"):
        hub.resolve("org/model", Settings(cache_dir=str(tmp_path)), weights=True)


@pytest.mark.parametrize("known", [True, False])
def test_a_sweep_downloads_the_commit_that_it_began_with(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, known: bool
) -> None:
    """Its cells are named after it. If the hub did not say, they cannot be: nothing is scored under a name without a commit."""
    asked = []

    def resolve(name: str, settings: Settings, *, weights: bool) -> hub.Checkpoint:
        if settings.local_files_only:
            raise CtworkerError("not in the cache")
        asked.append(settings.revision)
        commit = "0ld" if settings.revision == "0ld" else "new"  # the branch has moved meanwhile
        return hub.Checkpoint(tmp_path, name, settings.revision, commit)

    monkeypatch.setattr(hub, "resolve", resolve)
    monkeypatch.setattr(hub, "commit_of", lambda name, revision: "0ld" if known else "")
    monkeypatch.setattr(models, "_inspect", lambda folder, stamp, commit: models.Files(folder, stamp, {}, commit))
    model = Model("hub", "org/model", hub=True)
    files = models.look(model)
    assert (files.folder, files.commit) == (None, "0ld" if known else "")
    if known:
        assert models.fetch(model, files) == models.Files(tmp_path, files.stamp, {}, "0ld")
    else:
        with pytest.raises(CtworkerError, match="did not say which commit revision main of org/model is; now it is new: start"):
            models.fetch(model, files)
    assert asked == (["0ld"] if known else ["main"])
