"""RDY and backoff on the wire."""

from __future__ import annotations

import contextlib
import logging
import time
from typing import Any

import gevent
import pytest
from gevent.event import Event

from gnsq_like import Message, Reader
from gnsq_like.policy.adaptive_rdy import AdaptiveRdy
from gnsq_like.runtime.timer import Timer
from gnsq_like.runtime.worker_pool import SLICE
from tests.support.daemons import wait_for
from tests.support.peer import HEARTBEAT, PATIENCE, Peer, scripted_nsqd
from tests.support.reading import ID, Gate, answer_cls, reading, serve, until


def test_a_lost_connection_frees_its_share_and_drops_what_was_not_begun():
    gate = Gate()
    with (
        scripted_nsqd() as one,
        scripted_nsqd() as two,
        reading([one, two], gate, max_in_flight=10, concurrency=1, adaptive_rdy=False, max_redial_delay=60) as reader,
    ):
        first, second = one.accept(), two.accept()
        first.subscribe()
        second.subscribe()
        wait_for(lambda: [each["rdy"] for each in reader.stats()["connections"].values()] == [5, 5])
        first.messages(ID % 1, ID % 2, ID % 3)
        assert gate.entered.wait(PATIENCE)
        first.close()
        # One message is with a handler; the survivor gets the rest of the window at once.
        wait_for(lambda: [each["rdy"] for each in reader.stats()["connections"].values()] == [9])
        assert reader.stats()["waiting"] == 0
        gate.open.set()
        wait_for(lambda: [each["rdy"] for each in reader.stats()["connections"].values()] == [10])
        assert len(gate.bodies) == 1
        gevent.spawn(answer_cls, second)


def test_the_times_of_turns_are_those_of_the_options(nsqd):
    times: dict[str, Any] = {"low_rdy_idle_timeout": 11.0, "low_rdy_timeout": 31.0, "low_rdy_probe_timeout": 1.0}
    with reading([nsqd], **times) as reader:
        peer = serve(nsqd)
        running = reader._running
        assert running is not None
        assert {name: getattr(running.flow.settings, name) for name in times} == times
        gevent.spawn(answer_cls, peer)


def test_one_failure_stops_everything_and_one_success_opens_again(nsqd, caplog):
    """Backoff on the wire: RDY 0 before the REQ, then RDY 1, then all of it."""
    caplog.set_level(logging.INFO, "gnsq_like.reader")
    fail = [True]
    blocks: list[tuple[int, float]] = []

    def handler(message):
        if fail[0]:
            raise RuntimeError("meant")

    reader = reading(
        [nsqd],
        handler,
        max_in_flight=10,
        adaptive_rdy=False,
        backoff_multiplier=0.1,
        on_backoff=lambda level, seconds: blocks.append((level, seconds)),
    )
    with reader:
        peer = nsqd.accept()
        peer.subscribe()
        until(peer, b"RDY 10")
        began = time.monotonic()
        peer.messages(ID % 1)
        assert peer.line() == b"RDY 0"
        assert peer.line() == b"REQ " + ID % 1 + b" 90000"
        assert peer.line() == b"RDY 1"
        assert time.monotonic() - began >= 0.2
        fail[0] = False
        peer.messages(ID % 2)
        seen = [peer.line(), peer.line()]
        assert sorted(seen) == [b"FIN " + ID % 2, b"RDY 10"]
        counts = reader.stats()
        assert [counts[name] for name in ("received", "finished", "requeued", "failed")] == [2, 1, 1, 1]
        gevent.spawn(answer_cls, peer)
    [(level, seconds), end] = blocks
    assert (level, end) == (1, (0, 0.0))
    assert 0 <= seconds <= 0.2
    assert "backoff of t: testing with one message" in [record.getMessage() for record in caplog.records]


def until_line(peer: Peer, line: bytes) -> None:
    """Read up to this line."""
    while peer.line() != line:
        pass


def adaptive_rdy_of(reader: Reader, round_trip: float) -> AdaptiveRdy:
    """That of the only connection, to which a round trip takes so many seconds, however slow this machine is."""
    assert reader._running is not None
    [subscription] = reader._running.flow.subscriptions
    assert isinstance(subscription.level, AdaptiveRdy)
    subscription.connection.round_trip = subscription.level.round_trip = round_trip
    return subscription.level


def test_rdy_follows_what_is_in_flight(nsqd):
    """One more than that while messages are few, so that nsqd waits for no others; with a rate limit the share."""
    gate = Gate()
    with reading([nsqd], gate, max_in_flight=10) as reader:
        peer = serve(nsqd)
        adaptive_rdy_of(reader, 0.0)
        gevent.sleep(0.1)  # the silence that makes them few
        peer.messages(ID % 1)
        until_line(peer, b"RDY 2")
        gate.open.set()
        until(peer, b"FIN")
        until_line(peer, b"RDY 1")
        reader.rate_limit = 10_000.0
        until_line(peer, b"RDY 10")
        reader.rate_limit = None
        until_line(peer, b"RDY 1")
        gevent.spawn(answer_cls, peer)


@pytest.mark.parametrize("max_in_flight", [2, 50])
def test_a_sparse_message_that_is_answered_without_blocking_costs_no_rdy_and_one_write(nsqd, max_in_flight):
    """The first one starts a worker; the eighth would begin a trial of a larger burst."""
    with reading([nsqd], max_in_flight=max_in_flight) as reader:
        peer = serve(nsqd, output_buffer_timeout=60_000)
        adaptive_rdy_of(reader, 0.0)
        for number in range(1, 8):
            gevent.sleep(3 * SLICE)  # the silence that makes them few, and lets the pool's last poll be long ago
            peer.messages(ID % number)
            assert peer.sock.recv(65536) == b"FIN %s\n" % (ID % number)
        gevent.spawn(answer_cls, peer)


def timer_that_is_due_for(reader: Reader, message: Message) -> Timer:
    """Flow control's, when it is due shortly before a deadline of 2 s: a tenth of that, and a round trip."""
    assert reader._running is not None
    flow = reader._running.flow
    [subscription] = flow.subscriptions
    due = message.timeout_at - 0.2 - subscription.charge.round_trip
    # On a slow machine, where round trips are long, it is first due for something else.
    wait_for(lambda: flow._timer.due == pytest.approx(due, rel=0, abs=1e-6))
    return flow._timer


def test_a_message_that_was_answered_is_not_overdue(nsqd, caplog):
    """Its handler returns in the same iteration of the hub in which deadlines are looked at, but before that."""
    messages: list[Message] = []
    go_on = Event()

    def handler(message: Message) -> None:
        messages.append(message)
        go_on.wait()
        gevent.sleep(0.001)

    with reading([nsqd], handler, adaptive_rdy=False) as reader:
        peer = serve(nsqd, msg_timeout=2000)
        peer.messages(ID % 1)
        wait_for(lambda: messages)
        timer_that_is_due_for(reader, messages[0])
        go_on.set()
        gevent.sleep(0)  # the handler sleeps
        time.sleep(2)  # so both timers are due when the hub runs again
        until(peer, b"FIN")
        gevent.spawn(answer_cls, peer)
    assert "not answered within" not in caplog.text


def test_a_topic_that_is_followed_again_keeps_its_backoff(nsqd):
    """Discovery may report it again at any time."""
    with reading([nsqd]) as reader:
        peer = serve(nsqd)
        assert reader._running is not None
        flow = reader._running.flow
        topic_flow = flow.topics["t"]
        flow.topics.follow("t")
        assert flow.topics["t"] is topic_flow is next(iter(flow.subscriptions)).topic_flow
        gevent.spawn(answer_cls, peer)


def fail_by_body(message: Message) -> None:
    if message.body == b"fails":
        raise RuntimeError("meant")
    if message.body == b"is put back":
        message.requeue(0, backoff=False)


@pytest.mark.parametrize(
    ("body", "attempts", "answer"),
    [(b"is put back", 1, b"REQ " + ID % 2 + b" 0"), (b"is given up", 6, b"FIN " + ID % 2)],
)
def test_a_test_message_without_a_result_leaves_the_test_to_the_next_one(nsqd, body, attempts, answer):
    levels: list[int] = []
    options: dict[str, Any] = {"max_in_flight": 10, "adaptive_rdy": False, "backoff_multiplier": 0.01}
    with reading([nsqd], fail_by_body, on_backoff=lambda level, _: levels.append(level), **options):
        peer = nsqd.accept()
        peer.subscribe()
        until(peer, b"RDY 10")
        peer.messages(ID % 1, body=b"fails")
        until(peer, b"RDY 1")
        peer.messages(ID % 2, body=body, attempts=attempts)
        assert peer.line() == answer, "no other RDY before"
        peer.messages(ID % 3)
        until(peer, b"RDY 10")
        gevent.spawn(answer_cls, peer)
    assert levels == [1, 0]


def test_a_test_message_past_its_deadline_leaves_the_test_to_the_next_one(nsqd):
    levels: list[int] = []
    held: list[Message] = []

    def handler(message: Message) -> None:
        if message.body == b"is held":
            message.enable_async()
            held.append(message)
        else:
            fail_by_body(message)

    options: dict[str, Any] = {"max_in_flight": 10, "adaptive_rdy": False, "backoff_multiplier": 0.01}
    with reading([nsqd], handler, on_backoff=lambda level, _: levels.append(level), **options):
        peer = nsqd.accept()
        peer.subscribe(msg_timeout=200)
        until(peer, b"RDY 10")
        peer.messages(ID % 1, body=b"fails")
        until(peer, b"RDY 1")
        peer.messages(ID % 2, body=b"is held")
        wait_for(lambda: held and held[0].is_overdue)
        peer.messages(ID % 3)
        until(peer, b"RDY 9")  # the handler keeps its place
        held[0].finish()
        gevent.spawn(answer_cls, peer)
    assert levels == [1, 0]


def test_a_late_message_of_another_nsqd_is_no_test():
    """It was under way when its nsqd got RDY 0."""
    levels: list[int] = []
    # Seconds enough for a silent test to stay where it is.
    times: dict[str, Any] = {"low_rdy_idle_timeout": 60, "low_rdy_probe_timeout": 60, "backoff_multiplier": 0.01}
    with (
        scripted_nsqd() as one,
        scripted_nsqd() as two,
        reading(
            [one, two],
            fail_by_body,
            max_in_flight=10,
            adaptive_rdy=False,
            on_backoff=lambda level, _: levels.append(level),
            **times,
        ) as reader,
    ):

        def rdys() -> dict[str, int]:
            return {address: each["rdy"] for address, each in reader.stats()["connections"].items()}

        peers = [one.accept(), two.accept()]
        for peer in peers:
            peer.subscribe()
        wait_for(lambda: list(rdys().values()) == [5, 5])
        peers[0].messages(ID % 1, body=b"fails")
        wait_for(lambda: sorted(rdys().values()) == [0, 1])
        tests, other = peers if rdys()[one.address] else reversed(peers)
        other.messages(ID % 2)
        until(other, b"FIN")
        assert levels == [1]
        tests.messages(ID % 3)
        wait_for(lambda: list(rdys().values()) == [5, 5])
        for peer in peers:
            gevent.spawn(answer_cls, peer)
    assert levels == [1, 0]


def test_the_delay_of_a_failed_message_grows_to_that_of_the_options(nsqd):
    options: dict[str, Any] = {"default_requeue_delay": 10, "max_requeue_delay": 25, "max_backoff_duration": 0}
    with reading([nsqd], fail_by_body, **options):
        peer = serve(nsqd)
        for attempts, delay in ((1, b"10000"), (2, b"20000"), (3, b"25000")):
            peer.messages(ID % 1, attempts=attempts, body=b"fails")
            assert until(peer, b"REQ")[-1] == b"REQ " + ID % 1 + b" " + delay
        gevent.spawn(answer_cls, peer)


@pytest.mark.parametrize("ends_first", [False, True], ids=["the next one ends first", "its handler ends first"])
def test_a_test_message_whose_connection_is_lost_leaves_the_test_to_the_next_one(ends_first):
    """At once, and not when its handler ends, whose failure does not count."""
    gate = Gate()
    levels: list[int] = []

    def handler(message: Message) -> None:
        if message.body == b"is held":
            gate(message)
            raise RuntimeError("meant")
        fail_by_body(message)

    # Seconds enough for a silent test to stay where it is.
    times: dict[str, Any] = {"low_rdy_idle_timeout": 60, "low_rdy_probe_timeout": 60, "backoff_multiplier": 0.01}
    with (
        scripted_nsqd() as one,
        scripted_nsqd() as two,
        reading(
            [one, two],
            handler,
            max_in_flight=10,
            adaptive_rdy=False,
            on_backoff=lambda level, _: levels.append(level),
            **times,
        ) as reader,
        contextlib.ExitStack() as stack,
    ):
        stack.callback(gate.open.set)  # a Reader that stops waits for its handlers

        def rdys() -> dict[str, int]:
            return {address: each["rdy"] for address, each in reader.stats()["connections"].items()}

        peers = [one.accept(), two.accept()]
        for peer in peers:
            peer.subscribe()
        wait_for(lambda: list(rdys().values()) == [5, 5])
        peers[0].messages(ID % 1, body=b"fails")
        wait_for(lambda: sorted(rdys().values()) == [0, 1])
        tests, other = peers if rdys()[one.address] else reversed(peers)
        tests.messages(ID % 2, body=b"is held")
        assert gate.entered.wait(PATIENCE)
        until(other, b"RDY 0")
        tests.close()
        until(other, b"RDY 1")
        if ends_first:
            gate.open.set()
            wait_for(lambda: reader.stats()["in_flight"] == 0)
            assert levels == [1]
        other.messages(ID % 3)
        if not ends_first:
            until(other, b"RDY 9")  # the handler keeps its place
            gate.open.set()
        until(other, b"RDY 10")
        gevent.spawn(answer_cls, other)
    assert levels == [1, 0]


def test_every_outcome_is_counted(nsqd):
    """Several of each, of which some are answered together, and after the end of the connection, too."""
    gate = Gate()

    def handler(message: Message) -> None:
        if message.body.startswith(b"held"):
            gate(message)
        if message.body == b"fails":
            raise RuntimeError("meant")
        if message.body.endswith(b"is put back"):
            message.requeue(0, backoff=False)

    options: dict[str, Any] = {"max_in_flight": 10, "max_attempts": 5, "max_backoff_duration": 0, "concurrency": 4}
    with reading([nsqd], handler, max_redial_delay=60, **options) as reader, contextlib.ExitStack() as stack:
        stack.callback(gate.open.set)  # a Reader that stops waits for its handlers
        peer = serve(nsqd)
        for body, attempts in ((b"", 1), (b"is given up", 6), (b"fails", 1), (b"is put back", 1)):
            for _ in range(2):
                answers(peer, ID % 1, ID % 2, body=body, attempts=attempts)
        peer.messages(ID % 1, ID % 2, body=b"held")
        peer.messages(ID % 3, ID % 4, body=b"held, is put back")
        peer.messages(ID % 5, ID % 6)
        wait_for(lambda: (gate.inside, reader.stats()["in_flight"]) == (4, 6))
        before = reader.stats()
        peer.close()
        wait_for(lambda: reader.stats()["in_flight"] == 4)  # no handler has the others
        gate.open.set()
        wait_for(lambda: reader.stats()["in_flight"] == 0)
        after = reader.stats()
    counted = {"received": 22, "finished": 8, "given_up": 4, "expired": 0, "requeued": 8, "failed": 4, "lost": 0}
    assert {name: before[name] for name in counted} == counted
    assert {name: after[name] for name in counted} == {**counted, "lost": 6}


def answers(peer: Peer, *ids: bytes, **message: Any) -> None:
    """Send these messages, and read as many answers."""
    peer.messages(*ids, **message)
    for _ in ids:
        while peer.line().startswith(b"RDY"):
            pass


def test_messages_that_are_too_old_are_counted(nsqd):
    with reading([nsqd], max_age=1) as reader:
        peer = serve(nsqd)
        for _ in range(2):
            answers(peer, ID % 1, ID % 2)  # published long ago
        assert [reader.stats()[name] for name in ("finished", "expired", "given_up")] == [4, 4, 0]
        gevent.spawn(answer_cls, peer)


@pytest.mark.parametrize("strategy", [lambda level: {}[level], lambda level: "soon", lambda level: -1])
def test_a_backoff_strategy_that_fails_costs_no_message(nsqd, strategy, caplog):
    handled: list[Message] = []

    def handler(message):
        handled.append(message)
        if len(handled) == 1:
            raise RuntimeError("meant")

    with reading([nsqd], handler, backoff_strategy=strategy, backoff_multiplier=0.01):
        peer = serve(nsqd)
        peer.messages(ID % 1)
        assert all(line.startswith(b"RDY") for line in until(peer, b"REQ")[:-1])
        until(peer, b"RDY 1")
        gevent.spawn(answer_cls, peer)
    assert "backoff_strategy" in caplog.text


def test_a_cap_below_msg_timeout_does_not_make_the_timer_spin(nsqd):
    gate = Gate()
    with reading([nsqd], gate) as reader:
        peer = serve(nsqd, msg_timeout=3000, max_msg_timeout=1000)
        peer.messages(ID % 1)
        assert gate.entered.wait(PATIENCE)
        rounds = 0

        def count_round() -> None:
            nonlocal rounds
            rounds += 1

        with gevent.get_hub().loop.prepare() as watcher:
            watcher.start(count_round)
            gevent.sleep(1.3)  # past the cap: a handler may take that long
        assert rounds < 200  # a timer that is always due makes ten thousands
        gate.open.set()
        wait_for(lambda: reader.stats()["finished"] == 1)
        gevent.spawn(answer_cls, peer)


def test_a_message_with_a_short_deadline_is_overdue_shortly_before_it(nsqd):
    """Not a quarter of a second before, as one with a long deadline: that would be as soon as it arrives."""
    messages: list[Message] = []

    def hold(message: Message) -> None:
        message.enable_async()
        messages.append(message)

    with reading([nsqd], hold, max_backoff_duration=0, adaptive_rdy=False) as reader:
        peer = serve(nsqd, msg_timeout=2000)
        assert reader._running is not None
        [subscription] = reader._running.flow.subscriptions
        subscription.charge.round_trip = 0.3  # of which nsqd's clock is ahead by half, and RDY takes the other half
        peer.messages(ID % 1)
        wait_for(lambda: messages)
        timer = timer_that_is_due_for(reader, messages[0])
        due = timer.due
        wait_for(lambda: messages[0].is_overdue)
        assert due is not None
        assert time.monotonic() >= due
        messages[0].finish()
        gevent.spawn(answer_cls, peer)


def test_a_touched_message_does_not_hide_the_deadline_of_the_next(nsqd):
    """Two handlers outlive msg_timeout, the first of them touches: the second keeps its place all the same."""
    messages: list[Message] = []
    release = Event()

    def handler(message: Message) -> None:
        messages.append(message)
        release.wait()

    options: dict[str, Any] = {"max_in_flight": 2, "max_backoff_duration": 0, "adaptive_rdy": False}
    with reading([nsqd], handler, **options) as reader, contextlib.ExitStack() as stack:
        stack.callback(release.set)  # a Reader that stops waits for its handlers
        peer = serve(nsqd, msg_timeout=1000)
        peer.messages(ID % 1, ID % 2)
        wait_for(lambda: len(messages) == 2)
        touches, outlives = messages

        def is_overdue() -> bool:
            touches.touch()
            return outlives.is_overdue

        wait_for(is_overdue)
        # Where this process stands still for long, the one that is touched may be overdue as well.
        wait_for(
            lambda: (
                reader.stats()["connections"][nsqd.address]["share"]
                == 2 - sum(message.is_overdue for message in messages)
            )
        )
        release.set()
        wait_for(lambda: reader.stats()["finished"] == 2)
        gevent.spawn(answer_cls, peer)


def test_rdy_is_lowered_before_the_answer_of_a_slow_message():
    """The RDY sent counts it, so nsqd would send another message in its place, beside the one that the share allows."""
    gates = {number: Event() for number in range(1, 6)}
    entered: list[int] = []

    def handler(message: Message) -> None:
        number = int(message.id[-1])
        entered.append(number)
        gates[number].wait()

    with scripted_nsqd() as one, scripted_nsqd() as two, contextlib.ExitStack() as stack:
        reader = stack.enter_context(reading([one, two], handler, max_in_flight=4, adaptive_rdy=False))
        for gate in gates.values():
            stack.callback(gate.set)  # a Reader that stops waits for its handlers
        peers = serve(one), serve(two)
        wait_for(lambda: [each["rdy"] for each in reader.stats()["connections"].values()] == [2, 2])
        for peer, numbers in zip(peers, ((1, 2), (3, 4)), strict=True):
            peer.messages(*[ID % number for number in numbers])
        for peer in peers:
            until(peer, b"RDY 0")  # two seconds later
        gates[1].set()
        until(peers[0], b"FIN " + ID % 1)
        wait_for(lambda: any(each["share"] for each in reader.stats()["connections"].values()))
        holder = 0 if reader.stats()["connections"][one.address]["share"] else 1
        until_line(peers[holder], [b"RDY 2", b"RDY 3"][holder])  # a place, and the slow ones there
        peers[holder].messages(ID % 5)
        wait_for(lambda: 5 in entered)
        gates[[2, 3][holder]].set()
        assert peers[holder].line() == [b"RDY 1", b"RDY 2"][holder]
        assert peers[holder].line() == b"FIN " + ID % [2, 3][holder]
        for peer in peers:
            gevent.spawn(answer_cls, peer)


def test_silent_nsqds_get_no_commands_while_the_busy_one_does_not_use_all_its_places():
    """With 3 of 20 places they would take turns, one every 30 ms; half of the places suffice for one each."""

    def commands(peer: Peer) -> list[bytes]:
        peer.send(HEARTBEAT)
        return until(peer, b"NOP")[:-1]

    with contextlib.ExitStack() as stack:
        nsqds = [stack.enter_context(scripted_nsqd()) for _ in range(5)]
        reader = stack.enter_context(reading(nsqds, max_in_flight=20, adaptive_rdy=False))
        busy, *silent = [serve(nsqd) for nsqd in nsqds]
        busy.messages(ID % 1)
        wait_for(lambda: sorted(each["rdy"] for each in reader.stats()["connections"].values()) == [1, 1, 1, 1, 16])
        for peer in silent:
            commands(peer)
        for number in range(2, 10):
            busy.messages(ID % number)
            until(busy, b"FIN " + ID % number)
            gevent.sleep(0.05)  # the time in which a silent one would have had a turn
        assert [commands(peer) for peer in silent] == [[]] * 4
        for peer in (busy, *silent):
            gevent.spawn(answer_cls, peer)


@pytest.mark.parametrize(("free", "rounds"), [(0.01, 20), (0.001, 40)], ids=["many are late", "all are late"])
def test_late_turns_go_on_without_plans(free, rounds):
    """As on a busy machine."""
    with (
        scripted_nsqd() as one,
        scripted_nsqd() as two,
        reading([one, two], max_in_flight=1, adaptive_rdy=False, low_rdy_idle_timeout=0.2) as reader,
    ):
        peers = serve(one), serve(two)
        for peer in peers:
            until(peer, b"RDY 1")
        assert reader._running is not None
        flow = reader._running.flow
        planned = flow._made.turns
        for _ in range(rounds):
            time.sleep(0.03)  # the hub, too
            gevent.sleep(free)
        assert flow._made.turns is planned
        for peer in peers:
            peer.send(HEARTBEAT)
            assert until(peer, b"NOP").count(b"RDY 1") >= 2
            gevent.spawn(answer_cls, peer)


def test_a_turn_does_not_end_before_the_message_that_waited_while_the_process_stood_still():
    """Its end was due meanwhile."""
    with (
        scripted_nsqd() as one,
        scripted_nsqd() as two,
        scripted_nsqd() as three,
        reading([one, two, three], max_in_flight=2, adaptive_rdy=False, low_rdy_idle_timeout=4),
    ):
        first, *others = serve(one), serve(two), serve(three)
        for peer in (first, *others):
            until_line(peer, b"RDY 0")  # the end of the first turn, which is short
        holds = False
        while not holds:
            until_line(first, b"RDY 1")
            first.send(HEARTBEAT)
            holds = until(first, b"NOP") == [b"NOP"]
        time.sleep(3.0)  # the whole process stands still, the hub too
        first.messages(ID % 1)
        assert first.line() == b"FIN " + ID % 1, "no RDY 0 before"
        for peer in (first, *others):
            gevent.spawn(answer_cls, peer)


def test_a_connection_whose_message_waited_while_the_process_stood_still_is_not_silent():
    """A timer that was due meanwhile must not judge before the sockets are read."""
    gate = Gate()

    def handler(message: Message) -> None:
        if message.body == b"held":
            gate(message)

    with (
        scripted_nsqd() as one,
        scripted_nsqd() as two,
        reading([one, two], handler, max_in_flight=10, adaptive_rdy=False, low_rdy_idle_timeout=2),
    ):
        first, second = one.accept(), two.accept()
        first.subscribe()
        second.subscribe()
        second.messages(ID % 2)
        until(second, b"RDY 9")
        first.messages(ID % 1, body=b"held")
        until(second, b"RDY 5")
        time.sleep(3.0)  # the whole process stands still, the hub too
        second.messages(ID % 3)
        assert second.line() == b"FIN " + ID % 3, "no RDY that takes its share before"
        gate.open.set()
        gevent.spawn(answer_cls, first)
        gevent.spawn(answer_cls, second)
