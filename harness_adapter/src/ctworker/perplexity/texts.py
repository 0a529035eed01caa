"""Texts to score: rows of a data set from the hub or from a local file, joined as a method says. See docs/METHODS.md.

A file is plain text, Parquet, or JSON lines (also .gz). Everything is checked before a worker starts.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..base.errors import ArgumentError, CtworkerError
from ..base.json_file import check_pointer
from . import detokenize

#: Joined texts of WikiText-2's test set: join -> the first digits of its sha256.
WIKITEXT2 = {
    "raw": "173c87a53759e020", "rows": "696cca6b65a171b0", "nonempty": "c5b5caea5bd655cb",
}  # fmt: skip
#: The line break before a first-level title: lm-eval's document-level data set is split there.
_TITLE = re.compile(r"\n(?= = [^=\n].* = \n)")


@dataclass(frozen=True)
class Dataset:
    """Where a named data set is on the hub, and what its users do with it. join "": as the method says. rows: only the first
    rows are used, 0: all. windows: only the first windows count, 0: all."""

    hub: str
    config: str | None
    split: str
    column: str = "text"
    files: str | None = None
    join: str = ""
    rows: int = 0
    windows: int = 0


DATASETS = {
    "wikitext2": Dataset("Salesforce/wikitext", "wikitext-2-raw-v1", "test"),
    # As the code of GPTQ and its successors, get_c4_new() and get_ptb_new().
    "c4": Dataset(
        "allenai/c4", None, "validation", files="en/c4-validation.00000-of-00008.json.gz",
        join="space", rows=1100, windows=256,
    ),
    "ptb": Dataset("ptb-text-only/ptb_text_only", None, "test", column="sentence", join="space"),
}  # fmt: skip


@dataclass(frozen=True)
class Text:
    """documents: each is scored on its own. originals: the documents before detokenisation (words and bytes are counted
    there), the same list if nothing was changed. join: how the rows became documents. windows: how many count, 0: all."""

    name: str
    source: str
    join: str
    documents: list[str]
    originals: list[str]
    windows: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def sha256(self) -> str:
        digest = hashlib.sha256()
        for document in self.documents:
            digest.update(document.encode())
        return digest.hexdigest()

    @property
    def n_bytes(self) -> int:
        return sum(len(document.encode()) for document in self.documents)


def load_all(datasets: list[str], files: list[str], join: str, *, join_given: bool, column: str | None = None) -> list[Text]:
    """The texts of data sets (see load()) and of the user's files; without any, WikiText-2. Raises CtworkerError."""
    named = datasets or ([] if files else ["wikitext2"])
    loaded = [load(name, join, join_given=join_given, column=column) for name in named]
    return loaded + [load_file(path, join, column) for path in files]


def load(dataset: str, join: str, *, join_given: bool, column: str | None = None) -> Text:
    """The text of `NAME`, `NAME=FILE` or `ORG/NAME[:CONFIG[:SPLIT]]`. Raises CtworkerError."""
    name, _, file = dataset.partition("=")
    known = DATASETS.get(name)
    if known is None and "/" not in name:
        raise ArgumentError(
            f"data set {name!r} is unknown: expected one of {', '.join(DATASETS)}, a hub name ORGANISATION/NAME"
            "[:CONFIG[:SPLIT]], or a file with --text"
        )
    spec = known or _of_hub_name(name)
    column = column or spec.column
    if name == "wikitext2" and not file:
        file = os.environ.get("CTWORKER_WIKITEXT", "")
    rows, source = (_file_rows(Path(file), column, name), file) if file else (_hub_rows(spec, column), spec.hub)
    if spec.rows:
        rows = rows[: spec.rows]
    if not join_given and spec.join and join not in ("documents", "pages"):
        join = spec.join
    elif not join_given and join == "pages" and name != "wikitext2":
        join = "documents"
    text = _join(name, source, rows, join, spec.windows)
    expected = WIKITEXT2.get(text.join) if name == "wikitext2" else None
    if expected and not text.sha256.startswith(expected):
        text.notes.append(f"{source} is not the official test set of WikiText-2: its sha256 differs")
    return text


def load_file(path: str, join: str, column: str | None = None) -> Text:
    """The text of a file of the user's. Raises CtworkerError."""
    rows = _file_rows(Path(path), column or "text", "")
    return _join(Path(path).name, path, rows, "documents" if join == "pages" else join, 0)


def given(rows: list[str], join: str) -> Text:
    """The text of a program's own rows. Raises ArgumentError."""
    return _join("text", "text", rows, "documents" if join == "pages" else join, 0)


def _of_hub_name(name: str) -> Dataset:
    parts = [*name.split(":"), "", ""]
    return Dataset(parts[0], parts[1] or None, parts[2] or "test")


# ---- rows ----


def _file_rows(path: Path, column: str, dataset: str) -> list[str]:
    path = path.expanduser()
    if not path.is_file():
        raise ArgumentError(f"{path}: {'is not a file' if path.exists() else 'there is no such file'}")
    suffixes = [suffix for suffix in path.suffixes if suffix != ".gz"]
    if suffixes[-1:] == [".parquet"]:
        return _parquet_rows(path, column)
    text = _read(path)
    lines = dataset == "wikitext2" and text.removeprefix("\ufeff").lstrip().startswith("{")  # as the task files of lm-eval accept them
    if lines or suffixes[-1:] in ([".jsonl"], [".json"], [".ndjson"]):
        return list(_json_rows(path, text, column, dataset))
    return _wikitext_rows(text) if dataset == "wikitext2" else [text]


def _read(path: Path) -> str:
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise ArgumentError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ArgumentError(
            f"{path}: line {line} is not UTF-8 (byte {error.start} is 0x{data[error.start]:02x}): convert the file, for example "
            "with iconv"
        ) from error
    check_pointer(path, text)
    return text


def _json_rows(path: Path, text: str, column: str, dataset: str) -> Iterator[str]:
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError as error:
            raise ArgumentError(f"{path}: line {number} is not JSON ({error}); expected one object per line") from error
        if dataset == "wikitext2" and isinstance(record, dict) and "page" in record:
            yield _text_of(path, f"line {number}", record, "page")
        else:
            yield _text_of(path, f"line {number}", record, column)


def _text_of(path: Path, where: str, record: Any, column: str) -> str:
    if isinstance(record, dict) and not isinstance(record.get(column, ""), str):
        raise ArgumentError(f"{path}: {where}: {column!r} holds {record[column]!r:.40}, expected text")
    if not isinstance(record, dict) or column not in record:
        names = ", ".join(map(str, record)) if isinstance(record, dict) else type(record).__name__
        raise ArgumentError(f"{path}: {where} has no text in {column!r} (it has {names}): name the column with --column")
    return str(record[column])


def _parquet_rows(path: Path, column: str) -> list[str]:
    parquet = require_parquet(f"{path} is a Parquet file, which")
    try:
        file = parquet.ParquetFile(path)
        names = file.schema_arrow.names
        rows: list[str] | None = file.read([column])[column].to_pylist() if column in names else None
    except Exception as error:  # pyarrow raises many kinds
        raise ArgumentError(f"{path}: cannot be read as Parquet: {' '.join(str(error).split())}") from error
    if rows is None:
        raise ArgumentError(f"{path} has no column {column!r}; it has {', '.join(names)}: name one with --column")
    for number, row in enumerate(rows):
        if not isinstance(row, str):
            raise ArgumentError(f"{path}: row {number} of column {column!r} is {type(row).__name__}, expected text")
    return rows


def require_parquet(what: str) -> Any:
    """The module pyarrow.parquet. Raises CtworkerError with the remedy."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise CtworkerError(f"{what} needs pyarrow: pip install pyarrow") from error
    return pyarrow.parquet


def _hub_rows(spec: Dataset, column: str) -> list[str]:
    try:
        import datasets
    except ImportError as error:
        raise CtworkerError(
            f"{spec.hub} is on the hub, which needs the package datasets: pip install datasets (or pass a local file: "
            "--dataset NAME=FILE)"
        ) from error
    try:
        rows = datasets.load_dataset(
            spec.hub, spec.config, split=spec.split, data_files={spec.split: spec.files} if spec.files else None
        )
    except Exception as error:  # network, authorisation, cache: many exception types
        reason = " ".join(str(error).split())[:300]
        raise CtworkerError(
            f"the data set {spec.hub} is not available ({type(error).__name__}: {reason}): pass a local file with "
            "--dataset NAME=FILE"
        ) from error
    if column not in rows.column_names:
        raise ArgumentError(
            f"{spec.hub} has no column {column!r}; it has {', '.join(rows.column_names)}: name one with --column"
        )
    return list(rows[: spec.rows][column] if spec.rows else rows[column])


# ---- WikiText, and joins ----


def _wikitext_rows(text: str) -> list[str]:
    """The rows of wiki.test.raw as the hub has them: lines, with a blank line (" \\n") as an empty row."""
    return ["" if line == " \n" else line for line in re.findall(r"[^\n]*\n|[^\n]+", text)]


def _raw(rows: list[str], wikitext: bool) -> str:
    """Inverse of _wikitext_rows()."""
    return "".join(row or " \n" for row in rows) if wikitext else "".join(rows)


def _is_page(row: str) -> bool:
    return row.startswith(" = ") and row.count("\n") > 1


def _join(name: str, source: str, rows: list[str], join: str, windows: int) -> Text:
    wikitext = name == "wikitext2"
    if wikitext and rows and _is_page(rows[0]):  # lm-eval's document-level data set
        rows = rows if join == "pages" else _wikitext_rows(" \n" + "\n".join(rows))
    elif wikitext and join == "pages":
        rows = [page for page in _TITLE.split(_raw(rows, True)) if page.strip()]
    originals = {
        "rows": lambda: ["\n\n".join(rows)],
        "nonempty": lambda: ["\n\n".join(row for row in rows if row.strip())],
        "raw": lambda: [_raw(rows, wikitext)],
        "file": lambda: [_raw(rows, wikitext).removesuffix("\n")],
        "space": lambda: [" ".join(rows)],
    }.get(join, lambda: rows)()
    documents = [document for document in originals if document.strip()]
    notes = []
    if len(documents) < len(originals):
        originals = documents
        notes.append(f"{source}: {len(rows) - len(documents)} of {len(rows)} documents are empty, and left out")
    if not documents:
        raise ArgumentError(f"{source}: there is no text in it")
    if join == "pages":
        if not wikitext:
            raise ArgumentError(f"join pages is for wikitext2 only, not for {name}: use --join documents")
        documents = [detokenize.wikitext(page) for page in originals]
    return Text(name, source, join, documents, originals, windows, notes)
