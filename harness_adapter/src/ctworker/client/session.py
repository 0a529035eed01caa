"""The worker that a model object uses: its own worker, or a running worker at an endpoint."""

from __future__ import annotations

import logging
import os
import re
import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from ..base import interrupt
from ..base.errors import ArgumentError, CtworkerError, WorkerDied, WorkerError
from ..base.progress import Progress
from ..options import spelling
from ..options.settings import On, Settings, options_on
from .auth import client_token
from .batches import Item
from .connection import Connection
from .hub import Checkpoint
from .identity import LocalIdentity, has_weights, is_at, is_untouched
from .launcher import WorkerProcess
from .scoring import Scorer
from .transport import missing_path
from .wire import INT32

log = logging.getLogger("lm_eval.ctworker")

_LOADING_NOTE_S, _LOADING_PAUSE_S = 15.0, 0.2
_RESTART_PAUSE_S = 0.5
#: Options of `ctworker serve` that say what is kept, and not how models are scored.
_KEPT = ("store", "store_limit", "hidden", "hidden_limit")
_LOAD_AGAIN = "load the model again (restart the worker, or unload and load the model)"


def engine_options(settings: Settings) -> list[str]:
    """The command-line options of `ctworker serve` and `ctworker inspect` that say how models are scored."""
    names = [option.name for option in options_on(On.SERVE) if option.name not in _KEPT]
    return _given([("--backend", settings.backend), ("--device", settings.gpu), *_values(settings, names)])


def serve_options(settings: Settings, folder: Path) -> list[str]:
    """The command-line options of `ctworker serve` for these arguments."""
    return ["--model", str(folder), *engine_options(settings), *_given(_values(settings, _KEPT))]


def _values(settings: Settings, names: Iterable[str]) -> list[tuple[str, object]]:
    return [(spelling.flag(name), getattr(settings, name)) for name in names]


def _given(options: Iterable[tuple[str, object]]) -> list[str]:
    return [word for option, value in options if value is not None for word in (option, str(value))]


def over_vocabulary(numerics: str, n: int) -> str:
    """The numerics id of a job with probabilities over the first n ids only (docs/NUMERICS.md)."""
    return re.sub(r"(/vocabulary-\d+)?$", f"/vocabulary-{n}", numerics, count=1)


class Session:
    """A ready worker. `model`: description of the model (docs/PROTOCOL.md, "info"); `limits`: the worker's limits."""

    def __init__(
        self, settings: Settings, checkpoint: Checkpoint | None, beside: Sequence[str] = ()
    ) -> None:
        """Starts a worker, or checks the running worker. Raises CtworkerError with the worker's message.

        beside: further models for our own worker, NAME=DIR or NAME:DTYPE=DIR.
        """
        self._timeout = settings.timeout
        self._worker: WorkerProcess | None = None
        self._token: str | None = None  # our own worker requires none
        self._owner = os.getpid()
        self._settings, self._checkpoint, self._beside = settings, checkpoint, tuple(beside)
        self.notes: list[str] = []  # what a reader of the results should know
        self._local = LocalIdentity(checkpoint.folder) if checkpoint is not None else None
        if settings.endpoint is None:
            self._start()
        else:
            self.url = settings.endpoint
            self._token = client_token(settings.token_file)
            path = missing_path(self.url)
            if path is not None:
                raise ArgumentError(
                    f"endpoint={self.url}: there is no {path}, so no worker listens there: start a worker (ctworker serve "
                    f"--model DIR --listen {self.url}), or pass the endpoint of a running worker (ctworker ps)"
                )
        try:
            if self._worker is not None:
                self._worker.wait_ready(settings.load_timeout)
            with self.client() as client:
                info, self.model = self._wait_loaded(client, settings, checkpoint)
            self.version: str = info.get("version", "")
            self.limits: dict[str, int] = info.get("limits", {})
            interrupt.keep(self._kept_by(info))
            if self._worker is None:
                self._check_running(settings, checkpoint)
        except BaseException:
            self.close()
            raise

    def _kept_by(self, info: dict[str, Any]) -> str:
        """What keeps the results of this worker; "": nothing."""
        if not info.get("store"):
            return ""
        if self._worker is not None:
            return f"store={self._settings.store}"
        return f"the store of the worker at {self.url}"

    def _start(self) -> None:
        assert self._checkpoint is not None
        options = serve_options(self._settings, self._checkpoint.folder)
        for model in self._beside:
            options += ["--model", model]
        self._worker = WorkerProcess(options, log_file=self._settings.worker_log)
        self.url = self._worker.url

    @property
    def pid(self) -> int:
        """Process id of our own worker."""
        assert self._worker is not None
        return self._worker.pid

    def _restart(self, error: WorkerDied, n: int) -> Connection:
        """Restarts our own worker after its n-th crash in a row, and returns a client of the new worker. Raises the
        error when the worker gave a reason for its end, or was stopped."""
        assert self._worker is not None
        if not self._worker.crashed:
            raise error
        pause = _RESTART_PAUSE_S * 2 ** (n - 1)
        log.warning("%s; it will be started again in %g s", error, pause)
        time.sleep(pause)
        self._worker.close()
        self._start()
        self._worker.wait_ready(self._settings.load_timeout)
        return self.client()

    def client(self) -> Connection:
        """A new connection. Raises CtworkerError in a forked child."""
        if os.getpid() != self._owner:
            raise CtworkerError(
                f"this model belongs to process {self._owner}; a forked process must create its own model"
            )
        alive = None if self._worker is None else self._worker.check_alive
        return Connection(self.url, token=self._token, timeout=self._timeout, check_alive=alive)

    def score(
        self,
        kind: str,
        items: Sequence[Item],
        head: dict[str, Any],
        *,
        on_score: Callable[[int, Any], None],
        on_progress: Callable[[Progress], None],
        where: Callable[[int], str],
    ) -> None:
        """Scores the items with the session's model, and stores the numerics id and identity of the scores.

        The arguments are those of Scorer, with a head that names no model; where(i) names item i in a message.
        Raises CtworkerError.
        """
        source = self.model
        if "vocabulary" in head:
            source = self.model | {"numerics": over_vocabulary(self.model["numerics"], head["vocabulary"])}
        scorer = Scorer(
            self.client(), kind, items, {"model": self.model["name"], **head}, self.limits, on_score=on_score,
            on_progress=on_progress, source=source, restart=None if self._worker is None else self._restart,
        )  # fmt: skip
        try:
            scorer.run()
        except WorkerError as error:
            message = str(error) if self._worker is None else spelling.from_worker(str(error))
            if error.item is not None:
                message = f"{where(error.item)}: {message}"
            elif message == str(error):
                raise
            raise CtworkerError(message) from error
        finally:
            scorer.client.close()  # after a restart of the worker, the scorer has another client
        self.settle(None if "vocabulary" in head else scorer.numerics, scorer.identity)

    def source(self) -> dict[str, str]:
        """`identity` and `numerics` of the scores. A worker on a GPU knows its identity only after all weights are
        loaded; this method waits for that. Raises CtworkerError."""
        if self.model.get("identity"):
            return {name: self.model[name] for name in ("identity", "numerics")}
        log.info("waiting for the identity of model %s", self.model["name"])
        if self.model.get("weights_streamed"):  # read only while something is scored
            self._score_two_tokens()
            if not self.model.get("identity"):
                raise CtworkerError(
                    f"the worker at {self.url} gives no identity of model {self.model['name']}, even after all its weights were read: "
                    "use a worker of the same version as this package"
                )
            return self.source()
        with self.client() as client:
            while True:
                models = {model["name"]: model for model in client.info().get("models") or []}
                now = models.get(self.model["name"]) or {"state": "gone"}
                if now["state"] != "ready":
                    raise CtworkerError(
                        f"the worker at {self.url} is not ready: model {self.model['name']} is {now['state']}"
                    )
                self.settle(now.get("numerics"), now.get("identity"))
                if self.model["identity"]:
                    return self.source()
                time.sleep(_LOADING_PAUSE_S)

    def _score_two_tokens(self) -> None:
        """The shortest pass that reads all weights."""
        self.score(
            "loglikelihood", [Item(array(INT32, [0, 0]), 1)], {}, on_score=lambda i, score: None,
            on_progress=lambda progress: None, where="token {}".format,
        )  # fmt: skip

    def named(self, name: str) -> dict[str, Any]:
        """The worker's present description of another of its models. Raises CtworkerError."""
        with self.client() as client:
            models: dict[str, dict[str, Any]] = {model["name"]: model for model in client.info().get("models") or []}
        if name not in models:
            raise CtworkerError(f"the worker at {self.url} has no model '{name}' (it has {', '.join(models)})")
        return models[name]

    def settle(self, numerics: str | None, identity: str | None) -> None:
        """Stores the numerics id and identity of this session's scores, as given by results or by `info`."""
        self.model["numerics"] = numerics or self.model.get("numerics", "")
        self.model["identity"] = identity or self.model.get("identity", "")

    def _wait_loaded(
        self, client: Connection, settings: Settings, checkpoint: Checkpoint | None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Waits until the model to use is ready; returns `info` and the model. Raises CtworkerError when loading failed."""
        start, noted = time.monotonic(), None
        while True:
            info = client.info()
            model = self._choose(info, settings, checkpoint)
            state = "loading" if model is None else model["state"]
            name = "its models" if model is None else f"model {model['name']}"
            message = (model or {}).get("message") or info.get("message", "")
            if state == "ready" and model is not None:
                return info, model
            now = time.monotonic()
            if state != "loading":
                raise CtworkerError(
                    f"the worker at {self.url} is not ready: {name} is {state}{': ' + message if message else ''}"
                )
            if settings.load_timeout is not None and now - start > settings.load_timeout:
                raise CtworkerError(
                    f"the worker at {self.url} is still loading after {settings.load_timeout:g} s"
                    f"{': ' + message if message else ''} (load_timeout=)"
                )
            if noted is None or now - noted >= _LOADING_NOTE_S:
                noted = now
                log.info("the worker at %s is loading: %s", self.url, message or name)
            time.sleep(_LOADING_PAUSE_S)

    def _choose(
        self, info: dict[str, Any], settings: Settings, checkpoint: Checkpoint | None
    ) -> dict[str, Any] | None:
        """The model to use: the model named by model=, else the model that matches pretrained=, else the first. None:
        the worker is still loading and may have the model later. Raises CtworkerError when there is no such model."""
        models: list[dict[str, Any]] = info.get("models") or []
        names = ", ".join(model["name"] for model in models)
        for model in models:
            if model["name"] == settings.model:
                return model
        if models and not settings.model:
            return self._of_pretrained(models) or models[0]
        if info.get("state") == "loading":
            return None
        if not models and info.get("message"):
            raise CtworkerError(
                f"the worker at {self.url} is {info.get('state')}: {info['message']}"
            )
        raise CtworkerError(
            f"the worker at {self.url} has no model '{settings.model}' (it has {names})"
            if names
            else f"the worker at {self.url} has no model"
        )

    def _of_pretrained(self, models: list[dict[str, Any]]) -> dict[str, Any] | None:
        """The model that matches pretrained=: by its files, by its folder (which may hold other files by now), else by its
        identity."""
        if self._local is None:
            return None
        for matches in (is_untouched, is_at):
            for model in models:
                if matches(model, self._local.folder):
                    return model
        if len(models) > 1:
            for model in models:
                ours, _ = self._local.get(model.get("activations_mode", "none"))
                if ours and model.get("identity") == ours:
                    return model
        return None

    def folder(self) -> Path | None:
        """The folder (or GGUF file) of the running worker's model, for what is beside the weights; None: it is not on this
        machine. Raises ArgumentError if it no longer holds the checkpoint that the worker has loaded."""
        path = self.model.get("path")
        if not path or not Path(path).exists():
            return None
        if self._local is None or not is_at(self.model, self._local.folder):
            self._compare(path, LocalIdentity(Path(path)))
        return Path(path)

    def _compare(self, name: str, local: LocalIdentity) -> None:
        """Raises ArgumentError if the folder, `name` in messages, does not hold the checkpoint that the running worker has
        loaded. Adds a note if the two cannot be compared."""
        model, where = self.model, f"the worker at {self.url}"
        if is_untouched(model, local.folder):
            return
        ours, why = local.get(model.get("activations_mode", "none"))
        if ours:
            theirs = self.source()["identity"]
            if ours != theirs:
                raise ArgumentError(self._differs(name, local, ours, theirs))
            return
        if is_at(model, local.folder) and has_weights(local.folder):
            raise ArgumentError(
                f"{name} may have changed since {where} loaded it as {model['name']}, and the two cannot be compared ({why}): "
                f"{_LOAD_AGAIN}"
            )
        if model.get("path") and Path(model["path"]).exists() and has_weights(local.folder):
            raise ArgumentError(
                f"{name} is {local.folder}, but {where} has loaded {model['path']}, and the two cannot be "
                f"compared ({why}): leave pretrained= out, or start a worker with that model"
            )
        self.notes.append(f"{name} was not compared with the worker's checkpoint: {why}")

    def _differs(self, name: str, local: LocalIdentity, ours: str, theirs: str) -> str:
        model, where = self.model, f"the worker at {self.url}"
        if is_at(model, local.folder):
            return (
                f"{name} has changed since {where} loaded it as {model['name']}: it is now the checkpoint {ours}, but the "
                f"worker has loaded {theirs}: {_LOAD_AGAIN}"
            )
        return (
            f"{name} is the checkpoint {ours}, but {where} has loaded {model['name']}, which is {theirs}: "
            "leave pretrained= out (use tokenizer= for a tokenizer only), or start a worker with that checkpoint"
        )

    def _check_running(self, settings: Settings, checkpoint: Checkpoint | None) -> None:
        """Raises ArgumentError when the running worker's settings differ from the arguments."""
        model, where = self.model, f"the worker at {self.url}"
        if checkpoint is not None and self._local is not None:
            self._compare(f"pretrained={checkpoint.name}", self._local)
        if settings.dtype not in ("auto", model["dtype"]):
            raise ArgumentError(
                f"dtype={settings.dtype}, but {where} computes in {model['dtype']}: start a worker with --dtype "
                f"{settings.dtype}, or leave dtype= out"
            )
        mode = model.get("activations_mode", "none")
        if settings.activations not in (None, mode) and model.get("activations"):
            raise ArgumentError(
                f"activations={settings.activations}, but {where} has activations={mode}: start a worker with --activations "
                f"{settings.activations}, or leave activations= out"
            )
        if settings.max_length is not None and settings.max_length > model["max_length"]:
            raise ArgumentError(
                f"max_length={settings.max_length}, but {where} takes at most {model['max_length']}: start a worker "
                f"with --max-length {settings.max_length}"
            )
        if settings.device_is_wish and settings.backend != model["backend"]:
            raise ArgumentError(
                f"device={settings.backend}, but {where} computes on {model['backend']}: start a worker with "
                f"--backend {settings.backend}, or leave device= out"
            )
        if settings.vocabulary is not None and model["vocab"] > settings.vocabulary:
            raise ArgumentError(
                f"vocabulary={settings.vocabulary}, but {where} computes probabilities over {model['vocab']} tokens: start a "
                f"worker with --vocabulary {settings.vocabulary}, or leave vocabulary= out"
            )
        if settings.cpu_variant not in (None, model["variant"]):
            raise ArgumentError(
                f"cpu_variant={settings.cpu_variant}, but {where} runs {model['variant']}: leave cpu_variant= out, or start a "
                f"worker with --cpu-variant {settings.cpu_variant}"
            )
        ours = {
            "the number in device=": settings.gpu,
            "devices": settings.devices,
            "threads": settings.threads,
            "device_memory_limit": settings.device_memory_limit,
            "memory_limit": settings.memory_limit,
            "weights_limit": settings.weights_limit,
            "host_memory_limit": settings.host_memory_limit,
            "placement": settings.placement,
            "worker_log": settings.worker_log,
        }
        given = [name for name, value in ours.items() if value is not None]
        if given:
            log.info("without effect with endpoint= (the worker is already running): %s", ", ".join(given))

    def close(self) -> None:
        """Stops our own worker; a worker at an endpoint keeps running."""
        if self._worker is not None:
            self._worker.close()
