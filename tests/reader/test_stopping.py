"""What a stop gives back, what it waits for, and what it leaves behind."""

from __future__ import annotations

import gc
import sys
import threading
import time
from types import CodeType

import gevent
import pytest
from gevent.event import Event

from gnsq_like import Batch, Message, Producer, Reader
from gnsq_like.reader.handlers import Handlers
from tests.support.daemons import KINDS, running_nsqd, wait_for
from tests.support.lookupds import FAST, Lookupd
from tests.support.nsqds import nowhere
from tests.support.peer import CLOSE_WAIT, HEARTBEAT, PATIENCE, Peer, scripted_nsqd
from tests.support.reading import ID, Gate, answer_cls, channel_stats, reading, serve, until
from tests.support.scripts import run_script


def test_stopping_requeues_what_no_handler_began_and_lets_the_running_one_answer(nsqd):
    gate = Gate()
    reader = reading([nsqd], gate, max_in_flight=3, concurrency=1, adaptive_rdy=False)
    reader.start()
    peer = serve(nsqd)
    peer.messages(ID % 1, ID % 2, ID % 3)
    assert gate.entered.wait(PATIENCE)
    stopping = gevent.spawn(reader.stop)
    # Before it has seen CLS, nsqd might deliver here again what it got back.
    assert answer_cls(peer)[-1] == b"RDY 0"
    assert {peer.line(), peer.line()} == {b"REQ " + ID % 2 + b" 0", b"REQ " + ID % 3 + b" 0"}
    # What nsqd sent before it saw CLS goes back too.
    peer.messages(ID % 4)
    assert peer.line() == b"REQ " + ID % 4 + b" 0"
    gate.open.set()
    assert peer.line() == b"FIN " + ID % 1
    assert stopping.get(timeout=PATIENCE) == 0
    assert peer.ended()
    assert gate.bodies == [b"body"]
    assert reader.stop() == 0


def test_a_stop_that_runs_out_of_time_requeues_and_says_how_many(nsqd):
    gate = Gate()
    reader = reading([nsqd], gate, max_in_flight=2, adaptive_rdy=False)
    reader.start()
    peer = serve(nsqd)
    peer.messages(ID % 1, ID % 2)
    wait_for(lambda: gate.inside == 2)
    stopping = gevent.spawn(reader.stop, 0.1)
    answer_cls(peer)
    assert {peer.line(), peer.line()} == {b"REQ " + ID % 1 + b" 0", b"REQ " + ID % 2 + b" 0"}
    assert stopping.get(timeout=PATIENCE) == 2
    assert gate.inside == 0
    assert peer.ended()


def test_a_stop_without_time_still_gives_back_what_nsqd_sent_before_it_saw_cls(nsqd):
    """Lost with its connection, a message would come again only after its timeout."""
    reader = reading([nsqd], Gate(), max_in_flight=2, adaptive_rdy=False)
    reader.start()
    peer = serve(nsqd)
    stopping = gevent.spawn(reader.stop, 0)
    assert until(peer, b"CLS")[-2:] == [b"RDY 0", b"CLS"]
    peer.messages(ID % 1)
    peer.send(CLOSE_WAIT)
    assert peer.line() == b"REQ " + ID % 1 + b" 0"
    stopping.get(timeout=PATIENCE)
    assert peer.ended()


def test_a_connection_that_is_being_renewed_is_not_said_to_fail_at_a_stop(nsqd, caplog):
    """CLS was sent before, and nsqd has not answered it yet."""
    caplog.set_level("INFO", "gnsq_like")
    reader = reading([nsqd])
    reader.start()
    peer = serve(nsqd)
    peer.error("E_FIN_FAILED FIN 0123456789abcde3 failed ID not in flight")
    until(peer, b"CLS")
    reader.stop(0)
    assert peer.ended()
    told = [record.getMessage() for record in caplog.records if record.name == "gnsq_like.reader.running"]
    assert [text.partition(" at ")[0] for text in told if "E_FIN_FAILED" not in text] == [
        "subscribed to t/c",
        "<Subscription t/c",
    ]


def test_the_end_of_a_connection_at_a_stop_is_said_once_and_it_is_not_dialled_again(nsqd, caplog):
    caplog.set_level("INFO", "gnsq_like")
    reader = reading([nsqd])
    reader.start()
    peer = serve(nsqd)
    stopping = gevent.spawn(reader.stop)
    until(peer, b"CLS")
    peer.close()
    stopping.get(timeout=PATIENCE)
    [text] = [text for record in caplog.records if "lost:" in (text := record.getMessage())]
    assert text.endswith("lost: nsqd closed it")


def in_last_step(reader: Reader, peer: Peer) -> gevent.Greenlet:
    """Stop the Reader, up to where it waits for running handlers."""
    stopping = gevent.spawn(reader.stop, 1000)
    answer_cls(peer)
    peer.send(HEARTBEAT)
    assert peer.line() == b"NOP"
    return stopping


def test_an_answer_from_another_thread_in_the_last_moment_is_sent(nsqd):
    """The hub has not seen it when the time is over."""
    taken: list[Message] = []
    reader = reading([nsqd], None, adaptive_rdy=False)
    looping = gevent.spawn(taken.extend, reader)
    peer = serve(nsqd)
    peer.messages(ID % 1)
    wait_for(lambda: bool(taken))
    stopping = in_last_step(reader, peer)
    finishing = threading.Thread(target=taken[0].finish)
    finishing.start()
    finishing.join()
    assert reader.stop(0) == 0
    assert peer.line() == b"FIN " + ID % 1
    assert peer.ended()
    stopping.get(timeout=PATIENCE)
    looping.get(timeout=PATIENCE)


def test_a_handler_that_has_returned_in_its_thread_is_not_undone(nsqd):
    """The hub has not seen that it returned when the time is over."""
    gate = threading.Event()

    def handler(message: Message) -> None:
        gate.wait(PATIENCE)

    reader = reading([nsqd], handler, adaptive_rdy=False, spawn="thread", max_in_flight=2)
    reader.start()
    peer = serve(nsqd)
    peer.messages(ID % 1)
    calling = Handlers._work.__code__
    wait_for(lambda: is_running(calling))
    stopping = in_last_step(reader, peer)
    gate.set()
    while is_running(calling):
        time.sleep(0.001)  # of the whole process: the hub must not run
    assert reader.stop(0) == 0
    assert peer.line() == b"FIN " + ID % 1
    assert peer.ended()
    stopping.get(timeout=PATIENCE)


def is_running(code: CodeType) -> bool:
    """Whether a thread runs it."""
    frames = list(sys._current_frames().values())
    while frames:
        frame = frames.pop()
        if frame.f_code is code:
            return True
        frames += [frame.f_back] if frame.f_back is not None else []
    return False


def test_a_second_stop_can_only_bring_the_end_forward(nsqd):
    gate = Gate()
    reader = reading([nsqd], gate, adaptive_rdy=False)
    reader.start()
    peer = serve(nsqd)
    peer.messages(ID % 1)
    wait_for(lambda: gate.inside == 1)
    stopping = gevent.spawn(reader.stop, 100)
    answer_cls(peer)
    patient = gevent.spawn(reader.stop, 1000)
    peer.send(HEARTBEAT)
    assert peer.line() == b"NOP"
    assert not stopping.ready()
    assert reader.stop(0.1) == 1
    assert peer.line() == b"REQ " + ID % 1 + b" 0"
    assert stopping.get(timeout=PATIENCE) == patient.get(timeout=PATIENCE) == 1


def test_a_handler_may_stop_its_reader(nsqd):
    reader = reading([nsqd], lambda message: reader.begin_to_stop())
    reader.start()
    peer = serve(nsqd)
    peer.messages(ID % 1)
    lines = answer_cls(peer)
    assert b"FIN " + ID % 1 in [*lines, peer.line() if b"FIN " + ID % 1 not in lines else b""]
    assert reader.wait(PATIENCE)


@pytest.mark.parametrize("form", ["handler", "loop"])
def test_nothing_is_begun_after_the_call_of_stop(nsqd, form):
    """Although the hub gets no turn between the messages of one read."""
    begun: list[Message] = []

    def handler(message: Message) -> None:
        begun.append(message)
        reader.stop()

    def loop() -> None:
        for message in reader:
            with message:
                handler(message)

    reader = reading([nsqd], handler if form == "handler" else None, max_in_flight=5, adaptive_rdy=False)
    looping = gevent.spawn(loop if form == "loop" else reader.start)
    peer = serve(nsqd)
    peer.messages(*(ID % number for number in range(5)))
    answer_cls(peer)
    lines = sorted(peer.line() for _ in range(4))
    assert reader.wait(PATIENCE)
    looping.get(timeout=PATIENCE)
    assert len(begun) == 1
    assert reader.stats()["finished"] == 1
    assert lines == [b"REQ " + ID % number + b" 0" for number in range(1, 5)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", ["patched", "unpatched", "in a thread"])
def test_the_end_of_the_program_sends_answers_and_gives_messages_back(kind, place):
    with running_nsqd("process" if kind == "ours" else kind) as nsqd:
        with Producer(nsqd.tcp_address) as producer:
            producer.multi_publish("t", [b"x"] * 20)
        run_script(
            f"""
            if {place == "patched"}:
                from gevent import monkey
                monkey.patch_all()
            import sys, threading
            from gnsq_like import Reader

            reader = Reader("t", "c", nsqd_tcp_addresses=sys.argv[1], max_in_flight=10)
            done = threading.Event()

            def take():
                for number, message in enumerate(reader, 1):
                    with message:
                        if number == 5:
                            break
                done.set()
                if {place == "in a thread"}:
                    reader.wait()

            if {place == "in a thread"}:
                threading.Thread(target=take, daemon=True).start()
                done.wait()
            else:
                take()
            """,
            nsqd.tcp_address,
        )
        # nsqd may read the last answers only when the process has ended.
        counts = {"depth": 15, "in_flight_count": 0, "timeout_count": 0}
        wait_for(lambda: channel_stats(nsqd).items() >= counts.items(), f"{counts}")


def test_a_caller_of_stop_may_be_interrupted_and_the_stop_goes_on(nsqd):
    gate = Gate()
    reader = reading([nsqd], gate)
    reader.start()
    peer = serve(nsqd)
    peer.messages(ID % 1)
    assert gate.entered.wait(PATIENCE)
    serving = gevent.spawn(answer_cls, peer)
    with pytest.raises(gevent.Timeout), gevent.Timeout(0.05):
        reader.stop(20)
    serving.join()
    assert reader.stats()["state"] == "stopping"
    gate.open.set()
    assert reader.wait(PATIENCE)
    assert peer.line() == b"FIN " + ID % 1
    assert reader.stop() == 0
    assert peer.ended()


def test_stop_inside_the_pulled_loop_does_not_wait_for_the_loop_itself():
    with running_nsqd("ours") as nsqd:
        with Producer(nsqd.tcp_address) as producer:
            producer.publish("t", b"x")
        reader = Reader("t", "c", nsqd_tcp_addresses=nsqd.tcp_address)
        for message in reader:
            with message:
                assert reader.stop(3600) == 0
        assert reader.wait(PATIENCE)
        assert reader.stats()["finished"] == 1
        assert reader.stats()["requeued"] == 0


def test_nothing_is_asked_after_a_stop_that_discovery_itself_brought_about(nsqd):
    with Lookupd() as lookupd:
        lookupd.nsqds = [nsqd]

        def stop(_: object) -> bool:
            reader.stop()
            return True

        reader = Reader("t", "c", print, lookupd_http_addresses=lookupd.address, discovery_filter=stop, **FAST)
        reader.start()
        assert reader.wait(PATIENCE)
        asked = len(lookupd.asked)
        with Reader("other", "c", print, lookupd_http_addresses=lookupd.address, **FAST):
            wait_for(lambda: [each.query["topic"] for each in lookupd.asked].count(["other"]) == 4)
        assert len(lookupd.asked) == asked + 4


def living_threads() -> int:
    """Until Python 3.13, threading also lists a native thread that has ended, once that has logged anything."""
    living = sys._current_frames()
    return sum(each.ident in living for each in threading.enumerate())


def test_nothing_is_left_running_after_a_stop(nsqd):
    """Neither a greenlet nor a thread: a Reader with all it can start, stopped while it connects and consumes."""

    def running():
        # By type(): isinstance asks lazy objects of other libraries for their class, which builds what they stand for.
        greenlets = [each for each in gc.get_objects() if issubclass(type(each), gevent.Greenlet) and not each.dead]
        return {each for each in greenlets if "gnsq_like" in str(getattr(each._run, "__module__", ""))}

    with Lookupd() as lookupd, scripted_nsqd() as mute, Lookupd() as mute_lookupd:
        release = Event()
        mute_lookupd.answer_after(release)
        lookupd.nsqds = [nsqd, mute]
        before, threads = running(), living_threads()
        reader = Reader(
            "t",
            "c",
            Batch(lambda batch: None, size=1),
            lookupd_http_addresses=[lookupd.address, mute_lookupd.address],
            nsqd_tcp_addresses=nowhere(),
            spawn="thread",
            max_in_flight=3,
            on_error=lambda *_: None,
        )
        reader.start()
        peer = serve(nsqd)
        mute.accept()
        peer.messages(ID % 1)
        until(peer, b"FIN " + ID % 1)
        assert running() - before
        gevent.spawn(answer_cls, peer)
        reader.stop()
        assert running() - before == set()
        release.set()
        wait_for(lambda: living_threads() <= threads)
