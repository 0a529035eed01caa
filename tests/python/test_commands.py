"""All commands of the product: --help of the program names them, and each has --version."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from ctworker import __version__
from ctworker.client import launcher

ROOT = Path(__file__).resolve().parents[2]
_SECTION = re.search(r"^\[project.scripts\]\n(.*?)\n\n", (ROOT / "pyproject.toml").read_text(), re.DOTALL | re.MULTILINE)
SCRIPTS = dict(re.findall(r'^([\w-]+) = "(.*)"$', _SECTION[1], re.MULTILINE))
SHELL = ("examples/quickstart.sh", "examples/sweep.sh", "examples/ladder.sh", "tests/tools/wheel", "tests/tools/bare_root")


@pytest.mark.usefixtures("real_worker")
def test_help_names_every_command():
    help_text = subprocess.run([launcher.find_binary(), "--help"], stdout=subprocess.PIPE, text=True, check=True).stdout
    named = set(re.findall(r"\bctworker(?:-[\w-]+)?", help_text))
    assert set(SCRIPTS) <= named and len(SCRIPTS) >= 5
    assert "lm_eval --model ctworker" in help_text


@pytest.mark.usefixtures("real_worker")
@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_a_console_script_has_a_version(name):
    module, function = SCRIPTS[name].split(":")
    assert callable(getattr(import_module(module), function))
    code = f"import sys; sys.argv[0] = {name!r}; from {module} import {function}; sys.exit({function}())"
    done = subprocess.run([sys.executable, "-c", code, "--version"], env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
                          stdout=subprocess.PIPE, text=True, check=False)  # fmt: skip
    assert done.returncode == 0
    assert done.stdout.startswith(f"{name} {__version__}"), done.stdout


@pytest.mark.parametrize("name", SHELL)
def test_a_shell_command_has_a_version(name):
    done = subprocess.run([ROOT / name, "--version"], stdout=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"{Path(name).stem} of ctworker {__version__}\n")


def readme_commands():
    """The words of each command in README's blocks of shell code, without comments."""
    blocks = re.findall(r"^```sh\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    lines = [line.split("#")[0].split() for block in blocks for line in block.split("\n")]
    return [line for line in lines if line]


@pytest.mark.usefixtures("real_worker")
@pytest.mark.parametrize("words", readme_commands(), ids=" ".join)
def test_a_command_of_the_readme_exists(words):
    """A file that README runs is there; the options that it gives to our programs are in their help."""
    name, options = words[0], {word.split("=")[0] for word in words if word.startswith("--")}
    if name in SCRIPTS:
        module, function = SCRIPTS[name].split(":")
        code = f"import sys; sys.argv[0] = {name!r}; from {module} import {function}; sys.exit({function}())"
        argv = [sys.executable, "-c", code]
    elif name == "build/release/worker/ctworker":
        argv = [launcher.find_binary(), words[1]]
    else:
        assert "/" not in name or os.access(ROOT / name, os.X_OK)
        return
    done = subprocess.run([*argv, "--help"], env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
                          stdout=subprocess.PIPE, text=True, check=False)  # fmt: skip
    assert done.returncode == 0 and not {option for option in options if option not in done.stdout}


def test_alice_is_whole_and_clean():
    """The text of the quickstart: 12 chapters, nothing but Carroll's."""
    sys.path.insert(0, str(ROOT / "examples"))
    try:
        pages = import_module("alice_task").chapters()["test"]["page"]
    finally:
        sys.path.pop(0)
    assert len(pages) == 12 and all(len(page) > 8000 for page in pages)
    text = "".join(pages)
    assert text.endswith("THE END\n") and not re.search(r"gutenberg|edition|\[", text, re.IGNORECASE)
    assert (ROOT / "examples/alice.txt").stat().st_size <= 200_000


def _progress(command, log):
    script = f'. examples/setup.sh; . examples/progress.sh; ctw_run "a step" "{log}" {command}'
    return subprocess.run(["bash", "-eu", "-c", script], cwd=ROOT, stderr=subprocess.PIPE, text=True, check=False)


def test_a_step_of_the_quickstart_shows_what_it_does(tmp_path):
    done = _progress("sh -c 'echo unpacking; sleep 6; echo end'", tmp_path / "log")
    first, last = done.stderr.splitlines()
    assert re.fullmatch(r"  a step, \d+ s: unpacking", first) and re.fullmatch(r"  a step: \d+ s", last)
    assert (tmp_path / "log").read_text() == "unpacking\nend\n"


def test_a_step_that_fails_shows_the_end_of_its_output(tmp_path):
    done = _progress("sh -c 'echo no such disk; exit 7'", tmp_path / "log")
    assert done.returncode == 7
    assert done.stderr.startswith("no such disk\na step: failed (exit code 7)") and str(tmp_path / "log") in done.stderr


def test_an_interrupted_step_says_so(tmp_path):
    """Ctrl-C reaches the shell and its command; a function's output goes to the log, the trap's does not."""
    script = (
        "trap 'ctw_say interrupted; exit 130' INT; . examples/setup.sh; . examples/progress.sh; "
        "work() { kill -INT 0; sleep 5; }; " + f'ctw_run "a step" "{tmp_path}/log" work'
    )
    done = subprocess.run(["bash", "-eu", "-c", script], cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True,
                          check=False)  # fmt: skip
    assert (done.returncode, done.stderr) == (130, "interrupted\n")
