"""report.html, the tables and the plots of ctworker-sweep; the page also in headless Chromium where it is installed."""

from __future__ import annotations

import base64
import json
import math
import re
import urllib.parse
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import yaml
from browser import PROGRAM, Browser

import synthetic_sweep
from ctworker.charts import labels
from ctworker.sweep import captions, cards, document, plots, report_html, results, tables, view

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
    assert facts["bits per weight"] == f"{perplexity.values['W3'].model['bits_per_weight']:.3f}"
    assert facts["perplexity"] == "140.25" and facts["standard error"] == "2.805" and facts["file size"] == "2.9 GiB"


def test_front() -> None:
    points = [(16.0, 10.0), (8.0, 10.0), (4.0, 11.0), (4.5, 12.0), (3.0, 30.0)]
    assert view.front(points, higher=False) == [(3.0, 30.0), (4.0, 11.0), (8.0, 10.0)]
    assert view.front(points, higher=True) == [(3.0, 30.0)]


def test_tables(made: dict[str, Any]) -> None:
    text = tables.markdown(made)
    lines = text.splitlines()
    assert lines[0] == "| model | bits per weight | size | gptq-2048: perplexity ↓ | arc_easy: acc ↑ |"
    assert "| W4 | 4.100 | 3.8 GiB | 10.90 ± 0.22 (+9.00 %) | 0.660 ± 0.013 (-0.04) |" in lines
    assert len({line.count("|") for line in lines[:8]}) == 1
    assert f"* W2, arc_easy failed: {ERROR}" in lines
    rows = tables.csv_text(made).splitlines()
    assert len(rows) == 13 and rows[1].startswith("bf16,Llama,,,True,16.0,16.1,16000000000,8000000000,,task,gptq-2048")


def test_a_caption_has_all_that_a_number_depends_on() -> None:
    made = synthetic_sweep.sweep(5)
    jsonschema.validate(made, results.schema())
    text = tables.markdown(made)
    original = made["models"][0]["label"]
    assert "* gptq-2048: perplexity: **4 of 148 windows** of wikitext2; gptq-2048: windows of 2048 tokens; dtype bfloat16; " in text
    assert "* hellaswag: acc: **500 of 2,376 documents** of hellaswag; lm-eval 0.4.13, 0-shot; " in text
    assert f"* KL gptq-2048: against {original}; 148 windows of wikitext2; " in text and "sha256 abababababababab" in text
    assert "KL gptq-2048 ↓ | 99.9 % of KL | same top-1 | perplexity, paired |" in text.splitlines()[0]
    row = next(line for line in text.splitlines() if line.startswith(f"| {made['models'][3]['label']} "))
    assert "0.0005200 ± 0.0000062 (3.4 x the noise floor)" in row and "98.974 ± 0.070 %" in row and "+0.0364 ± 0.0016 %" in row
    assert "(-0.0004 ± 0.0031)" in row, "a task's difference has the paired test's error"
    assert " ± " not in row.split(" | ")[3], "four windows have no error"


def test_a_perplexity_has_the_paired_error_of_its_difference() -> None:
    """The ratio of two perplexities of the same windows: the windows' own spread cancels."""
    made = synthetic_sweep.sweep(3)
    rng = np.random.default_rng(1)
    weights, base = [2047] * 20, rng.normal(4000, 900, 20)
    cells = [cell for cell in made["cells"] if cell["work"] == "gptq-2048"]
    for i, cell in enumerate(cells):
        nll = base * (1 + 0.01 * i) + rng.normal(0, 5, 20) * bool(i)
        cell["metrics"][0]["value"] = math.exp(nll.sum() / sum(weights))
        cell["details"]["texts"][0] |= {"se_clusters": 20, "pieces": {"nll": nll.tolist(), "weight": weights}}
    column = view.columns(made)[0]
    first, other = (np.array(cell["details"]["texts"][0]["pieces"]["nll"]) / 2047 for cell in cells[:2])
    ratio = math.exp((other - first).mean())
    se = 100 * ratio * (other - first).std(ddof=1) / math.sqrt(20)
    label = cells[1]["model"]
    shown, error = column.values[label].change.removesuffix(" %").split(" ± ")
    assert float(shown) == pytest.approx(100 * (ratio - 1), abs=se) and float(error) == pytest.approx(se, rel=0.05)
    cells[1]["details"]["texts"][0]["pieces"]["weight"] = [2047] * 19 + [2046]
    assert "±" not in view.columns(made)[0].values[label].change, "other windows do not pair"


def test_a_card_is_yaml_and_a_table() -> None:
    made = synthetic_sweep.sweep(4)
    for model, label in zip(made["models"], ("original", 'W4: "a|b"', "w4 A/b", "W4-a-b")):
        for cell in made["cells"]:
            cell["model"] = label if cell["model"] == model["label"] else cell["model"]
        model["label"] = label
    made["paired"] = []
    found = dict(cards.files(made))
    assert list(found) == ["W4-a-b.md", "w4-A-b-2.md", "W4-a-b-3.md"]
    _, head, body = next(iter(found.values())).split("---\n", 2)
    (entry,) = yaml.safe_load(head)["model-index"]
    assert entry["name"] == 'W4: "a|b"' and len(entry["results"]) == 4
    for result in entry["results"]:
        assert result["task"]["type"] and result["dataset"]["type"] and result["dataset"]["name"]
        assert all(isinstance(metric["value"], float) and metric["type"] for metric in result["metrics"])
    assert entry["results"][0]["dataset"]["name"] == "wikitext2, 4 of 148 windows"
    assert [metric["type"] for metric in entry["results"][3]["metrics"]] == ["kl_divergence", "kl_99.9", "same_top"]
    assert '| W4: "a\\|b" | 4.156 |' in body and "| original | 16.000 |" in body and "w4 A/b" not in body


def test_each_group_has_its_own_reference_and_noise_floor() -> None:
    """Two originals under one comparison: each model is in multiples of its own original's floor, and no chart has one floor, one
    reference or one number of windows for all."""
    made = synthetic_sweep.sweep(4)
    labels_ = [model["label"] for model in made["models"]]
    made["models"][2] |= {"original": True, "group": "b"}
    made["models"][3]["group"] = "b"
    compared = [cell for cell in made["cells"] if cell["kind"] == "comparison"]
    for cell, reference, kl in zip(compared, [labels_[0]] * 2 + [labels_[2]] * 2, (1e-4, 3e-3, 5e-4, 1e-2)):
        cell["reference"] = cell["method"]["reference"] = reference
        cell["metrics"][0]["value"] = kl
        if reference == labels_[2]:
            cell["method"] |= {"windows": 160, "windows_of_text": 160}
    column = view.columns(made)[3]
    assert [column.values[label].change for label in labels_] == [
        "noise floor", "30 x the noise floor", "noise floor", "20 x the noise floor"]  # fmt: skip
    assert column.noise_floor is None and len(plots.chart(column, view.axes(made)[0], "s", view.numbers(made)).dots) == 2
    assert "* KL gptq-2048: against each group's original; 148 windows or 160 windows of wikitext2; " in tables.markdown(made)
    found = dict(cards.files(made))
    assert [f"against {labels_[i]} (" in text for text in found.values() for i in (0, 2)] == [True, False, False, True]


def test_an_original_may_be_compared_with_another_model() -> None:
    """By `reference: LABEL`: its divergence is no noise floor."""
    made = synthetic_sweep.sweep(3)
    named = made["models"][1]["label"]
    for cell in made["cells"]:
        cell["reference"] = named if cell["kind"] == "comparison" else None
    column = view.columns(made)[3]
    assert [value.floor for value in column.values.values()] == [False, True, False] and column.reference == named


def test_amounts_of_older_results() -> None:
    """results.json of before has no number of all windows."""
    made = synthetic_sweep.sweep(2)
    for cell in made["cells"]:
        for each in [cell["method"], *cell["method"].get("texts", [])]:
            each.pop("windows_of_text", None)
    assert [captions.amount(column) for column in view.columns(made)] == [
        ("4 windows", True), ("2,376 documents", False), ("500 of 2,376 documents", True), ("148 windows", False)]  # fmt: skip


def test_plots(made: dict[str, Any]) -> None:
    found = dict(plots.files(made))
    assert sorted(found) == sorted(
        f"{name}-{axis}{theme}.{kind}"
        for name in ("gptq-2048-perplexity", "arc-easy-acc")
        for axis in ("bits-per-weight", "file-size")
        for theme in ("", "-dark")
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


OVERLAPS = """[...document.querySelectorAll('figure')].flatMap((figure) => {
  const texts = [...figure.querySelectorAll('svg text')].map((t) => [t.textContent, t.getBoundingClientRect()]), found = [];
  texts.forEach(([a, p], i) => texts.slice(i + 1).forEach(([b, q]) => {
    if (p.left + 1 < q.right && q.left + 1 < p.right && p.top + 2 < q.bottom && q.top + 2 < p.bottom) found.push([a, b]);
  }));
  return found;
})"""


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

    @pytest.mark.parametrize("n", [5, 11, 30])
    @pytest.mark.parametrize("width", [380, 1280])
    def test_no_text_of_a_chart_covers_another(self, page: Browser, tmp_path: Path, n: int, width: int) -> None:
        """By their boxes in the browser; and each point of each chart has its name or number."""
        file = tmp_path / "report.html"
        file.write_text(report_html.render(synthetic_sweep.sweep(n)))
        page.open(file, width=width, phone=width < 500)
        assert page.run(OVERLAPS) == []
        counts = page.run("[...document.querySelectorAll('#charts figure')].map(f => [f.querySelectorAll('.point').length,"
                          " f.querySelectorAll('.label').length])")  # fmt: skip
        assert len(counts) == 4 and all(points == shown >= n - 1 for points, shown in counts), counts
        assert page.run("document.querySelectorAll('.legend > span').length") == n
        assert page.run("document.querySelector('#layers').textContent").count("emb.") == 1
        assert page.run("document.documentElement.scrollWidth") <= width
        self.clean(page, file)

    def test_labels_are_placed_as_in_the_plots(self, page: Browser, file: Path) -> None:
        """labels.js and charts/labels.py give the same places, to the last bit."""
        page.open(file)
        for seed in range(4):
            rng = np.random.default_rng(seed)
            spots = [tuple(map(float, spot)) for spot in np.clip(rng.normal((200, 150), (60, 40), (20, 2)), 70, 350)]
            sizes = [(float(width), 12.5) for width in rng.integers(10, 90, 20)]
            bars = [(x - 3, y - 15, x + 3, y + 15) for x, y in spots[:5]]
            for area, reach in (((60.0, 60.0, 430.0, 360.0), 1e9), ((60.0, 60.0, 430.0, 360.0), 40.0)):
                found = labels.place(spots, sizes, area, bars, reach)
                wanted = found and [{"box": list(one.box), "leader": one.leader and list(one.leader)} for one in found]
                assert page.run(f"labels.place({json.dumps([spots, sizes, area, bars, reach])[1:-1]})") == wanted

    def test_downloads(self, page: Browser, tmp_path: Path) -> None:
        """Each chart can be had as a file of its own: with its title, its key, and no style of the page."""
        file = tmp_path / "report.html"
        file.write_text(report_html.render(synthetic_sweep.sweep(14)))
        page.open(file)
        page.run("window.saved = []; HTMLAnchorElement.prototype.click = function() { saved.push([this.download, this.href]); }")
        assert page.run("document.querySelector('.method') !== null")
        figures = page.run("document.querySelectorAll('figure').length")
        page.run("document.querySelectorAll('.save button').forEach(b => b.click())")
        page.run(f"new Promise(done => {{ const wait = () => saved.length === {2 * figures} ? done() : setTimeout(wait, 50); wait(); }})")
        saved = page.run("saved")
        assert len({name for name, _ in saved}) == len(saved) == 2 * figures
        for name, url in saved:
            kind, _, data = url.partition(",")
            if name.endswith(".png"):
                assert kind == "data:image/png;base64" and base64.b64decode(data).startswith(b"\x89PNG")
            else:
                svg = urllib.parse.unquote(data)
                assert svg.startswith("<svg") and not re.search(r"var\(|class=|style=", svg)
                assert "rgba(0, 0, 0, 0)" not in svg, "what only catches the pointer"
                assert " windows" in svg or " documents" in svg, "the subtitle"
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

    def test_each_method_has_its_front(self, page: Browser, file: Path, made: dict[str, Any]) -> None:
        """A front of one model, or of the only method, is not drawn. Pointing at a front shows its models."""
        page.open(file)
        fronts = "[...document.querySelectorAll('#charts figure:first-child .method')]"
        assert page.run(f"{fronts}.map(g => g.getAttribute('aria-label'))") == ["Pareto front of GPTQ: W3, W4, W8 <b>"]
        assert page.run(f"{fronts}[0].querySelector('polyline').getAttribute('points').split(' ').length") == 3
        page.run(f"{fronts}[0].dispatchEvent(new PointerEvent('pointerenter'))")
        tip = page.run("document.getElementById('tip').textContent")
        assert tip.startswith("Pareto front of GPTQ") and "W8 <b>10.01" in tip
        assert "the thin lines those of each method" in page.run("document.body.innerText")
        self.clean(page, file)
        for model in made["models"]:
            model["method"] = model["method"] and "GPTQ"
        file.write_text(report_html.render(made))
        page.open(file)
        assert page.run("document.querySelectorAll('.method').length") == 0
        assert "thin lines" not in page.run("document.body.innerText")

    def test_axes(self, page: Browser, file: Path) -> None:
        page.open(file)
        where = "[...document.querySelectorAll('#charts figure:first-child .halo')].map(h => +h.getAttribute('cx'))"
        before = page.run(where)
        page.run("document.querySelector('[data-axis=bytes]').click()")
        assert "file size (GiB)" in page.run("document.querySelector('#charts').textContent")
        after = page.run(where)
        assert len(after) == 5 and sorted(range(5), key=before.__getitem__) == sorted(range(5), key=after.__getitem__)
        self.clean(page, file)
