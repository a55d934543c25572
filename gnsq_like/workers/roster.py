"""The supervisor's decisions: which processes should exist, and when each is started, drained, or killed.

It does no I/O except logging. It gets events and the time, and returns actions
(``members.take_actions``), which ``master.py`` carries out. There is a slot for each wanted process. A slot has a
current member, and during a reload a successor, which loads the new code while the current one still works. So code
that cannot be loaded replaces nothing, and the two are never active together: a successor starts its Readers when the
current member has ended, and ``max_in_flight`` holds.

::

    LOADING --loaded--> LOADED ---Run---> RUNNING --Stop--> DRAINING --> (ended)
       |                  |                  |                 |
       +------------------+------- Kill -----+-----------------+-------> (ended)

Rules for editors: ``state`` is assigned by :class:`Members` only. Numbers of members are reused when they have
ended: the metrics' files of a number hold the counts of all members that had it.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from gnsq_like.workers.plan import Plan

logger = logging.getLogger(__name__)

#: Seconds beyond the time for handlers, for requeues and closing, before a process is killed.
GRACE = 5.0
#: Seconds for a process to load its code.
LOAD_TIMEOUT = 300.0
#: Seconds that a process must have lived before its death counts as a first one.
_STABLE = 30.0
#: Seconds before the second restart in a row; doubled for each further one.
_FIRST_DELAY, _MAX_DELAY = 1.0, 30.0
#: Seconds between two calls of ``tick`` from which this process itself must have stood still (SIGSTOP, a suspended
#: machine), and silence means nothing.
STOOD_STILL = 3.0


def share(total: int, processes: int, position: int) -> int:
    """The part of a Reader's ``max_in_flight`` for the process at this position, which is taken modulo ``processes``.

    At least 1, because a process with 0 would receive nothing; so a value below ``processes`` is raised to it. 0 stays
    0.
    """
    least, more = divmod(total, processes)
    return max(1, least + (position % processes < more)) if total else 0


def restart_delay(failures: int) -> float:
    """Seconds until the restart after so many deaths in a row, 1 or more: none, 1, 2, 4, ... 30."""
    return min(_MAX_DELAY, _FIRST_DELAY * 2.0 ** min(failures - 2, 10)) if failures > 1 else 0.0


class State(StrEnum):
    """Of a member."""

    LOADING = "loading"
    LOADED = "loaded"
    RUNNING = "running"
    DRAINING = "draining"


class Cause(StrEnum):
    """Why a member ends or ended; the label of the restarts' metric."""

    DIED = "died"
    #: No heartbeat.
    BLOCKED = "blocked"
    #: A handler ran longer than handler_timeout, and ignored its exception.
    OVERDUE = "overdue"
    MEMORY = "memory"
    MESSAGES = "messages"
    RELOAD = "reload"
    #: Somebody sent the process SIGTERM.
    ASKED = "asked"
    STOP = "stop"


#: Planned ends, after which the slot is filled again at once.
PLANNED = {Cause.MEMORY, Cause.MESSAGES, Cause.RELOAD, Cause.ASKED}


@dataclass(frozen=True)
class Spawn:
    """Start a process, which loads."""

    number: int


@dataclass(frozen=True)
class Run:
    """Let a loaded process run its Readers, with the share of this slot."""

    number: int
    slot: int


@dataclass(frozen=True)
class Stop:
    """Let a process drain."""

    number: int
    timeout: float
    cause: Cause


@dataclass(frozen=True)
class Kill:
    """End a process at once."""

    number: int
    #: Whether its stacks are logged.
    dump: bool
    cause: Cause


Action = Spawn | Run | Stop | Kill


@dataclass
class Member:
    """A process."""

    number: int
    #: The slot's position.
    slot: int
    #: Reloads before it began to load.
    generation: int
    #: Times of its beginning and of its last sign of life.
    began: float
    seen: float
    state: State = State.LOADING
    #: When it is killed, once it drains.
    deadline: float = math.inf
    cause: Cause = Cause.DIED
    is_killed: bool = False
    #: The content of its last heartbeat.
    beat: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Slot:
    """A place for one process."""

    current: Member | None = None
    successor: Member | None = None
    #: Deaths in a row, and when the slot may be filled again.
    failures: int = 0
    retry_at: float = 0.0
    restarts: int = 0
    #: How the last one ended.
    last_end: str = ""
    has_run: bool = False

    def problem(self, now: float) -> str | None:
        """Why the slot is not working; None if it is, or while a planned replacement is under way."""
        member = self.current
        if member is not None and member.state is State.RUNNING:
            return None if member.beat.get("healthy", True) else "its readers are unhealthy"
        if self.failures > 1:
            when = "" if member else f" in {max(0.0, self.retry_at - now):.0f} s"
            return f"{self.last_end}; {'restarting' if member else 'restarts'}{when}"
        return None if self.has_run else "not started yet"


class Members:
    """All members, and the actions decided about them."""

    def __init__(self) -> None:
        self.by_number: dict[int, Member] = {}
        self._actions: list[Action] = []

    def take_actions(self) -> list[Action]:
        """The actions decided since the last call, in their order."""
        actions, self._actions = self._actions, []
        return actions

    def spawn(self, position: int, generation: int, now: float) -> Member:
        """A new member for a slot."""
        number = next(number for number in range(1, len(self.by_number) + 2) if number not in self.by_number)
        member = self.by_number[number] = Member(number, position, generation, now, now)
        self._actions.append(Spawn(number))
        return member

    def loaded(self, member: Member) -> None:
        """The member has loaded its Readers."""
        if member.state is State.LOADING:
            member.state = State.LOADED

    def run(self, member: Member, position: int) -> None:
        """Let the member run its Readers, with the share of this slot."""
        member.state = State.RUNNING
        self._actions.append(Run(member.number, position))

    def drain(self, member: Member, cause: Cause, timeout: float, now: float) -> None:
        """Let the member drain; one that has not loaded has no messages."""
        if member.state is State.LOADING:
            self.kill(member, cause)
            return
        member.deadline = min(member.deadline, now + timeout + GRACE)
        member.cause = cause
        member.state = State.DRAINING
        self._actions.append(Stop(member.number, timeout, cause))

    def kill(self, member: Member, cause: Cause, *, dump: bool = False) -> None:
        """End it at once."""
        if not member.is_killed:
            member.is_killed = True
            member.cause = cause
            self._actions.append(Kill(member.number, dump, cause))

    def pop(self, number: int) -> Member:
        """Remove one that has ended."""
        # Its number may be given to another member before they are carried out.
        self._actions = [each for each in self._actions if each.number != number]
        return self.by_number.pop(number)


class Roster:
    """All members of a supervisor. Next: :meth:`tick`, several times a second.

    :param plan: code that cannot be loaded is an error at the beginning; later it is tried again
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.slots = [Slot() for _ in range(plan.processes)]
        self.members = Members()
        #: Members that were replaced, by cause.
        self.restarts: Counter[Cause] = Counter()
        self.is_stopping = False
        #: The reason, if the code could not be loaded at the start.
        self.failure = ""
        #: Whether a process was killed, or left messages unanswered, after the stop had begun.
        self.cut_short = False
        self._has_loaded = False
        #: The reload that members should have seen, and the number of the last one.
        self._wanted_generation = 0
        self._generations = 0
        self._ticked_at = math.nan

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to supervise."""
        return self.is_stopping and not self.members.by_number

    @property
    def is_up(self) -> bool:
        """Whether each slot has a running member of the wanted code."""
        return all(
            slot.current is not None
            and slot.current.state is State.RUNNING
            and slot.current.generation >= self._wanted_generation
            for slot in self.slots
        )

    # -- what happened ------------------------------------------------------------------------------

    def loaded(self, number: int, now: float) -> None:
        """A process has loaded its Readers."""
        member = self.members.by_number[number]
        self._has_loaded = True
        member.seen = now
        self.members.loaded(member)

    def beaten(self, number: int, beat: Mapping[str, Any], now: float) -> None:
        """A heartbeat has come."""
        member = self.members.by_number[number]
        member.seen = now
        member.beat = beat

    def leaving(self, number: int, now: float) -> None:
        """A process has got SIGTERM, and drains."""
        member = self.members.by_number[number]
        if member.state is State.RUNNING:
            self.members.drain(member, Cause.ASKED, self._plan.stop_timeout, now)

    def ended(self, number: int, how: str, now: float, *, is_clean: bool = False) -> None:
        """A process has ended.

        :param how: a clause such as "it was killed by SIGKILL"
        :param is_clean: whether it ended by itself, and had answered all its messages
        """
        member = self.members.pop(number)
        if self.is_stopping:
            # A member that had not started held no messages.
            had_run = member.state in (State.RUNNING, State.DRAINING)
            self.cut_short |= had_run and not is_clean
            return
        slot = self.slots[member.slot]
        if slot.successor is member:
            slot.successor = None
            if not member.is_killed:
                self._abandon_reload(f"reload abandoned, the processes go on with the old code: {how}")
            return
        slot.current = None
        self._refill(slot, member, how, now)

    def _refill(self, slot: Slot, member: Member, how: str, now: float) -> None:
        slot.last_end = how
        slot.restarts += 1
        self.restarts[member.cause] += 1
        if not self._has_loaded:
            self.failure = self.failure or how
            self._begin_to_stop(0.0, now)
            return
        if member.cause in PLANNED:
            slot.failures = 0
            slot.retry_at = now
            return
        slot.failures = 1 if now - member.began >= _STABLE else slot.failures + 1
        delay = restart_delay(slot.failures)
        slot.retry_at = now + delay
        when = f"in {delay:g} s" if delay else "now"
        logger.warning("worker %d: %s; another one starts %s", member.number, how, when)

    # -- what is wanted -----------------------------------------------------------------------------

    def reload(self) -> None:
        """Replace all processes by new ones, which load the code anew."""
        if self.is_stopping:
            return
        self._generations += 1
        self._wanted_generation = self._generations
        for slot in self.slots:
            slot.retry_at = 0.0

    def _abandon_reload(self, why: str) -> None:
        currents = [slot.current for slot in self.slots if slot.current is not None]
        if self._wanted_generation <= (oldest := min((each.generation for each in currents), default=0)):
            return
        self._wanted_generation = oldest
        logger.warning("%s", why)
        for slot in self.slots:
            if slot.successor is not None and slot.current is not None:
                self.members.kill(slot.successor, Cause.RELOAD)

    def stop(self, now: float) -> None:
        """Drain and end all; called again, end all without waiting for handlers."""
        self._begin_to_stop(0.0 if self.is_stopping else self._plan.stop_timeout, now)

    def _begin_to_stop(self, timeout: float, now: float) -> None:
        self.is_stopping = True
        for member in self.members.by_number.values():
            self.members.drain(member, Cause.STOP, timeout, now)

    # -- deciding -----------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Decide what is due."""
        gap = now - self._ticked_at
        self._ticked_at = now
        if gap > STOOD_STILL:
            for member in self.members.by_number.values():
                member.seen += gap
                member.began += gap
        for member in list(self.members.by_number.values()):
            if now >= member.deadline:
                self.members.kill(member, member.cause)
            elif member.state is State.LOADING and now - member.began > LOAD_TIMEOUT:
                logger.warning("worker %d has not loaded within %g s", member.number, LOAD_TIMEOUT)
                self.members.kill(member, Cause.BLOCKED, dump=True)
            elif member.state in (State.RUNNING, State.DRAINING):
                self._check_heartbeat(member, now)
        if not self.is_stopping:
            for position, slot in enumerate(self.slots):
                self._tend(position, slot, now)

    def _check_heartbeat(self, member: Member, now: float) -> None:
        silent = now - member.seen
        if silent > self._plan.silence and not member.is_killed:
            text = "worker %d has sent no heartbeat for %.1f s: its hub is blocked, it is replaced"
            logger.warning(text, member.number, silent)
            self.members.kill(member, Cause.BLOCKED, dump=True)

    def _tend(self, position: int, slot: Slot, now: float) -> None:
        if slot.current is None:
            slot.current, slot.successor = slot.successor, None
        current = slot.current
        if current is None:
            if now >= slot.retry_at:
                slot.current = self.members.spawn(position, self._wanted_generation, now)
        elif current.state is State.LOADED:
            current.seen = now
            slot.has_run = True
            self.members.run(current, position)
        elif current.state is State.RUNNING:
            cause = self._reason_to_recycle(current)
            if cause is not None:
                self.members.drain(current, cause, self._plan.stop_timeout, now)
            elif current.generation < self._wanted_generation:
                self._succeed(position, slot, current, now)

    def _reason_to_recycle(self, member: Member) -> Cause | None:
        plan, beat = self._plan, member.beat
        if plan.handler_timeout and beat.get("oldest", 0.0) > plan.handler_timeout + GRACE:
            return Cause.OVERDUE
        # One at a time: under even load, all would be due together.
        recycling = sum(each.cause in (Cause.MEMORY, Cause.MESSAGES) for each in self.members.by_number.values())
        loading = sum(slot.current is None or slot.current.state is not State.RUNNING for slot in self.slots)
        if recycling or loading > len(self.slots) // 2:
            return None
        if plan.max_memory_bytes and beat.get("memory_bytes", 0) > plan.max_memory_bytes:
            return Cause.MEMORY
        if plan.max_messages and beat.get("messages", 0) >= plan.max_messages:
            return Cause.MESSAGES
        return None

    def _succeed(self, position: int, slot: Slot, current: Member, now: float) -> None:
        successor = slot.successor
        if successor is None:
            slot.successor = self.members.spawn(position, self._wanted_generation, now)
        elif successor.generation < self._wanted_generation:
            self.members.kill(successor, Cause.RELOAD)
        elif successor.state is State.LOADED:
            self.members.drain(current, Cause.RELOAD, self._plan.stop_timeout, now)
