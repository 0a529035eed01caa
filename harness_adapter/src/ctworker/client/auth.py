"""The token that a worker on tcp:// requires from its clients (`ctworker serve --token-file`)."""

from __future__ import annotations

import os
from pathlib import Path

from ..base.errors import ArgumentError


def client_token(token_file: str | None = None) -> str | None:
    """The token: the last word of the file's first line (NAME ROLE TOKEN, or TOKEN alone; # begins a comment).
    Without a file, the value of CTW_TOKEN; None when that is not set. Raises ArgumentError."""
    if token_file is None:
        return os.environ.get("CTW_TOKEN") or None
    try:
        lines = Path(token_file).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ArgumentError(f"token_file={token_file} cannot be read: {reason}") from error
    for line in lines:
        words = line.split()
        if words and not words[0].startswith("#"):
            return words[-1]
    raise ArgumentError(
        f"token_file={token_file} contains no token: expected a line NAME ROLE TOKEN, or TOKEN alone"
    )
