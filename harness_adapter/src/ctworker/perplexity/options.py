"""Options that the commands ctworker-ppl and ctworker-compare share: texts, fields of a method, the worker."""

from __future__ import annotations

import argparse
from typing import Any

from ..errors import ArgumentError
from . import methods, texts


def _size(text: str) -> int | str:
    return int(text) if text.isdigit() else text


def add_text(group: Any) -> None:
    group.add_argument(
        "--dataset", action="append", default=[], metavar="NAME[=FILE]",
        help=f"{', '.join(texts.DATASETS)}, or a hub name ORGANISATION/NAME[:CONFIG[:SPLIT]]; rows from the hub, or from a local "
        "file (wiki.test.raw, Parquet, JSON lines); default: wikitext2. CTWORKER_WIKITEXT names a local file of wikitext2",
    )  # fmt: skip
    group.add_argument(
        "--text", action="append", default=[], metavar="FILE", help="a text of your own: plain text, Parquet or JSON lines"
    )
    group.add_argument("--column", metavar="NAME", help="column of Parquet and JSON lines (default: text)")


def add_method(group: Any, *, numbers: bool = True) -> None:
    """numbers: also the fields that say how a perplexity is computed from log-probabilities."""

    def names(table: dict[str, str]) -> str:
        return "; ".join(f"{name}: {meaning}" for name, meaning in table.items()).replace("%", "%%")

    group.add_argument("--method", default=methods.DEFAULT, metavar="NAME", help=f"default: {methods.DEFAULT}")
    group.add_argument("--join", help=f"how rows become texts. {names(methods.JOINS)}")
    group.add_argument("--bos", help=names(methods.BOS))
    group.add_argument("--bos-token", type=int, metavar="ID", help="the token instead of the tokenizer's BOS")
    group.add_argument(
        "--window", type=_size, metavar="N", help="tokens of a window; model: the longest input; or N+stride/2"
    )
    group.add_argument("--stride", type=int, metavar="N", help="tokens from one window's start to the next (default: window)")
    group.add_argument(
        "--first", type=_size, metavar="N",
        help="first scored position of a window, from 0; half: behind the middle; stride: the last N tokens, N the stride",
    )  # fmt: skip
    yes_or_no = argparse.BooleanOptionalAction
    group.add_argument("--new", action=yes_or_no, help="later windows score only tokens behind the window before")
    group.add_argument("--tail", action=yes_or_no, help="the shorter last window counts")
    group.add_argument("--spare", type=int, metavar="N", help="tokens that must follow every window")
    group.add_argument("--rows", type=int, metavar="N", help="windows of each text, 0: all")
    if not numbers:
        return
    group.add_argument("--vocabulary", help=names(methods.VOCABULARIES))
    group.add_argument("--mean", help=names(methods.MEANS))
    group.add_argument("--error", help=f"the standard error is {names(methods.ERRORS)}")


#: Options that set a field of the method.
FIELDS = (
    "join", "bos", "bos_token", "window", "stride", "first", "new", "tail", "spare", "rows", "vocabulary", "mean", "error",
)  # fmt: skip
#: Options that are arguments of Worker.
WORKER = {
    "dtype": "auto (the checkpoint's), bfloat16, float16, float32",
    "activations": "none (default: only weights are quantised), or checkpoint: activations too, as it declares",
    "device": "cpu, cuda or cuda:N (default: a GPU if there is one)",
    "max-length": "longest model input in tokens (default: the model's own)",
    "threads": "threads of the CPU backend",
    "devices": "several GPUs: all, 0,1 or 0-3",
    "device-memory-limit": "memory of each device for weights and passes together, for example 20GiB or 50%%",
    "memory-limit": "memory beyond the weights, for example 8GiB",
    "weights-limit": "memory for the weights; what does not fit is streamed",
    "host-memory-limit": "host memory for weights that the GPUs do not hold",
    "placement": "auto, mapped, resident, sharded, streamed",
    "cpu-variant": "c, avx2, avx512, avx512bf16",
    "store": "folder of a result store: what it has is not computed again, and an interrupted command goes on where it was",
    "store-limit": "size of the store, for example 8GiB",
    "revision": "branch, tag or commit of a hub name",
    "worker-log": "file for the worker's log",
}


def add_worker(group: Any) -> None:
    for name, meaning in WORKER.items():
        group.add_argument(f"--{name}", help=meaning)
    group.add_argument("--tokenizer", metavar="DIR", help="folder or hub name of the tokenizer (default: the model's)")
    group.add_argument("--endpoint", metavar="URL", help="use this running worker instead of starting one")
    group.add_argument("--token-file", metavar="FILE", help="token of a worker on tcp://")


def given_fields(options: argparse.Namespace) -> dict[str, Any]:
    """The fields of the method that options set."""
    return {name: value for name in FIELDS if (value := getattr(options, name, None)) is not None}


def worker_arguments(options: argparse.Namespace) -> dict[str, Any]:
    """The options that are arguments of Worker. Raises ArgumentError if --endpoint names a worker that runs already, because it
    cannot take them any more."""
    names = [name.replace("-", "_") for name in WORKER]
    given = {name: value for name in names if (value := getattr(options, name)) is not None}
    odd = [name for name in given if options.endpoint is not None and name != "revision"]
    if odd:
        raise ArgumentError(
            f"--{odd[0].replace('_', '-')} is for a worker that this command starts; the worker at --endpoint {options.endpoint} "
            "runs already: leave it out"
        )
    return given


def load_texts(options: argparse.Namespace, method: methods.Method) -> list[texts.Text]:
    """The texts of --dataset and --text. Raises CtworkerError."""
    join_given = options.join is not None
    return texts.load_all(options.dataset, options.text, method.join, join_given=join_given, column=options.column)
