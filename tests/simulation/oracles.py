"""What must hold, whatever happens: looked at before each move of the time.

- The window: the sum of max(RDY, in flight) over a Reader's connections, as the nsqds see them, is within its
  max_in_flight: strictly while every segment takes the same time and nothing stood still. RDY has no reply, so
  otherwise it can be exceeded by what is on its way; how far is only counted then. A round trip that has become longer
  shows only in messages that come late, and each of them only a part of it: while connections of before are open, the
  window may be exceeded a few times, and again when what they showed was forgotten.
- Liveness, in a phase without faults: a Reader with room takes what waits, within a second or two, every nsqd gets its
  turn, and all known nsqds are connected again.
- In such a phase, no message comes twice that was handled once, unless its handler took long, failed or did not answer.
- ``Reader.stats()`` adds up.

The others are kept elsewhere: that time passes (``loop.py``), that publishes end in time and stops, too
(``programs.py``), what arrives and what does not (``ledger.py``), and that nothing is left (``run.py``).
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from gnsq_like.policy.charge import KEPT, SETTLE_ROUND_TRIPS
from gnsq_like.policy.places import MOMENT_ROUND_TRIPS
from tests.simulation.cluster import Cluster, Daemon
from tests.simulation.ledger import Ledger
from tests.simulation.network import Descriptor
from tests.simulation.programs import CHANNEL, POLL_INTERVAL, ReaderProgram
from tests.simulation.scenario import Scenario

#: Seconds between two looks at liveness.
_LOOK = 1.0
#: Round trips of a turn of a silent connection, with the time until the next one gets its place.
_TURN_ROUND_TRIPS = MOMENT_ROUND_TRIPS + SETTLE_ROUND_TRIPS
#: Seconds after the last fault from which a Reader must take what waits, beside what its connections may need.
_SETTLED = 12.0
#: Messages that come late until a Reader knows a longer round trip: half of them show more than half of it.
_LESSONS = 3


class Oracles:
    """The oracles of one run.

    :param readers: the Readers
    """

    def __init__(self, cluster: Cluster, scenario: Scenario, ledger: Ledger, readers: list[ReaderProgram]) -> None:
        self._cluster = cluster
        self._scenario = scenario
        self._ledger = ledger
        self._readers = readers
        #: Since when no fault is under way; None during a phase with faults.
        self.quiet_since: float | None = 0.0
        #: How much stands still, is parted or is slow now, and when the last of it ended.
        self.disturbances = 0
        self.disturbed_at = -1000.0
        #: Figures for the report.
        self.tally: Counter[str] = Counter()
        #: Of each nsqd: the turn in which it was looked at, and what each Reader's connection uses there, by its port.
        self._turns: dict[Daemon, int] = {}
        self._used: dict[Daemon, dict[int, int]] = {}
        self._look_at = 0.0
        #: Of each Reader, the connections that were made before the network became slower, and when messages showed it.
        self._unaware: dict[ReaderProgram, set[Descriptor]] = {}
        self._shown_at: dict[ReaderProgram, list[float]] = {}
        #: Readers over their windows.
        self._over: dict[ReaderProgram, bool] = {}
        #: Since when Readers take nothing, and what they had received then.
        self._waiting: dict[ReaderProgram, tuple[float, int]] = {}
        #: Since when Readers are to be connected to an nsqd, for a topic.
        self._wanted: dict[tuple[Daemon, str], float] = {}
        #: Since when it is not, although it should be.
        self._missing: dict[tuple[ReaderProgram, Daemon, str], float] = {}
        self._odd: Counter[ReaderProgram] = Counter()
        ledger.is_undisturbed = self._is_undisturbed

    def check(self) -> None:
        """Called before each move of the time."""
        changed = False
        for daemon in self._cluster.nsqds:
            turn = daemon.process.last_turn
            if self._turns.get(daemon) != turn:
                self._turns[daemon] = turn
                used = used_at(daemon)
                if self._used.get(daemon) != used:
                    self._used[daemon] = used
                    changed = True
        if changed:
            self._check_windows()
        now = self._cluster.now
        if now >= self._look_at:
            self._look_at = now + _LOOK
            for program in self._readers:
                self._check_stats(program)
            self._check_liveness(now)

    def _fail(self, text: str) -> None:
        self._ledger.fail(f"@{self._cluster.now:.3f} {text}")

    # -- the window ------------------------------------------------------------------------------------

    def _check_windows(self) -> None:
        used: dict[int, int] = {}
        for by_port in self._used.values():
            used |= by_port
        for program in self._readers:
            # What goes over a half-open connection is on its way for ever.
            total = sum(
                [
                    used.get(descriptor.port, 0)
                    for descriptor in program.process.descriptors
                    if descriptor.out is not None and not descriptor.out.is_lost
                ]
            )
            window = program.reader.max_in_flight
            if total <= window:
                if program in self._over:
                    del self._over[program]
            elif program not in self._over:
                self._over[program] = True
                self._exceeded(program, total, window)

    def _exceeded(self, program: ReaderProgram, total: int, window: int) -> None:
        now = self._cluster.now
        self.tally["windows exceeded"] += 1
        self.tally["windows exceeded by"] = max(self.tally["windows exceeded by"], total - window)
        if program.is_stopped or now - program.steered_at < 30:
            return
        is_constant = self._scenario.has_constant_latency and not self.disturbances and now - self.disturbed_at > 10
        if is_constant and not self._shows_round_trip(program, now):
            self._fail(f"{program.process.name}: {total} of {window} used; {program.reader.stats()['connections']}")

    def became_slower(self) -> None:
        """From now on, segments take longer."""
        self._unaware = {program: set(program.process.descriptors) for program in self._readers}
        self._shown_at.clear()

    def _shows_round_trip(self, program: ReaderProgram, now: float) -> bool:
        """Whether a Reader may not have known better, because its connections are older than their round trip."""
        if self._unaware.get(program, set()).isdisjoint(program.process.descriptors):
            return False
        shown = [at for at in self._shown_at.get(program, []) if at > now - KEPT]
        self._shown_at[program] = [*shown, now]
        return len(shown) < _LESSONS

    # -- statistics ------------------------------------------------------------------------------------

    def _check_stats(self, program: ReaderProgram) -> None:
        stats = program.reader.stats()
        left = stats["received"] - stats["finished"] - stats["requeued"] - stats["lost"]
        if left == stats["in_flight"]:
            self._odd.pop(program, None)
        else:
            self._odd[program] += 1
            if self._odd[program] == 4:
                self._fail(f"{program.process.name}: stats() do not add up: {_without_connections(stats)}")

    # -- liveness --------------------------------------------------------------------------------------

    def _check_liveness(self, now: float) -> None:
        quiet = self.quiet_since
        self._note_wanted(now)
        for program in self._readers:
            is_settled = (
                quiet is not None
                and not program.is_stopped
                and now - max(quiet, program.steered_at) > self._patience(program)
            )
            if is_settled:
                self._check_connections(program, now)
                self._check_room(program, now)
            else:
                self._waiting.pop(program, None)
                self._missing = {key: since for key, since in self._missing.items() if key[0] is not program}

    def _is_undisturbed(self, since: float) -> bool:
        """Whether no fault was under way, nor a Reader steered or stopped, since then."""
        quiet = self.quiet_since
        return quiet is not None and since > max([quiet, *[program.steered_at for program in self._readers]])

    def _patience(self, program: ReaderProgram) -> float:
        """Seconds until all must be connected again: a dead peer is found, and dialled again."""
        discovery = 3 * POLL_INTERVAL if self._cluster.nsqlookupds else 0.0
        return _SETTLED + 2.5 * program.heartbeat_interval + 3.0 + 2 * program.max_redial_delay + discovery

    def _note_wanted(self, now: float) -> None:
        """A topic may have its first message on an nsqd long after the last fault."""
        for daemon in self._cluster.nsqds:
            for topic in self._scenario.options["topics"]:
                if daemon.is_running and (not self._cluster.nsqlookupds or self._is_listed(daemon, topic)):
                    self._wanted.setdefault((daemon, topic), now)
                else:
                    self._wanted.pop((daemon, topic), None)

    def _check_connections(self, program: ReaderProgram, now: float) -> None:
        connected = program.reader.stats()["connections"]
        # A connection on which nsqd refused an answer is renewed, when its messages have been answered.
        renewal = self._scenario.options["msg_timeout"] + program.max_redial_delay + 2.0
        for (daemon, topic), since in self._wanted.items():
            key = program, daemon, topic
            names = {daemon.tcp_address, f"{daemon.tcp_address}/{topic}"}
            if now - since <= self._patience(program) or not names.isdisjoint(connected):
                self._missing.pop(key, None)
            elif now - self._missing.setdefault(key, now) > renewal:
                self._missing[key] = now + 1e6
                quiet = now - (self.quiet_since or 0)
                self._fail(
                    f"{program.process.name}: not connected to {daemon} for {topic}, {quiet:.1f} s after all faults"
                )

    def _is_listed(self, daemon: Daemon, topic: str) -> bool:
        """Whether an nsqlookupd lists it for this topic."""
        return topic in daemon.daemon.broker.topics and any(
            nsqlookupd.is_running for nsqlookupd in self._cluster.nsqlookupds
        )

    def _check_room(self, program: ReaderProgram, now: float) -> None:
        """Nothing is in flight, although something waits."""
        reader = program.reader
        stats = reader.stats()
        is_idle = (
            not stats["in_flight"] and not stats["paused"] and not stats["backoff_level"] and reader.max_in_flight > 0
        )
        if not is_idle or reader.rate_limit is not None or not self._waits_somewhere():
            self._waiting.pop(program, None)
            return
        since, received = self._waiting.get(program, (now, -1))
        if received != stats["received"]:  # a look a second may miss each message that it has
            since = now
        self._waiting[program] = since, stats["received"]
        connections = max(1, len(stats["connections"]))
        latency, jitter = self._scenario.options["latency"], self._scenario.options["jitter"]
        limit = 2.0 + 20 * latency + 4 * jitter
        if reader.max_in_flight < 2 * connections:
            # A turn of a silent connection takes so many round trips, and another Reader may have been there before.
            turns = max(12.0, _TURN_ROUND_TRIPS * 2 * (latency + jitter) * connections / reader.max_in_flight)
            limit += turns * len(self._readers)
        self.tally["longest wait, ms"] = max(self.tally["longest wait, ms"], int((now - since) * 1000))
        if now - since > limit:
            self._waiting[program] = now + 1000, stats["received"]
            self._fail(f"{program.process.name}: takes nothing for {now - since:.1f} s, {stats['connections']}")

    def _waits_somewhere(self) -> bool:
        for daemon in self._cluster.nsqds:
            if daemon.is_running:
                for topic in daemon.daemon.broker.topics.values():
                    channel = topic.channels.get(CHANNEL)
                    # Without a consumer, _check_connections says when there must be one.
                    if channel is not None and channel.depth and channel.consumers and not channel.paused:
                        return True
        return False


def used_at(daemon: Daemon) -> dict[int, int]:
    """The places of each connection as an nsqd sees them, by its port: RDY, or more messages in flight."""
    if not daemon.is_running:
        return {}
    return {
        int(client.address[client.address.rindex(":") + 1 :]): max(consumer.ready_count, consumer.in_flight_count)
        for client in daemon.daemon.clients
        if (consumer := client.consumer) is not None
    }


def _without_connections(stats: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in stats.items() if name not in ("connections", "topics", "known")}
