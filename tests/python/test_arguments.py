"""Model arguments: hf's names, refusals, devices."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from ctworker.arguments import check_one_process, parse
from ctworker.errors import ArgumentError


def test_hf_names_work() -> None:
    settings = parse(
        {
            "pretrained": "dir", "tokenizer": "tok", "revision": 7, "subfolder": "", "dtype": "float32",
            "max_length": 2048, "batch_size": "auto:4", "max_batch_size": 64, "device": "cpu",
            "add_bos_token": None, "prefix_token_id": 5, "trust_remote_code": True, "truncation": False,
            "softmax_dtype": "float32", "logits_cache": True, "use_fast_tokenizer": True,
            "backend": "causal", "parallelize": False, "peft": None, "delta": None, "autogptq": False,
            "gguf_file": None, "mixed_precision_dtype": None, "think_end_token": None,
        }
    )  # fmt: skip
    assert settings.pretrained == "dir" and settings.tokenizer == "tok" and settings.revision == "7"
    assert (
        settings.dtype == "float32"
        and settings.max_length == 2048
        and settings.prefix_token_id == 5
    )
    assert settings.backend == "cpu" and settings.add_bos_token is None


@pytest.mark.parametrize(
    "value", ['{"enable_thinking": false, "x": 1}', {"enable_thinking": False, "x": 1}]
)
def test_chat_template_args(value: object) -> None:
    settings = parse({"pretrained": "d", "chat_template_args": value})
    assert settings.chat_template_args == {"enable_thinking": False, "x": 1}
    assert settings.enable_thinking is None
    settings = parse({"pretrained": "d", "chat_template_args": value, "enable_thinking": "True"})
    assert settings.chat_template_args == {"enable_thinking": True, "x": 1}
    assert settings.enable_thinking is True


def test_the_home_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A shell leaves ~ as it is within --model_args; a name that results record is kept as written."""
    monkeypatch.setenv("HOME", str(tmp_path))
    given = dict.fromkeys(("pretrained", "token_file", "cache_dir", "worker_log"), "~/x")
    settings = parse(given)
    assert settings.token_file == settings.cache_dir == settings.worker_log == f"{tmp_path}/x"
    assert settings.pretrained == "~/x"


def test_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for size in ("", "1"):
        monkeypatch.setenv("WORLD_SIZE", size)
        check_one_process()
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(ArgumentError, match="WORLD_SIZE=4.*torchrun"):
        check_one_process()


@pytest.mark.parametrize("value", [True, "True", 1])
def test_add_bos_token(value: object) -> None:
    assert parse({"pretrained": "d", "add_bos_token": value}).add_bos_token is True


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"peft": "lora"}, ["'peft'", "merge"]),
        ({"delta": "x"}, ["'delta'"]),
        ({"gguf_file": "x.gguf"}, ["'gguf_file'", "safetensors"]),
        ({"autogptq": True}, ["'autogptq'"]),
        ({"load_in_4bit": True}, ["'load_in_4bit'"]),
        ({"softmax_dtype": "bfloat16"}, ["'softmax_dtype'", "float32"]),
        ({"mixed_precision_dtype": "float16"}, ["'mixed_precision_dtype'", "dtype="]),
        ({"tensor_parallel_size": 0}, ["tensor_parallel_size=0"]),
        ({"devices": "0 1"}, ["devices='0 1'", "0-3"]),
        ({"devices": "all", "device": "cpu"}, ["device=cpu and devices=all"]),
        ({"pretraned": "x"}, ["'pretraned' is unknown", "did you mean 'pretrained'"]),
        ({"qqqq": 1}, ["'qqqq' is unknown", "pretrained"]),
        ({"backend": "seq2seq"}, ["backend=seq2seq", "causal"]),
        ({"dtype": "int8"}, ["dtype='int8'", "bfloat16"]),
        ({"activations": "fp8"}, ["activations='fp8'", "none", "checkpoint"]),
        ({"max_length": 0}, ["max_length=0"]),
        ({"max_length": "long"}, ["max_length='long'"]),
        ({"max_length": float("inf")}, ["max_length=inf"]),
        (
            {"max_length": 5, "max_model_len": 6},
            ["max_length=5", "max_model_len=6", "same argument"],
        ),
        ({"device": "tpu"}, ["device=tpu", "cuda:N"]),
        ({"timeout": -1}, ["timeout=-1"]),
        ({"memory_limit": "much"}, ["memory_limit='much'", "20GiB"]),
        ({"memory_limit": "20G"}, ["memory_limit='20G'", "20GiB"]),
        ({"store_limit": "1GiB"}, ["store_limit=1GiB needs store=DIR"]),
        ({"store": ""}, ["store=''", "expected a path"]),
        ({"batch_size": "many"}, ["batch_size='many'"]),
        ({"pretrained": ""}, ["pretrained=''", "variable of the shell"]),
        ({"tokenizer": ""}, ["tokenizer=''"]),
        ({"worker_log": ""}, ["worker_log=''"]),
        ({"add_bos_token": "maybe"}, ["add_bos_token='maybe'"]),
        ({"chat_template_args": "thinking"}, ["chat_template_args='thinking'", "JSON"]),
    ],
)
def test_refusals_name_the_argument(arguments: dict, words: list[str]) -> None:
    with pytest.raises(ArgumentError) as caught:
        parse({"pretrained": "d", **arguments})
    for word in words:
        assert word in str(caught.value)


class TorchDtype:
    """Prints like a torch dtype."""

    def __str__(self) -> str:
        return "torch.float32"


def test_dtypes_of_torch() -> None:
    given = {"pretrained": "d", "dtype": TorchDtype(), "softmax_dtype": TorchDtype()}
    assert parse(given).dtype == "float32"
    with pytest.raises(ArgumentError, match=r"mixed_precision_dtype=torch\.float32"):
        parse({"pretrained": "d", "mixed_precision_dtype": TorchDtype()})


def test_a_model_is_needed() -> None:
    with pytest.raises(ArgumentError, match="pretrained="):
        parse({})
    assert parse({"endpoint": "ipc:///x"}).pretrained is None


@pytest.mark.parametrize(
    ("device", "written", "backend", "number", "wish"),
    [
        ("cuda:0", False, "auto", None, False),  # lm-eval's own default
        ("cuda:0", True, "cuda", 0, True),
        ("cuda:1", True, "cuda", 1, True),
        ("cuda", True, "cuda", None, True),
        (1, True, "cuda", 1, True),
        ("cpu", True, "cpu", None, True),
        ("auto", True, "auto", None, False),
        (None, True, "auto", None, False),
    ],
)
def test_device(
    device: object, written: bool, backend: str, number: int | None, wish: bool
) -> None:
    wishes = {"pretrained", "device"} if written else {"pretrained"}
    settings = parse({"pretrained": "d", "device": device}, wishes=wishes)
    assert (settings.backend, settings.device, settings.device_is_wish) == (backend, number, wish)


def test_harmless_arguments_are_noted_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    parse(
        {"pretrained": "d", "logits_cache": True, "attn_implementation": "sdpa", "batch_size": 16}
    )
    (record,) = caplog.records
    for name in ("logits_cache", "attn_implementation", "batch_size"):
        assert name in record.getMessage()


def test_defaults_of_lm_eval_are_not_noted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    parse({"pretrained": "d", "batch_size": 1, "max_batch_size": 64}, wishes={"pretrained"})
    assert not caplog.records


@pytest.mark.parametrize(
    ("given", "devices"),
    [
        ({"devices": "all"}, "all"),
        ({"devices": "0+2"}, "0,2"),
        ({"devices": [0, 2]}, "0,2"),
        ({"devices": "0-3"}, "0-3"),
        ({"parallelize": True}, "all"),
        ({"parallelize": "True"}, "all"),
        ({"parallelize": False}, None),
        ({"device_map": "auto"}, "all"),
        ({"device_map": "cuda:0"}, None),
        ({"tensor_parallel_size": 2}, "0-1"),
        ({"tensor_parallel_size": "2", "data_parallel_size": 4}, "0-7"),
        ({"tensor_parallel_size": 1}, None),
        ({"tensor_parallel_size": 4, "devices": "0-1"}, "0-1"),
        ({"parallelize": True, "device": "cpu"}, None),
    ],
)
def test_several_devices(given: dict[str, object], devices: str | None) -> None:
    assert parse({"pretrained": "d", **given}).devices == devices
