"""ctworker-compare --layers: its statistics, the client, the plot; and real workers against float64 hidden states."""

from __future__ import annotations

import json
import math
import shutil
import struct
import subprocess
import sys
from array import array
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT, golden_folder

from ctworker.base.errors import ProtocolError
from ctworker.client.results import Comparison, Layers, split
from ctworker.client.wire import DIVERGENCE_COLUMNS, LAYER_COLUMNS
from ctworker.compare import layers
from ctworker.compare import main as compare

sys.path.insert(0, str(ROOT / "tests/tools"))
import reference_model

TEXT = "".join(f"Line {i}: {i * i} + {i % 7} = {i * i + i % 7}; the quick brown fox, 4\u00bd dogs.\n" for i in range(9))
WINDOW = 64
FORMATS = ("w2a16_g32", "w4a16_g128_asym", "nvfp4a16")


# ---- statistics ----


def made(values: dict[str, list[list[float]]], tokens: list[int]) -> Comparison:
    """values: for each column the windows' values, one per layer."""
    columns = {}
    for name in LAYER_COLUMNS:
        code = "i" if name == "layer_channel" else "d"
        columns[name] = array(code, [v for window in values[name] for v in window])
    n = len(values["layer_error"][0])
    return Comparison(0, {}, array("i", [1] * len(tokens)), layers=Layers(n, array("i", tokens), columns))


def random_texts() -> list[Comparison]:
    rng, out = np.random.default_rng(3), []
    for n_windows in (4, 1, 7):
        tokens = [int(n) for n in rng.integers(5, 30, n_windows)]
        values = {name: rng.uniform(0.1, 3, (n_windows, 3)).tolist() for name in LAYER_COLUMNS}
        values["layer_channel"] = rng.integers(0, 3, (n_windows, 3)).tolist()
        out.append(made(values, tokens))
    return out


def test_statistics_are_those_of_all_windows() -> None:
    texts = random_texts()
    found = layers.summarize(texts)
    assert [layer.layer for layer in found] == [0, 1, 2]
    for layer in found:
        rows = [
            {name: column[w * 3 + layer.layer] for name, column in text.layers.columns.items()} | {"tokens": n}
            for text in texts for w, n in enumerate(text.layers.tokens)
        ]  # fmt: skip
        m = len(rows)

        def of(above: str, below: str, rows: list[dict[str, float]] = rows, m: int = m) -> tuple[float, float]:
            total = math.fsum(r[below] for r in rows)
            value = math.fsum(r[above] for r in rows) / total
            spread = math.fsum((r[above] - value * r[below]) ** 2 for r in rows)
            return value, math.sqrt(m / (m - 1) * spread) / total

        square, se = of("layer_error", "layer_reference")
        assert layer.relative_error.value == pytest.approx(math.sqrt(square), rel=1e-12)
        assert layer.relative_error.se == pytest.approx(se / (2 * math.sqrt(square)), rel=1e-12)
        for estimate, column in ((layer.token_error, "layer_relative"), (layer.cosine, "layer_cosine")):
            assert (estimate.value, estimate.se) == pytest.approx(of(column, "tokens"), rel=1e-12)
        counts = [sum(r["layer_channel"] == c for r in rows) for c in range(3)]
        assert layer.channel == counts.index(max(counts))
        there = [r for r in rows if r["layer_channel"] == layer.channel]
        share = math.fsum(r["layer_channel_error"] for r in there) / math.fsum(r["layer_error"] for r in there)
        assert (layer.channel_windows, layer.channel_share) == pytest.approx((len(there) / m, share), rel=1e-12)


def test_one_window_has_no_standard_error() -> None:
    values = {name: [[1.0]] for name in LAYER_COLUMNS} | {"layer_channel": [[5]], "layer_error": [[4.0]]}
    (layer,) = layers.summarize([made(values, [2])])
    assert (layer.relative_error.value, layer.relative_error.se) == (2.0, None)
    assert (layer.cosine.value, layer.channel, layer.channel_share) == (0.5, 5, 0.25)
    assert "2.0000" not in layers.table([layer.to_json()], 5) and "25.0 %" in layers.table([layer.to_json()], 5)
    errors = layer.to_json() | {"relative_error": {"value": 2.0, "se": 0.1}}
    assert "2.00 ± 0.10" in layers.table([errors], 5) and "±" not in layers.table([errors], 4)


def test_no_layers_is_an_error() -> None:
    with pytest.raises(ValueError, match="no windows"):
        layers.summarize([Comparison(0, {}, array("i"))])


# ---- the client ----


def reply() -> dict[str, Any]:
    """Two texts with one and two windows of two layers."""
    result = {name: b"" for name in DIVERGENCE_COLUMNS}
    result |= {
        "item": struct.pack("<2i", 1, 0), "count": bytes(8), "windows": struct.pack("<2i", 1, 2), "window_count": bytes(12),
        "window_tokens": struct.pack("<3i", 7, 8, 9),
    }  # fmt: skip
    for k, name in enumerate(LAYER_COLUMNS):
        result[name] = struct.pack("<6i" if name == "layer_channel" else "<6d", *range(10 * k, 10 * k + 6))
    return {"n": 2, "layers": 2, "result": result, "numerics": "n", "identity": "i"}


def test_a_reply_is_split_by_windows() -> None:
    found = dict(split("divergence", reply()))
    assert found[1].layers.tokens.tolist() == [7] and found[0].layers.tokens.tolist() == [8, 9]
    for k, name in enumerate(LAYER_COLUMNS):
        assert found[1].layers.columns[name].tolist() == [10 * k, 10 * k + 1]
        assert found[0].layers.columns[name].tolist() == [10 * k + i for i in range(2, 6)]


@pytest.mark.parametrize("column", ["window_tokens", "layer_channel", "layer_error"])
def test_a_missing_or_short_column_is_named(column: str) -> None:
    lacking, short = reply(), reply()
    del lacking["result"][column]
    short["result"][column] = short["result"][column][:8]
    for bad in (lacking, short):
        with pytest.raises(ProtocolError, match=column):
            list(split("divergence", bad))


# ---- options ----


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert compare.main([*arguments, "--json", "-", "--device", "cpu", "--quiet"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--layers", "--plot", "x.gif"], "expected a name that ends in .png, .svg, .pdf"),
        (["--layers", "--plot", "/no/such/x.svg"], "there is no folder /no/such"),
    ],
)
def test_a_plot_that_cannot_be_is_refused_first(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare.main(["a", "b", *options]) == 64
    assert message in capsys.readouterr().err


def test_a_missing_matplotlib_is_one_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert compare.main(["a", "b", "--layers", "--plot", "x.svg"]) == 70
    assert "pip install 'ctworker[plot]'" in capsys.readouterr().err


# ---- real workers ----


def tiny(family: str, fmt: str, folder: Path) -> Path:
    """A tiny checkpoint; the formats of a family hold the same weights."""
    tool = [sys.executable, str(ROOT / "tests/tools/tiny_checkpoint.py"), family, fmt, str(folder)]
    subprocess.run(tool, check=True)
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The dense checkpoint and its quantised forms."""
    golden = golden_folder()
    if golden is not None:
        return {name: golden / f"llama-{name}" for name in ("dense", *FORMATS)}
    folder = tmp_path_factory.mktemp("models")
    tiny("llama", "dense", folder / "dense")
    tool = [sys.executable, str(ROOT / "tests/tools/quantize.py"), str(folder / "dense"), str(folder / "w2a16_g32")]
    subprocess.run([*tool, "--scheme", "w2a16", "--group", "32"], check=True)
    return {name: folder / name for name in ("dense", "w2a16_g32")}


@pytest.fixture(scope="module", params=["qwen3_5_text", "nemotron_h"])
def recurrent_models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same of families with layers that carry a state."""
    folder = tmp_path_factory.mktemp(request.param)
    return {name: tiny(request.param, name, folder / name) for name in ("dense", "w2a16_g32")}


@pytest.fixture
def text(tmp_path: Path) -> str:
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return str(path)


def write_tensors(folder: Path, tensors: dict[str, tuple[str, np.ndarray]]) -> None:
    """The folder's only weights, from here on. tensors: as reference_model.read_folder() gives them."""
    for file in folder.glob("*.safetensors*"):
        file.unlink()
    header, data = {}, b""
    for name, (dtype, raw) in tensors.items():
        raw_bytes = np.ascontiguousarray(raw).tobytes()
        header[name] = {"dtype": dtype, "shape": list(raw.shape), "data_offsets": [len(data), len(data) + len(raw_bytes)]}
        data += raw_bytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)


def residuals(folder: Path, tokens: list[int]) -> list[np.ndarray]:
    """For each window [layers, tokens, width]: the residual stream in float64."""
    model, out = reference_model.Model(folder), []
    for start in range(0, len(tokens) - WINDOW + 1, WINDOW):
        kept: dict[Any, Any] = {}
        states = [model.embedding(np.asarray(tokens[start : start + WINDOW - 1]))]
        for a in model.family.layers:
            states.append(model.layer(states[-1], a, kept, None))
        out.append(np.stack(states))
    return out


def close(value: float, expected: float) -> bool:
    return math.isclose(value, expected, rel_tol=1e-4, abs_tol=1e-7)


def test_layers_against_float64(
    models: dict[str, Path], text: str, real_worker: str, capsys: pytest.CaptureFixture[str]
) -> None:
    check_layers(models, text, capsys)


def test_layers_that_carry_a_state_against_float64(
    recurrent_models: dict[str, Path], text: str, real_worker: str, capsys: pytest.CaptureFixture[str]
) -> None:
    check_layers(recurrent_models, text, capsys)


def check_layers(models: dict[str, Path], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    names = [name for name in models if name != "dense"]
    folders = [str(models[name]) for name in ("dense", *names)]
    report = run(capsys, *folders, "--layers", "--text", text, "--window", str(WINDOW), "--dtype", "float32")
    tokens = list(TEXT.encode())
    ref = residuals(models["dense"], tokens)
    for name, model in zip(names, report["models"], strict=True):
        mine, found = residuals(models[name], tokens), model["layers"]
        assert len(found) == len(ref[0]) and model["windows"] == len(ref) >= 5
        for layer, f in enumerate(found):
            x, y = (np.concatenate([w[layer] for w in windows]) for windows in (ref, mine))
            error, square = ((y - x) ** 2).sum(axis=1), (x**2).sum(axis=1)
            cosine = (x * y).sum(axis=1) / np.sqrt(square * (y**2).sum(axis=1))
            assert close(f["relative_error"]["value"], math.sqrt(error.sum() / square.sum())), (name, layer)
            assert close(f["token_error"]["value"], np.sqrt(error / square).mean())
            assert close(f["cosine"]["value"], cosine.mean())
            by_window = [((b[layer] - a[layer]) ** 2).sum(axis=0) for a, b in zip(ref, mine)]
            if error.sum() == 0:
                assert f["channel_share"] is None
                continue
            largest = [int(channels.argmax()) for channels in by_window]
            assert f["channel"] == min(set(largest), key=lambda c: (-largest.count(c), c))
            there = [channels for channels, c in zip(by_window, largest) if c == f["channel"]]
            share = sum(channels[f["channel"]] for channels in there) / sum(channels.sum() for channels in there)
            assert close(f["channel_share"], share)


def test_a_model_against_itself_does_not_differ(
    models: dict[str, Path], text: str, real_worker: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(models["w2a16_g32"])
    (model,) = run(capsys, folder, folder, "--layers", "--text", text, "--window", str(WINDOW))["models"]
    for layer in model["layers"]:
        assert layer["relative_error"] == layer["token_error"] == {"value": 0.0, "se": 0.0}
        assert layer["cosine"] == {"value": 1.0, "se": 0.0} and layer["channel_share"] is None


def test_layers_change_no_other_number_and_are_drawn(
    models: dict[str, Path], text: str, real_worker: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(models["dense"]), str(models["w2a16_g32"]), "--text", text, "--window", str(WINDOW)]
    (plain,) = run(capsys, *arguments)["models"]
    (found,) = run(capsys, *arguments, "--layers", "--plot", str(tmp_path / "plot.svg"))["models"]
    assert plain["statistics"] == found["statistics"] and "layers" not in plain
    drawing = (tmp_path / "plot.svg").read_text()
    assert drawing.lstrip().startswith("<?xml") and "relative error" in drawing and found["label"] in drawing
    compare.main([*arguments, "--layers", "--device", "cpu", "--quiet"])
    out = capsys.readouterr().out
    assert "hidden states after each layer" in out and "largest channel" in out
    for layer in found["layers"]:
        assert layer["name"] in out


def test_a_report_has_the_identities_of_what_was_scored(
    models: dict[str, Path], text: str, real_worker: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Streamed weights, like a GPU's, have an identity only once they were read: in the first pass."""
    arguments = [str(models["dense"]), str(models["w2a16_g32"]), "--text", text, "--window", str(WINDOW)]
    sides = [run(capsys, *arguments, "--placement", place)["models"][0] for place in ("auto", "streamed")]
    for side in ("model", "reference"):
        usual, streamed = (found[side]["identity"] for found in sides)
        assert usual == streamed and len(usual) == 64


def test_models_of_other_depth_are_refused(
    models: dict[str, Path], text: str, real_worker: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = shutil.copytree(models["dense"], tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    config["num_hidden_layers"] -= 1
    last = f"model.layers.{config['num_hidden_layers']}."
    (other / "config.json").write_text(json.dumps(config))
    write_tensors(other, {k: v for k, v in reference_model.read_folder(other).items() if not k.startswith(last)})
    arguments = [str(models["dense"]), str(other), "--text", text, "--window", str(WINDOW), "--device", "cpu"]
    assert compare.main([*arguments, "--layers"]) == 70
    assert "their layers cannot be compared" in capsys.readouterr().err
