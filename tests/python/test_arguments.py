"""Model arguments: hf's names, refusals, devices."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from ctworker.base.errors import ArgumentError
from ctworker.options.arguments import check_one_process, parse


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
    assert (settings.dtype == "float32" and settings.max_length == 2048 and settings.prefix_token_id == 5)
    assert settings.backend == "cpu" and settings.add_bos_token is None


@pytest.mark.parametrize("value", ['{"enable_thinking": false, "x": 1}', {"enable_thinking": False, "x": 1}])
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
        ({"max_length": 5, "max_model_len": 6}, ["max_length=5", "max_model_len=6", "same argument"]),
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
def test_device(device: object, written: bool, backend: str, number: int | None, wish: bool) -> None:
    wishes = {"pretrained", "device"} if written else {"pretrained"}
    settings = parse({"pretrained": "d", "device": device}, wishes=wishes)
    assert (settings.backend, settings.gpu, settings.device_is_wish) == (backend, number, wish)


def test_harmless_arguments_are_noted_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    parse({"pretrained": "d", "logits_cache": True, "attn_implementation": "sdpa", "batch_size": 16})
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
        ({"devices": "GPU-6b0c+1"}, "GPU-6b0c,1"),
        ({"parallelize": True}, "all"),
        ({"parallelize": "True"}, "all"),
        ({"parallelize": False}, None),
        ({"device_map": "auto"}, "all"),
        ({"device_map": "balanced_low_0"}, "all"),
        ({"device_map": "cuda:0"}, None),
        ({"device_map": {"model.embed_tokens": 0, "model.layers": 2, "lm_head": "disk"}}, "0,2"),
        ({"device_map": "auto", "max_memory": {0: "20GiB", 3: "20GiB", "cpu": "60GiB"}}, "0,3"),
        ({"parallelize": True, "devices": "1+2"}, "1,2"),
        ({"tensor_parallel_size": 2}, "0-1"),
        ({"tensor_parallel_size": "2", "data_parallel_size": 4}, "0-7"),
        ({"tensor_parallel_size": 1}, None),
        ({"tensor_parallel_size": 4, "devices": "0-2+7"}, "0-2,7"),
        ({"tensor_parallel_size": 2, "device": "cpu"}, None),
        ({"parallelize": True, "device": "cpu"}, None),
    ],
)
def test_several_devices(given: dict[str, object], devices: str | None) -> None:
    assert parse({"pretrained": "d", **given}).devices == devices


@pytest.mark.parametrize(
    ("given", "want"),
    [
        ({"gpu_memory_utilization": 0.5}, {"device_memory_limit": "50%"}),
        ({"gpu_memory_utilization": "0.925"}, {"device_memory_limit": "92.5%"}),
        ({"gpu_memory_utilization": 0.5, "device_memory_limit": "50 %"}, {"device_memory_limit": "50%"}),
        ({"gpu_memory_utilization": 0.5, "device": "cpu"}, {"backend": "cpu", "device_memory_limit": None}),
        ({"device_memory_limit": "20GiB"}, {"device_memory_limit": "20GiB"}),
        ({"parallelize": True, "max_memory_per_gpu": "20GiB", "max_cpu_memory": "60GiB"},
         {"devices": "all", "device_memory_limit": "20GiB", "host_memory_limit": "60GiB"}),
        ({"max_cpu_memory": "60GiB", "device": "cpu"}, {"device_memory_limit": "60GiB", "host_memory_limit": None}),
        ({"max_memory": {0: "20GiB", "cpu": "60GiB"}},
         {"backend": "cuda", "gpu": 0, "devices": None, "device_memory_limit": "20GiB", "host_memory_limit": "60GiB"}),
        ({"max_memory": '{"0": "20GiB", "1": "20GiB"}'}, {"devices": "0,1", "host_memory_limit": None}),
        ({"max_memory": {0: 0, 1: 5000, "disk": "1TB"}}, {"gpu": 1, "device_memory_limit": "5000"}),
        ({"max_memory": {"cpu": "60GiB"}}, {"backend": "cpu", "gpu": None, "device_memory_limit": "60GiB"}),
        ({"tensor_parallel_size": 2}, {"devices": "0-1", "placement": None}),
        ({"data_parallel_size": 2}, {"devices": "0-1", "placement": "resident"}),
        ({"data_parallel_size": 2, "placement": "auto"}, {"placement": "auto"}),
        ({"data_parallel_size": 2, "tensor_parallel_size": 2}, {"devices": "0-3", "placement": None}),
        ({"data_parallel_size": 2, "devices": "4+6"}, {"devices": "4,6", "placement": "resident"}),
        ({"device_map": {"": 1}}, {"backend": "cuda", "gpu": 1, "device_is_wish": True}),
        ({"device_map": 0}, {"backend": "cuda", "gpu": 0}),
        ({"device_map": '{"": "cuda:3"}'}, {"gpu": 3}),
        ({"device_map": "cpu"}, {"backend": "cpu", "gpu": None}),
        ({"device_map": {"a": "cuda:0", "b": "cpu"}}, {"backend": "cuda", "gpu": 0}),
        ({"device_map": None, "max_memory": None, "gpu_memory_utilization": "None"}, {"backend": "auto", "devices": None}),
    ],
)  # fmt: skip
def test_words_of_other_backends(given: dict[str, object], want: dict[str, object]) -> None:
    settings = vars(parse({"pretrained": "d", **given}))
    assert {name: settings[name] for name in want} == want


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"gpu_memory_utilization": 1.5}, r"gpu_memory_utilization=1\.5: expected a share"),
        ({"gpu_memory_utilization": "half"}, r"expected a share"),
        ({"gpu_memory_utilization": True}, r"expected a share"),
        ({"gpu_memory_utilization": 0.5, "device_memory_limit": "20GiB"}, r"means device_memory_limit=50%, which is 20GiB"),
        ({"gpu_memory_utilization": 0.5, "max_memory_per_gpu": "9GiB"}, r"max_memory_per_gpu=9GiB means .*50% already"),
        ({"device_memory_limit": "0%"}, r"a share such as 90%"),
        ({"device_memory_limit": "twelve"}, r"a size such as"),
        ({"max_memory": "20GiB"}, r"expected a mapping such as"),
        ({"max_memory": {0: "much"}}, r"max_memory\[0\]='much': expected a size"),
        ({"max_memory": {"tpu": "1GiB"}}, r"'tpu' is no device"),
        ({"max_memory": {0: 0}}, r"no device gets any memory"),
        ({"max_memory": {0: "20GiB", 1: "40GiB"}}, r"have one limit"),
        ({"max_memory": {0: "20GiB", 1: "20GiB"}, "devices": "0-3"}, r"devices=0-3 and max_memory=.* different devices"),
        ({"max_memory": {0: "20GiB"}, "device": "cpu"}, r"device=cpu means the CPU, and max_memory=.* means GPUs"),
        ({"tensor_parallel_size": 4, "devices": "0-1"}, r"tensor_parallel_size=4 means 4 GPUs, and devices=0-1 means 2"),
        ({"tensor_parallel_size": 2, "device": "cuda:1"}, r"tensor_parallel_size=2 means 2 GPUs, and device=cuda:1 means 1"),
        ({"tensor_parallel_size": 2, "data_parallel_size": 3, "devices": "0-3"},
         r"tensor_parallel_size=2 and data_parallel_size=3 means 6 GPUs"),
        ({"device_map": "cuda:1", "device": "cuda:2"}, r"device=cuda:2 and device_map=cuda:1 mean different devices"),
        ({"device_map": "cuda:1", "device": "cpu"}, r"device=cpu means the CPU"),
        ({"device_map": "tpu"}, r"device_map='tpu': expected auto"),
        ({"device_map": {"a": "meta"}}, r"expected auto"),
        ({"device_map": {"a": "disk"}}, r"names no device that computes"),
    ],
)  # fmt: skip
def test_contradictions_of_other_backends_words(given: dict[str, object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        parse({"pretrained": "d", **given})


def test_words_of_other_backends_are_noted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    parse({"pretrained": "d", "tensor_parallel_size": 2, "gpu_memory_utilization": 0.5})
    parse({"endpoint": "ipc:///x", "tensor_parallel_size": 2})
    first, second = (record.getMessage() for record in caplog.records)
    assert first == "tensor_parallel_size=2, gpu_memory_utilization=0.5: devices=0-1, device_memory_limit=50%"
    assert second == "without effect with endpoint= (the worker is already running): tensor_parallel_size"
