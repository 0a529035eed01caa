"""The command line of this process: whether it is lm_eval's, what it says of a store, and how an interrupted one goes on."""

from __future__ import annotations

import os
import sys

_SCRIPTS = ("lm_eval", "lm-eval", "lm-evaluation-harness", "ctworker-lm-eval")
_MODULES = ("lm_eval", "lm_eval.__main__", "ctworker.run_lm_eval")
_NEW_STORE = "ctworker-store"
#: `store=DIR` in lm_eval's --model_args, also as JSON.
_STORE = r"(?:^|[,{\s=\"'])store[\"']?\s*[=:]\s*[\"']?([^,\"'}]+)"
#: Options with which a command scores nothing.
_NO_SCORES = {"--dry-run", "--samples", "--help", "-h", "--version"}


# The functions import re, shlex and shutil themselves: this module is loaded before lm_eval is, whose imports take seconds.


def is_lm_eval() -> bool:
    """Whether this process is an lm_eval command, not a program that imports lm_eval; also before `__main__` is loaded."""
    words = sys.orig_argv
    module = words[words.index("-m") + 1] if "-m" in words[:-1] else ""
    return module in _MODULES or os.path.basename((sys.argv or [""])[0]) in _SCRIPTS


def going_on(store: str, n_scored: int) -> str:
    """What is kept, and the command that goes on. store: what keeps the results of the ready worker; "": unknown or nothing."""
    import re
    import shlex

    words = _words()
    if _NO_SCORES & set(words):
        return f"nothing was scored; the same command starts again: {shlex.join(words)}"
    store = _store_of(words) or store
    if store and n_scored:
        results = f"{n_scored} result" + "s" * (n_scored != 1)
        return f"{results} of this run in {store}; to go on: {shlex.join(words)}"
    if store:
        return f"nothing was scored yet, {store} keeps what earlier runs scored; to go on: {shlex.join(words)}"
    if any(re.search(r"(^|[-,])endpoint($|=)", word) for word in words):
        return f"nothing is kept if the worker has no store (ctworker serve --store DIR); to start again: {shlex.join(words)}"
    name = "store=" if is_lm_eval() else "--store"
    return f"without {name} nothing is kept; to start again with it: {shlex.join(_with_store(words))}"


def typed() -> str:
    """The command line as it was typed, as far as a process knows."""
    import shlex

    return shlex.join(_words())


def _words() -> list[str]:
    """The words of typed()."""
    import shutil

    name = os.path.basename(sys.argv[0])
    if "-m" in sys.orig_argv[:3] or "." in name:  # python -m MODULE, python FILE
        return list(sys.orig_argv)
    found = shutil.which(name)
    is_found = found is not None and os.path.realpath(found) == os.path.realpath(sys.argv[0])
    return [name if is_found else sys.argv[0], *sys.argv[1:]]


def _store_of(words: list[str]) -> str:
    """The store that the command line names, as it names it; "": none."""
    import re

    for i, word in enumerate(words):
        if word == "--store" and i + 1 < len(words):
            return f"--store {words[i + 1]}"
        if word.startswith("--store="):
            return word
        if is_lm_eval() and (found := re.search(_STORE, word)):
            return f"store={found[1]}"
    for word in words:
        if word.split("=")[0] == "--use_cache":
            return "--use_cache"
    return ""


def _with_store(words: list[str]) -> list[str]:
    """The command line with a new store."""
    if not is_lm_eval():
        return [*words, "--store", _NEW_STORE]
    for i, word in enumerate(words):
        last = i
        if word in ("--model_args", "-a"):
            while last + 1 < len(words) and not words[last + 1].startswith("-"):
                last += 1
        elif not word.startswith("--model_args="):
            continue
        before, text, after = words[:last], words[last], words[last + 1 :]
        if text.endswith("}"):
            return [*before, f'{text[:-1]}, "store": "{_NEW_STORE}"}}', *after]
        return [*before, f"{text},store={_NEW_STORE}", *after]
    return [*words, "--model_args", f"store={_NEW_STORE}"]
