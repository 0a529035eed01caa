"""The samples that `lm_eval --log_samples --output_path DIR` writes: read, and paired document by document."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..base.errors import ArgumentError

#: samples_TASK_DATE.jsonl, as lm-eval names them; a sweep's have no date.
_NAME = re.compile(r"samples_(?P<task>.+?)(_(?P<date>\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d[.\d]*))?\.jsonl")
#: Keys of a sample that are not metrics, for lm-eval releases whose samples have no key `metrics`.
_NOT_METRICS = {"doc_id", "doc", "target", "arguments", "resps", "filtered_resps", "filter"}
#: Hashes that must agree for two answers to be paired, and what they are hashes of.
_HASHES = {"doc_hash": "documents", "target_hash": "targets"}


@dataclass(frozen=True)
class Answer:
    """One document's metrics. hashes: of the document and the target, as far as the file has them."""

    metrics: dict[str, float]
    hashes: dict[str, str]
    prompt: str | None  # hash of the first prompt


@dataclass
class Run:
    """All samples of one run. answers: task -> (filter, doc_id) -> answer; files: task -> its file."""

    name: str
    answers: dict[str, dict[tuple[str, int], Answer]] = field(default_factory=dict)
    files: dict[str, Path] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Pairs:
    """The values of one metric for the documents that both runs answered, in the order of the documents."""

    task: str
    filter: str
    metric: str
    a: list[float]
    b: list[float]


def read_run(path: Path) -> Run:
    """path: a folder given to lm-eval as --output_path (or one of its subfolders), or one samples file.

    Raises ArgumentError, with the file and the line.
    """
    run = Run(str(path))
    for task, file in _files(path, run.notes).items():
        run.files[task] = file
        run.answers[task] = read_file(file)
    return run


def _files(path: Path, notes: list[str]) -> dict[str, Path]:
    """The newest samples file of each task."""
    if path.is_file():
        match = _NAME.fullmatch(path.name)
        return {match["task"] if match else path.stem: path}
    if not path.is_dir():
        raise ArgumentError(f"{path}: there is no such file or folder: expected lm-eval's --output_path, or a samples file")
    found: dict[str, list[tuple[str, Path]]] = {}
    try:
        files = sorted(path.rglob("samples_*.jsonl"))
    except OSError as error:  # Python before 3.13: a folder in it vanished
        raise ArgumentError(f"{path}: cannot be searched for samples: {error}") from None
    for file in files:
        match = _NAME.fullmatch(file.name)
        if match:
            found.setdefault(match["task"], []).append((match["date"] or "", file))
    if not found:
        raise ArgumentError(
            f"{path}: the folder holds no samples_TASK_DATE.jsonl: run lm_eval with --log_samples and --output_path {path}"
        )
    for task, runs in found.items():
        folders = sorted({str(file.parent) for _, file in runs})
        if len(folders) > 1:
            raise ArgumentError(
                f"{path}: task {task} has samples of more than one model, in {folders[0]} and {folders[1]}: name one of "
                "these folders"
            )
        if len(runs) > 1:
            notes.append(f"{path}: task {task} has {len(runs)} runs, the newest is used: {max(runs)[1].name}")
    return {task: max(runs)[1] for task, runs in sorted(found.items())}


def read_file(file: Path) -> dict[tuple[str, int], Answer]:
    """(filter, doc_id) -> answer. Raises ArgumentError, with the file and the line."""
    answers: dict[tuple[str, int], Answer] = {}
    for number, sample in _lines(file):
        key = (str(sample.get("filter", "none")), sample["doc_id"])
        if key in answers:
            raise ArgumentError(
                f"{file}, line {number}: document {key[1]} occurs a second time (filter {key[0]}): did two runs write to "
                "this file?"
            )
        hashes = {name: sample[name] for name in _HASHES if name in sample}
        answers[key] = Answer(_metrics(sample), hashes, sample.get("prompt_hash"))
    if not answers:
        raise ArgumentError(f"{file}: the file holds no samples")
    return answers


def _lines(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        with file.open(encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                try:
                    sample = json.loads(line)
                except ValueError as error:
                    raise ArgumentError(f"{file}, line {number}: not JSON ({error}): is the file complete?") from None
                if not isinstance(sample, dict) or not isinstance(sample.get("doc_id"), int):
                    raise ArgumentError(f"{file}, line {number}: expected a sample of lm-eval with an integer doc_id")
                yield number, sample
    except UnicodeDecodeError as error:
        raise ArgumentError(f"{file}: not UTF-8 text ({error.reason} at byte {error.start})") from None
    except OSError as error:
        raise ArgumentError(f"{file}: cannot be read: {error.strerror}") from None


def _metrics(sample: dict[str, Any]) -> dict[str, float]:
    """The metrics that are one number a document. Others (perplexities, F1 over a task) have no value for a document."""
    names = sample.get("metrics")
    if not isinstance(names, list):
        names = [name for name in sample if name not in _NOT_METRICS and not name.endswith("_hash")]
    values = {name: sample[name] for name in names if isinstance(sample.get(name), (int, float))}
    return {name: float(value) for name, value in values.items() if math.isfinite(value)}


def pair(a: Run, b: Run) -> tuple[list[Pairs], list[str]]:
    """The common documents of two runs, by task, filter and metric, and notes on what was not compared.

    Raises ArgumentError if the runs have no document in common, or other documents under the same numbers.
    """
    common = [task for task in a.answers if task in b.answers]
    if not common:
        raise ArgumentError(
            f"{a.name} and {b.name} have no task in common: the first has {_list(a.answers)}, the second {_list(b.answers)}"
        )
    notes = [*a.notes, *b.notes]
    for one, other in ((a, b), (b, a)):
        alone = [task for task in one.answers if task not in other.answers]
        if alone:
            notes.append(f"only {one.name} has {_list(alone)}")
    pairs: list[Pairs] = []
    for task in common:
        pairs += _pair_task(task, a, b, notes)
    if not pairs:
        raise ArgumentError(
            f"{a.name} and {b.name}: no metric of {_list(common)} is one number a document, so there is nothing to pair"
        )
    return pairs, notes


def _pair_task(task: str, a: Run, b: Run, notes: list[str]) -> list[Pairs]:
    mine, other = a.answers[task], b.answers[task]
    keys = sorted(key for key in mine if key in other)
    if not keys:
        raise ArgumentError(f"task {task}: {a.name} and {b.name} have no document in common")
    for key in keys:
        for name, what in _HASHES.items():
            before, after = mine[key].hashes.get(name), other[key].hashes.get(name)
            if before and after and before != after:
                raise ArgumentError(
                    f"task {task}, document {key[1]}: the two runs have different {what} under this number "
                    "(another version of the task or its data?), so they cannot be paired"
                )
    n_alone = len(mine) + len(other) - 2 * len(keys)
    if n_alone:
        notes.append(f"task {task}: documents of one run only are left out: {n_alone} (was --limit used?)")
    n_prompts = sum(mine[key].prompt != other[key].prompt for key in keys)
    if n_prompts:
        notes.append(
            f"task {task}: {n_prompts} of {len(keys)} prompts differ (few-shot examples or chat template), so differences are "
            "not of the models alone"
        )
    out: list[Pairs] = []
    for chosen in sorted({key[0] for key in keys}):
        rows = [(mine[key].metrics, other[key].metrics) for key in keys if key[0] == chosen]
        for metric in sorted({m for row in rows for side in row for m in side}):
            if all(metric in x and metric in y for x, y in rows):
                out.append(Pairs(task, chosen, metric, [x[metric] for x, _ in rows], [y[metric] for _, y in rows]))
            else:
                notes.append(f"task {task}: {metric} is not a number for every document of both runs and is left out")
    if not out:
        notes.append(f"task {task}: no metric is one number a document, so the task is left out")
    return out


def _list(names: Any) -> str:
    names = list(names)
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
