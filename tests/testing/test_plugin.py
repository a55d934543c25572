"""The pytest plugin in use: users' tests, run by pytest in a process of its own."""

from __future__ import annotations

import configparser
import sys
from pathlib import Path

import pytest

import gnsq_like

pytest_plugins = ["pytester"]
#: Seconds: a suite of tests within each test, some with processes for each of theirs.
pytestmark = [pytest.mark.commands, pytest.mark.timeout(600)]

#: Where setup.cfg and the package are.
ROOT = Path(gnsq_like.__file__).resolve().parents[1]

#: The beginning of a gevent application's test file.
PATCH = "from gevent import monkey\nmonkey.patch_all()\n"


@pytest.fixture
def suite(pytester, monkeypatch):
    """Runs a test file with the plugin, and warnings as errors; options may follow."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    def run(source, *options):
        pytester.makepyfile(source)
        return pytester.runpytest_subprocess(
            "-p", "gnsq_like.testing.plugin", "-W", "error", "--strict-markers", "-p", "no:cacheprovider", *options
        )

    return run


# A user's tests, which block on plain sockets and threads; the same tests run where everything is patched, and with
# daemons of every kind.
EVERYTHING = """
import socket, threading, time
import pytest
from gnsq_like import NsqdHTTPClient, Producer, Reader


def test_plain_sockets(nsqd):
    host, port = nsqd.tcp_address.split(":")
    with socket.create_connection((host, int(port)), timeout=30) as sock:
        sock.sendall(b"  V2PUB clicks\\n\\x00\\x00\\x00\\x01a")
        assert sock.recv(100).endswith(b"OK")
    nsqd.wait_until("clicks", messages=1)


def test_each_test_has_an_empty_one(nsqd):
    assert nsqd.topics() == {}


def test_threads(nsqd):
    def publish():
        with NsqdHTTPClient(nsqd.http_address) as client:
            client.publish("clicks", b"from a thread")
    nsqd.create_channel("clicks", "archive")
    threads = [threading.Thread(target=publish) for _ in range(5)]
    for thread in threads:
        thread.start()
    nsqd.wait_until("clicks", "archive", depth=5)
    for thread in threads:
        thread.join()
    bodies = {message.body for message in nsqd.messages("clicks", "archive", count=5)}
    assert bodies == {b"from a thread"}


def test_a_reader_and_a_producer(nsqd):
    seen = []
    with Producer(nsqd.tcp_address) as producer:
        producer.publish("clicks", b"a")
        with Reader("clicks", "archive", lambda m: seen.append(m.body), nsqd_tcp_addresses=nsqd.tcp_address):
            nsqd.wait_until("clicks", "archive", clients=1)
            nsqd.wait_until("clicks", "archive", messages=1, left=0)
        assert seen == [b"a"]
    nsqd.wait_until("clicks", "archive", clients=0)


def test_messages_are_looked_at_and_taken(nsqd):
    nsqd.multi_publish("clicks", [b"a", b"b", b"c"])
    assert [m.body for m in nsqd.messages("clicks", finish=False)] == [b"a", b"b", b"c"]
    assert [(m.body, m.attempts) for m in nsqd.messages("clicks", count=2)] == [(b"a", 2), (b"b", 2)]
    assert [m.body for m in nsqd.messages("clicks")] == [b"c"]
    assert nsqd.messages("clicks") == []
    nsqd.publish("clicks", b"d")
    assert [m.body for m in nsqd.messages("clicks", count=1)] == [b"d"]
    with pytest.raises(AssertionError, match="did not give 1 messages within 0.1 s, but 0: none"):
        nsqd.messages("clicks", count=1, timeout=0.1)
    nsqd.publish("clicks", b"e")
    with pytest.raises(AssertionError, match="did not give 2 messages within 2 s, but 1: b.e."):
        nsqd.messages("clicks", count=2, timeout=2)
    assert [m.body for m in nsqd.messages("clicks", count=1)] == [b"e"]
    nsqd.create_channel("views", "archive")
    with pytest.raises(AssertionError, match="name one of .'archive'."):
        nsqd.messages("views")


@pytest.mark.nsqd(max_msg_size=10, msg_timeout=30.0)
def test_options(nsqd):
    nsqd.publish("clicks", b"x" * 10)
    with pytest.raises(Exception, match="MSG_TOO_BIG"):
        nsqd.publish("clicks", b"x" * 11)


def test_stopped_and_started_on_the_same_ports(nsqd):
    before = (nsqd.tcp_address, nsqd.http_address)
    for end in (nsqd.stop, nsqd.kill):
        end()
        assert not nsqd.is_running
        for address in before:
            where = ("127.0.0.1", int(address.split(":")[1]))
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(where)
            # No other program gets the port meanwhile.
            with socket.socket() as other, pytest.raises(OSError, match="in use"):
                other.bind(where)
        nsqd.start()
        assert (nsqd.tcp_address, nsqd.http_address) == before
        nsqd.publish("clicks", b"a")


def test_killed_it_loses_what_was_in_memory_and_stopped_it_keeps_all(nsqd):
    for end, kept in ((nsqd.kill, 0), (nsqd.stop, 1)):
        nsqd.create_channel("clicks", "archive")
        nsqd.publish("clicks", b"a")
        nsqd.wait_until("clicks", "archive", depth=1)
        end()
        nsqd.start()
        assert nsqd.depth("clicks", "archive") == kept


def test_registered_with_the_lookupd_that_the_test_has(nsqlookupd, nsqd):
    assert nsqd.lookupd_http_addresses == [nsqlookupd.http_address]
    nsqd.create_channel("clicks", "archive")
    found = nsqlookupd.wait_until("clicks", producers=1, channels=["archive"])
    assert [node.tcp_address for node in found.producers] == [nsqd.tcp_address]


@pytest.mark.nsqd(max_msg_size=1000)
def test_a_cluster(nsq_cluster):
    cluster = nsq_cluster(3, lookupds=2, max_rdy_count=100)
    assert [len(cluster.nsqds), len(cluster.lookupds)] == [3, 2]
    assert len({nsqd.node_id for nsqd in cluster.nsqds}) == 3
    for nsqd in cluster.nsqds:
        nsqd.create_channel("clicks", "archive")
        nsqd.publish("clicks", b"a")
    cluster.wait_until("clicks", "archive", depth=3)
    seen = []
    reader = Reader("clicks", "archive", seen.append, lookupd_http_addresses=cluster.lookupd_http_addresses)
    with reader:
        cluster.wait_until("clicks", "archive", left=0, clients=3)
    assert {message.nsqd_address for message in seen} == set(cluster.nsqd_tcp_addresses)
    assert len({message.id for message in seen}) == 3
    cluster.nsqds[0].stop()
    assert cluster.channel("clicks", "archive").messages == 2


def test_through_a_proxy(nsqd, nsq_proxy):
    proxy = nsq_proxy(nsqd)
    proxy.to_client.cut_at(0)
    with Producer(proxy.address) as producer:
        producer.publish("clicks", b"a")
    nsqd.wait_until("clicks", messages=1)


def test_the_last_counts_are_reported(nsqd):
    nsqd.publish("clicks", b"a")
    with pytest.raises(AssertionError) as failed:
        nsqd.wait_until("clicks", "archive", depth=1, timeout=0.05)
    assert str(failed.value) == (
        f"not within 0.05 s: nsqd {nsqd.tcp_address}: clicks/archive with depth 1; "
        "last seen: there is no channel archive of clicks; channels: none"
    )
    nsqd.create_channel("clicks", "archive")
    with pytest.raises(AssertionError, match="clicks/archive with depth 0 and clients 2; last seen: depth 1, "
                       "in_flight 0, deferred 0, left 1, clients 0, messages 1, requeued 0, timed_out 0"):
        nsqd.wait_until("clicks", "archive", depth=0, clients=2, timeout=0.05)
    with pytest.raises(ValueError, match="clients=1: the counts here are depth, messages; name a channel"):
        nsqd.wait_until("clicks", clients=1)
    with pytest.raises(ValueError, match="the counts here are depth, in_flight, .*, timed_out$"):
        nsqd.wait_until("clicks", "archive", paused=1)
    with pytest.raises(ValueError, match="give at least one of depth, messages"):
        nsqd.wait_until("clicks")
    nsqd.stop()
    with pytest.raises(AssertionError, match="last seen: no answer .*refused"):
        nsqd.wait_until("clicks", messages=1, timeout=0.05)
"""

TESTS = EVERYTHING.count("\ndef test_")


@pytest.mark.parametrize("prefix", ["", PATCH], ids=["unpatched", "patched"])
def test_a_users_suite(suite, prefix):
    suite(prefix + EVERYTHING).assert_outcomes(passed=TESTS)


def test_a_users_suite_with_our_daemons_as_processes(suite):
    some = "taken or same_ports or registered or killed"
    suite(EVERYTHING, "--nsq=process", "-k", some).assert_outcomes(passed=4, deselected=TESTS - 4)


@pytest.mark.real_nsqd
@pytest.mark.parametrize("prefix", ["", PATCH], ids=["unpatched", "patched"])
def test_a_users_suite_with_the_real_daemons(suite, prefix, pytester):
    pytester.makeini("[pytest]\nnsq = real\n")
    suite(prefix + EVERYTHING).assert_outcomes(passed=TESTS)


@pytest.mark.parametrize("kind", ["thread", "hub"])
def test_the_test_may_have_a_hub_itself(suite, kind):
    source = """
        import gevent
        from gevent import socket

        def test_greenlets(nsqd):
            def publish():
                with socket.create_connection(("127.0.0.1", int(nsqd.tcp_address.split(":")[1])), timeout=30) as sock:
                    sock.sendall(b"  V2PUB clicks\\n\\x00\\x00\\x00\\x01a")
                    assert sock.recv(100).endswith(b"OK")
            gevent.joinall([gevent.spawn(publish) for _ in range(5)], raise_error=True)
            nsqd.wait_until("clicks", messages=5)
            assert len(nsqd.messages("clicks")) == 5
    """
    suite(source, f"--nsq={kind}").assert_outcomes(passed=1)


# -- the clock --------------------------------------------------------------------------------------

CLOCK = """
import pytest
from gnsq_like import Reader, Requeue

def test_a_message_requeued_for_an_hour_comes_back_at_once(nsqd, nsq_clock):
    attempts = []
    def handler(message):
        attempts.append(message.attempts)
        if message.attempts == 1:
            raise Requeue(delay=3600, backoff=False)
    nsqd.create_channel("clicks", "archive")
    with Reader("clicks", "archive", handler, nsqd_tcp_addresses=nsqd.tcp_address):
        nsqd.publish("clicks", b"a")
        nsqd.wait_until("clicks", "archive", deferred=1)
        nsq_clock.advance(3599)
        assert nsqd.deferred("clicks", "archive") == 1
        nsq_clock.advance(1)
        nsqd.wait_until("clicks", "archive", left=0)
    assert attempts == [1, 2]

@pytest.mark.nsqd(msg_timeout=0.01)
def test_without_it_no_message_times_out(nsqd, nsq_clock):
    nsqd.create_channel("clicks", "archive")
    reader = Reader("clicks", "archive", lambda message: message.enable_async(), nsqd_tcp_addresses=nsqd.tcp_address)
    reader.start()
    nsqd.publish("clicks", b"a")
    nsqd.wait_until("clicks", "archive", in_flight=1)
    with pytest.raises(AssertionError):
        nsqd.wait_until("clicks", "archive", timed_out=1, timeout=0.1)
    nsq_clock.advance(0.01)
    assert nsqd.channel("clicks", "archive").timed_out == 1
    reader.stop(timeout=0)

def test_deferred(nsq_cluster, nsq_clock):
    cluster = nsq_cluster(2)
    for nsqd in cluster.nsqds:
        nsqd.create_channel("clicks", "archive")
        nsqd.publish("clicks", b"a", defer=60)
    cluster.wait_until("clicks", "archive", deferred=2)
    nsq_clock.advance(60)
    assert cluster.depth("clicks", "archive") == 2

def test_nsqlookupd(nsqd, nsqlookupd, nsq_clock):
    nsqd.create_channel("clicks", "archive")
    nsqlookupd.wait_until("clicks", producers=1)
    nsqlookupd.http.tombstone("clicks", nsqd.http_address)
    nsqlookupd.wait_until("clicks", producers=0)
    nsq_clock.advance(44)
    nsqlookupd.wait_until("clicks", producers=0)
    nsq_clock.advance(1)
    nsqlookupd.wait_until("clicks", producers=1)
    nsq_clock.advance(300)
    nsqlookupd.wait_until("clicks", producers=0, channels=["archive"])

def test_forward_only(nsq_clock):
    before = nsq_clock(), nsq_clock.wall()
    with pytest.raises(ValueError, match="forward only"):
        nsq_clock.advance(-1)
    nsq_clock.advance(2)
    assert (nsq_clock() - before[0], nsq_clock.wall() - before[1]) == pytest.approx((2, 2))
"""


@pytest.mark.parametrize("prefix", ["", PATCH], ids=["unpatched", "patched"])
def test_the_clock_is_moved_by_the_test(suite, prefix):
    suite(prefix + CLOCK).assert_outcomes(passed=5)


def test_where_the_clock_cannot_be_moved_the_test_is_skipped(suite):
    result = suite(CLOCK, "--nsq=process", "-rs")
    result.assert_outcomes(skipped=5)
    result.stdout.fnmatch_lines(["*--nsq=process: its clock cannot be moved"])


# -- errors -----------------------------------------------------------------------------------------


def test_a_wrong_option_is_named(suite):
    source = """
        import pytest

        @pytest.mark.nsqd(msg_timeot=1)
        def test_it(nsqd):
            pass

        @pytest.mark.nsqd(60)
        def test_that(nsqd):
            pass

        @pytest.mark.nsqd(msg_timeout="1s")
        def test_a_text(nsqd):
            pass
    """
    result = suite(source)
    result.assert_outcomes(errors=3)
    result.stdout.fnmatch_lines(["*invalid option msg_timeout='1s': it must be seconds, as a number"])
    result.stdout.fnmatch_lines(["*invalid option msg_timeot=1: nsqd has no such option; did you mean msg_timeout?"])
    result.stdout.fnmatch_lines(["*@pytest.mark.nsqd takes options by name, as in nsqd(msg_timeout=1)"])


def test_a_real_one_that_is_not_there(suite, pytester, monkeypatch):
    result = suite("def test_it(nsqd):\n    pass", "--nsq=real", "--nsq-bin=nowhere")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["there is no nsqd in nowhere (--nsq-bin)"])
    monkeypatch.setenv("PATH", "/nowhere")
    result = suite("def test_it(nsqd):\n    pass", "--nsq=real")
    result.stdout.fnmatch_lines(["--nsq=real: there is no nsqd on PATH"])
    result.stdout.no_fnmatch_line("*Traceback*")
    pytester.makeini("[pytest]\nnsq = imaginary\n")
    result = suite("def test_it():\n    pass")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*nsq = imaginary: it must be one of auto, thread, hub, process, real"])


@pytest.mark.parametrize("missing", ["click", "rich"])
def test_processes_without_the_command_line(suite, pytester, missing):
    pytester.makeconftest(f"import sys\nsys.modules[{missing!r}] = None")
    source = """
        import pytest
        from gnsq_like.errors import InvalidOption
        from gnsq_like.testing import running_nsqd

        def test_fixture(nsqd):
            pass

        def test_cluster(nsq_cluster):
            nsq_cluster()

        def test_without_the_plugin():
            with pytest.raises(InvalidOption, match="is not installed"):
                running_nsqd(kind="process").__enter__()
    """
    result = suite(source, "--nsq=process")
    result.assert_outcomes(passed=1, errors=1, failed=1)
    sentence = f"--nsq=process: {missing} is not installed; processes need the command line: install the extra [[]cli]"
    result.stdout.fnmatch_lines([sentence])
    result.stdout.no_fnmatch_line("*plugin.py:*")


# -- for tests that do not use it -------------------------------------------------------------------


def entry_point():
    setup = configparser.ConfigParser(interpolation=None)
    setup.read(ROOT / "setup.cfg")
    return setup["options.entry_points"]["pytest11"].strip()


def test_installing_installs_it_and_it_loads_next_to_nothing(pytester, monkeypatch):
    """With the metadata that pip writes for setup.cfg, and a test that does not use the plugin."""
    info = pytester.mkdir("site") / "gnsq_like-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: gnsq-like\nVersion: 0\n")
    (info / "entry_points.txt").write_text(f"[pytest11]\n{entry_point()}\n")
    monkeypatch.setenv("PYTHONPATH", f"{info.parent}:{ROOT}")
    monkeypatch.delenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", raising=False)
    pytester.makepyfile(
        """
        import socket, sys

        def test_what_is_loaded(pytestconfig):
            assert pytestconfig.pluginmanager.has_plugin("gnsq_like")
            ours = {name for name in sys.modules if name.partition(".")[0] == "gnsq_like"}
            assert ours - {"gnsq_like", "gnsq_like._lazy", "gnsq_like._version"} == {
                "gnsq_like.testing", "gnsq_like.testing.plugin"
            }
            assert not {"gevent", "greenlet", "requests"} & set(sys.modules)
            assert "ssl" not in sys.modules or "asyncio" in sys.modules  # which pytest loads on 3.14
        """
    )
    loaded = "import sys, gnsq_like.testing.plugin; print({'gevent', 'greenlet', 'requests', 'ssl'} & set(sys.modules))"
    assert pytester.run(sys.executable, "-c", loaded).stdout.str() == "set()"
    result = pytester.runpytest_subprocess("-W", "error", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=1)
    listed = pytester.runpytest_subprocess("--fixtures", "-p", "no:cacheprovider").stdout.str()
    for name in ("nsqd", "nsqlookupd", "nsq_cluster", "nsq_proxy", "nsq_clock"):
        assert f"\n{name} -- " in listed
    assert "--nsq-bin=DIR" in pytester.runpytest_subprocess("--help").stdout.str()


def test_fixtures_of_the_same_names_come_first(suite, pytester):
    pytester.makeconftest("import pytest\n\n@pytest.fixture\ndef nsqd():\n    return 'mine'")
    suite("def test_it(nsqd):\n    assert nsqd == 'mine'").assert_outcomes(passed=1)


def test_using_it_patches_nothing_and_leaves_no_thread(suite):
    source = """
        import os, socket, threading, time
        before = [socket.socket, threading.Thread, time.sleep]

        def test_use(nsqd, nsqlookupd, nsq_proxy):
            nsq_proxy(nsqd)
            nsqd.publish("clicks", b"a")
            assert len(nsqd.messages("clicks")) == 1

        def test_afterwards():
            from gevent import monkey
            assert [socket.socket, threading.Thread, time.sleep] == before
            assert monkey.saved == {}
            from gnsq_like.testing import wait_until
            wait_until(lambda: threading.enumerate() == [threading.main_thread()])
            wait_until(lambda: len(os.listdir("/proc/self/task")) == 1)
    """
    if sys.platform != "linux":
        source = source.replace('wait_until(lambda: len(os.listdir("/proc/self/task")) == 1)', "")
    suite(source).assert_outcomes(passed=2)
