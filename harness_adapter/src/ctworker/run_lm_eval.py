"""The console script `ctworker-lm-eval`: lm_eval with this package's model registered, for installations in
which Python reads no .pth files (a zip, --target, PYTHONPATH)."""

from __future__ import annotations

import sys
from importlib.util import find_spec

from . import __version__
from .base import interrupt


def main() -> None:
    interrupt.install("ctworker")
    from importlib import import_module

    from .base.output import open_closed_streams

    if find_spec("lm_eval") is None:
        sys.exit("ctworker-lm-eval: lm-eval is not installed: pip install 'ctworker[lm-eval]'")
    open_closed_streams()
    if sys.argv[1:] == ["--version"]:
        from importlib.metadata import version

        print(f"ctworker-lm-eval {__version__} with lm-eval {version('lm_eval')}")
        return
    import_module("_ctworker_hook")  # before any import of lm_eval
    import_module("lm_eval.__main__").cli_evaluate()


if __name__ == "__main__":
    main()
