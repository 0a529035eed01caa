"""The command `ctworker-compare`. docs/METHODS.md defines its numbers."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ..base import interrupt
from ..base.errors import ArgumentError, CtworkerError
from ..base.output import Parser, ProgressLine, ReportFile, duration, exit_code, say
from ..base.pace import Pace
from ..base.progress import Progress
from ..options import spelling
from ..options.settings import On
from ..perplexity import methods
from ..perplexity.options import (
    add_method,
    add_text,
    add_worker,
    given_fields,
    load_texts,
    worker_arguments,
)
from . import MATRIX_WINDOWS

_respell = partial(spelling.for_command, command=On.COMPARE)
_EPILOG = f"""\
methods: {', '.join(name for name, method in methods.PRESETS.items() if method.cut == "rule")} (ctworker-ppl --help)

examples:
  ctworker-compare ORIGINAL W4A16 NVFP4
  ctworker-compare ORIGINAL W4A16 --method llama.cpp-512 --dataset wikitext2=wiki.test.raw --json report.json
  ctworker-compare ORIGINAL W4A16 --noise-floor --full
  ctworker-compare bf16=ORIGINAL gptq=out/W4A16 --markdown
  ctworker-compare ORIGINAL W4A16 NVFP4 --layers --plot layers.svg
  ctworker-compare --samples results/original results/w4a16

Exit codes: 0 success; 64 wrong command line or input; 70 a model failed (the report has the others); 130 interrupted.
"""


def parser() -> argparse.ArgumentParser:
    out = Parser(
        prog="ctworker-compare",
        description="What a quantised model lost: the divergence of its predictions from its original's, on the\nwindows of a "
        "text; or, with --samples, paired tests of two lm-eval runs.\ndocs/METHODS.md defines every number.",
        epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
    )  # fmt: skip
    out.add_argument(
        "reference", nargs="?", metavar="REFERENCE",
        help="folder or hub name of the original model; with --endpoint, the name of one of the worker's models; LABEL=NAME gives it "
        "another name in the report",
    )  # fmt: skip
    out.add_argument("models", nargs="*", metavar="MODEL", help="the models to compare with it, likewise")
    out.add_argument(
        "--noise-floor", action="store_true",
        help="also compare the reference's own 16-bit run with its float32 run: what rounding alone does",
    )  # fmt: skip
    out.add_argument("--reference-dtype", metavar="DTYPE", help="dtype of the reference's activations (default: --dtype)")
    out.add_argument("--worst", type=int, default=5, metavar="N", help="with --full, the N positions with the largest KL (default: 5)")
    out.add_argument(
        "--layers", action="store_true",
        help="also compare the models' hidden states after each layer: where the quantisation hurts",
    )  # fmt: skip
    out.add_argument(
        "--matrices", type=int, nargs="?", const=MATRIX_WINDOWS, metavar="N",
        help="also put each quantised matrix alone into the reference, and rank them by the divergence that each causes, on the "
        f"first N windows of each document (default: {MATRIX_WINDOWS}); takes about half a scoring of these windows per matrix",
    )  # fmt: skip
    out.add_argument(
        "--samples", metavar="RUN", type=Path, nargs="+",
        help="instead of models, compare lm-eval runs document by document: the --output_path of two or more runs with "
        "--log_samples, or their samples files; the first run is the reference",
    )  # fmt: skip
    add_text(out.add_argument_group("text"))
    add_method(out.add_argument_group("method and its fields: how the text is cut into windows"), numbers=False)
    add_worker(out.add_argument_group("worker"), On.COMPARE)
    group = out.add_argument_group("output")
    group.add_argument("--full", action="store_true", help="all statistics of each model and its worst positions")
    group.add_argument("--markdown", action="store_true", help="the report as a Markdown table with its caption")
    group.add_argument("--json", metavar="FILE", help="also write the report as JSON; - writes it to standard output instead")
    group.add_argument("--plot", metavar="FILE", help="charts as .png, .svg or .pdf: of the layers, of each model's matrices, and of the "
        "divergence's spread; FILE is the first of them, and the others have a name behind it")
    group.add_argument("--dry-run", action="store_true", help="check everything, and print what would be compared")
    group.add_argument("--quiet", action="store_true", help="no progress on standard error")
    return out


def run(options: argparse.Namespace) -> int:
    """Raises CtworkerError. Returns the exit code."""
    require_numpy()
    if options.samples is not None:
        from . import runs

        _only_samples(options)
        out = ReportFile(options.json)
        found = runs.compare(options.samples)
        out.finish(found, runs.text(found))
        return 0
    from . import models, report

    if options.plot is not None:
        from . import plot

        plot.check(options.plot)
    asked = _models(options)
    plan = models.prepare(asked)
    if options.dry_run:
        say(report.plan(plan))
        return 0
    out = ReportFile(options.json)
    progress = _Progress(options.quiet)
    if not options.quiet:
        print(report.summary(plan), file=sys.stderr)
    try:
        found = models.compare(plan, progress.case, out.keep)
    finally:
        progress.close()
    write = report.markdown if options.markdown else report.text
    out.finish(found, write(found, options.full))
    if options.plot is not None:
        for path in plot.write(options.plot, found):
            print(f"written: {path}", file=sys.stderr)
    return 70 if any("error" in model for model in found["models"]) else 0


def _only_samples(options: argparse.Namespace) -> None:
    """Raises ArgumentError for options that mean nothing for lm-eval runs."""
    if options.reference is not None:
        raise ArgumentError(
            f"{options.reference}: with --samples there are no models to compare: name only the runs, after --samples"
        )
    if len(options.samples) < 2:
        raise ArgumentError(f"--samples {options.samples[0]}: expected two runs or more, the reference first")
    default = parser().parse_args([])
    for name, value in vars(options).items():
        if name not in ("samples", "json", "quiet") and value != getattr(default, name):
            raise ArgumentError(f"--{name.replace('_', '-')} means nothing with --samples: leave it out")


def _models(options: argparse.Namespace) -> Any:
    """The comparison that the command line asks for, with its text loaded. Raises CtworkerError."""
    from .models import Options

    if options.reference is None:
        raise ArgumentError("expected REFERENCE and MODEL (see --help), or --samples RUN RUN")
    if len(options.text) + len(options.dataset) > 1:
        raise ArgumentError("expected one text: compare the models on each text by itself")
    if options.matrices is not None and options.matrices < 1:
        raise ArgumentError(f"--matrices {options.matrices}: expected a number of windows, 1 or more")
    method = methods.choose(options.method, given_fields(options))
    (text,) = load_texts(options, method)
    (reference_label, reference), *named = (_named(each) for each in (options.reference, *options.models))
    return Options(
        reference, [name for _, name in named], text, method, worker_arguments(options, On.COMPARE), endpoint=options.endpoint,
        token_file=options.token_file, tokenizer=options.tokenizer, reference_dtype=options.reference_dtype,
        noise_floor=options.noise_floor, worst=max(0, options.worst), layers=options.layers,
        matrices=options.matrices, reference_label=reference_label, respell=_respell,
        labels=[label for label, _ in named],
    )  # fmt: skip


def _named(argument: str) -> tuple[str | None, str]:
    """(label, name) of `LABEL=NAME`; a folder whose own name has a = stands for itself."""
    label, sign, name = argument.partition("=")
    if not sign or "/" in label or Path(argument).expanduser().exists():
        return None, argument
    if not label or not name:
        raise ArgumentError(f"{argument}: expected LABEL=NAME, with a folder or hub name behind the =")
    return label, name


def require_numpy() -> None:
    try:
        import numpy  # noqa: F401
    except ImportError:
        raise CtworkerError(
            "ctworker-compare needs numpy: install it with `pip install 'ctworker[compare]'` (or `pip install numpy`)"
        ) from None


class _Progress(ProgressLine):
    """Estimates the time of all models from the present pace."""

    def __init__(self, quiet: bool) -> None:
        super().__init__("")
        self._quiet, self._pace = quiet, Pace()

    def case(self, i: int, n: int, label: str, progress: Progress) -> None:
        if self._quiet:
            return
        self._pace.add(time.monotonic(), i + progress.fraction)
        more, rate = "", self._pace.per_s()
        if rate is not None and i + 1 < n:
            more = f", about {duration((n - i - progress.fraction) / rate)} for all"
        self.show(f"{label} ({i + 1} of {n})", progress, more)


def main(arguments: Sequence[str] | None = None) -> int:
    logging.basicConfig(format="ctworker-compare: %(message)s", level=logging.WARNING)
    return exit_code("ctworker-compare", lambda: run(parser().parse_args(arguments)), _respell)


if __name__ == "__main__":
    interrupt.install("ctworker-compare")
    sys.exit(main())
