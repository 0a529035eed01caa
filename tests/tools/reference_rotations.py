"""Run-time rotations of activations (compressed-tensors' transform_config); part of reference_model.py.

A transform multiplies blocks of a module's input or output, or of the heads of queries and keys after RoPE, by a matrix from
the right: for the Hadamard types by the matrix (inverse: its transpose) divided by the root of its size. Matrices that a
module does not have under its own name are shared: stored once, or Sylvester's.
"""

import re

import numpy as np

from reference_formats import widen

HEADS = ("q_attn", "k_cache")


def matches(entry, module, location):
    """An entry that is no expression is a module, or its class: that of attention modules has a name of the family's."""
    if entry.startswith("re:"):
        return re.match(entry[3:], module) is not None
    return entry == module or (entry.endswith("Attention") if location in HEADS else entry == "Linear")


def sylvester(size):
    h = np.ones((1, 1))
    while len(h) < size:
        h = np.block([[h, h], [h, -h]])
    return h


def stored(name, location, module, part, size, other, tensors):
    """The module's own tensor, or another's of the same transform and size; `other`: at these locations."""
    own = f"{module}.{name}_{location}.{part}"
    ends = tuple(f".{name}_{o}.{part}" for o in other)
    shared = [n for n, (_, raw) in tensors.items() if n.endswith(ends) and len(raw) == size]
    found = own if own in tensors else shared[0] if shared else None
    return None if found is None else tensors[found]


def matrix_of(name, scheme, use, module, width, tensors):
    """[size, size] float64, by which a row of blocks is multiplied."""
    size, location = scheme.get("head_dim") or width, use["location"]
    random = scheme["type"] == "random-matrix"
    other = [u["location"] for u in scheme["apply"] if not random or u.get("inverse", False) == use.get("inverse", False)]
    own = stored(name, location, module, "weight", size, other, tensors)
    m = sylvester(size) if own is None else own[1] if own[0] == "F64" else widen(*own).astype(np.float64)
    if random:
        return m
    if scheme.get("randomize"):
        order = stored(name, location, module, "perm", size, other, tensors)[1]
        m = m[order][:, order]
    return (m.T if use.get("inverse") else m) / np.sqrt(size)


def rotated(x, location, module, tensors, config, r):
    """x [.., width], rounded by r if it is rotated."""
    groups = ((config.get("quantization_config") or {}).get("transform_config") or {}).get("config_groups") or {}
    for name, scheme in groups.items():
        for use in scheme["apply"]:
            if use["location"] != location or not any(matches(e, module, location) for e in use["targets"]) or any(
                    matches(e, module, location) for e in use.get("ignore", ())):
                continue
            m = matrix_of(name, scheme, use, module, x.shape[-1], tensors)
            x = r((x.reshape(*x.shape[:-1], -1, len(m)) @ m).reshape(x.shape))
    return x
