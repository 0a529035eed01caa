"""A clock of the time in which this process ran, used for deadlines.

A stopped process (SIGSTOP, a paused container, a debugger) must not miss its deadlines because of the stop. So
the clock counts at most one second between two readings, and every wait reads it more often than that.
"""

from __future__ import annotations

import time

#: The longest wait without a reading of the clock.
SLICE_S = 0.25
_MOST_S = 1.0


class Clock:
    """Seconds since an arbitrary start. Not thread-safe."""

    def __init__(self) -> None:
        self._now, self._looked = 0.0, time.monotonic()

    def now(self) -> float:
        looked = time.monotonic()
        self._now += min(looked - self._looked, _MOST_S)
        self._looked = looked
        return self._now

    def sleep(self, seconds: float) -> None:
        """Sleeps for `seconds` as measured by this clock."""
        deadline = self.now() + seconds
        while (left := deadline - self.now()) > 0:
            time.sleep(min(left, SLICE_S))
