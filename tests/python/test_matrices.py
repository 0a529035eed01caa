"""ctworker-compare --matrices: its statistics, and real workers against checkpoints with one matrix really exchanged."""

from __future__ import annotations

import json
import math
import shutil
import struct
import sys
from array import array
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT
from test_layers import TEXT, models, text, write_tensors  # noqa: F401

from ctworker import Worker
from ctworker.base import tables
from ctworker.base.errors import CtworkerError, ProtocolError
from ctworker.client.results import Comparison, Matrices, split
from ctworker.client.wire import DIVERGENCE_COLUMNS
from ctworker.compare import kept, matrices
from ctworker.compare import main as compare

sys.path.insert(0, str(ROOT / "tests/tools"))
import reference_model

WINDOW = 48


# ---- statistics ----


def made(names: tuple[str, ...], kl: list[list[float]], counts: list[int], targets: list[float]) -> Comparison:
    """kl: for each window the matrices' sums. targets: the whole model's KL at each target."""
    alone = Matrices(names, array("d", [v for window in kl for v in window]))
    columns = {"kl": array("f", targets)}
    return Comparison(sum(counts), columns, array("i", counts), matrices=alone)


def test_matrices_are_ranked_by_their_mean() -> None:
    names = ("model.layers.3.mlp.up_proj", "lm_head", "h.11.attn.c_attn")
    texts = [
        made(names, [[1.0, 6.0, 0.5], [2.0, 5.0, 0.25]], [2, 4], [0.5, 0.5, 1.0, 1.0, 1.0, 2.0]),
        made(names, [[3.0, 7.0, 0.0]], [4], [1.0, 1.0, 1.0, 2.0]),
    ]
    found = matrices.summarize(texts)
    assert (found["windows"], found["targets"]) == (3, 10)
    assert [(each["name"], each["layer"]) for each in found["alone"]] == [(names[1], None), (names[0], 3), (names[2], 11)]
    assert [each["kl"]["value"] for each in found["alone"]] == pytest.approx([1.8, 0.6, 0.075], rel=1e-12)
    assert found["kl"]["value"] == pytest.approx(1.1, rel=1e-12)
    spread = sum((s - 1.8 * n) ** 2 for s, n in ((6, 2), (5, 4), (7, 4)))
    assert found["alone"][0]["kl"]["se"] == pytest.approx(math.sqrt(3 / 2 * spread) / 10, rel=1e-12)
    shown = matrices.table(found)
    assert shown.index("lm_head") < shown.index(names[0]) < shown.index(names[2]) and "163.6 %" in shown
    assert "whole model on the same 3 windows" in shown
    assert "KL alone  " in shown and all(f" {value} " in shown for value in ("1.800", "0.600", "0.075"))
    assert "±" not in shown, "three windows have no error"
    shown = matrices.table(matrices.summarize(texts * 2) | {"kept": {"names": ["a"], "bytes": 1, "kl": {"value": 0.5, "se": 0.1}}})
    assert all(f" {value} ± 0." in shown for value in ("1.800", "0.600", "0.075")) and "1.10 ± 0." in shown and "0.50 ± 0.10 (m" in shown


def test_numbers_of_a_column_are_alike() -> None:
    estimates = [{"value": 0.0123456, "se": 2e-3}, {"value": 4.2e-6, "se": 1e-7}, {"value": None, "se": None}, {"value": 0.001, "se": None}]
    assert tables.column(estimates) == ("1e-3", ["12.346 ± 2.000", "0.004 ± 0.000", "-", "1.000"])
    assert tables.column([{"value": 0.0, "se": 0.0}]) == ("", ["0.000 ± 0.000"])
    assert tables.column([{"value": 2e6, "se": None}, {"value": 5.0, "se": 1.0}]) == ("1e6", ["2.000", "0.000 ± 0.000"])
    assert tables.column([]) == ("", [])


def test_a_divergence_that_is_not_finite_comes_first() -> None:
    found = matrices.summarize([made(("a", "b"), [[1.0, math.inf]], [2], [1.0, 1.0])])
    assert [each["name"] for each in found["alone"]] == ["b", "a"] and found["alone"][0]["kl"]["value"] is None
    json.dumps(found, allow_nan=False)
    assert "b  " in matrices.table(found)


def test_a_reply_is_split_by_windows() -> None:
    result = {name: b"" for name in DIVERGENCE_COLUMNS}
    result |= {
        "item": struct.pack("<2i", 1, 0), "count": bytes(8), "windows": struct.pack("<2i", 1, 2), "window_count": bytes(12),
        "matrix_kl": struct.pack("<6d", *range(6)),
    }  # fmt: skip
    reply = {"n": 2, "matrices": ["a", "b"], "result": result, "numerics": "n", "identity": "i"}
    found = dict(split("divergence", reply))
    assert found[1].matrices == Matrices(("a", "b"), array("d", [0, 1]))
    assert found[0].matrices == Matrices(("a", "b"), array("d", [2, 3, 4, 5]))
    for bad in (result | {"matrix_kl": bytes(8)}, {k: v for k, v in result.items() if k != "matrix_kl"}):
        with pytest.raises(ProtocolError, match="matrix_kl"):
            list(split("divergence", reply | {"result": bad}))


def test_a_number_of_windows_is_checked(capsys: pytest.CaptureFixture[str]) -> None:
    assert compare.main(["a", "b", "--matrices", "0"]) == 64
    assert "--matrices 0: expected a number of windows" in capsys.readouterr().err


# ---- real workers ----


def exchanged(folder: Path, dense: Path, quantised: Path, name: str) -> Path:
    """A checkpoint: the dense one with one matrix from the quantised one."""
    shutil.copytree(dense, folder)
    tensors, others = (reference_model.read_folder(path) for path in (dense, quantised))
    modules = {key.rpartition(".")[0] for key, (_, raw) in tensors.items() if key.endswith(".weight") and raw.ndim == 2}
    config = json.loads((dense / "config.json").read_text())
    config["quantization_config"] = json.loads((quantised / "config.json").read_text())["quantization_config"]
    config["quantization_config"]["ignore"] = sorted({*modules, "lm_head"} - {name})
    (folder / "config.json").write_text(json.dumps(config))
    mine = {key: value for key, value in tensors.items() if key != f"{name}.weight"}
    write_tensors(folder, mine | {key: value for key, value in others.items() if key.startswith(name + ".")})
    return folder


def texts() -> list[array]:
    tokens = array("i", list(TEXT.encode()))
    return [tokens[: 4 * WINDOW + 5], tokens[100 : 100 + 2 * WINDOW]]


def window_sums(result: Comparison) -> list[float]:
    """Of kl, added in float64 in the order of the targets."""
    out, at = [], 0
    for count in result.window_counts:
        total = 0.0
        for value in result.columns["kl"][at : at + count]:
            total += value
        out.append(total)
        at += count
    return out


def alone(model: Path, reference: Path, given: list[array], **options: Any) -> list[Comparison]:
    with Worker(model, reference=reference, device="cpu", **options) as worker:
        return worker.compare_windows(given, WINDOW, matrices=True)


@pytest.mark.parametrize("dtype", ["float32", "auto"])
def test_an_exchanged_matrix_is_that_of_a_checkpoint_with_it(
    models: dict[str, Path], real_worker: str, tmp_path: Path, dtype: str  # noqa: F811
) -> None:
    dense, model = models["dense"], models["w2a16_g32"]
    found = alone(model, dense, texts(), dtype=dtype)
    names = found[0].matrices.names
    assert len(names) == len(set(names)) and len(names) % 7 == 0 and names[0].endswith("layers.0.self_attn.q_proj")
    for i in (0, 3, 6, len(names) - 6, len(names) - 1):
        mixed = exchanged(tmp_path / str(i), dense, model, names[i])
        with Worker(mixed, reference=dense, device="cpu", dtype=dtype) as worker:
            for one, result in zip(found, worker.compare_windows(texts(), WINDOW), strict=True):
                assert one.matrices.kl[i :: len(names)].tolist() == window_sums(result), names[i]
                assert min(window_sums(result)) > 0


def test_numbers_do_not_depend_on_threads_or_company(models: dict[str, Path], real_worker: str) -> None:  # noqa: F811
    dense, model = models["dense"], models["w2a16_g32"]
    given = texts()
    want = alone(model, dense, given, threads=1)
    both = [*given, array("i", list(TEXT.encode()[::-1]))]
    for result, other in zip(want, alone(model, dense, both, threads=2)[:2], strict=True):
        assert result.matrices == other.matrices
        assert result.columns == other.columns
    (single,) = alone(model, dense, given[1:])
    assert single.matrices == want[1].matrices
    with Worker(model, reference=dense, device="cpu") as worker:  # what comes before and after is not changed
        plain = [worker.compare_windows(given, WINDOW) for _ in range(2)]
        asked = worker.compare_windows(given, WINDOW, matrices=True, layers=True)
        plain.append(worker.compare_windows(given, WINDOW, layers=True))
        scores = worker.score_windows(given, WINDOW)
    for i, result in enumerate(asked):
        assert result.matrices == want[i].matrices and result.layers == plain[2][i].layers
        assert all(result.columns == each[i].columns for each in plain)
        assert scores[i].logprobs == result.columns["logprob"]


def test_kept_hidden_states_do_not_stand_in_for_layers(models: dict[str, Path], real_worker: str, tmp_path: Path) -> None:  # noqa: F811
    """A reference whose final hidden states are known skips its layers, but not where its layers are needed."""
    dense, model = models["dense"], models["w2a16_g32"]
    with Worker(model, reference=dense, device="cpu") as worker:
        want = worker.compare_windows(texts(), WINDOW, layers=True, matrices=True)
    with Worker(model, reference=dense, device="cpu", hidden=str(tmp_path / "hidden")) as worker:
        worker.compare_windows(texts(), WINDOW)
        for asked in ({"layers": True}, {"matrices": True}, {"layers": True, "matrices": True}):
            for one, result in zip(want, worker.compare_windows(texts(), WINDOW, **asked), strict=True):
                assert result.columns == one.columns
                assert result.layers == (one.layers if "layers" in asked else None)
                assert result.matrices == (one.matrices if "matrices" in asked else None)


def test_what_cannot_be_exchanged_is_refused(models: dict[str, Path], real_worker: str, tmp_path: Path) -> None:  # noqa: F811
    dense, model = models["dense"], models["w2a16_g32"]
    turned = tmp_path / "turned"
    shutil.copytree(model, turned)
    config = json.loads((turned / "config.json").read_text())
    use = {"targets": ["re:.*up_proj$"], "location": "input"}
    config["quantization_config"]["transform_config"] = {"config_groups": {"R": {"type": "hadamard", "head_dim": 16, "apply": [use]}}}
    (turned / "config.json").write_text(json.dumps(config))
    for pair, options, message in (
        ((dense, model), {}, "the model has no quantised matrix to exchange"),
        ((turned, dense), {}, "rotates activations .transform_config., and its matrices with them"),
        ((model, dense), {"reference_dtype": "float32", "dtype": "bfloat16"}, "load both in one dtype"),
    ):
        with pytest.raises(Exception, match=message):
            alone(*pair, texts(), **options)


def test_matrices_that_are_kept(models: dict[str, Path], real_worker: str, tmp_path: Path) -> None:  # noqa: F811
    """The checkpoint with matrices in 16 bits is the quantised one, but for these: kept all, nothing is left of the divergence;
    kept one, the others' tensors have the same bytes. Formats whose tensors are named alike in both checkpoints, too."""
    dense, model = models["dense"], models["w2a16_g32"]
    names = alone(model, dense, texts())[0].matrices.names
    for n, chosen in (("all", names), ("one", names[2:3])):
        folder = tmp_path / n
        folder.mkdir()
        n_bytes = kept.write(model, dense, chosen, folder)
        found, before, originals = (reference_model.read_folder(path) for path in (folder, model, dense))
        modules = set(chosen)
        assert {k: v for k, v in found.items() if k.rpartition(".")[0] not in modules}.keys() == {
            k for k in before if k.rpartition(".")[0] not in modules}  # fmt: skip
        assert all((found[f"{name}.weight"][1] == originals[f"{name}.weight"][1]).all() for name in chosen)
        assert n_bytes == sum(originals[f"{name}.weight"][1].nbytes for name in chosen)
        with Worker(folder, reference=dense, device="cpu") as worker:
            total = sum(sum(window_sums(result)) for result in worker.compare_windows(texts(), WINDOW))
        assert (total == 0) is (n == "all")
    with pytest.raises(CtworkerError, match="has no tensor .*gone.weight|no tensor"):
        (tmp_path / "bad").mkdir()
        kept.write(model, tmp_path / "bad", names[:1], tmp_path / "bad")
    with pytest.raises(CtworkerError, match="has no tensor model.layers.0.mlp.experts.gate_up_proj.weight, .* in a stack"):
        kept.write(model, dense, [names[0], "model.layers.0.mlp.experts.gate_up_proj"], tmp_path / "bad")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text('{"quantization_config": {"quant_method": "gptq"}}')
    with pytest.raises(CtworkerError, match="quant_method 'gptq' cannot be kept in 16 bits one by one: expected compressed-tensors"):
        kept.write(tmp_path / "other", dense, names[:1], tmp_path / "bad")


def test_a_running_worker_measures_no_kept_matrices(
    models: dict[str, Path], text: str, real_worker: str, capsys: pytest.CaptureFixture[str]  # noqa: F811
) -> None:
    """It says so: the worker has only the checkpoints that it has loaded."""
    dense, model = models["dense"], models["w2a16_g32"]
    with Worker(model, reference=dense, device="cpu") as worker:
        names = [worker.model["name"], "reference"]
        arguments = [*names[::-1], "--endpoint", worker.endpoint, "--text", text, "--window", str(WINDOW), "--matrices", "1", "--quiet"]
        assert compare.main(arguments) == 0
    out = capsys.readouterr().out
    assert "what keeping the worst matrices in 16 bits brings was not measured: a running worker has not loaded" in out


def test_the_worst_are_kept() -> None:
    ranked = {"alone": [{"name": str(i), "kl": {"value": None if i == 0 else 1.0 / i}} for i in range(101)]}
    assert kept.worst(ranked) == ["1", "2", "3", "4", "5"] and kept.worst({"alone": ranked["alone"][:3]}) == ["1"]


def test_the_report_ranks_and_draws_them(
    models: dict[str, Path], text: str, real_worker: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]  # noqa: F811
) -> None:
    plot, report = tmp_path / "plot.svg", tmp_path / "report.json"
    arguments = [str(models["dense"]), str(models["w2a16_g32"]), "--text", text, "--window", str(WINDOW), "--device", "cpu"]
    more = ["--matrices", "2", "--layers", "--plot", str(plot), "--json", str(report), "--noise-floor", "--quiet"]
    assert compare.main([*arguments, *more]) == 0
    out = capsys.readouterr().out
    floor, model = json.loads(report.read_text())["models"]
    assert "matrices" not in floor and model["matrices"]["windows"] == 2
    values = [each["kl"]["value"] for each in model["matrices"]["alone"]]
    assert values == sorted(values, reverse=True) and min(values) > 0
    assert out.index(model["matrices"]["alone"][0]["name"]) < out.index(model["matrices"]["alone"][1]["name"])
    assert "relative error" in plot.read_text()
    one = model["matrices"]["kept"]
    assert one["names"] == [model["matrices"]["alone"][0]["name"]] and 0 < one["kl"]["value"] < model["matrices"]["kl"]["value"]
    assert "kept in 16 bits, this matrix brings it from " in out and one["names"][0] in out.partition("kept in 16 bits")[2]
    (drawing,) = (path.read_text() for path in plot.parent.glob("plot-matrices-*.svg"))
    title = f"KL of each matrix of {model['label']} alone in {models['dense'].name}"
    assert title in drawing and "down_proj" in drawing
    assert "quartiles" in plot.with_name("plot-spread.svg").read_text() and plot.with_name("plot-cosine.svg").exists()
    tokens = array("i", list(TEXT.encode()))
    (direct,) = alone(models["w2a16_g32"], models["dense"], [tokens[: 2 * WINDOW]])
    sums = np.asarray(direct.matrices.kl).reshape(2, -1).sum(axis=0) / (2 * (WINDOW - 1))
    assert sorted(values) == pytest.approx(sorted(sums.tolist()), rel=1e-12)
