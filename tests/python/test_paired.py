"""Paired tests of two lm-eval runs: the statistics against scipy and simulation, the files that lm-eval writes, bad input."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import data_tasks
import numpy as np
import pytest
from scipy import stats
from test_processes import QUICK, run

from ctworker.base.errors import ArgumentError
from ctworker.compare import main as compare
from ctworker.compare import paired
from ctworker.compare.samples import Pairs, pair, read_run

DATE = "2026-11-23T17-39-20.123456"


@pytest.mark.parametrize("lost", [0, 1, 4, 30, 59, 5000])
@pytest.mark.parametrize("gained", [0, 1, 5, 30, 121, 4800])
def test_mcnemar_is_the_exact_binomial_test(lost: int, gained: int) -> None:
    n = lost + gained
    expected = stats.binomtest(lost, n).pvalue if n else 1.0
    assert math.isclose(paired.mcnemar(lost, gained), expected, rel_tol=1e-9)


def test_mcnemar_has_its_textbook_value() -> None:
    """Five flips, all in one direction: 2 / 2^5."""
    assert paired.mcnemar(0, 5) == paired.mcnemar(5, 0) == 0.0625


def pairs_of(a: Iterable[float], b: Iterable[float]) -> Pairs:
    return Pairs("task", "none", "acc", [float(x) for x in a], [float(x) for x in b])


def test_one_task_by_hand() -> None:
    """Ten questions: a has 6 right; b loses one of them and gains three others."""
    a = [1, 1, 1, 1, 1, 1, 0, 0, 0, 0]
    b = [0, 1, 1, 1, 1, 1, 1, 1, 1, 0]
    found = paired.test(pairs_of(a, b))
    assert (found.n, found.lost, found.gained) == (10, 1, 3)
    assert (found.mean_a, found.mean_b) == (0.6, 0.8) and math.isclose(found.difference, 0.2)
    assert found.p_mcnemar == pytest.approx(2 * (1 + 4) / 16)
    assert found.se == pytest.approx(math.sqrt(3.6 / 9 / 10))  # sum (d - 0.2)^2 = 4 - 10 * 0.04
    json.dumps(found.to_json(), allow_nan=False)


@pytest.mark.parametrize("kind", ["right or wrong", "real"])
def test_bootstrap_agrees_with_scipy(kind: str) -> None:
    rng = np.random.default_rng(4)
    a, b = rng.random(400), rng.random(400)
    if kind == "right or wrong":
        a, b = (a < 0.7).astype(float), (0.6 * a + 0.4 * b < 0.65).astype(float)
    found = paired.test(pairs_of(a, b))
    expected = stats.bootstrap(
        (a, b), lambda x, y, axis: (y - x).mean(axis=axis), paired=True, vectorized=True, n_resamples=20_000,
        method="percentile", rng=np.random.default_rng(1),
    ).confidence_interval  # fmt: skip
    width = expected.high - expected.low
    assert abs(found.low - expected.low) < 0.04 * width and abs(found.high - expected.high) < 0.04 * width
    assert (found.lost is None) == (kind == "real")


def test_bootstrap_interval_covers() -> None:
    """In 600 draws of 200 questions, about 95 % of the intervals hold the true difference, 0.05."""
    rng = np.random.default_rng(8)
    draws = rng.choice([-1.0, 0.0, 1.0], p=[0.1, 0.75, 0.15], size=(600, 200))
    intervals = [paired.bootstrap_interval(d, seed) for seed, d in enumerate(draws)]
    assert 0.93 <= np.mean([low <= 0.05 <= high for low, high in intervals]) <= 0.97


def test_equal_data_give_equal_intervals_and_equal_runs_no_difference() -> None:
    rng = np.random.default_rng(2)
    a, b = rng.integers(0, 2, 300), rng.integers(0, 2, 300)
    assert paired.test(pairs_of(a, b)) == paired.test(pairs_of(a, b))
    same = paired.test(pairs_of(a, a))
    assert (same.difference, same.se, same.low, same.high, same.p_mcnemar) == (0, 0, 0, 0, 1.0)
    assert paired.test(pairs_of([1], [0])).se is None


def test_tasks_are_pooled_by_question() -> None:
    one, two = pairs_of([1, 1, 0], [1, 0, 0]), pairs_of([0], [1])
    (both,) = paired.pool([one, two, Pairs("other", "none", "exact_match", [1.0], [1.0])])
    assert (both.task, both.metric, both.a, both.b) == ("all 2 tasks", "acc", [1, 1, 0, 0], [1, 0, 0, 1])


# Files.


def sample(doc_id: int, **values: Any) -> dict[str, Any]:
    base = {"doc_id": doc_id, "filter": "none", "metrics": ["acc"], "acc": 1.0}
    hashes = {"doc_hash": f"d{doc_id}", "target_hash": "t", "prompt_hash": f"p{doc_id}"}
    return base | hashes | values


def write(folder: Path, task: str, rows: Iterable[Any], date: str = DATE) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"samples_{task}_{date}.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    a = write(tmp_path / "a" / "model", "arc_easy", [sample(i, acc=float(i < 3)) for i in range(5)])
    b = write(tmp_path / "b" / "model", "arc_easy", [sample(i, acc=float(i > 0)) for i in (4, 3, 2, 1, 0)])
    return a, b


def test_questions_are_paired_by_number_not_by_line(two: tuple[Path, Path]) -> None:
    pairs, notes = pair(read_run(two[0].parent), read_run(two[1]))
    assert pairs == [Pairs("arc_easy", "none", "acc", [1, 1, 1, 0, 0], [0, 1, 1, 1, 1])]
    assert notes == []


def test_a_file_is_a_run(two: tuple[Path, Path]) -> None:
    (file,) = two[0].iterdir()
    assert list(read_run(file).answers) == ["arc_easy"]


def test_the_newest_run_of_a_task_is_used(two: tuple[Path, Path]) -> None:
    write(two[0], "arc_easy", [sample(0, acc=0.0)], date="2026-11-24T00-00-00.000001")
    run = read_run(two[0])
    assert len(run.answers["arc_easy"]) == 1 and "has 2 runs, the newest is used" in run.notes[0]


def test_what_is_left_out_is_said(two: tuple[Path, Path]) -> None:
    a, b = two
    write(a, "piqa", [sample(0)])
    write(a, "wikitext", [sample(0, metrics=["word_perplexity"], word_perplexity=[-5.0, 3])])
    write(b, "wikitext", [sample(0, metrics=["word_perplexity"], word_perplexity=[-6.0, 3])])
    write(a, "boolq", [sample(0), sample(1), sample(2)])
    write(b, "boolq", [sample(0, prompt_hash="other"), sample(1)])
    write(a, "odd", [sample(0), sample(1, acc=float("nan"))])
    write(b, "odd", [sample(0), sample(1)])
    pairs, notes = pair(read_run(a), read_run(b))
    assert [p.task for p in pairs] == ["arc_easy", "boolq"]
    assert [note.partition(": ")[2] or note for note in notes] == [
        f"only {a} has piqa",
        "documents of one run only are left out: 1 (was --limit used?)",
        "1 of 2 prompts differ (few-shot examples or chat template), so differences are not of the models alone",
        "acc is not a number for every document of both runs and is left out",
        "no metric is one number a document, so the task is left out",
        "no metric is one number a document, so the task is left out",
    ]


def test_samples_after_a_byte_order_mark(two: tuple[Path, Path]) -> None:
    """An editor of Windows has saved the file."""
    (file,) = two[0].iterdir()
    before = read_run(file).answers
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert read_run(file).answers == before


def test_old_samples_without_a_list_of_metrics(tmp_path: Path) -> None:
    rows = [{"doc_id": 0, "doc": {}, "target": 1, "acc": 1, "acc_norm": 0.0, "doc_hash": "x"}]
    run = read_run(write(tmp_path, "piqa", rows))
    assert run.answers["piqa"]["none", 0].metrics == {"acc": 1.0, "acc_norm": 0.0}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([sample(0), sample(0)], r"line 2: document 0 occurs a second time"),
        ([], "holds no samples"),
        ([[1]], "line 1: expected a sample of lm-eval"),
        ([{"doc_id": "zero"}], "line 1: expected a sample of lm-eval"),
    ],
)
def test_bad_files(tmp_path: Path, rows: list[Any], message: str) -> None:
    write(tmp_path, "piqa", rows)
    with pytest.raises(ArgumentError, match=message):
        read_run(tmp_path)


@pytest.mark.parametrize(
    ("data", "message"), [(b'{"doc_id": 0}\n{"doc', "line 2: not JSON"), (b"\xff\xfe", "not UTF-8 text")]
)
def test_torn_and_binary_files(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / f"samples_piqa_{DATE}.jsonl").write_bytes(data)
    with pytest.raises(ArgumentError, match=message):
        read_run(tmp_path)


def test_what_cannot_be_paired_is_refused(two: tuple[Path, Path], tmp_path: Path) -> None:
    a, _ = two
    with pytest.raises(ArgumentError, match="there is no such file or folder"):
        read_run(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ArgumentError, match=r"holds no samples_TASK_DATE\.jsonl: run lm_eval with --log_samples"):
        read_run(tmp_path / "empty")
    write(tmp_path / "a" / "other", "arc_easy", [sample(0)])
    with pytest.raises(ArgumentError, match="samples of more than one model"):
        read_run(tmp_path / "a")
    cases = {
        "no task in common: the first has arc_easy, the second piqa": ("piqa", [sample(0)]),
        "no document in common": ("arc_easy", [sample(9)]),
        "document 0: the two runs have different documents": ("arc_easy", [sample(0, doc_hash="?")]),
        "document 0: the two runs have different targets": ("arc_easy", [sample(0, target_hash="?")]),
    }
    for number, (message, (task, rows)) in enumerate(cases.items()):
        other = write(tmp_path / str(number), task, rows)
        with pytest.raises(ArgumentError, match=message):
            pair(read_run(a), read_run(other))
    lists = write(tmp_path / "lists", "arc_easy", [sample(i, acc=[1, 2]) for i in range(5)])
    with pytest.raises(ArgumentError, match="so there is nothing to pair"):
        pair(read_run(a), read_run(lists))


# The command.


def test_the_samples_of_real_lm_eval(
    fake: Callable[[str], Path], checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two runs of lm-eval: the means are those of its results, and equal runs have no difference."""
    fake()
    tasks, outs = data_tasks.write(tmp_path / "tasks"), [tmp_path / name for name in "ab"]
    for out in outs:
        run(
            [*QUICK, "--model", "ctworker", "--model_args", f"pretrained={checkpoint}", "--include_path", str(tasks),
             "--tasks", "toy_choices,toy_rolling", "--log_samples", "--output_path", str(out)]
        )  # fmt: skip
    file = tmp_path / "report.json"
    assert compare.main(["--samples", str(outs[0]), str(outs[1]), "--json", str(file)]) == 0
    report = json.loads(file.read_text())
    (found,) = outs[0].rglob("results_*.json")
    results = json.loads(found.read_text())["results"]["toy_choices"]
    (comparison,) = report["comparisons"]
    assert [test["metric"] for test in comparison["tests"]] == ["acc", "acc_norm"]
    for test in comparison["tests"]:
        assert test["n"] == 20 and test["mean_a"] == test["mean_b"] == results[f"{test['metric']},none"]
        assert (test["lost"], test["gained"], test["p_mcnemar"], test["difference"]) == (0, 0, 1.0, 0.0)
    printed = capsys.readouterr().out
    assert "task toy_rolling: no metric is one number a document" in printed
    assert "toy_choices  acc_norm         20" in printed


def test_the_table_of_two_comparisons(two: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    write(two[1], "piqa", [sample(0)])
    write(two[0], "piqa", [sample(0, acc=0.0)])
    assert compare.main(["--samples", str(two[0]), str(two[1]), str(two[0])]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines.count(["b", "=", str(two[1])]) == lines.count(["b", "=", str(two[0])]) == 1
    first = next(line for line in lines if line[:1] == ["arc_easy"])
    assert first[:8] == ["arc_easy", "acc", "5", "0.6000", "0.8000", "20", "±", "37"]
    assert first[-3:] == ["1", "2", "1"]
    assert next(line for line in lines if line[0:3] == ["all", "2", "tasks"])[4:7] == ["6", "0.5000", "0.8333"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--samples", "."], "--samples .: expected two runs or more, the reference first"),
        (["--samples", "/none", "."], "/none: there is no such file or folder"),
    ],
)
def test_command_lines_that_are_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare.main(arguments) == 64
    out = capsys.readouterr()
    assert out.out == "" and out.err.startswith(f"ctworker-compare: {message}") and out.err.count("\n") == 1


def test_an_unwritable_report_is_refused(
    two: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare.main(["--samples", str(two[0]), str(two[1]), "--json", str(tmp_path / "no" / "file")]) == 64
    assert "file: cannot be written: No such file or directory" in capsys.readouterr().err


def test_without_numpy_the_command_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    assert compare.main(["--samples", "a", "b"]) == 70
    assert "pip install 'ctworker[compare]'" in capsys.readouterr().err
