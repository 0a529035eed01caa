#!/usr/bin/env python3
"""Writes what docs/ say of the Python package from the package itself: docs/API.md from the docstrings, and the arguments
in docs/LM_EVAL.md and docs/SWEEP.md from the table of options.

    PYTHONPATH=harness_adapter/src tests/tools/python_docs.py [--snippets FOLDER]

--snippets: instead, write each example of docs/PYTHON.md as a program into a folder, to be run or checked.
"""

import argparse
import dataclasses
import inspect
import re
import textwrap
from pathlib import Path

import ctworker
from ctworker.options.settings import On, Option, options_on

DOCS = Path(__file__).resolve().parents[2] / "docs"
#: In the order of the page; lm-eval's model has the interface of lm-eval.
NAMES = [name for name in ctworker.__all__ if name not in ("__version__", "CTWorkerLM")]


def members(thing: type) -> list[tuple[str, object]]:
    """The public methods and properties, with those of base classes of this package that have no section of their own."""
    found: dict[str, object] = {}
    inherited = [base for base in thing.__mro__[1:] if base.__name__ in NAMES]
    for base in [base for base in thing.__mro__ if not any(issubclass(other, base) for other in inherited)]:
        if base.__module__.startswith("ctworker") and (base is thing or base.__name__ not in NAMES):
            for name, value in vars(base).items():
                is_member = inspect.isfunction(value) or isinstance(value, (property, classmethod, staticmethod))
                if is_member and not name.startswith("_"):
                    found.setdefault(name, value)
    return list(found.items())


def signature(name: str, function: object) -> str:
    """One line if it fits, else a line for each parameter."""
    if isinstance(function, property):
        annotation = inspect.signature(function.fget).return_annotation
        return f"{name} -> {annotation}"
    found = inspect.signature(function)
    parameters, star = [], False
    for each in found.parameters.values():
        if each.name == "self":
            continue
        if each.kind is inspect.Parameter.KEYWORD_ONLY and not star:
            parameters.append("*")
            star = True
        annotation = "" if each.annotation is inspect.Parameter.empty else f": {each.annotation}"
        default = "" if each.default is inspect.Parameter.empty else f" = {each.default!r}"
        stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}.get(each.kind, "")
        parameters.append(f"{stars}{each.name}{annotation}{default}")
    result = "" if found.return_annotation in (inspect.Signature.empty, "None") else f" -> {found.return_annotation}"
    line = f"{name}({', '.join(parameters)}){result}"
    if len(line) <= 100:
        return line
    return f"{name}(\n" + "".join(f"    {each},\n" for each in parameters) + f"){result}"


def described(thing: object) -> str:
    return inspect.cleandoc(inspect.getdoc(thing) or "").strip()


def api() -> str:
    parts = [
        "# The Python API\n",
        "Generated from the docstrings by `tests/tools/python_docs.py`. [PYTHON.md](PYTHON.md) has examples. Every error is a "
        "`CtworkerError`; log-probabilities are natural logarithms.\n",
    ]
    for name in NAMES:
        thing = getattr(ctworker, name)
        parts += [f"## {name}\n", described(thing).split("\n\n    ")[0] if dataclasses.is_dataclass(thing) else described(thing), ""]
        if dataclasses.is_dataclass(thing):
            rows = [f"| `{field.name}` | `{str(field.type).replace('|', chr(92) + '|')}` |" for field in dataclasses.fields(thing)]
            parts += ["| field | type |", "| --- | --- |", *rows, ""]
        elif thing.__init__ is not RuntimeError.__init__ and not issubclass(thing, (Exception, list)):
            parts += ["```python", signature(name, thing.__init__), "```", ""]
        for member, value in members(thing):
            parts += ["```python", signature(f"{name}.{member}", value), "```", "", described(value), ""]
    return "\n".join(parts).rstrip("\n") + "\n"


def row(option: Option) -> str:
    choices = "" if not option.choices else ": " + ", ".join(f"`{choice}`" for choice in option.choices)
    more = f"; {option.more}" if option.more else ""
    return f"| `{option.name}` | {option.help}{choices}{more} |"


def arguments() -> str:
    return "\n".join(["| argument | |", "| --- | --- |", *map(row, options_on(On.LM_EVAL))])


def between(text: str, name: str, content: str) -> str:
    """The text with other content between the comments `<!-- NAME -->` and `<!-- /NAME -->`."""
    found, n = re.subn(
        rf"(<!-- {name} -->\n).*?(\n<!-- /{name} -->)", lambda m: f"{m[1]}\n{content}\n{m[2]}", text, flags=re.DOTALL
    )
    if n != 1:
        raise SystemExit(f"docs: expected the comments {name} once, found {n}")
    return found


def pages() -> dict[Path, str]:
    """Each page with its present content."""
    lm_eval, sweep = ((DOCS / name).read_text(encoding="utf-8") for name in ("LM_EVAL.md", "SWEEP.md"))
    keys = ", ".join(f"`{option.name}`" for option in options_on(On.SWEEP))
    return {
        DOCS / "API.md": api(),
        DOCS / "LM_EVAL.md": between(lm_eval, "arguments", arguments()),
        DOCS / "SWEEP.md": re.sub(r"(Arguments as in \[LM_EVAL.md\]\(LM_EVAL.md\): )[^|]*", rf"\1{keys} ", sweep, count=1),
    }


def snippets() -> list[str]:
    """The examples of PYTHON.md, each a program of its own."""
    text = (DOCS / "PYTHON.md").read_text(encoding="utf-8")
    return [textwrap.dedent(code) for code in re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--snippets", type=Path)
    folder = parser.parse_args().snippets
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        for i, code in enumerate(snippets()):
            (folder / f"snippet_{i}.py").write_text(code, encoding="utf-8")
        return
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
