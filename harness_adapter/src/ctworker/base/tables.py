"""Text tables with aligned columns, and numbers with their standard errors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any


def number(
    value: float | None, se: float | None = None, *, scale: float = 1.0, unit: str = "", plain: int = 5, least: int = 0
) -> str:
    """A value with its standard error to two significant digits, and the value to the same decimal place. Without a
    standard error: `plain` significant digits. least: decimal places at least. A standard error below the rounding of float64
    counts as 0."""
    if value is None or math.isnan(value):
        return "-"
    value *= scale
    if se is None or not math.isfinite(se):
        return f"{value:.{plain}g}{unit}"
    se *= scale
    if se <= 1e-12 * abs(value):
        return f"{value:.5g} ± 0{unit}"
    digits = min(12, max(least, 1 - math.floor(math.log10(se))))
    return f"{value:.{digits}f} ± {se:.{digits}f}{unit}"


def column(estimates: Sequence[dict[str, Any]]) -> tuple[str, list[str]]:
    """Estimates with `value` and `se`, all in one unit and to as many decimal places: the unit, such as "1e-3" ("": 1), which is
    the power of 1000 of the largest, and the cells."""
    largest = max((abs(each["value"]) for each in estimates if each["value"] is not None), default=0.0)
    power = math.floor(math.log10(largest) / 3) * 3 if 0 < largest < math.inf else 0

    def cell(value: float | None, se: float | None) -> str:
        if value is None or math.isnan(value):
            return "-"
        text = f"{value / 10.0**power:.3f}"
        return text if se is None else f"{text} ± {se / 10.0**power:.3f}"

    return f"1e{power}" if power else "", [cell(each["value"], each["se"]) for each in estimates]


def multiple(x: float) -> str:
    """A ratio to two significant digits, without an exponent where it has fewer than six digits."""
    if not math.isfinite(x) or not 1e-3 <= abs(x) < 1e6:
        return f"{x:.2g}"
    return f"{x:.{max(0, 1 - math.floor(math.log10(abs(x))))}f}" if abs(x) < 10 else f"{float(f'{x:.2g}'):.0f}"


def size(n_bytes: float) -> str:
    """In binary units, as the worker and its options have them (ctw_format_bytes())."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n_bytes < 1024:
            return f"{n_bytes:.0f} B" if unit == "B" else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1024
    return f"{n_bytes:.1f} TiB"


def bits(weight_bits: float) -> str:
    """Bits per weight (docs/METHODS.md, "Bits and sizes")."""
    return f"{weight_bits:.3f}"


def counted(n: int, noun: str) -> str:
    """"1 window", "4 windows"."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def markdown(rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """The first row is the head. The first `left` columns are aligned left, the others right."""
    rule = ["---" if i < left else "---:" for i in range(len(rows[0]))]
    cells = [[escaped(cell) for cell in row] for row in rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in [cells[0], rule, *cells[1:]])


def escaped(text: str) -> str:
    """For a cell of a Markdown table."""
    return " ".join(text.replace("|", "\\|").split())


def render(rows: Sequence[Sequence[str]], *, indent: str = "") -> str:
    """The first row is the head. The first column is aligned left, the others right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [[_pad(row[i], widths[i], left=i == 0) for i in range(len(row))] for row in rows]
    rule = ["-" * width for width in widths]
    return "\n".join(indent + "  ".join(cells).rstrip() for cells in [lines[0], rule, *lines[1:]])


def _pad(text: str, width: int, *, left: bool) -> str:
    return text.ljust(width) if left else text.rjust(width)
