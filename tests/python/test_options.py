"""The table of options (ctworker/settings.py) and what derives from it: each user interface has its options, with their types,
defaults and whole lists of choices, and its messages spell an option as its user wrote the option."""

from __future__ import annotations

import argparse
import inspect
import re
import subprocess
from pathlib import Path

import pytest
from conftest import REAL_WORKER

from ctworker import Client, CtworkerError, Worker
from ctworker.compare import main as compare
from ctworker.options import spelling, values
from ctworker.options.arguments import parse
from ctworker.options.settings import OPTIONS, On, Settings, options_on
from ctworker.perplexity import main as ppl
from ctworker.perplexity import methods
from ctworker.perplexity.options import worker_arguments

BAD = {"dtype": "int4", "placement": "disk", "activations": "all", "cpu_variant": "sse", "max_length": "0", "store_limit": "5 bytes"}
PARSERS = [(ppl.parser(), On.PPL), (compare.parser(), On.COMPARE)]


@pytest.mark.parametrize(("made", "interface"), [(Worker, On.WORKER), (Client, On.CLIENT)])
def test_parameters(made: type, interface: On) -> None:
    """A checker of types and an editor read the source, so the parameters are written out; they are those of the table."""
    given = inspect.signature(made.__init__).parameters
    own = {"self", "model", "endpoint", "reference", "reference_dtype"}
    assert set(given) - own == {option.name for option in options_on(interface)} - own
    for option in options_on(interface):
        if option.name not in own:
            assert given[option.name].default == option.default, option.name
            assert given[option.name].kind is inspect.Parameter.KEYWORD_ONLY
        for word in (option.name, option.help, *option.choices):
            assert word in (made.__doc__ or ""), option.name


@pytest.mark.parametrize(("parser", "command"), PARSERS)
def test_flags(parser: argparse.ArgumentParser, command: On) -> None:
    flags = {flag: action for action in parser._actions for flag in action.option_strings}
    for option in options_on(command):
        action = flags[spelling.flag(option.name)]
        assert action.help is not None and all(choice in action.help for choice in option.choices)
    for name, field in methods.FIELDS.items():
        if command is On.PPL or name not in methods.OF_NUMBERS:
            assert flags[spelling.flag(name)].help == field.metadata["help"].replace("%", "%%")


@pytest.mark.skipif(REAL_WORKER is None, reason="no worker was built")
def test_options_of_the_worker() -> None:
    """The worker has each option that it gets, and the same choices."""
    text = subprocess.run([REAL_WORKER, "serve", "--help"], capture_output=True, text=True, check=True).stdout
    for option in options_on(On.SERVE):
        found = re.search(rf"^  {spelling.flag(option.name)} (\S+)", text, re.MULTILINE)
        assert found, option.name
        if option.choices:
            choices = [c for c in found[1].split("|") if c != "amx-emulated"]  # of builds with tests alone
            assert tuple(choices) == option.choices
        else:
            assert found[1].isupper()


@pytest.mark.parametrize("name", BAD)
def test_messages_speak_of_what_was_written(name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "text").write_text("a text")
    option = OPTIONS[name]
    with pytest.raises(CtworkerError) as error:
        parse({"pretrained": "DIR", name: BAD[name]})
    assert str(error.value).startswith(f"{name}='{BAD[name]}': expected ")
    assert all(choice in str(error.value) for choice in option.choices)
    words = [spelling.flag(name), BAD[name], "--text", str(tmp_path / "text")]
    assert ppl.main([str(tmp_path), *words]) == 64
    assert capsys.readouterr().err.startswith(f"ctworker-ppl: {spelling.flag(name)} '{BAD[name]}': expected ")


MESSAGES = [
    # as in this package, in a command, in a sweep file
    ("max_length=5, but the worker takes 4: leave max_length= out.", "--max-length 5, but the worker takes 4: leave --max-length out.",
     "max_length: 5, but the worker takes 4: leave max_length: out."),
    ("devices='0 1': expected all", "--devices '0 1': expected all", "devices: '0 1': expected all"),
    ("pretrained=DIR has no tokenizer: pass tokenizer=DIR (a folder)", "DIR has no tokenizer: pass --tokenizer DIR (a folder)",
     "pretrained=DIR has no tokenizer: pass tokenizer: DIR (a folder)"),
    ("see `ctworker serve --store DIR`, /tmp/dtype=x and path-dtype=x", "see `ctworker serve --store DIR`, /tmp/dtype=x and path-dtype=x",
     "see `ctworker serve --store DIR`, /tmp/dtype=x and path-dtype=x"),
    ("timeout=", "timeout=", "timeout:"),
    ("dtype=float32", "--dtype float32", "dtype: float32"),
]  # fmt: skip


@pytest.mark.parametrize(("message", "command", "sweep"), MESSAGES)
def test_spellings(message: str, command: str, sweep: str) -> None:
    assert spelling.for_command(message, On.PPL) == command
    assert spelling.for_sweep(message) == sweep


@pytest.mark.parametrize(
    ("of_worker", "message"),
    [
        ("no GPU was found (--backend cpu needs no GPU)", "no GPU was found (device=cpu needs no GPU)"),
        ("raise --memory-limit, or give --max-length 512", "raise memory_limit=, or give max_length=512"),
        ("try --dtype float32, or --device 3", "try dtype=float32, or device=cuda:3"),
        ("score it with --activations=none, which", "score it with activations=none, which"),
        ("lower --pass-tokens", "lower --pass-tokens"),
    ],
)
def test_the_worker_speaks_of_arguments(of_worker: str, message: str) -> None:
    assert spelling.from_worker(of_worker) == message


@pytest.mark.skipif(REAL_WORKER is None, reason="no worker was built")
def test_our_own_worker_speaks_as_its_user(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The worker names its own options; Python, a command and a sweep name theirs."""
    monkeypatch.setenv("CTWORKER_BIN", str(REAL_WORKER))
    with pytest.raises(CtworkerError, match="raise memory_limit="):
        Worker(checkpoint, memory_limit="1KiB")
    (tmp_path / "text").write_text("a text of more than one token")
    words = [str(checkpoint), "--text", str(tmp_path / "text"), "--window", "4", "--quiet", "--memory-limit", "1KiB"]
    assert ppl.main(words) == 70
    assert "raise --memory-limit" in capsys.readouterr().err


def test_methods_in_python() -> None:
    assert spelling.for_python("choose --bos none, or a smaller --window", methods.FIELDS) == "choose bos=none, or a smaller window="


def test_every_option_is_said_once() -> None:
    """Help and documentation have a phrase for each option, and the settings are the options."""
    for option in options_on(On.LM_EVAL | On.WORKER | On.CLIENT | On.PPL | On.COMPARE | On.SWEEP | On.SERVE):
        assert option.help and not option.help.endswith(".")
        assert option.default == getattr(Settings(), option.name) or option.name == "chat_template_args"
    for name in ("dtype", "activations", "placement", "cpu_variant"):
        for choice in OPTIONS[name].choices:
            assert OPTIONS[name].read(name, choice) == choice


def test_a_running_worker_takes_no_options() -> None:
    options = ppl.parser().parse_args(["--endpoint", "ipc:///x", "--memory-limit", "1GiB"])
    with pytest.raises(CtworkerError, match=r"^--memory-limit is for a worker that this command starts"):
        worker_arguments(options, On.PPL)
    assert values.dtype("dtype", "torch.bfloat16") == "bfloat16"
