"""endpoint= with pretrained=: the identities of the two checkpoints are compared, whatever their paths."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import fake_worker
import pytest

from ctworker.api import Client, Worker
from ctworker.base.errors import ArgumentError
from ctworker.client.identity import LocalIdentity, files_stamp
from ctworker.lm import CTWorkerLM


@pytest.fixture
def copies(checkpoint: Path, tmp_path: Path) -> dict[str, Path]:
    """Copies of the checkpoint: unchanged, with another config.json, and without weights."""
    folders = {name: tmp_path / name for name in ("same", "other", "bare")}
    for folder in folders.values():
        shutil.copytree(checkpoint, folder)
    config = json.loads((checkpoint / "config.json").read_text())
    (folders["other"] / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 0.5}))
    for file in folders["bare"].glob("*.safetensors"):
        file.unlink()
    return folders


@pytest.mark.parametrize("hidden", [",hidden", ""])  # over tcp:// the worker hides its path
def test_identities_are_compared(
    fake: Callable[[str], Path],
    running_fake: Callable[..., str],
    checkpoint: Path,
    copies: dict[str, Path],
    caplog: pytest.LogCaptureFixture,
    hidden: str,
) -> None:
    fake()  # the program that runs `inspect`
    ours, theirs = (fake_worker.identity_of(path) for path in (copies["other"], checkpoint))
    url = running_fake(f"identity={theirs}{hidden}")
    model = CTWorkerLM(endpoint=url, pretrained=str(copies["same"]))
    assert model.get_model_info()["ctworker"]["notes"] == []
    with pytest.raises(ArgumentError, match=f"other is the checkpoint {ours}.*which is {theirs}"):
        CTWorkerLM(endpoint=url, pretrained=str(copies["other"]))
    assert "was not compared" not in caplog.text
    model = CTWorkerLM(endpoint=url, pretrained=str(copies["bare"]))
    (note,) = model.get_model_info()["ctworker"]["notes"]
    assert "was not compared" in note and "holds no weights" in note and note in caplog.text
    assert CTWorkerLM(endpoint=url, tokenizer=str(copies["bare"])).get_model_info()["ctworker"]["notes"] == []  # fmt: skip


def test_a_folder_that_changes_under_its_worker(
    fake: Callable[[str], Path], running_fake: Callable[..., str], copies: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker's number is never reported under the name of other files, whether pretrained= names the folder or its
    tokenizer is read. While the files' metadata stay, nothing is digested."""
    fake()
    folder, theirs = copies["same"], fake_worker.identity_of(copies["same"])
    url = running_fake(f"identity={theirs}", "--model", f"again={folder}")
    ways = ({"pretrained": str(folder)}, {"pretrained": str(folder), "model": "again"}, {"model": "again"})
    with monkeypatch.context() as patched:
        patched.setattr(LocalIdentity, "_compute", lambda *_: pytest.fail("digested"))
        for arguments in ways:
            CTWorkerLM(endpoint=url, **arguments).close()
    other = (copies["other"] / "config.json").read_bytes()
    (folder / "new").write_bytes(other)
    (folder / "new").replace(folder / "config.json")
    ours = fake_worker.identity_of(folder)
    said = f"same has changed since .* it is now the checkpoint {ours}, .*{theirs}: load the model again"
    for arguments in ways:
        with pytest.raises(ArgumentError, match=said):
            CTWorkerLM(endpoint=url, **arguments)
    with pytest.raises(ArgumentError, match="same has changed since"), Client(url, model="again") as client:
        print(client.folder)
    for file in folder.glob("*.safetensors"):
        file.unlink()
    with Client(url, model="again") as client:
        assert client.folder == folder
        (note,) = client.notes
    assert note == f"{folder} was not compared with the worker's checkpoint: {folder} holds no weights"


def test_a_worker_that_does_not_vouch_for_its_files(
    fake: Callable[[str], Path], running_fake: Callable[..., str], copies: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder is digested, though nothing in it has changed. Without a program that digests, the folder is refused."""
    fake()
    folder = copies["same"]
    url = running_fake(f"restless,identity={fake_worker.identity_of(folder)}", "--model", f"again={folder}")
    CTWorkerLM(endpoint=url, pretrained=str(folder), model="again").close()
    wrong = running_fake(f"restless,hidden={folder}")
    with pytest.raises(ArgumentError, match="has changed since"):
        CTWorkerLM(endpoint=wrong, pretrained=str(folder))
    monkeypatch.delenv("CTWORKER_BIN")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ArgumentError, match="may have changed since .*there is no ctworker program.*load the model again"):
        CTWorkerLM(endpoint=url, pretrained=str(folder), model="again")


def test_the_real_worker_vouches_as_the_protocol_says(real_worker: str, checkpoint: Path) -> None:
    """For files that have been at rest for a minute, as a client computes it; else for none."""
    newest = max(max(s.st_mtime, s.st_ctime) for s in (path.stat() for path in checkpoint.iterdir()))
    before = time.time()
    with Worker(checkpoint) as worker:
        stamp = worker.model["weights"]["files"]
    if newest + 60 < before:
        assert stamp == files_stamp(checkpoint) == fake_worker.files_stamp(checkpoint)
    elif newest + 60 > time.time():
        assert stamp == ""


def rename(new: Path, target: Path) -> None:
    shutil.copy(new, target.with_name("next")).replace(target)


def write_over(new: Path, target: Path) -> None:
    with target.open("r+b") as file:
        file.write(new.read_bytes())


@pytest.mark.parametrize("change", [rename, write_over])
@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_real_worker_whose_folder_changes(
    real_worker: str, copies: dict[str, Path], name: str, change: Callable[[Path, Path], None]
) -> None:
    """Its number is not reported under the name of its folder, nor for a copy of the new files; a copy of the old files
    is the checkpoint that it has loaded."""
    served, old, new = copies["same"], copies["bare"].with_name("old"), copies["other"]
    shutil.copytree(served, old)
    if name == "model.safetensors":
        shutil.copy(old / "config.json", new / "config.json")
        data = bytearray((new / name).read_bytes())
        data[-1] ^= 1
        (new / name).write_bytes(data)
    for folder in (served, old, new):  # so that nothing of the old text remains
        (folder / "config.json").write_text((folder / "config.json").read_text().ljust(4096))
    assert (new / name).stat().st_size == (old / name).stat().st_size
    with Worker(served, device="cpu") as worker:
        ways = ({"pretrained": str(served)}, {})  # without pretrained=, the worker's folder has the tokenizer
        for arguments in ways:
            CTWorkerLM(endpoint=worker.endpoint, **arguments).close()
        theirs = worker.identity
        change(new / name, served / name)
        ours = LocalIdentity(new).get()[0]
        assert theirs == LocalIdentity(old).get()[0] != ours == LocalIdentity(served).get()[0]
        for arguments in ways:
            with pytest.raises(ArgumentError, match=f"same has changed since .*{ours}.*{theirs}: load the model again"):
                CTWorkerLM(endpoint=worker.endpoint, **arguments)
        with pytest.raises(ArgumentError, match=f"other is the checkpoint {ours}.*which is {theirs}"):
            CTWorkerLM(endpoint=worker.endpoint, pretrained=str(new))
        CTWorkerLM(endpoint=worker.endpoint, pretrained=str(old)).close()


def test_the_identity_of_streamed_weights_is_known_before_anything_is_scored(real_worker: str, checkpoint: Path) -> None:
    """They are read in passes only, so that nobody must wait for a pass that nobody asks for."""
    with Worker(checkpoint, device="cpu", weights_limit="900KiB") as worker:
        assert worker.model["placement"] == "streamed"
        assert (worker.identity, "") == LocalIdentity(checkpoint).get()


def test_without_a_program(
    running_fake: Callable[..., str], copies: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another folder is refused if its path is visible; otherwise a note says that the two were not compared."""
    visible, hidden, elsewhere = (running_fake(fault) for fault in ("", "hidden", "hidden=/nowhere/model"))
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ArgumentError, match="cannot be compared .there is no ctworker program"):
        CTWorkerLM(endpoint=visible, pretrained=str(copies["same"]))
    for url in (hidden, elsewhere):
        model = CTWorkerLM(endpoint=url, pretrained=str(copies["same"]))
        (note,) = model.get_model_info()["ctworker"]["notes"]
        assert "there is no ctworker program on this machine" in note


@pytest.mark.parametrize(
    ("shell", "command", "identity", "why"),
    [
        ("/bin/sh", "echo identity $(printf %064d 7)", f"{7:064d}", ""),
        ("/bin/sh", "echo first >&2; echo why >&2; exit 65", "", "why"),
        ("/bin/sh", "", "", "PROGRAM inspect printed no identity"),
        ("/nowhere/sh", "", "", "PROGRAM cannot be run: No such file or directory"),
    ],
)
def test_the_program_is_run_once(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    copies: dict[str, Path],
    shell: str,
    command: str,
    identity: str,
    why: str,
) -> None:
    """Without the options of the shell."""
    program, runs = tmp_path / "program", tmp_path / "runs"
    program.write_text(f'#!{shell}\necho "${{CTW_DTYPE-none}}" >>{runs}\n{command}\n')
    program.chmod(0o755)
    monkeypatch.setenv("CTWORKER_BIN", str(program))
    monkeypatch.setenv("CTW_DTYPE", "float8")
    local = LocalIdentity(copies["same"])
    assert local.get() == local.get() == (identity, why.replace("PROGRAM", str(program)))
    assert not runs.exists() or runs.read_text() == "none\n"
