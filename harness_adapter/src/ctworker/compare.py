"""The command `ctworker-compare`. docs/METHODS.md defines its numbers."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .errors import ArgumentError, CtworkerError


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(
        prog="ctworker-compare",
        description="What a quantised model lost.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    out.add_argument(
        "--samples", metavar="RUN", type=Path, nargs="+",
        help="compare lm-eval runs question by question instead of models: the --output_path of two or more runs with "
        "--log_samples; the first run is the reference",
    )  # fmt: skip
    out.add_argument("--json", metavar="FILE", help="also write the report as JSON; - writes it to standard output instead")
    return out


def run(options: argparse.Namespace) -> dict[str, Any]:
    """The report. Raises CtworkerError."""
    require_numpy()
    from . import compare_samples

    if len(options.samples) < 2:
        raise ArgumentError(f"--samples {options.samples[0]}: expected two runs or more, the reference first")
    report = compare_samples.compare(options.samples)
    write(report, compare_samples.text(report), options.json)
    return report


def require_numpy() -> None:
    try:
        import numpy  # noqa: F401
    except ImportError:
        raise CtworkerError(
            "ctworker-compare needs numpy: install it with `pip install 'ctworker[compare]'` (or `pip install numpy`)"
        ) from None


def write(report: dict[str, Any], text: str, file: str | None) -> None:
    data = json.dumps(report, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    if file == "-":
        sys.stdout.write(data)
        return
    print(text)
    if file is not None:
        try:
            Path(file).write_text(data, encoding="utf-8")
        except OSError as error:
            raise ArgumentError(f"--json {file}: cannot be written: {error.strerror}") from error


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        run(parser().parse_args(arguments))
    except CtworkerError as error:
        print(f"ctworker-compare: {error}", file=sys.stderr)
        return 64 if isinstance(error, ArgumentError) else 70
    except KeyboardInterrupt:
        print("ctworker-compare: interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
