"""The time left follows what other programs leave of the processors, within a minute. All times are made up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ctworker.base.pace import Pace
from ctworker.sweep.timing import Timing


def cell(name: str, tokens: int = 1000) -> Any:
    """A cell of that many tokens, with a model of one parameter."""
    return type("Cell", (), {"work": SimpleNamespace(name=name), "tokens": tokens, "params": 1})()


def test_pace() -> None:
    pace, done = Pace(), 0.0
    assert pace.per_s() is None
    for half_second in range(1000):  # 10 in a second, and 5 from second 400 on
        done += 5 if half_second < 800 else 2.5
        pace.add(half_second / 2, done)
        if half_second == 790:
            assert pace.per_s() == pytest.approx(10)
        if half_second == 800 + 61:
            assert pace.per_s() == pytest.approx(5)
    pace.add(500, 1.0)  # the work begins again
    assert pace.per_s() is None
    pace.add(510, 1.0)
    assert pace.per_s() is None  # no time left can be said of work that stands still


def run(timing: Timing, one: Any, seconds: tuple[int, int], rate: float, done: float, start: int = 0) -> float:
    """Watches a cell between two seconds, at a rate in tokens; the tokens done at the end."""
    for second in range(*seconds):
        timing.watch(one, start + second, done / one.tokens)
        done += rate
    return done


def test_the_time_left_of_a_sweep_follows_the_processors() -> None:
    timing = Timing()
    cells = [cell("a"), cell("b"), cell("c")]
    assert timing.left(cells, {}, 1) is None
    done = run(timing, cells[0], (0, 50), 10, 10)
    assert timing.left(cells, {cells[0]: done / 1000}, 1) == pytest.approx((1000 - done) / 10 + 2 * 100)
    run(timing, cells[0], (50, 99), 10, done)
    timing.learn(cells[0], {"n_tokens": 1000, "seconds": 100.0})
    _, second, third = cells
    done = run(timing, second, (0, 40), 10, 10)
    done = run(timing, second, (40, 80), 5, done)  # half of the processors, for less than a minute
    left = timing.left([second, third], {second: done / 1000}, 1)
    assert left == pytest.approx((1000 - done) / 5 + 1000 / 5)
    done = run(timing, second, (80, 112), 10, done)  # and back
    assert timing.left([second, third], {second: done / 1000}, 1) == pytest.approx((1000 - done) / 10 + 100)
    assert timing.left([second, third], {second: done / 1000}, 2) == pytest.approx(100)
    timing.drop(second)  # the rate outlives the cell
    assert timing.of(third) == pytest.approx(100)


def test_what_a_store_had_is_no_rate() -> None:
    """90 % come at once after a start of 7 s, and the rest at 1 token in a second."""
    timing, one, other = Timing(), cell("a"), cell("b")
    for second in range(7):
        timing.watch(one, second, 0.0)
    run(timing, one, (7, 47), 1, 900)
    assert timing.left([one], {one: 0.94}, 1) == pytest.approx(60)
    assert timing.of(other) == pytest.approx(7 + 1000)


def test_before_the_first_cell_a_measured_rate_counts() -> None:
    timing, one = Timing(), cell("a")
    timing.measured(20.0, 1)
    assert timing.left([one], {}, 1) == pytest.approx(50)
    timing.learn(one, {"n_tokens": 0, "seconds": 1.0})  # a cell that scored nothing says nothing
    assert timing.of(one) == pytest.approx(50)
