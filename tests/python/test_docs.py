"""What docs/ and README.md say: generated pages are up to date, examples and commands run, links lead somewhere, and every
public name is described. The stage `types` checks the types of the examples."""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import ctworker
import pytest
from conftest import REAL_WORKER, ROOT, SRC

sys.path.insert(0, str(ROOT / "tests/tools"))
import family_docs
import python_docs


@pytest.mark.parametrize("path", list(python_docs.pages()), ids=lambda path: path.name)
def test_pages_are_up_to_date(path: Path) -> None:
    written = path.read_text(encoding="utf-8")
    assert written == python_docs.pages()[path], "run PYTHONPATH=harness_adapter/src tests/tools/python_docs.py"


@pytest.mark.parametrize("name", python_docs.NAMES)
def test_everything_is_described(name: str) -> None:
    """A class has a docstring that names its fields; a method's docstring says what it returns and, if it talks to the worker,
    what it raises."""
    thing = getattr(ctworker, name)
    about = thing.__doc__ or ""
    assert len(about) > 40
    for field in dataclasses.fields(thing) if dataclasses.is_dataclass(thing) else ():
        inherited = any(field.name in getattr(base, "__dataclass_fields__", {}) for base in thing.__mro__[1:])
        assert inherited or re.search(rf"\b{field.name}\b", about), f"{name}.{field.name}"
    for member, value in python_docs.members(thing):
        text = inspect.getdoc(value) or ""
        assert len(text) > 15 and text.endswith((".", ")")), f"{name}.{member}"


UNITS = {
    "score": "Log-prob", "score_text": "nats", "score_rolling": "Log-prob", "score_windows": "Log-prob", "perplexity": "standard error",
}  # fmt: skip


@pytest.mark.parametrize("name", UNITS)
def test_units_and_errors(name: str) -> None:
    text = inspect.getdoc(getattr(ctworker.Client, name)) or ""
    assert UNITS[name] in text and ("Raises CtworkerError" in text or "Otherwise like score()" in text)


@pytest.mark.skipif(REAL_WORKER is None, reason="no worker was built")
@pytest.mark.parametrize("i", range(len(python_docs.snippets())))
def test_examples_run(i: int, checkpoint: Path, tmp_path: Path) -> None:
    code = python_docs.snippets()[i]
    (tmp_path / "TEXT").write_text(" ".join(f"Sentence {i} of a text that says little." for i in range(100)))
    for name in ("DIR", "ORIGINAL", "W4A16"):
        code = code.replace(f'"{name}"', repr(str(checkpoint)))
    env = os.environ | {"CTWORKER_BIN": str(REAL_WORKER), "PYTHONPATH": str(SRC)}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.strip(), done.stderr


@pytest.mark.skipif(REAL_WORKER is None, reason="no worker was built")
def test_families_are_the_workers(tmp_path: Path) -> None:
    """docs/FAMILIES.md, which is read from the sources, has each model_type that the program lists."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "none", "architectures": ["None"]}))
    done = subprocess.run([str(REAL_WORKER), "inspect", str(tmp_path)], capture_output=True, text=True, check=False)
    listed = {name.strip(",.") for name in done.stderr.split("supported: ")[1].split()}
    page = family_docs.PAGE.read_text(encoding="utf-8")
    families = re.findall(r"^\| \[.*?\): .*? \| ((?:`[\w-]+`(?:, )?)+) \|", page, re.MULTILINE)
    hosts = re.findall(r"^\| `([\w-]+)` \| (?!class)", page, re.MULTILINE)
    assert listed == {kind for row in families for kind in re.findall(r"`([\w-]+)`", row)} | set(hosts)


PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("tests/**/README.md")]


def anchors(page: Path) -> set[str]:
    """The names that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            file, _, anchor = target.partition("#")
            there = (page.parent / file).resolve() if file else page
            assert there.exists(), target
            assert not anchor or anchor in anchors(there), target


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "ADDING.md"])
def test_files_that_a_page_names_exist(page: str) -> None:
    """Files in backticks, by their path's end: pages follow files that move."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    paths = [str(path.relative_to(ROOT)) for folder in ("base", "cmake", "ipc", "kernels", "worker", "tests", "harness_adapter")
             for path in (ROOT / folder).rglob("*.*")]  # fmt: skip
    for name in re.findall(r"`([a-z_0-9/]+\.(?:c|h|cu|cuh|py|cmake))`", text):
        theirs = name.startswith(("configuration_", "modeling_", "conversion_"))  # transformers'
        assert theirs or any(f"/{path}".endswith(f"/{name}") for path in paths), name
