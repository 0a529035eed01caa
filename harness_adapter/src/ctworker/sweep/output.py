"""Writes everything that people read from the document of results.json."""

from __future__ import annotations

from typing import Any

from . import cards, plots, report_html, tables
from .results import Results


def write(results: Results, document: dict[str, Any]) -> None:
    """Raises CtworkerError when a file cannot be written."""
    results.write_text("results.csv", tables.csv_text(document))
    results.write_text("results.md", tables.markdown(document))
    results.write_text("report.html", report_html.render(document))
    for name, text in cards.files(document):
        results.write_text(f"cards/{name}", text)
    for name, content in plots.files(document):
        results.write_bytes(f"plots/{name}", content)
