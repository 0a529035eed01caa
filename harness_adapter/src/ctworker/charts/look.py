"""Colours and marks: the one place that PNG, SVG and report.html share. A model has one colour and mark in all charts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Theme:
    """Colours of a page. series: of models, told apart also by colour-blind readers (with the marks). low, high: ends of a heat
    map's scale."""

    name: str
    page: str
    card: str
    text: str
    muted: str
    line: str
    grid: str
    accent: str
    bad: str
    series: tuple[str, ...]
    low: str
    high: str


LIGHT = Theme(
    "light", "#f6f7f9", "#ffffff", "#16191f", "#5d6675", "#c9ced8", "#e8ebf0", "#1f5fd0", "#b3261e",
    ("#1f5fd0", "#c2500a", "#0c7d5f", "#8a3fb5", "#a6781a", "#b8336a", "#1288a8", "#5b7f16", "#7a4a2b", "#4b5563"),
    "#eef3fc", "#123a86",
)  # fmt: skip
DARK = Theme(
    "dark", "#101318", "#191d24", "#e8ebf0", "#9aa4b4", "#3a424f", "#262c36", "#7aa7ff", "#ff8a80",
    ("#7aa7ff", "#ff9a57", "#4fd1a5", "#cf9bf0", "#e6c15c", "#ff86b3", "#5cc8e6", "#a9d158", "#d3a17e", "#b4bdca"),
    "#1f2733", "#bcd3ff",
)  # fmt: skip
THEMES = (LIGHT, DARK)


@dataclass(frozen=True)
class Mark:
    """name: matplotlib's; path: of an SVG, around (0, 0), with a radius of 1."""

    name: str
    path: str


MARKS = (
    Mark("o", "M-1 0a1 1 0 1 0 2 0a1 1 0 1 0 -2 0Z"),
    Mark("s", "M-.9 -.9H.9V.9H-.9Z"),
    Mark("^", "M0 -1.2L1.1 .8H-1.1Z"),
    Mark("D", "M0 -1.25L1.25 0L0 1.25L-1.25 0Z"),
    Mark("v", "M0 1.2L1.1 -.8H-1.1Z"),
    Mark("P", "M-.38 -1.1H.38V-.38H1.1V.38H.38V1.1H-.38V.38H-1.1V-.38H-.38Z"),
    Mark("X", "M-1.1 -.55L-.55 -1.1L0 -.55L.55 -1.1L1.1 -.55L.55 0L1.1 .55L.55 1.1L0 .55L-.55 1.1L-1.1 .55L-.55 0Z"),
)


def place(i: int) -> tuple[int, int]:
    """(number of the colour, number of the mark) of model i: no two of the first 70 have the same pair."""
    n = len(LIGHT.series)
    return i % n, (i + i // n) % len(MARKS)


def css() -> str:
    """The themes as CSS: variables --page, --c0, ... of the page's own theme, and of the reader's choice."""
    light, dark = (_variables(theme) for theme in THEMES)
    return (
        f":root {{ {light} }}\n@media (prefers-color-scheme: dark) {{ :root:not([data-theme=\"light\"]) {{ {dark} }} }}\n"
        f":root[data-theme=\"dark\"] {{ {dark} }}"
    )


def _variables(theme: Theme) -> str:
    names = ("page", "card", "text", "muted", "line", "grid", "accent", "bad", "low", "high")
    found = [f"--{name}: {getattr(theme, name)};" for name in names]
    return " ".join([*found, *(f"--c{i}: {colour};" for i, colour in enumerate(theme.series))])
