"""ctworker-ppl: each preset against a restatement of the program it stands for, with the real worker.

The restatements are written from the peers' own rules, window by window, and score each window as a sequence of its own.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from lm_eval.api.metrics import weighted_perplexity
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from ppl_cases import BOS, N_IDS, TEXT, WIKITEXT, report_of, text_file, with_bos  # noqa: F401 (fixtures)

from ctworker import Worker
from ctworker.perplexity import methods, texts
from ctworker.text.tokenizer import TextTokenizer


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
    (entry,) = report["texts"]
    assert entry["vocabulary"] == (vocabulary or 320)
    assert report["model"]["numerics"].endswith(f"/vocabulary-{N_IDS}") == (vocabulary is not None)
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
        capsys, with_bos, "--method", name, "--dataset", f"wikitext2={WIKITEXT}", "--max-windows", 12, "--dtype", "float32"
    )
    join = report["method"]["join"]
    (document,) = texts.load(f"wikitext2={WIKITEXT}", join, join_given=False).documents
    windows = list(cut([BOS] * adds + list(document[:40_000].encode())))[:12]
    sums, counts, _ = restate(with_bos, windows, N_IDS if name == "exl3-512" else None)
    (entry,) = report["texts"]
    assert (entry["windows"], entry["scored_tokens"]) == (12, sum(counts))
    assert entry["perplexity"] == pytest.approx(math.exp(mean(sums, counts)), rel=1e-12)
