"""What a reader of results should know about the model: logged at the start, and stored in the results."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from .. import __version__
from ..base import tables
from ..base.json_file import read_object
from ..options import spelling
from ..options.settings import Settings
from .hub import Checkpoint
from .session import Session

log = logging.getLogger("lm_eval.ctworker")

#: Keys of the worker's model description (docs/PROTOCOL.md) that go into the results.
_KEPT = (
    "name", "architecture", "identity", "numerics", "backend", "variant", "device", "dtype",
    "activations", "activations_mode", "max_length", "own_length", "weight_bits", "vocab",
)  # fmt: skip


def notes(session: Session, max_length: int) -> list[str]:
    """Notes on computations that deviate from the checkpoint, and on checks that were not possible. max_length: longest
    input."""
    return [*about_activations(session.model), *about_length(session.model, max_length), *session.notes]


def about_length(model: dict[str, Any], longest: int) -> list[str]:
    """A note if inputs may have more tokens than the model has positions for. longest: input, in tokens."""
    own = model.get("own_length")
    if not own or longest <= own:
        return []
    return [
        f"inputs of up to {longest} tokens, but config.json makes the model's positions for {own}: scores of longer inputs say "
        "little about the model"
    ]


def about_activations(model: dict[str, Any]) -> list[str]:
    """A note if the checkpoint quantises activations, and the worker does not."""
    declared = model.get("activations")
    if not declared or model.get("activations_mode") == "checkpoint":
        return []
    return [f"activation quantisation is declared, not simulated: {declared}"]


def announce(session: Session, settings: Settings, max_length: int) -> None:
    """Logs the model, its dtype, its device, the window, and the notes."""
    model = session.model
    bits = f", {tables.bits(model['weight_bits'])} bits per weight" if model.get("weight_bits") else ""
    log.info(
        "%s: %s%s on %s %s (%s), max_length %d%s", model["name"], model["dtype"], bits,
        model["backend"], model["variant"], model["device"], max_length,
        "" if settings.max_length else " (the model's own)",
    )  # fmt: skip
    if settings.backend == "auto" and settings.endpoint is None and model["backend"] == "cpu":
        reason = spelling.from_worker(model.get("reason") or "")
        log.info("device: the worker computes on the CPU%s", f" ({reason})" if reason else "")
    for note in notes(session, max_length):
        log.warning("%s: %s", model["name"], note)


def described(model: dict[str, Any]) -> dict[str, Any]:
    """What results record of a worker's description of a model."""
    return {name: model[name] for name in _KEPT if name in model}


def _quantization(model: dict[str, Any]) -> dict[str, Any]:
    """The weight format that config.json declares; empty when the file is not on this machine."""
    if not model.get("path"):
        return {}
    stored = read_object(Path(model["path"]) / "config.json").get("quantization_config") or {}
    return {"quant_method": stored.get("quant_method"), "format": stored.get("format")}


def model_info(
    session: Session, checkpoint: Checkpoint | None, settings: Settings, used: dict[str, Any]
) -> dict[str, Any]:
    """hf's keys, and under `ctworker` everything that the scores depend on."""
    model = session.model
    worker = described(model)
    worker |= {"version": session.version, "adapter": __version__, "notes": notes(session, used["max_length_used"])}
    return {
        "model_num_parameters": model.get("params", -1),
        "model_dtype": model["dtype"],
        "model_revision": settings.revision,
        "model_sha": checkpoint.commit if checkpoint else "",
        "ctworker": worker | used | _quantization(model),
    }
