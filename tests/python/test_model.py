"""The lm-eval model on the fake worker: every number is compared with the toy model, by lm-eval's own rules."""

from __future__ import annotations

import fcntl
import json
import logging
import shutil
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ctworker
import pytest
from ctworker import launcher
from ctworker.client import Connection
from ctworker.errors import ArgumentError, CtworkerError
from ctworker.lm import CTWorkerLM
from ctworker.scoring import Item, Scorer
from lm_eval.api.instance import Instance
from lm_eval.api.model import CachingLM, TemplateLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

import fake_worker
import tokenizer_cases
from conftest import alive, wait_for

BOS, EOS = 256, 257


def requests(kind: str, *arguments: Any) -> list[Instance]:
    return [Instance(kind, {}, args, i, metadata=("toy", i, 1)) for i, args in enumerate(arguments)]


def ids(text: str) -> list[int]:
    return list(text.encode())


@pytest.fixture
def make(fake: Callable[[str], Path], checkpoint: Path) -> Iterator[Callable[..., CTWorkerLM]]:
    made: list[CTWorkerLM] = []

    def build(faults: str = "", **arguments: Any) -> CTWorkerLM:
        fake(faults)
        made.append(CTWorkerLM(**{"pretrained": str(checkpoint), **arguments}))
        return made[-1]

    yield build
    for model in made:
        model.close()


def test_pairs(make: Callable[..., CTWorkerLM]) -> None:
    answers = make().loglikelihood(
        requests(
            "loglikelihood",
            ("a b", " c"),
            ("a \n", "x"),
            ("", "hi"),
            ("", "<s>hi"),
            (" \t", "q"),
            ("ab", ""),
            ("", ""),
        ),
        disable_tqdm=True,
    )
    expected = [
        fake_worker.pair_sum(ids("a b"), ids(" c")),
        fake_worker.pair_sum(ids("a"), ids(" \nx")),  # white space moves to the continuation
        fake_worker.pair_sum([BOS], ids("hi")),  # the prefix token
        fake_worker.pair_sum([BOS], ids("hi")),  # written out: not doubled
        fake_worker.pair_sum([BOS], ids(" \tq")),  # hf: a bare assertion
        (0.0, True),
        (0.0, True),
    ]
    assert answers == expected
    assert all(type(total) is float and type(greedy) is bool for total, greedy in answers)


def test_pairs_as_lm_eval_splits_them(
    make: Callable[..., CTWorkerLM], tmp_path: Path, checkpoint: Path
) -> None:
    """Compares with TemplateLM._encode_pair, using tokenizers with tokens that span the boundary."""
    folders = tokenizer_cases.write(tmp_path)
    texts = tokenizer_cases.TEXTS
    pairs = [(a, b) for a in texts for b in texts if a.strip() and b.strip()]
    for name in ("llama2", "llama3", "smollm2"):
        for add_bos in (None, True, False):
            model = make(tokenizer=str(folders[name]), add_bos_token=add_bos, prefix_token_id=1)
            ours = list(model._encoder.pairs(pairs))
            theirs = [TemplateLM._encode_pair(model, *pair) for pair in pairs]
            assert [(pair.context, pair.continuation) for pair in ours] == theirs
            model.close()


def test_greedy(make: Callable[..., CTWorkerLM]) -> None:
    first = next(c for c in range(97, 123) if fake_worker.greedy(c) < 128)
    context, continuation = chr(first), chr(fake_worker.greedy(first))
    answers = make().loglikelihood(
        requests("loglikelihood", (context, continuation), (context, "\x01")), disable_tqdm=True
    )
    assert [greedy for _, greedy in answers] == [True, False]


def test_a_blank_context_with_bos(make: Callable[..., CTWorkerLM]) -> None:
    (answer,) = make(add_bos_token=True).loglikelihood(
        requests("loglikelihood", (" ", "q")), disable_tqdm=True
    )
    assert answer == fake_worker.pair_sum([BOS], ids(" q"))


@pytest.mark.parametrize(("add_bos", "first"), [(None, []), (True, [BOS]), (False, [])])
def test_rolling_windows_are_lm_evals(
    make: Callable[..., CTWorkerLM],
    add_bos: bool | None,
    first: list[int],
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = make(max_length=16, add_bos_token=add_bos)
    texts = ["", "x", "y" * 16, "some text " * 3, "z" * 33, "<s>already there"]
    got = model.loglikelihood_rolling(
        requests("loglikelihood_rolling", *((text,) for text in texts)), disable_tqdm=True
    )
    for text, total in zip(texts, got, strict=True):
        tokens = model.tok_encode(text)
        written = [BOS, *ids("already there")] if text.startswith("<s>") else first + ids(text)
        assert tokens == written
        expected = 0.0
        for context, targets in map(
            make_disjoint_window, get_rolling_token_windows(tokens, BOS, 16, 1)
        ):
            expected += fake_worker.pair_sum(context, targets)[0]
        assert total == expected
    doubled = [record for record in caplog.records if "add_bos_token=False" in record.getMessage()]
    assert len(doubled) == 1  # by the tokenizer or in the last text: one warning


def test_long_contexts_are_cut_from_the_left(
    make: Callable[..., CTWorkerLM], caplog: pytest.LogCaptureFixture
) -> None:
    answers = make(max_length=10).loglikelihood(
        requests("loglikelihood", ("c" * 50, "defg"), ("c" * 50, "0123456789"), ("c", "d")),
        disable_tqdm=True,
    )
    assert answers[0] == fake_worker.pair_sum(ids("c" * 7), ids("defg"))
    assert answers[1] == fake_worker.pair_sum(ids("c"), ids("0123456789"))
    (record,) = [r for r in caplog.records if "truncated from the left" in r.getMessage()]
    assert "2 of 3" in record.getMessage()


def test_a_continuation_too_long_is_refused(make: Callable[..., CTWorkerLM]) -> None:
    with pytest.raises(
        ArgumentError,
        match=r"request 1 \(task toy, document 1\).*11 tokens.*at most 10.*max_length=",
    ):
        make(max_length=10).loglikelihood(
            requests("loglikelihood", ("a", "b"), ("a", "0123456789+")), disable_tqdm=True
        )


def test_a_continuation_without_tokens_is_refused(
    make: Callable[..., CTWorkerLM], tmp_path: Path
) -> None:
    folder = tokenizer_cases.write(tmp_path)["llama2"]
    model = make(tokenizer=str(folder))
    text = "The following"
    cut = next(
        i
        for i in range(1, len(text))
        if len(model.tok_encode(text[:i])) >= len(model.tok_encode(text))
    )
    with pytest.raises(
        ArgumentError, match=r"request 0 \(task toy, document 0\): .*no token of its own"
    ):
        model.loglikelihood(requests("loglikelihood", (text[:cut], text[cut:])), disable_tqdm=True)


def test_many_items_in_parts_and_jobs(make: Callable[..., CTWorkerLM]) -> None:
    """Small limits: several jobs with several parts, results fetched seven at a time and out of order."""
    texts = [(f"context {i}", f" then {'x' * (i % 40)}") for i in range(500)]
    answers = make("part=4096,items=150,busy=2").loglikelihood(
        requests("loglikelihood", *texts), disable_tqdm=True
    )
    assert answers == [fake_worker.pair_sum(ids(a), ids(b)) for a, b in texts]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], list[list[str]]]:
    """asked() returns the words of each request that a fake worker received."""
    path = tmp_path / "requests"
    monkeypatch.setenv("FAKE_LOG", str(path))
    return lambda: [line.split(" ") for line in path.read_text().splitlines()]


TEXTS = [(f"context {i}", f" then {'x' * (i % 40)}") for i in range(200)]


def test_a_full_worker_keeps_the_parts_it_has(
    make: Callable[..., CTWorkerLM], asked: Callable[[], list[list[str]]]
) -> None:
    answers = make("part=4096,full=3").loglikelihood(
        requests("loglikelihood", *TEXTS), disable_tqdm=True
    )
    assert answers == [fake_worker.pair_sum(ids(a), ids(b)) for a, b in TEXTS]
    parts = [words[2] for words in asked() if words[0] == "submit"]
    assert parts[:7] == ["0", "1", "2", "2", "2", "2", "2"] and parts.count("1") == 1


def test_a_job_that_waits_too_long_makes_room(
    make: Callable[..., CTWorkerLM],
    asked: Callable[[], list[list[str]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ctworker.scoring._HOLD_S", 0.01)
    monkeypatch.setattr("ctworker.scoring._BUSY_MAX_S", 0.05)
    answers = make("part=4096,full=3").loglikelihood(
        requests("loglikelihood", *TEXTS), disable_tqdm=True
    )
    assert answers == [fake_worker.pair_sum(ids(a), ids(b)) for a, b in TEXTS]
    (canceled,) = [words[1] for words in asked() if words[0] == "cancel"]
    assert canceled == asked()[[words[0] for words in asked()].index("submit")][1]


def test_a_restart_between_parts(
    make: Callable[..., CTWorkerLM], caplog: pytest.LogCaptureFixture
) -> None:
    answers = make("part=4096,forgets=3").loglikelihood(
        requests("loglikelihood", *TEXTS), disable_tqdm=True
    )
    assert answers == [fake_worker.pair_sum(ids(a), ids(b)) for a, b in TEXTS]
    assert "submitting 200 of 200 requests again" in caplog.text


def test_a_job_that_is_not_sealed_is_abandoned(
    make: Callable[..., CTWorkerLM], asked: Callable[[], list[list[str]]]
) -> None:
    with pytest.raises(CtworkerError, match="item 0: no"):
        make("part=4096,invalid=3").loglikelihood(
            requests("loglikelihood", *TEXTS), disable_tqdm=True
        )
    job = next(words[1] for words in asked() if words[0] == "submit")
    assert ["cancel", job, ""] in asked()


def test_results_of_another_model_are_refused(make: Callable[..., CTWorkerLM]) -> None:
    with pytest.raises(CtworkerError, match="numerics changed .*from 'fake-1' to 'fake-2'"):
        make("scored=fake-2").loglikelihood(
            requests("loglikelihood", ("a", "b")), disable_tqdm=True
        )


def test_jobs_fit_the_queue() -> None:
    """Counts as worker/service/job_part.c: 4 bytes per token, 8 per target, plus the item and its windows."""
    limits = {"queue_bytes": 40_000, "part_bytes": 1 << 20, "job_items": 1000}
    items = [Item(array("i", range(n))) for n in (1, 400, 800, 1000, 5, 900)]
    for kind, head in (("loglikelihood_rolling", {"max_length": 10}), ("loglikelihood", {})):
        scorer = Scorer(Connection("ipc:///x"), kind, items, head, limits, on_score=lambda i, s: None)
        groups = list(scorer.batches.groups(range(len(items))))
        assert [i for group in groups for i in group] == list(range(len(items))) and len(groups) > 1
        for group in groups:
            tokens = sum(len(items[i].tokens) for i in group)
            assert 12 * tokens + 80 * len(group) <= 20_000
    scorer = Scorer(Connection("tcp://h:1"), "loglikelihood", [Item(array("i", [1] * 200_000), 1)] * 3, {},
                    {}, on_score=lambda i, s: None)  # fmt: skip
    assert list(scorer.batches.parts(range(3))) == [[0], [1], [2]]


def test_a_restarted_worker_gets_the_rest_again(
    make: Callable[..., CTWorkerLM], caplog: pytest.LogCaptureFixture
) -> None:
    texts = [(f"context {i}", " then") for i in range(30)]
    answers = make("slow=0.02,forget=3").loglikelihood(
        requests("loglikelihood", *texts), disable_tqdm=True
    )
    assert answers == [fake_worker.pair_sum(ids(a), ids(b)) for a, b in texts]
    assert "submitting" in caplog.text


def test_use_cache_keeps_every_final_answer(
    make: Callable[..., CTWorkerLM], tmp_path: Path
) -> None:
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
    answers = CachingLM(again, str(tmp_path / "cache.db")).loglikelihood(
        requests("loglikelihood", *texts)
    )
    assert asked == [40 - kept]
    assert answers == [fake_worker.pair_sum(ids(a), ids(b)) for a, b in texts]


def test_rolling_is_cached_by_document(make: Callable[..., CTWorkerLM]) -> None:
    stored: list[tuple[str, tuple, float]] = []
    model = make()
    model.cache_hook = SimpleNamespace(add_partial=lambda *entry: stored.append(entry))
    sums = model.loglikelihood_rolling(
        requests("loglikelihood_rolling", ("ab",), ("abc",)), disable_tqdm=True
    )
    assert sorted(stored) == [
        ("loglikelihood_rolling", ("ab",), sums[0]),
        ("loglikelihood_rolling", ("abc",), sums[1]),
    ]


def test_load_errors_are_the_workers_words(
    make: Callable[..., CTWorkerLM], checkpoint: Path, tmp_path: Path
) -> None:
    with pytest.raises(CtworkerError, match="^config.json: rope_scaling 'x' is not known$"):
        make("load=config.json: rope_scaling 'x' is not known")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(checkpoint / file, tmp_path)
    with pytest.raises(
        CtworkerError, match=r"config\.json: no such file"
    ):  # the worker ends before it listens
        make(pretrained=str(tmp_path))


def test_a_sum_that_is_not_finite_names_its_request(make: Callable[..., CTWorkerLM]) -> None:
    with pytest.raises(
        CtworkerError, match=r"request 2 \(task toy, document 2\): NaN in a score \(layer 3\)"
    ):
        make("nan").loglikelihood(
            requests("loglikelihood", ("a", ""), ("a", "b"), ("a", "c")), disable_tqdm=True
        )


def test_what_lm_eval_asks(
    make: Callable[..., CTWorkerLM], checkpoint: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    model = make("activations=fp8 per token", dtype="float32", threads=3, memory_limit="1GiB")
    assert (model.rank, model.world_size) == (0, 1)
    assert (model.prefix_token_id, model.eot_token_id, model.max_length) == (BOS, EOS, 2048)
    assert model.tokenizer_name == str(checkpoint).replace("/", "__")
    for name in ("pad_token", "eos_token", "bos_token"):
        assert getattr(model.tokenizer, name) and isinstance(
            getattr(model.tokenizer, f"{name}_id"), int
        )
    info = json.loads(json.dumps(model.get_model_info()))
    assert info["model_num_parameters"] == 1234 and info["model_dtype"] == "float32"
    assert info["ctworker"]["numerics"] == "fake-1" and info["ctworker"]["identity"] == "ab" * 32
    assert info["ctworker"]["notes"] == [
        "activation quantisation is declared, not simulated: fp8 per token"
    ]
    assert (
        "max_length 2048 (the model's own)" in caplog.text
        and "declared, not simulated" in caplog.text
    )
    assert list(model.batch_sizes) == []


def test_worker_options(fake: Callable[[str], Path], checkpoint: Path, tmp_path: Path) -> None:
    record = fake()
    log = tmp_path / "w.log"
    model = CTWorkerLM(str(checkpoint), dtype="float32", max_length=99, threads=3, memory_limit="2GiB",
                       cpu_variant="c", device="cpu", worker_log=str(log))  # fmt: skip
    argv = " ".join(json.loads(record.read_text())["argv"])
    model.close()
    for option in ("--dtype float32", "--max-length 99", "--threads 3", "--memory-limit 2GiB", "--cpu-variant c",
                   "--backend cpu", "--owner-pid"):  # fmt: skip
        assert option in argv
    assert log.exists()


def test_which_gpu(fake: Callable[[str], Path], checkpoint: Path) -> None:
    record = fake()

    def options(given: dict[str, str], added: dict[str, object]) -> str:
        CTWorkerLM.create_from_arg_obj({"pretrained": str(checkpoint), **given}, added).close()
        return " ".join(json.loads(record.read_text())["argv"])

    assert "--backend cuda --dtype auto --device 3" in options({}, {"device": "cuda:3"})
    assert "--backend cuda --dtype auto --device 0" in options({"device": "cuda:0"}, {"device": "cuda:0"})
    assert "--device 2" in options({"device": "cuda:2"}, {"device": "cuda:0"})
    assert "--backend auto" in options({}, {"device": "cuda:0"})  # lm-eval's own default is not a user's choice


def test_prefix_token(make: Callable[..., CTWorkerLM], tmp_path: Path, checkpoint: Path) -> None:
    (answer,) = make(prefix_token_id=7).loglikelihood(
        requests("loglikelihood", ("", "a")), disable_tqdm=True
    )
    assert answer == fake_worker.pair_sum([7], ids("a"))
    with pytest.raises(
        ArgumentError, match="prefix token 5000 is outside the model's vocabulary of 320"
    ):
        make(prefix_token_id=5000)
    shutil.copy(checkpoint / "tokenizer.json", tmp_path)
    with pytest.raises(ArgumentError, match="neither BOS nor EOS.*prefix_token_id="):
        make(tokenizer=str(tmp_path))


def test_chat(make: Callable[..., CTWorkerLM], tmp_path: Path, checkpoint: Path) -> None:
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(checkpoint / file, tmp_path)
    template = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}"
        "{{ m.content }}|{% endfor %}{{ x }}"
    )
    (tmp_path / "chat_template.jinja").write_text(template)
    model = make(tokenizer=str(tmp_path), chat_template_args={"x": "y"})
    assert model.chat_template(True) == template
    history = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    assert model.apply_chat_template(history) == "u|y"
    assert (
        model.apply_chat_template([*history[1:], {"role": "assistant", "content": "a"}], False)
        == "u|a"
    )


def test_thinking(make: Callable[..., CTWorkerLM]) -> None:
    model = make(enable_thinking=True)
    model.loglikelihood_rolling(requests("loglikelihood_rolling", ("a",)), disable_tqdm=True)
    with pytest.raises(ArgumentError, match="enable_thinking=True is not compatible.*toy"):
        model.loglikelihood(requests("loglikelihood", ("a", "b")), disable_tqdm=True)


def test_generation_is_refused(make: Callable[..., CTWorkerLM]) -> None:
    with pytest.raises(NotImplementedError, match="toy need"):
        make().generate_until(requests("generate_until", ("a", {})))


def test_endpoint(running_fake: Callable[..., str], checkpoint: Path, tmp_path: Path) -> None:
    url = running_fake("", "--max-length", "32")
    model = CTWorkerLM(endpoint=url)  # the tokenizer comes from the worker's own folder
    assert model.max_length == 32
    assert model.loglikelihood(requests("loglikelihood", ("a", "b")), disable_tqdm=True) == [
        fake_worker.pair_sum(ids("a"), ids("b"))
    ]
    model.close()
    assert CTWorkerLM(endpoint=url, pretrained=str(checkpoint)).max_length == 32  # the worker keeps running
    (tmp_path / "link").symlink_to(checkpoint)
    CTWorkerLM(endpoint=url, pretrained=str(tmp_path / "link"))
    shutil.copytree(checkpoint, tmp_path / "other")
    for given, words in [
        ({"pretrained": str(tmp_path / "other")}, "has loaded"),
        ({"max_length": 64}, "at most 32"),
        ({"dtype": "bfloat16"}, "computes in float32"),
        ({"device": "cuda:0"}, "computes on cpu"),
        ({"model": "nobody"}, "has no model 'nobody'"),
    ]:
        with pytest.raises(CtworkerError, match=words):
            CTWorkerLM(**{"endpoint": url, **given})
    with pytest.raises(CtworkerError, match=r"there is no .*nobody\.sock.*ctworker ps"):  # at once
        CTWorkerLM(endpoint=f"ipc://{tmp_path}/nobody.sock", pretrained=str(checkpoint))


def test_a_loading_worker_is_waited_for(
    running_fake: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert CTWorkerLM(endpoint=running_fake("loading=2")).max_length == 2048
    assert "is loading" in caplog.text
    with pytest.raises(CtworkerError, match=r"still loading after 0.5 s: weights.*load_timeout="):
        CTWorkerLM(endpoint=running_fake("loading=99"), load_timeout=0.5)


def test_dropping_the_model_stops_its_worker(fake: Callable[[str], Path], checkpoint: Path) -> None:
    record = fake()
    for _ in range(3):
        model = CTWorkerLM(str(checkpoint))
        pid = json.loads(record.read_text())["pid"]
        folder = Path(model._session.url.removeprefix("ipc://")).parent
        assert alive(pid) and folder.is_dir()
        del model
        wait_for(lambda pid=pid: not alive(pid))
        assert not folder.exists()


def test_folders_of_killed_owners_are_removed(
    make: Callable[..., CTWorkerLM],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    base = tmp_path_factory.mktemp("r")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(base))
    if len(str(base)) >= 60:
        pytest.skip(f"{base} is too long a path for sockets")
    stale, other, young = (base / f"ctworker-of-4194999-{name}" for name in "soy")
    for folder in (stale, other, young):
        folder.mkdir()
        (folder / "log").touch()
    for folder in (stale, other):
        (folder / "lock").touch()
    with (
        other / "lock"
    ).open() as lock:  # like a process of another container, whose process id means nothing here
        fcntl.flock(lock, fcntl.LOCK_EX)
        model = make()
        own = Path(model._session.url.removeprefix("ipc://")).parent
        assert not stale.exists() and other.exists() and young.exists() and own.parent == base
        make()
        assert own.exists()
        model.close()
        assert not own.exists()


def test_the_worker_program(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, checkpoint: Path
) -> None:
    script = tmp_path / "ctworker"
    script.write_text("#!/usr/bin/python3\nfrom ctworker.__main__ import main\nmain()\n")
    script.chmod(0o755)
    monkeypatch.setenv("CTWORKER_BIN", str(script))
    with pytest.raises(ArgumentError, match="this package's own command"):
        launcher.find_binary()
    monkeypatch.delenv("CTWORKER_BIN")
    program = tmp_path / "site" / "bin" / "ctworker"  # an editable installation's second folder
    program.parent.mkdir(parents=True)
    shutil.copy("/bin/true", program)
    monkeypatch.setattr(ctworker, "__path__", [*ctworker.__path__, str(tmp_path / "site")])
    assert launcher.find_binary() == program


def test_a_stalled_worker_is_told(
    make: Callable[..., CTWorkerLM],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("ctworker.scoring._BUSY_NOTE_S", 0.3)
    make("slow=2").loglikelihood(requests("loglikelihood", ("a", "b")), disable_tqdm=True)
    assert "no progress on this job" in caplog.text
