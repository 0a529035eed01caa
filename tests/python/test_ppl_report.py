"""ctworker-ppl: fields, standard errors, the report and the file of tokens."""

from __future__ import annotations

import json
import math
import random
import shutil
import statistics
from array import array
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from ppl_cases import BOS, N_IDS, TEXT, report_of, text_file, with_bos  # noqa: F401 (fixtures)

from ctworker import Worker
from ctworker.base.errors import CtworkerError
from ctworker.client.scoring import Score
from ctworker.perplexity import main as ppl
from ctworker.perplexity import methods, texts
from ctworker.perplexity.measure import Document, Tokens, check, measure, ratio, tokenize
from ctworker.text.tokenizer import TextTokenizer


def test_every_field_can_be_set(
    with_bos: Path, text_file: Path, real_worker: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A preset rebuilt from another preset's fields gives the same number, and the report names all fields."""
    preset = report_of(capsys, with_bos, "--method", "llama.cpp-512", "--text", text_file)
    fields = ["--join", "file", "--bos", "replace", "--window", 512, "--first", "half", "--error", "tokens"]
    rebuilt = report_of(capsys, with_bos, "--method", "gptq-2048", "--text", text_file, *fields)
    assert rebuilt["texts"][0]["perplexity"] == preset["texts"][0]["perplexity"]
    assert rebuilt["texts"][0]["perplexity_se"] == preset["texts"][0]["perplexity_se"]
    method = preset["method"]
    assert (method["window"], method["stride"], method["first"], method["bos_token"]) == (512, 512, 257, BOS)
    assert {"join", "bos", "cut", "max_windows", "vocabulary", "mean", "error", "new", "tail", "spare"} <= set(method)
    assert len(preset["model"]["identity"]) == 64 and preset["model"]["numerics"].startswith("cpu-")
    assert preset["model"]["backend"] == "cpu" and preset["model"]["device"]
    given = ["--window", 64, "--stride", 16, "--first", 48, "--max-windows", 5, "--bos", "prefix", "--spare", 2, "--tail"]
    other = report_of(capsys, with_bos, "--text", text_file, *given)
    assert (other["texts"][0]["windows"], other["texts"][0]["scored_tokens"]) == (5, 5 * 16)


def test_plain_text_names_everything(
    with_bos: Path, text_file: Path, real_worker: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = text_file.with_name("report.json")
    assert ppl.main([str(with_bos), "--text", str(text_file), "--json", str(path), "--quiet"]) == 0
    out, err = capsys.readouterr()
    report = json.loads(path.read_text())
    assert err == "" and out.startswith("perplexity ")
    for value in (report["model"]["identity"], report["model"]["numerics"], report["texts"][0]["sha256"]):
        assert value in out
    for name, value in report["method"].items():
        assert name in ("about", "name") or f"  {name} " in out, (name, value)
    assert f"{report['texts'][0]['perplexity']:.6f}" in out


def test_overlapping_windows_are_not_independent() -> None:
    """To score each token several times is no new evidence: the standard error is over blocks of the text, and stays. Here a
    token's log-probability does not depend on its window."""
    draw = random.Random(1)
    levels = [draw.gauss(-3, 0.5) for _ in range(80)]  # passages are easy or hard
    values = [levels[i // 100] + draw.gauss(0, 1) for i in range(8000)]
    text = texts.Text("t", "t", "rows", ["a" * 8000], ["a" * 8000])
    tokens = Tokens(text, [Document(array("i", [97] * 8000), list(range(8001)), [0] * 8001)], None)

    class Stub:
        model = {"vocab": 320}

        def score_windows(self, _: Any, window: int, *, stride: int, **__: Any) -> list[Score]:
            parts = [array("f", values[a + 1 : a + window]) for a in range(0, 8001 - window, stride)]
            sums, flat = array("d", map(math.fsum, parts)), array("f", [x for part in parts for x in part])
            counts = array("i", map(len, parts))
            return [Score(math.fsum(sums), False, len(flat), 0, flat, flat, "n", "i", sums, counts)]

    found = []
    for stride in (100, 25):
        method = methods.resolve(methods.choose("gptq-2048", {"window": 100, "stride": stride}), 2048)
        found.append(measure(Stub(), tokens, method).estimate)  # type: ignore[arg-type]
    apart, near = found
    assert (apart.over, apart.clusters) == ("windows", 80)
    assert (near.over, near.clusters) == ("blocks of 100 tokens", 80)
    assert near.se == pytest.approx(apart.se, rel=0.1) and near.nll == pytest.approx(apart.nll, abs=apart.se)


def test_the_standard_error_is_the_spread_of_repeated_texts() -> None:
    """Simulated: over many draws of windows, the estimate's spread is its standard error."""
    draw = random.Random(3)
    means, errors = [], []
    for _ in range(400):
        counts = [draw.randrange(50, 100) for _ in range(40)]
        estimate = ratio([n * draw.gauss(2.0, 0.3) for n in counts], counts, "windows")
        means.append(estimate.nll)
        errors.append(estimate.se)
    assert statistics.fmean(errors) == pytest.approx(statistics.stdev(means), rel=0.12)
    assert ratio([3.0], [2], "windows").se is None


def test_bytes_and_words_are_those_of_the_scored_tokens(
    checkpoint: Path, tmp_path: Path, real_worker: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.txt"
    path.write_text("äb cd\u2028ef  gh " * 8)  # 16 bytes, 4 words
    entry = report_of(capsys, checkpoint, "--text", path, "--window", 16, "--bos", "prefix", "--bos-token", 256,
                      "--first", 0, "--tail")["texts"][0]  # fmt: skip
    assert (entry["scored_tokens"], entry["scored_bytes"], entry["scored_words"]) == (128, 128, 32)
    assert entry["token_perplexity"] == entry["byte_perplexity"]
    short = report_of(capsys, checkpoint, "--text", path, "--window", 16, "--max-windows", 1)
    assert "(over 1 window; " in ppl.text_of(short) and "1 document, 128 tokens, 1 window, 15 scored tokens" in ppl.text_of(short)
    half = short["texts"][0]
    assert (half["scored_tokens"], half["scored_bytes"], half["scored_words"]) == (15, 16, 4)


def test_several_texts_have_a_mean(
    with_bos: Path, text_file: Path, real_worker: str, capsys: pytest.CaptureFixture[str]
) -> None:
    other = text_file.with_name("other.txt")
    other.write_text(TEXT[::-1])
    report = report_of(capsys, with_bos, "--text", text_file, "--text", other, "--window", 300)
    values = [entry["perplexity"] for entry in report["texts"]]
    errors = [entry["perplexity_se"] for entry in report["texts"]]
    assert report["macro"]["perplexity"] == pytest.approx(sum(values) / 2) and values[0] != values[1]
    assert report["macro"]["perplexity_se"] == pytest.approx(math.hypot(*errors) / 2)


def test_per_token(with_bos: Path, text_file: Path, real_worker: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The rows of the file give the report's number again."""
    path = text_file.with_name("tokens.parquet")
    given = ["--method", "llama.cpp-stride", "--text", text_file, "--text", text_file, "--per-token", path]
    report = report_of(capsys, with_bos, *given)
    table = pyarrow.parquet.read_table(path).to_pydict()
    assert list(table) == ["document", "window", "position", "token", "logprob", "greedy"]
    entry = report["texts"][0]
    assert len(table["token"]) == 2 * entry["scored_tokens"] and set(table["document"]) == {0, 1}
    first = [i for i, document in enumerate(table["document"]) if document == 0]
    assert math.fsum(table["logprob"][i] for i in first) == pytest.approx(-entry["nll_sum"], rel=1e-12)
    tokens = [BOS, *TEXT.removesuffix("\n").encode()]
    assert all(tokens[position] == token for position, token in zip(table["position"], table["token"]))
    assert table["position"][:512] == list(range(256, 768)) and table["window"][512] == 1
    stored = json.loads(pyarrow.parquet.read_metadata(path).metadata[b"ctworker-ppl"])
    assert stored["texts"] == report["texts"]


def test_lm_eval_per_token(with_bos: Path, text_file: Path, real_worker: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = text_file.with_name("tokens.parquet")
    report_of(capsys, with_bos, "--method", "lm-eval", "--text", text_file, "--per-token", path)
    table = pyarrow.parquet.read_table(path).to_pydict()
    assert table["token"] == [BOS, *TEXT.encode()] and table["window"][2047:2049] == [0, 1]


def without_padding(folder: Path, out: Path) -> Path:
    """The checkpoint with the first N_IDS rows of embedding and head."""
    shutil.copytree(folder, out)
    data = (folder / "model.safetensors").read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8:end]), b""
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        start, stop = tensor["data_offsets"]
        part = data[end + start : end + stop]
        if name in ("model.embed_tokens.weight", "lm_head.weight"):
            part, tensor["shape"][0] = part[: len(part) // 320 * N_IDS], N_IDS
        tensor["data_offsets"] = [len(body), len(body) + len(part)]
        body += part
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (out / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + body)
    config = json.loads((out / "config.json").read_text())
    (out / "config.json").write_text(json.dumps(config | {"vocab_size": N_IDS}))
    return out


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_that_are_no_tokens_can_be_left_out(checkpoint: Path, tmp_path: Path, real_worker: str, dtype: str) -> None:
    """--vocabulary gives the bits of the checkpoint without these rows, and another numerics id."""
    tokens = list(TEXT[:300].encode())
    small = without_padding(checkpoint, tmp_path / "small")
    found = {}
    for name, folder, limit in (("all", checkpoint, None), ("first", checkpoint, N_IDS), ("small", small, 5000)):
        with Worker(folder, dtype=dtype, vocabulary=limit) as worker:
            found[name] = worker.score([tokens])[0], worker.model
    assert found["first"][0].logprobs == found["small"][0].logprobs
    assert found["first"][0].greedy == found["small"][0].greedy
    assert all(a > b for a, b in zip(found["first"][0].logprobs, found["all"][0].logprobs))
    assert found["first"][1]["numerics"] == found["all"][1]["numerics"] + "/vocabulary-258"
    assert found["small"][1]["numerics"] == found["all"][1]["numerics"]
    assert found["first"][1]["identity"] == found["all"][1]["identity"] and found["first"][1]["vocab"] == N_IDS


def test_a_running_worker_scores_over_any_vocabulary(
    checkpoint: Path, text_file: Path, real_worker: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One worker, jobs with and without a limit: the numbers of workers of their own, whose limit is an option."""
    found: dict[Any, Any] = {}
    method = methods.resolve(methods.choose("exl3", {}), 2048)
    tokens = tokenize(texts.load_file(str(text_file), "rows"), method, TextTokenizer(checkpoint, name="tiny"))
    for limit in (None, N_IDS):
        with Worker(checkpoint, vocabulary=limit) as worker:
            before = worker.numerics
            for name in ("tokenizer", "model"):
                options = ["--endpoint", worker.endpoint, "--text", text_file, "--method", "exl3", "--vocabulary", name]
                assert ppl.main([*map(str, options), "--json", "-", "--quiet"]) == 0
                report = json.loads(capsys.readouterr().out)
                (entry,) = report["texts"]
                found[limit, name] = (entry["nll_sum"], entry["vocabulary"], report["model"]["numerics"])
            result = measure(worker, tokens, method)
            assert (-result.nll_sum, result.vocabulary) == (-found[limit, "tokenizer"][0], N_IDS)
            assert worker.numerics == before  # of the worker, not of the last job
    assert found[None, "tokenizer"] == found[N_IDS, "tokenizer"] == found[N_IDS, "model"]
    assert found[None, "model"][1] == 320 and found[None, "model"][0] > found[None, "tokenizer"][0]
    assert found[None, "tokenizer"][2] == found[None, "model"][2] + "/vocabulary-258"


def test_tokens_of_the_worker_must_be_expected(checkpoint: Path) -> None:
    """A worker that cuts other windows than this package expects is noticed."""
    class Other:
        model = {"vocab": 320}

        def score_windows(self, *_: Any, **__: Any) -> list[Score]:
            columns = array("f", [-1, -1]), array("i", [1, 1])
            return [Score(-2.0, True, 2, 0, *columns, "n", "i", array("d", [-2]), array("i", [2]))]

    method = methods.resolve(methods.choose("gptq-2048", {"window": 4}), 2048)
    text = texts.Text("t", "t", "rows", ["abcd"], ["abcd"])
    tokens = Tokens(text, [Document(array("i", list(b"abcd")), [0, 1, 2, 3, 4], [0] * 5)], None)
    with pytest.raises(CtworkerError, match="scored 2 tokens in 1 window, expected 3 in 1"):
        measure(Other(), tokens, method)  # type: ignore[arg-type]


def test_a_text_that_is_used_again_keeps_its_notes(checkpoint: Path) -> None:
    """A sweep keeps a text's tokens for its next models; a model's notes must not grow with their number."""
    rows = ["a text that is long enough", "short"]
    text = texts.Text("t", "t", "documents", rows, rows)
    method = methods.resolve(methods.choose("exl3", {"window": 8}), 2048)
    tokens = tokenize(text, method, TextTokenizer(checkpoint, name="tiny"))
    for _ in range(2):
        kept = check(tokens, method)
        assert len(kept.documents) == 1 and text.notes == []
        assert kept.text.notes == ["t: 1 of 2 documents have fewer than 9 tokens, and are left out"]


def test_the_report_says_what_was_scored(
    checkpoint: Path, tmp_path: Path, real_worker: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The windows that a data set limits, also beforehand; and the BOS, in every place that names the method."""
    path = tmp_path / "c4.jsonl"
    path.write_text("".join(json.dumps({"text": f"a row of its own, number {i}"}) + "\n" for i in range(400)))
    given = ["--dataset", f"c4={path}", "--window", 32, "--bos", "prefix", "--bos-token", 256]
    assert ppl.main([str(checkpoint), *map(str, given), "--dry-run"]) == 0
    assert capsys.readouterr().out.split()[-2:] == ["256", str(256 * 31)]
    report = report_of(capsys, checkpoint, *given)
    assert (report["texts"][0]["windows"], report["method"]["max_windows"], report["method"]["bos_token"]) == (256, 256, 256)
    assert {**report["method"], "about": None} == {**report["texts"][0]["method"], "about": None}


def test_a_full_disk_is_one_sentence(
    checkpoint: Path, text_file: Path, real_worker: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The number is printed all the same."""
    assert ppl.main([str(checkpoint), "--text", str(text_file), "--json", "/dev/full", "--quiet"]) == 70
    out, err = capsys.readouterr()
    assert out.startswith("perplexity ") and err == "ctworker-ppl: --json /dev/full: cannot be written: No space left on device\n"
