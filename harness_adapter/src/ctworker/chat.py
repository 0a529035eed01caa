"""Chat templates, rendered as in transformers: by jinja2 in its immutable sandbox."""

from __future__ import annotations

import json
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import jinja2
import jinja2.ext
import jinja2.sandbox

from .errors import ArgumentError

_CONTINUE = (
    "CTWORKER_CONTINUES_HERE "  # ends in a blank, which shows whether the template trims messages
)


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}...{% endgeneration %}`, which marks assistant text for training. The body is kept."""

    tags: ClassVar[set[str]] = {"generation"}

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


def load_templates(folder: Path, config: dict[str, Any]) -> str | dict[str, str] | None:
    """The template of a checkpoint, or its templates by name. Files take precedence over tokenizer_config.json."""
    found: dict[str, str] = {}
    if (folder / "chat_template.jinja").is_file():
        found["default"] = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        found[path.stem] = path.read_text(encoding="utf-8")
    if list(found) == ["default"]:
        return found["default"]
    if found:
        return found
    stored = config.get("chat_template")
    if isinstance(stored, list):
        return {entry["name"]: entry["template"] for entry in stored}
    if stored is None and (folder / "chat_template.json").is_file():
        stored = json.loads((folder / "chat_template.json").read_text(encoding="utf-8")).get(
            "chat_template"
        )
    return stored


def render(
    template: str,
    messages: list[dict[str, Any]],
    *,
    add_generation_prompt: bool,
    continue_final_message: bool,
    variables: dict[str, Any],
) -> str:
    """The text of a chat.

    continue_final_message: leaves the last message open, so that its text can be continued.
    Raises jinja2.TemplateError when the template refuses the messages.
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
    text = _compile(template).render(
        messages=chat,
        tools=None,
        documents=None,
        add_generation_prompt=add_generation_prompt,
        **variables,
    )
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
