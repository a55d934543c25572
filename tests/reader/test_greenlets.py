"""Which greenlets a Reader has: a reader loop for each connection, one poller, one control loop, and its workers.

Ctrl-C in one of them ends the program as anywhere else, and if the program goes on, so does what the loop does.
"""

from __future__ import annotations

import gc
from collections import Counter

import gevent
import pytest

from gnsq_like import Reader
from tests.support.auth_server import running_auth_server
from tests.support.daemons import running_nsqd, running_nsqlookupd, wait_for
from tests.support.scripts import run_script


def _running() -> Counter[str]:
    """The functions of this package in which greenlets of this thread wait."""
    hub = gevent.get_hub()
    # By type(): isinstance() would have lazy objects of other packages make what they stand for.
    greenlets = [each for each in gc.get_objects() if issubclass(type(each), gevent.Greenlet) and not each.dead]
    functions = [each._run for each in greenlets if each.parent is hub]
    names = [f"{each.__module__}.{each.__qualname__}" for each in functions if hasattr(each, "__qualname__")]
    rooms = ("gnsq_like.connection", "gnsq_like.discovery", "gnsq_like.reader", "gnsq_like.runtime")
    return Counter(each for each in names if each.startswith(rooms))


def test_a_reader_has_a_greenlet_a_connection_one_poller_and_one_control_loop() -> None:
    with (
        running_nsqlookupd() as lookupd,
        running_nsqd(node_id=1, lookupd_tcp_addresses=[lookupd.tcp_address]) as one,
        running_nsqd(node_id=2, lookupd_tcp_addresses=[lookupd.tcp_address]) as two,
        running_nsqd(node_id=3, lookupd_tcp_addresses=[lookupd.tcp_address]) as three,
    ):
        before = _running()
        reader = Reader(
            "t",
            "c",
            lambda message: None,
            nsqd_tcp_addresses=[one.tcp_address, two.tcp_address, three.tcp_address],
            lookupd_http_addresses=lookupd.http_address,
            max_in_flight=10,
        )
        with reader:
            wait_for(lambda: len(reader.stats()["connections"]) == 3)
            wait_for(lambda: sum((_running() - before).values()) == 5)  # after the dials and the first round
            found = _running() - before
        assert found["gnsq_like.connection.connection.Connection._read"] == 3
        assert found["gnsq_like.discovery.lookupd_poller.LookupdPoller._run"] == 1
        assert found["gnsq_like.runtime.control_loop.ControlLoop._run"] == 1
        wait_for(lambda: not _running() - before)


CTRL_C = """
    import gevent, os, signal, sys
    from gnsq_like import Connection, Producer, Reader

    loop, nsqd, lookupd = sys.argv[1:]
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # gevent prints what it passes on to the main greenlet
    pressed = []

    def press(where, value):
        if loop == where and not pressed:
            pressed.append(type(gevent.getcurrent()).__name__)
            os.kill(os.getpid(), signal.SIGINT)
        return value

    producer = Producer(nsqd, own_thread=False, auth_secret=lambda: press("producer's dialler", "secret"))
    received = []
    if loop == "reader":
        def connect():
            connection = Connection(nsqd, auth_secret, on_messages=lambda _, new: received.extend(press(loop, new)))
            connection.connect()
            connection.subscribe("t", "c")
            connection.set_rdy(1)
            return connection
        from gnsq_like.options import ConnectionOptions
        auth_secret = ConnectionOptions(auth_secret="secret", msg_timeout=1)
        first = connect()
    else:
        reader = Reader(
            "t", "c", received.append, lookupd_http_addresses=lookupd, lookupd_poll_interval=0.1,
            discovery_filter=lambda node: press("poller", True),
            auth_secret=lambda: press("reader's dialler", "secret"), max_redial_delay=0.1,
        )
        reader.start()
    publishing = gevent.spawn(producer.publish, "t", b"first", timeout=60)
    try:
        gevent.sleep(60)
    except KeyboardInterrupt:
        print("ended in", *pressed)
    if loop == "reader":
        while first.alive:
            gevent.sleep(0.01)
        second = connect()
    publishing.join()
    received.clear()
    producer.publish("t", b"last", timeout=60)
    while not received:
        gevent.sleep(0.01)
    print("goes on")
"""


@pytest.mark.parametrize("loop", ["reader", "poller", "reader's dialler", "producer's dialler"])
def test_ctrl_c_in_a_loop_reaches_the_program_and_nothing_stops(loop: str) -> None:
    """In the control loop: tests/runtime/test_control_loop.py."""
    with (
        running_auth_server(secret="bob") as auth,
        running_nsqlookupd() as lookupd,
        running_nsqd(lookupd_tcp_addresses=[lookupd.tcp_address], auth_http_addresses=[auth.address]) as nsqd,
    ):
        lines = run_script(CTRL_C, loop, nsqd.tcp_address, lookupd.http_address)
    greenlet = "InnerGreenlet" if loop in ("reader", "producer's dialler") else "Greenlet"
    assert lines == [f"ended in {greenlet}", "goes on"]
