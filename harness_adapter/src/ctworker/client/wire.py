"""Messages of the ctworker protocol (docs/PROTOCOL.md): msgpack maps, and columns of packed numbers."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import msgpack

from ..base.errors import ProtocolError, WorkerError
from .replies import ERROR, check_fields

PROTOCOL_VERSION = 1

#: Largest message that either side sends; a longer reply is refused before it is read.
MESSAGE_BYTES = 64 << 20

#: array typecodes of the protocol's column types.
INT32, FLOAT32, FLOAT64, UINT8 = "i", "f", "d", "B"
_WIDTH = {INT32: 4, FLOAT32: 4, FLOAT64: 8, UINT8: 1}

for _code, _bytes in _WIDTH.items():
    if array(_code).itemsize != _bytes:  # pragma: no cover - no such Python platform is known
        raise ImportError(f"array('{_code}') has {array(_code).itemsize} bytes, expected {_bytes}")


def pack(values: Iterable[int | float], typecode: str = INT32) -> bytes:
    """Packs numbers as a little-endian `bin` field."""
    out = (
        values
        if isinstance(values, array) and values.typecode == typecode
        else array(typecode, values)
    )
    if sys.byteorder != "little":
        out = array(typecode, out)
        out.byteswap()
    return out.tobytes()


def unpack(data: bytes, typecode: str) -> array[Any]:
    """The numbers of a little-endian `bin` field."""
    out: array[Any] = array(typecode)
    out.frombytes(data)
    if sys.byteorder != "little":
        out.byteswap()
    return out


def encode_request(op: str, request_id: int, fields: dict[str, Any]) -> bytes:
    """One request message."""
    data: bytes = msgpack.packb({"v": PROTOCOL_VERSION, "op": op, "id": request_id, **fields}, use_bin_type=True)
    return data


def decode_reply(data: bytes, request_id: int) -> dict[str, Any]:
    """The map of a reply to request `request_id`.

    Raises WorkerError when the worker refuses, ProtocolError when the bytes are not a reply to the request.
    """
    try:
        reply = msgpack.unpackb(data, raw=False, strict_map_key=True)
    except Exception as error:  # msgpack raises many kinds
        cause = str(error) or type(error).__name__
        raise ProtocolError(f"the reply is not msgpack: {cause}") from error
    if not isinstance(reply, dict) or "ok" not in reply:
        raise ProtocolError(f"the reply is not a map with the field ok: {str(reply)[:80]}")
    if reply["ok"] is not True:
        check_fields(reply, {"error?": ERROR}, "")
        refusal = reply.get("error") or {}
        raise WorkerError(
            str(refusal.get("code", "internal")),
            str(refusal.get("message", "the worker gave no reason")),
            retry_ms=refusal.get("retry_ms"),
            item=refusal.get("item"),
            layer=refusal.get("layer"),
        )
    if reply.get("id") != request_id:
        raise ProtocolError(f"the field id is {reply.get('id')!r:.60}, expected {request_id}")
    return reply


#: The columns of `fetch`: their types, and what they have a value for (`layer`, `matrix`: each of
#: them, for each window).
COLUMNS = {
    "item": (INT32, "item"),
    "sum": (FLOAT64, "item"),
    "count": (INT32, "item"),
    "is_greedy": (UINT8, "item"),
    "truncated": (INT32, "item"),
    "windows": (INT32, "item"),
    "window_sum": (FLOAT64, "window"),
    "window_count": (INT32, "window"),
    "logprob": (FLOAT32, "target"),
    "greedy": (INT32, "target"),
    "ref_logprob": (FLOAT32, "target"),
    "ref_greedy": (INT32, "target"),
    "ref_top": (FLOAT32, "target"),
    "kl": (FLOAT32, "target"),
    "kl_reverse": (FLOAT32, "target"),
    "tv": (FLOAT32, "target"),
    "overlap5": (UINT8, "target"),
    "window_tokens": (INT32, "window"),
    "layer_reference": (FLOAT64, "layer"),
    "layer_error": (FLOAT64, "layer"),
    "layer_cosine": (FLOAT64, "layer"),
    "layer_relative": (FLOAT64, "layer"),
    "layer_channel": (INT32, "layer"),
    "layer_channel_error": (FLOAT64, "layer"),
    "matrix_kl": (FLOAT64, "matrix"),
}
#: Those of the kind `divergence`.
DIVERGENCE_COLUMNS = (
    "windows", "window_count", "logprob", "ref_logprob", "kl", "kl_reverse", "tv", "greedy", "ref_greedy", "ref_top",
    "overlap5",
)  # fmt: skip

#: Those of a divergence with `layers`.
LAYER_COLUMNS = tuple(name for name, (_, of) in COLUMNS.items() if of == "layer")


def decode_columns(
    result: dict[str, bytes],
    n_items: int,
    needed: Sequence[str] = ("sum", "is_greedy"),
    n_layers: int = 0,
    n_matrices: int = 0,
) -> dict[str, array[Any]]:
    """Unpacks the columns of a fetch reply and checks their lengths. needed: columns besides `item` and `count`.

    Raises a ProtocolError that names the column when a type or a length is wrong.
    """
    columns: dict[str, array[Any]] = {}
    for name, data in result.items():
        if name in COLUMNS:
            try:
                columns[name] = unpack(data, COLUMNS[name][0])
            except (TypeError, ValueError) as error:
                raise ProtocolError(f"column '{name}' of the worker's result: {error}") from error
    for name in ("item", "count", *needed):
        if name not in columns:
            raise ProtocolError(f"the worker's result lacks column '{name}'")
    for name in ("count", "windows", "window_count"):
        if min(columns.get(name, ()), default=0) < 0:
            raise ProtocolError(f"column '{name}' of the worker's result has a negative value")
    n_windows = sum(columns.get("windows", ()))
    lengths = {"item": n_items, "target": sum(columns["count"]), "window": n_windows}
    lengths |= {"layer": n_windows * n_layers, "matrix": n_windows * n_matrices}
    for name, column in columns.items():
        expected = lengths[COLUMNS[name][1]]
        if len(column) != expected:
            raise ProtocolError(
                f"column '{name}' of the worker's result has {len(column)} values, expected {expected}"
            )
    return columns
