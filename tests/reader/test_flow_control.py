"""RDY and backoff on the wire."""

from __future__ import annotations

import contextlib
import logging
import time
from typing import Any

import gevent
import pytest

from gnsq_like import Message
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


def test_the_delay_of_a_failed_message_grows_to_that_of_the_options(nsqd):
    options: dict[str, Any] = {"default_requeue_delay": 10, "max_requeue_delay": 25, "max_backoff_duration": 0}
    with reading([nsqd], fail_by_body, **options):
        peer = serve(nsqd)
        for attempts, delay in ((1, b"10000"), (2, b"20000"), (3, b"25000")):
            peer.messages(ID % 1, attempts=attempts, body=b"fails")
            assert until(peer, b"REQ")[-1] == b"REQ " + ID % 1 + b" " + delay
        gevent.spawn(answer_cls, peer)


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


def test_a_backoff_strategy_that_fails_costs_no_message(nsqd, caplog):
    handled: list[Message] = []

    def handler(message):
        handled.append(message)
        if len(handled) == 1:
            raise RuntimeError("meant")

    with reading([nsqd], handler, backoff_strategy=lambda level: {}[level], backoff_multiplier=0.01):
        peer = serve(nsqd)
        peer.messages(ID % 1)
        assert all(line.startswith(b"RDY") for line in until(peer, b"REQ")[:-1])
        until(peer, b"RDY 1")
        gevent.spawn(answer_cls, peer)
    assert "backoff_strategy" in caplog.text


def until_line(peer: Peer, line: bytes) -> None:
    """Read up to this line."""
    while peer.line() != line:
        pass


def test_a_turn_does_not_end_before_a_message_that_waited_for_a_still_process():
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
