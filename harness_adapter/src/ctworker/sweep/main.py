"""The command `ctworker-sweep`."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ..base import interrupt
from ..base.errors import ArgumentError, CtworkerError
from ..base.output import Parser, open_closed_streams, replace_unknown_letters
from ..options.spelling import for_sweep

if TYPE_CHECKING:
    from .work import Sweep

#: Module -> distribution; all are in the extra `ctworker[sweep]`.
_NEEDED = {
    "yaml": "PyYAML",
    "jsonschema": "jsonschema",
    "rich": "rich",
    "matplotlib": "matplotlib",
    "numpy": "numpy",
    "lm_eval": "lm_eval",
}
USAGE, FAILED, INTERRUPTED = 64, 1, 130

_ABOUT = """\
Runs lm-eval tasks, perplexity methods and comparisons on many models, and writes results.json, results.csv,
results.md, report.html and plots to one folder. A model is loaded once. A cell (model x options x work) that fails is
recorded with its message, and the others run. After Ctrl-C or a crash, the same command goes on where it was: a
finished cell is never run again unless its model's files, its text or its settings have changed.
"""
_END = """\
Exit codes: 0 every cell is finished; 1 some cells failed, or an error ended the sweep (one sentence says which);
64 wrong command line or YAML file; 130 interrupted. docs/SWEEP.md describes the YAML file and the results.
"""


def parser() -> argparse.ArgumentParser:
    made = Parser(
        prog="ctworker-sweep", description=_ABOUT, epilog=_END, formatter_class=argparse.RawDescriptionHelpFormatter
    )  # fmt: skip
    made.add_argument(
        "file",
        metavar="FILE.yaml",
        type=Path,
        help="what to run (docs/SWEEP.md, examples/sweep.yaml)",
    )
    made.add_argument(
        "--output", metavar="DIR", help="folder of the results, instead of the file's output:"
    )
    made.add_argument(
        "--only", metavar="MODEL[:WORK]", action="append", default=[],
        help="run only cells whose model label and work match these shell patterns, such as 'w4*:wikitext' or ':piqa'; may "
        "be repeated",
    )  # fmt: skip
    made.add_argument(
        "--force",
        action="store_true",
        help="run the selected cells again, also if they are finished",
    )
    made.add_argument(
        "--dry-run",
        action="store_true",
        help="print cells, sizes and the estimated time, and run nothing",
    )
    made.add_argument(
        "--report",
        action="store_true",
        help="write the reports from results.json again, and run nothing",
    )
    made.add_argument(
        "--watch", metavar="DIR", type=Path,
        help="when all cells are finished, wait for new checkpoint folders in DIR and run the work on each; Ctrl-C ends it",
    )  # fmt: skip
    return made


def main(argv: list[str] | None = None) -> int:
    open_closed_streams()
    replace_unknown_letters()
    arguments = parser().parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    signal.signal(signal.SIGTERM, interrupt.handler())  # as Ctrl-C: workers stop, results stay
    try:
        _check_libraries()
        from .definition import load

        return _run(load(arguments.file, arguments.output), arguments)
    except ArgumentError as error:
        print(f"ctworker-sweep: {for_sweep(str(error))}", file=sys.stderr)
        return USAGE
    except CtworkerError as error:
        print(f"ctworker-sweep: {for_sweep(str(error))}", file=sys.stderr)
        return FAILED
    except OSError as error:  # of standard output; files of the results have their own errors
        print(f"ctworker-sweep: {error.strerror or error}: the same command goes on", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("ctworker-sweep: interrupted; the same command goes on", file=sys.stderr)
        return INTERRUPTED


def _check_libraries() -> None:
    missing = [name for module, name in _NEEDED.items() if find_spec(module) is None]
    if missing:
        are = "is" if len(missing) == 1 else "are"
        raise CtworkerError(
            f"{', '.join(missing)} {are} not installed: pip install 'ctworker[sweep]'"
        )


def _run(sweep: Sweep, arguments: argparse.Namespace) -> int:
    from .conductor import Conductor

    conductor = Conductor(sweep, only=arguments.only, force=arguments.force)
    if arguments.report:
        return conductor.report()
    if arguments.dry_run:
        return conductor.dry_run()
    return conductor.run(watch=arguments.watch)


if __name__ == "__main__":
    interrupt.install("ctworker-sweep", stores=False)
    sys.exit(main())
