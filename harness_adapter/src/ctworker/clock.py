"""The time in which this process ran: what deadlines are counted in.

A stopped process (SIGSTOP, a paused container, a debugger) must not find its deadlines passed when it goes
on. So the clock counts at most a second between two looks, and whoever waits looks more often than that.
"""

from __future__ import annotations

import time

#: Nobody waits longer than this without a look at the clock.
SLICE_S = 0.25
_MOST_S = 1.0


class Clock:
    """Seconds since an arbitrary start. Not for several threads at once."""

    def __init__(self) -> None:
        self._now, self._looked = 0.0, time.monotonic()

    def now(self) -> float:
        looked = time.monotonic()
        self._now += min(looked - self._looked, _MOST_S)
        self._looked = looked
        return self._now

    def sleep(self, seconds: float) -> None:
        """Sleeps so long, by this clock."""
        deadline = self.now() + seconds
        while (left := deadline - self.now()) > 0:
            time.sleep(min(left, SLICE_S))
