"""ctworker-sweep: its YAML file, its record, its command line."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from sweep_cases import (
    TWO,
    folder,  # noqa: F401 (fixtures)
    write,
)

from ctworker.base.errors import ArgumentError, CtworkerError
from ctworker.sweep import definition, models, results


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
            ("include_path: tasks", "store: no/such/folder", "no/such/folder cannot be written to, or made"),
            ("include_path: tasks", "store_limit: 10KiB", "5: store_limit: expected at least 1MiB, found text, '10KiB'"),
            ("tasks: [", "task: [", "1: the file: the key is unknown"),
            ("tasks: [toy_rolling, {task: toy_choices, num_fewshot: 0}]", "", "there is nothing to do"),
            ("include_path: tasks", "include_path: none", "5: include_path: there is no folder"),
            ("name: two", "models: []", "2: models: the key occurs twice, first in line 1"),
            ("name: two", "options: {dtype: bf15}", "1: options.dtype: 'bf15': expected one of auto"),
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
            ("name: two", "comparisons: {method: exl3, matrices: 0}", "matrices: expected a whole number of at least 1"),
            ("name: two", "comparisons: {method: exl3, noise_floor: 2}", "noise_floor: expected true or false"),
            ("name: two", "store_limit: big", "1: store_limit: expected a size such as 20GiB, found text, 'big'"),
            ("name: two", "store: sweep.yaml", "is a file: expected true, false, or a folder"),
            ("bits: 4", "bits: .nan", "4: models[1].bits: expected a number of at least 0, found a number, nan"),
            ("name: two", "? [a, b]\n: 1", "1: the file: a key is a list or a mapping: expected text"),
            ("name: two", "options: {timeout: yes}", "1: options.timeout: expected a number or text, found true or false, True"),
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

    def test_gguf_files(self, folder: Path) -> None:
        for name in ("m-Q4_K.gguf", "m-Q8_0-00001-of-00002.gguf", "m-Q8_0-00002-of-00002.gguf"):
            (folder / name).write_bytes(b"GGUF")
        text = TWO.replace("path: other, method: RTN, bits: 4, label: W4", "path: 'm-*.gguf', label: 'g {name}'")
        found = definition.load(write(folder, text)).models[1:]
        assert [(m.label, Path(m.path).name) for m in found] == [
            ("g m-Q4_K", "m-Q4_K.gguf"), ("g m-Q8_0-00001-of-00002", "m-Q8_0-00001-of-00002.gguf")
        ]
        before = [models.stamp_of(Path(m.path)) for m in found]
        (folder / "m-Q8_0-00002-of-00002.gguf").write_bytes(b"GGUF, longer")
        assert [models.stamp_of(Path(m.path)) == stamp for m, stamp in zip(found, before, strict=True)] == [True, False]


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
        record.write(document | {"version": results.VERSION + 1})
        with pytest.raises(ArgumentError, match="reads ctworker-sweep-results up to 2: update ctworker"):
            results.Results(made)
        record.write(document | {"sweep": {"name": "two", "file": "", "devices": []}})
        assert results.Results(made).paired == [], "the version without paired tests"
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
