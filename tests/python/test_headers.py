"""`ctworker inspect ORG/NAME` against a small hub that counts the bytes it serves."""

from __future__ import annotations

import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import ROOT, SRC

sys.path.insert(0, str(ROOT / "tests/tools"))
import checkpoint_io  # noqa: E402
import gguf_writer  # noqa: E402

COMMIT = "c0ffee" + "0" * 34
UNREAD = {"README.md": b"x" * 5000, "tokenizer.json": b"{}", "pytorch_model.bin": b"x" * 5000}


class Hub(http.server.ThreadingHTTPServer):
    """One repository, org/model. served: bytes of files so far, by name. whole: answers no request for a part of a file."""

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.files, self.served, self.whole = files, dict.fromkeys(files, 0), False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Answer(http.server.BaseHTTPRequestHandler):
    server: Hub

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path.startswith("/api/models/org/model"):
            if not path.endswith(("/main", "/v1")):
                return self._reply(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            names = [{"rfilename": name, "size": len(data)} for name, data in self.server.files.items()]
            return self._reply(200, json.dumps({"id": "org/model", "sha": COMMIT, "siblings": names}).encode())
        match = re.fullmatch(rf"/(cdn|org/model/resolve/{COMMIT})/(.*)", path)
        if match is None or match[2] not in self.server.files:
            return self._reply(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        name = match[2]
        if match[1] != "cdn" and name.endswith(".safetensors"):  # as the hub does for large files
            return self._reply(302, b"", {"Location": f"{self.server.url}/cdn/{name}"})
        data, part = self.server.files[name], re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if part is None or self.server.whole:
            return self._reply(200, data)
        data = data[int(part[1]) : int(part[2]) + 1]
        self.server.served[name] += len(data)
        return self._reply(206, data)

    def _reply(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), "Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def quantised(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Packed weights, whose shapes are the contents of tensors, in two files."""
    folder = tmp_path_factory.mktemp("quantised")
    tool = ROOT / "tests/tools/tiny_checkpoint.py"
    subprocess.run([sys.executable, str(tool), "llama", "w4a16_g32_asym", str(folder / "one")], check=True)
    stored = checkpoint_io.Checkpoint(folder / "one")
    batches = [
        checkpoint_io.Batch([(name, stored.dtype(name), stored.shape(name))], lambda name=name: [stored.carrier(name)])
        for name in stored.names()
    ]
    shutil.copytree(folder / "one", folder / "two", ignore=shutil.ignore_patterns("*.safetensors"))
    checkpoint_io.write_sharded(folder / "two", batches, 2)
    return folder / "two"


@pytest.fixture
def hub(quantised: Path) -> Iterator[Hub]:
    server = Hub(UNREAD | {file.name: file.read_bytes() for file in quantised.iterdir()})
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def inspect(hub: Hub, cache: Path, *arguments: str, offline: str = "0") -> subprocess.CompletedProcess[str]:
    env = os.environ | {"HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": offline, "XDG_CACHE_HOME": str(cache / "ours"),
                        "HF_HOME": str(cache / "hf"), "PYTHONPATH": str(SRC)}  # fmt: skip
    return subprocess.run(
        [sys.executable, "-m", "ctworker", "inspect", *arguments], env=env, capture_output=True, text=True, check=False)  # fmt: skip


def header_bytes(data: bytes) -> int:
    return 8 + int.from_bytes(data[:8], "little")


def test_only_configuration_and_headers_are_read(real_worker: str, hub: Hub, quantised: Path, tmp_path: Path) -> None:
    done = inspect(hub, tmp_path, "--json", "--backend", "cpu", "org/model")
    assert done.returncode == 0, done.stderr
    local = subprocess.run([real_worker, "inspect", "--json", "--backend", "cpu", quantised], capture_output=True, check=True)
    found, expected = json.loads(done.stdout), json.loads(local.stdout)
    assert (found.pop("headers_alone"), expected.pop("headers_alone")) == (True, False)
    assert Path(found.pop("path")).name == COMMIT and expected.pop("path")
    assert found == expected and found["weight_bits"] > 4
    wanted = {name: header_bytes(data) for name, data in hub.files.items() if name.endswith(".safetensors")}
    wanted |= {name: len(hub.files[name]) for name in ("config.json", "model.safetensors.index.json")}
    assert len(wanted) == 4 and {name: n for name, n in hub.served.items() if n > 0} == wanted
    # The plan of the memory, too; nothing is read again.
    done = inspect(hub, tmp_path, "org/model@v1", "--devices", "2", "--device-memory", "48GiB")
    assert done.returncode == 0 and "in 2 files, of which only the headers are here\n" in done.stdout, done.stderr
    assert "weights: resident" in done.stdout
    assert {name: n for name, n in hub.served.items() if n > 0} == wanted


def test_a_copy_of_headers_is_never_scored(real_worker: str, hub: Hub, tmp_path: Path) -> None:
    copy = Path(json.loads(inspect(hub, tmp_path, "--json", "org/model").stdout)["path"])
    alone = r"model-00001-of-00002.safetensors: a copy of the file's header, .*hf download ORG/NAME --local-dir DIR"
    for option in ("--hashes", "--identity", "--activations=checkpoint"):
        done = inspect(hub, tmp_path, option, "org/model")
        assert done.returncode == 66 and re.search(alone, done.stderr), done.stderr
        assert done.stdout == ""
    for number, keep in enumerate(("*", "*.safetensors")):  # under other names, and of some files only
        other = shutil.copytree(copy, tmp_path / f"other{number}")
        if keep != "*":
            (other / "model-00002-of-00002.safetensors").write_bytes(hub.files["model-00002-of-00002.safetensors"])
        done = subprocess.run([real_worker, "score", "--backend", "cpu", "--model", other], input='{"tokens": [1, 2]}\n',
                              capture_output=True, text=True, check=False)  # fmt: skip
        assert done.returncode == 66 and done.stdout == "" and re.search(alone, done.stderr), done.stderr


def test_gguf(real_worker: str, tmp_path: Path) -> None:
    """The metadata, the names and places of tensors, and the divisors of RoPE, which are a part of the keys."""
    file = Path(gguf_writer.write("llama-llama3", str(tmp_path / "made"), blocks=True)[0])
    hub = Hub(UNREAD | {"Q4/model.gguf": file.read_bytes(), "config.json": b"{}", "mmproj-a.gguf": b"GGUF"})
    local = subprocess.run([real_worker, "inspect", "--json", "--backend", "cpu", file], capture_output=True, check=True)
    threading.Thread(target=hub.serve_forever, daemon=True).start()
    for number, name in enumerate(("org/model", "org/model/Q4/model.gguf@v1")):
        done = inspect(hub, tmp_path / str(number), "--json", "--backend", "cpu", name)
        assert done.returncode == 0, done.stderr
        found, expected = json.loads(done.stdout), json.loads(local.stdout)
        copy = Path(found.pop("path"))
        assert (found.pop("headers_alone"), expected.pop("headers_alone"), bool(expected.pop("path"))) == (True, False, True)
        assert found == expected and found["weight_bits"] > 4
    served = {name for name, n in hub.served.items() if n > 0}
    assert served == {"Q4/model.gguf"}
    done = subprocess.run([real_worker, "score", "--backend", "cpu", "--model", copy], input='{"tokens": [1, 2]}\n',
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 66 and "a copy of the file's header" in done.stderr
    hub.files["Q8/model2.gguf"], hub.served["Q8/model2.gguf"] = b"GGUF", 0
    done = inspect(hub, tmp_path / "2", "org/model")
    assert done.returncode == 65 and "has 2 GGUF models on the hub: name a file, such as org/model/Q4/model.gguf" in done.stderr
    done = inspect(hub, tmp_path / "2", "org/model/Q8/model2.gguf")
    assert done.returncode == 65 and "no header of a GGUF file ends within 4 bytes" in done.stderr
    done = inspect(hub, tmp_path / "2", "org/model/other.gguf")
    assert done.returncode == 65 and "has no other.gguf on the hub; it has Q4/model.gguf" in done.stderr
    hub.shutdown()
    hub.server_close()


def test_messages(real_worker: str, hub: Hub, tmp_path: Path) -> None:
    done = inspect(hub, tmp_path, "org/other")
    assert done.returncode == 66 and "no folder org/other" in done.stderr and "HF_TOKEN" in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    done = inspect(hub, tmp_path, "org/model@v9")
    assert done.returncode == 66 and "(revision v9) is not available" in done.stderr
    hub.whole = True
    done = inspect(hub, tmp_path, "org/model")
    assert done.returncode == 66 and "does not answer requests for a part of a file (status 200)" in done.stderr
    del hub.files["model-00002-of-00002.safetensors"]
    hub.whole = False
    done = inspect(hub, tmp_path, "org/model")
    assert done.returncode == 65 and "names model-00002-of-00002.safetensors, which is not among the files" in done.stderr
    del hub.files["model.safetensors.index.json"]
    done = inspect(hub, tmp_path, "org/model")
    assert done.returncode == 65 and "only such checkpoints can be read" in done.stderr
    assert not list((tmp_path / "ours").rglob("*.safetensors"))  # nothing half


def test_offline_the_hubs_cache_serves(real_worker: str, hub: Hub, quantised: Path, tmp_path: Path) -> None:
    done = inspect(hub, tmp_path, "--json", "org/model", offline="1")
    assert done.returncode == 66 and "is not available (OfflineModeIsEnabled" in done.stderr
    repository = tmp_path / "hf/hub/models--org--model"
    shutil.copytree(quantised, repository / "snapshots" / COMMIT)
    (repository / "refs").mkdir()
    (repository / "refs/main").write_text(COMMIT)
    done = inspect(hub, tmp_path, "--json", "org/model", offline="1")
    assert done.returncode == 0 and not json.loads(done.stdout)["headers_alone"], done.stderr
    assert not any(hub.served.values())


def test_the_program_alone_names_the_remedy(real_worker: str, tmp_path: Path) -> None:
    for command in (["inspect", "org/model"], ["score", "--model", "org/model"]):
        done = subprocess.run([real_worker, *command], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 66 and "hf download org/model --local-dir DIR" in done.stderr
