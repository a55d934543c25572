"""One connection of a Reader: late answers, deadlines, and an nsqd that counts RDY down."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gevent
import pytest
from gevent.event import Event

from gnsq_like import Batch, Message
from gnsq_like.errors import NsqdError, NSQError
from gnsq_like.wire.frames import encode_messages
from tests.simulation import Cluster, simulated
from tests.support.daemons import wait_for
from tests.support.hub import in_plain_thread, settle
from tests.support.peer import OK, ScriptedNsqd, scripted_nsqd
from tests.support.reading import ID, Gate, answer_cls, reading, serve, until


def test_a_failed_fin_reaches_on_error_and_ends_nothing(nsqd):
    errors: list[tuple[str, str]] = []

    def on_error(address: str, error: NsqdError) -> None:
        errors.append((address, error.code))

    with reading([nsqd], on_error=on_error):
        peer = serve(nsqd)
        peer.error("E_FIN_FAILED FIN 0123456789abcde1 failed client does not own message")
        wait_for(lambda: errors)
        peer.messages(ID % 1)
        assert all(line.startswith(b"RDY") for line in until(peer, b"FIN " + ID % 1)[:-1])
        gevent.spawn(answer_cls, peer)
    assert errors == [(nsqd.address, "E_FIN_FAILED")]


def test_a_message_that_comes_with_subs_reply_is_handled(nsqd: ScriptedNsqd) -> None:
    """No RDY has asked for it."""
    with reading([nsqd]):
        peer = nsqd.accept()
        peer.identify(version="1.3.0", max_rdy_count=2500, output_buffer_timeout=25)
        peer.line()
        peer.send(OK + encode_messages([(1_000_000_000, 1, ID % 1, b"body")]))
        until(peer, b"FIN " + ID % 1)
        gevent.spawn(answer_cls, peer)


@pytest.mark.parametrize("answers_cls", [True, False])
def test_a_connection_whose_places_nsqd_may_have_lost_is_renewed(nsqd: ScriptedNsqd, answers_cls: bool) -> None:
    """A message that came twice at once uses up a place for ever at nsqd; what is in flight is answered before."""
    gate = Gate()
    with reading([nsqd], gate, max_in_flight=3, max_redial_delay=0.05) as reader:
        peer = serve(nsqd)
        peer.messages(ID % 1, ID % 2)
        gate.entered.wait()
        peer.error("E_FIN_FAILED FIN 0123456789abcde3 failed ID not in flight")
        peer.error("E_FIN_FAILED FIN 0123456789abcde4 failed ID not in flight")
        until(peer, b"RDY 0")
        gate.open.set()
        until(peer, b"FIN " + ID % 1)
        until(peer, b"FIN " + ID % 2)
        if answers_cls:
            answer_cls(peer)
        else:
            until(peer, b"CLS")
            peer.close()
        again = serve(nsqd)
        again.messages(ID % 5)
        until(again, b"FIN " + ID % 5)
        assert reader.stats()["reconnects"] == 1
        gevent.spawn(answer_cls, again)


@simulated()
def test_answers_that_are_refused_together_renew_the_connection_once(cluster: Cluster) -> None:
    """As after a channel was emptied, while another handler runs; and nothing waits for a renewal that has been."""
    cluster.world.network.latency = 0.1
    refused: list[NSQError] = []

    def handle(message: Message) -> None:
        gevent.sleep(float(message.body))

    options = {"max_in_flight": 4, "adaptive_rdy": False, "on_error": lambda _, error: refused.append(error)}
    reader = cluster.reader("t", "c", handle, **options)
    gevent.sleep(2)
    cluster.publish("t", b"1", b"1", b"1", b"3")
    gevent.sleep(0.5)
    cluster.nsqds[0].process.run(cluster.nsqds[0].daemon.broker.topics["t"].channels["c"].empty)
    cluster.wait(lambda: reader.stats()["finished"] == 3)
    cluster.world.main.stand_still(1.0)  # so that all refusals come in one read
    gevent.sleep(10)
    assert len(refused) == 4
    assert reader.stats()["reconnects"] == 1


@simulated(msg_timeout=1.0)
def test_an_answer_on_its_way_when_the_time_was_over_costs_no_connection(cluster: Cluster) -> None:
    """nsqd delivers the message again, takes the first answer for the second one's, and refuses that."""
    cluster.world.network.latency = 0.2
    refused: list[str] = []
    attempts: list[int] = []

    def handle(message: Message) -> None:
        attempts.append(message.attempts)
        gevent.sleep(0.99)

    reader = cluster.reader("t", "c", handle, max_in_flight=2, on_error=lambda _, error: refused.append(str(error)))
    cluster.publish("t", b"x")
    gevent.sleep(15)
    assert attempts == [1, 2]
    assert ["ID not in flight" in each for each in refused] == [True]
    assert reader.stats()["reconnects"] == 0


def test_the_round_trip_is_the_shorter_of_two(nsqd: ScriptedNsqd) -> None:
    """While a Reader dials many nsqds at once, the reply to IDENTIFY is read late."""
    with reading([nsqd]) as reader:
        peer = nsqd.accept()
        gevent.sleep(0.3)  # the late reply, which SUB's must be earlier than
        peer.identify(version="1.3.0", max_rdy_count=2500)
        peer.line()
        peer.send(OK)
        running = reader._running
        assert running is not None
        wait_for(lambda: reader.stats()["connections"])
        [subscription] = running.flow.subscriptions
        assert subscription.line.round_trip.seconds == subscription.connection.round_trip
        gevent.spawn(answer_cls, peer)


def test_rdy_is_the_share_where_nsqds_ticker_fires_within_some_round_trips(nsqd: ScriptedNsqd) -> None:
    with reading([nsqd], max_in_flight=8):
        peer = nsqd.accept()
        peer.subscribe(output_buffer_timeout=0)
        until(peer, b"RDY 8")
        gevent.spawn(answer_cls, peer)


def test_an_nsqd_that_counts_rdy_down_is_renewed():
    """An old nsqd: every delivery uses up one RDY; without renewal the messages would stop."""
    handled: list[bytes] = []
    with scripted_nsqd() as nsqd, reading([nsqd], lambda message: handled.append(message.body), max_in_flight=8):
        peer = nsqd.accept()
        peer.identify()  # a plain OK
        peer.line()
        peer.send(OK)
        credit = 0
        sent = 0
        unanswered = 0
        while len(handled) < 100:
            while credit and sent < 100:
                credit -= 1
                sent += 1
                unanswered += 1
                peer.messages(b"%016d" % sent)
            line = peer.line()
            if line.startswith(b"RDY "):
                credit = int(line[4:])
                assert credit + unanswered <= 8
            elif line.startswith(b"FIN "):
                unanswered -= 1
        gevent.spawn(answer_cls, peer)
    assert len(handled) == 100


def test_an_nsqd_that_counts_rdy_down_is_renewed_beside_hung_handlers():
    """Two of four places hang past their deadlines; through the two others goes the rest."""
    gate = Event()
    handled: list[bytes] = []

    def handler(message):
        if message.body == b"hang":
            gate.wait()
        handled.append(message.body)

    with scripted_nsqd() as nsqd, reading([nsqd], handler, max_in_flight=4) as reader:
        peer = nsqd.accept()
        peer.subscribe(version="0.2.31", msg_timeout=1000)
        assert peer.line() == b"RDY 4"
        peer.messages(ID % 1, ID % 2, body=b"hang")
        wait_for(lambda: reader.stats()["connections"][nsqd.address]["share"] == 2)
        credit, sent = 2, 0  # of RDY 4, two are used
        while len(handled) < 20:
            while credit and sent < 20:
                credit -= 1
                sent += 1
                peer.messages(b"%016d" % sent)
            line = peer.line()
            if line.startswith(b"RDY "):
                credit = int(line[4:])
        assert handled == [b"body"] * 20
        gate.set()
        gevent.spawn(answer_cls, peer)


def test_an_nsqd_that_counts_down_gets_no_credit_that_others_hold():
    """A share lowered under what it may still send has to be said, or it sends that much too much."""
    gate = Gate()
    with scripted_nsqd() as old, reading([old], gate, max_in_flight=10) as reader:
        peer = old.accept()
        peer.identify()
        peer.line()
        peer.send(OK)
        assert peer.line() == b"RDY 10"
        peer.messages(ID % 0, ID % 1, ID % 2, ID % 3)
        wait_for(lambda: gate.inside == 4)
        # It may still send six; with four in flight and a window of four, that is six too many.
        reader.max_in_flight = 4
        assert peer.line() == b"RDY 0"
        gate.open.set()
        gevent.spawn(answer_cls, peer)


@pytest.mark.parametrize("form", ["handler", "batch", "given up", "pulled"])
def test_messages_that_no_handler_has_lose_their_places_with_their_connection(nsqd: ScriptedNsqd, form: str) -> None:
    """Otherwise they would keep them for ever: nobody needs to answer them, because nsqd delivers them again."""
    held: list[Message] = []

    def hold(message: Message) -> None:
        held.append(message)
        message.enable_async()

    def hold_all(messages: list[Message]) -> None:
        for message in messages:
            hold(message)

    def pull() -> None:
        for message in reader:
            held.append(message)
            if len(held) == 3:
                gate.wait()

    gate = Event()
    options: dict[str, Any] = {"max_in_flight": 3, "adaptive_rdy": False, "max_redial_delay": 0.05}
    handler: Any = hold
    if form == "batch":
        handler = Batch(hold_all, size=3)
    elif form == "given up":
        options |= {"max_attempts": 1, "on_giving_up": hold}
    elif form == "pulled":
        handler = None
    reader = reading([nsqd], handler, **options)
    if form == "pulled":
        gevent.spawn(pull)
    else:
        reader.start()
    peer = serve(nsqd)
    peer.messages(ID % 1, ID % 2, ID % 3, attempts=2)
    wait_for(lambda: len(held) == 3 and reader.stats()["busy"] == 0)
    peer.reset()
    peer = nsqd.accept()
    peer.subscribe()
    # The last message is in the body of the loop.
    until(peer, b"RDY 2" if form == "pulled" else b"RDY 3")
    for message in held:
        message.finish()
    if form == "pulled":
        gate.set()
        until(peer, b"RDY 3")
    stats = reader.stats()
    assert [stats[name] for name in ("received", "finished", "lost", "in_flight")] == [3, 0, 3, 0]
    gevent.spawn(answer_cls, peer)
    reader.stop()


def test_a_handler_that_returns_after_its_connection_leaves_nothing_behind(nsqd: ScriptedNsqd) -> None:
    """The message of a running handler keeps its place, and enable_async does not keep it longer."""
    gate = Gate()

    def handler(message: Message) -> None:
        message.enable_async()
        gate(message)

    with reading([nsqd], handler, max_in_flight=3, adaptive_rdy=False, max_redial_delay=0.05) as reader:
        peer = serve(nsqd)
        peer.messages(ID % 1)
        wait_for(lambda: gate.inside == 1)
        peer.reset()
        peer = nsqd.accept()
        peer.subscribe()
        until(peer, b"RDY 2")
        gate.open.set()
        until(peer, b"RDY 3")
        assert (reader.stats()["lost"], reader.stats()["in_flight"]) == (1, 0)
        gevent.spawn(answer_cls, peer)


def test_a_loop_that_ends_in_another_thread_leaves_nothing_behind(nsqd: ScriptedNsqd) -> None:
    """As when its generator is collected there, after its message's connection was lost."""
    with reading([nsqd], None, max_in_flight=3, adaptive_rdy=False, max_redial_delay=0.05) as reader:
        messages: Any = iter(reader)
        taking = gevent.spawn(next, messages)
        peer = serve(nsqd)
        peer.messages(ID % 1)
        message = taking.get()
        peer.reset()
        peer = nsqd.accept()
        peer.subscribe()
        until(peer, b"RDY 2")
        in_plain_thread(messages.close)
        until(peer, b"RDY 3")
        assert message.answer == "LOST"
        gevent.spawn(answer_cls, peer)


@pytest.mark.parametrize(
    ("answers", "written"), [(["finish", "finish"], b"FIN"), (["requeue", "finish", "requeue"], b"REQ")]
)
def test_a_message_that_threads_answer_at_once_is_answered_once(
    nsqd: ScriptedNsqd, answers: list[str], written: bytes
) -> None:
    """Each has seen that it had no answer yet."""
    held: list[Message] = []

    def handler(message: Message) -> None:
        message.enable_async()
        held.append(message)

    with reading([nsqd], handler, max_backoff_duration=0) as reader:
        peer = serve(nsqd)
        peer.messages(ID % 1)
        [message] = wait_for(lambda: held)
        source = message._source
        calls = {"finish": lambda: source.finish(message), "requeue": lambda: source.requeue(message, 0, False)}
        for name in answers:
            in_plain_thread(calls[name])  # and this thread's hub does not run
        until(peer, written)
        closing = gevent.spawn(answer_cls, peer)
        reader.stop()
    assert all(line.startswith(b"RDY") for line in closing.get())
    assert sum(reader.stats()[name] for name in ("finished", "requeued")) == 1


def test_touches_of_another_thread_after_which_a_message_is_answered_are_not_sent(nsqd: ScriptedNsqd) -> None:
    """The Reader's hub has not run in between."""
    held: list[Message] = []

    def handler(message: Message) -> None:
        message.enable_async()
        held.append(message)

    def touch() -> None:
        held[0].touch()
        held[0].touch_until_answered()

    with reading([nsqd], handler, adaptive_rdy=False) as reader:
        peer = serve(nsqd)
        peer.messages(ID % 1)
        wait_for(lambda: held)
        in_plain_thread(touch)
        held[0].requeue(0, backoff=False)
        assert peer.line() == b"REQ " + ID % 1 + b" 0"
        closing = gevent.spawn(answer_cls, peer)
        reader.stop()
    assert all(line.startswith(b"RDY") for line in closing.get())


def test_an_answer_is_written_even_if_the_hub_runs_while_it_is_noted(nsqd: ScriptedNsqd) -> None:
    """As when a signal handler that sleeps interrupts ``finish``."""

    def handler(message: Message) -> None:
        source: Any = message._source
        flow = source._flow
        schedule = flow._run_callback

        def interrupted(callback: Callable[[], None]) -> None:
            schedule(callback)
            settle()

        flow._run_callback = interrupted

    with reading([nsqd], handler):
        peer = serve(nsqd)
        for number in (1, 2):
            peer.messages(ID % number)
            assert until(peer, b"FIN")[-1] == b"FIN " + ID % number
        gevent.spawn(answer_cls, peer)
