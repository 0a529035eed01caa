"""ctworker-ppl: each preset against a restatement of the program it stands for, with the real worker.

The restatements are written from the peers' own rules, window by window, and score each window as a sequence of its own.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import random
import re
import shutil
import statistics
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from lm_eval.api.metrics import weighted_perplexity
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tokenizers import Tokenizer, processors

from conftest import ROOT
from ctworker import Worker
from ctworker.errors import CtworkerError
from ctworker.perplexity import main as ppl
from ctworker.perplexity import methods, texts
from ctworker.perplexity.measure import Document, Tokens, check, measure, ratio, tokenize
from ctworker.scoring import Score
from ctworker.tokenizer import TextTokenizer

BOS, N_IDS = 256, 258  # the head has 320 rows
WIKITEXT = Path(os.environ.get("CTWORKER_DATA", ROOT.parent / "shared/data")) / "wiki.test.raw"
#: Enough for three windows of 2048 byte tokens and for a shorter one.
TEXT = "".join(f"Line {i} of a text about {'bc' * (i % 7)}, whose tokens are bytes.\n" for i in range(130))


@dataclass
class Window:
    """tokens: as the model reads them; targets: (place in tokens, token of the text)."""

    tokens: list[int]
    targets: list[tuple[int, int]]


def whole(tokens: list[int], start: int, length: int) -> Window:
    """A window of which everything but the first token counts."""
    part = tokens[start : start + length]
    return Window(part, list(enumerate(part))[1:])


def gptq(tokens: list[int]) -> Iterator[Window]:
    """llama_eval() of GPTQ: nsamples = numel // seqlen."""
    for i in range(len(tokens) // 2048):
        yield whole(tokens, i * 2048, 2048)


def exllama(stride: int, rows: int) -> Callable[[list[int]], Iterator[Window]]:
    """get_test_tokens() of exllamav3."""

    def windows(tokens: list[int]) -> Iterator[Window]:
        for n, a in enumerate(range(0, len(tokens) - 2048, stride)):
            if n == rows:
                return
            yield whole(tokens, a, 2048)

    return windows


def scoremode(tokens: list[int]) -> Iterator[Window]:
    tokens = tokens[: 2048 + 99 * 512]
    start = 0
    while start + 2048 <= len(tokens):
        yield whole(tokens, start, 2048)
        start += 512


def llama_cpp(bos: int | None) -> Callable[[list[int]], Iterator[Window]]:
    """perplexity() of perplexity.cpp: the logits at first .. n_ctx-2 of each chunk."""

    def windows(tokens: list[int], n_ctx: int = 512) -> Iterator[Window]:
        first = n_ctx // 2
        for i in range(len(tokens) // n_ctx):
            chunk = tokens[i * n_ctx : (i + 1) * n_ctx]
            targets = [(j + 1, chunk[j + 1]) for j in range(first, n_ctx - 1)]
            yield Window(chunk if bos is None else [bos, *chunk[1:]], targets)

    return windows


def llama_cpp_stride(bos: int | None) -> Callable[[list[int]], Iterator[Window]]:
    """perplexity_v2() of perplexity.cpp."""

    def windows(tokens: list[int], ppl_stride: int = 512) -> Iterator[Window]:
        n_ctx = 512 + ppl_stride // 2
        for i in range((len(tokens) - n_ctx + ppl_stride - 1) // ppl_stride):
            chunk = tokens[i * ppl_stride : i * ppl_stride + n_ctx]
            targets = [(j + 1, chunk[j + 1]) for j in range(n_ctx - ppl_stride - 1, n_ctx - 1)]
            yield Window(chunk if bos is None else [bos, *chunk[1:]], targets)

    return windows


def huggingface(max_length: int, stride: int = 512) -> Callable[[list[int]], Iterator[Window]]:
    """The loop of transformers' page on perplexity; labels of -100 do not count, and labels are shifted by one."""

    def windows(tokens: list[int]) -> Iterator[Window]:
        before = 0
        for begin in range(0, len(tokens), stride):
            end = min(begin + max_length, len(tokens))
            part, n_labels = tokens[begin:end], end - before
            labels = [-100] * (len(part) - n_labels) + part[len(part) - n_labels :]
            yield Window(part, [(i, label) for i, label in enumerate(labels) if i > 0 and label != -100])
            before = end
            if end == len(tokens):
                break

    return windows


def plain_mean(sums: list[float], counts: list[int]) -> float:
    return -sum(sums) / sum(counts)


def huggingface_mean(sums: list[float], counts: list[int]) -> float:
    """nll_sum += loss * (num_valid_tokens - 1); the first window's labels include one that the shift drops."""
    valid = [counts[0] + 1, *counts[1:]]
    nll_sum = sum(-total / count * (labels - 1) for total, count, labels in zip(sums, counts, valid))
    return nll_sum / sum(labels - 1 for labels in valid)


#: preset -> (windows, mean, whether the tokenizer's own BOS is at the start of the text). max_length is 2048.
RESTATED: dict[str, tuple[Callable[[list[int]], Iterator[Window]], Any, bool]] = {
    "gptq-2048": (gptq, plain_mean, True),
    "exl3": (exllama(2048, 100), plain_mean, False),
    "exl3-512": (exllama(512, 100), plain_mean, False),
    "compare-q": (exllama(512, 20), plain_mean, True),
    "qbench": (exllama(2048, 10), plain_mean, False),
    "scoremode": (scoremode, plain_mean, False),
    "llama.cpp-512": (llama_cpp(BOS), plain_mean, True),
    "llama.cpp-stride": (llama_cpp_stride(BOS), plain_mean, True),
    "hf-sliding": (huggingface(2048), huggingface_mean, True),
}


@pytest.fixture(scope="module")
def with_bos(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint with a tokenizer that puts BOS before a text."""
    folder = tmp_path_factory.mktemp("with_bos") / "model"
    shutil.copytree(checkpoint, folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", BOS)])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def report_of(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    """The report of a successful run."""
    code = ppl.main([*map(str, arguments), "--json", "-", "--quiet"])
    out, err = capsys.readouterr()
    assert code == 0, err
    return json.loads(out)


def refusal(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The message of a run that is refused: one line."""
    assert ppl.main([*map(str, arguments), "--quiet"]) in (64, 70)
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1, err
    return err


def restate(folder: Path, windows: list[Window], vocabulary: int | None = None) -> tuple[list[float], list[int], list[float]]:
    """Sums and counts of the windows, and all log-probabilities, each window scored as a sequence of its own."""
    with Worker(folder, dtype="float32", vocabulary=vocabulary) as worker:
        items = [(w.tokens[: w.targets[0][0]], w.tokens[w.targets[0][0] :]) for w in windows]
        scores = worker.score(items)
    for window, score in zip(windows, scores, strict=True):
        assert [token for _, token in window.targets] == window.tokens[window.targets[0][0] :]
        assert score.count == len(window.targets)
    return [s.sum for s in scores], [s.count for s in scores], [x for s in scores for x in s.logprobs or ()]


@pytest.mark.parametrize("name", RESTATED)
def test_a_preset_is_its_restatement(
    name: str, with_bos: Path, text_file: Path, real_worker: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cut, mean, adds = RESTATED[name]
    text = TEXT.removesuffix("\n") if name.startswith("llama.cpp") else TEXT
    windows = list(cut([BOS] * adds + list(text.encode())))
    assert len(windows) > 2
    vocabulary = N_IDS if name in ("exl3", "exl3-512", "qbench") else None
    sums, counts, logprobs = restate(with_bos, windows, vocabulary)
    report = report_of(capsys, with_bos, "--method", name, "--text", text_file, "--dtype", "float32")
    assert report["model"]["vocab"] == (vocabulary or 320)
    (entry,) = report["texts"]
    assert (entry["windows"], entry["scored_tokens"]) == (len(windows), sum(counts))
    assert entry["perplexity"] == pytest.approx(math.exp(mean(sums, counts)), rel=1e-12)
    assert entry["nll_sum"] == pytest.approx(-sum(sums), rel=1e-12)
    if name == "llama.cpp-512":  # its own standard error
        count, nll = len(logprobs), -statistics.fmean(logprobs)
        nll2 = statistics.fmean([x * x for x in logprobs]) - nll * nll
        assert entry["perplexity_se"] == pytest.approx(math.sqrt(nll2 / (count - 1)) * math.exp(nll), rel=1e-9)


def test_lm_eval_is_its_restatement(
    with_bos: Path, tmp_path: Path, real_worker: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """lm-eval's own windows and its own aggregation, on two documents."""
    pages = [TEXT, "Short = text = of\n its own ."]
    path = tmp_path / "pages.jsonl"
    path.write_text("".join(json.dumps({"text": page}) + "\n" for page in pages))
    items = []
    with Worker(with_bos, dtype="float32") as worker:
        for page in pages:
            rolling = get_rolling_token_windows([BOS, *page.encode()], BOS, max_seq_len=2048, context_len=1)
            windows = [tuple(map(list, make_disjoint_window(window))) for window in rolling]
            items.append((sum(score.sum for score in worker.score(windows)), len(page.split())))
    report = report_of(capsys, with_bos, "--method", "lm-eval", "--text", path, "--dtype", "float32")
    (entry,) = report["texts"]
    assert entry["perplexity"] == entry["word_perplexity"]
    words = [(total, n + (page[-1] == "\n")) for (total, n), page in zip(items, pages)]  # re.split counts the empty end
    assert entry["perplexity"] == pytest.approx(weighted_perplexity(words), rel=1e-12)
    assert entry["scored_tokens"] == sum(len(page.encode()) + 1 for page in pages)
    n_bytes = sum(len(page.encode()) for page in pages)
    assert entry["bits_per_byte"] == pytest.approx(-sum(t for t, _ in items) / n_bytes / math.log(2), rel=1e-12)


# ---- the real text ----

#: join -> (bytes, first digits of the sha256).
JOINED = {"rows": (1296370, "696cca6b"), "nonempty": (1293436, "c5b5caea"), "file": (1290589, None), "raw": (1290590, "173c87a5")}
#: Windows and scored tokens of the whole text, one token per byte, max_length 2048.
COUNTS = {
    "gptq-2048": (632, 1293704), "exl3": (100, 204700), "exl3-512": (100, 204700), "compare-q": (20, 40940),
    "qbench": (10, 20470), "scoremode": (100, 204700), "llama.cpp-512": (2520, 642600),
    "llama.cpp-stride": (2520, 1290240), "hf-sliding": (2529, 1296369), "lm-eval": (639, 1240466),
}  # fmt: skip


@pytest.mark.skipif(not WIKITEXT.is_file(), reason="no WikiText-2: set CTWORKER_DATA")
@pytest.mark.parametrize("name", methods.PRESETS)
def test_counts_of_wikitext2(name: str, checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Text, windows and scored tokens of every preset, also against the restatement."""
    method = methods.resolve(methods.choose(name, {}), 2048)
    text = texts.load(f"wikitext2={WIKITEXT}", method.join, join_given=False)
    assert not text.notes
    if method.join == "pages":
        assert len(text.documents) == 62 and sum(len(page.encode()) for page in text.originals) == 1290527
    else:
        size, sha256 = JOINED[method.join]
        assert text.n_bytes == size and (sha256 is None or text.sha256.startswith(sha256))
    tokenizer = TextTokenizer(checkpoint, name="tiny")  # adds no BOS
    streams = [tokenizer.encode(document) for document in text.documents]
    counts = [methods.total(method, [len(tokens)]) for tokens in streams]
    assert tuple(map(sum, zip(*counts)))[:2] == COUNTS[name]
    if name in RESTATED:
        windows = list(RESTATED[name][0](streams[0]))
        assert (len(windows), sum(len(w.targets) for w in windows)) == COUNTS[name]
        assert sum(len(w.tokens) - 1 for w in windows) == counts[0][2]
    else:
        rolling = [list(get_rolling_token_windows(tokens, BOS, 2048, 1)) for tokens in streams]
        assert sum(map(len, rolling)) == COUNTS[name][0]


@pytest.mark.skipif(not WIKITEXT.is_file(), reason="no WikiText-2: set CTWORKER_DATA")
def test_pages_are_lm_evals(tmp_path: Path) -> None:
    """The articles from the raw file, from the document-level file, and lm-eval's own detokeniser."""
    from lm_eval.tasks.wikitext.preprocess_wikitext import wikitext_detokenizer

    lines = WIKITEXT.with_name("wikitext2_test_document_level.jsonl")
    pages = [json.loads(line)["page"] for line in lines.open(encoding="utf-8")]
    for source in (WIKITEXT, lines):
        text = texts.load(f"wikitext2={source}", "pages", join_given=False)
        assert text.originals == pages
        assert text.documents == [wikitext_detokenizer({"page": page}) for page in pages]
        assert not texts.load(f"wikitext2={source}", "rows", join_given=False).notes


@pytest.mark.skipif(not WIKITEXT.is_file(), reason="no WikiText-2: set CTWORKER_DATA")
@pytest.mark.parametrize("name", ["exl3-512", "llama.cpp-512", "hf-sliding"])
def test_wikitext2_with_the_worker(
    name: str, with_bos: Path, real_worker: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first windows of the real text, cut by the worker."""
    cut, mean, adds = RESTATED[name]
    report = report_of(
        capsys, with_bos, "--method", name, "--dataset", f"wikitext2={WIKITEXT}", "--rows", 12, "--dtype", "float32"
    )
    join = report["method"]["join"]
    (document,) = texts.load(f"wikitext2={WIKITEXT}", join, join_given=False).documents
    windows = list(cut([BOS] * adds + list(document[:40_000].encode())))[:12]
    sums, counts, _ = restate(with_bos, windows, N_IDS if name == "exl3-512" else None)
    (entry,) = report["texts"]
    assert (entry["windows"], entry["scored_tokens"]) == (12, sum(counts))
    assert entry["perplexity"] == pytest.approx(math.exp(mean(sums, counts)), rel=1e-12)


# ---- fields, output, standard errors ----


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
    assert {"join", "bos", "cut", "rows", "vocabulary", "mean", "error", "new", "tail", "spare"} <= set(method)
    assert len(preset["model"]["identity"]) == 64 and preset["model"]["numerics"].startswith("cpu-")
    given = ["--window", 64, "--stride", 16, "--first", 48, "--rows", 5, "--bos", "prefix", "--spare", 2, "--tail"]
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
    half = report_of(capsys, checkpoint, "--text", path, "--window", 16, "--rows", 1)["texts"][0]
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
        if tensor["shape"][0] == 320:
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


def test_a_running_worker_must_have_the_vocabulary(
    checkpoint: Path, text_file: Path, real_worker: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with Worker(checkpoint) as worker:
        ppl_arguments = ["--endpoint", worker.endpoint, "--text", text_file, "--method", "exl3"]
        assert ppl.main([*map(str, ppl_arguments), "--quiet"]) == 64
        assert "start it with --vocabulary 258, or choose --vocabulary model" in capsys.readouterr().err
        ppl_arguments += ["--vocabulary", "model", "--json", "-", "--quiet"]
        assert ppl.main(list(map(str, ppl_arguments))) == 0
        assert json.loads(capsys.readouterr().out)["model"]["vocab"] == 320
        method = methods.resolve(methods.choose("exl3", {}), 2048)
        tokens = tokenize(texts.load_file(str(text_file), "rows"), method, TextTokenizer(checkpoint, name="tiny"))
        result = measure(worker, tokens, method)
    assert result.method.vocabulary == "model" and "start the worker with --vocabulary 258" in result.fields()["notes"][0]


# ---- input ----


def test_files_of_rows(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """JSON lines, gzip and Parquet give the same rows; the join is the method's."""
    rows = ["one two", "", "three"]
    lines = "".join(json.dumps({"body": row, "n": 1}) + "\n" for row in rows)
    (tmp_path / "a.jsonl").write_text(lines)
    (tmp_path / "b.json.gz").write_bytes(gzip.compress(lines.encode()))
    pyarrow.parquet.write_table(pyarrow.table({"body": rows}), tmp_path / "c.parquet")
    for name in ("a.jsonl", "b.json.gz", "c.parquet"):
        path = str(tmp_path / name)
        assert texts.load_file(path, "rows", "body").documents == ["one two\n\n\n\nthree"]
        assert texts.load_file(path, "nonempty", "body").documents == ["one two\n\nthree"]
        assert texts.load_file(path, "space", "body").documents == ["one two  three"]
        documents = texts.load_file(path, "documents", "body")
        assert documents.documents == ["one two", "three"] and "1 of 3 documents are empty" in documents.notes[0]
        assert "has no" in refusal(capsys, checkpoint, "--text", path)


def test_named_data_sets(tmp_path: Path) -> None:
    path = tmp_path / "c4.jsonl"
    path.write_text("".join(json.dumps({"text": f"row {i}"}) + "\n" for i in range(1200)))
    text = texts.load(f"c4={path}", "rows", join_given=False)
    assert text.join == "space" and text.windows == 256 and text.documents[0].endswith("row 1099")
    assert texts.load(f"c4={path}", "pages", join_given=False).join == "documents"
    assert texts.load(f"c4={path}", "rows", join_given=True).documents[0].startswith("row 0\n\nrow 1")


REFUSED = {
    "unknown method": (["--method", "gtpq"], "did you mean gptq-2048"),
    "unknown join": (["--join", "lines"], "join 'lines' is unknown; expected one of rows"),
    "window too short": (["--window", "1"], "at least 2 tokens"),
    "stride": (["--window", "8", "--stride", "9"], "tokens would be left out"),
    "first": (["--window", "8", "--first", "8"], "expected a position in 1..7"),
    "first 0": (["--window", "8", "--first", "0"], "expected a position in 1..7"),
    "window": (["--window", "big"], "expected a number of tokens, model, or N"),
    "rows": (["--rows", "-1"], "rows -1: expected a whole number"),
    "short text": (["--window", "2000000"], "needs at least 2000000"),
    "no bos": (["--bos", "replace"], "does not add its BOS to texts, .*--bos-token 256"),
    "bos-token": (["--bos-token", "9999"], "has only 258 tokens"),
    "rolling": (["--method", "lm-eval", "--stride", "8"], "stride has no meaning"),
    "mixed": (["--bos", "lm-eval"], "need each other"),
    "word": (["--mean", "word"], "every token to be scored once"),
    "error": (["--method", "hf-sliding", "--error", "tokens"], "goes with mean token"),
    "dataset": (["--dataset", "wikitext3"], "unknown: expected one of wikitext2"),
    "no file": (["--text", "/nowhere/x"], "there is no such file"),
    "json": (["--json", "/nowhere/x.json"], "cannot be written"),
    "per-token": (["--per-token", "/nowhere/x.parquet"], "cannot be written"),
    "model": (["--endpoint", "ipc:///nowhere"], "not both"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case: str, checkpoint: Path, text_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One sentence, before a worker starts: there is none here."""
    os.environ["CTWORKER_BIN"] = "/nowhere/ctworker"
    arguments, message = REFUSED[case]
    try:
        said = refusal(capsys, checkpoint, *([] if "--dataset" in arguments else ["--text", text_file]), *arguments)
    finally:
        del os.environ["CTWORKER_BIN"]
    assert re.search(message, said), said


def test_bad_texts(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    latin, empty = tmp_path / "latin.txt", tmp_path / "empty.txt"
    latin.write_bytes("first line\nna\xefve".encode("latin-1"))
    empty.write_text(" \n")
    (tmp_path / "bad.jsonl").write_text('{"text": "a"}\n{"text": 3}\n')
    assert f"{latin}: line 2 is not UTF-8 (byte 13 is 0xef)" in refusal(capsys, checkpoint, "--text", latin)
    assert "there is no text in it" in refusal(capsys, checkpoint, "--text", empty)
    assert "line 2 has no text in 'text'" in refusal(capsys, checkpoint, "--text", tmp_path / "bad.jsonl")


def test_the_model_bounds_the_window(
    checkpoint: Path, text_file: Path, real_worker: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Known only once the model is loaded."""
    said = refusal(capsys, checkpoint, "--text", text_file, "--window", 4000)
    assert "the model takes at most 2049 tokens in a window" in said
    report = report_of(capsys, checkpoint, "--text", text_file, "--method", "llama.cpp-512")
    assert report["method"]["bos_token"] is None and any("adds no BOS" in note for note in report["notes"])


def test_tokens_of_the_worker_must_be_expected(checkpoint: Path) -> None:
    """A worker that cuts other windows than this package expects is noticed."""
    class Other:
        def score_windows(self, *_: Any, **__: Any) -> list[Score]:
            columns = array("f", [-1, -1]), array("i", [1, 1])
            return [Score(-2.0, True, 2, 0, *columns, "n", "i", array("d", [-2]), array("i", [2]))]

    method = methods.resolve(methods.choose("gptq-2048", {"window": 4}), 2048)
    text = texts.Text("t", "t", "rows", ["abcd"], ["abcd"])
    tokens = Tokens(text, [Document(array("i", list(b"abcd")), [0, 1, 2, 3, 4], [0] * 5)], None)
    with pytest.raises(CtworkerError, match="scored 2 tokens in 1 windows, expected 3 in 1"):
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
