"""Hubs, threads, forks and patching: a request never freezes a hub, and works from everywhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gevent
import pytest

from gnsq_like.errors import HTTPRequestFailed
from gnsq_like.runtime.thread_pool import BLOCKING_THREADS, call_blocking
from tests.support.commands import needs_proc
from tests.support.daemons import wait_for
from tests.support.hub import Place, in_hub_thread, in_plain_thread, settle
from tests.support.patient import NsqdHTTPClient
from tests.support.scripted_http import Peer, always, response, scripted

ROOT = Path(__file__).resolve().parents[2]


def slow(seconds: float) -> Any:
    def script(peer: Peer) -> None:
        while peer.request():
            peer.server.over.wait(seconds)
            peer.send(response())

    return script


def run_script(code: str, *arguments: str) -> Any:
    """The last line of a script's output, as JSON. It runs in a new process, where warnings are errors."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_silent_server_does_not_freeze_an_unpatched_hub() -> None:
    asked = threading.Event()

    def script(peer: Peer) -> None:
        peer.request()
        asked.set()
        peer.hang()

    def ask() -> bool:
        asking = gevent.spawn(client.ping)
        while not asked.is_set() and not asking.dead:
            gevent.sleep(0.01)
        ran_meanwhile = not asking.dead
        with pytest.raises(HTTPRequestFailed, match=r"no answer within 3 s"):
            asking.get()
        return ran_meanwhile

    with scripted(script) as server, NsqdHTTPClient(server.address, timeout=3) as client:
        assert in_hub_thread(lambda: muted(ask))


def test_a_request_that_begins_after_close_leaves_no_connection_open() -> None:
    ended: list[int] = []

    def script(peer: Peer) -> None:
        while peer.request():
            peer.send(response())
        ended.append(1)

    def ask() -> str:
        client.ping()
        free = threading.Event()
        busy = [gevent.spawn(call_blocking, free.wait, 60) for _ in range(BLOCKING_THREADS)]
        asking = gevent.spawn(client.ping)  # and waits for a thread
        settle()
        client.close()
        free.set()
        answer: str = asking.get()
        gevent.joinall(busy)
        return answer

    with scripted(script) as server:
        client = NsqdHTTPClient(server.address)
        assert in_hub_thread(ask) == "OK"
        wait_for(lambda: len(ended) == server.connections == 2)


def test_clients_ask_at_the_same_time() -> None:
    together = threading.Barrier(BLOCKING_THREADS)

    def script(peer: Peer) -> None:
        while peer.request():
            together.wait(60)
            peer.send(response())

    def ask() -> list[str]:
        clients = [NsqdHTTPClient(server.address, timeout=90) for _ in range(BLOCKING_THREADS)]
        greenlets = [gevent.spawn(client.ping) for client in clients]
        gevent.joinall(greenlets, raise_error=True)
        for client in clients:
            client.close()
        return [greenlet.value for greenlet in greenlets]

    with scripted(script) as server:
        assert in_hub_thread(ask) == ["OK"] * BLOCKING_THREADS


@pytest.mark.parametrize("place", [in_hub_thread, in_plain_thread])
def test_a_client_asks_one_request_at_a_time(place: Place) -> None:
    overlaps: list[int] = []

    def script(peer: Peer) -> None:
        while peer.request():
            overlaps.append(len(peer.server.asked) - len(overlaps) - 1)
            peer.send(response())

    def ask() -> None:
        if place is in_hub_thread:
            gevent.joinall([gevent.spawn(client.ping) for _ in range(20)], raise_error=True)
        else:
            with ThreadPoolExecutor(20) as threads:
                list(threads.map(lambda _: client.ping(), range(20)))

    with scripted(script) as server, NsqdHTTPClient(server.address, timeout=60) as client:
        place(ask)
        assert server.connections == 1
    assert overlaps == [0] * 20


def test_waiting_for_the_clients_earlier_request_counts() -> None:
    asked, allowed = threading.Event(), threading.Event()

    def script(peer: Peer) -> None:
        while peer.request():
            if len(peer.server.asked) == 1:
                asked.set()
                allowed.wait(60)
            peer.send(response())

    def ask() -> None:
        slow = NsqdHTTPClient(server.address, timeout=30)
        first = gevent.spawn(slow.ping)
        wait_for(asked.is_set)
        slow._timeout = 0.2
        with pytest.raises(HTTPRequestFailed, match=r"an earlier request has not ended within 0\.2 s"):
            slow.ping()
        with NsqdHTTPClient(server.address) as other:
            assert other.ping() == "OK"
        allowed.set()
        assert first.get() == "OK"
        slow._timeout = 30
        assert slow.ping() == "OK"
        slow.close()

    with scripted(script) as server:
        in_hub_thread(ask)
        assert len(server.asked) == 3


def muted(work: Any) -> Any:
    """``work()``, without the hub's report of each greenlet that ends with an exception."""
    gevent.get_hub().NOT_ERROR = (Exception,)
    return work()


def test_a_callers_timeout_leaves_the_request_its_session_until_it_ends() -> None:
    asked, release = threading.Event(), threading.Event()

    def script(peer: Peer) -> None:
        while request := peer.request():
            if request.body:
                asked.set()
                release.wait(60)
            peer.send(response())

    def ask() -> str:
        timer = gevent.Timeout(60)
        publishing = gevent.spawn(client.publish, "t", b"slow")
        wait_for(asked.is_set)
        publishing.kill(timer, timeout=60)
        assert publishing.exception is timer
        asking = gevent.spawn(client.ping)
        settle()
        assert not asking.dead
        release.set()
        answer: str = asking.get()
        return answer

    with scripted(script) as server, NsqdHTTPClient(server.address, timeout=60) as client:
        assert in_hub_thread(lambda: muted(ask)) == "OK"
        assert server.connections == 1


def test_a_killed_greenlet_abandons_the_request() -> None:
    asked = threading.Event()

    def script(peer: Peer) -> None:
        peer.request()
        asked.set()
        peer.hang()

    def ask() -> bool:
        greenlet = gevent.spawn(client.ping)
        while not asked.is_set():
            gevent.sleep(0.01)
        greenlet.kill(timeout=60)
        return isinstance(greenlet.value, gevent.GreenletExit)

    with scripted(script) as server, NsqdHTTPClient(server.address, timeout=30) as client:
        assert in_hub_thread(ask)


@needs_proc
def test_a_greenlet_that_is_killed_while_it_connects_leaves_no_socket_open() -> None:
    report = run_script(
        """
from gevent import monkey
monkey.patch_all()
import gc, json, sys
import gevent
from gnsq_like import NsqdHTTPClient
from tests.support.daemons import wait_for
from tests.support.peer import connecting, full_listener

ignored = []
sys.unraisablehook = ignored.append
with full_listener() as address, NsqdHTTPClient(address, timeout=60) as client:
    asking = gevent.spawn(client.ping)
    wait_for(lambda: connecting(address) == 2)
    asking.kill()
    del asking
    gc.collect()
wait_for(lambda: not connecting(address))
print(json.dumps([str(each.exc_value) for each in ignored]))
"""
    )
    assert report == []


def test_a_plain_script_makes_no_hub_and_loads_requests_late() -> None:
    with scripted(always(response())) as server:
        report = run_script(
            """
import json, sys
from gnsq_like import LookupdClient, NsqdHTTPClient
LookupdClient("https://me:secret@127.0.0.1:4161")
client = NsqdHTTPClient(sys.argv[1])
early = sorted({"requests", "ssl"} & set(sys.modules))
client.publish("t", b"body")
from gevent._hub_local import get_hub_if_exists
print(json.dumps([early, get_hub_if_exists() is None, "requests" in sys.modules]))
""",
            server.address,
        )
    assert report == [[], True, True]
    assert [asked.body for asked in server.asked] == [b"body"]


#: A script that publishes, forks, and publishes in both processes; argv: address, what to do first.
FORKING = """
import json, os, sys
first = sys.argv[2]
if "patched" in first:
    from gevent import monkey
    monkey.patch_all()
import gevent
from gnsq_like import NsqdHTTPClient
if "hub" in first:
    gevent.sleep(0)

client = NsqdHTTPClient(sys.argv[1])
client.publish("t", b"parent 1")
client.publish("t", b"parent 2")
if "busy" in first:
    gevent.joinall([gevent.spawn(client.publish, "t", b"parent busy") for _ in range(4)], raise_error=True)
if "gevent.fork" in first:
    child = gevent.fork()
else:
    child = os.fork()
if child == 0:
    try:
        client.publish("t", b"child 1")
        client.publish("t", b"child 2")
        client.close()
    except BaseException:
        import traceback
        traceback.print_exc()
        os._exit(1)
    os._exit(0)
status = os.waitpid(child, 0)[1]
client.publish("t", b"parent 3")
client.close()
print(json.dumps(os.waitstatus_to_exitcode(status)))
"""


@pytest.mark.parametrize(
    "first", ["plain", "hub", "hub busy", "hub gevent.fork", "hub busy gevent.fork", "patched", "patched busy"]
)
def test_a_forked_child_opens_its_own_connections(first: str) -> None:
    by_connection: list[list[str]] = []

    def script(peer: Peer) -> None:
        bodies: list[str] = []
        by_connection.append(bodies)
        while asked := peer.request():
            bodies.append(asked.body.decode())
            peer.send(response())

    with scripted(script) as server:
        done = subprocess.run(
            [sys.executable, "-c", FORKING, server.address, first],
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
        )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == 0, done.stderr
    families = [sorted({body.split()[0] for body in bodies}) for bodies in by_connection]
    assert ["child"] in families
    assert ["child", "parent"] not in families
    sent = sorted(body for bodies in by_connection for body in bodies if "busy" not in body)
    assert sent == ["child 1", "child 2", "parent 1", "parent 2", "parent 3"]


def test_patching_after_the_first_request() -> None:
    # A connection made before is of no use afterwards: reading from it would freeze the hub.
    def script(peer: Peer) -> None:
        while peer.request():
            peer.send(response())

    with scripted(script) as server:
        report = run_script(
            """
import json, sys
from gnsq_like import NsqdHTTPClient
client = NsqdHTTPClient(sys.argv[1])
client.ping()
from gevent import monkey
monkey.patch_all(ssl=False)
import gevent
greenlets = [gevent.spawn(client.ping) for _ in range(2)]
gevent.joinall(greenlets, raise_error=True)
client.close()
print(json.dumps([greenlet.value for greenlet in greenlets]))
""",
            server.address,
        )
        assert server.connections == 2
    assert report == ["OK", "OK"]


def test_patched_threads_of_several_hubs_share_a_client() -> None:
    # Real threads beside greenlets: a socket of one hub must not be used in another.
    with scripted(always(response())) as server:
        report = run_script(
            """
from gevent import monkey
monkey.patch_all()
import gevent, json, sys
from gevent.threadpool import ThreadPool
from gnsq_like import NsqdHTTPClient
client = NsqdHTTPClient(sys.argv[1])
pool = ThreadPool(4)
answers = []
for _ in range(5):
    here = [gevent.spawn(client.ping) for _ in range(3)]
    there = [pool.spawn(client.ping) for _ in range(8)]
    answers += [each.get() for each in here + there]
client.close()
print(json.dumps(sorted(set(answers))))
""",
            server.address,
        )
        assert report == ["OK"]
        assert len(server.asked) == 55


def test_exchanges_in_a_patched_process() -> None:
    code = "from gevent import monkey; monkey.patch_all()\nimport sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"
    path = Path(__file__).with_name("test_exchange.py")
    done = subprocess.run(
        [sys.executable, "-c", code, str(path), "-p", "no:cacheprovider", "--durations=0"],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[patched" in done.stdout
    assert "thread" not in done.stdout.replace("threads", "")
