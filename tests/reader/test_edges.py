"""What happens at the edges: interrupted stops, unlucky moments, hooks and strategies that misbehave."""

import gc
import threading
import time
from collections import Counter

import gevent
import pytest
from gevent.event import Event

from gnsq_like import Batch, Producer, Reader
from gnsq_like.errors import HTTPError, InvalidAddress
from tests.discovery.test_lookupd_poller import FAST, Lookupd, serve
from tests.reader.test_scripted import ID, Gate, answer_cls, reading
from tests.support.daemons import running_nsqd, wait_for
from tests.support.peer import OK, PATIENCE, free_port, scripted_nsqd


@pytest.fixture
def nsqd():
    with scripted_nsqd() as server:
        yield server


def test_a_caller_of_stop_may_be_interrupted_and_the_stop_goes_on(nsqd):
    gate = Gate()
    reader = reading([nsqd], gate)
    reader.start()
    peer = nsqd.accept()
    peer.subscribe()
    peer.line()
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
        started = time.monotonic()
        for message in reader:
            with message:
                assert reader.stop(20) == 0
        assert reader.wait(PATIENCE)
        assert time.monotonic() - started < 5
        assert reader.stats()["finished"] == 1
        assert reader.stats()["requeued"] == 0


def test_a_refusal_right_behind_the_ok_to_sub_is_a_failed_try(nsqd):
    errors = []
    with reading([nsqd], max_redial_delay=0.05, on_error=lambda _, error: errors.append(error)) as reader:
        first = nsqd.accept()
        first.identify(version="1.3.0")
        first.line()
        first.send(OK + b"\x00\x00\x00\x0c\x00\x00\x00\x01E_BADNES")
        second = nsqd.accept()
        second.subscribe()
        second.line()
        wait_for(lambda: errors)
        assert len(reader.stats()["connections"]) == 1
        gevent.spawn(answer_cls, second)


@pytest.mark.parametrize("strategy", [lambda level: {}[level], lambda level: "soon", lambda level: -1])
def test_a_backoff_strategy_that_fails_costs_no_message(nsqd, strategy, caplog):
    handled = []

    def handler(message):
        handled.append(message)
        if len(handled) == 1:
            raise RuntimeError("meant")

    with reading([nsqd], handler, backoff_strategy=strategy, backoff_multiplier=0.01):
        peer = nsqd.accept()
        peer.subscribe()
        peer.line()
        peer.messages(ID % 1)
        while not (line := peer.line()).startswith(b"REQ"):
            assert line.startswith(b"RDY")
        while peer.line() != b"RDY 1":
            pass
        gevent.spawn(answer_cls, peer)
    assert "backoff_strategy" in caplog.text


def test_refusals_are_hopeless_only_when_all_is_known():
    """One nsqlookupd is slow, and the fast one lists an nsqd that refuses beside one that does not."""
    with scripted_nsqd() as bad, scripted_nsqd() as good, Lookupd() as fast, Lookupd() as slow:
        fast.nsqds = [bad, good]
        release = Event()
        slow.answer = lambda *call: (release.wait(), slow.lookup(*call))[1]
        reader = Reader("t", "c", print, lookupd_http_addresses=[fast.address, slow.address], **FAST)
        with reader:
            peer = bad.accept()
            peer.identify(version="1.3.0")
            peer.line()
            peer.error("E_UNAUTHORIZED AUTH failed")
            other = serve(good)
            assert peer.ended()
            release.set()
            wait_for(lambda: len(slow.asked) >= 2)
            assert reader.stats()["state"] == "running"
            gevent.spawn(answer_cls, other)


def test_a_cap_below_msg_timeout_does_not_make_the_timer_spin(nsqd):
    gate = Gate()
    with reading([nsqd], gate) as reader:
        peer = nsqd.accept()
        peer.subscribe(msg_timeout=3000, max_msg_timeout=1000)
        peer.line()
        peer.messages(ID % 1)
        assert gate.entered.wait(PATIENCE)
        gevent.sleep(1.2)  # past the cap
        spent = time.process_time()
        gevent.sleep(0.3)
        assert time.process_time() - spent < 0.2
        gate.open.set()
        wait_for(lambda: reader.stats()["finished"] == 1)
        gevent.spawn(answer_cls, peer)


def test_a_touched_message_does_not_hide_the_deadline_of_the_next():
    """Two handlers outlive msg_timeout, the first of them touches: the second keeps its place all the same."""
    runs = Counter()
    most = []
    inside = []

    def handler(message):
        runs[message.body] += 1
        inside.append(message)
        most.append(len(inside))
        try:
            if runs[message.body] == 1:
                if message.body == b"touches":
                    gevent.sleep(0.6)
                    message.touch()
                gevent.sleep(1.6)
        finally:
            inside.remove(message)

    with running_nsqd("ours") as nsqd:
        with Producer(nsqd.tcp_address) as producer:
            producer.publish("t", b"touches")
            producer.publish("t", b"outlives")
        options = {"max_in_flight": 2, "msg_timeout": 1, "max_backoff_duration": 0, "adaptive_rdy": False}
        with Reader("t", "c", handler, nsqd_tcp_addresses=nsqd.tcp_address, **options) as reader:
            wait_for(lambda: runs[b"outlives"] == 2 and not inside, timeout=20)
            wait_for(lambda: reader.stats()["in_flight"] == 0)
    assert max(most) == 2


def test_a_touch_shortly_before_the_deadline_is_sent():
    attempts = []

    def handler(message):
        attempts.append(message.attempts)
        gevent.sleep(max(0, message.timeout_at - time.monotonic() - 0.05))
        message.touch()
        gevent.sleep(0.5)

    with running_nsqd("ours") as nsqd:
        with Producer(nsqd.tcp_address) as producer:
            producer.publish("t", b"x")
        with Reader("t", "c", handler, nsqd_tcp_addresses=nsqd.tcp_address, msg_timeout=1) as reader:
            wait_for(lambda: reader.stats()["finished"] == 1)
    assert attempts == [1]


@pytest.mark.parametrize("address", ["ftp://somewhere:1", "nonsense", ["127.0.0.1:4161", ""]])
def test_a_wrong_address_of_a_nsqlookupd_is_said_at_once(address):
    with pytest.raises(InvalidAddress):
        Reader("t", "c", print, lookupd_http_addresses=address)
    with pytest.raises(InvalidAddress):
        Producer(lookupd_http_addresses=address)


def test_as_many_threads_as_anybody_asks_for(nsqd):
    with reading([nsqd], spawn="thread", max_in_flight=2**70):
        peer = nsqd.accept()
        peer.subscribe()
        peer.line()
        gevent.spawn(answer_cls, peer)


@pytest.mark.parametrize("fault", [gevent.Timeout(1), RuntimeError("meant")])
def test_a_discovery_filter_that_raises_ends_nothing(nsqd, fault):
    with Lookupd() as lookupd:
        lookupd.nsqds = [nsqd]
        calls = []

        def wanted(node):
            calls.append(node)
            if len(calls) == 1:
                raise fault
            return True

        with Reader("t", "c", print, lookupd_http_addresses=lookupd.address, discovery_filter=wanted, **FAST):
            gevent.spawn(answer_cls, serve(nsqd))


def test_nothing_is_asked_after_a_stop_that_discovery_itself_brought_about(nsqd):
    with Lookupd() as lookupd:
        lookupd.nsqds = [nsqd]
        reader = Reader(
            "t", "c", print, lookupd_http_addresses=lookupd.address, discovery_filter=lambda _: reader.stop(), **FAST
        )
        reader.start()
        assert reader.wait(PATIENCE)
        asked = len(lookupd.asked)
        gevent.sleep(3 * FAST["lookupd_poll_interval"])  # nothing can be waited for but time
        assert len(lookupd.asked) == asked


def test_an_authorization_that_cannot_be_had_is_reported(nsqd):
    errors = []

    def authorization():
        raise RuntimeError("the vault is closed")

    with Lookupd() as lookupd:
        reader = Reader(
            "t",
            "c",
            print,
            lookupd_http_addresses=lookupd.address,
            lookupd_authorization=authorization,
            on_error=lambda _, error: errors.append(error),
            **FAST,
        )
        with reader:
            wait_for(lambda: errors)
    assert isinstance(errors[0], HTTPError)
    assert "the vault is closed" in str(errors[0])


@pytest.mark.parametrize("form", ["handler", "batch", "pulled"])
def test_raising_after_enable_async_requeues_in_every_form(form):
    attempts = []

    def fail_once(message):
        attempts.append(message.attempts)
        if message.attempts == 1:
            message.enable_async()
            raise RuntimeError("meant")

    handlers = {"handler": fail_once, "batch": Batch(lambda batch: fail_once(batch[0]), size=1), "pulled": None}
    options = {"default_requeue_delay": 0, "max_backoff_duration": 0}
    with running_nsqd("ours") as nsqd:
        with Producer(nsqd.tcp_address) as producer:
            producer.publish("t", b"x")
        with Reader("t", "c", handlers[form], nsqd_tcp_addresses=nsqd.tcp_address, **options) as reader:
            if form == "pulled":
                for message in reader:
                    try:
                        with message:
                            fail_once(message)
                    except RuntimeError:
                        continue
                    break
            wait_for(lambda: reader.stats()["finished"] == 1)
    assert attempts == [1, 2]


def test_giving_up_may_answer_later(nsqd):
    given_up = []

    def on_giving_up(message):
        message.enable_async()
        given_up.append(message)

    with reading([nsqd], print, max_attempts=1, on_giving_up=on_giving_up) as reader:
        peer = nsqd.accept()
        peer.subscribe()
        peer.line()
        peer.messages(ID % 1, attempts=2)
        wait_for(lambda: given_up)
        assert reader.stats()["in_flight"] == 1
        given_up[0].finish()
        while peer.line() != b"FIN " + ID % 1:
            pass
        gevent.spawn(answer_cls, peer)


def test_an_nsqd_that_counts_down_gets_no_credit_that_others_hold():
    """A share lowered under what it may still send has to be said, or it sends that much too much."""
    gate = Gate()
    with scripted_nsqd() as old, reading([old], gate, max_in_flight=10) as reader:
        peer = old.accept()
        peer.identify()
        peer.line()
        peer.send(OK)
        assert peer.line() == b"RDY 1"
        peer.messages(ID % 0)
        assert peer.line() == b"RDY 9"
        peer.messages(ID % 1, ID % 2, ID % 3)
        wait_for(lambda: gate.inside == 4)
        # It may still send six; with four in flight and a window of four, that is six too many.
        reader.max_in_flight = 4
        assert peer.line() == b"RDY 0"
        gate.open.set()
        gevent.spawn(answer_cls, peer)


def test_nothing_is_left_running_after_a_stop(nsqd):
    """Neither a greenlet nor a thread: a Reader with all it can start, stopped while it connects and consumes."""

    def running():
        # By type(): isinstance asks lazy objects of other libraries for their class, which builds what they stand for.
        greenlets = [each for each in gc.get_objects() if issubclass(type(each), gevent.Greenlet) and not each.dead]
        return {each for each in greenlets if "gnsq_like" in str(getattr(each._run, "__module__", ""))}

    with Lookupd() as lookupd, scripted_nsqd() as mute, Lookupd() as mute_lookupd:
        release = Event()
        mute_lookupd.answer = lambda *call: release.wait()
        lookupd.nsqds = [nsqd, mute]
        before, threads = running(), threading.active_count()
        reader = Reader(
            "t",
            "c",
            Batch(lambda batch: None, size=1),
            lookupd_http_addresses=[lookupd.address, mute_lookupd.address],
            nsqd_tcp_addresses=f"127.0.0.1:{free_port()}",
            spawn="thread",
            max_in_flight=3,
            on_error=lambda *_: None,
        )
        reader.start()
        peer = serve(nsqd)
        mute.accept()
        peer.messages(ID % 1)
        while peer.line() != b"FIN " + ID % 1:
            pass
        assert running() - before
        gevent.spawn(answer_cls, peer)
        reader.stop()
        assert running() - before == set()
        release.set()
        wait_for(lambda: threading.active_count() <= threads)
