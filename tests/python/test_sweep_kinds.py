"""ctworker-sweep: cells that are perplexities and comparisons, against the commands ctworker-ppl and ctworker-compare."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT
from sweep_cases import (
    folder,  # noqa: F401 (fixtures)
    read,
    scores,
    sweep,
    write,
)

from ctworker.options.spelling import for_sweep
from ctworker.sweep.kinds.methods import METHOD_KEYS

METHODS = """\
models: [{path: one, original: true}, {path: other, label: W4}]
methods:
  - {method: gptq-2048, window: 128, text: text.txt}
  - {method: gptq-2048, label: both, window: 128, text: [text.txt, other.txt]}
"""


@pytest.mark.parametrize(
    ("option", "key"),
    [
        ("choose a smaller --window, or a longer text", "choose a smaller window, or a longer text"),
        ("name a token with --bos-token ID, or choose --bos none", "name a token with bos_token: ID, or choose bos: none"),
        ("name the column with --column", "name the column with column"),
        ("--cpu-variant: expected one of", "cpu_variant: expected one of"),
        ("pass --windows 3", "pass --windows 3"),
    ],
)
def test_messages_name_keys(option: str, key: str) -> None:
    assert for_sweep(option, METHOD_KEYS) == key


@pytest.mark.usefixtures("real_worker")
class TestMethods:
    @pytest.fixture
    def texts(self, folder: Path) -> Path:
        rng = random.Random(1)
        for name in ("text.txt", "other.txt"):
            (folder / name).write_text(" ".join(rng.choices(["some", "words", "without", "any", "sense"], k=150)))
        return folder

    def test_as_ctworker_ppl(self, texts: Path) -> None:
        """The numbers, and what they depend on, are those of ctworker-ppl; a second run scores nothing."""
        file = write(texts, METHODS)
        code, out = sweep(file)
        assert code == 0, out
        cells = {(cell["model"], cell["work"]): cell for cell in read(texts)["cells"]}
        done = subprocess.run(
            [sys.executable, "-m", "ctworker.perplexity.main", str(texts / "other"), "--method", "gptq-2048", "--window", "128", "--text",
             str(texts / "text.txt"), "--text", str(texts / "other.txt"), "--json", "-", "--quiet"],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        report = json.loads(done.stdout)
        both = cells[("W4", "both")]
        best = next(metric for metric in both["metrics"] if metric.get("headline"))
        assert (best["value"], best["stderr"]) == (report["macro"]["perplexity"], report["macro"]["perplexity_se"])
        single = cells[("W4", "gptq-2048")]["metrics"][0]
        assert (single["value"], single["stderr"]) == (
            report["texts"][0]["perplexity"], report["texts"][0]["perplexity_se"])  # fmt: skip
        assert both["source"]["identity"] == report["model"]["identity"]
        assert both["method"]["window"] == 128 and both["method"]["texts"][1]["sha256"] == report["texts"][1]["sha256"]
        # the second cell has the first one's windows: the store gives them
        log = (texts / "sweep-results" / "logs" / "cells-auto.log").read_text()
        assert "Traceback" not in log
        assert sweep(file, "--force")[0] == 0
        again = read(texts)
        assert scores(again) == scores({"cells": list(cells.values())})
        # a text that changes is another cell
        (texts / "other.txt").write_text((texts / "other.txt").read_text() + " more of it")
        code, out = sweep(file, "--dry-run")
        assert "2 of 4 cells to do" in out, out

    def test_the_record_says_what_was_done(self, texts: Path) -> None:
        """The tokenizer has fewer tokens than the head has rows. Cells over its tokens and cells over all rows share a worker,
        and each has its method's own number."""
        methods = "methods: [{method: exl3, window: 128, text: text.txt}, {method: qbench, window: 128, text: text.txt, vocabulary: model}]"
        code, out = sweep(write(texts, f"models: [one]\n{methods}\n"))
        assert code == 0, out
        limited, whole = read(texts)["cells"]
        for cell, method, n, more in ((limited, "exl3", 258, "/vocabulary-258"), (whole, "qbench", 320, "")):
            options = [] if more else ["--vocabulary", "model"]
            done = subprocess.run(
                [sys.executable, "-m", "ctworker.perplexity.main", str(texts / "one"), "--method", method, "--window", "128", *options,
                 "--text", str(texts / "text.txt"), "--json", "-", "--quiet"], check=True, capture_output=True, text=True)  # fmt: skip
            report = json.loads(done.stdout)
            assert cell["metrics"][0]["value"] == report["texts"][0]["perplexity"]
            assert cell["method"]["vocabulary"] == ("tokenizer" if more else "model") == report["method"]["vocabulary"]
            assert cell["method"]["texts"][0]["vocabulary"] == report["texts"][0]["vocabulary"] == n
            assert cell["source"]["numerics"] == report["model"]["numerics"] and cell["method"]["notes"] == []
        assert limited["source"]["numerics"] == whole["source"]["numerics"] + "/vocabulary-258"

    def test_too_short(self, texts: Path) -> None:
        (texts / "text.txt").write_text("short")
        code, out = sweep(write(texts, METHODS))
        assert code == 64 and "sweep.yaml:3: methods[0]: text.txt: the text has 5 tokens, but method gptq-2048" in out, out
        assert "choose a smaller window, or" in " ".join(out.split()), out

    @pytest.mark.parametrize("work", ["methods", "comparisons"])
    def test_longer_than_the_models_longest(self, texts: Path, work: str) -> None:
        """Known from config.json, before a model is loaded."""
        (texts / "text.txt").write_text("long " * 2000)
        code, out = sweep(write(texts, f"models: [{{path: one, original: true}}, other]\n{work}: [{{method: gptq-2048, window: 9000, "
                                       "stride: 9000, text: text.txt}]\n"))  # fmt: skip
        assert code == 64 and f"sweep.yaml:2: {work}[0]: window 9000: the model takes at most 2049 tokens" in out, out
        assert "choose a smaller window" in " ".join(out.split()) and "--" not in out.splitlines()[-1], out

    def test_one_model_cannot(self, texts: Path) -> None:
        """A model whose tokenizer does not suit the method fails before the others run."""
        file = texts / "other" / "tokenizer.json"
        made = json.loads(file.read_text())
        assert made["post_processor"] is None, "the checkpoint's tokenizer adds no BOS"
        bos, text = {"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
        special = {"<s>": {"id": "<s>", "ids": [256], "tokens": ["<s>"]}}
        made["post_processor"] = {
            "type": "TemplateProcessing", "single": [bos, text], "pair": [bos, text], "special_tokens": special,
        }  # fmt: skip
        file.write_text(json.dumps(made))
        code, out = sweep(write(texts, METHODS.replace("128, text: text.txt", "128, bos: replace, text: text.txt")))
        assert code == 1 and "needs BOS" in out, out
        states = {(cell["model"], cell["work"]): cell["state"] for cell in read(texts)["cells"]}
        assert states.pop(("one", "gptq-2048")) == "failed" and set(states.values()) == {"done"}


@pytest.mark.usefixtures("real_worker")
class TestComparisons:
    def test_as_ctworker_compare(self, folder: Path) -> None:
        """The numbers are those of ctworker-compare. The original is compared with itself in float32, and a model without
        quantised matrices ranks none."""
        rng = random.Random(2)
        (folder / "text.txt").write_text(" ".join(rng.choices(["some", "words", "that", "have", "no", "sense"], k=150)))
        subprocess.run([sys.executable, str(ROOT / "tests/tools/quantize.py"), str(folder / "one"), str(folder / "quantized"),
                        "--scheme", "w4a16", "--group", "32"], check=True, capture_output=True)  # fmt: skip
        file = write(folder, "models: [{path: one, original: true}, {path: quantized, label: W4}, other]\n"
                     "methods: [{method: gptq-2048, window: 128, text: text.txt}]\n"
                     "comparisons: [{method: gptq-2048, window: 128, text: text.txt, layers: true, matrices: 2,\n"
                     "               noise_floor: true}]\n")  # fmt: skip
        code, out = sweep(file, plots=True)
        assert code == 0, out
        document = read(folder)
        assert [(cell["model"], cell["work"]) for cell in document["cells"]] == [
            ("one", "gptq-2048"), ("one", "KL gptq-2048"), ("W4", "gptq-2048"), ("W4", "KL gptq-2048"),
            ("other", "gptq-2048"), ("other", "KL gptq-2048")]  # fmt: skip
        floor, cell = document["cells"][1], document["cells"][3]
        done = subprocess.run(
            [sys.executable, "-m", "ctworker.compare.main", str(folder / "one"), str(folder / "quantized"), "--method",
             "gptq-2048", "--window", "128", "--text", str(folder / "text.txt"), "--layers", "--matrices", "2",
             "--noise-floor", "--json", "-", "--quiet"],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        of_floor, report = json.loads(done.stdout)["models"]
        assert report["matrices"].pop("kept")["bytes"] > 0, "a sweep's worker has no second model to measure this with"
        for name in ("statistics", "layers", "matrices"):
            assert cell["details"][name] == report[name], name
        assert len(cell["details"]["matrices"]["alone"]) == 14 and "matrices" not in floor["details"]
        assert floor["details"]["statistics"] == of_floor["statistics"] and floor["metrics"][0]["value"] > 0
        assert (floor["method"]["reference_dtype"], floor["source"]["dtype"]) == ("float32", "bfloat16")
        # a model is loaded once, with what it is compared with
        assert [cell["run"]["worker"] for cell in document["cells"]] == [1, 1, 2, 2, 3, 3]
        other = document["cells"][5]["details"]
        assert "matrices" not in other and other["notes"][-1] == "the model has no quantised matrix to put into its original alone"
        values = {metric["metric"]: metric["value"] for metric in cell["metrics"]}
        assert values["kl"] == report["statistics"]["kl"]["value"] > 0
        assert values["kl_99"] == report["statistics"]["kl_percentiles"]["99"]["value"]
        assert cell["source"]["reference"]["identity"] == document["cells"][0]["source"]["identity"]
        assert cell["reference"] == "one" and cell["metrics"][0]["headline"]
        drawn = {path.name for path in (folder / "sweep-results" / "plots").glob("kl-*.svg")}
        assert {f"kl-gptq-2048-{name}.svg" for name in ("layers", "layers-dark", "cosine", "spread", "matrices-2")} <= drawn
        page = (folder / "sweep-results" / "report.html").read_text().replace("<wbr>", "")  # names break at dots
        assert "Each matrix alone" in page and report["matrices"]["alone"][0]["name"] in page and "noise floor" in page
        # the reference is part of what a cell depends on
        os.utime(folder / "one" / "config.json")
        assert "4 of 6 cells to do" in sweep(file, "--dry-run")[1]

    def test_other_tokenizer(self, folder: Path) -> None:
        (folder / "text.txt").write_text("a text that is long enough " * 20)
        tokenizer = folder / "other" / "tokenizer.json"
        made = json.loads(tokenizer.read_text())
        a, b = sorted(made["model"]["vocab"], key=made["model"]["vocab"].get)[97:99]
        made["model"]["vocab"][a], made["model"]["vocab"][b] = made["model"]["vocab"][b], made["model"]["vocab"][a]
        tokenizer.write_text(json.dumps(made))
        text = "models: [{path: one, original: true}, other]\ncomparisons: [{method: exl3, window: 128, text: text.txt}]\n"
        code, out = sweep(write(folder, text))
        assert code == 64 and "sweep.yaml:2: comparisons[0]: " in out and "their tokenizers differ" in out, out
