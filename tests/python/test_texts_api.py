"""Worker's methods for texts: the numbers of the commands and of lm-eval, bit for bit; typed results; progress."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import REAL_WORKER, golden_folder

from ctworker import Client, CtworkerError, Scores, TextScore, Worker
from ctworker.base.errors import ArgumentError
from ctworker.client import notebook
from ctworker.client.scoring import Progress

TEXT = " ".join(f"Sentence {i} of a text that says little, and says that {i * i} times." for i in range(40))
pytestmark = pytest.mark.skipif(REAL_WORKER is None, reason="no worker was built")


@pytest.fixture
def worker(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    monkeypatch.setenv("CTWORKER_BIN", str(REAL_WORKER))
    with Worker(checkpoint, dtype="float32", reference=checkpoint, reference_dtype="bfloat16", threads=1) as made:
        yield made


def command(module: str, *words: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", f"ctworker.{module}.main", *words, "--json", "-", "--quiet"], check=True, capture_output=True, text=True
    )
    return json.loads(done.stdout)


def test_score_text_as_lm_eval(worker: Worker, checkpoint: Path) -> None:
    from lm_eval.api.instance import Instance

    from ctworker.lm import CTWorkerLM

    texts = ["A text.", ("The capital of France is", " Paris"), TEXT, ("", "alone")]
    scores = worker.score_text(texts)
    lm = CTWorkerLM(endpoint=worker.endpoint)
    kinds = ["loglikelihood_rolling" if isinstance(text, str) else "loglikelihood" for text in texts]
    requests = [Instance(kind, {}, (text,) if isinstance(text, str) else text, 0) for kind, text in zip(kinds, texts)]
    assert [scores[i].sum for i in (0, 2)] == lm.loglikelihood_rolling([requests[0], requests[2]], disable_tqdm=True)
    pairs = lm.loglikelihood([requests[1], requests[3]], disable_tqdm=True)
    assert [(scores[i].sum, scores[i].is_greedy) for i in (1, 3)] == pairs
    for text, score in zip(texts, scores, strict=True):
        assert isinstance(score, TextScore) and score.text == text
        assert len(score.tokens) == score.count == len(score.logprobs) > 0
    assert worker.tokenizer.decode(list(scores[1].tokens)) == " Paris"
    with Client(worker.endpoint, tokenizer=checkpoint) as client:
        assert [score.sum for score in client.score_text(texts)] == [score.sum for score in scores]


@pytest.mark.parametrize("method", ["gptq-2048", "llama.cpp-512", "lm-eval"])
def test_perplexity_as_the_command(worker: Worker, checkpoint: Path, tmp_path: Path, method: str) -> None:
    file = tmp_path / "text.txt"
    file.write_text(TEXT)
    window = [] if method == "lm-eval" else ["--window", "64"]
    report = command("perplexity", str(checkpoint), "--dtype", "float32", "--method", method, "--text", str(file), *window)
    found = worker.perplexity(file, method=method, window=64 if window else None)
    (theirs,) = report["texts"]
    for field in fields(found):
        if field.name not in ("numerics", "identity"):
            assert getattr(found, field.name) == theirs[field.name], field.name
    assert (found.numerics, found.identity) == (report["model"]["numerics"], report["model"]["identity"])
    assert found.perplexity == worker.perplexity(TEXT, method=method, window=64 if window else None).perplexity


def test_compare_as_the_command(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CTWORKER_BIN", str(REAL_WORKER))
    golden = golden_folder()
    other = checkpoint if golden is None else next(iter(sorted(golden.glob("llama-*w4*"))), checkpoint)
    file = tmp_path / "text.txt"
    file.write_text(TEXT)
    given = ["--window", "32", "--layers", "--worst", "2", "--text", str(file)]
    report = command("compare", str(checkpoint), str(other), "--dtype", "float32", *given)
    with Worker(other, reference=checkpoint, dtype="float32") as worker:
        found = worker.compare(file, window=32, layers=True, worst=2)
    (theirs,) = report["models"]
    assert found.statistics == theirs["statistics"] and found.worst == theirs["worst"] and found.layers == theirs["layers"]
    assert vars(found.kl) == theirs["statistics"]["kl"] and found.to_row()["kl"] == found.kl.value
    assert {name: found.text[name] for name in ("sha256", "rule")} == {name: report["text"][name] for name in ("sha256", "rule")}


def test_tables(worker: Worker) -> None:
    pandas = pytest.importorskip("pandas")
    scores = worker.score_text(["A text.", "another one"])
    table = pandas.DataFrame(scores.to_rows())
    assert list(table["sum"]) == [score.sum for score in scores] and list(table["text"]) == ["A text.", "another one"]
    tokens = pandas.DataFrame(scores.to_token_rows())
    assert list(tokens["logprob"]) == [value for score in scores for value in score.logprobs]
    assert list(tokens["token"]) == [token for score in scores for token in score.tokens]
    assert list(pandas.DataFrame(scores)["count"]) == list(table["count"])
    ids: Scores[Any] = worker.score([[1, 2], [3]])
    assert [row["mean"] for row in ids.to_rows()] == [ids[0].sum, None] and len(ids.to_token_rows()) == 1
    one = worker.perplexity(TEXT, window=64)
    assert pandas.DataFrame([one.to_row()])["perplexity"][0] == one.perplexity


def test_errors_speak_of_parameters(worker: Worker, tmp_path: Path) -> None:
    for given, message in (
        ({"window": 1 << 20}, "choose a smaller window="),
        ({"bos_token": 1 << 20}, "bos_token=1048576: the tokenizer has only"),
        ({"bos": "often"}, "bos 'often' is unknown; expected one of none, stream, replace"),
        ({"dataset": "wikitext2"}, "text and dataset: pass only one of them"),
    ):
        with pytest.raises(ArgumentError, match=message):
            worker.perplexity(TEXT, **given)
    with pytest.raises(ArgumentError, match="there is no such file"):
        worker.perplexity(tmp_path / "none.txt")
    with pytest.raises(CtworkerError, match="has no model 'other'"):
        worker.compare(TEXT, window=32, reference="other")


class TestProgress:
    def test_own_function(self, worker: Worker, capsys: pytest.CaptureFixture[str]) -> None:
        seen: list[Progress] = []
        worker.score_text([TEXT], on_progress=seen.append)
        worker.perplexity(TEXT, window=64, on_progress=seen.append)
        assert seen and capsys.readouterr().err == ""

    def test_bars(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        now = Progress(0.5, 1, 10.0, 3.0)
        with notebook.shown("score", None, None) as tell:
            tell(now)
        assert capsys.readouterr().err == ""
        shell = SimpleNamespace(kernel=None)
        monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
        monkeypatch.setitem(sys.modules, "ipywidgets", None)
        with notebook.shown("score", None, None) as tell:
            tell(now)
        assert "score:  50 %, 10 tokens/s, 3 s left" in capsys.readouterr().err
        with notebook.shown("score", None, [].append), notebook.shown("score", False, None) as tell:
            tell(now)
        assert capsys.readouterr().err == ""

    def test_widget(self, monkeypatch: pytest.MonkeyPatch) -> None:
        made: list[Any] = []

        class Bar:
            def __init__(self, **_: Any) -> None:
                self.n, self.words, self.open = 0.0, "", True
                made.append(self)

            def set_postfix_str(self, words: str, refresh: bool) -> None:
                self.words = words

            def update(self, more: float) -> None:
                self.n += more

            def close(self) -> None:
                self.open = False

        monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=None)))
        monkeypatch.setitem(sys.modules, "ipywidgets", SimpleNamespace())
        monkeypatch.setitem(sys.modules, "tqdm.notebook", SimpleNamespace(tqdm=Bar))
        with notebook.shown("score", None, None) as tell:
            tell(Progress(0.25, 1, 10.0, 3.0))
            tell(Progress(0.75, 1, None, None))
        (bar,) = made
        assert (bar.n, bar.open) == (0.75, False)


def test_what_token_ids_need() -> None:
    """A machine that scores token ids needs msgpack, and no tokenizers, templates or numpy."""
    code = "import sys; sys.modules |= dict.fromkeys(['tokenizers', 'jinja2', 'numpy', 'tqdm']); from ctworker import Client, Score, Worker"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_names() -> None:
    """What tab completion shows of the package is the public names."""
    import ctworker

    assert set(dir(ctworker)) == set(ctworker.__all__) and "Any" not in dir(ctworker)
    assert all(getattr(ctworker, name) is not None for name in ctworker.__all__)
