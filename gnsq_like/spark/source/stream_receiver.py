"""One task's work at nsqd: receive, stage, FIN, until its part has its END.

For each segment: 1. RDY lets nsqd send what this segment takes, and the next; 2. messages gather; 3. copies of what was
staged before are set aside; 4. the segment is published under the next free number; 5. only then are its messages and
the copies FINed, after the RDY for what follows, so that the last FIN lets nothing more come. At the target, or when
nothing comes any more, END takes the next number. Then CLS, and nsqd's CLOSE_WAIT after the last FIN: FINs without an
error by then are confirmed.

What can go wrong on the way, and what becomes of the messages in hand:

- somebody else took the number: the next one is tried; if that somebody was END, they are requeued;
- the batch is finished (:class:`~gnsq_like.spark.staging.errors.Fenced`): requeued, and the task fails;
- they have been in hand for half of ``msg_timeout``, because this process stood still: requeued, for nsqd may soon
  give them to somebody else;
- the connection is lost: staged all the same, for an nsqd that died has them no more.

Everything runs in the caller's greenlet, but for the callbacks, which only take note.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable

import gevent

from gnsq_like import Connection
from gnsq_like.errors import NsqdError, NSQError, is_incurable
from gnsq_like.spark.options import SourceOptions
from gnsq_like.spark.source.message_buffer import MessageBuffer
from gnsq_like.spark.staging.index import Known
from gnsq_like.spark.staging.offsets import Part
from gnsq_like.spark.staging.segments import RawMessage, decode_segment, encode_segment
from gnsq_like.spark.staging.staging_log import StagingLog, is_end

logger = logging.getLogger(__name__)

#: Share of msg_timeout after which messages in hand are given back rather than staged.
_TOO_OLD = 0.5
#: nsqd's words about a FIN that failed.
_FAILED_FIN = re.compile(r"FIN (\S{16}) failed")


class StreamReceiver:
    """Fills one part.

    :param part: what to take
    :param log: where to stage it
    :param on_segment: called with the number of each segment that is there, in their order, by whomever published
    :param connection: what connects to nsqd
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
        self._known = Known(log, part.address, options.dedupe)
        #: Number of the next record.
        self._number = 0
        #: Messages that the part may still take from nsqd, and bytes of bodies.
        self._rest = part.messages
        self._rest_bytes = part.bytes or float("inf")
        #: Segments whose messages this attempt has FINed, and ids that nsqd did not let it finish.
        self._finished: list[int] = []
        self._failed: list[bytes] = []
        #: What was received and not yet looked at.
        self._gathering = MessageBuffer(options)

    def run(self) -> None:
        """Work until the part is sealed, by this attempt or another. May switch.

        :raises Fenced: the batch is finished without this attempt
        :raises ConnectionFailed: nsqd refuses what the options ask for
        """
        if self._catch_up():
            return
        if self._rest <= 0 or self._rest_bytes <= 0:
            self._seal("target")
            return
        connection = self._connection_class(
            self._part.address,
            self._options.connection_options(),
            on_messages=self._gathering.take,
            on_error=self._note_failure,
            on_close=self._gathering.note_end,
        )
        try:
            connection.connect()
            connection.subscribe(self._options.topic, self._options.channel)
        except NSQError as exc:
            connection.close()
            if is_incurable(exc):
                raise
            # Nothing is lost: what is not received stays in nsqd, for a later batch.
            logger.warning("%s: %s; the batch goes without it", self._log, exc)
            self._seal("unreachable")
            return
        try:
            self._receive(connection)
        finally:
            # Also after a failure: closed at once, the connection would take with it what nsqd has not read yet.
            try:
                self._finish(connection)
            finally:
                connection.close()

    # -- what others have done ----------------------------------------------------------------------------

    def _catch_up(self) -> bool:
        """Pass the records that are there; True if the part is sealed."""
        while True:
            data = self._log.record(self._part, self._number)
            if data is None:
                return False
            if is_end(data):
                return True
            staged = decode_segment(data)
            self._rest -= staged.num_rows
            self._rest_bytes -= staged.column("body").nbytes
            self._pass_segment()

    def _pass_segment(self) -> None:
        self._on_segment(self._number)
        self._number += 1

    def _note_failure(self, connection: Connection, error: NsqdError) -> None:
        # In the connection's greenlet; never switches.
        found = _FAILED_FIN.search(error.detail)
        if found is not None:
            self._failed.append(found[1].encode())

    # -- the work -----------------------------------------------------------------------------------------

    def _receive(self, connection: Connection) -> None:
        """Segment after segment, until the part is sealed."""
        segment = min(self._options.segment_messages, connection.negotiated.max_rdy_count)
        # nsqd sends the next segment while this one is staged. So messages of a segment may have been on their way
        # since the one before the last had gathered.
        window = min(2 * segment, connection.negotiated.max_rdy_count)
        since = last = time.monotonic()
        connection.set_rdy(min(window, self._rest))
        while True:
            # The plan knows that nsqd has some, unless another attempt has taken them.
            reason = self._gathering.wait(min(segment, self._rest), expected=not self._number)
            messages = self._gathering.pop()
            gathered = time.monotonic()
            if messages:
                try:
                    reason = self._stage(connection, messages, since, window, reason)
                except BaseException:
                    self._give_back(connection, messages)
                    raise
            if reason:
                connection.set_rdy(0)
                self._seal(reason)
                return
            since, last = last, gathered

    def _stage(self, connection: Connection, messages: list[RawMessage], since: float, window: int, reason: str) -> str:
        """Publish the messages and answer them.

        :param window: the RDY for what follows
        :param since: monotonic time before which nsqd has sent none of them
        :param reason: why no segment is to follow, or ""
        :returns: the same, which this may change
        """
        number = None
        # An nsqd that was stopped and started gives them to others at once.
        suspicious = reason == "lost"
        while fresh := self._known.fresh(messages, suspicious=suspicious):
            data = encode_segment(fresh)
            if time.monotonic() - since > _TOO_OLD * self._options.msg_timeout:
                self._give_back(connection, messages)
                return "stalled"
            if self._log.publish(self._part, self._number, data):
                number = self._number
                self._pass_segment()
                break
            if self._catch_up():
                self._give_back(connection, messages)
                return "sealed"
            # What another attempt published there may be these very messages.
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
        gevent.sleep(0)  # the hub writes now what is queued
        return reason

    def _give_back(self, connection: Connection, messages: list[RawMessage]) -> None:
        connection.set_rdy(0)  # else nsqd gives them to this connection once more
        for message in messages:
            connection.requeue(message[2])

    def _seal(self, reason: str) -> None:
        while not self._log.seal(self._part, self._number, self._part.messages - self._rest, reason):
            if self._catch_up():
                return

    def _finish(self, connection: Connection) -> None:
        """The orderly end of the connection, and the confirmation if it came about. May switch."""
        try:
            connection.close_subscription()
        except NSQError as exc:
            # Its FINs may be executed or not; the messages stay suspects.
            logger.info("%s: %s", self._log, exc)
            return
        self._give_back(connection, self._gathering.pop())
        if self._finished:
            try:
                self._log.confirm(self._part, self._finished, self._failed)
            except Exception as exc:
                # The part is complete without it; its messages stay suspects.
                logger.warning("%s: not confirmed: %s", self._log, exc)
