"""The model arguments (`--model_args`): hf's names, our own names, and the treatment of each.

Every argument is used, noted (no effect here, logged once) or refused with the remedy.
"""

from __future__ import annotations

import difflib
import logging
import os
import re
from typing import Any

from ..base.errors import ArgumentError
from . import spreading, values
from .settings import OPTIONS, On, Settings, options_on

log = logging.getLogger("lm_eval.ctworker")

#: The device that lm-eval's command line passes by default: it looks the same as a user's choice.
DEFAULT_DEVICE = "cuda:0"


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

#: Arguments refused unless the value switches them off: name -> remedy.
_REFUSED = {
    "peft": "merge the adapter into the checkpoint first (peft's merge_and_unload) and score that",
    "lora_local_path": "merge the adapter into the checkpoint first and score that",
    "delta": "add the delta to the base weights first and score the result",
    "autogptq": "the checkpoint declares its quantisation, and the worker reads GPTQ's files; leave this argument out",
    "gptqmodel": "the checkpoint declares its quantisation, and the worker reads GPTQ's files; leave this argument out",
    "quantization_config": "nothing is quantised while loading; score a quantised checkpoint",
    "load_in_8bit": "nothing is quantised while loading; score a quantised checkpoint",
    "load_in_4bit": "nothing is quantised while loading; score a quantised checkpoint",
    "quantization": "the checkpoint declares its quantisation; leave this argument out",
    "mixed_precision_dtype": "use dtype= for the dtype of activations",
    "softmax_dtype": "log-probabilities are always float32 and their sums float64; leave this argument out",
    "tp_plan": "start lm_eval without torchrun and leave this argument out; the worker distributes work over its devices itself",
    "use_safetensors": "only safetensors files are read",
    "variant": "download that variant's files to a folder and pass the folder as pretrained=",
    "rope_scaling": "set it in the checkpoint's config.json",
    "attn_logit_softcapping": "set it in the checkpoint's config.json",
    "steer_path": "steering needs lm-eval's own 'steered' model",
}
#: Values that switch an argument off, and other harmless values of some arguments.
_OFF = (None, False, "", "None", "none", "False", "false", 0)
_HARMLESS: dict[str, tuple[Any, ...]] = {
    "quantization": (*_OFF, "compressed-tensors"),
    "softmax_dtype": (*_OFF, "float32", "torch.float32"),
    "use_safetensors": (None, True, "True", "true", 1),
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
    _device(settings, wish="device" in wishes)
    if settings.devices is not None and (settings.backend == "cpu" or settings.gpu is not None):
        raise ArgumentError(
            f"device={given.get('device')} and devices={settings.devices}: pass only one of them"
        )
    spreading.understand(settings, given)
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
    ArgumentError. parse() itself treats backend and batch_size."""
    noted: dict[str, str] = {}
    origin: dict[str, str] = {}
    for name, value in given.items():
        target = _ALIASES.get(name, name)
        if target in OPTIONS:
            if value is None or value == "None":
                continue
            parsed = OPTIONS[target].read(name, value)
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
        elif name not in ("backend", "batch_size", *spreading.NAMES):
            raise ArgumentError(_unknown(name))
    return noted


def _refuse(name: str, value: Any) -> None:
    """Raises ArgumentError with the remedy, unless the value switches the argument off."""
    harmless = _HARMLESS.get(name, _OFF)
    found = str(value) if name.endswith("_dtype") else value  # a torch dtype, from Python
    if not any(found is allowed or (type(found) is type(allowed) and found == allowed) for allowed in harmless):
        raise ArgumentError(f"argument '{name}' ({name}={value}) is not supported by ctworker: {_REFUSED[name]}")


def check_one_process() -> None:
    """Raises ArgumentError under torchrun, accelerate launch and the like: each process would score everything."""
    size = os.environ.get("WORLD_SIZE", "")
    if size.isdigit() and int(size) > 1:
        raise ArgumentError(
            f"WORLD_SIZE={size}: lm_eval was started as one of {size} processes (torchrun, accelerate launch), and "
            "each process would score all requests: start a single lm_eval without a launcher, or unset WORLD_SIZE"
        )


def _unknown(name: str) -> str:
    known = sorted({*OPTIONS, *_ALIASES, *_NOTED, *_REFUSED, *spreading.NAMES, "backend", "batch_size"})
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
    hint = (
        f"did you mean '{close[0]}'?"
        if close
        else f"the known arguments are {', '.join(sorted([*(option.name for option in options_on(On.LM_EVAL)), 'batch_size']))}"
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
    values.count("batch_size", value)
    noted["batch_size"] = "the worker packs all requests of a call, and no score depends on it"


def _folders(settings: Settings) -> None:
    """The folders of our own worker: those in which results are kept, and that of a configuration."""
    for name in ("store", "hidden", "config"):
        folder, limit = getattr(settings, name), getattr(settings, f"{name}_limit", None)
        if settings.endpoint is not None and folder is not None:
            raise ArgumentError(
                f"{name}={folder}: the worker at endpoint={settings.endpoint} has been started already; start it with "
                f"`ctworker serve --{name} DIR`, or leave endpoint= out"
            )
        if limit is not None and folder is None:
            raise ArgumentError(f"{name}_limit={limit} needs {name}=DIR")
        if folder is not None and name != "config":  # which may be a hub name
            setattr(settings, name, os.path.abspath(folder))


def _device(settings: Settings, *, wish: bool) -> None:
    """device=cuda:0 is lm-eval's default, so it is a user's choice only in --model_args. Any other value is always a choice."""
    if settings.device is None or (not wish and settings.device == DEFAULT_DEVICE):
        return
    settings.device_is_wish = True
    kind, _, number = settings.device.rpartition(":")
    if settings.device.isdigit() or kind:
        settings.backend, settings.gpu = "cuda", int(number)
    else:
        settings.backend = settings.device
