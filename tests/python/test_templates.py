"""Chat templates: rendered as transformers renders them; what fails is one sentence."""

from __future__ import annotations

import json
import re
from datetime import datetime
from pathlib import Path

import pytest
import tokenizer_cases

from ctworker.base.errors import ArgumentError
from ctworker.text.tokenizer import TextTokenizer


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tokenizer_cases.write(tmp_path_factory.mktemp("tokenizers"))["smollm2"]


@pytest.fixture
def smol(stored: Path, tmp_path: Path) -> Path:
    for file in stored.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


CHAT = (
    "{%- for message in messages %}\n{{- bos_token + message['role'] + '\\n' + message['content'] | trim }}"
    "{{ eos_token }}\n{% endfor %}\n{% if add_generation_prompt %}{{ bos_token }}assistant\n{% endif %}"
)
MESSAGES = [{"role": "user", "content": "hi "}, {"role": "assistant", "content": "so "}]


def test_chat_template(smol: Path) -> None:
    (smol / "chat_template.jinja").write_text(CHAT)
    tokenizer = TextTokenizer(smol, name="x")
    assert tokenizer.chat_template == CHAT
    start, end = "<|im_start|>", "<|im_end|>"
    text = tokenizer.apply_chat_template(MESSAGES[:1], add_generation_prompt=True)
    assert text == f"{start}user\nhi{end}\n{start}assistant\n"
    # The template trims the message, so its own trailing blank is gone too.
    text = tokenizer.apply_chat_template(MESSAGES, continue_final_message=True)
    assert text == f"{start}user\nhi{end}\n{start}assistant\nso"


def test_a_message_printed_twice_cannot_be_continued(smol: Path) -> None:
    (smol / "chat_template.jinja").write_text("{{ messages[-1].content }}|{{ messages[-1].content }}")
    tokenizer = TextTokenizer(smol, name="x")
    assert tokenizer.apply_chat_template(MESSAGES) == "so |so "
    with pytest.raises(ArgumentError, match="more than once"):
        tokenizer.apply_chat_template(MESSAGES, continue_final_message=True)


def test_template_functions(smol: Path) -> None:
    template = (
        "{{ strftime_now('%Y') }}|{{ {'b': '\u00e4<'} | tojson }}|{% generation %}x{% endgeneration %}|"
        "{% for m in messages %}{% if loop.index == 2 %}{% break %}{% endif %}{{ m.role }}{% endfor %}|{{ more }}"
    )
    (smol / "chat_template.jinja").write_text(template)
    text = TextTokenizer(smol, name="x").apply_chat_template(MESSAGES, more="m")
    assert text == f'{datetime.now():%Y}|{{"b": "\u00e4<"}}|x|user|m'


def test_templates_are_sandboxed(smol: Path) -> None:
    for attack in ("{{ messages.append(1) }}", "{{ ''.__class__.__mro__[1].__subclasses__() }}"):
        (smol / "chat_template.jinja").write_text(attack)
        with pytest.raises(ArgumentError, match=r"chat_template\.jinja, line 1: .* fails with SecurityError"):
            TextTokenizer(smol, name="x").apply_chat_template(MESSAGES)


BROKEN = {
    "{% for m in messages %}\n{{ m.role }}": ["line 2", "not valid for jinja2", "endfor", "correct the template"],
    "a\nb\n{{ messages | no_such }}": ["line 3", "not valid for jinja2", "No filter named 'no_such'"],
    "{{ messages }}\n{{ nothing.at_all }}": ["line 2", "UndefinedError: 'nothing' is undefined", "chat_template_args="],
    "\n\n{{ 1 + 'a' }}": ["line 3", "TypeError: unsupported operand"],
    "{{ messages[7].content + 'a' }}": ["line 1", "UndefinedError"],
    "{{ range(10 ** 9) | list }}": ["line 1", "OverflowError"],
    "{{ 1 // 0 }}": ["line 1", "ZeroDivisionError"],
    "{{ messages | map(attribute='x') | tojson }}": ["line 1", "TypeError", "not JSON serializable"],
    "{{ strftime_now(3) }}": ["line 1", "TypeError"],
    "{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}": ["line 1", "RecursionError"],
    "\n{{ raise_exception('in turn, please') }}": ["line 2", "refuses the messages: in turn, please;", "--fewshot_as_multiturn"],
}


@pytest.mark.parametrize("template", list(BROKEN))
@pytest.mark.parametrize("place", ["chat_template.jinja", "tokenizer_config.json"])
def test_a_failing_template_is_one_sentence(smol: Path, template: str, place: str) -> None:
    """It names the file, the line, the cause and the remedy."""
    if place == "chat_template.jinja":
        (smol / place).write_text(template)
    else:
        _configure(smol, template)
    tokenizer = TextTokenizer(smol, name="x")
    with pytest.raises(ArgumentError) as error:
        tokenizer.apply_chat_template(MESSAGES)
    for part in (f"{smol / place}, line", *BROKEN[template], "leave --apply_chat_template out"):
        assert part in str(error.value)
    assert "\n" not in str(error.value)


def _configure(folder: Path, template: object) -> None:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": template}))


@pytest.mark.parametrize(
    "template", [7, True, ["a"], [{"name": "default"}], [{"template": "x"}], {"default": 7}, {}, [{"name": 3, "template": "x"}]]
)
def test_a_template_of_a_wrong_type_is_refused_when_it_is_used(smol: Path, template: object) -> None:
    """As with transformers, whoever does not use the template may use the tokenizer."""
    _configure(smol, template)
    tokenizer = TextTokenizer(smol, name="x")
    assert tokenizer.encode("a") and tokenizer.chat_template is None
    expected = rf"chat_template of .*tokenizer_config\.json is {re.escape(json.dumps(template))}, expected .*chat_template\.jinja"
    with pytest.raises(ArgumentError, match=expected):
        tokenizer.apply_chat_template(MESSAGES)


def test_templates_by_name_in_an_object(smol: Path) -> None:
    _configure(smol, {"default": "d", "rag": "r"})
    assert TextTokenizer(smol, name="x").apply_chat_template(MESSAGES, template_name="rag") == "r"


def test_named_templates(smol: Path) -> None:
    with pytest.raises(ArgumentError, match="no chat template"):
        TextTokenizer(smol, name="x").apply_chat_template(MESSAGES)
    config = json.loads((smol / "tokenizer_config.json").read_text())
    config["chat_template"] = [{"name": "default", "template": "d"}, {"name": "rag", "template": "r"}]
    (smol / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = TextTokenizer(smol, name="x")
    assert tokenizer.apply_chat_template(MESSAGES) == "d"
    assert tokenizer.apply_chat_template(MESSAGES, template_name="rag") == "r"
    with pytest.raises(ArgumentError, match="'tools'; it has default, rag"):
        tokenizer.apply_chat_template(MESSAGES, template_name="tools")
    # Files take precedence over the configuration.
    (smol / "chat_template.jinja").write_text("f")
    assert TextTokenizer(smol, name="x").apply_chat_template(MESSAGES) == "f"
    (smol / "additional_chat_templates").mkdir()
    (smol / "additional_chat_templates" / "tools.jinja").write_text("t")
    assert TextTokenizer(smol, name="x").apply_chat_template(MESSAGES, template_name="tools") == "t"
