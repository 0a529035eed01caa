"""ctworker-sweep: results, resuming and failing, on the real worker with tiny checkpoints."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import data_tasks
from conftest import wait_for
from ctworker.compare import runs
from ctworker.sweep import columns, view
from ctworker.sweep.conductor import Conductor
from killed_sweep import Killed
from sweep_cases import QUICK, TWO, read, scores, start, sweep, write
from sweep_cases import folder  # noqa: F401 (fixtures)

SLOW = """
import pathlib, time

def slow(doc):
    pathlib.Path("began").touch()
    time.sleep(0.15)
    return doc["page"]
"""


def test_a_failure_before_the_first_cell_ends_the_process_of_the_cells(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Process:
        closed = False

        def close(self) -> None:
            self.closed = True

    def fails() -> None:
        raise OSError(28, "No space left on device")

    process, conductor = Process(), object.__new__(Conductor)
    conductor.sweep = SimpleNamespace(devices=["cpu"], output=tmp_path)  # type: ignore[assignment]
    monkeypatch.setattr(conductor, "prepare", lambda log_file: process)
    monkeypatch.setattr(conductor, "_record_refused", fails)
    with pytest.raises(OSError, match="No space"):
        conductor._run_todo()
    assert process.closed


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
        assert "| W4 | 16.000 |" in table and columns.number(best["value"], best["stderr"]) in table
        lines = (folder / "sweep-results" / "results.csv").read_text().splitlines()
        assert len(lines) == 1 + sum(len(cell["metrics"]) for cell in document["cells"])
        self.check_paired(document, folder / "sweep-results")
        # the numbers are lm-eval's
        assert self.lm_eval(folder) == best["value"]
        # nothing runs again, until a file of the model changes
        assert sweep(file)[0] == 0
        assert read(folder) == document
        os.utime(folder / "one" / "config.json")
        assert sweep(file)[0] == 0
        again = read(folder)
        assert [c["run"] == d["run"] for c, d in zip(document["cells"], again["cells"])] == [False, False, True, True]
        assert len(again["kept"]) == 2 and again["paired"][0]["tests"] == document["paired"][0]["tests"]
        # answers that were changed are not tested
        path = folder / "sweep-results" / "samples" / "W4" / "toy_choices" / "samples_toy_choices.jsonl"
        path.write_text(path.read_text().replace("1.0", "0.0"))
        code, out = sweep(file, "--report")
        assert code == 0, out
        (entry,) = read(folder)["paired"]
        assert entry["tests"] == [] and "is missing or was changed: run the cell again with --force" in entry["notes"][0]

    @staticmethod
    def check_paired(document: dict[str, Any], out: Path) -> None:
        """The kept answers give the tests of ctworker-compare --samples, in results.json and in the reports. A task whose
        metrics are no number of a question has none."""
        (entry,) = document["paired"]
        assert (entry["work"], entry["model"], entry["reference"], entry["notes"]) == ("toy_choices", "W4", "one", [])
        found = runs.compare([out / "samples" / "one", out / "samples" / "W4"])
        assert found["comparisons"][0]["tests"] == entry["tests"]
        (test,) = [test for test in entry["tests"] if test["metric"] == "acc"]
        cells = {(cell["model"], cell["work"]): cell for cell in document["cells"]}
        values = [cells[label, "toy_choices"]["metrics"][0]["value"] for label in ("one", "W4")]
        assert (test["n"], test["mean_a"], test["mean_b"]) == (20, *values) and test["p_mcnemar"] is not None
        assert "samples" not in cells["one", "toy_rolling"]["details"] or not cells["one", "toy_rolling"]["details"]["samples"]
        row = view.paired(document)[0]
        assert f"| {' | '.join(row)} |" in (out / "results.md").read_text()
        page = (out / "report.html").read_text()
        assert "Paired tests" in page and f"<td>{row[5]}</td>" in page

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
        """kill -9 at any instant: the same command goes on, the scores are those of a run that was not killed, and no record
        is computed again."""
        (folder / "text.txt").write_text(" ".join(str(i * i) for i in range(400)))
        methods = "methods: [{method: gptq-2048, text: text.txt, window: 64, stride: 64}]\n"
        killed = Killed(TWO + methods, folder, limit_s=300, seed=5, program=[str(QUICK)])
        killed.run(4)

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

    def test_stores_that_cannot_be_used(self, folder: Path) -> None:
        """Known before any cell runs."""
        assert sweep(write(folder, TWO), "--only", "one:toy_rolling")[0] == 0
        whole = (folder / "sweep-results" / "store" / "results.sqlite").read_bytes()
        newer = bytearray(whole)
        newer[63] = 7  # SQLite's user_version
        for data, message in (
            (bytes(newer), "a newer ctworker wrote it (version 7 of the store"),
            (whole[:4096] + bytes(len(whole) - 4096), "the file is damaged"),
            (b"some other text " * 99, "the file is damaged"),
        ):
            (folder / "store").mkdir(exist_ok=True)
            (folder / "store" / "results.sqlite").write_bytes(data)
            for options in ((), ("--dry-run",)):
                code, out = sweep(write(folder, "store: store\n" + TWO), *options, "--output", str(folder / "out"))
                assert code == 1 and out.count("\n") == 1, out
                assert out.startswith(f"ctworker-sweep: store: {folder / 'store/results.sqlite'}: ") and message in out
        assert [cell["state"] for cell in json.loads((folder / "out/results.json").read_text())["cells"]] == ["pending"] * 4

    def test_options_that_no_worker_can_take(self, folder: Path) -> None:
        """Known before any cell runs: the cells of these options fail, the others run; an error if there are no others."""
        file = write(folder, TWO + "options: [{name: small, dtype: float32, memory_limit: 1KiB}, {name: usual}]\n")
        code, out = sweep(file, "--only", ":toy_rolling")
        assert code == 1 and out.index("raise memory_limit:") < out.index("toy_rolling [usual]: word_perplexity"), out
        states = {(c["model"], c["options"]): c["state"] for c in read(folder)["cells"] if c["work"] == "toy_rolling"}
        assert states == {(model, name): state for model in ("one", "W4") for name, state in (("small", "failed"), ("usual", "done"))}
        code, out = sweep(write(folder, TWO + "options: {cpu_variant: avx1024}\n"))
        assert code == 64 and "options.cpu_variant: 'avx1024': expected one of auto, c, avx2, avx512" in out.splitlines()[-1], out

    def test_hub_model_that_is_missing(self, folder: Path) -> None:
        """Its cells fail when it is its turn; the others run."""
        text = TWO.replace("path: other", "path: nobody/nothing").replace(", {task: toy_choices, num_fewshot: 0}", "")
        code, out = sweep(write(folder, text))
        assert code == 1, out
        cells = read(folder)["cells"]
        assert [cell["state"] for cell in cells] == ["done", "failed"]
        assert "the hub's nobody/nothing (revision main) is not available" in cells[1]["error"]

    def test_hub_name_that_moves(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A cell is of the commit that its revision was: no label mixes two, and what was finished of a commit is found again."""
        monkeypatch.setenv("HF_HUB_CACHE", str(folder / "hub"))
        repository = folder / "hub" / "models--org--name"
        commits = {name: digit * 40 for name, digit in (("one", "a"), ("other", "b"))}
        (repository / "refs").mkdir(parents=True)
        for name, commit in commits.items():
            shutil.copytree(folder / name, repository / "snapshots" / commit)
        head = "name: two\nmodels: [{path: org/name, label: hub}]\ninclude_path: tasks\n"
        runs = [("one", "[toy_rolling]"), ("other", "[toy_rolling, toy_choices]"), ("one", "[toy_rolling, toy_choices]")]
        found = []
        for name, tasks in runs:
            (repository / "refs" / "main").write_text(commits[name])
            code, out = sweep(write(folder, f"{head}tasks: {tasks}\n"))
            assert code == 0, out
            found.append(read(folder))
            assert {cell["commit"] for cell in found[-1]["cells"]} == {commits[name]}
            assert len({cell["source"]["identity"] for cell in found[-1]["cells"]}) == 1
        assert [len(document["kept"]) for document in found] == [0, 1, 2]
        assert found[2]["cells"][0] == found[0]["cells"][0] == found[1]["kept"][0]
        assert found[2]["cells"][0]["source"]["identity"] != found[1]["cells"][0]["source"]["identity"]

    def test_two_identities_under_one_label(self, folder: Path) -> None:
        """Files that changed without a sign: the cell fails by name, until all of the label are of one checkpoint."""
        one = TWO.replace("  - {path: other, method: RTN, bits: 4, label: W4}\n", "")
        write(folder, one.replace(", {task: toy_choices, num_fewshot: 0}", ""))
        code, out = sweep(folder / "sweep.yaml")
        assert code == 0, out
        results = folder / "sweep-results" / "results.json"
        identity = read(folder)["cells"][0]["source"]["identity"]
        results.write_text(results.read_text().replace(identity, "ab" * 32))
        code, out = sweep(write(folder, one))
        assert code == 1, out
        first, second = read(folder)["cells"]
        assert (first["state"], second["state"]) == ("done", "failed")
        assert second["error"].startswith("the files of one (") and "start the sweep again, with --force" in second["error"]
        assert f"scored the checkpoint {identity}, and one · toy_rolling {'ab' * 32}" in second["error"]
        code, out = sweep(folder / "sweep.yaml", "--force")
        assert code == 0, out
        assert {cell["source"]["identity"] for cell in read(folder)["cells"]} == {identity}

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
