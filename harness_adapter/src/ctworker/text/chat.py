"""Chat templates, rendered as in transformers: by jinja2 in its immutable sandbox."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2
import jinja2.ext
import jinja2.sandbox

from ..base.errors import ArgumentError
from ..base.json_file import read_object, read_text

_CONTINUE = (
    "CTWORKER_CONTINUES_HERE "  # ends in a blank, which shows whether the template trims messages
)


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}...{% endgeneration %}`, which marks assistant text for training. The body is kept."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares a variable of the instance

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> None:
    raise jinja2.exceptions.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


@lru_cache(maxsize=8)
def _compile(template: str) -> jinja2.Template:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(template)


class Refused(ArgumentError):
    """The template refuses these messages, or fails over them; without system messages it may not."""


@dataclass
class Templates:
    """The chat templates of a checkpoint. problem: why what the files have is no template; raised when one is used."""

    by_name: dict[str, str] = field(default_factory=dict)
    source: str = ""  # file, or key of a file
    problem: str = ""
    is_single: bool = False  # the files name no template

    @property
    def value(self) -> str | dict[str, str] | None:
        """As transformers keeps them: the only template, or the templates by name."""
        return self.by_name["default"] if self.is_single else dict(self.by_name) or None


def load_templates(folder: Path, config: dict[str, Any]) -> Templates:
    """Files take precedence over tokenizer_config.json, and this over chat_template.json. folder: or a GGUF file."""
    found: dict[str, str] = {}
    source: str | Path
    path = folder / "chat_template.jinja"
    if path.is_file():
        found["default"] = read_text(path)
    more = sorted((folder / "additional_chat_templates").glob("*.jinja"))
    found |= {other.stem: read_text(other) for other in more}
    if found:
        source = path if "default" in found else more[0].parent
        return Templates(found, str(source), is_single=list(found) == ["default"])
    path = folder / "tokenizer_config.json"
    stored = config.get("chat_template")
    if stored is None:
        path = folder / "chat_template.json"
        stored = read_object(path).get("chat_template")
    source = f"tokenizer.chat_template of {folder}" if folder.is_file() else f"chat_template of {path}"
    if stored is None:
        return Templates()
    if isinstance(stored, str):
        return Templates({"default": stored}, source, is_single=True)
    named = stored
    if isinstance(stored, list) and all(isinstance(entry, dict) for entry in stored):
        named = {entry.get("name"): entry.get("template") for entry in stored}
    if isinstance(named, dict) and named and all(isinstance(text, str) for pair in named.items() for text in pair):
        return Templates(named, source)
    return Templates(
        problem=f"{source} is {json.dumps(stored)[:80]}, expected a template's text, or a list of templates with 'name' "
        "and 'template': correct the file, put the template into chat_template.jinja beside it, or leave --apply_chat_template out"
    )


def _line(error: BaseException) -> int | None:
    """The line of the template at which it failed."""
    line, trace = getattr(error, "lineno", None), error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<template>":
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def _explain(source: str, error: BaseException) -> str:
    line = _line(error)
    where = source if line is None else f"{source}, line {line}"
    text = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    if isinstance(error, jinja2.exceptions.TemplateSyntaxError):  # also of an unknown filter or test
        return (
            f"{where}: the chat template is not valid for jinja2 {jinja2.__version__}: {text}; correct the template "
            "(transformers reads the same language), or leave --apply_chat_template out"
        )
    if type(error) is jinja2.exceptions.TemplateError:  # of raise_exception()
        return (
            f"{where}: the chat template refuses the messages: {text}; if it wants user and assistant in turn, leave "
            "--fewshot_as_multiturn or --system_instruction out, else leave --apply_chat_template out"
        )
    return (
        f"{where}: the chat template fails with {type(error).__name__}: {text}; correct the template, pass what it asks for with "
        "chat_template_args=, or leave --apply_chat_template out"
    )


def render(
    template: str,
    source: str,
    messages: list[dict[str, Any]],
    *,
    add_generation_prompt: bool,
    continue_final_message: bool,
    variables: dict[str, Any],
) -> str:
    """The text of a chat.

    source: where the template stands, for messages. continue_final_message: leaves the last message open, so that its
    text can be continued. Raises Refused when the template fails over the messages, ArgumentError when it is broken.
    """
    chat = [
        {key: value for key, value in message.items() if value is not None} for message in messages
    ]
    if not chat:
        raise ArgumentError("a chat template needs at least one message")
    last = ""
    if continue_final_message:
        last = chat[-1].get("content", "")
        if not isinstance(last, str) or "content" not in chat[-1]:
            raise ArgumentError("the last message has no text to continue")
        chat[-1]["content"] = last + _CONTINUE
    try:
        text = _compile(template).render(
            messages=chat,
            tools=None,
            documents=None,
            add_generation_prompt=add_generation_prompt,
            **variables,
        )
    except Exception as error:  # anything: a template is a program
        is_broken = isinstance(error, jinja2.exceptions.TemplateSyntaxError)
        may_retry = isinstance(error, jinja2.exceptions.TemplateError) and not is_broken
        raise (Refused if may_retry else ArgumentError)(_explain(source, error)) from error
    if not continue_final_message:
        return text
    place = text.rfind(_CONTINUE.strip())
    if place < 0 or last.strip() not in text:
        raise ArgumentError(
            "the chat template drops (part of) the last message, so it cannot be continued"
        )
    if text.find(_CONTINUE.strip()) < place:
        raise ArgumentError(
            "the chat template prints the last message more than once, so it cannot be continued"
        )
    kept = text[place:].startswith(_CONTINUE)
    return text[:place] if kept else text[:place].rstrip()
