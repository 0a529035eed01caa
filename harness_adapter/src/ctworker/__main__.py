"""The console script `ctworker`: runs the worker program in this package (or CTWORKER_BIN). `ctworker inspect` takes hub
names, too."""

from __future__ import annotations

import os
import sys

from .base import interrupt


def main() -> int:
    interrupt.install("ctworker", stores=False)  # until the program takes this process over
    from .base.errors import ArgumentError, CtworkerError
    from .client.launcher import find_binary

    arguments = sys.argv[1:]
    try:
        binary = find_binary()
    except CtworkerError as error:
        print(f"ctworker: {error}", file=sys.stderr)
        return 69
    if arguments[:1] == ["inspect"]:
        from .client import headers

        try:
            arguments = headers.localise(arguments)
        except CtworkerError as error:
            print(f"ctworker: error: inspect: {error}", file=sys.stderr)
            return 65 if isinstance(error, ArgumentError) else 66
        except KeyboardInterrupt:
            return 130
    os.execv(binary, ["ctworker", *arguments])


if __name__ == "__main__":
    sys.exit(main())
