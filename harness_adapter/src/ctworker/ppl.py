"""The command `ctworker-ppl`: one perplexity by a named method. docs/METHODS.md defines the methods."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import __version__, arguments, hub, methods, texts
from .api import Client, Worker
from .errors import ArgumentError, CtworkerError
from .per_token import COLUMNS, PerToken
from .perplexity import Result, check, measure, tokenize
from .scoring import Progress
from .tables import number, render
from .tokenizer import TextTokenizer

SCHEMA = "ctworker-ppl/1"

_EPILOG = f"""\
methods:
{render([["method", "as"], *([m.name, m.about] for m in methods.PRESETS.values())], indent="  ")}

Every field of a method can be set by its option; the output names all of them, so that the number can be repeated.
Several texts give one perplexity each, and their mean (macro average).
Columns of --per-token: {", ".join(COLUMNS)}.

examples:
  ctworker-ppl DIR
  ctworker-ppl DIR --method llama.cpp-512 --dataset wikitext2=wiki.test.raw
  ctworker-ppl DIR --method gptq-2048 --window 4096 --text a.txt --text b.txt --json report.json
"""


def _size(text: str) -> int | str:
    return int(text) if text.isdigit() else text


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(
        prog="ctworker-ppl", description="One perplexity by a named method, with its standard error.",
        epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
    )  # fmt: skip
    out.add_argument("model", nargs="?", help="checkpoint folder or hub name (with --endpoint: leave it out)")
    out.add_argument("--method", default=methods.DEFAULT, metavar="NAME", help=f"default: {methods.DEFAULT}")
    _text_options(out.add_argument_group("texts"))
    _method_options(out.add_argument_group("fields of the method"))
    _worker_options(out.add_argument_group("worker"))
    group = out.add_argument_group("output")
    group.add_argument("--json", metavar="FILE", help="also write the report as JSON; - writes it to standard output instead")
    group.add_argument("--per-token", metavar="FILE", help="write a Parquet file with a row for every scored token")
    group.add_argument("--dry-run", action="store_true", help="print method, texts and counts; score nothing")
    group.add_argument("--quiet", action="store_true", help="no progress on standard error")
    return out


def _text_options(group: Any) -> None:
    group.add_argument(
        "--dataset", action="append", default=[], metavar="NAME[=FILE]",
        help=f"{', '.join(texts.DATASETS)}, or a hub name ORGANISATION/NAME[:CONFIG[:SPLIT]]; rows from the hub, or from a local "
        "file (wiki.test.raw, Parquet, JSON lines); default: wikitext2. CTWORKER_WIKITEXT names a local file of wikitext2",
    )  # fmt: skip
    group.add_argument(
        "--text", action="append", default=[], metavar="FILE", help="a text of your own: plain text, Parquet or JSON lines"
    )
    group.add_argument("--column", metavar="NAME", help="column of Parquet and JSON lines (default: text)")


def _method_options(group: Any) -> None:
    def names(table: dict[str, str]) -> str:
        return "; ".join(f"{name}: {meaning}" for name, meaning in table.items()).replace("%", "%%")

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
    group.add_argument("--vocabulary", help=names(methods.VOCABULARIES))
    group.add_argument("--mean", help=names(methods.MEANS))
    group.add_argument("--error", help=f"the standard error is {names(methods.ERRORS)}")


_FIELDS = (
    "join", "bos", "bos_token", "window", "stride", "first", "new", "tail", "spare", "rows", "vocabulary", "mean", "error",
)  # fmt: skip
_WORKER = {
    "dtype": "auto (the checkpoint's), bfloat16, float16, float32",
    "device": "cpu, cuda or cuda:N (default: a GPU if there is one)",
    "max-length": "longest model input in tokens (default: the model's own)",
    "threads": "threads of the CPU backend",
    "memory-limit": "memory beyond the weights, for example 8GiB",
    "cpu-variant": "c, avx2, avx512, avx512bf16",
    "revision": "branch, tag or commit of a hub name",
    "worker-log": "file for the worker's log",
}


def _worker_options(group: Any) -> None:
    for name, meaning in _WORKER.items():
        group.add_argument(f"--{name}", help=meaning)
    group.add_argument("--tokenizer", metavar="DIR", help="folder or hub name of the tokenizer (default: the model's)")
    group.add_argument("--endpoint", metavar="URL", help="use this running worker instead of starting one")
    group.add_argument("--model-name", metavar="NAME", default="", help="the worker's model (default: its first)")
    group.add_argument("--token-file", metavar="FILE", help="token of a worker on tcp://")


# ---- running ----


class Run:
    """What the options ask for, checked as far as possible before a worker starts."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        given = {name: getattr(options, name) for name in _FIELDS if getattr(options, name) is not None}
        self.method = methods.choose(options.method, given)
        if (options.model is None) == (options.endpoint is None):
            raise ArgumentError("expected a model (folder or hub name), or --endpoint URL of a running worker, and not both")
        self.tokenizer = self._load_tokenizer()
        if options.bos_token is not None and options.bos_token >= len(self.tokenizer):
            raise ArgumentError(f"--bos-token {options.bos_token}: the tokenizer has only {len(self.tokenizer)} tokens")
        self.per_token = PerToken(options.per_token) if options.per_token and not options.dry_run else None
        join = self.method.join
        named = options.dataset or ([] if options.text else ["wikitext2"])
        loaded = [texts.load(name, join, join_given="join" in given, column=options.column) for name in named]
        loaded += [texts.load_file(path, join, options.column) for path in options.text]
        self.tokens = [tokenize(text, self.method, self.tokenizer) for text in loaded]
        if isinstance(self.method.window, int):  # else the worker must say how long an input may be
            for tokens in self.tokens:
                check(tokens, methods.resolve(self.method, 1 << 31))

    def _settings(self) -> dict[str, Any]:
        names = [name.replace("-", "_") for name in _WORKER]
        given = {name: value for name in names if (value := getattr(self.options, name)) is not None}
        return given | {"max_length": int(given["max_length"])} if "max_length" in given else given

    def _load_tokenizer(self) -> TextTokenizer:
        options = self.options
        settings = arguments.parse({"pretrained": options.model or ".", **self._settings()})
        name = options.tokenizer or options.model
        if name is None:
            with Client(options.endpoint, model=options.model_name, token_file=options.token_file) as client:
                name = client.model.get("path") or ""
            if not name or not Path(name).is_dir():
                raise ArgumentError(
                    f"the files of the model at {options.endpoint} are not on this machine: pass its tokenizer with --tokenizer "
                    "(a folder or a hub name)"
                )
        source = hub.resolve(name, settings, weights=False)
        return TextTokenizer(source.folder, name=source.name)

    def client(self) -> Client:
        options = self.options
        if options.endpoint is not None:
            return Client(options.endpoint, model=options.model_name, token_file=options.token_file)
        return Worker(options.model, **self._settings())

    def score(self) -> dict[str, Any]:
        """The report. Raises CtworkerError."""
        with self.client() as client:
            method = methods.resolve(self.method, client.max_length)
            self.tokens = [check(tokens, method) for tokens in self.tokens]
            results = []
            for tokens in self.tokens:
                progress = None if self.options.quiet else _Progress(tokens.text.name)
                results.append(measure(client, tokens, method, progress))
                if progress is not None:
                    progress.close()
            report = self._report(client, method, results)
        if self.per_token is not None:
            self.per_token.write(results, report)
        return report

    def _report(self, client: Client, method: methods.Method, results: Sequence[Result]) -> dict[str, Any]:
        model = client.model
        notes = [note for result in results for note in result.tokens.text.notes]
        size, vocab = len(self.tokenizer), model["vocab"]
        if method.vocabulary == "tokenizer" and size < vocab:
            notes.append(
                f"the method's own program leaves out the {vocab - size} rows of the head that are no tokens of the tokenizer; "
                "here they are included, which lowers log-probabilities by the probability of these rows"
            )
        if self.method.bos == "replace-if-added" and results[0].tokens.bos is None:
            notes.append("the tokenizer adds no BOS, so no window begins with one, as in llama.cpp")
        if model.get("activations"):
            notes.append(f"activation quantisation is not simulated: {model['activations']}")
        keys = ("identity", "numerics", "dtype", "backend", "architecture", "weight_bits", "params", "max_length", "vocab")
        return {
            "schema": SCHEMA, "version": __version__,
            "model": {"name": self.options.model or model["name"], **{key: model.get(key) for key in keys}},
            "tokenizer": {"name": self.tokenizer.name_or_path, "sha256": self.tokenizer.fingerprint, "tokens": size},
            "method": method.fields() | {"bos_token": results[0].tokens.bos, "about": method.about},
            "texts": [result.fields() for result in results],
            "macro": _macro(results) if len(results) > 1 else None,
            "notes": notes,
        }  # fmt: skip

    def plan(self) -> str:
        """What would be scored."""
        known = isinstance(self.method.window, int) or self.options.max_length is not None
        rows = [["text", "documents", "bytes", "tokens", "windows", "scored tokens"]]
        for tokens in self.tokens:
            sizes = [len(document.tokens) for document in tokens.documents]
            cells = ["?", "?"]
            if known:
                method = methods.resolve(self.method, int(self.options.max_length or 1 << 31))
                counts = [methods.count(method, n) for n in sizes]
                cells = [str(sum(c[0] for c in counts)), str(sum(c[1] for c in counts))]
            rows.append([tokens.text.name, str(len(sizes)), str(tokens.text.n_bytes), str(sum(sizes)), *cells])
        fields = "  ".join(f"{name}={value}" for name, value in self.method.fields().items())
        return f"method: {fields}\n\n{render(rows)}"


def _macro(results: Sequence[Result]) -> dict[str, Any]:
    """The mean of the perplexities; each text counts once, whatever its length."""
    values = [result.estimate.perplexity for result in results]
    errors = [result.estimate.perplexity_se for result in results]
    known = [error for error in errors if error is not None]
    se = math.sqrt(math.fsum(e * e for e in known)) / len(values) if len(known) == len(values) else None
    return {"perplexity": math.fsum(values) / len(values), "perplexity_se": se, "texts": len(values)}


class _Progress:
    """One line on standard error: in place on a terminal, otherwise every half minute."""

    def __init__(self, name: str) -> None:
        self._name, self._live = name, sys.stderr.isatty()
        self._next = 0.0 if self._live else time.monotonic() + 30

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + (0.5 if self._live else 30)
        parts = [f"{self._name}: {100 * progress.fraction:3.0f} %"]
        if progress.tokens_per_s is not None:
            parts.append(f"{progress.tokens_per_s:.0f} tokens/s")
        if progress.seconds_left is not None:
            parts.append(f"{progress.seconds_left:.0f} s left")
        line = ", ".join(parts)
        print(f"\r\033[K{line}" if self._live else line, end="" if self._live else "\n", file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._live:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


# ---- the report as text ----


def text_of(report: dict[str, Any]) -> str:
    method, model = report["method"], report["model"]
    parts = [_headline(report), ""]
    if len(report["texts"]) > 1:
        head = ["text", "perplexity", "bits/byte", "word perplexity", "windows", "scored"]
        rows = [
            [
                t["text"], number(t["perplexity"], t["perplexity_se"]), number(t["bits_per_byte"]),
                number(t["word_perplexity"]), str(t["windows"]), str(t["scored_tokens"]),
            ]
            for t in report["texts"]
        ]  # fmt: skip
        parts += [render([head, *rows]), ""]
    for entry in report["texts"]:
        parts += [_lines(_text_lines(entry)), ""]
    fields = {key: value for key, value in method.items() if key not in ("about", "name")}
    parts.append(_lines([("method", f"{method['name']} ({method['about']})")]))
    parts.append(_lines([(f"  {key}", _shown(value)) for key, value in fields.items()]))
    about = {
        "model": model["name"], "identity": model["identity"], "numerics": model["numerics"],
        "tokenizer": report["tokenizer"]["sha256"], "ctworker": report["version"],
    }  # fmt: skip
    parts.append(_lines(list(about.items())))
    parts += [f"note: {note}" for note in report["notes"]]
    return "\n".join(parts)


def _headline(report: dict[str, Any]) -> str:
    method = report["method"]
    kind = "word perplexity" if method["mean"] == "word" else "perplexity"
    if report["macro"]:
        macro = report["macro"]
        value = number(macro["perplexity"], macro["perplexity_se"])
        return f"{kind} {value}: {method['name']}, mean over {macro['texts']} texts"
    entry = report["texts"][0]
    return f"{kind} {number(entry['perplexity'], entry['perplexity_se'])}: {method['name']}, {entry['text']}"


def _text_lines(entry: dict[str, Any]) -> list[tuple[str, str]]:
    over = f"over {entry['se_clusters']} {entry['se_over']}"
    return [
        ("text", f"{entry['text']}: {entry['source']}, {entry['bytes']} bytes, sha256 {entry['sha256']}"),
        ("perplexity", f"{entry['perplexity']:.6f}"),
        ("standard error", f"{number(entry['perplexity_se'])} ({over}; of its logarithm {number(entry['nll_se'])})"),
        ("per token", f"{entry['token_perplexity']:.6f}"),
        ("per byte", f"{number(entry['byte_perplexity'])}, {number(entry['bits_per_byte'])} bits"),
        ("per word", number(entry["word_perplexity"])),
        (
            "counts",
            f"{entry['documents']} documents, {entry['tokens']} tokens, {entry['windows']} windows, "
            f"{entry['scored_tokens']} scored tokens",
        ),
    ]


def _lines(pairs: Sequence[tuple[str, str]]) -> str:
    return "\n".join(f"{name:<16}{value}" for name, value in pairs)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else str(value)


def _open_json(file: str | None) -> Any:
    if file is None or file == "-":
        return None
    try:
        return Path(file).expanduser().open("w", encoding="utf-8")
    except OSError as error:
        raise ArgumentError(f"--json {file}: cannot be written: {error.strerror}") from error


def run(options: argparse.Namespace) -> None:
    """Raises CtworkerError."""
    work = Run(options)
    if options.dry_run:
        print(work.plan())
        return
    out = _open_json(options.json)
    report = work.score()
    data = json.dumps(report, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    if out is not None:
        with out:
            out.write(data)
    print(data if options.json == "-" else text_of(report), end="" if options.json == "-" else "\n")


def main(argv: Sequence[str] | None = None) -> int:
    try:
        run(parser().parse_args(argv))
    except CtworkerError as error:
        print(f"ctworker-ppl: {error}", file=sys.stderr)
        return 64 if isinstance(error, ArgumentError) else 70
    except KeyboardInterrupt:
        print("ctworker-ppl: interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
