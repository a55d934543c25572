"""Every public method from any OS thread; and signals, in a process of its own."""

import subprocess
import sys
import textwrap
import threading

import gevent
import pytest

from gnsq_like import Message, Producer, Reader
from gnsq_like.errors import NotRunning
from tests.support.daemons import KINDS, running_nsqd, wait_for
from tests.support.reading import channel_stats, finished


def wait_for_counts(nsqd, **counts):
    """nsqd may read a process's last answers only when that has ended."""
    wait_for(lambda: channel_stats(nsqd).items() >= counts.items(), f"{counts}")


def in_thread(call):
    """Run ``call`` in an OS thread, with this thread's hub running; what it returned."""
    return gevent.get_hub().threadpool.apply(call)


@pytest.mark.parametrize("kind", KINDS)
def test_messages_are_answered_from_other_threads(kind):
    threads: list[threading.Thread] = []
    errors: list[BaseException] = []

    def answer(message):
        try:
            message.touch()
            if message.attempts == 1 and message.body == b"3":
                message.requeue(0, backoff=False)
            else:
                message.finish()
        except BaseException as exc:
            errors.append(exc)

    def handler(message):
        message.enable_async()
        thread = threading.Thread(target=answer, args=(message,))
        threads.append(thread)
        thread.start()

    with running_nsqd(kind) as nsqd:
        with Producer(nsqd.tcp_address) as producer:
            producer.multi_publish("t", [b"%d" % number for number in range(20)])
        with Reader("t", "c", handler, nsqd_tcp_addresses=nsqd.tcp_address, max_in_flight=5) as reader:
            wait_for(lambda: reader.stats()["finished"] == 20)
            wait_for(lambda: finished(nsqd))
        stats = reader.stats()
    for thread in threads:
        thread.join()
    assert not errors
    assert (stats["finished"], stats["requeued"], stats["in_flight"]) == (20, 1, 0)


def test_run_gives_handlers_as_long_as_it_is_told(tmp_path):
    script = tmp_path / "reader.py"
    script.write_text(
        textwrap.dedent(
            """
            import sys
            import gevent
            from gnsq_like import Reader

            def handler(message):
                print("began", flush=True)
                gevent.sleep(3600)

            Reader("t", "c", handler, nsqd_tcp_addresses=sys.argv[1]).run(stop_timeout=0.1)
            print("stopped", flush=True)
            """
        )
    )
    with running_nsqd("process") as nsqd:
        with Producer(nsqd.tcp_address) as producer:
            producer.publish("t", b"x")
        process = subprocess.Popen([sys.executable, script, nsqd.tcp_address], stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "began\n"
            process.terminate()
            assert process.communicate()[0] == "stopped\n"
        finally:
            process.kill()
        wait_for_counts(nsqd, depth=1, in_flight_count=0, requeue_count=1)


def test_the_end_is_known_to_other_threads_when_that_of_the_reader_is_gone():
    with running_nsqd("process") as nsqd:
        reader = Reader("t", "c", print, nsqd_tcp_addresses=nsqd.tcp_address)
        thread = threading.Thread(target=reader.run)
        thread.start()
        wait_for(lambda: reader.stats()["connections"], "the connection")
        reader.stop()
        thread.join(60)
        assert not thread.is_alive()
        assert reader.wait(0)


def in_threads(*calls):
    """Run these at once, each in a thread that ends with it."""
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


@pytest.mark.parametrize("connected", [False, True])
def test_a_reader_whose_thread_has_ended_can_be_stopped_and_started_again(connected):
    """Also by a thread that has the id of the one that ended, as the next one often has."""
    with running_nsqd("process") as nsqd, Producer(nsqd.tcp_address) as producer:
        got = threading.Event()
        finished: list[Message] = []
        reader = Reader(
            "t",
            "c",
            lambda message: got.set(),
            on_finish=finished.append,
            nsqd_tcp_addresses=nsqd.tcp_address,
            heartbeat_interval=60,  # nsqd itself ends no connection while this test waits
        )

        def start():
            reader.start()
            if connected:
                wait_for(lambda: reader.stats()["connections"])

        in_threads(start)
        in_threads(*[lambda: reader.stop(0)] * 4)
        assert reader.stats()["state"] == "stopped"
        assert reader.wait(0)
        wait_for(lambda: not channel_stats(nsqd).get("clients"), "its connection is closed")
        producer.publish("t", b"x")
        reader.start()
        wait_for(got.is_set, "the message")
        wait_for(lambda: finished, "its hook")
        reader.stop()


@pytest.mark.parametrize("asked", ["before", "after"])
def test_a_wait_for_a_reader_ends_when_its_thread_has_ended(asked):
    """Whether the stop was asked for in the last moments of that thread, or nobody asks for one."""
    with running_nsqd("process") as nsqd:
        reader = Reader("t", "c", lambda message: None, nsqd_tcp_addresses=nsqd.tcp_address)
        begun, end = threading.Event(), threading.Event()

        def run():
            reader.start()
            begun.set()
            end.wait(60)  # its hub does not run

        thread = threading.Thread(target=run)
        thread.start()
        assert begun.wait(60)
        if asked == "before":
            reader.stop(0)
            waiting = threading.Thread(target=reader.wait)
            waiting.start()
            end.set()
            waiting.join(60)
            assert not waiting.is_alive()
        else:
            end.set()
        thread.join(60)
        assert reader.wait(60)
        assert reader.stats()["state"] == "stopped"


def test_iteration_after_the_end_of_its_thread_is_refused():
    with running_nsqd("process") as nsqd:
        reader = Reader("t", "c", nsqd_tcp_addresses=nsqd.tcp_address)
        in_threads(reader.start)
        with pytest.raises(NotRunning, match="has ended: call stop"):
            next(iter(reader))
        reader.stop()


def test_iteration_elsewhere_is_refused():
    with (
        running_nsqd("process") as nsqd,
        Reader("t", "c", nsqd_tcp_addresses=nsqd.tcp_address) as reader,
        pytest.raises(NotRunning, match="in the thread that started it"),
    ):
        in_thread(lambda: next(iter(reader)))
