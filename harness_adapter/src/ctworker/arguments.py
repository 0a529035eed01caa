"""The model arguments (`--model_args`): hf's names, our own names, and the treatment of each.

Every argument is used, noted (no effect here, logged once) or refused with the remedy.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import logging
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from . import spreading
from .errors import ArgumentError

log = logging.getLogger("lm_eval.ctworker")

#: The device that lm-eval's command line passes by default: it looks the same as a user's choice.
DEFAULT_DEVICE = "cuda:0"


@dataclass
class Settings:
    """The validated arguments that have an effect. None: not given."""

    pretrained: str | None = None
    tokenizer: str | None = None
    revision: str = "main"
    subfolder: str = ""
    dtype: str = "auto"
    activations: str | None = None  # none, checkpoint
    max_length: int | None = None
    add_bos_token: bool | None = None
    prefix_token_id: int | None = None
    chat_template_args: dict[str, Any] = field(default_factory=dict)
    enable_thinking: bool | None = None  # if given, also in chat_template_args
    token: str | bool | None = None
    cache_dir: str | None = None
    local_files_only: bool = False
    endpoint: str | None = None
    token_file: str | None = None
    model: str = ""
    backend: str = "auto"  # the worker's: auto, cpu, cuda
    device: int | None = None  # CUDA device number
    devices: str | None = None  # several CUDA devices: all, 0,1 or 0-3
    device_is_wish: bool = False  # the user chose the device: refuse rather than run elsewhere
    cpu_variant: str | None = None
    threads: int | None = None
    device_memory_limit: str | None = None  # of each device, for weights and passes: a size, or 50%
    memory_limit: str | None = None
    vocabulary: int | None = None  # probabilities over the first tokens only
    weights_limit: str | None = None  # memory for the weights; what does not fit is streamed
    host_memory_limit: str | None = None  # host memory for weights that the GPUs do not hold
    placement: str | None = None  # auto, mapped, resident, sharded, streamed
    store: str | None = None  # folder of the worker's result store
    store_limit: str | None = None
    hidden: str | None = None  # folder of the hidden states of references
    hidden_limit: str | None = None
    timeout: float = 120.0
    load_timeout: float | None = None
    worker_log: str | None = None


def _text(name: str, value: Any) -> str:
    if isinstance(value, (str, int, float)) and not isinstance(value, bool):
        return str(value)
    raise ArgumentError(f"{name}={value!r}: expected text")


def _path(name: str, value: Any) -> str:
    text = _text(name, value if isinstance(value, (str, int)) else str(value))
    if not text:
        raise ArgumentError(f"{name}='': expected a path (is a variable of the shell empty?)")
    return os.path.expanduser(text)  # a shell expands ~ only at the start of a word


def _checkpoint(name: str, value: Any) -> str:
    """A folder or a hub name, as the user wrote it: results record it."""
    _path(name, value)
    return str(value)


def _flag(name: str, value: Any) -> bool:
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if isinstance(value, bool) or value in (0, 1):
        return bool(value)
    raise ArgumentError(f"{name}={value!r}: expected True or False")


def _count(name: str, value: Any, least: int = 1) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        number = least - 1
    if isinstance(value, bool) or number < least or number != float(value):
        raise ArgumentError(f"{name}={value!r}: expected a whole number of at least {least}")
    return number


def _token_id(name: str, value: Any) -> int:
    return _count(name, value, 0)


def _seconds(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = -1.0
    if not number > 0:
        raise ArgumentError(f"{name}={value!r}: expected a number of seconds above 0")
    return number


def parse_dtype(name: str, value: Any) -> str:
    names = {
        "auto": "auto",
        "bfloat16": "bfloat16",
        "bf16": "bfloat16",
        "float16": "float16",
        "fp16": "float16",
        "half": "float16",
        "float32": "float32",
        "fp32": "float32",
        "float": "float32",
    }
    key = str(value).removeprefix("torch.")
    if key not in names:
        raise ArgumentError(f"{name}={value!r}: expected one of auto, bfloat16, float16, float32")
    return names[key]


def _activations(name: str, value: Any) -> str:
    if value not in ("none", "checkpoint"):
        raise ArgumentError(
            f"{name}={value!r}: expected none (only weights are quantised) or checkpoint (activations too, as it declares)"
        )
    return str(value)


def _bytes(name: str, value: Any) -> str:
    text = _text(name, value)
    if not re.fullmatch(r"\d+(\.\d+)?\s*(([KMGT]i?)?B)?", text, re.IGNORECASE):
        raise ArgumentError(f"{name}={value!r}: expected a size such as 20GiB")
    return text.replace(" ", "")


def _amount(name: str, value: Any) -> str:
    text = _text(name, value).replace(" ", "")
    if text.endswith("%"):
        with contextlib.suppress(ValueError):
            if 0 < float(text[:-1]) <= 100:
                return text
        raise ArgumentError(f"{name}={value!r}: expected a size such as 20GiB, or a share such as 90%")
    return _bytes(name, value)


def _devices(name: str, value: Any) -> str:
    """`all`, `0-3`, `0+2`; from Python also a list. lm_eval's command line splits its arguments at commas."""
    text = ",".join(map(str, value)) if isinstance(value, (list, tuple)) else _text(name, value)
    text = re.sub(r"\s*[+;,]\s*", ",", text.strip())
    one = r"(\d+(-\d+)?|(GPU|MIG)-[0-9a-fA-F-]+)"
    if text != "all" and not re.fullmatch(rf"{one}(,{one})*", text):
        raise ArgumentError(f"{name}={value!r}: expected all, or GPUs such as 0-3, 0+2 or GPU-6b0c")
    return text


def _mapping(name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, str):  # lm_eval's command line passes a string
        with contextlib.suppress(ValueError):
            value = json.loads(value)
    if isinstance(value, dict):
        return dict(value)
    raise ArgumentError(
        f"{name}={value!r}: expected a JSON mapping as a separate argument: --model_args pretrained=DIR "
        f"'{name}={{\"enable_thinking\": false}}'"
    )


_USED: dict[str, Callable[[str, Any], Any]] = {
    "pretrained": _checkpoint,
    "tokenizer": _checkpoint,
    "revision": _text,
    "subfolder": _text,
    "dtype": parse_dtype,
    "activations": _activations,
    "max_length": _count,
    "add_bos_token": _flag,
    "prefix_token_id": _token_id,
    "chat_template_args": _mapping,
    "enable_thinking": _flag,
    "token": lambda name, value: value if isinstance(value, bool) else _text(name, value),
    "cache_dir": _path,
    "local_files_only": _flag,
    "endpoint": _text,
    "token_file": _path,
    "model": _text,
    "devices": _devices,
    "cpu_variant": _text,
    "threads": _count,
    "device_memory_limit": _amount,
    "memory_limit": _bytes,
    "vocabulary": _count,
    "weights_limit": _bytes,
    "host_memory_limit": _bytes,
    "placement": _text,
    "store": _path,
    "store_limit": _bytes,
    "hidden": _path,
    "hidden_limit": _bytes,
    "timeout": _seconds,
    "load_timeout": _seconds,
    "worker_log": _path,
}

#: Other names of used arguments, from vLLM, SGLang and older lm-eval releases.
_ALIASES = {
    "max_model_len": "max_length",
    "context_length": "max_length",
    "torch_dtype": "dtype",
    "custom_prefix_token_id": "prefix_token_id",
    "tokenizer_path": "tokenizer",
    "url": "endpoint",
    "download_dir": "cache_dir",
}

#: Arguments without effect here: name -> reason. The value is ignored.
_NOTED = {
    "max_batch_size": "the worker packs all requests of a call",
    "logits_cache": "requests with equal contexts always get equal scores",
    "truncation": "lm-eval uses it for generation only; long inputs are truncated from the left, as with hf",
    "use_fast_tokenizer": "tokenizer.json is always used",
    "trust_remote_code": "no code of a checkpoint is ever run",
    "offload_folder": "weights that do not fit are read directly from the checkpoint",
    "attn_implementation": "the worker has a single, exact attention implementation",
    "low_cpu_mem_usage": "weights stay compressed and memory-mapped",
    "max_gen_toks": "nothing is generated",
    "think_end_token": "nothing is generated",
    "tokenizer_mode": "tokenizer.json is always used",
    "code_revision": "no code of a checkpoint is ever run",
    "enforce_eager": "an argument of another backend",
    "swap_space": "an argument of another backend",
    "max_num_seqs": "the worker packs all requests of a call",
    "max_num_batched_tokens": "the worker packs all requests of a call",
    "enable_prefix_caching": "an argument of another backend",
    "disable_log_stats": "an argument of another backend",
    "seed": "nothing is drawn at random",
    "nccl_port": "an argument of another backend",
}

#: Arguments refused unless the value switches them off: name -> (values accepted, remedy).
_OFF = (None, False, "", "None", "none", "False", "false", 0)
_REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "peft": (
        _OFF,
        "merge the adapter into the checkpoint first (peft's merge_and_unload) and score that",
    ),
    "lora_local_path": (_OFF, "merge the adapter into the checkpoint first and score that"),
    "delta": (_OFF, "add the delta to the base weights first and score the result"),
    "autogptq": (
        _OFF,
        "the checkpoint declares its quantisation, and the worker reads GPTQ's files; leave this argument out",
    ),
    "gptqmodel": (
        _OFF,
        "the checkpoint declares its quantisation, and the worker reads GPTQ's files; leave this argument out",
    ),
    "gguf_file": (
        _OFF,
        "this worker reads safetensors; use the checkpoint that the GGUF file was made from",
    ),
    "quantization_config": (
        _OFF,
        "nothing is quantised while loading; score a quantised checkpoint",
    ),
    "load_in_8bit": (_OFF, "nothing is quantised while loading; score a quantised checkpoint"),
    "load_in_4bit": (_OFF, "nothing is quantised while loading; score a quantised checkpoint"),
    "quantization": (
        (*_OFF, "compressed-tensors"),
        "the checkpoint declares its quantisation; leave this argument out",
    ),
    "mixed_precision_dtype": (_OFF, "use dtype= for the dtype of activations"),
    "softmax_dtype": (
        (*_OFF, "float32", "torch.float32"),
        "log-probabilities are always float32 and their sums float64; leave this argument out",
    ),
    "tp_plan": (
        _OFF,
        "start lm_eval without torchrun and leave this argument out; the worker distributes work over its devices itself",
    ),
    "use_safetensors": ((None, True, "True", "true", 1), "only safetensors files are read"),
    "variant": (_OFF, "download that variant's files to a folder and pass the folder as pretrained="),
    "rope_scaling": (_OFF, "set it in the checkpoint's config.json"),
    "attn_logit_softcapping": (_OFF, "set it in the checkpoint's config.json"),
    "steer_path": (_OFF, "steering needs lm-eval's own 'steered' model"),
}


def parse(given: dict[str, Any], *, wishes: set[str] | None = None) -> Settings:
    """Checks every argument and returns the arguments that have an effect.

    given: the constructor's keyword arguments. wishes: names of the arguments that the user wrote (in
    --model_args), without lm-eval's own defaults.
    Raises an ArgumentError that names the argument, the value found, the value expected, and the remedy.
    """
    settings = Settings()
    wishes = set(given) if wishes is None else wishes
    noted = _take(settings, given)
    if settings.enable_thinking is not None:
        settings.chat_template_args["enable_thinking"] = settings.enable_thinking
    _backend(given.get("backend"))
    _batch_size(given.get("batch_size"), noted)
    _device(settings, given.get("device"), wish="device" in wishes)
    if settings.devices is not None and (settings.backend == "cpu" or settings.device is not None):
        raise ArgumentError(
            f"device={given.get('device')} and devices={settings.devices}: pass only one of them"
        )
    spreading.understand(settings, given, _count, _bytes)
    if settings.pretrained is None and settings.endpoint is None:
        raise ArgumentError(
            "no model: pass --model_args pretrained=DIR_OR_HUB_NAME, or endpoint=ipc://... of a "
            "running worker"
        )
    _folders(settings)
    noted = {
        name: why
        for name, why in noted.items()
        if name == "batch_size" or (name in wishes and given[name] not in (None, False))
    }
    if noted:
        log.info(
            "arguments without effect: %s",
            "; ".join(f"{name} ({why})" for name, why in sorted(noted.items())),
        )
    return settings


def _take(settings: Settings, given: dict[str, Any]) -> dict[str, str]:
    """Sets the arguments that have an effect, and returns the others with the reason why they have none. Raises
    ArgumentError. parse() itself treats device, backend and batch_size."""
    noted: dict[str, str] = {}
    origin: dict[str, str] = {}
    for name, value in given.items():
        target = _ALIASES.get(name, name)
        if target in _USED:
            if value is None or value == "None":
                continue
            parsed = _USED[target](name, value)
            if target in origin and getattr(settings, target) != parsed:
                raise ArgumentError(
                    f"{origin[target]}={getattr(settings, target)} and {name}={parsed} are the same "
                    "argument with two values: pass only one of them"
                )
            origin[target] = name
            setattr(settings, target, parsed)
        elif name in _NOTED:
            noted[name] = _NOTED[name]
        elif name in _REFUSED:
            _refuse(name, value)
        elif name not in ("device", "backend", "batch_size", *spreading.NAMES):
            raise ArgumentError(_unknown(name))
    return noted


def _refuse(name: str, value: Any) -> None:
    """Raises ArgumentError with the remedy, unless the value switches the argument off."""
    harmless, remedy = _REFUSED[name]
    found = str(value) if name.endswith("_dtype") else value  # a torch dtype, from Python
    if not any(
        found is allowed or (type(found) is type(allowed) and found == allowed) for allowed in harmless
    ):
        raise ArgumentError(
            f"argument '{name}' ({name}={value}) is not supported by ctworker: {remedy}"
        )


def check_one_process() -> None:
    """Raises ArgumentError under torchrun, accelerate launch and the like: each process would score everything."""
    size = os.environ.get("WORLD_SIZE", "")
    if size.isdigit() and int(size) > 1:
        raise ArgumentError(
            f"WORLD_SIZE={size}: lm_eval was started as one of {size} processes (torchrun, accelerate launch), and "
            "each process would score all requests: start a single lm_eval without a launcher, or unset WORLD_SIZE"
        )


def _unknown(name: str) -> str:
    known = sorted({*_USED, *_ALIASES, *_NOTED, *_REFUSED, *spreading.NAMES, "device", "backend", "batch_size"})
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
    hint = (
        f"did you mean '{close[0]}'?"
        if close
        else f"the known arguments are {', '.join(sorted([*_USED, 'device', 'batch_size']))}"
    )
    return f"argument '{name}' is unknown to ctworker: {hint}"


def _backend(value: Any) -> None:
    if value not in (None, "None", "default", "causal"):
        raise ArgumentError(
            f"backend={value}: only decoder-only models are scored; expected default or causal "
            "(device=cpu or device=cuda:N chooses the worker's own backend)"
        )


def _batch_size(value: Any, noted: dict[str, str]) -> None:
    if value is None or str(value) == "1" or re.fullmatch(r"auto(:\d+(\.\d+)?)?", str(value)):
        return
    _count("batch_size", value)
    noted["batch_size"] = "the worker packs all requests of a call, and no score depends on it"


def _folders(settings: Settings) -> None:
    """The folders in which our own worker keeps results."""
    for name in ("store", "hidden"):
        folder, limit = getattr(settings, name), getattr(settings, f"{name}_limit")
        if settings.endpoint is not None and folder is not None:
            raise ArgumentError(
                f"{name}={folder}: the worker at endpoint={settings.endpoint} has been started already; start it with "
                f"`ctworker serve --{name} DIR`, or leave endpoint= out"
            )
        if limit is not None and folder is None:
            raise ArgumentError(f"{name}_limit={limit} needs {name}=DIR")
        if folder is not None:
            setattr(settings, name, os.path.abspath(folder))


def _device(settings: Settings, value: Any, *, wish: bool) -> None:
    """device=cuda:0 is lm-eval's default, so it is a user's choice only in --model_args. Any other value is always a choice."""
    if value is None or value in ("None", "auto", ""):
        return
    text = str(value)
    if not wish and text == DEFAULT_DEVICE:
        return
    settings.device_is_wish = True
    if text == "cpu":
        settings.backend = "cpu"
        return
    match = re.fullmatch(r"cuda(?::(\d+))?", text) or re.fullmatch(r"(\d+)", text)
    if not match:
        raise ArgumentError(f"device={value}: expected cpu, cuda, cuda:N or auto")
    settings.backend = "cuda"
    settings.device = int(match[1]) if match[1] is not None else None
