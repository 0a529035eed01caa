"""The console script `ctworker-lm-eval`: lm_eval with this package's model known to it, for installations in
which Python reads no .pth files (a zip, --target, PYTHONPATH)."""

from __future__ import annotations


def main() -> None:
    from importlib import import_module

    import_module("_ctworker_hook")  # before anything of lm_eval
    import_module("lm_eval.__main__").cli_evaluate()


if __name__ == "__main__":
    main()
