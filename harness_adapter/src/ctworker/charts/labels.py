"""Places for labels of points, such that no label covers another label or a mark.

Pure arithmetic on boxes (left, top, right, bottom) with y downwards, so that sweep/web/labels.js, which does the same in a
page, gives the same places; a test compares them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Box = tuple[float, float, float, float]
Point = tuple[float, float]

RADIUS = 6.0  # of a mark, with its outline
GAP = 3.0  # between a mark and its label, and between labels
ANYWHERE = 1e9  # a reach without limit
FREE = 10.0  # a label that is farther from its mark's edge has a leader line


@dataclass(frozen=True)
class Label:
    """box: of the text. leader: end of the line from the point to the box; None: the label stands at its point."""

    box: Box
    leader: Point | None


def place(
    points: Sequence[Point], sizes: Sequence[Point], area: Box, blocked: Sequence[Box] = (), reach: float = ANYWHERE
) -> list[Label] | None:
    """The labels in the order of their points; None if one has no place within `reach` of its mark. sizes: width and height.
    blocked: what a label must not cover besides the marks, such as error bars. The most crowded points choose first."""
    marks = [(x - RADIUS, y - RADIUS, x + RADIUS, y + RADIUS) for x, y in points]
    found: list[Label | None] = [None] * len(points)
    for i in _order(points):
        found[i] = _best(i, points, sizes[i], area, [*marks, *blocked], found, reach)
        if found[i] is None:
            return None
    return [label for label in found if label is not None]


def _order(points: Sequence[Point]) -> list[int]:
    """Most neighbours first."""

    def neighbours(i: int) -> int:
        return sum(abs(x - points[i][0]) < 60 and abs(y - points[i][1]) < 40 for x, y in points)

    return sorted(range(len(points)), key=lambda i: (-neighbours(i), i))


def _best(
    i: int, points: Sequence[Point], size: Point, area: Box, solid: Sequence[Box], found: Sequence[Label | None], reach: float
) -> Label | None:
    """The nearest place. If a crowd leaves a leader line no way between labels, the line passes under them, but only of labels
    that may be anywhere."""
    leaders = [(points[k], label.leader) for k, label in enumerate(found) if label is not None and label.leader is not None]
    placed = [label.box for label in found if label is not None]
    taken = [*solid, *placed]
    under = None
    for far, box, end in _by_distance(points[i], size, area, reach):
        if any(overlap(box, other) for other in taken):
            continue
        label = Label(box, end if far > (RADIUS + FREE) * (RADIUS + FREE) else None)
        under = under or label
        if any(crosses(start, stop, box) for start, stop in leaders):
            continue
        if label.leader is None or not any(crosses(points[i], label.leader, other) for other in placed):
            return label
    return under if reach >= ANYWHERE else None


def _by_distance(point: Point, size: Point, area: Box, reach: float) -> list[tuple[float, Box, Point]]:
    """(squared distance, box, its nearest point to the mark) of each candidate, the nearest first."""
    found = []
    for box in _candidates(point, size, area):
        end = _nearest(point, box)
        far = (end[0] - point[0]) * (end[0] - point[0]) + (end[1] - point[1]) * (end[1] - point[1])
        if far < reach * reach:
            found.append((far, box, end))
    return sorted(found, key=lambda each: each[0])


def _candidates(point: Point, size: Point, area: Box) -> list[Box]:
    """Boxes inside the area: beside the mark and above and below, then on a grid of half its size, the whole area over."""
    (x, y), (w, h) = point, size
    near = RADIUS + GAP
    lefts = [x + near, x - near - w, x - w / 2, x + RADIUS / 2, x - RADIUS / 2 - w]
    tops = [y - h / 2, y - near - h, y + near]
    lefts += [x + near + k * max(12.0, w / 2) for k in range(1, 40)] + [x - near - w - k * max(12.0, w / 2) for k in range(1, 40)]
    tops += [y - near - h - k * (h / 2) for k in range(1, 60)] + [y + near + k * (h / 2) for k in range(1, 60)]
    lefts = [left for left in lefts if area[0] <= left and left + w <= area[2]]
    tops = [top for top in tops if area[1] <= top and top + h <= area[3]]
    return [(left, top, left + w, top + h) for left in lefts for top in tops]


def overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _nearest(point: Point, box: Box) -> Point:
    """The point of a box that is nearest to a point."""
    return min(max(point[0], box[0]), box[2]), min(max(point[1], box[1]), box[3])


def crosses(start: Point, stop: Point, box: Box) -> bool:
    """Whether a line enters a box (Liang and Barsky)."""
    low, high = 0.0, 1.0
    for axis in (0, 1):
        step = stop[axis] - start[axis]
        if step == 0:
            if start[axis] <= box[axis] or start[axis] >= box[axis + 2]:
                return False
            continue
        first, last = (box[axis] - start[axis]) / step, (box[axis + 2] - start[axis]) / step
        low, high = max(low, min(first, last)), min(high, max(first, last))
    return low < high
