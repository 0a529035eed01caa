"""ctworker-compare on real workers: every statistic against a float64 computation from full distributions, for golden
checkpoints (or, without them, checkpoints that the tests write)."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT, golden_folder
from divergence_cases import slow_statistics

from ctworker import Worker
from ctworker.client.connection import Connection
from ctworker.compare import main as compare
from ctworker.compare.divergence import CONFIDENCE, DELTA_P_PERCENTILES, KL_PERCENTILES

sys.path.insert(0, str(ROOT / "tests/tools"))
import checkpoint_io
import reference_model

TEXT = "".join(f"Line {i}: {i * i} + {i % 7} = {i * i + i % 7}; the quick brown fox, 4\u00bd dogs.\n" for i in range(12))
WINDOW = 96
FORMATS = ("w2a16_g32", "w4a16_g128_asym", "w8a16", "nvfp4a16")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The dense checkpoint and its quantised forms."""
    golden = golden_folder()
    if golden is not None:
        return {name: golden / f"llama-{name}" for name in ("dense", *FORMATS)}
    folder = tmp_path_factory.mktemp("models")
    tool = [sys.executable, str(ROOT / "tests/tools/tiny_checkpoint.py"), "llama", "dense", str(folder / "dense")]
    subprocess.run([*tool, "--vocab", "320"], check=True)
    names = {"w2a16_g32": ["w2a16", "--group", "32"], "w8a16": ["w8a16"]}
    for name, options in names.items():
        quantize = [sys.executable, str(ROOT / "tests/tools/quantize.py"), *map(str, (folder / "dense", folder / name))]
        subprocess.run([*quantize, "--scheme", *options], check=True)
    return {name: folder / name for name in ("dense", *names)}


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert compare.main([*arguments, "--json", "-", "--device", "cpu", "--quiet"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture(scope="module")
def recurrent_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same of a family with delta rules."""
    folder, tool = tmp_path_factory.mktemp("recurrent"), str(ROOT / "tests/tools/tiny_checkpoint.py")
    for name in ("dense", "w4a16_g32"):
        subprocess.run([sys.executable, tool, "qwen3_5_moe_text", name, str(folder / name)], check=True)
    return {name: folder / name for name in ("dense", "w4a16_g32")}


@pytest.fixture
def text(tmp_path: Path) -> str:
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return str(path)


def distributions(folder: Path, tokens: list[int]) -> np.ndarray:
    """[targets, vocabulary] log-probabilities in float64 of all windows' targets."""
    model = reference_model.Model(str(folder))
    starts = range(0, len(tokens) - WINDOW + 1, WINDOW)
    return np.concatenate([model.log_softmax(tokens[start : start + WINDOW - 1]) for start in starts])


def close(value: float, expected: float) -> bool:
    return math.isclose(value, expected, rel_tol=1e-4, abs_tol=1e-7)


def test_every_statistic_against_float64(
    models: dict[str, Path], text: str, real_worker: str, capsys: pytest.CaptureFixture[str]
) -> None:
    check_statistics(models, text, capsys)


def test_every_statistic_of_recurrent_models(
    recurrent_models: dict[str, Path], text: str, real_worker: str, capsys: pytest.CaptureFixture[str]
) -> None:
    check_statistics(recurrent_models, text, capsys)


def check_statistics(models: dict[str, Path], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    names = [name for name in models if name != "dense"]
    folders = [str(models[name]) for name in names]
    report = run(capsys, str(models["dense"]), *folders, "--text", text, "--window", str(WINDOW), "--dtype", "float32")
    tokens = list(TEXT.encode())
    n_windows = len(tokens) // WINDOW
    targets = np.concatenate([tokens[i * WINDOW + 1 : (i + 1) * WINDOW] for i in range(n_windows)])
    ref = distributions(models["dense"], tokens)
    assert report["text"]["windows"] == n_windows >= 5
    for name, model in zip(names, report["models"], strict=True):
        found = model["statistics"]
        expected = slow_statistics(ref, distributions(models[name], tokens), targets)
        rows = expected.pop("rows")
        for statistic, value in expected.items():
            assert close(found[statistic]["value"], value), (name, statistic, found[statistic], value)
        kl, delta_p = ([row[key] for row in rows] for key in ("kl", "delta_p"))
        for percent in KL_PERCENTILES:
            assert close(found["kl_percentiles"][f"{percent:g}"]["value"], np.percentile(kl, percent))
        for percent in DELTA_P_PERCENTILES:
            assert close(found["delta_p_percentiles"][f"{percent:g}"]["value"], np.percentile(delta_p, percent))
        assert close(found["kl_percentiles"]["max"]["value"], max(kl))
        for bucket, low, high in zip(found["buckets"], CONFIDENCE, CONFIDENCE[1:], strict=False):
            inside = [row for row in rows if low <= row["confidence"] < high]
            assert bucket["count"] == len(inside)
            if inside:
                assert close(bucket["kl"]["value"], math.fsum(row["kl"] for row in inside) / len(inside))
        residuals = (np.array(kl) - np.mean(kl)).reshape(n_windows, -1).sum(axis=1)
        se = math.sqrt(n_windows / (n_windows - 1) * float(residuals @ residuals)) / len(kl)
        assert close(found["kl"]["se"], se)
        worst = max(range(len(kl)), key=kl.__getitem__)
        assert model["worst"][0]["token"] == worst // (WINDOW - 1) * WINDOW + 1 + worst % (WINDOW - 1)


def padded(folder: Path, to: Path, n_rows: int) -> Path:
    """A copy whose embedding and head have more rows, as many published checkpoints do. The new rows of the head are 0."""
    shutil.copytree(folder, to)
    config = json.loads((folder / "config.json").read_text())
    (to / "config.json").write_text(json.dumps(config | {"vocab_size": config["vocab_size"] + n_rows}))
    tensors = reference_model.read_folder(str(folder))
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        if name in tensors:
            dtype, raw = tensors[name]
            tensors[name] = (dtype, np.pad(raw, ((0, n_rows), (0, 0))))
    specs = [(name, dtype, raw.shape) for name, (dtype, raw) in tensors.items()]
    batch = checkpoint_io.Batch(specs, lambda: [raw for _, raw in tensors.values()])
    checkpoint_io.write_safetensors(to / "model.safetensors", [batch])
    return to


def test_a_padded_vocabulary_is_compared_over_the_common_ids(
    models: dict[str, Path], text: str, real_worker: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    other = padded(models["dense"], tmp_path / "padded", 8)
    for pair in ((models["dense"], other), (other, models["dense"])):
        (model,) = run(capsys, *map(str, pair), "--text", text, "--window", "96")["models"]
        for name in ("kl", "kl_reverse", "total_variation"):
            assert 0.0 <= model["statistics"][name]["value"] < 1e-7  # of float32 normalisers
        ratio = model["statistics"]["ln_ppl_ratio"]["value"]  # the rows of padding take probability
        assert (ratio > 0) == (pair[1] == other) and ratio != 0.0
        assert abs(model["model"]["vocab"] - model["reference"]["vocab"]) == 8
    far = padded(models["dense"], tmp_path / "far", 64)
    assert compare.main([str(models["dense"]), str(far), "--text", text, "--window", "96", "--device", "cpu", "--quiet"]) == 70
    assert "has 384 tokens and the reference 320" in capsys.readouterr().err


@pytest.mark.parametrize("dtype", ["auto", "float32"])
def test_a_model_against_itself_is_exactly_zero(
    models: dict[str, Path], text: str, real_worker: str, capsys: pytest.CaptureFixture[str], dtype: str
) -> None:
    for folder in list(models.values())[:2]:
        (model,) = run(capsys, str(folder), str(folder), "--text", text, "--window", str(WINDOW), "--dtype", dtype)["models"]
        found = model["statistics"]
        for name in ("kl", "kl_reverse", "total_variation", "delta_p", "delta_p_rms", "ln_ppl_ratio"):
            assert found[name] == {"value": 0.0, "se": 0.0}, name
        for name in ("same_top", "top5_overlap", "correlation"):
            assert found[name] == {"value": 1.0, "se": 0.0}, name
        assert found["kl_percentiles"]["max"]["value"] == 0.0 and found["ppl"] == found["ref_ppl"]


def test_the_noise_floor_is_the_rounding_of_the_reference(
    models: dict[str, Path], text: str, real_worker: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A 16-bit run differs from float32, and much less than 2 bits do."""
    arguments = [str(models["dense"]), str(models["w2a16_g32"]), "--text", text, "--window", str(WINDOW), "--noise-floor"]
    floor, model = run(capsys, *arguments)["models"]
    dtypes = [floor["model"]["dtype"], floor["reference"]["dtype"], model["reference"]["dtype"]]
    assert dtypes == ["bfloat16", "float32", "bfloat16"]
    assert floor["model"]["identity"] == floor["reference"]["identity"] == model["reference"]["identity"]
    assert 0.0 < floor["statistics"]["kl"]["value"] < 0.02 * model["statistics"]["kl"]["value"]


def test_the_perplexity_is_that_of_scoring(
    models: dict[str, Path], text: str, real_worker: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """logprob and ref_logprob have the bits that scoring alone gives."""
    from ctworker.perplexity import main as ppl

    arguments = ["--text", text, "--method", "llama.cpp-512", "--window", "64"]
    (model,) = run(capsys, str(models["dense"]), str(models["w8a16"]), *arguments)["models"]
    for name, key in (("w8a16", "ppl"), ("dense", "ref_ppl")):
        assert ppl.main([str(models[name]), *arguments, "--json", "-", "--device", "cpu"]) == 0
        alone = json.loads(capsys.readouterr().out)["texts"][0]
        assert model["statistics"]["targets"] == alone["scored_tokens"]
        assert model["statistics"][key]["value"] == pytest.approx(alone["perplexity"], rel=1e-12)


def test_a_store_gives_the_same_report_without_computing(
    models: dict[str, Path], text: str, real_worker: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = [str(models["dense"]), str(models["w8a16"]), "--text", text, "--window", "96"]
    arguments += ["--store", str(tmp_path / "store"), "--worker-log", str(tmp_path / "log")]
    first, second = (run(capsys, *arguments) for _ in range(2))
    for report in (first, second):
        report["models"][0].pop("seconds")
    assert first == second
    with Worker(models["w8a16"], reference=models["dense"], device="cpu", store=str(tmp_path / "store")) as worker:
        worker.compare_windows([list(TEXT.encode())], 96)
        with Connection(worker.endpoint) as client:
            found = client.info()["store"]
    assert (found["hits"], found["kept"]) == (len(TEXT.encode()) // 96, 0)


def test_the_documented_example(
    models: dict[str, Path], real_worker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The two ways to compare in docs/PYTHON.md give one number."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "TEXT").write_text(TEXT)
    section = (ROOT / "docs/PYTHON.md").read_text().split("## Comparing two models")[1]
    estimates = []
    for part in section.split("```python\n")[1:3]:
        names: dict[str, Any] = {}
        code = part.split("```")[0].replace("W4A16", str(models["w8a16"])).replace("ORIGINAL", str(models["dense"]))
        exec(code, names)
        estimates.append(names["found"].kl if "found" in names else names["statistics"].estimates["kl"])
    assert 0.0 < estimates[0].value < 1e-2 and 0.0 < estimates[0].se < estimates[0].value
    assert estimates[0].value == pytest.approx(estimates[1].value, rel=1e-12)
