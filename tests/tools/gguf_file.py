"""The bytes of a GGUF file, version 3."""

import struct

import numpy as np

U32, F32, BOOL, TEXT, ARRAY, U64, I64 = 4, 6, 7, 8, 9, 10, 11


def text(s):
    return struct.pack("<Q", len(s.encode())) + s.encode()


def value(v):
    """Type and bytes."""
    if isinstance(v, bool):
        return struct.pack("<IB", BOOL, v)
    if isinstance(v, int):
        return struct.pack("<II", U32, v)
    if isinstance(v, float):
        return struct.pack("<If", F32, v)
    if isinstance(v, np.ndarray):
        return struct.pack("<IIQ", ARRAY, {"i": I64, "u": U64}[v.dtype.kind], len(v)) + v.tobytes()
    if isinstance(v, list):
        of, letter = {bool: (BOOL, "?"), float: (F32, "f")}.get(type(v[0]), (U32, "I"))
        return struct.pack(f"<IIQ{len(v)}{letter}", ARRAY, of, len(v), *v)
    return struct.pack("<I", TEXT) + text(v)


def header(keys, tensors, alignment=32):
    """tensors: name -> (type, shape as in safetensors, size in bytes). Returns what precedes their content, and where each begins
    after that."""
    infos, at, offsets = b"", 0, []
    for name, (kind, shape, size) in tensors.items():
        infos += text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *reversed(shape))
        infos += struct.pack("<IQ", kind, at)
        offsets.append(at)
        at += -(-size // alignment) * alignment
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys))
    head += b"".join(text(k) + value(v) for k, v in keys.items()) + infos
    return head + b"\0" * (-len(head) % alignment), offsets


def write_gguf(path, keys, tensors, alignment=32):
    """tensors: name -> (type, shape as in safetensors, bytes)."""
    head, _ = header(keys, {name: (kind, shape, len(data)) for name, (kind, shape, data) in tensors.items()}, alignment)
    with open(path, "wb") as f:
        f.write(head)
        for _, _, data in tensors.values():
            f.write(data + b"\0" * (-len(data) % alignment))
