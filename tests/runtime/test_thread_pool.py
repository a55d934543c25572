"""Calls in native threads, and the handlers of spawn="thread"."""

import sys
import threading
import time
from pathlib import Path

import gevent
import pytest
from gevent._hub_local import get_hub_if_exists
from gevent.event import Event

from gnsq_like import Producer, Reader
from gnsq_like.runtime.native import thread_id
from gnsq_like.runtime.thread_pool import ThreadPool, call_blocking, call_in_thread
from tests.support.daemons import running_nsqd, wait_for
from tests.support.reading import finished


@pytest.fixture
def calls():
    made = ThreadPool(2)
    yield made
    assert made.close(60) == 0


class Custom(BaseException):
    pass


def test_a_call_runs_in_another_thread_and_gives_its_value(calls):
    assert calls.call(lambda argument: (argument, thread_id()), 1)[0] == 1
    assert calls.call(lambda _: thread_id(), None) != thread_id()


@pytest.mark.parametrize(
    "raised", [ValueError("x"), gevent.Timeout(1), gevent.GreenletExit(), SystemExit(3), Custom(), StopIteration()]
)
def test_whatever_a_call_raises_comes_out_and_nothing_is_printed(calls, raised, capfd):
    def fail(_):
        raise raised

    with pytest.raises(type(raised)) as caught:
        calls.call(fail, None)
    assert caught.value is raised
    assert calls.call(str, 1) == "1"
    assert capfd.readouterr() == ("", "")


def test_no_more_calls_run_at_once_than_it_is_wide(calls):
    inside, most, lock, gate = set(), [], threading.Lock(), threading.Event()

    def stay(number):
        with lock:
            inside.add(number)
            most.append(len(inside))
        gate.wait(60)
        with lock:
            inside.discard(number)

    waiting = [gevent.spawn(calls.call, stay, number) for number in range(6)]
    wait_for(lambda: len(inside) == 2)
    calls.set_width(3)
    wait_for(lambda: len(inside) == 3)
    gate.set()
    gevent.joinall(waiting, timeout=60, raise_error=True)
    assert max(most) == 3
    calls.set_width(2)


def test_other_greenlets_run_while_a_thread_works(calls):
    gate = threading.Event()
    caller = gevent.spawn(calls.call, lambda _: gate.wait(60), None)
    gevent.spawn(gate.set)
    assert caller.get(timeout=60) is True


def test_a_killed_caller_leaves_its_thread_to_end_by_itself():
    calls, gate, ended = ThreadPool(1), threading.Event(), []

    def stay(_):
        gate.wait(60)
        ended.append(1)

    caller = gevent.spawn(calls.call, stay, None)
    wait_for(lambda: calls._pool.size == 1)
    caller.kill()
    assert calls.close(0.01) == 1
    gate.set()
    wait_for(lambda: ended and calls._pool.size == 0)


def test_a_single_call_leaves_no_thread():
    before = set(sys._current_frames())
    assert call_in_thread(lambda argument: argument + 1, 1) == 2
    with pytest.raises(ZeroDivisionError):
        call_in_thread(lambda argument: 1 // argument, 0)
    wait_for(lambda: set(sys._current_frames()) <= before)


def test_a_single_call_in_a_thread_without_a_hub_makes_none():
    made = []
    thread = threading.Thread(target=lambda: made.append((call_in_thread(str, 1), get_hub_if_exists())))
    thread.start()
    thread.join(60)
    assert made == [("1", None)]


# -- spawn="thread" ---------------------------------------------------------------------------------


@pytest.fixture
def nsqd():
    with running_nsqd() as daemon:
        yield daemon


def threaded(nsqd, handler, **options):
    options = {"default_requeue_delay": 0, "max_backoff_duration": 0, "max_in_flight": 4} | options
    return Reader("t", "c", handler, nsqd_tcp_addresses=nsqd.tcp_address, spawn="thread", **options)


def test_handlers_run_in_threads_side_by_side_and_block_nothing(nsqd):
    threads, arrived, gate = set(), threading.Barrier(5), threading.Event()

    def handler(message):
        threads.add(thread_id())
        arrived.wait(60)  # only passes when four handlers and the test's thread meet
        gate.wait(60)

    with Producer(nsqd.tcp_address) as producer, threaded(nsqd, handler) as reader:
        producer.multi_publish("t", [b"%d" % number for number in range(4)])
        call_in_thread(arrived.wait, 60)
        assert reader.stats()["busy"] == 4
        gate.set()
        wait_for(lambda: reader.stats()["finished"] == 4)
    assert len(threads) == 4
    assert thread_id() not in threads


def test_giving_up_is_done_in_a_thread_too(nsqd):
    threads = []

    def fail(message):
        raise RuntimeError("meant")

    def on_giving_up(message):
        threads.append(thread_id())
        if len(threads) == 1:
            raise OSError("disk full")

    with Producer(nsqd.tcp_address) as producer:
        producer.publish("t", b"x")
        with threaded(nsqd, fail, max_attempts=1, on_giving_up=on_giving_up) as reader:
            wait_for(lambda: reader.stats()["finished"] == 1)
    assert len(threads) == 2
    assert thread_id() not in threads


def test_stopping_does_not_wait_for_a_thread_that_never_ends(nsqd):
    begun, gate = threading.Event(), threading.Event()

    def handler(message):
        begun.set()
        gate.wait(60)
        message.finish()  # requeued by then

    reader = threaded(nsqd, handler)
    with Producer(nsqd.tcp_address) as producer:
        producer.publish("t", b"x")
        reader.start()
        wait_for(begun.is_set)
        assert reader.stop(timeout=0.05) == 1
        gate.set()
        seen = Event()
        with Reader("t", "c", lambda message: seen.set(), nsqd_tcp_addresses=nsqd.tcp_address):
            assert seen.wait(60)
            wait_for(lambda: finished(nsqd))


def test_idle_threads_end() -> None:
    def threads() -> int:
        return len(list(Path("/proc/self/task").iterdir()))

    before = threads()
    pool = ThreadPool(3, idle_timeout=0.05)
    pool.call(str, 1)
    wait_for(lambda: threads() <= before)
    assert pool.call(str, 1) == "1"
    assert pool.close(60) == 0


def test_what_blocks_freezes_no_hub() -> None:
    gate = threading.Event()

    def stay() -> tuple[bool, int]:
        return gate.wait(60), thread_id()

    gevent.get_hub()
    gevent.spawn(gate.set)
    passed, thread = call_blocking(stay, 60)
    assert passed
    assert thread != thread_id()


def test_what_blocks_for_too_long_is_left_alone() -> None:
    gate, ended = threading.Event(), threading.Event()

    def stay() -> None:
        gate.wait(60)
        ended.set()

    gevent.get_hub()
    with pytest.raises(TimeoutError):
        call_blocking(stay, 0.05)
    gate.set()
    wait_for(ended.is_set)
    with pytest.raises(KeyError):
        call_blocking(lambda: dict[int, int]()[1], 60)


@pytest.mark.parametrize("has_hub", [True, False])
def test_what_blocks_has_no_time_at_all_where_that_is_over(has_hub: bool) -> None:
    gate = threading.Event()
    raised: list[BaseException] = []

    def call() -> None:
        if has_hub:
            gevent.get_hub()
        try:
            call_blocking(lambda: gate.wait(60), -1.0)
        except TimeoutError as exc:
            raised.append(exc)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join(60)
    gate.set()
    assert len(raised) == 1


def test_a_closed_pool_has_taken_down_the_hubs_of_its_threads() -> None:
    """An interpreter that ends while a thread takes its hub down crashes."""
    ended = []

    def nap() -> None:
        time.sleep(0.2)  # the work that taking the hub down has to wait for
        ended.append(thread_id())

    pool = ThreadPool(1)
    pool.call(lambda _: gevent.get_hub().threadpool.spawn(nap), None)
    assert pool.close(60) == 0
    assert len(ended) == 1
