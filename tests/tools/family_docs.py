#!/usr/bin/env python3
"""Writes docs/FAMILIES.md: one row per file of worker/model/families, with what proves the family and what it refuses.

    tests/tools/family_docs.py

Every cell is read from the code: the head comment of the file, its struct ctw_family, its refusals; the names of golden
checkpoints (tests/golden/supported.py), of tiny checkpoints (tiny_checkpoint.py), and the unit tests that name a model_type.
tests/lint/check_tree.py fails if the page differs.
"""

import re
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/tools"), str(ROOT / "tests/golden")]
import tiny_checkpoint  # pylint: disable=wrong-import-position
from supported import SUPPORTED  # pylint: disable=wrong-import-position

PAGE = ROOT / "docs/FAMILIES.md"
FAMILIES = ROOT / "worker/model/families"
STRINGS = r'((?:"(?:\\.|[^"\\])*"\s*(?:PRI\w+\s*)?)+)'  # one literal, or several that C joins

HEAD = """# Model families

`tests/tools/family_docs.py` writes this page from the code. A checkpoint belongs to the family whose `model_type` its
config.json has. Any other checkpoint is refused with one message that lists every supported `model_type`.

What proves a family:

* **golden**: checkpoints that transformers wrote, with the scores of its own class; `tests/golden/check_scores.py` compares.
* **tiny**: checkpoints that `tests/tools/tiny_checkpoint.py` writes, with scores that `tests/tools/reference_model.py`
  computes in float64 from its own description of the family.
* **unit**: the tests in `tests/unit` of the family's keys, defaults and refusals.

The last column lists the keys of config.json with which a family is refused, beside the rules that hold for all families (a
number out of range, an unknown activation or RoPE type). [FORMATS.md](FORMATS.md) lists the weight formats.

| family | `model_type` | proof | refused |
| --- | --- | --- | --- |
"""

HOSTS = """
## Text models inside other models

These classes read images or sounds as well and take the text model of a family. The text model alone is scored. `text_config.model_type`
says which family it is: {taken}.

| `model_type` | class | without a `model_type` in `text_config` |
| --- | --- | --- |
"""


@dataclass
class Family:
    """What one file of worker/model/families says."""

    file: str
    about: str
    types: list[str]
    own: list[str]  # without the wrappers that take other families' text models as well
    classes: list[str]
    refused: list[str]


def joined(literals: str) -> str:
    """The text of C literals that stand side by side."""
    return "".join(re.findall(r'"((?:\\.|[^"\\])*)"', re.sub(r"PRI\w+", '"d"', literals))).replace('\\"', '"')


def head_comment(text: str) -> str:
    """The comment at the top of a file as one line, without the source of the defaults."""
    comment = re.match(r"/\*(.*?)\*/", text, re.DOTALL)
    if not comment:
        return ""
    line = " ".join(re.sub(r"^\s*\* ?", "", each).strip() for each in comment[1].split("\n")).strip()
    return re.sub(r"\s*Defaults: [^.]*?(\.py|[^.])*?\.(?= |$)", "", line).strip()


def without_values(message: str) -> str:
    """A message's format without the values that it reports."""
    text = re.sub(r'found "?%[^ ,;:"]*"?[,;:] ', "", message)
    text = re.sub(r" \(%\w+\)", "", text)
    return re.sub(r"%[.\d]*(?:ll|z|j)?[a-z]", "N", text)


def refusals(text: str) -> list[str]:
    pattern = rf"ctw_key_fail\(\s*c,\s*\"([^\"]+)\",\s*CTW_EUNSUP,\s*{STRINGS}"
    return [f"`{key}`: {without_values(joined(message))}" for key, message in re.findall(pattern, text)]


def called(text: str, shared: str) -> str:
    """The functions of headers that the file calls, or that these call."""
    functions = dict(re.findall(r"^(?:\w[^\n;{}]*?\b)?(\w+)\([^;{}]*\)\n(\{.*?^\})", shared, re.MULTILINE | re.DOTALL))
    found = ""
    while names := [name for name in functions if re.search(rf"\b{name}\b", text + found)]:
        found += "".join(functions.pop(name) for name in names)
    return found


def families() -> list[Family]:
    found = []
    for path in sorted(FAMILIES.glob("*.c")):
        text = path.read_text(encoding="utf-8")
        bodies = re.findall(r"^const struct ctw_family ctw_family_\w+ = \{(.*?)\};", text, re.MULTILINE | re.DOTALL)
        if not bodies:
            continue
        types = [re.search(r'\.model_type =\s*"([^"]+)"', body)[1] for body in bodies]
        own = [kind for kind, body in zip(types, bodies) if ".text_type" not in body or ".is_default = true" in body]
        shared = "".join((FAMILIES / name).read_text(encoding="utf-8") for name in
                         re.findall(r'#include "worker/model/families/((?!family\.h)\w+\.h)"', text))
        classes = re.findall(r'\.(?:old_)?architecture =\s*"([^"]+)"', "".join(bodies))
        found.append(Family(path.name, head_comment(text), list(dict.fromkeys(types)), own, classes, refusals(text + called(text, shared))))
    return found


def squeezed(name: str) -> str:
    return re.sub(r"[_-]", "", name)


def golden_of(types: set[str]) -> dict[str, list[str]]:
    """{model_type: its golden checkpoints}: a checkpoint's name begins with its model_type, with or without underscores."""
    found: dict[str, list[str]] = {}
    for name in sorted(SUPPORTED):
        fits = [kind for kind in types if squeezed(name).startswith(squeezed(kind))]
        if not fits:  # a checkpoint of a model_type with a longer name, as inkling_mm_model's
            fits = [kind for kind in types if squeezed(kind).startswith(squeezed(name.split("-")[0]))]
        if not fits:
            raise SystemExit(f"supported.py: {name}: expected a name that begins with the model_type of a family")
        found.setdefault(max(fits, key=len), []).append(name)
    return found


def tiny_of(kind: str, classes: list[str]) -> list[str]:
    """Of a model_type that several files have, the checkpoints of this file's classes."""
    shared = sum(kind in family.types for family in families()) > 1
    return [name for name in dict.fromkeys(tiny_checkpoint.OPEN) if tiny_checkpoint.FAMILIES[name][0] == kind and (
        not shared or tiny_checkpoint.TYPES[kind][0] in classes)]


def unit_tests_of(kind: str, tests: dict[str, str]) -> list[str]:
    return [name for name, text in tests.items() if re.search(rf'\\?"{re.escape(kind)}\\?"', text)]


def row(family: Family, golden: dict[str, list[str]], tests: dict[str, str]) -> str:
    proofs = {
        "golden": [name for kind in family.own for name in golden.pop(kind, [])],  # of the first file that has the model_type
        "tiny": [name for kind in family.types for name in tiny_of(kind, family.classes)],
        "unit": sorted({name for kind in family.types for name in unit_tests_of(kind, tests)}),
    }
    if not proofs["golden"] and not proofs["tiny"]:
        raise SystemExit(f"{family.file}: found no golden and no tiny checkpoint of {', '.join(family.types)}")
    if not family.about:
        raise SystemExit(f"{family.file}: expected a comment on top that says what the family is")
    cells = (
        f"[{family.file.removesuffix('.c')}](../worker/model/families/{family.file}): {family.about}",
        ", ".join(f"`{kind}`" for kind in family.types),
        "<br>".join(f"{kind}: {', '.join(names)}" for kind, names in proofs.items() if names),
        "<br>".join(dict.fromkeys(family.refused)),
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def hosts() -> str:
    text = (FAMILIES / "hosts.c").read_text(encoding="utf-8")
    taken = ", ".join(f"`{name}`" for name in re.findall(r"&ctw_family_(\w+)", text))
    rows = re.findall(r'\{\s*"(\w+)",\s*"(\w+)",\s*(?:NULL|"\w+"),\s*"(\w+)"', text)
    return HOSTS.format(taken=taken) + "".join(f"| `{kind}` | {name} | `{inside}` |\n" for kind, name, inside in rows)


def page() -> str:
    all_families = families()
    golden = golden_of({kind for family in all_families for kind in family.own})
    tests = {path.stem: path.read_text(encoding="utf-8") for path in sorted((ROOT / "tests/unit").glob("test_*.c"))}
    return HEAD + "".join(row(family, golden, tests) for family in all_families) + hosts()


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
