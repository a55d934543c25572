"""One Producer for all threads, in processes that patch nothing and in those that patch everything."""

import pytest

from gnsq_like.errors import NO_DESCRIPTORS
from tests.support.daemons import KINDS, running_nsqd, wait_for
from tests.support.patient import NsqdHTTPClient
from tests.support.scripts import run_script


@pytest.fixture(params=KINDS)
def nsqd(request):
    with running_nsqd(request.param) as daemon:
        yield daemon


def messages(nsqd, topic="t"):
    with NsqdHTTPClient(nsqd.http_address) as client:
        [found] = client.stats(topic=topic)["topics"]
        return found["message_count"]


def clients(nsqd):
    with NsqdHTTPClient(nsqd.http_address) as client:
        return len(client.stats()["producers"] or [])


def test_fifty_plain_threads_share_one(nsqd):
    """With no hub anywhere but in the background thread."""
    [line] = run_script(
        """
        import sys, threading
        from gnsq_like import Producer

        producer = Producer(sys.argv[1], timeout=30)
        answered = []

        def work(number):
            for each in range(20):
                producer.publish("t", b"%d %d" % (number, each))
                answered.append(1)
            producer.multi_publish("t", [b"x"] * 5)
            results = [producer.publish_async("t", b"y") for _ in range(5)]
            assert [result.get(timeout=30) for result in results] == [None] * 5

        threads = [threading.Thread(target=work, args=(number,)) for number in range(50)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        from gevent._hub_local import get_hub_if_exists
        print(len(answered), len(producer.stats()["connections"]), get_hub_if_exists())
        assert producer.close()
        """,
        nsqd.tcp_address,
    )
    assert line == "1000 1 None"
    assert messages(nsqd) == 1500


def test_many_producers_share_one_thread(nsqd):
    [line] = run_script(
        """
        import sys, threading, os
        from gnsq_like import Producer

        producers = [Producer(sys.argv[1]) for _ in range(5)]
        before = len(os.listdir("/proc/self/task"))
        for producer in producers:
            producer.publish("t", b"x")
        print(before, len(os.listdir("/proc/self/task")) - before)
        """,
        nsqd.tcp_address,
    )
    # One is the thread of the hub; DNS is not asked for numeric addresses.
    assert line == "1 1"


def test_an_unpatched_process_that_sleeps_keeps_its_connection(nsqd):
    [line] = run_script(
        """
        import sys, time
        from gnsq_like import Producer

        lost = []
        producer = Producer(sys.argv[1], heartbeat_interval=1, on_disconnect=lambda *args: lost.append(args))
        producer.publish("t", b"before")
        time.sleep(3.2)  # longer than nsqd waits for an answer to its heartbeats
        producer.publish("t", b"after")
        print(lost)
        """,
        nsqd.tcp_address,
    )
    assert line == "[]"


@pytest.mark.parametrize("patched", [False, True])
def test_a_hub_that_slept_reads_before_it_writes(nsqd, patched):
    """With the connections in the caller's hub, nsqd gives up a client that sleeps: the next publish sees it first."""
    [line] = run_script(
        f"""
        import logging, sys, time
        logging.disable()
        sleep = time.sleep
        if {patched}:
            from gevent import monkey
            monkey.patch_all()
        from gnsq_like import Producer

        producer = Producer(sys.argv[1], heartbeat_interval=1, own_thread={None if patched else False})
        producer.publish("t", b"before")
        sleep(3.2)  # longer than nsqd waits for an answer to its heartbeats
        producer.publish("t", b"after")
        print(producer.stats()["unknown"])
        """,
        nsqd.tcp_address,
    )
    assert line == "0"
    assert messages(nsqd) == 2


def test_greenlets_of_an_unpatched_process_do_not_block_each_other(nsqd):
    lines = run_script(
        """
        import sys, time, gevent
        from gnsq_like import Producer, Reader

        producer = Producer(sys.argv[1])
        turns = []
        stop = []

        def turn():
            while not stop:
                turns.append(1)
                time.sleep(0.0001)  # a thread that releases the GIL and takes it at once would starve the others
                gevent.sleep(0)

        other = gevent.spawn(turn)
        got = []

        def handler(message):
            if message.body != b"second":
                producer.publish("t", b"second")
            got.append(message.body)

        with Reader("t", "c", handler, nsqd_tcp_addresses=sys.argv[1], max_in_flight=10):
            gevent.joinall([gevent.spawn(producer.publish, "t", b"first") for _ in range(10)], raise_error=True)
            results = [producer.publish_async("t", b"second") for _ in range(3)]
            gevent.wait(results, timeout=60)
            assert all(result.get() is None for result in results)
            with gevent.Timeout(60):
                while len(got) < 23:
                    gevent.sleep(0.01)
        stop.append(1)
        other.join()
        print(len(turns) > 20)
        """,
        nsqd.tcp_address,
    )
    assert lines == ["True"]


def test_a_patched_process_uses_its_own_hub_and_takes_native_threads(nsqd):
    lines = run_script(
        """
        from gevent import monkey
        monkey.patch_all()
        import os, sys, threading, gevent
        from gnsq_like import Producer

        producer = Producer(sys.argv[1])
        producer.publish("t", b"x")
        print(len(os.listdir("/proc/self/task")))
        threads = [threading.Thread(target=producer.publish, args=("t", b"y")) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        pool = gevent.get_hub().threadpool
        calls = [pool.spawn(producer.publish, "t", b"z") for _ in range(20)]
        gevent.joinall(calls)
        assert [call.get() for call in calls] == [None] * 20
        start = monkey.get_original("_thread", "start_new_thread")
        done = gevent.get_hub().loop.async_()
        answers = []

        def native():
            answers.append(producer.publish("t", b"native"))
            answers.append(producer.publish_async("t", b"native").get(timeout=60))

        start(native, ())
        with gevent.Timeout(60):
            while len(answers) < 2:
                gevent.sleep(0.01)
        print(answers)
        """,
        nsqd.tcp_address,
    )
    assert lines == ["1", "[None, None]"]
    assert messages(nsqd) == 43


def test_a_patched_process_whose_first_publish_comes_from_a_native_thread(nsqd):
    lines = run_script(
        """
        from gevent import monkey
        monkey.patch_all()
        import sys, gevent
        from gnsq_like import Producer

        producer = Producer(sys.argv[1])
        call = gevent.get_hub().threadpool.spawn(producer.publish, "t", b"x")
        assert call.get(timeout=60) is None
        producer.publish("t", b"y")
        print("both")
        """,
        nsqd.tcp_address,
    )
    assert lines == ["both"]


@pytest.mark.parametrize("patched", [False, True])
def test_what_is_pending_at_exit_is_flushed(nsqd, patched):
    run_script(
        f"""
        if {patched}:
            from gevent import monkey
            monkey.patch_all()
        import sys
        from gnsq_like import Producer

        producer = Producer(sys.argv[1], batching=True, linger=60, timeout=100)
        producer.publish("t", b"connects", timeout=20)
        for _ in range(100):
            producer.publish_async("t", b"x")
        """,
        nsqd.tcp_address,
    )
    wait_for(lambda: messages(nsqd) == 101)


@pytest.mark.parametrize("patched", [False, True])
def test_what_is_pending_at_exit_before_the_first_connection_is_sent(nsqd, patched):
    run_script(
        f"""
        if {patched}:
            from gevent import monkey
            monkey.patch_all()
        import sys
        from gnsq_like import Producer

        producer = Producer(sys.argv[1])
        for _ in range(100):
            producer.publish_async("t", b"x")
        """,
        nsqd.tcp_address,
    )
    wait_for(lambda: messages(nsqd) == 100)


@pytest.mark.parametrize("patched", [False, True])
def test_exit_waits_little_for_an_nsqd_that_is_away_and_says_what_is_lost(nsqd, patched):
    address = nsqd.tcp_address
    nsqd.kill()
    [line] = run_script(
        f"""
        if {patched}:
            from gevent import monkey
            monkey.patch_all()
        import logging, sys
        from gnsq_like import Producer

        package = logging.getLogger("gnsq_like")
        package.propagate = False
        package.addHandler(logging.StreamHandler(sys.stdout))
        logging.getLogger("gnsq_like.discovery.outages").setLevel(logging.ERROR)
        producer = Producer(sys.argv[1], timeout=3600)
        for _ in range(100):
            producer.publish_async("t", b"x")
        """,
        address,
    )
    assert "100 publishes are not confirmed" in line
    assert f"no connection to {address}: Connection refused" in line


@pytest.mark.parametrize("patched", [False, True])
def test_a_producer_that_is_dropped_warns_sends_what_is_pending_and_is_closed(nsqd, patched):
    [warning, connected] = run_script(
        f"""
        if {patched}:
            from gevent import monkey
            monkey.patch_all()
        import sys, time, warnings
        import gevent
        from gnsq_like import NsqdHTTPClient, Producer

        closed = []
        producer = Producer(sys.argv[1], on_disconnect=lambda *arguments: closed.append(arguments))
        producer.publish("t", b"x")
        producer.publish_async("t", b"x")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            del producer
        print(*[str(each.message) for each in caught if each.category is ResourceWarning])
        with gevent.Timeout(60):
            while not closed:
                gevent.sleep(0.01)
        print(closed)
        """,
        nsqd.tcp_address,
    )
    assert warning == f"<Producer {nsqd.tcp_address}> was dropped without close()"
    assert connected == f"[({nsqd.tcp_address!r}, None)]"
    assert messages(nsqd) == 2


def test_a_thread_that_is_interrupted_abandons_its_answer(nsqd):
    lines = run_script(
        """
        import signal, sys
        from gnsq_like import Producer

        # What has less time than linger goes at once.
        producer = Producer(sys.argv[1], batching=True, linger=30, timeout=60)
        producer.publish("t", b"x", timeout=20)

        def interrupt(*_):
            raise KeyboardInterrupt

        signal.signal(signal.SIGALRM, interrupt)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            producer.publish("t", b"interrupted")
        except KeyboardInterrupt:
            print("interrupted")
        producer.publish("t", b"y", timeout=20)
        """,
        nsqd.tcp_address,
    )
    assert lines == ["interrupted"]
    assert messages(nsqd) == 2


def test_without_descriptors_results_are_ready_in_time(nsqd):
    """The first exception of a gevent AsyncResult imports a module."""
    lines = run_script(
        """
        import logging, os, sys
        import gevent
        from gnsq_like import Producer
        from tests.support.processes import no_descriptors

        logging.disable(logging.WARNING)  # of failed tries
        gevent.sleep(0)  # makes the hub
        with Producer(sys.argv[1], own_thread=False) as producer, no_descriptors(os.getpid()):
            results = [producer.publish_async("t", b"x", timeout=seconds) for seconds in (0.1, 0.2, 0.3)]
            gevent.wait(results, timeout=30)
            for result in results:
                print(repr(result.exception))
        """,
        nsqd.tcp_address,
    )
    assert [line.split("(")[0] for line in lines] == ["NotSent"] * 3
    assert all(NO_DESCRIPTORS in line for line in lines)


def test_without_descriptors_nothing_is_sent_and_the_process_goes_on(nsqd):
    """libev would end it while the background thread makes its hub."""
    lines = run_script(
        """
        import os, sys
        from gnsq_like import Producer
        from gnsq_like.errors import NotSent
        from tests.support.processes import no_descriptors

        with Producer(sys.argv[1]) as producer:
            with no_descriptors(os.getpid()):
                for send in (producer.publish, producer.publish_async):
                    try:
                        send("t", b"x")
                    except NotSent as exc:
                        print(exc)
            producer.publish("t", b"x")
        """,
        nsqd.tcp_address,
    )
    assert len(lines) == 2
    assert all(NO_DESCRIPTORS in line for line in lines)
    assert messages(nsqd) == 1


def test_fifty_threads_without_descriptors_get_not_sent_and_little_log(nsqd):
    """Each with a Producer of its own. Nor can the HTTP client be loaded, for nsqlookupd."""
    *lines, records, seconds = run_script(
        """
        from gevent import monkey
        monkey.patch_all()
        import logging, os, sys, threading, time
        import gevent
        from gnsq_like import Producer, errors
        from tests.support.processes import no_descriptors

        class Records(logging.Handler):
            count = 0
            def emit(self, record):
                self.count += errors.NO_DESCRIPTORS in record.getMessage()

        records = Records()
        package = logging.getLogger("gnsq_like")
        package.addHandler(records)
        package.propagate = False
        errors.NotSent, gevent.sleep(0)  # loads, and makes the hub
        producers = [Producer(sys.argv[1], lookupd_http_addresses=sys.argv[2], timeout=3) for _ in range(50)]

        def publish(producer):
            try:
                producer.publish("t", b"x")
            except errors.NotSent as exc:
                print(exc)

        def all_publish():
            threads = [threading.Thread(target=publish, args=(producer,)) for producer in producers]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        began = time.monotonic()
        with no_descriptors(os.getpid()):
            all_publish()
        took = time.monotonic() - began
        count = records.count
        all_publish()
        for producer in producers:
            producer.close()
        print(count)
        print(took)
        """,
        nsqd.tcp_address,
        nsqd.http_address,  # which is no nsqlookupd, but answers
    )
    assert len(lines) == 50
    assert all(NO_DESCRIPTORS in line for line in lines)
    assert int(records) <= float(seconds) + 1
    assert messages(nsqd) == 50


def test_a_first_publish_loads_nothing_that_it_does_not_need(nsqd):
    lines = run_script(
        """
        import sys
        import gevent
        gevents = set(sys.modules)
        from gnsq_like import Producer
        with Producer(sys.argv[1]) as producer:
            producer.publish("t", b"x")
        unneeded = {"asyncio", "email", "gevent.threadpool", "http", "random", "requests", "ssl", "zlib"}
        print(sorted(unneeded & (set(sys.modules) - gevents)))
        """,
        nsqd.tcp_address,
    )
    assert lines == ["[]"]


def test_when_the_thread_of_the_connections_has_ended_the_next_one_opens_its_own(nsqd):
    """A later thread may have the id of one that has ended."""
    lines = run_script(
        """
        import gc, logging, sys, threading
        from gnsq_like import Producer

        logging.basicConfig(stream=sys.stdout, format="%(message)s", force=True)
        opened = []
        producer = Producer(sys.argv[1], own_thread=False, timeout=30, on_connect=opened.append)
        for _ in range(10):
            thread = threading.Thread(target=producer.publish, args=("t", b"x"))
            thread.start()
            thread.join()
        gc.collect()
        producer.publish("t", b"x")
        print(producer.stats()["confirmed"], producer.close(), len(opened) > 1)
        """,
        nsqd.tcp_address,
    )
    assert lines[-1] == "11 True True"
    said = f"the thread of the connections of <Producer {nsqd.tcp_address}> has ended; they are opened anew"
    assert lines.count(said) == 10
    assert messages(nsqd) == 11
    wait_for(lambda: clients(nsqd) == 0, "the end of all connections")


def test_a_result_of_a_thread_that_has_ended_is_there_by_its_deadline(nsqd):
    [line] = run_script(
        """
        import sys, threading
        from gnsq_like import Producer
        from gnsq_like.errors import NotSent, OutcomeUnknown

        producer = Producer(sys.argv[1], own_thread=False, timeout=30)
        results = []

        def publish():
            producer.publish("t", b"x")
            results.append(producer.publish_async("t", b"x", timeout=1))

        thread = threading.Thread(target=publish)
        thread.start()
        thread.join()
        try:
            print(results[0].get())
        except (NotSent, OutcomeUnknown) as exc:
            print(exc)
        """,
        nsqd.tcp_address,
    )
    assert line.endswith("the thread of the connections does not respond")
