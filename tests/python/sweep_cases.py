"""What the tests of ctworker-sweep share: a folder with two models and tasks, and runs of the command."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import data_tasks
from ctworker.sweep import results
from conftest import HERE
from killed_sweep import scores

__all__ = ["QUICK", "TWO", "folder", "read", "scores", "start", "sweep", "write"]

QUICK = HERE / "quick_sweep.py"
TWO = """\
name: two
models:
  - {path: one, original: true}
  - {path: other, method: RTN, bits: 4, label: W4}
include_path: tasks
tasks: [toy_rolling, {task: toy_choices, num_fewshot: 0}]
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


def start(file: Path, *options: str, plots: bool = False) -> subprocess.Popen[str]:
    program = ["-m", "ctworker.sweep.main"] if plots else [str(QUICK)]
    return subprocess.Popen(
        [sys.executable, *program, str(file), *options],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def sweep(file: Path, *options: str, plots: bool = False) -> tuple[int, str]:
    child = start(file, *options, plots=plots)
    out, _ = child.communicate(timeout=300)
    return child.returncode, out


def read(folder: Path) -> dict[str, Any]:
    document = json.loads((folder / "sweep-results" / "results.json").read_text())
    jsonschema.validate(document, results.schema())
    return document
