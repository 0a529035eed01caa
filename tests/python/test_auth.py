"""Tokens: from the argument's file or the environment, in every request; a refusal names the remedy."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import fake_worker
import pytest
from conftest import requests, wait_for

from ctworker import Client
from ctworker.base.errors import ArgumentError, WorkerError
from ctworker.client.auth import client_token
from ctworker.lm import CTWorkerLM

SECRET = "0123456789abcdef"


@pytest.mark.parametrize(
    "text", [SECRET, f"{SECRET}\n", f"# who\n\nme admin {SECRET}\r\nyou score other\n", f"\ufeff{SECRET}\n"]
)
def test_token_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("CTW_TOKEN", "the environment's")
    (tmp_path / "token").write_text(text)
    assert client_token(str(tmp_path / "token")) == SECRET
    assert client_token() == "the environment's"


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "No such file"), (b"# a\n", "contains no token"), (b"\xff", "not UTF-8 text")],
)
def test_bad_token_files(tmp_path: Path, content: bytes | None, words: str) -> None:
    if content is not None:
        (tmp_path / "token").write_bytes(content)
    with pytest.raises(ArgumentError, match=f"token_file=.*{words}"):
        client_token(str(tmp_path / "token"))


def test_the_token_is_sent(running_fake: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = running_fake(f"token={SECRET}")
    with pytest.raises(WorkerError, match="refused this client: it sent no token; pass .*token_file="):
        CTWorkerLM(endpoint=url)
    monkeypatch.setenv("CTW_TOKEN", "another")
    with pytest.raises(WorkerError, match="the worker does not know its token"):
        CTWorkerLM(endpoint=url)
    (tmp_path / "token").write_text(f"me score {SECRET}\n")
    model = CTWorkerLM(endpoint=url, token_file=str(tmp_path / "token"))
    asked = requests("loglikelihood", ("a", "b"))
    assert model.loglikelihood(asked, disable_tqdm=True) == [fake_worker.pair_sum([97], [98])]
    monkeypatch.setenv("CTW_TOKEN", SECRET)
    CTWorkerLM(endpoint=url)


def test_the_real_worker(checkpoint: Path, tmp_path: Path, real_worker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """tcp:// requires the token; ipc:// requires none, whatever CTW_TOKEN is."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        tcp = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    tokens = tmp_path / "tokens"
    tokens.write_text(f"me score {SECRET}\n")
    tokens.chmod(0o600)
    for url, more in [(tcp, ["--token-file", str(tokens)]), (f"ipc://{tmp_path}/w.sock", [])]:
        ready = tmp_path / f"ready{len(more)}"
        worker = subprocess.Popen(
            [real_worker, "serve", "--model", str(checkpoint), "--listen", url, "--ready-file", str(ready), *more]
        )  # fmt: skip
        try:
            wait_for(ready.exists)
            monkeypatch.setenv("CTW_TOKEN", "a-token-of-nobody")
            if url == tcp:
                with pytest.raises(WorkerError, match="refused this client: the worker does not know its token"):
                    Client(url)
                with Client(url, token_file=tokens) as client:
                    assert client.score([[1, 2, 3]])[0].count == 2
            else:
                with Client(url) as client:
                    assert client.score([[1, 2, 3]])[0].count == 2
        finally:
            worker.kill()
            worker.wait()
