"""The source's part in Spark's executors: the rows of a part.

A thread with a hub of its own fills the part, and Spark gets its segments as they are published. So nsqd is served
on time however long Spark takes for a row, and both work at once. A published segment is final even if the task
fails, so every attempt gives the same rows. The thread ends with its part, also if Spark wants no more rows.

The thread's work at nsqd (:class:`StreamReceiver`): receive, stage, FIN, until its part has its END. For each segment:

1. RDY lets nsqd send the messages of this segment and the next.
2. Messages arrive until the segment is complete.
3. Copies of messages that were staged before are set aside.
4. The segment is published under the next free number.
5. Only then are its messages and the copies FINed. The RDY for what follows goes first, so that the last FIN makes
   nsqd send nothing more.

At the target, or when no more messages come, END takes the next number. Then follow CLS and, after the last FIN, nsqd's
CLOSE_WAIT: FINs that have caused no error by then are confirmed.

If something goes wrong, the messages in hand are treated like this:

- Another attempt took the number: the next number is tried; if an END took it, they are requeued.
- The batch is finished (:class:`~gnsq_like.spark.staging.store.Fenced`): requeued, and the task fails.
- They have been in hand for half of ``msg_timeout``, because this process stood still: requeued, since nsqd may
  soon deliver them to another consumer.
- The connection is lost: staged all the same, since an nsqd that died does not have them any more.

All of it runs in one greenlet of the thread, except the callbacks, which only take note.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from threading import Thread

import gevent
import pyarrow as pa
from gevent.event import Event

from gnsq_like import Connection, NsqdHTTPClient
from gnsq_like.errors import NsqdError, NSQError, is_incurable
from gnsq_like.spark.format_options import SourceOptions
from gnsq_like.spark.source.query_log import lost
from gnsq_like.spark.staging import index
from gnsq_like.spark.staging.index import Known
from gnsq_like.spark.staging.offsets import Part
from gnsq_like.spark.staging.records import DamagedRecord, End, RawMessage, decode_segment, encode_segment, segment_rows
from gnsq_like.spark.staging.staging_log import Confirmed, StagingLog, base_of, examine
from gnsq_like.spark.staging.store import OpenStore, StagingError, open_store

logger = logging.getLogger(__name__)

#: The share of msg_timeout after which messages in hand are requeued rather than staged.
_TOO_OLD = 0.5
#: Seconds that nsqd may take to say when it was started.
_HTTP_TIMEOUT = 2.0
#: nsqd's error text for a FIN that failed.
_FAILED_FIN = re.compile(r"FIN (\S{16}) failed")


class StreamReceiver:
    """Fills one part.

    :param part: the nsqd, and the number of messages to take
    :param log: where to stage it
    :param on_segment: called with the number of each published segment in order, also if another attempt published it
    :param connection: the class of the connection to nsqd
    """

    def __init__(
        self,
        part: Part,
        log: StagingLog,
        options: SourceOptions,
        on_segment: Callable[[int], object] = lambda number: None,
        connection: type[Connection] = Connection,
    ) -> None:
        self._part = part
        self._log = log
        self._options = options
        self._on_segment = on_segment
        self._connection_class = connection
        self._known = Known(log, part, options.dedupe_within)
        #: The number of the next record, and the messages in all segments before it.
        self._number = self._staged = 0
        #: The messages that the part may still take from nsqd, and the bytes of their bodies.
        self._rest = part.messages
        self._rest_bytes = part.bytes or float("inf")
        #: Whether END follows ``_number``.
        self._is_sealed = False
        #: The segments whose messages this attempt has FINed, and the ids whose FIN failed.
        self._finished: list[int] = []
        self._failed: list[bytes] = []
        #: The messages that were received and not taken out yet.
        self._buffer = MessageBuffer(options)

    def run(self) -> None:
        """Work until this attempt or another has sealed the part. May switch.

        :raises Fenced: the batch is finished without this attempt
        :raises DataLost: something is missing from the stage
        :raises ConnectionFailed: an option of the connection is wrong (``errors.is_incurable``)
        """
        self._fill()
        if self._options.dedupe_within:
            try:
                index.remember(self._log, self._log.staged(self._part), self._part.seen_us / 1e6 or time.time())
            except Exception as exc:
                # The part is complete; the driver writes them before it removes it.
                logger.warning("%s: the ids are not written yet: %s", self._log, exc)

    def _fill(self) -> None:
        if self._begin():
            return
        if self._rest <= 0 or self._rest_bytes <= 0:
            self._seal("target")
            self._confirm()
            return
        connection = self._connection_class(
            self._part.address,
            self._options.connection_options(),
            on_messages=self._buffer.take,
            on_error=self._note_failure,
            on_close=self._buffer.note_end,
        )
        try:
            connection.connect()
            connection.subscribe(*self._part.of)
        except NSQError as exc:
            connection.close()
            if is_incurable(exc, self._part.connected_before):
                raise
            # Nothing is lost: the messages stay in nsqd, for a later batch.
            logger.warning("%s: %s; the batch continues without it", self._log, exc)
            self._seal("unreachable")
            self._confirm()
            return
        try:
            self._receive(connection)
        finally:
            # Also after a failure: closing at once would discard commands that nsqd has not read yet.
            try:
                self._finish(connection)
            finally:
                connection.close()

    # -- records of other attempts ------------------------------------------------------------------------

    def _begin(self) -> bool:
        """Pass the records that exist when the attempt begins; True if the part is sealed."""
        state = examine(self._log, self._part)
        for number in state.segments:
            self._on_segment(number)
        self._number, self._staged = state.following, state.messages
        self._rest -= state.messages
        self._rest_bytes -= state.bytes
        if state.damage:
            lost(self._options, f"{self._options.staging_location}: {state.damage}")
            # Spark may have written this batch already. So it gets no more messages: those in nsqd come later.
            if not state.is_sealed:
                self._seal("damaged")
        return state.is_sealed or bool(state.damage)

    def _catch_up(self) -> bool:
        """Pass the records that others have written meanwhile; True if the part is sealed."""
        while True:
            record = self._log.record(self._part, self._number)
            if record is None:
                return False
            if record.end is not None:
                return True
            rows = decode_segment(record.content)
            self._rest -= rows.num_rows
            self._rest_bytes -= rows.column("body").nbytes
            self._pass_segment(rows.num_rows)

    def _pass_segment(self, messages: int) -> None:
        self._on_segment(self._number)
        self._number += 1
        self._staged += messages

    def _note_failure(self, connection: Connection, error: NsqdError) -> None:
        # In a greenlet of the connection; never switches.
        found = _FAILED_FIN.search(error.detail)
        if found is not None:
            self._failed.append(found[1].encode())

    # -- the work -----------------------------------------------------------------------------------------

    def _receive(self, connection: Connection) -> None:
        """Receive and stage segment after segment, until the part is sealed."""
        self._known.begin(self._start_time())
        segment = min(self._options.segment_messages, connection.negotiated.max_rdy_count)
        # nsqd sends the next segment while this one is staged. So nsqd may have sent the messages of a segment at any
        # time since the segment before the last one was complete.
        window = min(2 * segment, connection.negotiated.max_rdy_count)
        since = last = time.monotonic()
        connection.set_rdy(min(window, self._rest))
        while True:
            # According to the plan nsqd has messages, unless another attempt has taken them.
            reason = self._buffer.wait(min(segment, self._rest), expected=not self._number)
            messages = self._buffer.pop()
            completed = time.monotonic()
            if messages:
                try:
                    reason = self._stage(connection, messages, since, window, reason)
                except BaseException:
                    give_back(connection, messages)
                    raise
            if reason:
                connection.set_rdy(0)
                self._seal(reason)
                return
            since, last = last, completed

    def _stage(self, connection: Connection, messages: list[RawMessage], since: float, window: int, reason: str) -> str:
        """Publish the messages and FIN them.

        :param since: monotonic time before which nsqd had sent none of them
        :param window: the RDY for the segments that follow
        :param reason: why no segment will follow, or ""
        :returns: the reason, which may have changed
        """
        number = None
        # After a restart nsqd delivers them again at once, also to other attempts.
        suspicious = reason == "lost"
        while fresh := self._known.fresh(messages, suspicious=suspicious):
            data = encode_segment(fresh)
            if time.monotonic() - since > _TOO_OLD * self._options.msg_timeout:
                give_back(connection, messages)
                return "stalled"
            if self._log.publish(self._part, self._number, data, self._staged):
                number = self._number
                self._known.staged(number, fresh)
                self._pass_segment(len(fresh))
                break
            if self._catch_up():
                give_back(connection, messages)
                return "sealed"
            # The segment of the other attempt may hold these very messages.
            suspicious = True
        self._rest -= len(messages)
        if self._part.bytes:
            self._rest_bytes -= sum([len(message[3]) for message in messages])
        if self._rest <= 0 or self._rest_bytes <= 0:
            reason = "target"
        connection.set_rdy(0 if reason else min(window, self._rest))
        connection.finish_many([message[2] for message in messages])
        if number is not None:
            self._finished.append(number)
        gevent.sleep(0)  # lets the hub write the queued commands now
        return reason

    def _start_time(self) -> int:
        """The start time of nsqd; 0 if it does not report one."""
        if not (self._part.http and self._options.dedupe_within):
            return 0
        try:
            with NsqdHTTPClient(self._part.http, timeout=_HTTP_TIMEOUT) as client:
                return client.info().start_time or 0
        except NSQError as exc:
            logger.info("%s; so each message is looked up among those that were staged", exc)
            return 0

    def _seal(self, reason: str) -> None:
        while True:
            end = End(self._number, self._part.messages - self._rest, reason)
            if self._log.seal(self._part, end, self._staged) or self._catch_up():
                break
        self._is_sealed = True

    def _finish(self, connection: Connection) -> None:
        """Close in good order, and confirm the FINs if that succeeds. May switch."""
        try:
            connection.close_subscription()
        except NSQError as exc:
            # Its FINs may or may not have been executed, so redeliveries are looked up.
            logger.info("%s: %s", self._log, exc)
            self._finished = []
        else:
            give_back(connection, self._buffer.pop())
        self._confirm()

    def _confirm(self) -> None:
        """Note which records the part has, and which FINs nsqd has executed."""
        if not (self._finished or self._is_sealed):
            return
        confirmed = Confirmed(
            frozenset(self._finished), frozenset(self._failed), self._number + self._is_sealed, self._staged
        )
        try:
            self._log.confirm(self._part, confirmed)
        except Exception as exc:
            # The part is complete without the confirmation; redeliveries are looked up.
            logger.warning("%s: not confirmed: %s", self._log, exc)


# -- the thread -----------------------------------------------------------------------------------------


def read_part(
    part: Part,
    options: SourceOptions,
    *,
    open_store: OpenStore = open_store,
    connection: type[Connection] = Connection,
) -> Iterator[pa.RecordBatch]:
    """Fill the part unless that is done, and yield its rows; they are the same for every attempt.

    Bodies are bytes, also if the options have a schema (``by_columns``).

    :param open_store: opens the staging location
    :param connection: the class of the connection to nsqd
    :raises StagingError: the staging location does not have the log here
    :raises DataLost: something is missing from it
    :raises Fenced: the batch is finished, so its rows are not needed any more
    :raises ConnectionFailed: an option of the connection is wrong (``errors.is_incurable``)
    """
    log = StagingLog(open_store(options.staging_location, options.storage), base_of(*part.of), part.log)
    if not log.exists():
        raise StagingError(
            f"staging_location {options.staging_location} is not the driver's: on this executor, the log is missing "
            f"from it. It must be a place that the driver and all executors share"
        )
    for number in _in_background(lambda note: StreamReceiver(part, log, options, note, connection).run()):
        try:
            record = log.record(part, number)
        except DamagedRecord:
            record = None
        if record is None:  # since it was found
            lost(options, f"{options.staging_location}: {examine(log, part).damage}")
            continue
        yield segment_rows(record.content, options.plain_columns, part)


def _in_background(job: Callable[[Callable[[int], None]], None]) -> Iterator[int]:
    """Run ``job(note)`` in a thread; yield each number that it notes, and raise its exception."""
    noted: SimpleQueue[int | BaseException | None] = SimpleQueue()

    def work() -> None:
        try:
            job(noted.put)
            noted.put(None)
        except BaseException as exc:
            noted.put(exc)
        finally:
            gevent.get_hub().destroy(destroy_loop=True)

    thread = Thread(target=work, name="gnsq_like receiver", daemon=True)
    thread.start()
    try:
        while (item := noted.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        thread.join()


def give_back(connection: Connection, messages: Sequence[RawMessage]) -> None:
    """Requeue messages, after which nsqd sends no more. Never switches."""
    connection.set_rdy(0)  # or nsqd would deliver them to this connection again
    for message in messages:
        connection.requeue(message[2])


class MessageBuffer:
    """Messages that a connection has received and that were not taken out yet.

    ``take`` and ``note_end`` are callbacks for the connection; they never switch.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        #: The connection's callbacks write this and the next four.
        self._messages: list[RawMessage] = []
        self._bytes = 0
        #: Monotonic time when the last messages arrived; 0 before the first.
        self._arrived = 0.0
        self._ended = False
        #: Set when ``wait`` should check again.
        self._changed = Event()
        #: The number of messages that ``wait`` waits for.
        self._wanted = 0

    def take(self, connection: Connection, messages: list[RawMessage]) -> None:
        """For ``on_messages``."""
        first = not self._arrived
        self._messages += messages
        self._bytes += sum([len(message[3]) for message in messages])
        self._arrived = time.monotonic()
        if first or self._enough():
            self._changed.set()

    def note_end(self, connection: Connection, error: NSQError | None) -> None:
        """For ``on_close``."""
        self._ended = True
        self._changed.set()

    def _enough(self) -> bool:
        return len(self._messages) >= self._wanted or self._bytes >= self._options.segment_bytes

    def wait(self, wanted: int, *, expected: bool) -> str:
        """Wait for so many messages, or the bytes of a segment. May switch.

        :param expected: whether nsqd certainly has some: then silence before the first one means nothing
        :returns: "", or why no more messages are to be expected: "lost", "idle" or "slow"
        """
        self._wanted = wanted
        began = time.monotonic()
        while not self._enough():
            if self._ended:
                return "lost"
            self._changed.clear()
            until = began + self._options.fetch_max_wait
            reason = "slow"
            if self._arrived or not expected:
                quiet = max(began, self._arrived) + self._options.fetch_idle
                if quiet < until:
                    until, reason = quiet, "idle"
            left = until - time.monotonic()
            if left <= 0:
                return reason
            self._changed.wait(left)
        return ""

    def pop(self) -> list[RawMessage]:
        """Take all messages out. Never switches."""
        messages, self._messages, self._bytes = self._messages, [], 0
        return messages
