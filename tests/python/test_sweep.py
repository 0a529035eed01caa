"""ctworker-sweep: its YAML file, its record, resuming and failing, on the real worker with tiny checkpoints."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import data_tasks
from conftest import wait_for
from ctworker.errors import ArgumentError, CtworkerError
from ctworker.sweep import definition, results, view

TWO = """\
name: two
models:
  - {path: one, original: true}
  - {path: other, method: RTN, bits: 4, label: W4}
include_path: tasks
tasks: [toy_rolling, {task: toy_choices, num_fewshot: 0}]
"""


SLOW = """
import pathlib, time

def slow(doc):
    pathlib.Path("began").touch()
    time.sleep(0.15)
    return doc["page"]
"""


@pytest.fixture
def folder(tmp_path: Path, checkpoint: Path) -> Path:
    """A folder with two models and lm-eval tasks."""
    for name in ("one", "other"):
        shutil.copytree(checkpoint, tmp_path / name)
    config = tmp_path / "other" / "config.json"
    config.write_text(config.read_text().replace('"rms_norm_eps"', '"rms_norm_eps": 0.001, "_eps"'))
    data_tasks.write(tmp_path / "tasks")
    return tmp_path


def write(folder: Path, text: str) -> Path:
    path = folder / "sweep.yaml"
    path.write_text(text)
    return path


def start(file: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "ctworker.sweep.main", str(file), *options],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def sweep(file: Path, *options: str) -> tuple[int, str]:
    child = start(file, *options)
    out, _ = child.communicate(timeout=300)
    return child.returncode, out


def read(folder: Path) -> dict[str, Any]:
    document = json.loads((folder / "sweep-results" / "results.json").read_text())
    jsonschema.validate(document, results.schema())
    return document


def scores(document: dict[str, Any]) -> list[Any]:
    """Everything of the cells but how they ran."""
    return [{name: value for name, value in cell.items() if name != "run"} for cell in document["cells"]]


@pytest.mark.usefixtures("real_worker")
class TestRun:
    def test_results(self, folder: Path) -> None:
        file = write(folder, TWO)
        code, out = sweep(file)
        assert code == 0, out
        assert "[4/4]" in out and "left" in out
        document = read(folder)
        assert [(c["model"], c["work"], c["state"]) for c in document["cells"]] == [
            ("one", "toy_rolling", "done"), ("one", "toy_choices", "done"),
            ("W4", "toy_rolling", "done"), ("W4", "toy_choices", "done"),
        ]  # fmt: skip
        assert document["models"][1]["bits_per_weight"] == 16.0
        first = document["cells"][0]
        best = next(metric for metric in first["metrics"] if metric.get("headline"))
        assert best["metric"] == "word_perplexity" and best["stderr"] > 0 and not best["higher_is_better"]
        assert first["source"]["identity"] != document["cells"][2]["source"]["identity"]
        assert first["method"]["n_docs"] == {"toy_rolling": 9} and first["versions"]["lm_eval"]
        table = (folder / "sweep-results" / "results.md").read_text()
        assert "| W4 | 16.000 |" in table and view.number(best["value"], best["stderr"]) in table
        lines = (folder / "sweep-results" / "results.csv").read_text().splitlines()
        assert len(lines) == 1 + sum(len(cell["metrics"]) for cell in document["cells"])
        # the numbers are lm-eval's
        assert self.lm_eval(folder) == best["value"]
        # nothing runs again, until a file of the model changes
        assert sweep(file)[0] == 0
        assert read(folder) == document
        os.utime(folder / "one" / "config.json")
        assert sweep(file)[0] == 0
        again = read(folder)
        assert [c["run"] == d["run"] for c, d in zip(document["cells"], again["cells"])] == [False, False, True, True]
        assert len(again["kept"]) == 2

    @staticmethod
    def lm_eval(folder: Path) -> float:
        """The word perplexity of the first model by lm-eval's own command."""
        out = folder / "lm-eval"
        subprocess.run(
            [sys.executable, str(Path(__file__).with_name("quick_lm_eval.py")), "--model", "ctworker", "--model_args",
             f"pretrained={folder / 'one'}", "--tasks", "toy_rolling", "--include_path", str(folder / "tasks"),
             "--output_path", str(out)], check=True, capture_output=True,
        )  # fmt: skip
        (file,) = out.rglob("results_*.json")
        return json.loads(file.read_text())["results"]["toy_rolling"]["word_perplexity,none"]

    def test_killed_at_random(self, folder: Path) -> None:
        """kill -9 at any instant: the same command goes on, and the scores are those of a run that was not killed."""
        file = write(folder, TWO)
        assert sweep(file, "--output", str(folder / "whole"))[0] == 0
        expected = json.loads((folder / "whole" / "results.json").read_text())
        rng, kills = random.Random(5), 0
        finished: dict[str, Any] = {}
        while kills < 6:
            child = start(file)
            try:
                child.wait(rng.uniform(0.2, 2.5))
            except subprocess.TimeoutExpired:
                kills += 1
            child.kill()
            child.communicate()
            if (folder / "sweep-results" / "results.json").exists():
                now = {cell["key"]: cell for cell in read(folder)["cells"] if cell["state"] == "done"}
                assert {key: now.get(key) for key in finished} == finished, "a finished cell ran again"
                finished = now
            if child.returncode == 0:
                shutil.rmtree(folder / "sweep-results")
                finished = {}
        assert sweep(file)[0] == 0
        assert scores(read(folder)) == scores(expected)
        wait_for(lambda: not self.running(folder))

    @staticmethod
    def running(folder: Path) -> str:
        return subprocess.run(["pgrep", "-f", f"serve.*{folder}"], capture_output=True, text=True, check=False).stdout

    def test_interrupted(self, folder: Path) -> None:
        file = write(folder, TWO)
        child = start(file)
        done = folder / "sweep-results" / "results.json"
        wait_for(lambda: done.exists() and '"done"' in done.read_text())
        child.send_signal(signal.SIGINT)
        out, _ = child.communicate(timeout=60)
        assert child.returncode == 130 and "the same command goes on" in out, out
        assert (folder / "sweep-results" / "results.md").exists()
        wait_for(lambda: not self.running(folder))
        assert sweep(file)[0] == 0

    def test_failing_cells(self, folder: Path) -> None:
        """A checkpoint that cannot be opened, and a task that raises: recorded, and the rest goes on."""
        (folder / "other" / "config.json").write_text('{"architectures": ["NoSuchModel"], "model_type": "nosuch"}')
        (folder / "tasks" / "toy_broken.yaml").write_text(
            "task: toy_broken\n" + data_tasks.YAML["toy_rolling"].replace("toy_tasks.page", "toy_tasks.broken")
        )
        with (folder / "tasks" / "toy_tasks.py").open("a") as module:
            module.write("\ndef broken(doc):\n    raise ValueError('the task is broken')\n")
        file = write(folder, TWO.replace("[toy_rolling", "[toy_broken, toy_rolling"))
        code, out = sweep(file)
        assert code == 1, out
        states = {(c["model"], c["work"]): (c["state"], c.get("error", "")) for c in read(folder)["cells"]}
        assert states[("one", "toy_rolling")] == states[("one", "toy_choices")] == ("done", "")
        assert states[("one", "toy_broken")] == ("failed", "ValueError: the task is broken")
        assert all(states[("W4", work)][0] == "failed" for work in ("toy_rolling", "toy_choices", "toy_broken"))
        assert "nosuch" in states[("W4", "toy_rolling")][1].lower()
        assert "the task is broken" in (folder / "sweep-results" / "results.md").read_text()

    def test_hub_model_that_is_missing(self, folder: Path) -> None:
        """Its cells fail when it is its turn; the others run."""
        text = TWO.replace("path: other", "path: nobody/nothing").replace(", {task: toy_choices, num_fewshot: 0}", "")
        code, out = sweep(write(folder, text))
        assert code == 1, out
        cells = read(folder)["cells"]
        assert [cell["state"] for cell in cells] == ["done", "failed"]
        assert "the hub's nobody/nothing (revision main) is not available" in cells[1]["error"]

    def test_dead_worker(self, folder: Path) -> None:
        """A worker that is killed in the middle of a cell is started again, and the cell finishes."""
        file = write(folder, TWO.replace("tasks: [toy_rolling", "tasks: [toy_slow, toy_rolling"))
        (folder / "tasks" / "toy_slow.yaml").write_text(
            "task: toy_slow\n" + data_tasks.YAML["toy_rolling"].replace("toy_tasks.page", "toy_tasks.slow")
        )
        with (folder / "tasks" / "toy_tasks.py").open("a") as module:
            module.write(SLOW)
        child = start(file)
        wait_for(lambda: (folder / "sweep-results" / "results.json").exists() and self.running(folder))
        (folder / "began").unlink(missing_ok=True)
        wait_for((folder / "began").exists)
        for pid in self.running(folder).split():
            os.kill(int(pid), signal.SIGKILL)
        out, _ = child.communicate(timeout=120)
        assert child.returncode == 0, out
        assert read(folder)["cells"][0]["run"]["attempts"] == 2

    def test_dry_run_only_force(self, folder: Path) -> None:
        file = write(folder, TWO)
        code, out = sweep(file, "--dry-run")
        assert code == 0 and "4 of 4 cells to do, about" in out and "toy_choices" in out, out
        assert not (folder / "sweep-results").exists()
        assert sweep(file, "--only", "W4:*rolling")[0] == 0
        first = read(folder)
        assert [cell["state"] for cell in first["cells"]] == ["pending", "pending", "done", "pending"]
        code, out = sweep(file, "--dry-run")
        assert "3 of 4 cells to do" in out and "done" in out
        assert sweep(file, "--only", "W4:*rolling", "--force")[0] == 0
        again = read(folder)
        assert again["cells"][2]["run"] != first["cells"][2]["run"] and scores(again) == scores(first)
        code, out = sweep(file, "--only", "W5")
        assert code == 64 and "no cell matches" in out

    def test_watch(self, folder: Path, checkpoint: Path) -> None:
        file = write(folder, TWO.replace(", {task: toy_choices, num_fewshot: 0}", ""))
        (folder / "new").mkdir()
        child = start(file, "--watch", str(folder / "new"))
        shutil.copytree(checkpoint, folder / "new" / "late")
        wait_for(lambda: (folder / "sweep-results" / "results.json").exists() and len(
            [c for c in read(folder)["cells"] if c["state"] == "done"]) == 3, 120)  # fmt: skip
        child.send_signal(signal.SIGINT)
        child.communicate(timeout=60)
        assert read(folder)["models"][2]["label"] == "late"

    @pytest.mark.parametrize(
        ("task", "message"),
        [
            ("toy_nothing", "sweep.yaml:6: tasks[1]: lm-eval has no task toy_nothing"),
            ("toy_generate", "sweep.yaml:6: tasks[1]: the task toy_generate generates text"),
            ("{task: toy_choices, metric: f2}", "sweep.yaml:6: tasks[1]: the task toy_choices has no metric f2: expected"),
        ],
    )
    def test_wrong_tasks(self, folder: Path, task: str, message: str) -> None:
        file = write(folder, TWO.replace("{task: toy_choices, num_fewshot: 0}", task))
        code, out = sweep(file)
        assert code == 64 and message in out, out
        assert [cell["state"] for cell in read(folder)["cells"]] == ["pending"] * 4


METHODS = """\
models: [{path: one, original: true}, {path: other, label: W4}]
methods:
  - {method: gptq-2048, window: 128, text: text.txt}
  - {method: gptq-2048, label: both, window: 128, text: [text.txt, other.txt]}
"""


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

    def test_too_short(self, texts: Path) -> None:
        (texts / "text.txt").write_text("short")
        code, out = sweep(write(texts, METHODS))
        assert code == 64 and "sweep.yaml:3: methods[0]: text.txt: the text has 5 tokens, but method gptq-2048" in out, out

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
        """The numbers are those of ctworker-compare; the original is compared with nothing."""
        rng = random.Random(2)
        (folder / "text.txt").write_text(" ".join(rng.choices(["some", "words", "that", "have", "no", "sense"], k=150)))
        file = write(folder, "models: [{path: one, original: true}, {path: other, label: W4}]\n"
                     "methods: [{method: gptq-2048, window: 128, text: text.txt}]\n"
                     "comparisons: [{method: gptq-2048, window: 128, text: text.txt, layers: true}]\n")  # fmt: skip
        code, out = sweep(file)
        assert code == 0, out
        document = read(folder)
        assert [(cell["model"], cell["work"]) for cell in document["cells"]] == [
            ("one", "gptq-2048"), ("W4", "gptq-2048"), ("W4", "KL gptq-2048")]  # fmt: skip
        cell = document["cells"][2]
        done = subprocess.run(
            [sys.executable, "-m", "ctworker.compare.main", str(folder / "one"), str(folder / "other"), "--method", "gptq-2048",
             "--window", "128", "--text", str(folder / "text.txt"), "--layers", "--json", "-", "--quiet"],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        report = json.loads(done.stdout)["models"][0]
        assert cell["details"]["statistics"] == report["statistics"] and cell["details"]["layers"] == report["layers"]
        values = {metric["metric"]: metric["value"] for metric in cell["metrics"]}
        assert values["kl"] == report["statistics"]["kl"]["value"] > 0
        assert values["kl_99"] == report["statistics"]["kl_percentiles"]["99"]["value"]
        assert cell["source"]["reference"]["identity"] == document["cells"][0]["source"]["identity"]
        assert cell["reference"] == "one" and cell["metrics"][0]["headline"]
        assert sorted(path.name for path in (folder / "sweep-results" / "plots").glob("*layers*")) == [
            "kl-gptq-2048-layers.png", "kl-gptq-2048-layers.svg"]  # fmt: skip
        # the reference is part of what a cell depends on
        os.utime(folder / "one" / "config.json")
        assert "2 of 3 cells to do" in sweep(file, "--dry-run")[1]

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


class TestFile:
    """Errors of the YAML file: the file, the line, the key and what was expected."""

    @pytest.mark.parametrize(
        ("old", "new", "message"),
        [
            ("bits: 4", "bit: 4", "4: models[1].bit: the key is unknown in a model: expected one of path, label"),
            ("bits: 4", "bits: four", "4: models[1].bits: expected a number of at least 0, found text, 'four'"),
            ("original: true", "original: 3", "3: models[0].original: expected true or false, found a whole number, 3"),
            ("path: other", "path: others", "there is no folder"),
            ("path: other", "path: o*r2", "matches no folder with a config.json"),
            ("path: other", "path: tasks", "has no config.json"),
            ("label: W4", "label: one", "two models have the label one"),
            ("path: other, method: RTN, bits: 4, label: W4", "path: 'o*', label: x",
             "matches 2 folders: expected a label with {name}"),
            ("label: W4", "original: true", "several models with original: true (one, other)"),
            ("num_fewshot: 0", "num_fewshot: -1", "6: tasks[1].num_fewshot: expected a whole number of at least 0"),
            ("num_fewshot: 0", "limit: 0.5", "6: tasks[1].limit: expected a whole number of at least 1"),
            ("toy_choices", "toy_rolling", "6: tasks[1]: the name toy_rolling is taken by"),
            ("tasks: [", "task: [", "1: the file: the key is unknown"),
            ("tasks: [toy_rolling, {task: toy_choices, num_fewshot: 0}]", "", "there is nothing to do"),
            ("include_path: tasks", "include_path: none", "5: include_path: there is no folder"),
            ("name: two", "models: []", "2: models: the key occurs twice, first in line 1"),
            ("name: two", "options: {dtype: bf15}", "1: options.dtype: dtype='bf15': expected one of auto"),
            ("name: two", "options: [{dtype: auto}, {dtype: float32}]", "the key name is missing"),
            ("name: two", "devices: [0, auto]", "several devices are named by number"),
            ("name: two", "devices: gpu", "1: devices: expected auto, cpu, or the number of a GPU, found text, 'gpu'"),
            ("name: two", "name: [", "this is not YAML"),
            ("name: two", "methods: [gptq]", "1: methods[0]: method 'gptq' is unknown (did you mean gptq-2048?)"),
            ("name: two", "methods: {method: exl3, stride: 0}", "1: methods: stride 0: expected a whole number of at least 1"),
            ("name: two", "methods: {method: exl3, strides: 5}", "methods.strides: the key is unknown in a method"),
            ("name: two", "methods: {method: exl3, new: 5}", "methods.new: expected true or false"),
            ("name: two", "methods: {method: exl3, text: no.txt}", "methods.text: there is no file"),
            ("name: two", "comparisons: lm-eval", "1: comparisons: lm-eval's windows cannot be compared"),
            ("name: two", "comparisons: {method: exl3, reference: W5}", "expected one of one, W4, found text, 'W5'"),
            ("name: two\nmodels:\n  - {path: one, original: true}", "comparisons: exl3\nmodels:\n  - one",
             "no model has original: true: mark one, or name"),
            ("name: two", "store_limit: big", "1: store_limit: expected a size such as 20GiB, found text, 'big'"),
            (TWO, "", "the file is empty"),
            (TWO, "- a\n- b\n", "1: the file: expected a sweep: a mapping, found a list"),
        ],
    )  # fmt: skip
    def test_errors(self, folder: Path, old: str, new: str, message: str) -> None:
        assert old in TWO
        if message.startswith("1: the file: the key"):  # the message about a key names the key
            message = "6: task: the key is unknown in a sweep: expected one of name, output"
        with pytest.raises(ArgumentError) as error:
            definition.load(write(folder, TWO.replace(old, new)))
        assert message in str(error.value) and str(error.value).startswith(str(folder)), str(error.value)
        assert "\n" not in str(error.value)

    def test_alias_in_itself_and_not_utf8(self, folder: Path) -> None:
        with pytest.raises(ArgumentError, match="contains itself"):
            definition.load(write(folder, "models: &a [*a]"))
        (folder / "sweep.yaml").write_bytes(b"name: \xff")
        with pytest.raises(ArgumentError, match="not UTF-8"):
            definition.load(folder / "sweep.yaml")
        with pytest.raises(ArgumentError, match="cannot be read"):
            definition.load(folder / "nothing.yaml")

    def test_globs_and_options(self, folder: Path) -> None:
        text = TWO.replace("path: other, method: RTN, bits: 4, label: W4", "path: 'o*r', label: 'Q {name}', group: q")
        text = text.replace("name: two", "options: [{name: a}, {name: b, dtype: fp32, max_length: 64}]\ndevices: [0, 1]")
        made = definition.load(write(folder, text))
        assert [(m.label, m.group, m.original) for m in made.models] == [("one", "", True), ("Q other", "q", False)]
        assert made.options[1].values == {"dtype": "float32", "max_length": 64}
        assert (made.name, made.devices, made.output) == ("sweep", ["0", "1"], folder / "sweep-results")


class TestRecord:
    def test_other_folders_are_refused(self, folder: Path) -> None:
        made = definition.load(write(folder, TWO))
        (folder / "sweep-results").mkdir()
        (folder / "sweep-results" / "thesis.tex").write_text("")
        with pytest.raises(ArgumentError, match="not empty and has no results.json"):
            results.Results(made)
        (folder / "sweep-results" / "thesis.tex").unlink()
        record = results.Results(made)
        document = {
            "schema": results.SCHEMA, "version": 1, "sweep": {"name": "three", "file": "", "devices": []},
            "models": [], "cells": [], "kept": [],
        }  # fmt: skip
        record.write(document)
        with pytest.raises(ArgumentError, match="holds the results of the sweep 'three', not of 'two'"):
            results.Results(made)
        record.write(document | {"version": 2})
        with pytest.raises(ArgumentError, match="reads ctworker-sweep-results up to 1: update ctworker"):
            results.Results(made)
        record.write(document | {"sweep": {"name": "two"}})
        with pytest.raises(ArgumentError, match=r"is damaged: \$\.sweep: 'file' is a required property"):
            results.Results(made)
        record.write_text("results.json", "{")
        with pytest.raises(ArgumentError, match="is not the results of a sweep"):
            results.Results(made)

    def test_one_sweep_at_a_time(self, folder: Path) -> None:
        made = definition.load(write(folder, TWO))
        first = results.Results(made)
        first.lock()
        with pytest.raises(CtworkerError, match="another ctworker-sweep is writing"):
            results.Results(made).lock()

    def test_no_space(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        record = results.Results(definition.load(write(folder, TWO)))
        record.lock()
        record.cells["a"] = {"state": "done"}
        record.write({"old": 1})
        record.cells["b"] = {"state": "done"}

        def full(fd: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(CtworkerError, match="no space left to write .*results.json: free .* the 1 finished cells are kept"):
            record.write({"new": 1})
        assert json.loads(record.path.read_text()) == {"old": 1}
        assert sorted(os.listdir(record.folder)) == [".lock", "results.json"]


def test_missing_libraries(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    from ctworker.sweep import main

    monkeypatch.setitem(main._NEEDED, "no_such_module", "no-such-module")
    assert main.main([str(write(folder, TWO))]) == 1
    assert capsys.readouterr().err == "ctworker-sweep: no-such-module is not installed: pip install 'ctworker[sweep]'\n"


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    from ctworker.sweep import main

    with pytest.raises(SystemExit):
        main.main(["--help"])
    text = capsys.readouterr().out
    for option in ("--output", "--only", "--force", "--dry-run", "--report", "--watch", "Exit codes"):
        assert option in text
