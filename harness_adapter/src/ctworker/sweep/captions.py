"""What the numbers of a column are of, in words: captions, titles, and the fields under "How each number was made"."""

from __future__ import annotations

import json
from typing import Any

from ..base.tables import counted
from ..perplexity import methods
from .columns import Column

_FIELDS = tuple(methods.PRESETS[methods.DEFAULT].fields())


def data(column: Column) -> str:
    """The name of the data set or task."""
    found = column.method
    if column.kind == "comparison":
        return str(found.get("name", ""))
    if "texts" in found:
        return ", ".join(text["text"] for text in found["texts"])
    return str(found.get("task", ""))


def amount(column: Column) -> tuple[str, bool]:
    """("4 of 148 windows", True): how much of the data was used, and whether that is a part of it. Models with other tokenizers have
    other numbers of windows."""
    found = {_amount(cell["method"]) for cell in column.cells if "method" in cell} or {_amount(column.method)}
    return " or ".join(sorted(text for text, _ in found)), any(partial for _, partial in found)


def _amount(found: dict[str, Any]) -> tuple[str, bool]:
    if "n_docs" in found:
        return _of(sum(n or 0 for n in found["n_docs"].values()), sum(n or 0 for n in found["n_docs_of"].values()), "document")
    counts = found.get("texts") or ([found] if "windows" in found else [])
    if not counts:
        return "", False
    if not all("windows_of_text" in each for each in counts):  # written by an older version
        most = found.get("max_windows") or found.get("method", {}).get("max_windows", 0)
        return counted(sum(each["windows"] for each in counts), "window"), bool(most)
    return _of(sum(each["windows"] for each in counts), sum(each["windows_of_text"] for each in counts), "window")


def _of(n: int, whole: int, noun: str) -> tuple[str, bool]:
    return (f"{n:,} of {counted(whole, noun)}", True) if whole > n else (counted(n, noun), False)


def how(column: Column) -> str:
    """The method in one phrase."""
    found = column.method
    if column.kind == "comparison" and isinstance(found.get("method"), dict):
        return methods.in_words(found["method"] | {"max_windows": 0})
    if "texts" in found and "window" in found:
        return methods.in_words({name: found.get(name) for name in _FIELDS} | {"max_windows": 0})
    if "task" in found:
        shots = found.get("num_fewshot")
        known = sorted({n for n in (shots.values() if isinstance(shots, dict) else [shots]) if isinstance(n, int)})
        few = f", {'/'.join(map(str, known))}-shot" if known else ""
        return f"lm-eval {found.get('lm_eval', '')}".rstrip() + few
    return ""


def caption(column: Column) -> str:
    """One sentence with all that a column's numbers depend on, without the models."""
    against = f"against {column.reference}" if column.kind == "comparison" else ""
    parts = [against, " of ".join(filter(None, [amount(column)[0], data(column)])), how(column), *_sources(column)]
    return f"{column.title}: {'; '.join(part for part in parts if part)}."


def _sources(column: Column) -> list[str]:
    """Settings, options, digests of the data, and numerics."""
    found = column.method
    digests = sorted({text["sha256"][:16] for text in [found, *found.get("texts", [])] if "sha256" in text})
    options: dict[str, Any] = next((cell["option_values"] for cell in column.cells if cell["option_values"]), {})
    settings = {name: found[name] for name in ("limit", "apply_chat_template", "system_instruction") if name in found}
    parts = [f"{words(name)} {plain(value)}" for name, value in (settings | options).items()]
    if digests:
        parts.append(f"sha256 {', '.join(digests)}")
    done = [cell["source"] for cell in column.cells if "source" in cell]
    for name in ("dtype", "numerics"):
        values = sorted({plain(source[name]) for source in done if name in source})
        if values and name not in options:
            parts.append(f"{name} {', '.join(values)}")
    return parts


def title(column: Column, sweep: str) -> str:
    """Of a chart: what is drawn, and of which models."""
    if column.kind == "comparison":
        return f"KL divergence from {column.reference} \u00b7 {sweep}"
    return f"{column.title} \u00b7 {sweep}"


def subtitle(column: Column) -> str:
    """Of a chart: data set, windows and method."""
    options = f"options {column.options}" if column.options else ""
    return " \u00b7 ".join(filter(None, [data(column), amount(column)[0], how(column), options]))


def method_fields(column: Column) -> list[tuple[str, str]]:
    """What a reader needs to repeat the numbers of a column."""
    done = [cell for cell in column.cells if cell["state"] == "done"]
    found = [(words(name), plain(value)) for name, value in column.method.items()]
    found += [
        (words(name), plain(value))
        for name, value in (done[0]["option_values"] if done else {}).items()
    ]
    for name in ("numerics", "dtype", "max_length_used", "add_bos_token", "prefix_token_id"):
        values = {plain(cell["source"][name]) for cell in done if name in cell["source"]}
        if values:
            found.append((words(name), "; ".join(sorted(values))))
    versions = sorted({f"{k} {v}" for cell in done for k, v in cell["versions"].items()})
    return [*found, ("versions", ", ".join(versions))] if versions else found


def model_fields(model: dict[str, Any], identity: str) -> list[tuple[str, str]]:
    found = [("path", model["path"])]
    for name in ("commit", "group", "method", "bits", "architecture", "activations", "error"):
        if model.get(name):
            found.append((words(name), str(model[name])))
    if "params" in model:
        found += [
            ("parameters", f"{model['params']:,}"),
            ("file size", f"{model['bytes']:,} bytes"),
        ]
        rows = [
            f"{row['format']}: {row['bits']:.3f} bits x {row['params']:,}"
            for row in model["formats"]
        ]
        found.append(("formats", "; ".join(rows)))
    return [*found, ("identity", identity)] if identity else found


def words(name: str) -> str:
    return name.replace("_", " ")


def plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{words(name)}: {plain(inner)}" for name, inner in value.items())
    if isinstance(value, list):
        return "; ".join(plain(inner) for inner in value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
