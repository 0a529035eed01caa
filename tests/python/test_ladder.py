"""What examples/ladder.sh is made of: the types of its GGUF files, the files of other tools, and the picture."""

from __future__ import annotations

import collections
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import synthetic_sweep
from conftest import ROOT
from ctworker.charts import look, points
from ctworker.sweep import definition, plots, view
from test_charts import texts

sys.path.insert(0, str(ROOT / "tests/tools"))
import checkpoint_io
import gguf_quantize
import reference_model

TOOLS = ROOT / "tests/tools"
#: Label, method, bits of a ladder: as many names in one place as the real one has.
RUNGS = (
    ("bf16", None, 16.0), ("Q2_K", "GGUF", 4.3), ("Q3_K_M", "GGUF", 4.7), ("IQ4_XS", "GGUF", 4.44), ("Q4_0", "GGUF", 4.5),
    ("Q4_K_M", "GGUF", 5.4), ("Q5_K_M", "GGUF", 6.1), ("Q6_K", "GGUF", 8.0), ("Q8_0", "GGUF", 8.5), ("W3A16", "compressed-tensors", 3.25),
    ("W4A16", "compressed-tensors", 4.25), ("NVFP4", "compressed-tensors", 4.5), ("FP8", "compressed-tensors", 8.02),
    ("AWQ", "AWQ", 4.31), ("GPTQ", "GPTQ", 4.31), ("NF4", "bitsandbytes", 4.13), ("MLX 3", "MLX", 3.5), ("MLX 4", "MLX", 4.5),
)  # fmt: skip


# ---- GGUF ----


@pytest.mark.parametrize(
    ("recipe", "queries_per_key", "published"),
    [("Q4_K_M", 4, {"Q4_K": 193, "Q6_K": 33}), ("Q5_K_M", 4, {"Q5_K": 193, "Q6_K": 33}), ("Q6_K", 4, {"Q6_K": 226}),
     ("Q3_K_M", 1, {"Q3_K": 129, "Q4_K": 92, "Q5_K": 4, "Q6_K": 1}), ("Q2_K", 4, {"Q2_K": 129, "Q3_K": 64, "Q4_K": 32, "Q6_K": 1})],
)  # fmt: skip
def test_types_are_those_of_published_files(recipe: str, queries_per_key: int, published: dict[str, int]) -> None:
    """The numbers of tensors of each type that llama.cpp prints when it opens Llama 3 8B, or Llama 2 7B, of 32 layers."""
    roles = [(role, i) for i in range(32) for role in gguf_quantize.ROLES.values() if "norm" not in role]
    roles += [("token_embd", -1), ("output", -1)]
    found = collections.Counter(gguf_quantize.type_of(recipe, role, i, 32, queries_per_key, False) for role, i in roles)
    assert found == published


def smollm_tokenizer(folder: Path, n: int) -> None:
    """A tokenizer of n tokens with SmolLM's rules: two special tokens, all bytes, and merges."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = [(a, b) for a in "aeiou" for b in "nrstl"] + [(a, b) for a in "nrstl" for b in "aeiou"]
    names = ["<|endoftext|>", "<|im_start|>", *letters, *(a + b for a, b in pairs)]
    names += [f"<extra{i}>" for i in range(n - len(names))]
    made = Tokenizer(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=pairs))
    made.add_special_tokens(names[:2])
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    )
    made.decoder = decoders.ByteLevel()
    made.save(str(folder / "tokenizer.json"))


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ladder") / "dense"
    subprocess.run([sys.executable, TOOLS / "tiny_checkpoint.py", "llama", "dense", folder, "--vocab", "320"], check=True)
    smollm_tokenizer(folder, json.loads((folder / "config.json").read_text())["vocab_size"])
    return folder


def tool(name: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, TOOLS / name, *arguments], capture_output=True, text=True, check=False)


def test_a_gguf_file_has_the_weights_and_the_tokenizer(dense: Path, tmp_path: Path) -> None:
    """There and back: names, the order of rows of q and k, values, and the ids of a text."""
    from tokenizers import Tokenizer

    assert tool("gguf_quantize.py", dense, tmp_path / "x.gguf", "--type", "bf16").returncode == 0
    assert tool("gguf_to_hf.py", tmp_path / "x.gguf", tmp_path / "back").returncode == 0
    before, after = checkpoint_io.Checkpoint(dense), checkpoint_io.Checkpoint(tmp_path / "back")
    assert sorted(before.names()) == sorted(after.names())
    for name in before.names():
        assert (before.f32(name) == after.f32(name)).all(), name
    text = "In the 1960s, stars and nets;\n\n<|im_start|>\u00e9t\u00e9"
    ids = [Tokenizer.from_file(str(place / "tokenizer.json")).encode(text).ids for place in (dense, tmp_path / "back")]
    assert ids[0] == ids[1] and len(ids[0]) > 20


def test_a_rescaled_model_has_the_same_function(dense: Path, tmp_path: Path) -> None:
    """In float64, and every matrix of its layers has other weights."""
    tool("gguf_quantize.py", dense, tmp_path / "x.gguf", "--type", "bf16")
    for name, more in (("plain", []), ("rescaled", ["--rescale"])):
        assert tool("gguf_to_hf.py", tmp_path / "x.gguf", tmp_path / name, "--dtype", "float32", *more).returncode == 0
    tokens = [int(i) for i in np.random.default_rng(0).integers(2, 300, 40)]
    plain, rescaled = (reference_model.Model(str(tmp_path / name)).log_softmax(tokens) for name in ("plain", "rescaled"))
    assert np.abs(plain - rescaled).max() < 1e-4 < np.abs(plain).max()
    before, after = (checkpoint_io.Checkpoint(tmp_path / name) for name in ("plain", "rescaled"))
    for name in (name for name in before.names() if "layers" in name):
        change = np.abs(after.f32(name) / before.f32(name) - 1)
        assert 0.1 < np.nanmax(change) < 1.25**2 - 1 + 1e-5, name


def test_gguf_quantize_refuses(dense: Path, tmp_path: Path) -> None:
    done = tool("gguf_quantize.py", dense, tmp_path / "x.gguf", "--type", "Q8_0", "--library", "/no/such/library.so")
    assert done.returncode == 65 and "/no/such/library.so" in done.stderr and not (tmp_path / "x.gguf").exists()
    other = tmp_path / "other"
    subprocess.run([sys.executable, TOOLS / "tiny_checkpoint.py", "llama", "dense", other], check=True)
    done = tool("gguf_quantize.py", other, tmp_path / "x.gguf", "--type", "bf16")
    assert done.returncode == 65 and "not SmolLM's" in done.stderr


# ---- files of other tools ----


@pytest.mark.parametrize(
    ("scheme", "bits"), [("awq", 4 + 20 / 64), ("gptq", 4 + 20 / 64), ("nf4", 4 + 8 / 64), ("mlx3", 3.5), ("mlx4", 4.5), ("mlx6", 6.5)]
)
def test_bits_per_weight_count_what_the_file_stores(real_worker: str, dense: Path, tmp_path: Path, scheme: str, bits: float) -> None:
    """Of each tool's file: `inspect` opens it, and its bits are those of all tensors of the quantised matrices."""
    done = tool("quantize.py", dense, tmp_path / scheme, "--scheme", scheme)
    assert done.returncode == 0, done.stderr
    shown = subprocess.run([real_worker, "inspect", "--json", tmp_path / scheme], capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stderr
    before, after = checkpoint_io.Checkpoint(dense), checkpoint_io.Checkpoint(tmp_path / scheme)
    whole = [name for name in before.names() if name in after.names() and after.dtype(name) == before.dtype(name)]
    matrices = [name for name in before.names() if name not in whole]
    stems = tuple(name.removesuffix("weight") for name in matrices)
    stored = sum(record[4] - record[3] for name, record in after.records.items() if name.startswith(stems) and not name.endswith(".bias"))
    found = 8 * stored / sum(math.prod(before.shape(name)) for name in matrices)
    assert json.loads(shown.stdout)["weight_bits"] == pytest.approx(found, rel=0.03) == pytest.approx(bits, rel=0.12)


# ---- the picture ----


def rungs() -> dict:
    """A sweep of the ladder's models with made-up numbers."""
    document = synthetic_sweep.sweep(len(RUNGS))
    names = {model["label"]: rung for model, rung in zip(document["models"], RUNGS, strict=True)}
    for model in document["models"]:
        label, method, bits = names[model["label"]]
        model.update(label=label, method=method, bits_per_weight=bits, bytes=int(28e6 * 2 + 107e6 * bits / 8))
    for cell in document["cells"]:
        label, _, bits = names[cell["model"]]
        cell.update(model=label, reference=cell["reference"] and "bf16")
        if cell["kind"] == "comparison" and label != "bf16":
            kl = 3 * math.exp(-0.95 * bits) * (1 + 0.1 * (len(label) % 3))
            cell["metrics"][0].update(value=kl, stderr=0.02 * kl)
            cell["details"]["statistics"].update(
                kl={"value": kl, "se": 0.02 * kl}, ln_ppl_ratio={"value": 0.7 * kl, "se": 0.03 * kl},
                ppl={"value": 7.21 * math.exp(0.7 * kl), "se": 0.14},
            )  # fmt: skip
    document["paired"] = []
    return document


def ladder(document: dict) -> list[points.Chart]:
    (found,) = [panels for column in view.columns(document) if (panels := plots.ladder(column, document))]
    return found


def test_the_ladder_shows_every_model_and_method() -> None:
    """Names at the points, in both panels, and each method once, in the key."""
    charts = ladder(rungs())
    for theme in look.THEMES:
        shown = collections.Counter(text for text, _ in texts(points.stacked(charts, theme)))
        methods = {method for _, method, _ in RUNGS if method}
        for label, method, _ in RUNGS:
            if method:
                assert shown[label] == 2 + (label in methods), label
        for method in methods:
            assert shown[method] == 1 + 2 * (method in {label for label, _, _ in RUNGS}), method


def test_fronts_and_bars_of_the_ladder() -> None:
    """A method's front has its points that none of its own beats; perplexity's bar is the error of the difference."""
    document = rungs()
    for chart in ladder(document):
        for series, front in chart.fronts:
            own = [(dot.x, dot.y) for dot in chart.dots if dot.series == series]
            assert list(front) == sorted(a for a in own if not any(b != a and b[0] <= a[0] and b[1] <= a[1] for b in own))
        assert {chart.methods[series][0] for series, _ in chart.fronts} == {"GGUF", "compressed-tensors", "MLX"}
    (dot,) = [dot for dot in ladder(document)[0].dots if dot.name == "W3A16"]
    (cell,) = [c for c in document["cells"] if c["kind"] == "comparison" and c["model"] == "W3A16"]
    assert dot.se == pytest.approx(dot.y * cell["details"]["statistics"]["ln_ppl_ratio"]["se"])
    for model in document["models"]:
        model["method"] = model["method"] and model["label"]
    assert not [column for column in view.columns(document) if plots.ladder(column, document)], "no two models of one method"


def test_the_file_of_the_example_is_of_the_scripts_models(tmp_path: Path) -> None:
    """Every file that examples/ladder.yaml names, and no other, is made by examples/ladder.sh."""
    text, script = (ROOT / "examples/ladder.yaml").read_text(), (ROOT / "examples/ladder.sh").read_text()
    lists = [line.split(" in ")[1].removesuffix("; do").split() for line in script.splitlines() if line.startswith("for ")]
    expected = {"smollm2", *(f"smollm2-{scheme}" for scheme in lists[0]), *(f"smollm2-{kind}.gguf" for kind in lists[1])}
    for name in expected:
        place = tmp_path / name
        place.touch() if name.endswith(".gguf") else place.mkdir()
        if place.is_dir():
            (place / "config.json").touch()
    (tmp_path / "alice.txt").touch()
    made = tmp_path / "ladder.yaml"
    made.write_text(text.replace("../build/quickstart/", f"{tmp_path}/"))
    assert {Path(model.path).name for model in definition.load(made).models} == expected
