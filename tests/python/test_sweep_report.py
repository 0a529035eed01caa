"""report.html, the tables and the plots of ctworker-sweep; the page also in headless Chromium where it is installed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from browser import PROGRAM, Browser

from ctworker.sweep import document, plots, report_html, results, tables, view

browser = pytest.mark.skipif(PROGRAM is None, reason="no chromium: apt-get install chromium")
#: Label -> method, bits, perplexity, accuracy. One label and one error text would break a page that does not escape.
MODELS = {
    "bf16": (None, 16.0, 10.0, 0.70), "W8 <b>": ("GPTQ", 8.1, 10.01, 0.699), "W4": ("GPTQ", 4.1, 10.9, 0.66),
    "W4 AWQ": ("AWQ", 4.2, 10.7, 0.67), "W3": ("GPTQ", 3.1, 140.25, 0.31),
}  # fmt: skip
ERROR = "the layer </script> of 'W2' <img src=x onerror=alert(1)> is damaged"


def metric(task: str, name: str, value: float, higher: bool) -> dict[str, Any]:
    return {
        "task": task, "metric": name, "filter": "none", "value": value, "stderr": value / 50, "higher_is_better": higher,
        "headline": True,
    }  # fmt: skip


@pytest.fixture
def made() -> dict[str, Any]:
    """A document with two kinds of work, five models that finished and one that failed."""
    models, cells = [], []
    for n, (label, (method, bits, perplexity, accuracy)) in enumerate([*MODELS.items(), ("W2", ("GPTQ", 2.1, 0, 0))]):
        models.append({
            "label": label, "path": f"/models/{n}", "group": "Llama", "method": method, "bits": None, "original": n == 0,
            "revision": None, "commit": None, "tokenizer": None, "error": None, "params": 8_000_000_000,
            "bytes": int(1e9 * bits), "bits_per_weight": bits, "bits_per_parameter": bits + 0.1,
            "formats": [{"format": "dense", "matrices": 1, "params": 8_000_000_000, "bytes": 1, "bits": bits}],
        })  # fmt: skip
        for work, found in (
            ("gptq-2048", metric("wikitext2", "perplexity", perplexity, False)),
            ("arc_easy", metric("arc_easy", "acc", accuracy, True)),
        ):
            cell = {
                "key": f"{n:015x}{work[0] == 'g':d}", "model": label, "options": "", "kind": "task", "work": work,
                "settings": {}, "option_values": {"dtype": "bfloat16"}, "reference": None,
            }  # fmt: skip
            source = {"identity": f"{n:064x}", "numerics": "cpu-avx2/bfloat16/3", "dtype": "bfloat16"}
            run = {"device": "auto", "attempts": 1, "seconds": 2.5, "finished": "2026-11-23T18:00:00+00:00", "n_tokens": 5}
            done = {
                "state": "done", "metrics": [found], "source": source, "method": {"kind": "x", "window": 2048}, "details": {},
                "versions": document.versions(), "run": run,
            }  # fmt: skip
            cells.append(cell | (done if perplexity else {"state": "failed", "error": ERROR, "run": {}}))
    whole = {
        "schema": results.SCHEMA, "version": results.VERSION, "models": models, "cells": cells, "kept": [],
        "sweep": {"name": "Llama & friends", "file": "sweep.yaml", "devices": ["auto"]},
    }  # fmt: skip
    jsonschema.validate(whole, results.schema())
    return whole


def test_view(made: dict[str, Any]) -> None:
    perplexity, accuracy = view.columns(made)
    assert (perplexity.title, perplexity.arrow, accuracy.title) == ("gptq-2048: perplexity", "↓", "arc_easy: acc")
    assert perplexity.logarithmic and not accuracy.logarithmic
    assert perplexity.values["W4"].change == "+9.00 %" and accuracy.values["W4"].change == "-0.04"
    assert perplexity.values["bf16"].change == "" and perplexity.values["W2"].text == "failed"
    assert perplexity.best() == 10.0 and accuracy.best() == 0.70
    facts = dict(view.facts(perplexity.values["W3"], perplexity))
    assert facts["perplexity"] == "140.25" and facts["standard error"] == "2.805" and facts["file size"] == "3.10 GB"


def test_front() -> None:
    points = [(16.0, 10.0), (8.0, 10.0), (4.0, 11.0), (4.5, 12.0), (3.0, 30.0)]
    assert view.front(points, higher=False) == [(3.0, 30.0), (4.0, 11.0), (8.0, 10.0)]
    assert view.front(points, higher=True) == [(3.0, 30.0)]


def test_tables(made: dict[str, Any]) -> None:
    text = tables.markdown(made)
    lines = text.splitlines()
    assert lines[0] == "| model | bits per weight | size | gptq-2048: perplexity ↓ | arc_easy: acc ↑ |"
    assert "| W4 | 4.100 | 4.10 GB | 10.9000 ± 0.22 (+9.00 %) | 0.6600 ± 0.013 (-0.04) |" in lines
    assert len({line.count("|") for line in lines[:8]}) == 1
    assert f"* W2, arc_easy failed: {ERROR}" in lines
    rows = tables.csv_text(made).splitlines()
    assert len(rows) == 13 and rows[1].startswith("bf16,Llama,,,True,16.0,16.1,16000000000,8000000000,,task,gptq-2048")


def test_plots(made: dict[str, Any]) -> None:
    found = dict(plots.files(made))
    assert sorted(found) == sorted(
        f"{name}-{axis}.{kind}"
        for name in ("gptq-2048-perplexity", "arc-easy-acc")
        for axis in ("bits-per-weight", "file-size")
        for kind in ("png", "svg")
    )
    for name, content in found.items():
        assert content.startswith(b"\x89PNG" if name.endswith("png") else b"<?xml"), name
    text = found["gptq-2048-perplexity-bits-per-weight.svg"].decode()
    assert "W4 AWQ" in text and "Pareto front" in text and "http://www.w3.org" in text
    assert dict(plots.files(made)) == found, "the same results give the same bytes"


def test_html_is_one_file(made: dict[str, Any]) -> None:
    page = report_html.render(made)
    assert not re.search(r"""(src|href)=["'](?!data:)|@import|url\(""", page.replace("<img src=x", "")), "nothing to load"
    assert ERROR not in page and "W8 <b>" not in page and "&lt;/script&gt;" in page
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert data and len(json.loads(data[1])["charts"]) == 2


@pytest.fixture(scope="module")
def page() -> Any:
    with Browser() as running:
        yield running


@browser
class TestPage:
    @pytest.fixture
    def file(self, made: dict[str, Any], tmp_path: Path) -> Path:
        path = tmp_path / "report.html"
        path.write_text(report_html.render(made))
        return path

    @staticmethod
    def clean(page: Browser, file: Path) -> None:
        """No message on the console, no error, and no request but the page's own."""
        names = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
        bad = [event for event in page.events if event[0] in names]
        assert bad == []
        asked = [event[1]["request"]["url"] for event in page.events if event[0] == "Network.requestWillBeSent"]
        assert [url for url in asked if not url.startswith("data:")] == [file.as_uri()]

    @pytest.mark.parametrize("dark", [False, True])
    def test_opens(self, page: Browser, file: Path, dark: bool) -> None:
        page.open(file, dark=dark)
        assert page.run("document.title") == "Llama & friends"
        points = "[...document.querySelectorAll('#charts figure')].map(f => f.querySelectorAll('.point').length)"
        assert page.run(points) == [5, 5]
        assert page.run("document.querySelectorAll('#charts .front').length") == 2
        light = page.run("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).every(c => c > 128)")
        assert light is not dark
        page.run("document.getElementById('theme').click()")
        assert page.run("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).every(c => c > 128)") is dark
        self.clean(page, file)

    @pytest.mark.parametrize("width", [320, 380, 800, 1600])
    def test_no_horizontal_scrolling(self, page: Browser, file: Path, width: int) -> None:
        page.open(file, width=width, phone=width < 500)
        page.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
        assert page.run("document.documentElement.scrollWidth") <= width
        assert page.run("Math.max(...[...document.querySelectorAll('svg')].map(s => s.getBoundingClientRect().right))") <= width
        sizes = "[...document.querySelectorAll('#charts text')].map(t => t.getBoundingClientRect().height)"
        assert page.run(f"Math.min(...{sizes})") > 9, "text in plots is not scaled down"
        self.clean(page, file)

    def test_table_sorts(self, page: Browser, file: Path) -> None:
        page.open(file)
        names = "[...document.querySelectorAll('tbody tr')].map(r => r.querySelector('th').firstChild.data)"
        assert page.run(names) == [*MODELS, "W2"]
        click = "document.querySelectorAll('[data-column]')[{}].click()"
        column = page.run("[...document.querySelectorAll('[data-column]')].findIndex(b => b.textContent.includes('gptq'))")
        page.run(click.format(column))
        assert page.run(names) == ["bf16", "W8 <b>", "W4 AWQ", "W4", "W3", "W2"], "a failed cell is last"
        page.run(click.format(column))
        assert page.run(names) == ["W3", "W4", "W4 AWQ", "W8 <b>", "bf16", "W2"]
        assert page.run("document.querySelector('[aria-sort]').getAttribute('aria-sort')") == "descending"
        page.run(click.format(0))
        assert page.run(names) == ["bf16", "W2", "W3", "W4", "W4 AWQ", "W8 <b>"]
        self.clean(page, file)

    def test_exact_numbers(self, page: Browser, file: Path) -> None:
        """Pointing at a point, or reaching it with the keyboard, shows the exact numbers."""
        page.open(file)
        point = "[...document.querySelectorAll('.point')].find(p => p.getAttribute('aria-label').startsWith('W4 AWQ: gptq'))"
        at = page.run(f"(() => {{ const b = {point}.querySelector('path, rect, circle').getBoundingClientRect();"
                      "return [b.x + b.width / 2, b.y + b.height / 2]; })()")  # fmt: skip
        page.call("Input.dispatchMouseEvent", type="mouseMoved", x=at[0], y=at[1])
        text = page.run("document.getElementById('tip').textContent")
        assert "W4 AWQ" in text and "10.7" in text and "standard error0.214" in text and "+7.00 %" in text
        page.call("Input.dispatchMouseEvent", type="mouseMoved", x=1, y=1)
        assert page.run("document.getElementById('tip').hidden")
        page.run(f"{point}.focus()")
        assert page.run("!document.getElementById('tip').hidden")
        page.call("Input.dispatchKeyEvent", type="keyDown", key="Escape")
        assert page.run("document.getElementById('tip').hidden")
        self.clean(page, file)

    def test_axes(self, page: Browser, file: Path) -> None:
        page.open(file)
        where = "[...document.querySelectorAll('#charts figure:first-child .halo')].map(h => +h.getAttribute('cx'))"
        before = page.run(where)
        page.run("document.querySelector('[data-axis=bytes]').click()")
        assert "file size (GB)" in page.run("document.querySelector('#charts').textContent")
        after = page.run(where)
        assert len(after) == 5 and sorted(range(5), key=before.__getitem__) == sorted(range(5), key=after.__getitem__)
        self.clean(page, file)
