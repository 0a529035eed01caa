"""--use_cache: final answers are kept; one file serves several checkpoints and settings, and each gets its own answers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fake_worker
import pytest
from conftest import ids, requests
from lm_eval.api.model import CacheHook, CachingLM

from ctworker.base.errors import CtworkerError
from ctworker.lm import CTWorkerLM

(ASKED,) = requests("loglikelihood", ("ab", "cd"))


@pytest.fixture
def answer(
    fake: Callable[[str], Path], checkpoint: Path, tmp_path: Path
) -> Iterator[Callable[..., tuple[Any, int, dict]]]:
    """answer(faults, arguments...): the answer, the number of requests to the model, the report."""
    models: list[CTWorkerLM] = []

    def ask(faults: str = "", **arguments: Any) -> tuple[Any, int, dict]:
        fake(faults)
        model = CTWorkerLM(**{"pretrained": str(checkpoint), **arguments})
        models.append(model)
        n_asked = 0
        original = model._loglikelihood_tokens

        def count(requests: list, **more: Any) -> list:
            nonlocal n_asked
            n_asked += len(requests)
            return original(requests, **more)

        model._loglikelihood_tokens = count
        cached = CachingLM(model, str(tmp_path / "cache.db"))
        (got,) = cached.loglikelihood([ASKED])
        cached.dbdict.close()
        return got, n_asked, model.get_model_info()["ctworker"]

    yield ask
    for model in models:
        model.close()


def test_another_checkpoint_is_asked_anew(answer: Callable[..., tuple[Any, int, dict]]) -> None:
    one, two = "11" * 32, "22" * 32
    assert answer(f"identity={one}")[1:2] == (1,)
    got, n_asked, report = answer(f"identity={two}")
    assert n_asked == 1 and report["identity"] == two
    assert got == fake_worker.pair_sum([97, 98], [99, 100])
    got, n_asked, report = answer(f"identity={one}")
    assert n_asked == 0 and report["identity"] == one  # the answers of both are kept


def test_other_numerics_are_asked_anew(answer: Callable[..., tuple[Any, int, dict]]) -> None:
    assert [answer(f"numerics={name}")[1] for name in ("one", "two", "one")] == [1, 1, 0]


@pytest.mark.parametrize("arguments", [{"max_length": 16}, {"add_bos_token": True}, {"prefix_token_id": 9}])
def test_other_arguments_are_asked_anew(
    answer: Callable[..., tuple[Any, int, dict]], arguments: dict[str, Any]
) -> None:
    assert [answer()[1], answer(**arguments)[1], answer(**arguments)[1]] == [1, 1, 0]


def test_another_tokenizer_is_asked_anew(
    answer: Callable[..., tuple[Any, int, dict]], checkpoint: Path, tmp_path: Path
) -> None:
    """Another special token, and another number of a token."""
    for name in ("same", "other", "numbers"):
        (tmp_path / name).mkdir()
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(checkpoint / file, tmp_path / name)
    path = tmp_path / "other" / "tokenizer.json"
    text = path.read_text()
    assert '"<s>"' in text
    path.write_text(text.replace('"<s>"', '"<begin>"'))
    path = tmp_path / "other" / "tokenizer_config.json"
    path.write_text(path.read_text().replace('"<s>"', '"<begin>"'))
    path = tmp_path / "numbers" / "tokenizer.json"
    files = json.loads(path.read_text())
    vocabulary = files["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    path.write_text(json.dumps(files))
    names = ("same", "other", "numbers", "same")
    assert [answer(tokenizer=str(tmp_path / name))[1] for name in names] == [1, 1, 1, 0]


def test_an_identity_that_comes_late_is_waited_for(answer: Callable[..., tuple[Any, int, dict]]) -> None:
    """As on a GPU, where the worker computes while it is still loading."""
    assert answer("unknown=3")[2]["identity"] == "ab" * 32
    assert answer()[1] == 0


def test_a_cache_of_another_kind_is_refused(fake: Callable[[str], Path], checkpoint: Path) -> None:
    fake()
    model = CTWorkerLM(str(checkpoint))
    model.set_cache_hook(CacheHook(None))  # no cache
    with pytest.raises(CtworkerError, match="caches in a dict.*run without --use_cache"):
        model.set_cache_hook(SimpleNamespace(dbdict={}, add_partial=None))
    model.close()


def test_the_report_names_the_source_of_the_scores(fake: Callable[[str], Path], checkpoint: Path) -> None:
    """Also when `info` did not know the identity yet."""
    fake("unknown=99")
    model = CTWorkerLM(str(checkpoint))
    model.loglikelihood([ASKED], disable_tqdm=True)
    assert model.get_model_info()["ctworker"]["identity"] == "ab" * 32
    model.close()


def test_use_cache_keeps_every_final_answer(make: Callable[..., CTWorkerLM], tmp_path: Path) -> None:
    """A run that dies half way keeps its final answers, and the next run requests only the others."""
    texts = [(f"context {i}", " then") for i in range(40)]
    model = make("slow=0.03,die=2")
    cached = CachingLM(model, str(tmp_path / "cache.db"))
    with pytest.raises(CtworkerError, match=r"exit code 70.*the toy model broke"):
        cached.loglikelihood(requests("loglikelihood", *texts))
    cached.dbdict.commit()
    kept = len(cached.dbdict)
    assert 0 < kept < 40
    model.close()

    asked: list[int] = []
    again = make()
    original = again.loglikelihood
    again.loglikelihood = lambda rest: asked.append(len(rest)) or original(rest, disable_tqdm=True)
    answers = CachingLM(again, str(tmp_path / "cache.db")).loglikelihood(requests("loglikelihood", *texts))
    assert asked == [40 - kept]
    assert answers == [fake_worker.pair_sum(ids(a), ids(b)) for a, b in texts]


def test_rolling_is_cached_by_document(make: Callable[..., CTWorkerLM]) -> None:
    stored: list[tuple[str, tuple, float]] = []
    model = make()
    model.cache_hook = SimpleNamespace(add_partial=lambda *entry: stored.append(entry))
    sums = model.loglikelihood_rolling(requests("loglikelihood_rolling", ("ab",), ("abc",)), disable_tqdm=True)
    assert sorted(stored) == [("loglikelihood_rolling", ("ab",), sums[0]), ("loglikelihood_rolling", ("abc",), sums[1])]
