"""Forks: parent and children publish and consume at once, and nobody writes into another's socket. Exits."""

import pytest

from gnsq_like import Reader
from tests.support.certificates import write_certificate
from tests.support.daemons import KINDS, running_nsqd, running_nsqlookupd, wait_for
from tests.support.patient import NsqdHTTPClient
from tests.support.scripts import run_script

#: What a script does in a forked child, and how it ends.
CHILDREN = """
import os

def fork(work, *arguments):
    pid = os.fork()
    if not pid:
        status = 1
        try:
            work(*arguments)
            status = 0
        except BaseException:
            import traceback
            traceback.print_exc()
        finally:
            os._exit(status)
    return pid

def ended_well(pids):
    import gevent
    for pid in pids:
        # The hub runs on meanwhile: Readers warn of one that is blocked.
        while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
            gevent.sleep(0.005)
        assert ended[1] == 0, ended
"""

PATCHES = {
    "nothing": "",
    "everything": "from gevent import monkey; monkey.patch_all()\n",
}


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def nsqd(kind):
    with running_nsqd(kind) as daemon:
        yield daemon


def bodies(nsqd, count, channel="c"):
    """All that is in a channel, read to its end."""
    found: list[bytes] = []
    with Reader("t", channel, lambda m: found.append(m.body), nsqd_tcp_addresses=nsqd.tcp_address, max_in_flight=100):
        wait_for(lambda: len(found) >= count, f"{count} messages")
    return found


def stats(nsqd):
    with NsqdHTTPClient(nsqd.http_address) as client:
        return client.stats()


@pytest.mark.parametrize("own_thread", ["None", "False"])
@pytest.mark.parametrize("patched", PATCHES)
def test_parent_and_four_children_publish_at_once(nsqd, patched, own_thread):
    with NsqdHTTPClient(nsqd.http_address) as client:
        client.create_topic("t")
        client.create_channel("t", "c")
    lines = run_script(
        PATCHES[patched]
        + CHILDREN
        + f"""
import sys
from gnsq_like import Producer

lost = []
producer = Producer(sys.argv[1], own_thread={own_thread}, on_disconnect=lambda *args: lost.append(args))
producer.publish("t", b"before")

def work(who):
    for number in range(200):
        producer.publish("t", b"%d %d" % (who, number))
    assert producer.stats()["confirmed"] == 200 + (who == 0)
    assert producer.close()

pids = [fork(work, who) for who in (1, 2, 3, 4)]
work(0)
ended_well(pids)
print([error for _, error in lost])
""",
        nsqd.tcp_address,
    )
    assert lines == ["[None]"]
    expected = [b"before"] + [b"%d %d" % (who, number) for who in range(5) for number in range(200)]
    assert sorted(bodies(nsqd, len(expected))) == sorted(expected)


@pytest.mark.parametrize("patched", PATCHES)
def test_parent_and_children_consume_at_once(nsqd, patched, tmp_path):
    """The parent's Reader goes on; in a child it is stopped, its messages' answers do nothing, and it starts anew."""
    lines = run_script(
        PATCHES[patched]
        + CHILDREN
        + """
import logging, sys, warnings, gevent
from gnsq_like import Producer, Reader
logging.disable()

total = 400
lost = []
kept = []
counts = {}

def handler(message):
    if message.body == b"keep":
        message.enable_async()
        kept.append(message)
        return
    counts[message.body] = counts.get(message.body, 0) + 1
    gevent.sleep(0.001)  # so that the others get some too

reader = Reader("t", "c", handler, nsqd_tcp_addresses=sys.argv[1], max_in_flight=5,
                on_disconnect=lambda address, error: lost.append(error))
producer = Producer(sys.argv[1])
producer.publish("t", b"keep")
reader.start()
with gevent.Timeout(60):
    while not kept:
        gevent.sleep(0.01)
outgoing, incoming = [], []

def work(pipe):
    assert reader.stats()["state"] == "stopped"
    assert not reader.stats()["connections"]
    kept[0].finish()  # the parent's: were it written, nothing would be left in flight below
    counts.clear()
    assert reader.stop() == 0
    reader.max_in_flight = 5
    reader.start()
    with gevent.Timeout(60):
        while b"end" not in counts and not os.path.exists(sys.argv[2]):
            gevent.sleep(0.01)
    reader.stop()
    os.write(pipe, b"%d\\n" % sum(counts.values()))

pids = []
for _ in range(2):
    read, write = os.pipe()
    pids.append(fork(work, write))
    os.close(write)
    incoming.append(read)
from gnsq_like import NsqdHTTPClient
http = NsqdHTTPClient(sys.argv[3])

def channel():
    return http.stats(topic="t")["topics"][0]["channels"][0]

def left():
    found = channel()
    return found["depth"], found["in_flight_count"]

with gevent.Timeout(60):
    while [each["ready_count"] > 0 for each in channel()["clients"]] != [True] * 3:
        gevent.sleep(0.02)  # else the parent might handle all before the children are there
for number in range(total):
    producer.publish("t", b"%d" % number)
with gevent.Timeout(60):
    while left() != (0, 1):  # the one that was kept is still in flight, in the parent
        gevent.sleep(0.02)
open(sys.argv[2], "w").close()
ended_well(pids)
theirs = [int(os.read(pipe, 100)) for pipe in incoming]
assert not lost, lost
kept[0].finish()
with gevent.Timeout(60):
    while left() != (0, 0):
        gevent.sleep(0.02)
assert reader.stop() == 0
print(sum(counts.values()) + sum(theirs), all(theirs), sum(counts.values()) > 0)
""",
        nsqd.tcp_address,
        str(tmp_path / "done"),
        nsqd.http_address,
    )
    assert lines == ["400 True True"]


def test_children_of_multiprocessing(nsqd, tmp_path):
    """A Producer in a module, used by children that are forked and by those that are spawned."""
    (tmp_path / "work.py").write_text(
        """
import sys
from gnsq_like import Producer

producer = Producer(sys.argv[1])

def work(number):
    producer.publish("t", b"%d" % number)

if __name__ == "__main__":
    import multiprocessing
    work(0)
    number = 0
    for method in ("fork", "spawn"):
        context = multiprocessing.get_context(method)
        children = []
        for _ in range(2):
            number += 1
            children.append(context.Process(target=work, args=(number,)))
        for child in children:
            child.start()
        for child in children:
            child.join()
            assert child.exitcode == 0
    work(5)
"""
    )
    run_script(
        f"""
        import runpy, sys
        sys.path.insert(0, {str(tmp_path)!r})
        sys.argv[0] = {str(tmp_path / "work.py")!r}
        import subprocess, os
        environment = {{**os.environ, "PYTHONPATH": os.getcwd()}}
        done = subprocess.run([sys.executable, sys.argv[0], sys.argv[1]], env=environment)
        assert done.returncode == 0
        """,
        nsqd.tcp_address,
    )
    assert sorted(bodies(nsqd, 6)) == [b"%d" % number for number in range(6)]


def test_a_fork_while_handlers_run_warns(nsqd):
    lines = run_script(
        CHILDREN
        + """
import sys, warnings, gevent
from gnsq_like import Producer, Reader

begun, go = gevent.event.Event(), gevent.event.Event()

def handler(message):
    begun.set()
    go.wait()

producer = Producer(sys.argv[1])
producer.publish("t", b"x")
with Reader("t", "c", handler, nsqd_tcp_addresses=sys.argv[1]):
    begun.wait()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        ended_well([fork(lambda: None)])
    go.set()
print([warning.category.__name__ for warning in caught if "handlers run" in str(warning.message)])
""",
        nsqd.tcp_address,
    )
    assert lines == ["['ResourceWarning']"]


@pytest.mark.parametrize("patch", PATCHES)
def test_a_child_works_where_threads_of_its_parent_had_hubs_and_looked_up_names(nsqd, patch):
    """gevent would wait for the threads of such a hub for ever, or fail in the child's hub."""
    lines = run_script(
        PATCHES[patch]
        + CHILDREN
        + """
import sys, gevent, gevent.socket
from gnsq_like import Producer, Reader

def look_up(message=None):
    return gevent.socket.getaddrinfo("localhost", 1)

def work():
    gevent.sleep(0.01)  # where gevent looks after its pools
    assert gevent.get_hub().threadpool.apply(look_up)
    with Producer(sys.argv[1]) as another:
        another.publish("u", b"x")

with Producer(sys.argv[1]) as producer:
    producer.publish("t", b"x")
with Reader("t", "c", look_up, nsqd_tcp_addresses=sys.argv[1], spawn="thread") as reader:
    gevent.get_hub().threadpool.apply(look_up)
    while not reader.stats()["finished"] or reader.stats()["busy"]:
        gevent.sleep(0.01)
    ended_well([fork(work)])
print("ended")
""",
        nsqd.tcp_address,
    )
    assert lines == ["ended"]


def test_a_child_holds_no_descriptor_of_the_parents_connections(nsqd):
    """Else nsqd would see the end of a connection only when the last child is gone."""
    lines = run_script(
        CHILDREN
        + """
import sys
from gnsq_like import Connection, Producer

producer = Producer(sys.argv[1])
producer.publish("t", b"x")
connection = Connection(sys.argv[1])
connection.connect()
port = int(sys.argv[1].rpartition(":")[2])

def to_nsqd():
    count = 0
    with open("/proc/self/net/tcp") as table:
        lines = table.read().splitlines()[1:]
    for line in lines:
        fields = line.split()
        if int(fields[2].rpartition(":")[2], 16) == port:
            count += f"socket:[{fields[9]}]" in links()
    return count

def links():
    found: list[bytes] = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:
            pass
    return found

assert to_nsqd() == 2, to_nsqd()

def work():
    assert to_nsqd() == 0, to_nsqd()
    assert not connection.alive
    connection.close()

ended_well([fork(work)])
assert connection.alive and to_nsqd() == 2
print("ok")
""",
        nsqd.tcp_address,
    )
    assert lines == ["ok"]


def test_a_greenlet_that_reads_ends_nothing_in_a_child(nsqd):
    """Its finally ends the connection; in the child, that is the parent's."""
    lines = run_script(
        CHILDREN
        + """
import gc, sys
import gevent
from gnsq_like import Connection
from gnsq_like.wire import commands

ends = []
connection = Connection(sys.argv[1], on_close=lambda *end: ends.append(end))
connection.connect()

def work():
    readers = [each for each in gc.get_objects() if isinstance(each, gevent.Greenlet) and "_read" in str(each)]
    assert len(readers) == 1
    gevent.killall(readers)
    connection.close()
    assert not ends

ended_well([fork(work)])
reply = connection.publish(commands.pub("t", b"x"))
assert reply.wait(60) and reply.error is None
connection.close()
print(len(ends))
""",
        nsqd.tcp_address,
    )
    assert lines == ["1"]


@pytest.mark.parametrize("codec", ["snappy", "deflate"])
def test_a_child_says_nothing_over_the_parents_tls(kind, codec, tmp_path):
    """Not a byte, not close_notify: either would break the parent's record numbers or end its stream."""
    cert, key = write_certificate(tmp_path)
    with running_nsqd(kind, tls_cert=cert, tls_key=key) as nsqd:
        lines = run_script(
            CHILDREN
            + f"""
import gc, sys
from gnsq_like import Producer

lost = []
producer = Producer(sys.argv[1], own_thread=False, tls_v1=True, verify=False, {codec}=True,
                    on_disconnect=lambda *args: lost.append(args))
producer.publish("t", b"before")

def use():
    producer.publish("t", b"child")
    assert producer.close()

def forget():
    global producer
    del producer
    gc.collect()

for number, work in enumerate([use, forget]):
    ended_well([fork(work)])
    producer.publish("t", b"after %d" % number)
print(producer.stats()["connections"][sys.argv[1]]["failures"], lost)
""",
            nsqd.tcp_address,
        )
        assert lines == ["0 []"]
        assert sorted(bodies(nsqd, 4)) == [b"after 0", b"after 1", b"before", b"child"]


def test_a_child_touches_nothing_of_a_thread_that_it_does_not_have(nsqd):
    """libev may have been changing that thread's timers as the process forked, and ends one that stops them then."""
    lines = run_script(
        CHILDREN
        + """
import sys
from gnsq_like import Producer

with Producer(sys.argv[1]) as producer:
    producer.publish("t", b"x", timeout=60)
    pool = producer._pool
    [connection] = [each.connection for each in pool.discovery.destinations]
    timers = [pool.control._seconds, connection._seconds]
    sock = connection._transport._sock
    assert [timer.active for timer in timers] == [True, True]

    def work():
        print([timer.active for timer in timers], sock._read_event.loop is not None, flush=True)
        try:
            os.fstat(sock.fileno())
        except OSError:
            print("its descriptor is closed", flush=True)
        producer.publish("t", b"y")

    ended_well([fork(work)])
    producer.publish("t", b"z")
""",
        nsqd.tcp_address,
    )
    assert lines == ["[True, True] True", "its descriptor is closed"]
    [topic] = stats(nsqd)["topics"]
    assert topic["message_count"] == 3


def test_a_child_goes_on_with_no_discovery_and_no_batch_of_its_parent():
    with running_nsqlookupd() as lookupd, running_nsqd(lookupd_tcp_addresses=[lookupd.tcp_address]):
        run_script(
            CHILDREN
            + """
import sys, gevent
from gnsq_like import Producer, Reader

handled, confirmed, seen = [], [], []
options = {"lookupd_http_addresses": sys.argv[1], "lookupd_poll_interval": 0.05,
           "discovery_filter": lambda node: seen.append(node) is None}
producer = Producer(own_thread=False, batching=True, linger=0.2, **options)
reader = Reader("t", "c", lambda message: handled.append(message.body), **options)

def publish(body):
    producer.publish("t", body)
    confirmed.append(body)

publish(b"before")
reader.start()

def handles(bodies):
    with gevent.Timeout(60):
        while handled != bodies or confirmed != bodies:
            gevent.sleep(0.01)

def work():
    seen.clear()
    gevent.sleep(0.5)  # the time in which nothing is to happen
    found = handled, confirmed, seen
    assert found == ([b"before"], [b"before"], []), found

handles([b"before"])
gevent.spawn(publish, b"lingers")
gevent.sleep(0)
ended_well([fork(work)])
handles([b"before", b"lingers"])
reader.stop()
""",
            lookupd.http_address,
        )


def test_at_exit_all_begin_to_end_before_one_is_waited_for_and_before_earlier_hooks():
    lines = run_script(
        """
        import atexit
        from gnsq_like.runtime import owner

        class Thing:
            def __init__(self, name):
                self.name = name

            def forked(self, loop_lives):
                pass

            def last(self, timeout):
                print("last", self.name, timeout > 0)

            def begin(self, timeout):
                print("begin", self.name, timeout > 0)
                return self.name != "stopped"

            def wait(self, timeout):
                print("wait", self.name, timeout > 0)

        atexit.register(print, "first")
        things = [Thing("one"), Thing("stopped"), Thing("two")]
        for thing in [Thing("gone"), *things]:
            owner.register(thing, Thing.forked, begin_to_end=Thing.begin, wait=Thing.wait, at_last=Thing.last)
            del thing
        atexit.register(print, "last")
        """
    )
    begun = ["begin one True", "begin stopped True", "begin two True"]
    assert lines[0] == "last"
    assert sorted(lines[1:4]) == begun
    assert sorted(lines[4:6]) == ["wait one True", "wait two True"]
    assert lines[6:] == ["first", "last two True", "last stopped True", "last one True"]
