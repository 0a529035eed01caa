"""WikiText's spacing undone, as lm-eval's task `wikitext` does it: the order of the rules is part of the definition."""

from __future__ import annotations

import re

_DEGREE = chr(176)
#: (text, replacement) pairs, or (compiled pattern, replacement).
_RULES: list[tuple[str | re.Pattern[str], str]] = [
    ("s '", "s'"),
    (re.compile("/' [0-9]/"), "/'[0-9]/"),  # lm-eval's rule; it never matches
    *((f" @{mark}@ ", mark) for mark in "-,."),
    *((f" {mark} ", f"{mark} ") for mark in ":;.!?,"),
    *(
        (re.compile(rf"{opening}\s*([^{closing}]*?)\s*{closing}"), rf"{left}\1{right}")
        for opening, closing, left, right in (
            (r"\(", r"\)", "(", ")"), (r"\[", r"\]", "[", "]"), ("{", "}", "{", "}"), ('"', '"', '"', '"'), ("'", "'", "'", "'"),
        )
    ),
    *((" ".join("=" * n), "=" * n) for n in (4, 3, 2)),
    (f" {_DEGREE} ", _DEGREE),
    (" \n", "\n"),
    ("\n ", "\n"),
    (" N ", " 1 "),
    (" 's", "'s"),
]  # fmt: skip


def wikitext(page: str) -> str:
    """A page of WikiText with ordinary spacing."""
    for what, by in _RULES:
        page = page.replace(what, by) if isinstance(what, str) else what.sub(by, page)
    return page
