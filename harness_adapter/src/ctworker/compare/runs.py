"""`ctworker-compare --samples`: paired tests of lm-eval runs, as a table and as JSON. Needs numpy."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from .. import __version__
from ..base.tables import number, render
from . import paired, samples

SCHEMA = "ctworker-paired-1"


def compare(paths: list[Path]) -> dict[str, Any]:
    """Tests each run against the first one. Raises ArgumentError."""
    reference, *others = [samples.read_run(path) for path in paths]
    comparisons = []
    for run in others:
        pairs, notes = samples.pair(reference, run)
        tests = [paired.test(one) for one in [*pairs, *paired.pool(pairs)]]
        comparisons.append(
            {"run": run.name, "files": _files(run), "notes": notes, "tests": [test.to_json() for test in tests]}
        )
    return {
        "schema": SCHEMA,
        "version": __version__,
        "bootstrap": {"resamples": paired.RESAMPLES, "interval": paired.INTERVAL, "seed": paired.SEED},
        "reference": {"run": reference.name, "files": _files(reference)},
        "comparisons": comparisons,
    }


def _files(run: samples.Run) -> dict[str, dict[str, str]]:
    return {
        task: {"path": str(file), "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
        for task, file in run.files.items()
    }


def text(report: dict[str, Any]) -> str:
    """The report for a terminal."""
    parts = [f"a = {report['reference']['run']}"]
    for comparison in report["comparisons"]:
        parts += [f"b = {comparison['run']}", *(f"note: {note}" for note in comparison["notes"]), ""]
        rows = [
            ["task", "metric", "documents", "a", "b", "b - a (%)", "95 % interval", "lost", "gained", "McNemar p"]
        ]
        rows += [_row(test) for test in comparison["tests"]]
        parts += [render(rows), ""]
    parts.append("lost: right in a, wrong in b; gained: the reverse. Intervals: paired bootstrap over documents.")
    return "\n".join(parts)


def _row(test: dict[str, Any]) -> list[str]:
    metric = test["metric"] if test["filter"] == "none" else f"{test['metric']},{test['filter']}"
    flips = test["p_mcnemar"] is not None
    return [
        test["task"],
        metric,
        str(test["n"]),
        f"{test['mean_a']:.4f}",
        f"{test['mean_b']:.4f}",
        number(test["difference"], test["se"], scale=100.0),
        f"{100 * test['low']:+.2f} .. {100 * test['high']:+.2f}",
        str(test["lost"]) if flips else "-",
        str(test["gained"]) if flips else "-",
        f"{test['p_mcnemar']:.3g}" if flips else "-",
    ]
