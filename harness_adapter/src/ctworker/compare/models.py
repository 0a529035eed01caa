"""`ctworker-compare REFERENCE MODEL...`: checks everything, runs one worker for each model, and makes the report.

A worker holds the reference and one model, and compares them (job kind `divergence`). Needs numpy.
"""

from __future__ import annotations

import hashlib
import logging
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from .. import __version__
from ..base import gguf, tables
from ..base.errors import ArgumentError, CtworkerError
from ..base.progress import Progress
from ..client import hub
from ..client.launcher import environment, find_binary
from ..client.report import about_length, described
from ..client.token_client import TokenClient, TokenWorker
from ..client.wire import pack
from ..options import arguments, values
from ..options.settings import Settings
from ..perplexity import measure, methods
from ..perplexity.measure import Tokens
from ..perplexity.methods import Method
from ..perplexity.texts import Text
from ..text.tokenizer import TextTokenizer
from . import kept, layers, matrices
from .headline import NOISE_FLOOR
from .result import describe
from .tokenizers import difference

log = logging.getLogger("lm_eval.ctworker")

SCHEMA = "ctworker-compare-1"
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")


@dataclass(frozen=True)
class Options:
    """reference, models: folders or hub names; with an endpoint, names of the worker's models. labels: of the reference and
    of each model in the report; None: the last part of its name. worker: arguments of Worker
    or Client that hold for all models. reference_dtype: None: the models'. worst: number of positions to report. layers:
    hidden states are compared after each layer, too. matrices: windows of each document on which each quantised matrix is
    put into the reference alone; None: not asked. respell(message): of a model that failed, for the reader (spelling.py)."""

    reference: str
    models: list[str]
    text: Text
    method: Method
    worker: dict[str, Any] = field(default_factory=dict)
    endpoint: str | None = None
    token_file: str | None = None
    tokenizer: str | None = None
    reference_dtype: str | None = None
    noise_floor: bool = False
    worst: int = 10
    layers: bool = False
    matrices: int | None = None
    reference_label: str | None = None
    respell: Callable[[str], str] = str
    labels: Sequence[str | None] = ()


@dataclass(frozen=True)
class Case:
    """One comparison: `model` with the reference in the dtype `reference_dtype`."""

    label: str
    model: str
    reference_dtype: str | None
    notes: tuple[str, ...] = ()


#: show(case's number, number of cases, label, progress): called about twice per second.
Show = Callable[[int, int, str, Progress], None]


@dataclass(frozen=True)
class Plan:
    """What is compared, checked as far as possible without weights. tokens: of the reference's tokenizer."""

    options: Options
    cases: list[Case]
    tokenizer: TextTokenizer
    tokens: Tokens

    def counts(self) -> dict[str, int]:
        """Documents, tokens and, unless only the worker knows the length of a window, windows and targets."""
        out = {"documents": len(self.tokens.sizes), "tokens": sum(self.tokens.sizes)}
        if not self.options.method.needs_model:
            method = measure.limited(methods.resolve(self.options.method, 1 << 31), self.tokens)
            counts = methods.total(method, self.tokens.sizes)
            out |= {"windows": counts.windows, "targets": counts.targets}
        return out


def prepare(options: Options) -> Plan:
    """Raises CtworkerError for everything that can be known before a worker starts."""
    _check(options)
    if options.endpoint is None:
        for name in [options.reference, *options.models]:
            _inspect(_folder(name, options))
    tokenizer, tokens, cases = _tokenize(options, _cases(options))
    if not options.method.needs_model:
        measure.check(tokens, methods.resolve(options.method, 1 << 31))
    return Plan(options, cases, tokenizer, tokens)


def compare(plan: Plan, show: Show, keep: Callable[[dict[str, Any]], None] = lambda report: None) -> dict[str, Any]:
    """The report. A model that fails has an `error` in it, and the others go on. keep: called with the report so far after
    each model. Raises CtworkerError."""
    n = len(plan.cases)
    report: dict[str, Any] = {
        "schema": SCHEMA, "version": __version__, "reference": plan.options.reference_label or _short(plan.options.reference),
        "text": None, "models": [],
    }  # fmt: skip
    for i, case in enumerate(plan.cases):
        start = time.monotonic()
        head: dict[str, Any] = {"label": case.label, "name": case.model, "notes": list(case.notes)}
        try:
            found = _run(plan, case, report, partial(show, i, n, case.label))
        except CtworkerError as error:
            if n == 1:
                raise
            message = plan.options.respell(str(error))
            log.error("%s: %s", case.label, message)
            found = {"error": message}
        head["notes"] += found.pop("notes", [])
        report["models"].append(head | found | {"seconds": round(time.monotonic() - start, 3)})
        keep(report)
    return report


def _check(options: Options) -> None:
    method = options.method
    if method.cut != "rule":
        raise ArgumentError(f"method {method.name} cuts lm-eval's windows, which cannot be compared: choose another --method")
    if options.endpoint is not None and (options.noise_floor or options.reference_dtype):
        raise ArgumentError(
            "--noise-floor and --reference-dtype load the reference in a dtype of its own, so they cannot be used with "
            "--endpoint: start the worker with --model NAME:DTYPE=DIR and compare its two models"
        )
    dtype = values.dtype("dtype", options.worker.get("dtype") or "auto")
    if options.noise_floor and dtype == "float32":
        raise ArgumentError("--noise-floor compares 16 bits with float32: leave out --dtype float32")
    if not options.models and not options.noise_floor:
        raise ArgumentError("no MODEL to compare with the reference: name one, or pass --noise-floor")


def _cases(options: Options) -> Sequence[Case]:
    """Each model under its label, else under a short name: the last part of its path, unless two are equal."""
    labels = options.labels or [None] * len(options.models)
    short = [label or _short(name) for label, name in zip(labels, options.models, strict=True)]
    for label in filter(None, labels):
        if short.count(label) > 1 or label == NOISE_FLOOR:
            raise ArgumentError(f"the label {label!r} stands for two things: choose another one before the =")
    cases = [
        Case(last if short.count(last) == 1 and last != NOISE_FLOOR else name, name, options.reference_dtype)
        for name, last in zip(options.models, short)
    ]
    floor = [Case(NOISE_FLOOR, options.reference, "float32")] if options.noise_floor else []
    return [*floor, *cases]


def _short(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2] or name


# ---- before any work ----


def _settings(options: Options, name: str) -> Settings:
    return arguments.parse({"pretrained": name, **options.worker})


def _folder(name: str, options: Options) -> Path:
    return hub.resolve(name, _settings(options, name), weights=True).folder


def _inspect(folder: Path) -> None:
    """Raises CtworkerError with the worker's message if it would not open the checkpoint."""
    done = subprocess.run(
        [find_binary(), "inspect", "--backend", "cpu", str(folder)],
        capture_output=True, text=True, errors="replace", check=False, env=environment(), stdin=subprocess.DEVNULL,
    )  # fmt: skip
    if done.returncode != 0:
        words = done.stderr.strip().splitlines() or [f"ctworker inspect {folder} ended with exit code {done.returncode}"]
        raise CtworkerError(words[-1].partition("error: ")[2] or words[-1])


def _tokenizer(source: str, name: str, options: Options) -> TextTokenizer | None:
    """source: a folder, GGUF file or hub name. None: the folder has no tokenizer."""
    folder = hub.resolve(source, _settings(options, source), weights=False).folder
    if not any((folder / file).exists() for file in _TOKENIZER_FILES) and gguf.find(folder) is None:
        return None
    return TextTokenizer(folder, name=name)


def _tokenize(options: Options, cases: Sequence[Case]) -> tuple[TextTokenizer, Tokens, list[Case]]:
    """The reference's tokenizer, its tokens of the text, and the cases with notes on tokenizers. Raises ArgumentError if a
    model's tokenizer gives other tokens. --tokenizer stands for all of them."""
    own, notes = (options.tokenizer, ()) if options.tokenizer else _source(options.reference, options)
    tokenizer = _tokenizer(own, own, options)
    if tokenizer is None:
        raise ArgumentError(f"{own} has no tokenizer ({', '.join(_TOKENIZER_FILES)}): name a folder with --tokenizer")
    tokens = measure.tokenize(options.text, options.method, tokenizer)
    if options.tokenizer is not None:
        return tokenizer, tokens, list(cases)
    agreed = [_agree(case, tokenizer, tokens, options) for case in cases]
    return tokenizer, tokens, [replace(case, notes=(*notes, *case.notes)) for case in agreed]


def _source(name: str, options: Options) -> tuple[str, tuple[str, ...]]:
    """The folder or hub name of a model, and notes on it. Raises ArgumentError if a running worker's model is not on this
    machine, or is no longer what its folder holds."""
    if options.endpoint is None:
        return name, ()
    with TokenClient(options.endpoint, model=name, token_file=options.token_file) as client:
        folder, notes = client.folder, client.notes
    if folder is None:
        raise ArgumentError(
            f"the files of {name} at {options.endpoint} are not on this machine: pass their tokenizer with --tokenizer (a folder "
            "or a hub name)"
        )
    return str(folder), tuple(notes)


def _agree(case: Case, tokenizer: TextTokenizer, tokens: Tokens, options: Options) -> Case:
    if case.model == options.reference:
        return case
    source, notes = _source(case.model, options)
    other = _tokenizer(source, case.model, options)
    if other is None:
        return replace(case, notes=(*notes, f"{case.model} has no tokenizer: the reference's was used"))
    theirs = measure.tokenize(options.text, options.method, other)
    ids = [[list(document.tokens) for document in each.documents] for each in (tokens, theirs)]
    how = difference(tokenizer, other, options.text.documents, *ids)
    if how is None and tokens.bos != theirs.bos:
        how = f"BOS is token {tokens.bos} in {tokenizer.name_or_path} and {theirs.bos} in {other.name_or_path}"
    if how is not None:
        raise ArgumentError(
            f"{case.model} cannot be compared with {options.reference} token by token, because their tokenizers differ: {how}"
        )
    return replace(case, notes=notes)


# ---- the work ----


def _run(plan: Plan, case: Case, report: dict[str, Any], on_progress: Callable[[Progress], None]) -> dict[str, Any]:
    """Compares one model; sets the report's `text` if it is not known yet."""
    options = plan.options
    reference = "reference" if options.endpoint is None else options.reference
    with _client(options, case) as client:
        if case.label == NOISE_FLOOR and client.model["dtype"] == "float32":
            raise CtworkerError(f"{case.model} computes in float32 already, so there is no noise floor")
        model, other = _sides(client, reference, options)
        notes = _swapped(case, model, other)
        most = min(client.max_length, client.describe(reference)["max_length"])
        tokens = measure.check(plan.tokens, methods.resolve(options.method, most))
        method = measure.limited(methods.resolve(options.method, most), tokens)
        for side in (model, other):
            notes += [f"{side['name']}: {note}" for note in about_length(side, int(method.window))]
        for note in notes:
            log.warning("%s: %s", case.label, note)
        rule, texts = measure.rule(method, tokens), measure.inputs(method, tokens)
        results = client.compare_windows(texts, reference=reference, **rule, layers=options.layers, on_progress=on_progress)
        alone = None
        if options.matrices is not None and case.label != NOISE_FLOOR:
            few = rule | {"rows": min(rule["rows"] or options.matrices, options.matrices)}
            alone = client.compare_windows(
                texts, reference=reference, **few, matrices=True, on_progress=lambda now: on_progress(_without_rate(now))
            )
        model, other = _sides(client, reference, options)
    found = describe(results, texts, rule, plan.tokenizer, options.worst)
    if options.layers:
        found["layers"] = [layer.to_json() for layer in layers.summarize(results)]
    if alone is not None:
        found["matrices"] = matrices.summarize(alone)
        found["matrices"]["kept"] = _keep_worst(options, case, found["matrices"], texts, few, on_progress)
    _check_reference(report, other)
    if report["text"] is None:
        report["text"] = _text(plan, tokens, method, texts, rule, found)
    return {"model": model, "reference": other, **found, "notes": notes}


def _sides(client: TokenClient, reference: str, options: Options) -> tuple[dict[str, Any], dict[str, Any]]:
    """The descriptions of the model and of the reference. Before anything was compared, identities may not be known yet."""
    model, other = (described(client.describe(name)) for name in (client.model["name"], reference))
    return model, other | {"name": options.reference}


def _keep_worst(
    options: Options, case: Case, ranked: dict[str, Any], texts: Sequence[Any], rule: dict[str, Any], on_progress: Callable[..., None]
) -> dict[str, Any]:
    """Measures the model with its worst matrices in 16 bits, on the windows of the ranking; `error`: why it cannot be."""
    names = kept.worst(ranked)
    if options.endpoint is not None:
        return {"error": "a running worker has not loaded such a checkpoint (ctworker-compare without --endpoint measures it)"}
    try:
        with tempfile.TemporaryDirectory(prefix="ctworker-kept-") as folder:
            n_bytes = kept.write(_folder(case.model, options), _folder(options.reference, options), names, Path(folder))
            with _client(options, replace(case, model=folder)) as client:
                results = client.compare_windows(texts, reference="reference", **rule, on_progress=on_progress)
    except (CtworkerError, OSError) as error:
        return {"error": str(error)}
    return {"names": names, "bytes": n_bytes, "kl": matrices.divergence(results)}


def _without_rate(progress: Progress) -> Progress:
    """Of matrices: a window is computed once for each matrix, so its tokens give no rate that means anything."""
    return replace(progress, tokens_per_s=None)


def _swapped(case: Case, model: dict[str, Any], reference: dict[str, Any]) -> list[str]:
    """A warning if the reference is quantised and the model is not."""
    if not reference.get("weight_bits") or model.get("weight_bits"):
        return []
    return [
        f"the reference {reference['name']} is quantised ({tables.bits(reference['weight_bits'])} bits per weight), and {case.model} is "
        "not: name the original first if the two are swapped"
    ]


def _check_reference(report: dict[str, Any], reference: dict[str, Any]) -> None:
    """Every model must be compared with the same checkpoint. Raises CtworkerError."""
    for before in (model["reference"] for model in report["models"] if "reference" in model):
        if before["identity"] != reference["identity"]:
            raise CtworkerError(
                f"the reference {reference['name']} has changed since the first comparison (identity {before['identity']}, "
                f"now {reference['identity']}): compare again"
            )


def _client(options: Options, case: Case) -> TokenClient:
    if options.endpoint is not None:
        return TokenClient(options.endpoint, model=case.model, token_file=options.token_file)
    return TokenWorker(
        case.model, reference=options.reference, reference_dtype=case.reference_dtype, **options.worker
    )


def _text(
    plan: Plan, tokens: Tokens, method: Method, texts: Sequence[Any], rule: dict[str, Any], found: dict[str, Any]
) -> dict[str, Any]:
    """What was compared, and how it was cut: everything that the numbers depend on besides the models."""
    digest = hashlib.sha256()
    text = tokens.text
    notes = list(text.notes)
    if method.vocabulary != "model":
        notes.append(f"method {method.name} is over the tokenizer's tokens; divergences are over all ids that both models have")
    for each in texts:
        digest.update(pack(each))
    return {
        "name": text.name, "source": text.source, "join": text.join, "sha256": text.sha256, "bytes": text.n_bytes,
        "documents": len(texts), "notes": notes, "tokens": sum(map(len, texts)), "tokens_sha256": digest.hexdigest(),
        "tokenizer": {"name": plan.tokenizer.name_or_path, "sha256": plan.tokenizer.fingerprint},
        "method": method.fields(), "rule": rule, "windows": found["windows"], "targets": found["statistics"]["targets"],
        "windows_of_text": methods.total(replace(method, max_windows=0), tokens.sizes).windows,
    }  # fmt: skip
