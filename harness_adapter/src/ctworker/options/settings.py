"""The options of a model and of its worker. Each is stated here once: its name, type, default, reader, the user interfaces
that have it, and its description. lm-eval's --model_args, the command lines, a sweep file's keys, the command line of the
worker, messages (spelling.py) and the tables in docs/ derive from this table; `Worker` and `Client` write their parameters
out, because editors and type checkers read the source, and a test compares them with the table."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from enum import Flag, auto
from typing import Any

from . import values


class On(Flag):
    """User interfaces, each of which spells an option in its own way."""

    LM_EVAL = auto()  # name=VALUE in --model_args
    WORKER = auto()  # parameter of Worker
    CLIENT = auto()  # parameter of Client
    PPL = auto()  # --name VALUE of ctworker-ppl
    COMPARE = auto()  # --name VALUE of ctworker-compare
    SWEEP = auto()  # name: VALUE under `options:` of a sweep file
    SERVE = auto()  # --name VALUE of `ctworker serve` and `ctworker inspect`, that our own worker gets


_COMMANDS = On.PPL | On.COMPARE
_HERE = On.LM_EVAL | On.WORKER | _COMMANDS
_ALL = _HERE | On.SWEEP | On.SERVE


@dataclass(frozen=True)
class Option:
    """One option. read(name, value): its reader (values.py); on: the user interfaces that have it; help: one phrase, in which
    `more` continues for docs/ only (Markdown); metavar: the value in a command's help; choices: the words that the value may
    be; flag: of the commands, if it is not --name."""

    name: str
    read: Callable[[str, Any], Any]
    on: On
    help: str
    more: str
    metavar: str
    choices: tuple[str, ...]
    flag: str
    default: Any


def _option(
    default: Any, read: Callable[[str, Any], Any], on: On, help: str, *, more: str = "", metavar: str = "",
    choices: tuple[str, ...] = (), flag: str = "",
) -> Any:  # fmt: skip
    given = {"read": read, "on": on, "help": help, "more": more, "metavar": metavar, "choices": choices, "flag": flag}
    if isinstance(default, dict):
        return dataclasses.field(default_factory=default.copy, metadata=given)
    return dataclasses.field(default=default, metadata=given)


_ACTIVATIONS = {"none": "only weights are quantised", "checkpoint": "activations, too, as the checkpoint declares"}
_PLACEMENTS = dict.fromkeys(("auto", "mapped", "resident", "sharded", "streamed"), "")
_VARIANTS = dict.fromkeys(("auto", "c", "avx2", "avx512", "avx512bf16", "amx"), "")


@dataclass
class Settings:
    """The validated options. None: not given."""

    pretrained: str | None = _option(
        None, values.checkpoint, On.LM_EVAL, "checkpoint folder, GGUF file or hub name",
        more="from a hub repository, only `config.json`, `model*.safetensors`, their index, tokenizer files and chat templates "
        "are downloaded",
    )
    endpoint: str | None = _option(
        None, values.text, On.LM_EVAL | On.CLIENT | _COMMANDS, "use this running worker instead of starting one", metavar="URL",
        more="`ipc:///path` or `tcp://host:port`; `pretrained` is then optional",
    )
    model: str = _option(
        "", values.text, On.LM_EVAL | On.CLIENT | On.PPL, "the name of one of the running worker's models (default: its first)",
        metavar="NAME", flag="--model-name", more="in lm-eval, the default is the model that matches `pretrained`, else the first",
    )
    token_file: str | None = _option(
        None, values.path, On.LM_EVAL | On.CLIENT | _COMMANDS, "file with the token of a worker on tcp://", metavar="FILE",
        more="the last word of its first line; default: the token in `CTW_TOKEN`",
    )
    tokenizer: str | None = _option(
        None, values.checkpoint, _HERE | On.CLIENT, "folder or hub name of the tokenizer (default: the model's)", metavar="DIR",
    )
    revision: str = _option("main", values.text, _HERE, "branch, tag or commit of a hub name", metavar="NAME")
    subfolder: str = _option(
        "", values.text, On.LM_EVAL | On.WORKER, "subfolder of the checkpoint and of the tokenizer",
        more="in local folders and hub repositories, as with hf",
    )
    gguf_file: str | None = _option(
        None, values.text, On.LM_EVAL | On.WORKER, "GGUF file of the folder or hub repository",
        more="as in transformers; of a model in several files, any of them",
    )
    config: str | None = _option(
        None, values.checkpoint, On.LM_EVAL | On.WORKER | On.PPL | On.SERVE, "folder or hub name of the original of a GGUF model, "
        "for its configuration and tokenizer", metavar="DIR", more="both must agree with the file's metadata: a key or a token "
        "that differs is refused by name. The original has what metadata omit, such as Mistral's windows",
    )
    token: str | bool | None = _option(
        None, values.secret, On.LM_EVAL | On.WORKER, "token for the hub", more="default: `HF_TOKEN`, or the stored login"
    )
    cache_dir: str | None = _option(
        None, values.path, On.LM_EVAL | On.WORKER, "the hub's cache", more="default: huggingface_hub's"
    )
    local_files_only: bool = _option(
        False, values.flag, On.LM_EVAL | On.WORKER, "never download", more="`HF_HUB_OFFLINE=1` works, too"
    )
    dtype: str = _option(
        "auto", values.dtype, _ALL, "dtype of activations (float32: reference mode)", choices=tuple(values.DTYPES),
        more="`auto`: the checkpoint's own",
    )
    activations: str | None = _option(
        None, values.choice(_ACTIVATIONS), _ALL, "what is quantised besides the weights (checkpoint: activations, as the "
        "checkpoint declares)", choices=tuple(_ACTIVATIONS), more="default: `none` ([FORMATS.md](FORMATS.md))",
    )
    max_length: int | None = _option(
        None, values.count, _ALL, "longest model input in tokens (default: the model's own maximum)", metavar="N",
        more="in lm-eval for BLOOM and MPT, as with hf: the tokenizer's `model_max_length`, else 2048",
    )
    add_bos_token: bool | None = _option(
        None, values.flag, On.LM_EVAL | On.SWEEP, "whether texts get a BOS", more="`None`: the tokenizer decides"
    )
    prefix_token_id: int | None = _option(
        None, values.token_id, On.LM_EVAL | On.SWEEP, "the token that a text without context is conditioned on (default: BOS, "
        "else EOS)",
    )
    chat_template_args: dict[str, Any] = _option(  # noqa: RUF009 - a field of its own default
        {}, values.mapping, On.LM_EVAL, "variables for the chat template",
        more="as JSON in a separate argument: `--model_args pretrained=DIR 'chat_template_args={\"enable_thinking\": false}'`; "
        "or pass `--model_args` entirely as JSON: `'{\"pretrained\": \"DIR\", \"chat_template_args\": {...}}'`",
    )
    enable_thinking: bool | None = _option(
        None, values.flag, On.LM_EVAL, "sets the chat template's variable of that name",
        more="as with hf; `True` is refused for log-likelihood tasks",
    )
    device: str | None = _option(
        None, values.device, _HERE, "cpu, cuda or cuda:N (default: a GPU if there is one)", metavar="DEVICE",
        more="lm-eval passes `cuda:0` by default, so `cuda:0` takes effect only if it is written in `--model_args`. Any other "
        "value always takes effect, and is refused if that device is not available. With `endpoint=`, the worker must run on "
        "the named kind of device; the number has no effect",
    )
    devices: str | None = _option(
        None, values.devices, _HERE | On.SERVE, "several GPUs: all, 0-3, 0+2, or GPU-6b0c (the beginning of a UUID)",
        metavar="LIST", more="lm_eval splits its arguments at commas, hence the `+`. Each GPU scores sequences of its own, with "
        "the whole model or, if that does not fit, with its part of every layer and the rest from the others "
        "(`placement=sharded`); no score depends on it",
    )
    device_memory_limit: str | None = _option(
        None, values.amount, _ALL, "memory of each device for weights and passes together, for example 20GiB, or 50% of its "
        "memory", metavar="SIZE", more="what does not fit is sharded or streamed",
    )
    memory_limit: str | None = _option(
        None, values.size, _ALL, "memory beyond the weights, for example 8GiB", metavar="SIZE"
    )
    weights_limit: str | None = _option(
        None, values.size, _ALL, "memory for the weights; what does not fit is streamed", metavar="SIZE"
    )
    host_memory_limit: str | None = _option(
        None, values.size, _ALL, "host memory for weights that the GPUs do not hold", metavar="SIZE"
    )
    placement: str | None = _option(
        None, values.choice(_PLACEMENTS), _ALL, "where the weights are", choices=tuple(_PLACEMENTS),
        more="in mapped files (CPU), all in memory, spread over `devices`, or read in every pass. Default: `auto`",
    )
    cpu_variant: str | None = _option(
        None, values.choice(_VARIANTS), _ALL, "the CPU kernels (default: the best of this machine)", choices=tuple(_VARIANTS)
    )
    threads: int | None = _option(
        None, values.count, _ALL, "threads of the CPU backend (default: one per CPU)", metavar="N"
    )
    vocabulary: int | None = _option(
        None, values.count, On.LM_EVAL | On.WORKER | On.SERVE, "probabilities over the first so many token ids only",
        more="for a head with more rows than the tokenizer has tokens",
    )
    store: str | None = _option(
        None, values.path, _HERE | On.SERVE, "folder of a result store: results in the store are not computed again, and an "
        "interrupted command goes on where it was", metavar="DIR",
    )
    store_limit: str | None = _option(
        None, values.size, _HERE | On.SERVE, "size of the store (default: 4GiB); the oldest results go first", metavar="SIZE"
    )
    hidden: str | None = _option(
        None, values.path, On.LM_EVAL | On.WORKER | On.COMPARE | On.SERVE, "folder that keeps the reference's final hidden states, "
        "a few KB per token: comparing further models with that reference then takes little more than scoring them",
        metavar="DIR", more="for comparisons only",
    )
    hidden_limit: str | None = _option(
        None, values.size, On.LM_EVAL | On.WORKER | On.COMPARE | On.SERVE, "size of that folder (default: 20GiB); the least used "
        "files go first", metavar="SIZE",
    )
    timeout: float = _option(
        120.0, values.seconds, On.LM_EVAL | On.WORKER | On.CLIENT | On.SWEEP, "seconds to wait for an answer of the worker"
    )
    load_timeout: float | None = _option(
        None, values.seconds, On.LM_EVAL | On.WORKER | On.CLIENT | On.SWEEP, "seconds to wait for loading (default: no limit)"
    )
    worker_log: str | None = _option(
        None, values.path, _HERE, "file that the worker's log is appended to", metavar="FILE"
    )
    # What `device`, or another program's word for devices (spreading.py), means to the worker:
    backend: str = "auto"  # auto, cpu, cuda
    gpu: int | None = None  # number of the CUDA device
    device_is_wish: bool = False  # the user chose the device: refuse rather than run elsewhere


#: All options by name, in the order of the documentation.
OPTIONS = {
    field.name: Option(name=field.name, default=field.default, **field.metadata)
    for field in dataclasses.fields(Settings)
    if field.metadata
}


def options_on(interface: On) -> list[Option]:
    """The options that a user interface has."""
    return [option for option in OPTIONS.values() if option.on & interface]


def parameters(interface: On) -> str:
    """The options of an interface as the end of a docstring."""
    lines = []
    for option in options_on(interface):
        choices = f" ({', '.join(option.choices)})" if option.choices else ""
        lines.append(f"    * {option.name}: {option.help}{choices}.")
    return "\n".join(lines) + "\n"
