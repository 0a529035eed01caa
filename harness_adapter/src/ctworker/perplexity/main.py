"""The command `ctworker-ppl`: one perplexity by a named method. docs/METHODS.md defines the methods."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, TimeoutError
from functools import partial
from typing import Any

from .. import __version__
from ..base import interrupt
from ..base.errors import ArgumentError
from ..base.output import Parser, ProgressLine, ReportFile, exit_code, say
from ..base.tables import counted, number, render
from ..client import hub
from ..client.report import about_activations, about_length
from ..client.token_client import TokenClient, TokenWorker
from ..options import arguments, spelling
from ..options.settings import On
from ..text.tokenizer import TextTokenizer
from . import methods
from .measure import (
    Result,
    Tokens,
    check,
    check_bos,
    limited,
    macro,
    measure,
    tokenize,
    used_fields,
)
from .options import (
    add_method,
    add_text,
    add_worker,
    given_fields,
    load_texts,
    worker_arguments,
)
from .per_token import COLUMNS, PerToken
from .texts import Text

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


def parser() -> argparse.ArgumentParser:
    out = Parser(
        prog="ctworker-ppl", description="One perplexity by a named method, with its standard error.",
        epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
    )  # fmt: skip
    out.add_argument("model", nargs="?", help="checkpoint folder or hub name (with --endpoint: leave it out)")
    add_text(out.add_argument_group("texts"))
    add_method(out.add_argument_group("method and its fields"))
    add_worker(out.add_argument_group("worker"), On.PPL)
    group = out.add_argument_group("output")
    group.add_argument("--json", metavar="FILE", help="also write the report as JSON; - writes it to standard output instead")
    group.add_argument("--per-token", metavar="FILE", help="write a Parquet file with a row for every scored token")
    group.add_argument("--dry-run", action="store_true", help="print method, texts and counts; score nothing")
    group.add_argument("--quiet", action="store_true", help="no progress on standard error")
    return out


# ---- running ----


class Run:
    """What the options ask for, checked as far as possible before a worker starts."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.method = methods.choose(options.method, given_fields(options))
        if (options.model is None) == (options.endpoint is None):
            raise ArgumentError("expected a model (folder or hub name), or --endpoint URL of a running worker, and not both")
        self.notes: list[str] = []
        self.tokenizer = self._load_tokenizer()
        self.per_token = PerToken(options.per_token) if options.per_token and not options.dry_run else None
        loaded = load_texts(options, self.method)
        check_bos(self.method, self.tokenizer)
        # A long text is tokenised while the worker loads; a short one now, so that what is wrong with it is told at once.
        self._tokens = ThreadPoolExecutor(1).submit(self._tokenize, loaded)
        with contextlib.suppress(TimeoutError):
            self._tokens.result(2)

    def _tokenize(self, loaded: Sequence[Text]) -> list[Tokens]:
        out = [tokenize(text, self.method, self.tokenizer) for text in loaded]
        if not self.method.needs_model:
            method = methods.resolve(self.method, 1 << 31)
            out = [check(tokens, method) for tokens in out]
        return out

    def _load_tokenizer(self) -> TextTokenizer:
        options = self.options
        settings = arguments.parse({"pretrained": options.model or ".", **worker_arguments(options, On.PPL)})
        name = options.tokenizer or options.config or options.model
        if name is None:
            with self._running() as client:
                folder, self.notes = client.folder, client.notes
            name = str(folder)
            if folder is None:
                raise ArgumentError(
                    f"the files of the model at {options.endpoint} are not on this machine: pass its tokenizer with --tokenizer "
                    "(a folder or a hub name)"
                )
        source = hub.resolve(name, settings, weights=False)
        return TextTokenizer(source.folder, name=source.name)

    def client(self) -> TokenClient:
        options = self.options
        if options.endpoint is not None:
            return self._running()
        return TokenWorker(options.model, **worker_arguments(options, On.PPL))

    def _running(self) -> TokenClient:
        options = self.options
        return TokenClient(options.endpoint, model=options.model_name or "", token_file=options.token_file)

    def score(self) -> dict[str, Any]:
        """The report. Raises CtworkerError."""
        with self.client() as client:
            method = methods.resolve(self.method, client.max_length)
            results = []
            for tokens in [check(tokens, method) for tokens in self._tokens.result()]:
                progress = None if self.options.quiet else ProgressLine(tokens.text.name)
                results.append(measure(client, tokens, method, progress))
                if progress is not None:
                    progress.close()
            report = self._report(client, method, results)
        if self.per_token is not None:
            self.per_token.write(results, report)
        return report

    def _report(self, client: TokenClient, method: methods.Method, results: Sequence[Result]) -> dict[str, Any]:
        model = client.model | results[0].source
        notes = [note for result in results for note in result.tokens.text.notes]
        if self.method.bos == "replace-if-added" and results[0].tokens.bos is None:
            notes.append("the tokenizer adds no BOS, so no window begins with one, as in llama.cpp")
        notes += [*about_activations(model), *about_length(model, int(method.window)), *self.notes]
        keys = (
            "identity", "numerics", "dtype", "activations_mode", "backend", "device", "architecture", "weight_bits", "params",
            "max_length", "vocab",
        )  # fmt: skip
        return {
            "schema": SCHEMA, "version": __version__,
            "model": {"name": self.options.model or model["name"], **{key: model.get(key) for key in keys}},
            "tokenizer": {
                "name": self.tokenizer.name_or_path,
                "sha256": self.tokenizer.fingerprint,
                "tokens": self.tokenizer.n_ids,
            },
            "method": used_fields(method, results) | {"about": method.about},
            "texts": [result.fields() for result in results],
            "macro": dict(zip(("perplexity", "perplexity_se"), macro(results))) | {"texts": len(results)} if len(results) > 1 else None,
            "notes": notes,
        }  # fmt: skip

    def plan(self) -> str:
        """What would be scored."""
        known = not self.method.needs_model or self.options.max_length is not None
        rows = [["text", "documents", "bytes", "tokens", "windows", "scored tokens"]]
        for tokens in self._tokens.result():
            cells = ["?", "?"]
            if known:
                method = limited(methods.resolve(self.method, int(self.options.max_length or 1 << 31)), tokens)
                counts = methods.total(method, tokens.sizes)
                cells = [str(counts.windows), str(counts.targets)]
            rows.append([tokens.text.name, str(len(tokens.sizes)), str(tokens.text.n_bytes), str(sum(tokens.sizes)), *cells])
        fields = "  ".join(f"{name}={value}" for name, value in self.method.fields().items())
        return f"method: {fields}\n\n{render(rows)}"


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
        "model": model["name"], "identity": model["identity"], "numerics": model["numerics"], "device": model["device"],
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
    over = f"over {counted(entry['se_clusters'], entry['se_over'].removesuffix('s'))}"
    return [
        ("text", f"{entry['text']}: {entry['source']}, {entry['bytes']} bytes, sha256 {entry['sha256']}"),
        ("perplexity", f"{entry['perplexity']:.6f}"),
        ("standard error", f"{number(entry['perplexity_se'])} ({over}; of its logarithm {number(entry['nll_se'])})"),
        ("per token", f"{entry['token_perplexity']:.6f}"),
        ("per byte", f"{number(entry['byte_perplexity'])}, {number(entry['bits_per_byte'])} bits"),
        ("per word", number(entry["word_perplexity"])),
        (
            "counts",
            ", ".join(
                counted(entry[key], noun)
                for key, noun in (
                    ("documents", "document"), ("tokens", "token"), ("windows", "window"), ("scored_tokens", "scored token"),
                )
            ),
        ),
        ("probabilities", f"over {entry['vocabulary']} token ids"),
    ]


def _lines(pairs: Sequence[tuple[str, str]]) -> str:
    return "\n".join(f"{name:<16}{value}" for name, value in pairs)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else str(value)


def run(options: argparse.Namespace) -> int:
    """Raises CtworkerError. Returns the exit code."""
    work = Run(options)
    if options.dry_run:
        say(work.plan())
        return 0
    out = ReportFile(options.json)
    report = work.score()
    out.finish(report, text_of(report))
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    return exit_code("ctworker-ppl", lambda: run(parser().parse_args(argv)), partial(spelling.for_command, command=On.PPL))


if __name__ == "__main__":
    interrupt.install("ctworker-ppl")
    sys.exit(main())
