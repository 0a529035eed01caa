"""WikiText-2's test set from a local file, for the task files in this folder.

CTWORKER_WIKITEXT names the file: `wiki.test.raw` (the official file), or JSON lines with a field `page`, one document
per line, as in EleutherAI/wikitext_document_level. If the variable is not set, the documents come from that dataset.
docs/METHODS.md defines the joined texts.
"""

from __future__ import annotations

import json
import logging
import os
import re
from pathlib import Path
from typing import Any

import datasets
from lm_eval.tasks.wikitext.preprocess_wikitext import process_results, wikitext_detokenizer

__all__ = [
    "document_level",
    "joined",
    "joined_nonempty",
    "page",
    "process_results",
    "wikitext_detokenizer",
]

log = logging.getLogger("lm_eval.ctworker")

#: The line break before a first-level title, at which the document-level data set splits the raw file.
_CUT = re.compile(r"\n(?= = [^=\n].* = \n)")


def _error(path: Path, found: str) -> ValueError:
    return ValueError(
        f"CTWORKER_WIKITEXT={path}: {found}; expected wiki.test.raw, or JSON lines with a field 'page'"
    )


def _split(text: str) -> list[str]:
    """The documents of a raw file. The line break at each split belongs to no document."""
    return [part for part in _CUT.split(text) if part.strip()]


def _raw(pages: list[str]) -> str:
    """Inverse of _split(): the text of the raw file."""
    return " \n" + "\n".join(pages)


def _from_lines(path: Path, text: str) -> list[str]:
    pages = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            pages.append(json.loads(line)["page"])
        except (ValueError, KeyError, TypeError) as error:
            raise _error(path, f"line {number} is not a JSON object with a field 'page' ({error!r})") from error
        if not isinstance(pages[-1], str):
            raise _error(path, f"the page of line {number} is not a string")
    return pages


def _pages() -> list[str]:
    """The documents of the test set, in order. Raises a ValueError that names the file."""
    name = os.environ.get("CTWORKER_WIKITEXT")
    if not name:
        log.info("CTWORKER_WIKITEXT is not set: reading EleutherAI/wikitext_document_level")
        rows = datasets.load_dataset(
            "EleutherAI/wikitext_document_level", "wikitext-2-raw-v1", split="test"
        )
        return list(rows["page"])
    path = Path(name).expanduser()
    try:
        with path.open(encoding="utf-8", newline="") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise _error(path, f"cannot be read ({error})") from error
    pages = _from_lines(path, text) if text.lstrip().startswith("{") else _split(text)
    if not pages:
        raise _error(path, "contains no document")
    return pages


def _rows(pages: list[str]) -> list[str]:
    """The rows of the test set as in the hub's `wikitext`: lines, with a blank line (" \\n") as an empty row."""
    return ["" if line == " \n" else line for line in re.findall(r"[^\n]*\n", _raw(pages))]


def _dataset(pages: list[str]) -> dict[str, datasets.Dataset]:
    return {"test": datasets.Dataset.from_dict({"page": pages})}


def document_level(**_: Any) -> dict[str, datasets.Dataset]:
    """62 documents."""
    return _dataset(_pages())


def joined(**_: Any) -> dict[str, datasets.Dataset]:
    """One text: all rows joined by two line breaks, as in GPTQ's code and most papers."""
    return _dataset(["\n\n".join(_rows(_pages()))])


def joined_nonempty(**_: Any) -> dict[str, datasets.Dataset]:
    """One text: the rows that are not blank, joined by two line breaks."""
    return _dataset(["\n\n".join(row for row in _rows(_pages()) if row.strip())])


def page(doc: dict[str, str]) -> str:
    """The text unchanged: a template would drop its last line break."""
    return doc["page"]
