"""The console script `ctworker`: runs the worker program in this package (or CTWORKER_BIN)."""

from __future__ import annotations

import os
import sys

from . import interrupt


def main() -> int:
    interrupt.install("ctworker", stores=False)  # until the program takes this process over
    from .errors import CtworkerError
    from .launcher import find_binary

    try:
        binary = find_binary()
    except CtworkerError as error:
        print(f"ctworker: {error}", file=sys.stderr)
        return 69
    os.execv(binary, ["ctworker", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
