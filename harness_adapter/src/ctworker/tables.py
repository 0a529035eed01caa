"""Text tables with aligned columns, and numbers with their standard errors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any


def number(value: float | None, se: float | None = None, *, scale: float = 1.0, unit: str = "") -> str:
    """A value with its standard error to two significant digits, and the value to the same decimal place. Without a
    standard error: five significant digits."""
    if value is None or math.isnan(value):
        return "-"
    value *= scale
    if se is None or not math.isfinite(se):
        return f"{value:.5g}{unit}"
    se *= scale
    if se == 0:
        return f"{value:.5g} ± 0{unit}"
    digits = min(12, max(0, 1 - math.floor(math.log10(se))))
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


def render(rows: Sequence[Sequence[str]], *, indent: str = "") -> str:
    """The first row is the head. The first column is aligned left, the others right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [[_pad(row[i], widths[i], left=i == 0) for i in range(len(row))] for row in rows]
    rule = ["-" * width for width in widths]
    return "\n".join(indent + "  ".join(cells).rstrip() for cells in [lines[0], rule, *lines[1:]])


def _pad(text: str, width: int, *, left: bool) -> str:
    return text.ljust(width) if left else text.rjust(width)
