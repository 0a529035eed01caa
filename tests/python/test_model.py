"""The lm-eval model on the fake worker: every number is compared with the toy model, by lm-eval's own rules."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import fake_worker
import pytest
import tokenizer_cases
from conftest import ids, requests
from lm_eval.api.model import TemplateLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from ctworker.base.errors import ArgumentError, CtworkerError
from ctworker.lm import CTWorkerLM

BOS, EOS = 256, 257


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


def test_pairs_as_lm_eval_splits_them(make: Callable[..., CTWorkerLM], tmp_path: Path, checkpoint: Path) -> None:
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
    (answer,) = make(add_bos_token=True).loglikelihood(requests("loglikelihood", (" ", "q")), disable_tqdm=True)
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
        for context, targets in map(make_disjoint_window, get_rolling_token_windows(tokens, BOS, 16, 1)):
            expected += fake_worker.pair_sum(context, targets)[0]
        assert total == expected
    doubled = [record for record in caplog.records if "add_bos_token=False" in record.getMessage()]
    assert len(doubled) == 1  # by the tokenizer or in the last text: one warning


def test_long_contexts_are_cut_from_the_left(make: Callable[..., CTWorkerLM], caplog: pytest.LogCaptureFixture) -> None:
    answers = make(max_length=10).loglikelihood(
        requests("loglikelihood", ("c" * 50, "defg"), ("c" * 50, "0123456789"), ("c", "d")),
        disable_tqdm=True,
    )
    assert answers[0] == fake_worker.pair_sum(ids("c" * 7), ids("defg"))
    assert answers[1] == fake_worker.pair_sum(ids("c"), ids("0123456789"))
    (record,) = [r for r in caplog.records if "truncated from the left" in r.getMessage()]
    assert "2 of 3" in record.getMessage()


def test_a_continuation_too_long_is_refused(make: Callable[..., CTWorkerLM]) -> None:
    with pytest.raises(ArgumentError, match=r"request 1 \(task toy, document 1\).*11 tokens.*at most 10.*max_length="):
        make(max_length=10).loglikelihood(
            requests("loglikelihood", ("a", "b"), ("a", "0123456789+")), disable_tqdm=True
        )


def test_a_continuation_without_tokens_is_refused(make: Callable[..., CTWorkerLM], tmp_path: Path) -> None:
    folder = tokenizer_cases.write(tmp_path)["llama2"]
    model = make(tokenizer=str(folder))
    text = "The following"
    cut = next(i for i in range(1, len(text)) if len(model.tok_encode(text[:i])) >= len(model.tok_encode(text)))
    with pytest.raises(ArgumentError, match=r"request 0 \(task toy, document 0\): .*no token of its own"):
        model.loglikelihood(requests("loglikelihood", (text[:cut], text[cut:])), disable_tqdm=True)


def test_a_sum_that_is_not_finite_names_its_request(make: Callable[..., CTWorkerLM]) -> None:
    with pytest.raises(CtworkerError, match=r"request 2 \(task toy, document 2\): NaN in a score \(layer 3\)"):
        make("nan").loglikelihood(requests("loglikelihood", ("a", ""), ("a", "b"), ("a", "c")), disable_tqdm=True)


def test_what_lm_eval_asks(make: Callable[..., CTWorkerLM], checkpoint: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    model = make("activations=fp8 per token", dtype="float32", threads=3, memory_limit="1GiB")
    assert (model.rank, model.world_size) == (0, 1)
    assert (model.prefix_token_id, model.eot_token_id, model.max_length) == (BOS, EOS, 2048)
    assert model.tokenizer_name == str(checkpoint).replace("/", "__")
    for name in ("pad_token", "eos_token", "bos_token"):
        assert getattr(model.tokenizer, name) and isinstance(getattr(model.tokenizer, f"{name}_id"), int)
    info = json.loads(json.dumps(model.get_model_info()))
    assert info["model_num_parameters"] == 1234 and info["model_dtype"] == "float32"
    assert info["ctworker"]["numerics"] == "fake-1" and info["ctworker"]["identity"] == "ab" * 32
    assert info["ctworker"]["notes"] == ["activation quantisation is declared, not simulated: fp8 per token"]
    assert ("max_length 2048 (the model's own)" in caplog.text and "declared, not simulated" in caplog.text)
    assert "device: the worker computes on the CPU (no GPU: this is a toy)" in caplog.text
    assert list(model.batch_sizes) == []


def test_activations(
    make: Callable[..., CTWorkerLM], running_fake: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    told = make("activations=fp8 per token", activations="checkpoint").get_model_info()["ctworker"]
    assert told["activations_mode"] == "checkpoint" and told["notes"] == []
    assert "not simulated" not in caplog.text
    assert make("activations=fp8 per token").get_model_info()["ctworker"]["activations_mode"] == "none"
    url = running_fake("activations=fp8 per token")
    assert CTWorkerLM(endpoint=url, activations="none").max_length == 2048
    with pytest.raises(CtworkerError, match="activations=checkpoint, but .* has activations=none: start a worker with "
                                            "--activations checkpoint"):  # fmt: skip
        CTWorkerLM(endpoint=url, activations="checkpoint")
    assert CTWorkerLM(endpoint=running_fake("", "--activations", "checkpoint"), activations="none")  # the file declares none


def test_prefix_token(make: Callable[..., CTWorkerLM], tmp_path: Path, checkpoint: Path) -> None:
    (answer,) = make(prefix_token_id=7).loglikelihood(requests("loglikelihood", ("", "a")), disable_tqdm=True)
    assert answer == fake_worker.pair_sum([7], ids("a"))
    with pytest.raises(ArgumentError, match="prefix token 5000 is outside the model's vocabulary of 320"):
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
    assert (model.apply_chat_template([*history[1:], {"role": "assistant", "content": "a"}], False) == "u|a")


def test_a_template_that_refuses(
    make: Callable[..., CTWorkerLM], tmp_path: Path, checkpoint: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """System messages are left out only if there are some, and only if that helps."""
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(checkpoint / file, tmp_path)
    template = "{% if messages | length > 1 %}{{ raise_exception('one at a time') }}{% endif %}{{ messages[0].content }}"
    (tmp_path / "chat_template.jinja").write_text(template)
    model = make(tokenizer=str(tmp_path))
    user = {"role": "user", "content": "u"}
    for history in ([user, user], [{"role": "system", "content": "s"}, user, user], [{"role": "system", "content": "s"}] * 2):
        with pytest.raises(ArgumentError, match=r"chat_template\.jinja, line 1: .* refuses the messages: one at a time;"):
            model.apply_chat_template(history)
    assert "left out" not in caplog.text
    assert model.apply_chat_template([{"role": "system", "content": "s"}, user]) == "u"
    assert caplog.text.count("system messages are left out, as with lm-eval's hf backend: ") == 1


def test_text_that_is_not_unicode(make: Callable[..., CTWorkerLM]) -> None:
    """Half of a surrogate pair, which JSON can spell, in each kind of request."""
    model, good, bad = make(), "a", "b\ud83d c"
    expected = r"request 1 \(task toy, document 1\): character \d is U\+D83D, half of a surrogate pair.*'replace'"
    with pytest.raises(ArgumentError, match=expected):
        model.loglikelihood(requests("loglikelihood", (good, good), (good, bad)), disable_tqdm=True)
    with pytest.raises(ArgumentError, match=expected):
        model.loglikelihood(requests("loglikelihood", (good, good), (bad, good)), disable_tqdm=True)
    with pytest.raises(ArgumentError, match=expected):
        model.loglikelihood_rolling(requests("loglikelihood_rolling", (good,), (bad,)), disable_tqdm=True)
    for encode in (model.tok_encode, model.tokenizer.encode, model.tokenizer.encode_starts):
        with pytest.raises(ArgumentError, match="a text to encode: character 1 is"):
            encode(bad)
    with pytest.raises(ArgumentError, match="text 1 of 2 to encode: character 1 is"):
        model.tokenizer.encode_batch([good, bad])


def test_thinking(make: Callable[..., CTWorkerLM]) -> None:
    model = make(enable_thinking=True)
    model.loglikelihood_rolling(requests("loglikelihood_rolling", ("a",)), disable_tqdm=True)
    with pytest.raises(ArgumentError, match="enable_thinking=True is not compatible.*toy"):
        model.loglikelihood(requests("loglikelihood", ("a", "b")), disable_tqdm=True)


def test_generation_is_refused(make: Callable[..., CTWorkerLM]) -> None:
    with pytest.raises(NotImplementedError, match="toy need"):
        make().generate_until(requests("generate_until", ("a", {})))


def test_endpoint(
    running_fake: Callable[..., str],
    checkpoint: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    url = running_fake("", "--max-length", "32")
    caplog.set_level(logging.INFO)
    model = CTWorkerLM(endpoint=url, threads=3)  # the tokenizer comes from the worker's own folder
    assert "without effect with endpoint= (the worker is already running): threads" in caplog.text
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
        ({"cpu_variant": "avx2"}, "runs toy"),
        ({"model": "nobody"}, "has no model 'nobody'"),
        ({"store": "s"}, "store=s: the worker .* has been started already"),
    ]:
        with pytest.raises(CtworkerError, match=words):
            CTWorkerLM(**{"endpoint": url, **given})
    with pytest.raises(CtworkerError, match=r"there is no .*nobody\.sock.*ctworker ps"):  # at once
        CTWorkerLM(endpoint=f"ipc://{tmp_path}/nobody.sock", pretrained=str(checkpoint))


def test_a_loading_worker_is_waited_for(running_fake: Callable[..., str], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert CTWorkerLM(endpoint=running_fake("loading=2")).max_length == 2048
    assert "is loading" in caplog.text
    with pytest.raises(CtworkerError, match=r"still loading after 0.5 s: weights.*load_timeout="):
        CTWorkerLM(endpoint=running_fake("loading=99"), load_timeout=0.5)
