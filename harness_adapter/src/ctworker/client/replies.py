"""The fields of replies that this package reads (docs/PROTOCOL.md), checked before they are used, so that a corrupted
reply is an error that names the field."""

from __future__ import annotations

from typing import Any

from ..base.errors import ProtocolError

#: Fields by name: str, int (never negative), float, one of some words, an object's own fields, or a list of one kind. A
#: name that ends in "?" may be absent or nil.
Fields = dict[str, Any]

ERROR: Fields = {"code?": str, "message?": str, "retry_ms?": int, "item?": int, "layer?": int}
_STATE: Fields = {"state": str, "message?": str}
_MODEL: Fields = _STATE | {
    "name": str, "path?": str, "model_type?": str, "numerics?": str, "identity?": str, "weights?": {"files?": str},
}  # fmt: skip
_READY: Fields = {
    "max_length": int, "vocab": int, "numerics": str, "identity": str, "backend": str, "variant": str, "device": str,
    "dtype": str, "architecture?": str, "reason?": str, "products?": str, "activations?": str, "activations_mode?": str,
    "placement?": str, "weights_note?": str, "weight_bits?": float, "params?": int, "threads?": int, "fit_length?": int, "own_length?": int,
    "weights_bytes?": int, "weights_memory?": int, "weights_streamed?": int, "memory_planned?": int, "memory_limit?": int,
}  # fmt: skip
_PROGRESS: Fields = {"tokens_done?": int, "tokens?": int, "tokens_computed?": int, "tokens_per_s?": float, "seconds_left?": float}
_LIMITS: Fields = {"message_bytes?": int, "part_bytes?": int, "fetch_bytes?": int, "job_items?": int, "queue_bytes?": int}
_JOB_STATES = {"open", "queued", "running", "done", "failed", "canceled"}
_REPLIES: dict[str, Fields] = {
    "info": {"state?": str, "message?": str, "version?": str, "models?": [_MODEL], "limits?": _LIMITS},
    "health": _STATE,
    "seal": {"state": _JOB_STATES},
    "poll": {"state": _JOB_STATES, "items_done": int, "again_ms?": int, "progress?": _PROGRESS, "error?": ERROR},
    "fetch": {
        "first": int, "n": int, "result": {}, "numerics": str, "identity": str, "layers?": int, "matrices?": [str],
        "ref_numerics?": str, "ref_identity?": str,
    },
}  # fmt: skip
_NAMES = {str: "a string", int: "a whole number", float: "a number"}


def check(op: str, reply: dict[str, Any]) -> None:
    """Raises a ProtocolError that names the first field of a reply to `op` that is missing or of another type."""
    check_fields(reply, _REPLIES.get(op, {}), "")
    for i, model in enumerate(reply.get("models") or []) if op == "info" else ():
        if model["state"] == "ready":
            check_fields(model, _READY, f"models[{i}].")


def check_fields(found: dict[str, Any], fields: Fields, where: str) -> None:
    """The same for an object; nil is removed where a field may be absent. where: the path to it, in messages."""
    for spelled, kind in fields.items():
        name = spelled.removesuffix("?")
        value = found.get(name)
        if value is None and spelled != name:
            found.pop(name, None)
            continue
        if name not in found:
            raise ProtocolError(f"the field {where}{name} is missing")
        _check_value(value, kind, where + name)


def _check_value(value: Any, kind: Any, where: str) -> None:
    if isinstance(kind, dict):
        if not isinstance(value, dict):
            raise ProtocolError(f"the field {where} is {value!r:.60}, expected a map")
        check_fields(value, kind, f"{where}.")
    elif isinstance(kind, list):
        if not isinstance(value, list):
            raise ProtocolError(f"the field {where} is {value!r:.60}, expected a list")
        for i, element in enumerate(value):
            _check_value(element, kind[0], f"{where}[{i}]")
    elif isinstance(kind, set):
        if not isinstance(value, str) or value not in kind:
            raise ProtocolError(f"the field {where} is {value!r:.60}, expected one of {', '.join(sorted(kind))}")
    else:
        kinds = (int, float) if kind is float else kind
        if not isinstance(value, kinds) or isinstance(value, bool) or (kind is int and value < 0):
            raise ProtocolError(f"the field {where} is {value!r:.60}, expected {_NAMES[kind]}")
