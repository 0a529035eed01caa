"""The job kind `divergence` of the real worker against float64 NumPy on the model of tests/tools. Needs CTWORKER_BIN."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before importing numpy
import numpy as np
import pytest
from ctworker import Worker

from conftest import ROOT, golden_folder

sys.path.insert(0, str(ROOT / "tests/tools"))
import reference_model  # noqa: E402

pytestmark = pytest.mark.usefixtures("real_worker")
GOLDEN = golden_folder()
FORMATS = ["w8a16", "w4a16_g128", "nvfp4a16"] if GOLDEN else ["w8a16_channel", "w4a16_g32", "nvfp4"]
RULE = {"window": 48, "stride": 32, "tail": True}
RELATIVE, ABSOLUTE = 1e-4, 1e-7  # of every mean


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _folder("dense", tmp_path_factory)


@pytest.fixture(scope="module", params=FORMATS)
def quantised(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _folder(request.param, tmp_path_factory)


def _folder(kind: str, factory: pytest.TempPathFactory) -> Path:
    if GOLDEN is not None:
        return GOLDEN / f"llama-{kind}"
    folder = factory.mktemp("divergence") / f"llama-{kind}"
    tool = ROOT / "tests/tools/tiny_checkpoint.py"
    subprocess.run([sys.executable, str(tool), "llama", kind, str(folder)], check=True)
    return folder


def _texts(folder: Path) -> list[list[int]]:
    n_vocab = reference_model.Model(str(folder)).config["vocab_size"]
    draw = np.random.default_rng(11)
    return [draw.integers(0, n_vocab, n).tolist() for n in (2, 40, 130)]


def _windows(text: list[int]) -> list[list[int]]:
    """The windows of RULE."""
    starts = [0]
    while starts[-1] + RULE["window"] < len(text):
        starts.append(starts[-1] + RULE["stride"])
    return [text[s : s + RULE["window"]] for s in starts]


def _top5(logprobs: np.ndarray) -> np.ndarray:
    """The ids of the five largest, the lowest id first among equals."""
    return np.argsort(-logprobs, axis=1, kind="stable")[:, :5]


def _expected(model: Path, reference: Path, texts: list[list[int]]) -> dict[str, np.ndarray]:
    """The columns in float64, target after target."""
    out: dict[str, list[np.ndarray]] = {}
    models = [reference_model.Model(str(folder)) for folder in (model, reference)]
    for window in (w for text in texts for w in _windows(text)):
        q, p = (m.log_softmax(window[:-1]) for m in models)
        places, targets = np.arange(len(window) - 1), window[1:]
        columns = {
            "logprob": q[places, targets],
            "ref_logprob": p[places, targets],
            "kl": (np.exp(p) * (p - q)).sum(axis=1),
            "kl_reverse": (np.exp(q) * (q - p)).sum(axis=1),
            "tv": np.abs(np.exp(p) - np.exp(q)).sum(axis=1) / 2,
            "greedy": q.argmax(axis=1),
            "ref_greedy": p.argmax(axis=1),
            "ref_top": p.max(axis=1),
            "overlap5": (_top5(p)[:, :, None] == _top5(q)[:, None, :]).sum(axis=(1, 2)),
        }
        for name, values in columns.items():
            out.setdefault(name, []).append(values)
    return {name: np.concatenate(values) for name, values in out.items()}


def test_means_are_those_of_float64(original: Path, quantised: Path) -> None:
    texts = _texts(original)
    with Worker(quantised, reference=original, dtype="float32") as worker:
        results = worker.compare_windows(texts, **RULE)
    expected = _expected(quantised, original, texts)
    for name, want in expected.items():
        got = np.concatenate([np.array(r.columns[name], dtype=np.float64) for r in results])
        assert got.shape == want.shape
        error = abs(got.mean() - want.mean())
        assert error <= max(RELATIVE * abs(want.mean()), ABSOLUTE), (name, got.mean(), want.mean())
    assert expected["kl"].mean() > 1e-6  # the quantised model is another one


def test_scores_keep_their_bits(original: Path, quantised: Path) -> None:
    """In 16 bit: both models' log-probabilities and greedy ids are those of scoring each model alone."""
    texts = _texts(original)
    with Worker(quantised, reference=original) as worker:
        results = worker.compare_windows(texts, **RULE)
    for folder, names in ((quantised, ("logprob", "greedy")), (original, ("ref_logprob", "ref_greedy"))):
        with Worker(folder) as alone:
            scores = alone.score_windows(texts, **RULE)
        for result, score in zip(results, scores, strict=True):
            assert result.columns[names[0]] == score.logprobs
            assert result.columns[names[1]] == score.greedy
            assert result.window_counts == score.window_counts


@pytest.mark.parametrize("dtype", ["auto", "float32"])
def test_a_model_does_not_diverge_from_itself(quantised: Path, dtype: str) -> None:
    texts = _texts(quantised)
    with Worker(quantised, reference=quantised, dtype=dtype) as worker:
        results = worker.compare_windows(texts, **RULE)
        assert worker.identity == results[0].identity == results[0].ref_identity
    for result in results:
        assert result.count > 0
        assert set(result.columns["kl"]) == set(result.columns["kl_reverse"]) == {0.0}
        assert set(result.columns["tv"]) == {0.0} and set(result.columns["overlap5"]) == {5}
        assert result.columns["logprob"] == result.columns["ref_logprob"]


def test_hidden_states_are_read_again(original: Path, quantised: Path, tmp_path: Path) -> None:
    """With hidden=DIR, a second comparison with the reference reads its hidden states: the same bits."""
    texts, log = _texts(original), tmp_path / "log"
    with Worker(quantised, reference=original) as worker:
        expected = worker.compare_windows(texts, **RULE)
    folder = tmp_path / "hidden"
    n_windows = sum(len(_windows(text)) for text in texts)
    for model in (original, quantised):  # the first run keeps them
        with Worker(model, reference=original, worker_log=str(log), hidden=str(folder)) as worker:
            results = worker.compare_windows(texts, **RULE)
    assert results == expected
    assert f"hidden states of {n_windows} of {n_windows} sequences read" in log.read_text()
    files = list(folder.iterdir())
    assert len(files) == n_windows and {f.suffix for f in files} == {".hidden"}


def test_a_dtype_of_its_own(original: Path) -> None:
    """The noise of 16 bit: the model in bfloat16 diverges a little from itself in float32."""
    texts = _texts(original)
    with Worker(original, reference=original, reference_dtype="float32") as worker:
        results = worker.compare_windows(texts, **RULE)
    kl = np.concatenate([np.array(r.columns["kl"]) for r in results])
    assert 0 < kl.mean() < 1e-2 and (kl >= 0).all()
    assert results[0].numerics != results[0].ref_numerics and results[0].identity == results[0].ref_identity
