"""Runs a list of items through a worker's job queue: submits, polls, fetches, and resubmits what was lost."""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from ..base import interrupt
from ..base.errors import CtworkerError, ProtocolError, WorkerDied, WorkerError
from ..base.progress import Progress
from .batches import Batches, Item, Job
from .connection import Connection, describe
from .results import Score, split

log = logging.getLogger("lm_eval.ctworker")

_POLL_MS = 500  # short, so that Ctrl-C and the progress bar react
_MAX_RESTARTS = 3
_BUSY_NOTE_S = 60.0
#: The pause after a poll that returned early without news, whatever the worker's reason.
_QUIET_FIRST_S, _QUIET_MAX_S = 0.1, 0.5
#: A run fails at the first number of crashes without a new result in between, or above the second number in total.
_MAX_CRASHES, _MAX_CRASHES_IN_ALL = 3, 10
_AGAIN_MAX_S = 60.0  # cap on the worker's `again_ms`: well below the TTL after which it cancels a silent client's jobs
#: How long a partly submitted job waits at a full worker before its parts are withdrawn to free space for other jobs.
_HOLD_S = 30.0
_HOLD_PAUSE_S = 5.0  # at most, before such a job is submitted again
#: The worker cancels the jobs of a client that is silent for this long.
_ORPHAN = {"policy": "cancel", "ttl_s": 120}
_GAIN_NOTE = 1.05  # fewer tokens computed than asked, at least, for a note
_FINAL = ("done", "failed", "canceled")


class Scorer:
    """Scores one list of items.

    kind, head: as in the protocol; limits: from `info`. source: `numerics` and `identity` that every result must
    have; if they are missing, the first result sets them.
    restart(error, n): restarts our own worker after its n-th crash in a row and returns a client of the new worker, or
    raises the error. on_score(i, result) is called once per item, with a Score (kind `divergence`: a Comparison), as soon as
    it is final; on_progress(Progress) is called often.
    """

    def __init__(
        self,
        client: Connection,
        kind: str,
        items: Sequence[Item],
        head: dict[str, Any],
        limits: dict[str, int],
        *,
        on_score: Callable[[int, Any], None],
        on_progress: Callable[[Progress], None] = lambda progress: None,
        source: dict[str, Any] | None = None,
        restart: Callable[[WorkerDied, int], Connection] | None = None,
    ) -> None:
        self.client = client
        self.kind = kind
        self.items = items
        self.head = {**head, "kind": kind, "orphan": _ORPHAN}
        self.batches = Batches(kind, items, self.head, limits, client.url)
        self.on_score, self.on_progress, self._restart = on_score, on_progress, restart
        self.numerics: str | None = (source or {}).get("numerics")
        self.identity: str | None = (source or {}).get("identity")
        self._n_done = 0
        self._waiting: list[list[int]] = []  # item numbers of the jobs to submit; pop() takes the next job
        self._opening: Job | None = None  # not sealed yet
        self._active: list[Job] = []
        self._restarts = 0
        self._crashes: list[int] = []  # number of results at each crash
        self._busy_noted = 0.0
        self._cost_done = 0.0
        self._asked = self._computed = 0  # tokens of finished jobs
        self._moved, self._last = time.monotonic(), (0.0, 0)  # time and value of the last progress
        self._cost_total = sum(len(item.tokens) for item in items) or 1

    def run(self) -> None:
        """Returns when every item has its score.

        Raises WorkerError (its `item` counts over all items), ConnectionLost, WorkerDied. On any exception,
        Ctrl-C included, jobs that are still open at the worker are cancelled first.
        """
        self.batches.check()
        self._queue(range(len(self.items)))
        try:
            while self._waiting or self._open_jobs():
                try:
                    self._turn()
                except WorkerDied as error:
                    self._revive(error)
        except BaseException:
            self._abandon(self._open_jobs())
            raise
        if self._asked > _GAIN_NOTE * self._computed > 0:
            log.info(
                "%d of %d tokens were computed, %.1f times fewer: shared beginnings are computed once",
                self._computed, self._asked, self._asked / self._computed,
            )  # fmt: skip

    def _open_jobs(self) -> list[Job]:
        return [*([self._opening] if self._opening else []), *self._active]

    def _queue(self, numbers: Sequence[int]) -> None:
        """Groups items into jobs and puts these jobs next in line."""
        self._waiting.extend(list(self.batches.groups(numbers))[::-1])

    def _turn(self) -> None:
        """Sends the next parts, polls every job once, and sleeps until the next request is due."""
        if self._opening is None and self._waiting and len(self._active) < 2:
            self._opening = self.batches.new_job(self._waiting.pop())
        if self._opening is not None and self._send(self._opening):
            self._active.append(self._opening)
            self._opening = None
            return
        for job in list(self._active):  # every job: the worker cancels a job that is never polled
            self._step(job, wait_ms=self._poll_ms() if job is self._active[0] else 0)
        for job in list(self._active):
            if job.state == "lost":
                self._active.remove(job)
                self._lose(job)
            elif job.state == "done" and not job.left:
                self._active.remove(job)
                self._cost_done += job.cost
                progress = job.reply.get("progress") or {}
                self._asked += progress.get("tokens", 0)
                self._computed += progress.get("tokens_computed", 0)
                self.client.release(job.id)
        if self._active or self._opening is None:
            self._report(self._active)
        if self._opening is not None or not self._waiting or len(self._active) == 2:
            self._rest(self._open_jobs())

    def _poll_ms(self) -> int:
        """How long a poll may wait: until a part that the worker was too busy for is due."""
        if self._opening is None:
            return _POLL_MS
        due_ms = 1000 * (self._opening.not_before - time.monotonic())
        return round(min(_POLL_MS, max(0.0, due_ms)))

    def _lose(self, job: Job) -> None:
        """Keeps the job's fetched results and queues its other items again."""
        self._cost_done += job.cost - sum(len(self.items[i].tokens) for i in job.left)
        self._queue(sorted(job.left))

    def _revive(self, error: WorkerDied) -> None:
        """Continues with a new worker. Raises WorkerDied when crashes repeat, or when the worker gave a reason for its end."""
        if self._restart is None:
            raise error
        in_a_row = 1 + sum(n == self._n_done for n in self._crashes)
        self._crashes.append(self._n_done)
        if in_a_row == _MAX_CRASHES or len(self._crashes) > _MAX_CRASHES_IN_ALL:
            n_left = len(self.items) - self._n_done
            raise WorkerDied(
                f"{error}; that was crash {len(self._crashes)} of this run, {in_a_row} of them without a result in between, "
                f"so the run ends with {n_left} of {len(self.items)} requests unscored"
            ) from error
        client = self._restart(error, in_a_row)
        jobs, self._opening, self._active = self._open_jobs(), None, []
        for job in reversed(jobs):
            self._lose(job)
        self.client = client
        log.info("submitting %d of %d requests again", len(self.items) - self._n_done, len(self.items))

    @staticmethod
    def _rest(jobs: Sequence[Job]) -> None:
        """Sleeps until the next request about one of the jobs is due."""
        if jobs:
            pause = min(job.not_before for job in jobs) - time.monotonic()
            time.sleep(max(0.0, pause))

    def _send(self, job: Job) -> bool:
        """Sends the parts that the worker does not have yet, then seals the job. False: the worker is busy, try again later."""
        if time.monotonic() < job.not_before:
            return False
        try:
            while job.n_sent < len(job.parts):
                part = self.batches.encode(job.parts[job.n_sent])
                self.client.submit(job.id, job.n_sent, part, self.head)
                job.n_sent += 1
                job.busy_since = None
            job.state = self.client.seal(job.id, len(job.parts))["state"]
            return True
        except WorkerError as error:
            if error.code == "not_found" and job.n_sent:
                self._count_restart(len(job.items), len(job.items), error)
                job.id, job.n_sent = Connection.new_job(), 0
            elif error.code == "busy" and error.retry_ms is not None:
                self._wait(job, error)
            else:
                raise self._explain(error, job) from error
            return False

    def _wait(self, job: Job, error: WorkerError) -> None:
        """Sets the time of the next request to a busy worker, and logs now and then that the worker is busy."""
        now = time.monotonic()
        if job.busy_since is None:
            job.busy_since = self._busy_noted = now
        if now - self._busy_noted >= _BUSY_NOTE_S:
            self._busy_noted = now
            log.info("the worker at %s is busy: %s", self.client.url, error)
        if job.state == "open" and job.n_sent and now - job.busy_since > _HOLD_S:
            # Several clients, each with half a job in the queue, would wait for each other for ever.
            self._abandon([job])
            job.id, job.n_sent = Connection.new_job(), 0
            job.busy_since, job.not_before = now, now + _HOLD_PAUSE_S * random.random()
            return
        # Exactly then: the worker keeps a place in its line for a client that asks again in time.
        job.not_before = now + (error.retry_ms or 0) / 1000

    def _count_restart(self, n_left: int, n_items: int, error: WorkerError) -> None:
        """Counts a lost job. Raises CtworkerError after too many losses."""
        self._restarts += 1
        if self._restarts > _MAX_RESTARTS:
            raise CtworkerError(
                f"the worker at {self.client.url} has lost this job {self._restarts} times (does it keep restarting?): {error}"
            ) from error
        log.warning(
            "the worker at %s no longer has this job (it was restarted, or received no request for %d s): submitting "
            "%d of %d requests again", self.client.url, _ORPHAN["ttl_s"], n_left, n_items,
        )  # fmt: skip

    def _step(self, job: Job, wait_ms: int) -> None:
        """Polls once and fetches all new results. A no-op before the job's next request is due."""
        asked = time.monotonic()
        if asked < job.not_before:
            return
        try:
            job.reply = reply = self.client.poll(job.id, wait_ms=wait_ms, seen=job.fetched)
            self._pace(job, wait_ms, time.monotonic() - asked)
            while job.fetched < reply["items_done"]:
                self._fetch(job)
        except WorkerError as error:
            if error.code == "busy" and error.retry_ms is not None:
                self._wait(job, error)
                return
            if error.code != "not_found":
                raise self._explain(error, job) from error
            self._count_restart(len(job.left), len(job.items), error)
            job.state = "lost"
            return
        job.busy_since = None
        progress = reply.get("progress") or {}
        job.fraction = min(1.0, progress.get("tokens_done", 0) / max(1, progress.get("tokens", 0)))
        job.state = reply["state"]
        if job.state in ("failed", "canceled"):
            reason = reply.get("error") or {}
            raise self._explain(
                WorkerError(
                    reason.get("code", job.state),
                    reason.get("message", f"the job was {job.state}"),
                    item=reason.get("item"),
                    layer=reason.get("layer"),
                ),
                job,
            )
        if job.state == "done" and job.left:
            raise ProtocolError(
                f"the worker at {self.client.url} reports a job as done, but {len(job.left)} of its items have no result"
            )

    @staticmethod
    def _pace(job: Job, wait_ms: int, took_s: float) -> None:
        """Sets the time of the job's next poll: the worker's `again_ms`, and always a pause after a poll that
        returned early without news (a worker older than `again_ms` answers so when many clients wait)."""
        reply = job.reply
        news = reply["items_done"] > job.fetched or reply["state"] in _FINAL
        if news or took_s >= max(wait_ms / 2000, _QUIET_FIRST_S):
            job.quiet = 0.0
        else:
            job.quiet = min(2 * job.quiet or _QUIET_FIRST_S, _QUIET_MAX_S)
        again_s = min(reply.get("again_ms", 0) / 1000, _AGAIN_MAX_S)
        job.not_before = time.monotonic() + max(again_s, job.quiet)

    def _fetch(self, job: Job) -> None:
        reply = self.client.fetch(job.id, job.fetched, self.batches.message_bytes)
        n = reply["n"]
        if reply["first"] != job.fetched or n < 1:
            raise ProtocolError(
                f"the worker at {self.client.url} returned {n} results from {reply['first']}, expected results from "
                f"{job.fetched}"
            )
        self._check_source(reply)
        try:
            results = list(split(self.kind, reply))
        except ProtocolError as error:
            raise ProtocolError(f"{self.client.wrong('fetch')}: {error}") from error
        for place, result in results:
            i = job.items[place] if 0 <= place < len(job.items) else -1
            if i not in job.left:
                raise ProtocolError(
                    f"the worker at {self.client.url} returned item {place}, which was already returned or never submitted"
                )
            if isinstance(result, Score) and not math.isfinite(result.sum):
                raise WorkerError("numeric", f"the worker returned {result.sum} for item {i}", item=i)
            job.left.discard(i)
            self._n_done += 1
            self.on_score(i, result)
        job.fetched += n
        interrupt.count(n)

    def _check_source(self, reply: dict[str, Any]) -> None:
        """Every result of a run must come from the same checkpoint under the same numerics."""
        for name in ("numerics", "identity"):
            before, now = getattr(self, name), reply.get(name)
            if before and now != before:
                raise CtworkerError(
                    f"the worker's {name} changed during the run from '{before}' to '{now}' (another worker, or "
                    "another model under this name): the results cannot be mixed; run again"
                )
            setattr(self, name, now)

    def _explain(self, error: WorkerError, job: Job) -> WorkerError:
        """The same error, with the item counted over all items, its number in the job removed from the text, and the
        layer in the text."""
        item = (
            job.items[error.item]
            if error.item is not None and error.item < len(job.items)
            else None
        )
        text = describe(error).removeprefix(f"item {error.item}: ")
        return WorkerError(error.code, text, item=item, layer=error.layer)

    def _report(self, active: list[Job]) -> None:
        left = [
            job.reply["progress"].get("seconds_left", -1.0) for job in active if job.reply.get("progress")
        ]
        left = [seconds for seconds in left if seconds >= 0]
        rate = max(
            (job.reply.get("progress", {}).get("tokens_per_s", 0.0) for job in active), default=0.0
        )
        cost = self._cost_done + sum(job.cost * job.fraction for job in active)
        self._note_stall((cost, self._n_done))
        self.on_progress(
            Progress(
                min(1.0, cost / self._cost_total),
                self._n_done,
                rate or None,
                max(left, default=None),
            )
        )

    def _note_stall(self, now: tuple[float, int]) -> None:
        """Warns once per minute without progress: the worker answers, but other clients' jobs may go first."""
        if now != self._last:
            self._moved, self._last = time.monotonic(), now
        elif time.monotonic() - self._moved > _BUSY_NOTE_S:
            self._moved = time.monotonic()
            log.warning(
                "the worker at %s has made no progress on this job for %.0f s (see: ctworker health %s)",
                self.client.url, _BUSY_NOTE_S, self.client.url,
            )  # fmt: skip

    def _abandon(self, jobs: Sequence[Job]) -> None:
        """Cancels jobs at the worker, best effort (their time to live ends them otherwise)."""
        for job in jobs:
            try:
                self.client.cancel(job.id, timeout=1.0)
                self.client.release(job.id, timeout=1.0)
            except WorkerError as error:  # the worker never had the job, or lost it
                log.debug("cancelling a job: %s", error)
            except Exception as error:
                log.debug("cancelling a job: %s", error)
                return
