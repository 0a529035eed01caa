"""ctworker-compare on the fake worker, whose columns can be computed by hand: the report, what is refused, what goes on."""

from __future__ import annotations

import hashlib
import json
import math
import re
import shutil
from array import array
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import fake_divergence
import fake_worker
import numpy as np
import pytest

from ctworker.base.tables import multiple, number, render
from ctworker.client.results import Comparison
from ctworker.compare import headline
from ctworker.compare import main as compare
from ctworker.compare import models as compare_models
from ctworker.compare.divergence import COLUMNS, Columns, summarize
from ctworker.compare.result import places
from ctworker.perplexity import main as ppl
from ctworker.perplexity import methods
from ctworker.sweep import main as sweep

TEXT = "the quick brown fox jumps over the lazy dog, and some other animals look on. " * 4


@pytest.fixture
def folders(checkpoint: Path, tmp_path: Path) -> dict[str, Path]:
    """Copies of the checkpoint: an original, two models, and a text."""
    out = {name: Path(shutil.copytree(checkpoint, tmp_path / name)) for name in ("original", "w4", "w8")}
    (tmp_path / "text.txt").write_text(TEXT)
    return out | {"text": tmp_path / "text.txt"}


@pytest.fixture
def report(
    fake: Callable[[str], Path], folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., dict[str, Any]]:
    """report("w4", "--window", "32"): the JSON of comparing the original with w4; `report.out`, `report.err`: the output."""

    def use(*arguments: str, code: int = 0, faults: str = "") -> dict[str, Any]:
        fake(faults)
        named = [re.sub(r"[^=]+$", lambda m: str(folders.get(m[0], m[0])), argument) for argument in arguments]
        file = tmp_path / "report.json"
        file.unlink(missing_ok=True)
        command = [str(folders["original"]), *named, "--text", str(folders["text"]), "--json", str(file)]
        assert compare.main(command) == code
        use.out, use.err = capsys.readouterr()
        return json.loads(file.read_text()) if file.exists() and file.read_text() else {}

    return use


def toy(rule: dict[str, Any], effect: float = 1.0) -> tuple[list[int], dict[str, Any]]:
    """(positions of the targets, statistics over windows)."""
    tokens = list(TEXT.encode())
    windows = fake_divergence.targets(len(tokens), rule)
    rows = [fake_divergence.columns(tokens, p, effect) for window in windows for p in window]
    values = {name: np.array([row[name] for row in rows], kind) for name, kind in COLUMNS.items()}
    cluster = np.repeat(np.arange(len(windows)), [len(window) for window in windows])
    return [p for window in windows for p in window], summarize(Columns(values, cluster)).to_json()


def test_the_report(report: Callable[..., dict[str, Any]], folders: dict[str, Path]) -> None:
    found = report("w4", "w8", "--window", "32", "--tail", "--noise-floor", "--dtype", "bfloat16", "--full")
    _, expected = toy({"window": 32, "tail": True})
    floor, *models = found["models"]
    assert [m["label"] for m in models] == ["w4", "w8"] and floor["label"] == "noise floor"
    for model in models:
        assert model["statistics"] == expected | {"errors_over": "windows"}
        assert model["reference"]["identity"] == fake_worker.identity_of(folders["original"])
        assert (model["model"]["dtype"], model["reference"]["dtype"]) == ("bfloat16", "bfloat16")
        assert model["reference"]["name"] == str(folders["original"])
    assert floor["statistics"] == toy({"window": 32, "tail": True}, 0.01)[1] | {"errors_over": "windows"}
    assert (floor["model"]["dtype"], floor["reference"]["dtype"]) == ("bfloat16", "float32")
    text = found["text"]
    assert text["sha256"] == hashlib.sha256(TEXT.encode()).hexdigest()
    assert text["tokens_sha256"] == hashlib.sha256(array("i", list(TEXT.encode())).tobytes()).hexdigest()
    assert (text["tokens"], text["windows"], text["targets"]) == (308, 10, 298)
    assert text["rule"] == {"window": 32, "stride": 32, "first": 1, "new": False, "tail": True, "rows": 0}
    assert "same top-1" in report.out and "standard error over 10 windows" in report.out
    assert report.out.count("the largest divergences") == 3
    assert "3 comparisons with" in report.err and "10 windows, 298 targets of text.txt through two models" in report.err


def test_the_headline(report: Callable[..., dict[str, Any]]) -> None:
    """One row a model; what it says is computed from the statistics."""
    found = report("four=w4", "w8", "--window", "32", "--noise-floor", "--dtype", "bfloat16")
    four = found["models"][1]
    assert four["label"] == "four" and "the largest divergences" not in report.out and "correlation" not in report.out
    lines = report.out.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("model "))
    head, floor, row = lines[start], lines[start + 2], lines[start + 3]
    assert re.split(r"  +", head) == ["model", "bits per weight", "KL (nats)", "x floor", "99.9 % of KL", "same top-1", "perplexity"]
    statistics = four["statistics"]
    kl, ratio, same = (statistics[name] for name in ("kl", "ln_ppl_ratio", "same_top"))
    change = math.exp(ratio["value"])
    cells = re.split(r"  +", row)
    assert cells[1:4] == ["4.500", number(kl["value"], kl["se"]), "100"]
    assert cells[-2:] == [
        number(same["value"], same["se"], scale=100, unit=" %"),
        "+" + number(change - 1, change * ratio["se"], scale=100, unit=" %"),
    ]
    assert floor.startswith("noise floor  ") and re.split(r"  +", floor)[2] == "1.0"
    assert "9 windows, 279 targets of 308 tokens" in report.out and "--full has all statistics" in report.out


def test_a_noise_floor_of_zero_was_measured(report: Callable[..., dict[str, Any]]) -> None:
    """It has no multiples, and the sentence that recommends to measure it does not stand there."""
    found = report("w4", "--window", "32", "--noise-floor", "--dtype", "bfloat16")
    found["models"][0]["statistics"]["kl"] = {"value": 0.0, "se": 0.0}
    assert "x floor" not in headline.rows(found["models"])[0]
    said = " ".join(headline.caption(found, found["models"]))
    assert "The noise floor is 0: " in said and "No noise floor" not in said and "multiples" not in said


def test_markdown_has_its_caption(report: Callable[..., dict[str, Any]]) -> None:
    found = report("w4", "w|8=w8", "--window", "32", "--max-windows", "6", "--markdown")
    table, caption = report.out.split("\n\n")[:2]
    lines = table.splitlines()
    assert lines[0] == "| model | bits per weight | KL (nats) | 99.9 % of KL | same top-1 | perplexity |"
    assert lines[1] == "| --- | ---: | ---: | ---: | ---: | ---: |" and lines[3].startswith("| w\\|8 | 4.500 | ")
    for part in (
        "Against original, on 6 of 9 windows of text.txt", found["text"]["sha256"][:16], "186 targets",
        "gptq-2048: windows of 32 tokens, only the first 6 windows", "±: standard error over 6 windows", "No noise floor",
        "numerics fake-1",
    ):  # fmt: skip
        assert part in caption, part
    report("w4", "--window", "32", "--markdown", "--full")
    assert "| top-5 overlap | " in report.out and "| statistic | w4 |" in report.out


def test_too_few_windows_have_no_error(report: Callable[..., dict[str, Any]]) -> None:
    for rows, sentence in (("1", "1 window"), ("4", "4 windows"), ("5", "")):
        report("w4", "--window", "32", "--max-windows", rows, "--full")
        assert ("±" in report.out) is not bool(sentence)
        assert (f"No standard errors: {sentence}, and an error needs 5" in report.out) is bool(sentence)


def test_a_quantised_reference_is_warned_about(
    report: Callable[..., dict[str, Any]], folders: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    """The arguments in the wrong order."""
    shutil.copytree(folders["original"], folders["original"].parent / "swap" / "original")
    first, second = folders["w4"], folders["original"].parent / "swap" / "original"
    folders["original"] = first
    found = report(str(second), "w8", "--window", "32")
    note = f"the reference {first} is quantised (4.500 bits per weight), and {second} is not: name the original first"
    assert note in caplog.text and f"note: {note}" in report.out
    swapped, right = found["models"]
    assert len(swapped["notes"]) == 1 and right["notes"] == []


def test_labels(report: Callable[..., dict[str, Any]], folders: dict[str, Path]) -> None:
    odd = Path(shutil.copytree(folders["w4"], folders["w4"].parent / "a=b"))
    found = report(f"x={folders['w4']}", f"{odd}", "--window", "32")
    assert [model["label"] for model in found["models"]] == ["x", "a=b"]
    for arguments, message in (
        (["x=w4", "x=w8"], "the label 'x' stands for two things"),
        (["noise floor=w4"], "the label 'noise floor' stands for two things"),
        (["=w4"], "=w4: expected LABEL=NAME"),
    ):
        named = [a.replace("w4", str(folders["w4"])).replace("w8", str(folders["w8"])) for a in arguments]
        report(*named, "--window", "32", code=64)
        assert message.replace("w4", str(folders["w4"])) in report.err


def test_methods_in_words() -> None:
    for name, given, words in (
        ("gptq-2048", {}, "gptq-2048: windows of 2048 tokens"),
        ("gptq-2048", {"max_windows": 1}, "gptq-2048: windows of 2048 tokens, only the first window"),
        ("gptq-2048", {"window": 512, "tail": True}, "gptq-2048: windows of 512 tokens, tail yes"),
        ("llama.cpp-512", {"bos": "none"}, "llama.cpp-512: windows of 512 tokens, bos none"),
        ("exl3", {"max_windows": 20}, "exl3: windows of 2048 tokens, only the first 20 windows"),
    ):
        assert methods.in_words(methods.resolve(methods.choose(name, given), 4096).fields()) == words


def test_a_model_against_itself(report: Callable[..., dict[str, Any]]) -> None:
    (model,) = report("original", "--window", "32")["models"]
    for name in ("kl", "kl_reverse", "total_variation", "delta_p", "delta_p_rms", "ln_ppl_ratio"):
        assert model["statistics"][name] == {"value": 0.0, "se": 0.0}


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        (["--window", "32"], {"window": 32}),
        (["--window", "32", "--stride", "20", "--new", "--tail"], {"window": 32, "stride": 20, "new": True, "tail": True}),
        (["--window", "32", "--first", "16", "--max-windows", "3"], {"window": 32, "first": 16, "rows": 3}),
        (["--window", "31", "--bos", "prefix", "--bos-token", "256", "--first", "0"], {"window": 31, "first": 0}),
        (["--window", "32", "--spare", "20"], {"window": 32}),
    ],
)
def test_worst_positions_have_their_text(
    report: Callable[..., dict[str, Any]], arguments: list[str], rule: dict[str, Any]
) -> None:
    (model,) = report("w4", "--worst", "4", "--full", *arguments)["models"]
    tokens = list(TEXT.encode())
    rows = [(fake_divergence.columns(tokens, p, 1.0)["kl"], -k, p) for k, p in enumerate(toy(rule)[0])]
    assert [place["token"] for place in model["worst"]] == [p for _, _, p in sorted(rows, reverse=True)[:4]]
    for place in model["worst"]:
        p = place["token"]
        assert (place["before"], place["target"]) == (TEXT[max(0, p - 24) : p], TEXT[p])
        n_after = min(8, 308 - 20 * ("--spare" in arguments) - p - 1)
        assert TEXT[p + 1 :].startswith(place["after"]) and len(place["after"]) == n_after
        assert (place["ref_top"], place["top"]) == (TEXT[p], chr(ord(TEXT[p]) + (place["kl"] > 0.25)))
        assert f"{place['before']}[{place['target']}]{place['after']}" in report.out


def test_overlapping_windows_have_errors_over_blocks(report: Callable[..., dict[str, Any]]) -> None:
    """A token that several windows score counts in each, but its values belong to one block of the text."""
    (model,) = report("w4", "--window", "32", "--stride", "8")["models"]
    positions, over_windows = toy({"window": 32, "stride": 8})
    tokens = list(TEXT.encode())
    kl = np.float32([fake_divergence.columns(tokens, p, 1.0)["kl"] for p in positions]).astype(float)
    residuals = np.bincount(np.array(positions) // 32, weights=kl - kl.mean())
    m = len(residuals)
    se = np.sqrt(m / (m - 1) * (residuals**2).sum()) / len(kl)
    found = model["statistics"]["kl"]
    assert model["statistics"]["errors_over"] == "blocks of 32 tokens" and model["statistics"]["clusters"] == m == 10
    assert found["value"] == over_windows["kl"]["value"] and found["se"] == pytest.approx(se, rel=1e-9)


def test_several_documents_are_one_comparison(report: Callable[..., dict[str, Any]], folders: dict[str, Path]) -> None:
    parts = [TEXT[:100], TEXT[:20], TEXT[100:]]
    folders["text"] = folders["text"].with_suffix(".jsonl")
    folders["text"].write_text("".join(json.dumps({"text": part}) + "\n" for part in parts))
    found = report("w4", "--window", "32", "--join", "documents")
    assert (found["text"]["documents"], found["text"]["windows"], found["text"]["targets"]) == (2, 9, 279)
    assert "1 of 3 documents have fewer than 32 tokens" in report.out
    kl = [
        fake_divergence.columns(list(part.encode()), p, 1.0)["kl"]
        for part in (parts[0], parts[2])
        for window in fake_divergence.targets(len(part), {"window": 32})
        for p in window
    ]
    assert found["models"][0]["statistics"]["kl"]["value"] == pytest.approx(np.float32(kl).astype(float).mean(), rel=1e-12)


def test_a_method_over_other_ids_is_noted(report: Callable[..., dict[str, Any]]) -> None:
    report("w4", "--method", "exl3", "--window", "32")
    assert "note: method exl3 is over the tokenizer's tokens; divergences are over all ids that both models have" in report.out


def test_a_failed_model_does_not_stop_the_others(report: Callable[..., dict[str, Any]], folders: dict[str, Path]) -> None:
    (folders["w4"] / "config.json").unlink()
    found = report("w4", "w8", "--window", "32", code=70)
    bad, good = found["models"]
    assert "no such file" in bad["error"] and "statistics" not in bad
    assert good["statistics"]["targets"] == 9 * 31
    assert "failed: w4: " in report.out and "w8" in report.out


def test_an_interruption_loses_no_finished_model(
    report: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in the second comparison: the file has the first one."""
    run = compare_models._run

    def interrupted(plan: Any, case: Any, so_far: dict[str, Any], on_progress: Any) -> dict[str, Any]:
        if case.label == "w8":
            raise KeyboardInterrupt
        return run(plan, case, so_far, on_progress)

    monkeypatch.setattr(compare_models, "_run", interrupted)
    found = report("w4", "w8", "--window", "32", code=130)
    assert [model["label"] for model in found["models"]] == ["w4"] and found["text"]["windows"] == 9
    assert found["models"][0]["statistics"]["kl"] == toy({"window": 32})[1]["kl"]
    assert report.err.endswith("ctworker-compare: interrupted\n")


def test_a_full_disk_is_named(
    report: Callable[..., dict[str, Any]], folders: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """After the table is printed: the work is not lost."""
    command = [str(folders["original"]), str(folders["w4"]), "--text", str(folders["text"]), "--window", "32"]
    report("w4", "--window", "32")
    assert compare.main([*command, "--json", "/dev/full"]) == 70
    out = capsys.readouterr()
    assert "--json /dev/full: cannot be written: No space left on device" in out.err
    assert "same top-1" in out.out and "perplexity" in out.out


def test_equal_names_are_told_apart(report: Callable[..., dict[str, Any]], folders: dict[str, Path]) -> None:
    other = shutil.copytree(folders["w4"], folders["w4"].parent / "other" / "w4")
    found = report("w4", "w8", str(other), "--window", "32")
    assert [model["label"] for model in found["models"]] == [str(folders["w4"]), "w8", str(other)]


def test_a_running_worker_is_used(
    running_fake: Callable[..., str], checkpoint: Path, folders: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Its models' folders have the tokenizers, unless the worker hides them or they are elsewhere."""
    for faults in ("", "hidden"):
        url = running_fake(faults, "--model", f"before={folders['original']}")
        command = ["before", checkpoint.name, "--endpoint", url, "--text", str(folders["text"]), "--window", "32", "--json", "-"]
        assert compare.main([*command, *(["--tokenizer", str(checkpoint)] if faults else [])]) == 0
        (model,) = json.loads(capsys.readouterr().out)["models"]
        assert model["statistics"] == toy({"window": 32})[1] | {"errors_over": "windows"}
    assert compare.main([command[1], *command[1:]]) == 64
    assert "are not on this machine: pass their tokenizer with --tokenizer" in capsys.readouterr().err
    assert compare.main(["none", *command[1:], "--tokenizer", str(checkpoint)]) == 70
    assert "has no model 'none' (it has" in capsys.readouterr().err


def test_another_tokenizer_is_refused_before_any_work(
    report: Callable[..., dict[str, Any]], folders: dict[str, Path], tmp_path: Path
) -> None:
    file = folders["w8"] / "tokenizer.json"
    content = json.loads(file.read_text())
    vocab = content["model"]["vocab"]
    vocab["q"], vocab["z"] = vocab["z"], vocab["q"]
    file.write_text(json.dumps(content))
    assert report("w4", "w8", "--window", "32", code=64) == {}
    assert not (tmp_path / "worker.json").exists(), "a worker was started"
    assert report.err == (
        f"ctworker-compare: {folders['w8']} cannot be compared with {folders['original']} token by token, because their "
        f"tokenizers differ: token 113 is 'q' in {folders['original']} and 'z' in {folders['w8']}\n"
    )
    file.unlink()
    found = report("w8", "--window", "32")
    assert found["models"][0]["notes"] == [f"{folders['w8']} has no tokenizer: the reference's was used"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no MODEL to compare with the reference"),
        (["w4", "--method", "lm-eval"], "method lm-eval cuts lm-eval's windows, which cannot be compared"),
        (["w4", "--noise-floor", "--dtype", "float32"], "--noise-floor compares 16 bits with float32"),
        (["w4", "--window", "400"], "the text has 308 tokens, but method gptq-2048 needs at least 400"),
        (["w4", "--window", "9999"], "the text has 308 tokens"),
        (["w4", "--text", "/none"], "expected one text"),
        (["w4", "--endpoint", "ipc:///none", "--noise-floor"], "cannot be used with --endpoint"),
        (["w4", "--endpoint", "ipc:///x", "--threads", "1"], "--threads is for a worker that this command starts"),
        (["w4", "--store-limit", "1GiB"], "--store-limit 1GiB needs --store DIR"),
        (["w4", "--dtype", "int3"], "expected one of auto, bfloat16, float16, float32"),
        (["/none"], "there is no folder /none"),
        (["w4", "--samples", "x", "y"], "with --samples there are no models to compare"),
    ],
)
def test_what_is_refused(report: Callable[..., dict[str, Any]], arguments: list[str], message: str) -> None:
    assert report(*arguments, code=64) == {}
    assert message in report.err and report.err.count("\n") == 1 and report.out == ""


def test_options_of_models_mean_nothing_for_samples(capsys: pytest.CaptureFixture[str]) -> None:
    assert compare.main(["--samples", "x", "y", "--bos-token", "3"]) == 64
    assert "--bos-token means nothing with --samples" in capsys.readouterr().err
    assert compare.main([]) == 64
    assert "expected REFERENCE and MODEL" in capsys.readouterr().err


@pytest.mark.parametrize("command", [compare, ppl, sweep])
def test_a_wrong_command_line(command: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(["x", "--bogus"])
    assert ended.value.code == 64 and "unrecognized arguments: --bogus" in capsys.readouterr().err


def test_dry_run_starts_no_worker(
    report: Callable[..., dict[str, Any]], folders: dict[str, Path], tmp_path: Path
) -> None:
    assert report("w4", "--window", "32", "--dry-run") == {}
    assert not (tmp_path / "worker.json").exists() and f"compare    w4: {folders['w4']}" in report.out
    assert "counts     1 document, 308 tokens, 9 windows, 279 targets" in report.out


def test_places_of_targets() -> None:
    """Documents of several lengths, one of them without a window."""
    rule = {"window": 6, "stride": 4, "new": True, "tail": True, "first": 1}
    texts = [array("i", range(n)) for n in (13, 1, 6)]
    windows = [fake_divergence.targets(len(text), rule) for text in texts]
    results = [Comparison(sum(map(len, each)), {}, array("i", [len(window) for window in each])) for each in windows]
    document, position, window = places(results, texts, rule)
    flat = [(i, p) for i, each in enumerate(windows) for w in each for p in w]
    assert list(zip(document, position)) == flat
    assert list(window) == [k for k, w in enumerate(w for each in windows for w in each) for _ in w]


def test_numbers_and_tables() -> None:
    assert number(0.031312, 0.00042) == "0.03131 ± 0.00042"
    assert number(0.9190, 0.00071, scale=100, unit=" %") == "91.900 ± 0.071 %"
    assert number(1234.5, 56.7) == "1234 ± 57" and number(1.0, 0.0) == "1 ± 0"
    assert number(9.908606972637, 1e-15, unit=" %") == "9.9086 ± 0 %", "an error of rounding has no digits"
    assert [multiple(x) for x in (263.4, 2.63, 0.0263, 99.7, 12345.0, 1e7)] == ["260", "2.6", "0.026", "100", "12000", "1e+07"]
    assert number(None) == number(float("nan"), 1.0) == "-" and number(0.1234567) == "0.12346"
    assert render([["", "a"], ["x", "10"]]) == "    a\n-  --\nx  10"
