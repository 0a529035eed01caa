"""Runs lm-eval tasks in the process of the cells: lm_eval as a library, the model `ctworker` at the cell's worker."""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...base.errors import ArgumentError, CtworkerError
from ...options.settings import On, options_on
from .. import files
from .shared import environment

if TYPE_CHECKING:
    from lm_eval.tasks import TaskManager

    from ..place import Place

log = logging.getLogger("lm_eval.ctworker")

#: The metric that stands for a task, the first of these that the task has.
_HEADLINE = ("acc_norm", "acc", "word_perplexity", "perplexity", "exact_match", "f1", "mcc")
_SAMPLE_DOCS = 12  # documents that are built to estimate a task's size
_CHARACTERS_PER_TOKEN = 4.0  # of English; after the first model, the true number is known
_HASHES = ("doc_hash", "prompt_hash", "target_hash")  # of a sample
_EVALUATE = (
    "apply_chat_template",
    "fewshot_as_multiturn",
    "system_instruction",
    "num_fewshot",
    "limit",
)
#: Model arguments that a running worker has already; the others are passed on to the model.
_OF_WORKER = {option.name for option in options_on(On.SERVE)} - {"max_length"} | {"load_timeout"}


def prepare(settings: dict[str, Any], place: Place) -> dict[str, Any]:
    """Finds the task, loads its data and estimates its size. Raises ArgumentError for a task that does not exist, has
    no such metric, or generates text."""
    with environment(settings["env"]):
        loaded = _manager(settings, place).load([settings["task"]])["tasks"]
        generating = [name for name, task in loaded.items() if task.OUTPUT_TYPE == "generate_until"]
        if generating:
            raise ArgumentError(
                f"the task {settings['task']} generates text ({', '.join(generating[:5])}), and ctworker only scores: leave "
                "it out"
            )
        _check_metric(settings, loaded)
        return {"tokens": sum(_tokens_of(task, settings) for task in loaded.values())}


def run(settings: dict[str, Any], place: Place) -> dict[str, Any]:
    from lm_eval.evaluator import simple_evaluate

    model = _model(place)
    first = model.n_tokens
    with environment(settings["env"]):
        results = simple_evaluate(
            model=model,
            tasks=[settings["task"]],
            task_manager=_manager(settings, place),
            log_samples=True,
            **{name: settings[name] for name in _EVALUATE if name in settings},
        )
    assert results is not None
    metrics = _metrics(settings, results)
    source = model.get_model_info()["ctworker"]
    return {
        "metrics": metrics,
        "source": source,
        "method": _method(settings, results),
        "details": {"subtasks": _subtasks(settings, results), "samples": _keep_samples(results.get("samples", {}), place)},
        "n_tokens": model.n_tokens - first,
    }


# -- lm-eval's objects --------------------------------------------------------------------------------------


def _manager(settings: dict[str, Any], place: Place) -> TaskManager:
    """The task manager for these folders. lm-eval's own tasks cost seconds to index, so they are left out where the
    folders have the task."""
    from lm_eval.tasks import TaskManager

    folders = settings["include_path"]
    for defaults in (False, True) if folders else (True,):
        key = ("manager", defaults, *folders)
        if key not in place.kept:
            place.kept[key] = TaskManager(include_path=folders, include_defaults=defaults)
        if settings["task"] in place.kept[key].all_tasks:
            return place.kept[key]
    known = place.kept[key].all_tasks
    near = [name for name in known if name.startswith(settings["task"][:4])][:4]
    hint = f" (it has {', '.join(near)}, ...)" if near else ""
    raise ArgumentError(
        f"lm-eval has no task {settings['task']}{hint}: see lm_eval ls tasks, or name a folder of task files with "
        "include_path:"
    )


def _model(place: Place) -> Any:
    """The model at the place's worker, kept for the next task."""
    from ...lm import CTWorkerLM

    if place.kept.get("model of") != place.worker_key:
        close(place)
        given = {name: value for name, value in place.options.items() if name not in _OF_WORKER}
        if place.tokenizer is not None:
            given["tokenizer"] = place.tokenizer
        place.kept["model"] = CTWorkerLM(pretrained=place.folder, endpoint=place.url, **given)
        place.kept["model of"] = place.worker_key
    model = place.kept["model"]
    model.on_progress = place.progress
    return model


def close(place: Place) -> None:
    model = place.kept.pop("model", None)
    place.kept.pop("model of", None)
    if model is not None:
        model.close()


# -- before the run -----------------------------------------------------------------------------------------


def _check_metric(settings: dict[str, Any], loaded: dict[str, Any]) -> None:
    wanted = settings.get("metric")
    if wanted is None or not loaded:
        return
    known = sorted({name for task in loaded.values() for name in task.aggregation()})
    if wanted not in known:
        raise ArgumentError(
            f"the task {settings['task']} has no metric {wanted}: expected one of {', '.join(known)}"
        )


def _tokens_of(task: Any, settings: dict[str, Any]) -> int:
    """About how many tokens a task scores, from its first documents."""
    shots = settings.get("num_fewshot")
    if shots is not None and task.get_config("num_fewshot") != 0:
        task.set_config(key="num_fewshot", value=shots)
    elif task.get_config("num_fewshot") is None:
        task.set_config(key="num_fewshot", value=0)
    task.set_fewshot_seed(seed=1234)
    n_docs = len(task.eval_docs)
    n_docs = min(n_docs, settings.get("limit") or n_docs)
    built = min(n_docs, _SAMPLE_DOCS)
    if built == 0:
        return 0
    task.build_all_requests(limit=built)
    texts = itertools.chain.from_iterable(instance.args for instance in task.instances)
    characters = sum(len(text) for text in texts if isinstance(text, str))
    return math.ceil(characters / _CHARACTERS_PER_TOKEN * n_docs / built)


# -- after the run ------------------------------------------------------------------------------------------


def _metrics(settings: dict[str, Any], results: dict[str, Any]) -> list[dict[str, Any]]:
    """The numbers of the task, or of the tasks of a tag; the first task's headline stands for the cell."""
    names = (
        [settings["task"]] if settings["task"] in results["results"] else sorted(results["results"])
    )
    found = [metric for name in names for metric in _metrics_of(name, results)]
    wanted = (settings["metric"],) if "metric" in settings else _HEADLINE
    order = [*wanted, *(metric["metric"] for metric in found)]
    best = min(found, key=lambda metric: order.index(metric["metric"]), default=None)
    if best is None:
        raise ArgumentError(f"the task {settings['task']} gave no number")
    best["headline"] = True
    return found


def _metrics_of(name: str, results: dict[str, Any]) -> Iterator[dict[str, Any]]:
    values = results["results"][name]
    better = results.get("higher_is_better", {}).get(name, {})
    for key, value in values.items():
        metric, _, chosen = key.partition(",")
        if not chosen or metric.endswith("_stderr") or not isinstance(value, (int, float)):
            continue
        stderr = values.get(f"{metric}_stderr,{chosen}")
        if not isinstance(stderr, (int, float)):
            stderr = _ratio_error(metric, value, results.get("samples", {}).get(name))
        higher = better.get(metric)
        yield {
            "task": name,
            "metric": metric,
            "filter": chosen,
            "value": float(value),
            "stderr": None if stderr is None or math.isnan(stderr) else float(stderr),
            "higher_is_better": higher if isinstance(higher, bool) else None,
        }


def _ratio_error(
    metric: str, value: float, samples: Sequence[dict[str, Any]] | None
) -> float | None:
    """The standard error of exp(-sum a / sum b) and of -sum a / (ln 2 sum b) over documents with (a, b), to first
    order: lm-eval gives none for these. None: the metric is of another kind."""
    values = [sample.get(metric) for sample in samples or ()]
    pairs = [pair for pair in values if isinstance(pair, (tuple, list)) and len(pair) == 2]
    if len(pairs) < 2 or len(pairs) < len(values):
        return None
    total = sum(weight for _, weight in pairs)
    ratio = sum(part for part, _ in pairs) / total
    n = len(pairs)
    spread = sum((part - ratio * weight) ** 2 for part, weight in pairs) * n / (n - 1)
    slope = value if metric.endswith("perplexity") else 1 / math.log(2)
    return float(slope * math.sqrt(spread) / total)


def _subtasks(settings: dict[str, Any], results: dict[str, Any]) -> dict[str, Any]:
    """The numbers of a group's tasks."""
    names = [name for name in results["results"] if name != settings["task"]]
    return (
        {name: list(_metrics_of(name, results)) for name in sorted(names)} if len(names) > 1 else {}
    )


def _keep_samples(samples: dict[str, list[dict[str, Any]]], place: Place) -> list[dict[str, Any]]:
    """Writes what paired tests need of each document, in lm-eval's form, for the tasks whose metrics are one number a document:
    what was written. Raises CtworkerError."""
    kept = []
    for task, answers in sorted(samples.items()):
        lines = [json.dumps(_answer(sample)) + "\n" for sample in answers if _numbers(sample)]
        if not lines or place.samples is None:
            continue
        path, data = Path(place.samples) / f"samples_{task}.jsonl", "".join(lines).encode()
        try:
            files.replace(path, data)
        except OSError as error:
            raise CtworkerError(f"{path}: cannot be written: {error.strerror}") from error
        kept.append({"task": task, "file": path.name, "sha256": hashlib.sha256(data).hexdigest(), "answers": len(lines)})
    return kept


def _answer(sample: dict[str, Any]) -> dict[str, Any]:
    numbers = _numbers(sample)
    hashes = {name: sample[name] for name in _HASHES if name in sample}
    return {"doc_id": sample["doc_id"], "filter": sample["filter"], "metrics": list(numbers), **numbers, **hashes}


def _numbers(sample: dict[str, Any]) -> dict[str, float]:
    found = {name: sample[name] for name in sample.get("metrics", ()) if isinstance(sample.get(name), (int, float))}
    return {name: float(value) for name, value in found.items() if math.isfinite(value)}


def _method(settings: dict[str, Any], results: dict[str, Any]) -> dict[str, Any]:
    """What a stranger needs to repeat the number."""
    import lm_eval

    counts = results.get("n-samples", {})
    return {
        "kind": "lm-eval task",
        "task": settings["task"],
        "lm_eval": getattr(lm_eval, "__version__", "") or _installed(),
        "task_versions": results.get("versions", {}),
        "num_fewshot": results.get("n-shot", {}),
        "n_docs": {name: count.get("effective") for name, count in counts.items()},
        "n_docs_of": {name: count.get("original") for name, count in counts.items()},
        **{name: settings[name] for name in _EVALUATE if name in settings},
    }


def _installed() -> str:
    from importlib.metadata import version

    return version("lm_eval")
