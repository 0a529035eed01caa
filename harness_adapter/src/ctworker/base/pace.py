"""How fast work goes now: its rate over the last half minute, which soon follows when other programs take processors."""

from __future__ import annotations

from collections import deque

_SPAN_S = 30.0  # the worker's own rate covers as much
_LEAST_S = 2.0


class Pace:
    """The recent rate of one piece of work."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque()

    def add(self, now: float, done: float) -> None:
        """At `now` seconds, `done` units are done in all."""
        if self._samples and done < self._samples[-1][1]:  # the work has begun again
            self._samples.clear()
        self._samples.append((now, done))
        while len(self._samples) > 2 and self._samples[1][0] <= now - _SPAN_S:
            self._samples.popleft()

    def per_s(self) -> float | None:
        """Units in a second; None: not known yet."""
        if not self._samples:
            return None
        (since, before), (now, done) = self._samples[0], self._samples[-1]
        return (done - before) / (now - since) if now - since >= _LEAST_S and done > before else None
