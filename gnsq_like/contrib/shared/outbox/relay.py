"""The relay of an outbox: publishes committed rows until it is stopped.

A round looks for shards with unpublished rows, claims one after the other, publishes a batch of it and marks what nsqd
has confirmed. Rounds follow each other while there is something to publish; then the relay waits for a commit.

A message that nsqd refuses stays in the table, and is tried again after growing delays; meanwhile the relay skips it,
and later messages of the same key, which must not overtake it. Any other failure (all nsqds or the database
unreachable) concerns all rows, so the whole relay tries again later.

Within the claim, a batch is published first, and then its rows are marked. If the process, nsqd or the database ends in
between, the batch is published again.

``Store`` is the protocol of a database. The relay also measures the lag, and deletes old published rows.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from gnsq_like.contrib.shared.outbox.rows import Row, Skipped
from gnsq_like.contrib.shared.outbox.waking import Listening, Waiting
from gnsq_like.errors import NSQError, PublishRefused, UsageError

if TYPE_CHECKING:
    from gnsq_like import Producer

logger = logging.getLogger(__name__)

#: Rows of a claim, which are one MPUB for each topic.
BATCH_COUNT = 200
#: Seconds for an MPUB. Longer than a request would wait, because a batch that times out is published again.
_PUBLISH_TIMEOUT = 10.0
#: Seconds until a failure is tried again: the first time, and at most.
_FIRST_DELAY, _LONGEST_DELAY = 0.1, 5.0
#: Seconds until a refused message is tried again, likewise.
_FIRST_REFUSED_DELAY, _LONGEST_REFUSED_DELAY = 1.0, 300.0
#: With more refused messages than this, the messages are probably not the cause, and the whole relay tries again later.
_MOST_REFUSED = 100
#: Seconds between two measurements of the lag, and between two prunings.
_MEASURE_INTERVAL, _PRUNE_INTERVAL = 2.0, 60.0
#: Seconds; a poll_interval of 0 would never rest.
_SHORTEST_POLL = 0.01
#: Rows that one statement prunes.
_PRUNE_COUNT = 500


class Lag(NamedTuple):
    """The messages that wait in an outbox."""

    #: How many rows are due.
    rows: int
    #: Seconds since the oldest of them was due; 0 if there is none.
    seconds: float


class Store(Protocol):
    """A relay's database, used in the relay's thread only. After any exception, the relay tries again."""

    def is_mine(self) -> bool:
        """Whether this relay may work; False if the database permits only one relay, and another holds it."""

    def shards(self) -> Sequence[int]:
        """The shards with rows that are due and not published."""

    def claimed(self, shard: int, limit: int, skipped: Skipped) -> AbstractContextManager[Sequence[Row]]:
        """Hold rows of a shard, in order, during the block; none if another relay has the shard."""

    def mark(self, rows: Iterable[Row]) -> None:
        """These rows, which are claimed, are published."""

    def keep_back(self, row: Row, reason: str) -> None:
        """This row, which is claimed, was refused; the reason is for people."""

    def lag(self) -> Lag:
        """The waiting messages."""

    def prune(self, limit: int) -> int:
        """Delete some rows that were published long ago, and return how many."""

    def listen(self) -> Listening | None:
        """Open a connection that listens; None where that is impossible."""

    def reset(self) -> None:
        """Drop a connection that may be broken."""

    def close(self) -> None:
        """Give everything back. The relay may start again."""


class _Refused(NamedTuple):
    #: Monotonic time of the next try.
    retry_at: float
    #: Seconds until the next try, if it is refused then.
    next_delay: float
    reason: str


class Relay:
    """Publishes the rows of an outbox. :meth:`run` in any thread; the other methods from any other.

    :param producer: publishes; stays open
    :param poll_interval: seconds between two polls of the table if no commit wakes the relay
    :param name: for logs, health and metrics
    """

    def __init__(self, store: Store, producer: Producer, *, poll_interval: float, name: str = "default") -> None:
        self.name = name
        self._store = store
        self._producer = producer
        self._poll_interval = max(_SHORTEST_POLL, poll_interval)
        #: Where it waits, while it runs.
        self._waiting: Waiting | None = None
        self._stop = threading.Event()
        self._state = "new"
        #: Seconds until the next round after a failure; 0 after a success.
        self._delay = 0.0
        #: The refused messages by topic and key, or by id.
        self._refused: dict[tuple[str, str] | int, _Refused] = {}
        self._measure_at = self._prune_at = 0.0
        #: The report of :meth:`stats`; replaced, never changed, except for the counts.
        self._lag = Lag(0, 0.0)
        self._problem: str | None = None
        self._published = 0
        self._refusals = 0

    # -- running ------------------------------------------------------------------------------------

    def run(self) -> None:
        """Publish until :meth:`stop`. May switch, or block. Failures are logged and tried again."""
        waiting = self._waiting = Waiting(self._store.listen)
        self._state = "running"
        try:
            waiting.listen()
            while not self._stop.is_set():
                waiting.wait(self._round())
        finally:
            self._state = "stopped"
            self._waiting = None
            waiting.close()
            self._store.close()

    def stop(self) -> None:
        """Let :meth:`run` return after the batch that it publishes. Never blocks."""
        self._stop.set()
        self.wake()

    def wake(self) -> None:
        """Look for rows now. Never blocks."""
        if (waiting := self._waiting) is not None:
            waiting.wake()

    def run_once(self) -> int:
        """Publish what is due now, and return how many messages that was; for commands and tests.

        :raises NSQError: when nsqd has not confirmed a message, and did not refuse it
        """
        before = self._published
        try:
            while self._store.is_mine() and self._publish_round():
                pass
            self._measure()
        finally:
            self._store.close()
        return self._published - before

    def _round(self) -> float:
        """Publish all that is due, and return the seconds to wait."""
        try:
            if not self._store.is_mine():
                self._state = "standing by"
                return self._poll_interval
            self._state = "running"
            while not self._stop.is_set() and self._publish_round():
                self._measure_sometimes()
            self._measure_sometimes()
            self._prune_sometimes()
        except Exception as exc:
            return self._failed(exc)
        if self._delay:
            logger.info("the outbox %r is published again", self.name)
        self._delay = 0.0
        self._problem = next((refused.reason for refused in self._refused.values()), None)
        return self._poll_interval

    def _failed(self, exc: Exception) -> float:
        self._problem = f"{type(exc).__name__}: {exc}".strip()
        if not self._delay:
            logger.warning("the outbox %r cannot be published, and is tried again: %s", self.name, self._problem)
        self._delay = min(_LONGEST_DELAY, self._delay * 2 or _FIRST_DELAY)
        try:
            if isinstance(exc, NSQError):
                self._measure_sometimes()  # the lag grows now
            else:
                self._store.reset()
        except Exception as second:
            logger.debug("the outbox %r: %s", self.name, second)
        # Relays that failed together should not all retry at once.
        return self._delay * random.uniform(0.5, 1.0)

    # -- publishing ---------------------------------------------------------------------------------

    def _publish_round(self) -> bool:
        """Publish a batch of each shard; return whether there may be more."""
        shards = list(self._store.shards())
        random.shuffle(shards)
        found = False
        for shard in shards:
            if self._stop.is_set():
                break
            found |= self._publish_shard(shard)
        return found

    def _publish_shard(self, shard: int) -> bool:
        failure: Exception | None = None
        with self._store.claimed(shard, BATCH_COUNT, self._skipped()) as rows:
            topics: dict[str, list[Row]] = {}
            for row in rows:
                topics.setdefault(row.topic, []).append(row)
            done: list[Row] = []
            try:
                for topic, its_rows in topics.items():
                    self._publish(topic, its_rows, done)
            except NSQError as exc:
                failure = exc
            finally:
                if done:
                    self._store.mark(done)
        self._published += len(done)
        if failure is not None:
            raise failure
        return bool(done)

    def _publish(self, topic: str, rows: Sequence[Row], done: list[Row]) -> None:
        """Publish rows of one topic in order, and add to ``done`` those that nsqd has confirmed."""
        try:
            if len(rows) == 1:
                self._producer.publish(topic, rows[0].body, timeout=_PUBLISH_TIMEOUT)
            else:
                self._producer.multi_publish(topic, [row.body for row in rows], timeout=_PUBLISH_TIMEOUT)
        except (PublishRefused, UsageError) as exc:
            if len(rows) == 1:
                self._refuse(rows[0], exc)
                return
        else:
            done += rows
            for row in rows:
                self._refused.pop(_place(row), None)
            return
        # One of them is at fault.
        kept: set[str] = set()
        for row in rows:
            if row.key not in kept:
                before = len(done)
                self._publish(topic, [row], done)
                if row.key and len(done) == before:
                    kept.add(row.key)

    def _refuse(self, row: Row, exc: NSQError) -> None:
        place = _place(row)
        last = self._refused.get(place)
        delay = _FIRST_REFUSED_DELAY if last is None else last.next_delay
        if last is None and len(self._refused) >= _MOST_REFUSED:
            raise exc
        after = f", and those of key {row.key!r} after it" if row.key else ""
        logger.error("message %d of the outbox %r%s is kept back: %s", row.id, self.name, after, exc)
        reason = f"message {row.id} to {row.topic!r} was refused: {exc}"
        self._refusals += 1
        self._refused[place] = _Refused(time.monotonic() + delay, min(2 * delay, _LONGEST_REFUSED_DELAY), reason)
        self._store.keep_back(row, str(exc))

    def _skipped(self) -> Skipped:
        if not self._refused:
            return Skipped()
        now = time.monotonic()
        waiting = [place for place, refused in self._refused.items() if refused.retry_at > now]
        return Skipped(
            ids=frozenset(place for place in waiting if isinstance(place, int)),
            keys=frozenset(place for place in waiting if not isinstance(place, int)),
        )

    # -- looking ------------------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        """Its state and counts, for health and metrics. Never switches.

        ``waiting`` and ``lag_seconds`` are those of the table when it was last looked at, every two seconds, with all
        that any process has written.
        """
        return {
            "state": self._state,
            "waiting": self._lag.rows,
            "lag_seconds": round(self._lag.seconds, 3),
            "published": self._published,
            "refused": self._refusals,
            "kept_back": len(self._refused),
            "problem": self._problem,
        }

    def _measure_sometimes(self) -> None:
        if time.monotonic() >= self._measure_at:
            self._measure()

    def _measure(self) -> None:
        began = time.monotonic()
        self._lag = self._store.lag()
        # Counting a large backlog may take long, and should not take all of the time.
        self._measure_at = time.monotonic() + max(_MEASURE_INTERVAL, 20 * (time.monotonic() - began))
        # A message that was not tried again at its time has been deleted.
        forget = time.monotonic() - _LONGEST_DELAY * 4
        self._refused = {place: refused for place, refused in self._refused.items() if refused.retry_at > forget}

    def _prune_sometimes(self) -> None:
        if time.monotonic() < self._prune_at:
            return
        while self._store.prune(_PRUNE_COUNT) == _PRUNE_COUNT and not self._stop.is_set():
            pass
        self._prune_at = time.monotonic() + _PRUNE_INTERVAL


def _place(row: Row) -> tuple[str, str] | int:
    return (row.topic, row.key) if row.key else row.id


class RelayThread:
    """A relay in a thread of its own during a ``with`` block, beside Readers or requests; a greenlet if patched."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._thread = threading.Thread(target=relay.run, name=f"gnsq_like outbox {relay.name}", daemon=True)

    def __enter__(self) -> Relay:
        self._thread.start()
        return self._relay

    def __exit__(self, *_: object) -> None:
        """Ask it to stop, and wait for the batch that it publishes."""
        self._relay.stop()
        self._thread.join(_PUBLISH_TIMEOUT)
