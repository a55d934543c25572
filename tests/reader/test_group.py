"""Several Readers as one: start, end, failure, threads and forks."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import threading

import gevent
import pytest

from gnsq_like import Message, Producer, Reader, ReaderGroup
from gnsq_like.errors import ConnectionFailed, InvalidOption, NegotiationFailed, NotRunning
from tests.support.daemons import Running, running_nsqd, wait_for
from tests.support.patient import NsqdHTTPClient
from tests.support.reading import Gate, channel_stats, ignore
from tests.support.scripts import run_script

#: Nothing listens there.
NOWHERE = "127.0.0.1:1"


def reader_of(nsqd: Running | str, channel: str = "c", handler=ignore, **options) -> Reader:
    address = nsqd if isinstance(nsqd, str) else nsqd.tcp_address
    return Reader("t", channel, handler, nsqd_tcp_addresses=address, **options)


def states(group: ReaderGroup) -> list[str]:
    return [reader.stats()["state"] for reader in group.readers]


def connected(group: ReaderGroup) -> bool:
    return all(reader.stats()["connections"] for reader in group.readers)


def test_a_block_starts_all_and_stops_all() -> None:
    bodies: list[tuple[str, bytes]] = []
    with running_nsqd() as nsqd, Producer(nsqd.tcp_address) as producer:
        group = ReaderGroup(
            *(reader_of(nsqd, name, lambda message: bodies.append((message.channel, message.body))) for name in "ab")
        )
        assert states(group) == ["new", "new"]
        assert repr(group) == "<ReaderGroup new {!r}, {!r}>".format(*group.readers)
        with group:
            wait_for(lambda: connected(group))
            producer.publish("t", b"x")
            wait_for(lambda: sorted(bodies) == [("a", b"x"), ("b", b"x")])
            wait_for(lambda: [reader.stats()["finished"] for reader in group.readers] == [1, 1])
            assert not group.wait(0)
        assert group.wait(0)
    assert states(group) == ["stopped", "stopped"]


def test_a_stop_takes_one_timeout_for_all_and_counts_what_is_left() -> None:
    """The handlers of both run on; if their timeouts came one after the other, the second would see no such stop."""
    gates = [Gate(), Gate()]
    with running_nsqd() as nsqd, Producer(nsqd.tcp_address) as producer:
        group = ReaderGroup(*(reader_of(nsqd, str(number), gates[number]) for number in range(2)))
        group.start()
        wait_for(lambda: connected(group))
        producer.publish("t", b"x")
        for gate in gates:
            gate.entered.wait()
        group.begin_to_stop(30)
        # Both have begun to stop before either has ended.
        assert states(group) == ["stopping", "stopping"]
        assert group.stop(0) == 2
        assert group.left == 2
        assert group.stop() == 2
        wait_for(lambda: [channel_stats(nsqd, channel=name)["depth"] for name in "01"] == [1, 1])


def test_a_handler_only_begins_the_stop() -> None:
    returned: list[int] = []

    def handler(message: Message) -> None:
        returned.append(group.stop())

    with running_nsqd() as nsqd, Producer(nsqd.tcp_address) as producer:
        group = ReaderGroup(reader_of(nsqd, "a", handler), reader_of(nsqd, "b"))
        with group:
            wait_for(lambda: connected(group))
            producer.publish("t", b"x")
            assert group.wait(60)
        assert returned == [0]
        assert group.readers[0].stats()["finished"] == 1


def test_one_that_gives_up_stops_the_others_and_its_error_is_raised() -> None:
    with running_nsqd() as nsqd:
        group = ReaderGroup(reader_of(nsqd), reader_of(nsqd, tls_v1=True))
        with pytest.raises(ConnectionFailed) as caught:
            group.run()
        assert isinstance(caught.value.__cause__, NegotiationFailed)
        assert group.error is caught.value
        assert states(group) == ["stopped", "stopped"]
        with pytest.raises(ConnectionFailed), group:
            assert group.wait(60)
        with pytest.raises(KeyError), group:
            raise KeyError(group.wait(60))


@pytest.mark.parametrize("own_thread", [True, False])
def test_independent_readers_run_on_when_one_gives_up(own_thread: bool) -> None:
    """One from the start, and one that joined."""
    with running_nsqd() as nsqd:
        refused = [reader_of(nsqd, tls_v1=True) for _ in range(2)]
        running, last = reader_of(nsqd), reader_of(nsqd)
        group = ReaderGroup(running, refused[0], own_thread=own_thread, independent=True)
        group.start()
        assert refused[0].wait(60)
        assert isinstance(group.error, ConnectionFailed)
        group.add(refused[1])
        assert refused[1].wait(60)
        assert running.stats()["state"] == "running"
        group.add(last)
        assert group.readers == (running, last)
        wait_for(lambda: connected(group))
        assert group.stop() == 0


def test_one_that_is_stopped_by_itself_leaves_the_others() -> None:
    with running_nsqd() as nsqd:
        first, second = reader_of(nsqd), reader_of(nsqd)
        with ReaderGroup(first, second) as group:
            wait_for(lambda: connected(group))
            first.stop()
            assert states(group) == ["stopped", "running"]
            assert not group.wait(0)
            second.stop()
            assert group.wait(60)
        assert group.error is None


def test_a_start_that_fails_gives_back_what_it_took() -> None:
    with running_nsqd() as nsqd, reader_of(nsqd) as running:
        for own_thread in (False, True):
            first = reader_of(nsqd)
            group = ReaderGroup(first, running, own_thread=own_thread)
            with pytest.raises(NotRunning):
                group.start()
            assert first.stats()["state"] == "stopped"
            assert running.stats()["state"] == "running"


def test_with_a_thread_of_its_own_the_callers_may_block() -> None:
    got = threading.Event()
    threads: set[int] = set()

    def handler(message: Message) -> None:
        threads.add(threading.get_ident())
        got.set()

    with running_nsqd("process") as nsqd:
        with Producer(nsqd.tcp_address) as producer:
            producer.publish("t", b"x")
        group = ReaderGroup(reader_of(nsqd, handler=handler), own_thread=True)
        for _ in range(2):  # it may be started again
            with group:
                assert got.wait(60)
            assert group.wait(0)
            # Its last lines run after the end that wait() reports.
            wait_for(lambda: "gnsq_like readers" not in {thread.name for thread in threading.enumerate()})
    assert threading.get_ident() not in threads


def test_a_blocked_thread_of_its_own_does_not_block_the_stop() -> None:
    entered, let_go = threading.Event(), threading.Event()

    def handler(message: Message) -> None:
        entered.set()
        let_go.wait()

    with running_nsqd("process") as nsqd:
        with Producer(nsqd.tcp_address) as producer:
            producer.publish("t", b"x")
        group = ReaderGroup(reader_of(nsqd, handler=handler), own_thread=True)
        group.start()
        assert entered.wait(60)
        assert group.stop(0) == 1, "the message that the handler has"
        assert group.readers[0].stats()["busy"] == 1
        let_go.set()
        assert group.wait(60)


def test_a_forked_child_may_start_it_again() -> None:
    with running_nsqd("process") as nsqd:
        printed = run_script(
            """
            import os, sys, warnings
            from gnsq_like import Reader, ReaderGroup
            warnings.simplefilter("ignore", ResourceWarning)

            reader = Reader("t", "c", lambda message: None, nsqd_tcp_addresses=sys.argv[1])
            group = ReaderGroup(reader, own_thread=True)
            group.start()
            if os.fork():
                os.wait()
                group.stop()
            else:
                assert group.wait(0) and reader.stats()["state"] == "stopped"
                with group:
                    assert reader.stats()["state"] == "running"
                print("started again", flush=True)
                os._exit(0)
            """,
            nsqd.tcp_address,
        )
    assert printed == ["started again"]


def test_what_is_no_reader_or_twice_the_same_is_refused() -> None:
    reader = reader_of(NOWHERE)
    with pytest.raises(InvalidOption, match=r"\*readers"):
        ReaderGroup([reader])  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="each must be another"):
        ReaderGroup(reader, reader)
    with pytest.raises(InvalidOption, match="handler"):
        ReaderGroup(reader, reader_of(NOWHERE, handler=None)).run()
    with pytest.raises(InvalidOption, match="stop_timeout='x'"):
        ReaderGroup(reader, stop_timeout="x")  # type: ignore[arg-type]
    for call in (ReaderGroup(reader).wait, ReaderGroup(reader).stop, ReaderGroup(reader).begin_to_stop):
        with pytest.raises(InvalidOption, match="timeout='x'"):
            call("x")  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="stop_timeout='x'"):
        ReaderGroup(reader).run(stop_timeout="x")  # type: ignore[arg-type]
    assert reader.stats()["state"] == "new"


def test_without_readers_there_is_nothing_to_wait_for() -> None:
    with ReaderGroup() as group:
        assert group.wait(0)
    assert group.readers == ()


def test_without_readers_its_own_thread_ends_too() -> None:
    with ReaderGroup(own_thread=True) as group:
        pass
    assert group.wait(0)


def test_readers_that_are_iterated_over_can_be_in_a_group() -> None:
    got: list[bytes] = []
    with running_nsqd() as nsqd, Producer(nsqd.tcp_address) as producer:
        reader = reader_of(nsqd, handler=None)
        with ReaderGroup(reader) as group:
            producer.publish("t", b"x")
            for message in reader:
                with message:
                    got.append(message.body)
                    assert group.stop() == 0
    assert got == [b"x"]


PROGRAM = textwrap.dedent(
    """
    import sys
    import gevent
    from gnsq_like import Reader, run

    def handler(message):
        print("began", flush=True)
        while any(reader.stats()["state"] == "running" for reader in readers) or sys.argv[2] == "forever":
            gevent.sleep(0.01)

    readers = [Reader("t", name, handler, nsqd_tcp_addresses=sys.argv[1]) for name in ("a", "b")]
    run(*readers, stop_timeout=3600)
    print("stopped", flush=True)
    """
)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("handlers", ["ending", "forever"])
def test_a_signal_stops_all_readers_and_a_second_sigint_ends_the_wait(handlers: str, number: int) -> None:
    with running_nsqd("process") as nsqd:
        with NsqdHTTPClient(nsqd.http_address) as client:
            client.create_topic("t")
            for name in ("a", "b"):
                client.create_channel("t", name)
        with Producer(nsqd.tcp_address) as producer:
            producer.publish("t", b"x")
        command = [sys.executable, "-c", PROGRAM, nsqd.tcp_address, handlers]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            assert [process.stdout.readline() for _ in range(2)] == ["began\n"] * 2
            process.send_signal(number)
            if handlers == "forever":
                # 4: nsqd has heard CLS from both, so they stop at the same time.
                wait_for(lambda: [channel_stats(nsqd, channel=name)["clients"][0]["state"] for name in "ab"] == [4, 4])
                process.send_signal(signal.SIGINT)
            assert process.communicate()[0] == "stopped\n"
            assert process.returncode == 0
        finally:
            process.kill()
        left = 1 if handlers == "forever" else 0
        counts = {"depth": left, "in_flight_count": 0, "requeue_count": left, "timeout_count": 0}
        # nsqd may read the last answers only when the process has ended.
        wait_for(lambda: all(channel_stats(nsqd, channel=name).items() >= counts.items() for name in "ab"), f"{counts}")


@pytest.mark.parametrize("own_thread", [True, False])
def test_readers_join_a_running_group(own_thread: bool) -> None:
    """Those that have stopped leave it, the last one ends its thread, and a Reader joins once, from any thread."""
    with running_nsqd() as nsqd, Producer(nsqd.tcp_address) as producer:
        bodies: list[bytes] = []
        first, second, third = (reader_of(nsqd, name, lambda message: bodies.append(message.body)) for name in "abc")
        group = ReaderGroup(first, own_thread=own_thread)
        with pytest.raises(NotRunning, match="the group is new"):
            group.add(second)
        with group:
            gevent.get_hub().threadpool.apply(group.add, (second,))
            wait_for(lambda: connected(group))
            producer.publish("t", b"x")
            wait_for(lambda: bodies == [b"x", b"x"])
            for wrong in (second, "Reader"):
                with pytest.raises(InvalidOption):
                    group.add(wrong)  # type: ignore[arg-type]
            first.stop()
            first.wait()
            group.add(third)
            assert group.readers == (second, third)
        assert states(group) == ["stopped", "stopped"]
        with pytest.raises(NotRunning):
            group.add(first)
        assert first.stats()["state"] == "stopped"
