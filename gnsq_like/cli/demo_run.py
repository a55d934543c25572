"""One run of ``gnsq-like demo``: publishes numbered messages, consumes them on two channels, and counts.

In order: start the daemons; create the topic and both channels on every nsqd, because a channel created later would
miss earlier messages; wait until nsqlookupd knows every nsqd; start the Readers, which find the nsqds only there;
wait until each Reader is connected to each nsqd; publish.

The run is over when everything is published and the nsqds report that nothing waits, is in flight or is deferred:
then no delivery can follow. The messages of an nsqd that was killed are lost, and the demo counts them as lost.

Also here: the live table of a run, and the warnings that are kept for one that fails.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import gevent
from gevent import pool
from gevent.event import Event
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gnsq_like import Message, Producer, Reader
from gnsq_like.cli.admin_beside import admin_beside
from gnsq_like.cli.cluster_processes import ClusterProcesses
from gnsq_like.cli.confirm import plural
from gnsq_like.cli.numbered_messages import Tally, Verdict, body_of, number_of
from gnsq_like.cli.screen import Layout, View
from gnsq_like.cluster.daemons import Daemons
from gnsq_like.cluster.figures import read_topics
from gnsq_like.errors import NotRunning, PublishError
from gnsq_like.server.daemon_process import DaemonProcess

#: Columns from which on the table has its bars.
_BAR_WIDTH = 76
#: A wider table than this is harder to read.
_WIDEST_TABLE = 100


@dataclass(frozen=True)
class ChannelRow:
    """One channel at one moment."""

    name: str
    handled: int
    per_second: float
    in_flight: int
    waiting: int
    requeued: int


@dataclass(frozen=True)
class DemoSnapshot:
    """The demo at one moment."""

    seconds: float
    messages: int
    published: int
    per_second: float
    channels: Sequence[ChannelRow]
    #: Whether this is the last one.
    is_over: bool


class DemoLayout(Layout[DemoSnapshot]):
    """A row for the published messages and one for each channel, with bars if there is room."""

    least_size = (60, 12)

    def line(self, snapshot: DemoSnapshot) -> str:
        channels = "; ".join(
            f"{row.name} {row.handled:,}, {row.in_flight:,} in flight, {row.requeued:,} requeued"
            for row in snapshot.channels
        )
        rate = sum(row.per_second for row in snapshot.channels)
        return f"published {snapshot.published:,} of {snapshot.messages:,}; {channels}; {rate:,.0f} messages/s"

    def table(self, snapshot: DemoSnapshot, width: int, height: int) -> RenderableType:
        has_bars = width >= _BAR_WIDTH
        table = Table.grid(padding=(0, 2, 0, 0))
        table.width = min(width, _WIDEST_TABLE) if has_bars else None
        table.add_column(no_wrap=True)
        if has_bars:
            table.add_column(ratio=1)
        # A constant width, or the bars would jump.
        for least in (len(f"{snapshot.messages:,}"), 6, 9, 7, 8):
            table.add_column(justify="right", no_wrap=True, min_width=least)
        headings = ["", *([""] if has_bars else []), "messages", "msgs/s", "in flight", "waiting", "requeued"]
        table.add_row(*headings, style="dim")

        def add(name: str, count: int, per_second: float, *others: int) -> None:
            bar = ProgressBar(snapshot.messages, count, complete_style="cyan", finished_style="green")
            numbers = [f"{count:,}", f"{per_second:,.0f}", *(f"{number:,}" for number in others)]
            table.add_row(name, *([bar] if has_bars else []), *numbers)

        add("published", snapshot.published, snapshot.per_second)
        for row in snapshot.channels:
            add(row.name, row.handled, row.per_second, row.in_flight, row.waiting, row.requeued)
        foot = "" if snapshot.is_over else f"{snapshot.seconds:.0f} s; Ctrl-C ends it"
        return Group("", table, Text(foot, style="dim"))


TOPIC = "demo"
#: The two channels; the handlers of the second fail now and then.
STEADY, SHAKY = "archive", "mail"

#: Greenlets that publish, each waiting for nsqd's OK before its next message.
PUBLISHERS = 200
#: For each Reader; also the number of its handlers that run at once.
MAX_IN_FLIGHT = 100
#: Seconds until a failed message is delivered again.
REQUEUE_DELAY = 0.5
#: Publishing pauses while the nsqds hold more bytes than this: they keep everything in memory.
BACKLOG_BYTES = 64 * 1024 * 1024
#: Roughly what an nsqd needs for a message besides its body.
_OVERHEAD_BYTES = 1024

#: Seconds without any progress after which the demo gives up; above nsqd's msg-timeout of 60.
PATIENCE = 90.0
#: Seconds between two questions to the nsqds, and between two updates of the screen.
_ASK_INTERVAL = 0.2
_SHOW_INTERVAL = 0.1
#: Seconds over which "per second" is measured.
_RATE_SPAN = 1.5


class PlannedFailure(Exception):
    """Raised by the shaky handler now and then."""


@dataclass(frozen=True)
class DemoPlan:
    """The demo command's options."""

    messages: int
    nsqds: int
    readers: int
    body_bytes: int
    #: Every N-th message fails once on the shaky channel; 0: none fails.
    fail_every: int
    #: Seconds that a handler waits, as for a database.
    work: float


class Channel:
    """One channel: its handler, its tally and its Readers."""

    def __init__(self, name: str, plan: DemoPlan, lookupd: str, *, fail_every: int) -> None:
        self.name = name
        self.tally = Tally(plan.messages)
        self._work = plan.work
        self._fail_every = fail_every
        self.readers = [
            Reader(
                TOPIC,
                name,
                self.handle,
                lookupd_http_addresses=lookupd,
                max_in_flight=MAX_IN_FLIGHT,
                default_requeue_delay=REQUEUE_DELAY,
                # Backoff would stop everything for a second or more after each planned failure.
                max_backoff_duration=0,
            )
            for _ in range(plan.readers)
        ]
        #: Messages that wait in the nsqds, including those that failed and wait for their delay.
        self.waiting = 0

    def handle(self, message: Message) -> None:
        """The handler: works, fails at the first try of some messages, and counts the others."""
        if self._work:
            gevent.sleep(self._work)
        number = number_of(message.body)
        if self._fail_every and number % self._fail_every == self._fail_every - 1 and message.attempts == 1:
            raise PlannedFailure(f"message {number} fails the first time")
        self.tally.count(number)

    def total(self, what: str) -> int:
        """The sum of one of the Readers' stats."""
        return sum(int(reader.stats()[what]) for reader in self.readers)

    @property
    def connections(self) -> int:
        """How many connections its Readers have."""
        return sum(len(reader.stats()["connections"]) for reader in self.readers)


class Demo:
    """One run. Next: :meth:`run`.

    :param view: shows the progress
    :param admin_port: the port of an admin for the daemons; None for none
    """

    def __init__(self, plan: DemoPlan, view: View[DemoSnapshot], admin_port: int | None = None) -> None:
        self._plan = plan
        self._view = view
        self._admin_port = admin_port
        self._cluster = ClusterProcesses(plan.nsqds)
        self._channels: list[Channel] = []
        self._published = Tally(plan.messages)
        #: Publishes that nsqd did not confirm, and the reason for the last one.
        self._failed = 0
        self._failure: PublishError | None = None
        #: Messages that the nsqds hold, those of both channels counted once.
        self._backlog = 0
        self._publishing_is_over = Event()
        self._all_is_over = Event()
        self._ended: set[DaemonProcess] = set()
        self._rates: dict[str, _Rate] = {}

    def run(self) -> Verdict:
        """Start everything, publish, consume, count, and end everything; returns the verdict. May switch.

        :raises DaemonFailed: when a daemon does not start, or is not found
        :raises HTTPError: when a daemon that listens does not answer
        """
        self._view.say(f"Starting 1 nsqlookupd and {plural(self._plan.nsqds, 'nsqd')}.")
        with self._cluster, ExitStack() as stack:
            for daemon in self._cluster:
                self._view.say(f"  {daemon.name:<10}  TCP {daemon.tcp_address}  HTTP {daemon.http_address}")
            lookupds = [daemon.http_address for daemon in self._cluster.lookupds]
            stack.enter_context(admin_beside(self._admin_port, lookupds, self._view.say_to_copy))
            self._make_channels()
            readers = [reader for channel in self._channels for reader in channel.readers]
            self._view.say(
                f"{plural(len(readers), 'Reader')} on the channels {STEADY} and {SHAKY} of the topic {TOPIC}."
            )
            for reader in readers:
                reader.start()
            wanted = self._plan.nsqds * self._plan.readers
            self._cluster.wait_until(
                lambda: all(channel.connections == wanted for channel in self._channels), "the Readers did not find"
            )
            producer = Producer([nsqd.tcp_address for nsqd in self._cluster.nsqds])
            greenlets = pool.Group()
            started = time.monotonic()
            try:
                greenlets.spawn(self._publish_all, producer)
                greenlets.spawn(self._ask_until_all_is_over)
                self._show(started)
                seconds = time.monotonic() - started
                # The nsqds hold nothing, so nothing is in flight here either.
                gevent.joinall([gevent.spawn(reader.stop, 5.0) for reader in readers], raise_error=True)
                producer.close()
            finally:
                greenlets.kill()
        return self._judge(seconds)

    # -- before ---------------------------------------------------------------------------------------

    def _make_channels(self) -> None:
        self._cluster.create_channels(TOPIC, STEADY, SHAKY)
        [address] = [lookupd.http_address for lookupd in self._cluster.lookupds]
        self._channels = [
            Channel(STEADY, self._plan, address, fail_every=0),
            Channel(SHAKY, self._plan, address, fail_every=self._plan.fail_every),
        ]
        self._rates = {name: _Rate() for name in (TOPIC, STEADY, SHAKY)}

    # -- publishing -----------------------------------------------------------------------------------

    def _publish_all(self, producer: Producer) -> None:
        """Greenlet: publish every number once, from many greenlets that share them."""
        numbers = iter(range(self._plan.messages))
        publishers = pool.Group()
        try:
            for _ in range(PUBLISHERS):
                publishers.spawn(self._publish, producer, numbers)
            publishers.join()
        finally:
            publishers.kill()
            self._publishing_is_over.set()

    def _publish(self, producer: Producer, numbers: Iterator[int]) -> None:
        most = BACKLOG_BYTES // (self._plan.body_bytes + _OVERHEAD_BYTES)
        for number in numbers:
            while self._backlog > most:
                gevent.sleep(_ASK_INTERVAL)
            if not self._cluster.running_nsqds:
                return
            try:
                producer.publish(TOPIC, body_of(number, self._plan.body_bytes))
            except NotRunning:
                return
            except PublishError as exc:
                self._failed += 1
                self._failure = exc
            else:
                self._published.count(number)

    # -- the end --------------------------------------------------------------------------------------

    def _ask_until_all_is_over(self) -> None:
        """Greenlet: poll the counts of the nsqds until they are 0, or have not changed for too long."""
        progress: tuple[int, ...] = ()
        moved_at = time.monotonic()
        try:
            while True:
                # In this order: messages published after the nsqds' answers must not be missed.
                is_over = self._publishing_is_over.is_set()
                left = self._ask()
                counted = (channel.tally.once + channel.tally.twice for channel in self._channels)
                if (now_at := (self._published.once, *counted)) != progress:
                    progress, moved_at = now_at, time.monotonic()
                if is_over and left == 0:
                    return
                if time.monotonic() - moved_at > PATIENCE:
                    self._view.say(f"Nothing has changed for {PATIENCE:g} s: the demo gives up.")
                    return
                gevent.sleep(_ASK_INTERVAL)
        finally:
            self._all_is_over.set()

    def _ask(self) -> int | None:
        """How many messages the nsqds still hold; None if one of them does not answer. May switch."""
        waiting = {channel.name: 0 for channel in self._channels}
        backlog = left = 0
        with Daemons() as daemons:
            found = daemons.ask_nsqds(
                [daemon.http_address for daemon in self._cluster.running_nsqds],
                lambda nsqd: read_topics(nsqd.stats(TOPIC, include_clients=False, include_mem=False)),
            )
        if found.failures:
            return None
        for topics in found.answers.values():
            for topic in topics:
                # Other channels do not count: nsq_tail makes one, for example.
                ours = [channel for channel in topic.channels if channel.channel_name in waiting]
                for channel in ours:
                    waiting[channel.channel_name] += channel.depth + channel.deferred_count
                    left += channel.left
                left += topic.depth
                backlog += topic.depth + max((channel.depth for channel in ours), default=0)
        for each in self._channels:
            each.waiting = waiting[each.name]
        self._backlog = backlog
        return left

    def _judge(self, seconds: float) -> Verdict:
        if self._failed:
            self._view.say(f"{plural(self._failed, 'publish', 'es')} not confirmed, the last one: {self._failure}.")
        handled = sum(channel.tally.once for channel in self._channels)
        self._view.say(
            f"{plural(self._published.once, 'message')} published, {handled:,} handled, "
            f"{sum(channel.total('requeued') for channel in self._channels):,} requeued in {seconds:.1f} s."
        )
        return Verdict.of(self._published, {channel.name: channel.tally for channel in self._channels})

    # -- showing --------------------------------------------------------------------------------------

    def _show(self, started: float) -> None:
        with self._view:
            while not self._all_is_over.wait(_SHOW_INTERVAL):
                self._note_ended()
                self._view.update(self._snapshot(time.monotonic() - started))
            self._view.update(self._snapshot(time.monotonic() - started))

    def _note_ended(self) -> None:
        for daemon in self._cluster:
            if daemon not in self._ended and not daemon.is_running:
                self._ended.add(daemon)
                loss = "" if daemon in self._cluster.lookupds else " Its messages are lost."
                self._view.say(f"{daemon.name} is gone: {daemon.how_it_ended}.{loss}")

    def _snapshot(self, seconds: float) -> DemoSnapshot:
        published = self._published.once
        is_over = self._all_is_over.is_set()
        rows = [
            ChannelRow(
                channel.name,
                channel.tally.once,
                self._rates[channel.name].of(channel.tally.once, seconds, is_over=is_over),
                channel.total("in_flight"),
                channel.waiting,
                channel.total("requeued"),
            )
            for channel in self._channels
        ]
        rate = self._rates[TOPIC].of(published, seconds, is_over=is_over)
        return DemoSnapshot(seconds, self._plan.messages, published, rate, rows, is_over)


class _Rate:
    """The rate at which a count grows: over the last seconds; at the end, over the whole time in which it grew."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque([(0.0, 0)])
        #: When it last grew.
        self._grew_at = 0.0

    def of(self, count: int, now: float, *, is_over: bool) -> float:
        """Per second, with ``count`` reached at ``now``."""
        if count > self._seen[-1][1]:
            self._grew_at = now
        if is_over:
            return count / self._grew_at if self._grew_at else 0.0
        while len(self._seen) > 1 and self._seen[1][0] <= now - _RATE_SPAN:
            self._seen.popleft()
        then, before = self._seen[0]
        self._seen.append((now, count))
        return (count - before) / (now - then) if now > then else 0.0


class Recorder(logging.Handler):
    """Keeps the library's last warnings from now on, except those about planned failures.

    They are printed at the end of a run that went wrong; before, they would break the table. After a signal they are
    dropped: the Readers still run while their daemons end.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: deque[str] = deque(maxlen=10)
        log = logging.getLogger("gnsq_like")
        log.addHandler(self)
        log.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        if not (record.exc_info and isinstance(record.exc_info[1], PlannedFailure)):
            line = record.getMessage()
            if line not in self.lines:
                self.lines.append(line)
