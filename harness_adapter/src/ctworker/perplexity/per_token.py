"""Log-probabilities of every scored token as a Parquet file, for `ctworker-ppl --per-token`."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..base.errors import ArgumentError, CtworkerError
from .measure import Result, Span
from .texts import require_parquet

#: Column -> (type, meaning).
COLUMNS = {
    "document": ("int32", "number of the document, counted over all texts"),
    "window": ("int32", "number of the window in the document"),
    "position": ("int32", "place of the token in the document's tokens"),
    "token": ("int32", "token id"),
    "logprob": ("float32", "natural-log probability, given the tokens before it in the window"),
    "greedy": ("int32", "the most probable token there"),
}


class PerToken:
    """The file is opened, and pyarrow imported, before anything is scored. Raises CtworkerError."""

    def __init__(self, path: str) -> None:
        self._parquet = require_parquet("--per-token")
        import pyarrow

        self._arrow = pyarrow
        self._path = Path(path).expanduser()
        try:
            self._file = self._path.open("wb")
        except OSError as error:
            raise ArgumentError(f"--per-token {path}: cannot be written: {error.strerror}") from error

    def write(self, results: Sequence[Result], report: dict[str, Any]) -> None:
        """One row group per document; the report is in the file's metadata."""
        arrow = self._arrow
        fields = [
            arrow.field(name, getattr(arrow, kind)(), nullable=False, metadata={"meaning": meaning})
            for name, (kind, meaning) in COLUMNS.items()
        ]
        schema = arrow.schema(fields, metadata={"ctworker-ppl": json.dumps(report, ensure_ascii=False)})
        try:
            with self._file, self._parquet.ParquetWriter(self._file, schema, compression="zstd") as writer:
                for columns in _documents(results):
                    arrays = [
                        arrow.Array.from_buffers(field.type, len(column), [None, arrow.py_buffer(column)])
                        for field, column in zip(fields, columns, strict=True)
                    ]
                    writer.write_table(arrow.Table.from_arrays(arrays, schema=schema))
        except OSError as error:
            raise CtworkerError(f"--per-token {self._path}: cannot be written: {error.strerror or error}") from error


def _documents(results: Sequence[Result]) -> Iterator[list[array[Any]]]:
    """The columns of each document."""
    before = 0
    for result in results:
        for number, document in enumerate(result.tokens.documents):
            score = result.scores[number]
            spans = [span for span in result.spans if span.document == number]
            yield _columns(before + number, spans, document.tokens, score.logprobs, score.greedy)
        before += len(result.tokens.documents)


def _columns(
    number: int, spans: Sequence[Span], tokens: array[int], logprobs: array[float], greedy: array[int]
) -> list[array[Any]]:
    windows, places, ids = array("i"), array("i"), array("i")
    for span in spans:
        windows.extend([span.window] * (span.end - span.begin))
        places.extend(range(span.begin, span.end))
        ids.extend(tokens[span.begin : span.end])
    return [array("i", [number]) * len(places), windows, places, ids, logprobs, greedy]
