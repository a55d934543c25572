"""One connection against a scripted nsqd, byte by byte."""

import logging
import socket as plain
import struct
import threading
import time

import gevent
import pytest
from gevent import socket
from gevent.event import Event
from gevent.queue import Empty

from gnsq_like.connection.connection import Connection
from gnsq_like.errors import (
    ConnectionFailed,
    ConnectionLost,
    InvalidName,
    NotRunning,
    NotSent,
    NsqdError,
    OutcomeUnknown,
    ProtocolError,
    PublishRefused,
    UsageError,
)
from gnsq_like.options import ConnectionOptions
from gnsq_like.wire import commands
from gnsq_like.wire.frames import ERROR, MESSAGE, RESPONSE, encode_frame, encode_message
from tests.support.peer import CLOSE_WAIT, HEARTBEAT, OK, PATIENCE, free_port, scripted_nsqd

ID = b"0123456789abcdef"
OTHER_ID = b"fedcba9876543210"


class Watcher:
    """What a connection says to whoever owns it."""

    def __init__(self):
        self.passes = []
        self.errors = []
        self.ends = []
        self.answers = 0
        self.ended = Event()
        self.came = Event()

    def callbacks(self):
        return {
            "on_messages": self.on_messages,
            "on_error": lambda _, error: (self.errors.append(error), self.came.set()),
            "on_close": lambda _, error: (self.ends.append(error), self.ended.set()),
            "on_answers": lambda _: setattr(self, "answers", self.answers + 1),
        }

    def on_messages(self, _, messages):
        self.passes.append(messages)
        self.came.set()


@pytest.fixture
def nsqd():
    with scripted_nsqd() as server:
        yield server


@pytest.fixture
def watcher():
    return Watcher()


class PeerInAThread:
    """An nsqd that runs while the hub does not: takes IDENTIFY, and once ``go`` is set what ``script`` says."""

    def __init__(self, script):
        self.go = threading.Event()
        self._script = script
        self._listener = plain.create_server(("127.0.0.1", 0))
        self.address = "{}:{}".format(*self._listener.getsockname())
        self._thread = threading.Thread(target=self._serve)

    def _serve(self):
        peer, _ = self._listener.accept()
        with peer:
            peer.settimeout(PATIENCE)
            peer.recv(4096)
            peer.sendall(OK)
            self.go.wait(PATIENCE)
            self._script(peer)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self.go.set()
        self._thread.join()
        self._listener.close()


class Sink:
    """A script for PeerInAThread: takes all that comes, and answers the publish that is in it."""

    def __init__(self, answer_at=0):
        self.received = bytearray()
        self._answer_at = answer_at
        self._came = threading.Condition()

    def __call__(self, peer):
        while data := peer.recv(1 << 20):
            with self._came:
                before = len(self.received)
                self.received += data
                self._came.notify_all()
            if before < self._answer_at <= len(self.received):
                peer.sendall(OK)

    def block_until(self, count):
        """Block this thread, and its hub, until so many bytes came."""
        with self._came:
            assert self._came.wait_for(lambda: len(self.received) >= count, PATIENCE)


def connect(nsqd, watcher=None, subscribe=False, **options):
    """A connection that stands, and its peer."""
    callbacks = {} if watcher is None else watcher.callbacks()
    connection = Connection(nsqd.address, ConnectionOptions(**options), **callbacks)
    script = gevent.spawn(lambda: [(peer := nsqd.accept()), peer.identify(version="1.3.0", max_rdy_count=2500)][0])
    connection.connect()
    peer = script.get(timeout=PATIENCE)
    if subscribe:
        asked = gevent.spawn(connection.subscribe, "t", "c")
        assert peer.line() == b"SUB t c"
        peer.send(OK)
        asked.get(timeout=PATIENCE)
    return connection, peer


# -- coming about -------------------------------------------------------------------------------------


def test_a_constructor_does_nothing():
    greenlets = gevent.get_hub()
    connection = Connection("127.0.0.1:1")
    assert not connection.alive
    assert "not connected" in repr(connection)
    assert gevent.get_hub() is greenlets


def test_connect_sends_the_options_and_keeps_the_answer(nsqd):
    connection = Connection(nsqd.address, ConnectionOptions(client_id="me", msg_timeout=2.5, heartbeat_interval=10))
    script = gevent.spawn(lambda: nsqd.accept().identify(version="1.3.0", max_rdy_count=7, msg_timeout=2500))
    negotiated = connection.connect()
    fields = script.get(timeout=PATIENCE)
    assert fields["client_id"] == "me"
    assert fields["msg_timeout"] == 2500
    assert fields["heartbeat_interval"] == 10_000
    assert fields["feature_negotiation"] is True
    assert (negotiated.max_rdy_count, negotiated.msg_timeout) == (7, 2.5)
    assert connection.alive
    connection.close()


def test_a_close_while_it_connects_is_not_forgotten(nsqd, watcher):
    connection = Connection(nsqd.address, **watcher.callbacks())
    connecting = gevent.spawn(connection.connect)
    peer = nsqd.accept()
    connection.close()
    peer.identify()
    with pytest.raises(ConnectionFailed, match="closed while it was connecting"):
        connecting.get(timeout=PATIENCE)
    assert peer.ended()
    assert not connection.alive
    assert watcher.ends == []


def test_what_was_closed_before_does_not_connect(nsqd):
    connection = Connection(nsqd.address)
    connection.close()
    with pytest.raises(NotRunning, match="make a new one"):
        connection.connect()
    assert "closed" in repr(connection)


@pytest.mark.parametrize("kind", ["ipv6", "unix"])
def test_other_kinds_of_addresses(kind, tmp_path):
    where = {"address": "::1"} if kind == "ipv6" else {"path": str(tmp_path / "nsqd.sock")}
    with scripted_nsqd(**where) as server:
        connection, peer = connect(server)
        reply = connection.publish(commands.pub("t", b"x"))
        assert peer.line() == b"PUB t"
        peer.send(OK)
        reply.get(PATIENCE)
        connection.close()
        assert peer.ended()


def test_nothing_listens():
    connection = Connection(f"127.0.0.1:{free_port()}")
    with pytest.raises(ConnectionFailed, match="refused"):
        connection.connect()


def test_a_name_that_nobody_knows():
    with pytest.raises(ConnectionFailed, match="resolved"):
        Connection("no-such-host.invalid:4150").connect()


@pytest.mark.parametrize("host", ["foo..bar", "x" * 64 + ".example"])
def test_a_name_that_cannot_be_written_in_dns(host):
    with pytest.raises(ConnectionFailed, match="cannot be resolved") as caught:
        Connection(f"{host}:4150").connect()
    assert isinstance(caught.value.__cause__, UnicodeError)


def test_a_resolver_that_can_start_no_thread():
    """As at the interpreter's exit; here no thread is to be had because each would need too much memory."""
    caught = []

    def work():
        before = threading.stack_size(1 << 46)
        try:
            Connection("localhost:1").connect()
        except Exception as exc:
            caught.append(exc)
        finally:
            threading.stack_size(before)
            gevent.get_hub().destroy(destroy_loop=True)

    thread = threading.Thread(target=work)  # so that its hub has no thread yet that resolves
    thread.start()
    thread.join(PATIENCE)
    [error] = caught
    assert isinstance(error, ConnectionFailed)
    assert isinstance(error.__cause__, RuntimeError)


@pytest.fixture
def no_resolver():
    """All threads that could ask DNS are busy."""
    pool, free = gevent.get_hub().threadpool, threading.Event()
    busy = [pool.spawn(free.wait) for _ in range(pool.maxsize)]
    yield
    free.set()
    gevent.joinall(busy, timeout=PATIENCE)


def test_a_timeout_of_the_caller_passes_through_the_resolver(no_resolver):
    with pytest.raises(gevent.Timeout) as caught, gevent.Timeout(0.05) as theirs:
        Connection("localhost:1").connect()
    assert caught.value is theirs


def test_a_resolver_that_does_not_answer(no_resolver):
    with pytest.raises(ConnectionFailed, match="not resolved within"):
        Connection("localhost:1", ConnectionOptions(connect_timeout=0.05)).connect()


def test_a_peer_that_never_answers_identify(nsqd):
    connection = Connection(nsqd.address, ConnectionOptions(connect_timeout=0.2))
    started = time.monotonic()
    with pytest.raises(ConnectionFailed, match="IDENTIFY in time"):
        connection.connect()
    assert time.monotonic() - started < PATIENCE
    assert nsqd.accept().ended()


def test_a_peer_that_drips_its_answer_does_not_stretch_the_deadline(nsqd):
    def drip():
        peer = nsqd.accept()
        for byte in encode_frame(RESPONSE, b" " * 1000):
            try:
                peer.send(bytes([byte]))
            except OSError:
                return True
            gevent.sleep(0.02)
        return False

    script = gevent.spawn(drip)
    with pytest.raises(ConnectionFailed, match="IDENTIFY in time"):
        Connection(nsqd.address, ConnectionOptions(connect_timeout=0.2)).connect()
    assert script.get(timeout=PATIENCE)


def test_a_peer_that_closes_at_identify(nsqd):
    gevent.spawn(lambda: nsqd.accept().sock.shutdown(socket.SHUT_RDWR))
    with pytest.raises(ConnectionFailed):
        Connection(nsqd.address).connect()


def test_a_refused_identify_carries_nsqds_words(nsqd):
    gevent.spawn(lambda: nsqd.accept().error("E_BAD_BODY IDENTIFY msg timeout (1) is invalid"))
    with pytest.raises(ConnectionFailed, match="msg timeout") as caught:
        Connection(nsqd.address).connect()
    assert isinstance(caught.value.__cause__, NsqdError)
    assert caught.value.__cause__.code == "E_BAD_BODY"


def test_something_that_is_no_nsqd(nsqd):
    gevent.spawn(lambda: nsqd.accept().send(b"HTTP/1.1 400 Bad Request\r\n\r\n"))
    with pytest.raises(ConnectionFailed) as caught:
        Connection(nsqd.address).connect()
    assert isinstance(caught.value.__cause__, ProtocolError)


def test_a_caller_that_gives_up_leaves_no_socket(nsqd):
    connection = Connection(nsqd.address)
    with gevent.Timeout(0.05, False):
        connection.connect()
    assert nsqd.accept().ended()


def test_a_connection_connects_once(nsqd):
    connection, _ = connect(nsqd)
    with pytest.raises(NotRunning):
        connection.connect()
    connection.close()
    with pytest.raises(NotRunning):
        connection.connect()


def test_a_connection_whose_identify_failed_does_not_dial_again(nsqd):
    connection = Connection(nsqd.address)
    gevent.spawn(lambda: nsqd.accept().error("E_BAD_BODY IDENTIFY msg timeout (1) is invalid"))
    with pytest.raises(ConnectionFailed):
        connection.connect()
    with pytest.raises(NotRunning, match="connect only once"):
        connection.connect()
    with pytest.raises(Empty):
        nsqd.accept(timeout=0)


def identify_and(nsqd, *frames):
    """Answer to IDENTIFY and what follows in one write."""
    peer = nsqd.accept()
    assert peer.take(4) == b"  V2"
    assert peer.line() == b"IDENTIFY"
    peer.body()
    peer.send(b"".join(frames))
    return peer


@pytest.mark.parametrize("frames", [(OK, HEARTBEAT), (HEARTBEAT, OK)])
def test_a_heartbeat_beside_the_answer_to_identify_is_answered(nsqd, frames):
    script = gevent.spawn(identify_and, nsqd, *frames)
    connection = Connection(nsqd.address)
    connection.connect()
    assert script.get(timeout=PATIENCE).line() == b"NOP"
    connection.close()


def test_an_error_behind_the_answer_to_identify_ends_it_with_nsqds_words(nsqd, watcher, caplog):
    gevent.spawn(identify_and, nsqd, OK, encode_frame(ERROR, b"E_INVALID go away"))
    connection = Connection(nsqd.address, **watcher.callbacks())
    connection.connect()
    assert not connection.alive
    with pytest.raises(ConnectionLost, match="go away"):
        connection.subscribe("t", "c")
    assert watcher.ended.wait(PATIENCE)
    [error] = watcher.ends
    assert "go away" in str(error)
    assert isinstance(error.__cause__, NsqdError)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_a_refused_sub_is_an_error(nsqd, watcher):
    connection, peer = connect(nsqd, watcher)
    asked = gevent.spawn(connection.subscribe, "t", "c")
    peer.line()
    peer.error("E_SUB_FAILED SUB failed exiting")
    with pytest.raises(ConnectionFailed, match="E_SUB_FAILED") as caught:
        asked.get(timeout=PATIENCE)
    assert isinstance(caught.value.__cause__, NsqdError)
    assert watcher.ended.wait(PATIENCE)
    assert not connection.alive


def test_a_sub_that_is_never_answered(nsqd):
    connection, _ = connect(nsqd)
    with pytest.raises(ConnectionFailed, match="no answer to SUB"):
        connection.subscribe("t", "c", timeout=0.05)
    connection.close()


def test_a_bad_name_sends_nothing(nsqd):
    connection, peer = connect(nsqd)
    with pytest.raises(InvalidName):
        connection.subscribe("bad name", "c")
    connection.set_rdy(1)
    assert peer.line() == b"RDY 1"
    connection.close()


def test_a_second_sub_at_once_is_refused_and_the_first_is_answered(nsqd):
    connection, peer = connect(nsqd)
    first = gevent.spawn(connection.subscribe, "t", "c")
    assert peer.line() == b"SUB t c"
    with pytest.raises(NotRunning):
        connection.subscribe("t", "c")
    peer.send(OK)
    first.get(timeout=PATIENCE)
    connection.close()


# -- receiving ----------------------------------------------------------------------------------------


def test_one_pass_is_handed_up_as_one_list(nsqd, watcher):
    connection, peer = connect(nsqd, watcher, subscribe=True)
    peer.messages(ID, OTHER_ID)
    assert watcher.came.wait(PATIENCE)
    assert watcher.passes == [[(1_000_000_000, 1, ID, b"body"), (1_000_000_000, 1, OTHER_ID, b"body")]]
    connection.finish_many([ID, OTHER_ID])
    assert (peer.line(), peer.line()) == (b"FIN " + ID, b"FIN " + OTHER_ID)
    connection.close()


def test_answers_are_commands_in_their_order(nsqd):
    connection, peer = connect(nsqd, subscribe=True)
    connection.set_rdy(5)
    connection.touch(ID)
    connection.requeue(ID, 1.5)
    connection.finish(OTHER_ID)
    connection.finish_many([])
    assert [peer.line() for _ in range(4)] == [
        b"RDY 5",
        b"TOUCH " + ID,
        b"REQ " + ID + b" 1500",
        b"FIN " + OTHER_ID,
    ]
    connection.close()


@pytest.mark.parametrize("count", [-1, 2501])
def test_an_rdy_that_nsqd_would_not_take_is_refused_here(nsqd, count):
    connection, _ = connect(nsqd, subscribe=True)
    with pytest.raises(UsageError):
        connection.set_rdy(count)
    assert connection.alive
    connection.close()


def test_heartbeats_are_answered_while_nobody_else_runs(nsqd):
    connection, peer = connect(nsqd)
    for _ in range(3):
        peer.send(HEARTBEAT)
        assert peer.line() == b"NOP"
    connection.close()


def test_a_failed_fin_reaches_the_hook_and_ends_nothing(nsqd, watcher):
    connection, peer = connect(nsqd, watcher, subscribe=True)
    peer.error("E_FIN_FAILED FIN 0123456789abcdef failed ID not in flight")
    assert watcher.came.wait(PATIENCE)
    assert watcher.errors[0].code == "E_FIN_FAILED"
    peer.send(HEARTBEAT)
    assert peer.line() == b"NOP"
    connection.close()


def test_cls_is_answered_and_messages_can_still_be_finished(nsqd):
    connection, peer = connect(nsqd, subscribe=True)
    asked = gevent.spawn(connection.close_subscription)
    assert peer.line() == b"CLS"
    peer.send(CLOSE_WAIT)
    asked.get(timeout=PATIENCE)
    connection.finish(ID)
    assert peer.line() == b"FIN " + ID
    connection.close()


def test_a_second_cls_at_once_is_refused_and_the_first_is_answered(nsqd):
    connection, peer = connect(nsqd, subscribe=True)
    first = gevent.spawn(connection.close_subscription)
    assert peer.line() == b"CLS"
    with pytest.raises(NotRunning):
        connection.close_subscription()
    peer.send(CLOSE_WAIT)
    first.get(timeout=PATIENCE)
    connection.close()


def test_input_that_never_ends_lets_the_hub_have_its_turn():
    """Reads come full all the time, and each pass takes 1 ms; another socket must not wait for the end of it."""
    far, near = plain.socketpair()
    passes, served_at = [], []

    def on_messages(_, messages):
        passes.append(len(messages))
        if len(passes) == 50:
            far.send(b"x")
        until = time.monotonic() + 0.001
        while time.monotonic() < until:
            pass

    def other():
        other_socket.recv(1)
        served_at.append(len(passes))

    frames = encode_message(1, 1, ID, bytes(1000)) * 20_000
    with far, PeerInAThread(lambda peer: peer.sendall(frames)) as nsqd:
        other_socket = socket.socket(fileno=near.detach())
        greenlet = gevent.spawn(other)
        gevent.sleep(0)
        connection = Connection(nsqd.address, on_messages=on_messages)
        connection.connect()
        connection._transport._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        nsqd.go.set()
        greenlet.join(PATIENCE)
        with gevent.Timeout(PATIENCE):
            while sum(passes) < 20_000:
                gevent.sleep(0.01)
        connection.close()
        other_socket.close()
    assert len(passes) > 200
    assert served_at[0] < 100, served_at


# -- the end ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["close", "reset", "shutdown"])
def test_a_peer_that_goes_away(nsqd, watcher, how):
    connection, peer = connect(nsqd, watcher, subscribe=True)
    peer.sock.shutdown(socket.SHUT_WR) if how == "shutdown" else getattr(peer, how)()
    assert watcher.ended.wait(PATIENCE)
    [error] = watcher.ends
    assert isinstance(error, ConnectionLost)
    assert connection.error is error
    assert nsqd.address in str(error)
    assert not connection.alive
    # Late answers change nothing and raise nothing.
    assert connection.finish(ID) is False
    assert connection.set_rdy(1) is False
    with pytest.raises(ConnectionLost):
        connection.publish(commands.pub("t", b"x"))


def test_closing_writes_what_is_queued_and_tells_once(nsqd, watcher):
    connection, peer = connect(nsqd, watcher, subscribe=True)
    connection.finish(ID)
    connection.close()
    connection.close()
    assert watcher.ends == [None]
    assert peer.line() == b"FIN " + ID
    assert peer.ended()


@pytest.mark.parametrize(
    "data",
    [struct.pack(">ii", 3, 0), struct.pack(">ii", 2**31 - 1, MESSAGE), encode_frame(9, b""), OK],
    ids=["too short", "too long", "unknown type", "an answer to nothing"],
)
def test_bytes_that_cannot_be_end_the_connection_with_a_clear_error(nsqd, watcher, data):
    _, peer = connect(nsqd, watcher)
    peer.send(data)
    assert watcher.ended.wait(PATIENCE)
    assert isinstance(watcher.ends[0].__cause__, ProtocolError)
    assert peer.ended()


def test_a_fatal_error_ends_the_connection_with_nsqds_words(nsqd, watcher):
    _, peer = connect(nsqd, watcher)
    peer.error("E_INVALID something new")
    assert watcher.ended.wait(PATIENCE)
    assert "something new" in str(watcher.ends[0])


def test_a_callback_that_raises_ends_the_connection_and_is_logged(nsqd, caplog):
    ended = Event()

    def on_messages(_, messages):
        raise RuntimeError("a fault of the owner")

    connection = Connection(nsqd.address, on_messages=on_messages, on_close=lambda *_: ended.set())
    script = gevent.spawn(lambda: [(peer := nsqd.accept()), peer.subscribe()][0])
    connection.connect()
    connection.subscribe("t", "c")
    script.get(timeout=PATIENCE).messages(ID)
    assert ended.wait(PATIENCE)
    assert "a fault of the owner" in caplog.text


def test_a_silent_peer_is_dead_after_two_heartbeat_intervals(nsqd, watcher):
    connection, _ = connect(nsqd, watcher, heartbeat_interval=1)
    started = connection.last_received_at
    assert watcher.ended.wait(PATIENCE)
    assert time.monotonic() - started >= 2
    assert "nothing received" in str(watcher.ends[0])


def test_a_peer_that_reads_nothing_is_dead_after_write_timeout(nsqd, watcher):
    connection, _ = connect(nsqd, watcher, write_timeout=0.1)
    reply = connection.publish(commands.mpub("t", [bytes(1_000_000)] * 20))
    assert watcher.ended.wait(PATIENCE)
    assert "accepted no bytes" in str(watcher.ends[0])
    assert isinstance(reply.error, NotSent)


def test_a_hub_that_was_blocked_while_the_peer_read_does_not_count_against_it():
    command = commands.mpub("t", [bytes(1_000_000)] * 20)
    sink = Sink(answer_at=len(command))
    with PeerInAThread(sink) as nsqd:
        connection = Connection(nsqd.address, ConnectionOptions(write_timeout=0.2))
        connection.connect()
        reply = connection.publish(command)
        outbox = connection._outbox
        assert outbox.stalled_since is not None
        nsqd.go.set()
        sink.block_until(outbox.sent_count)
        time.sleep(1.5)  # blocks the hub, which is what this is about, past the next look at the peer
        reply.get(PATIENCE)
        assert connection.alive
        connection.close()


def test_close_writes_what_waited_for_the_socket_if_it_takes_it_by_now():
    sink = Sink()
    with PeerInAThread(sink) as nsqd:
        connection = Connection(nsqd.address)
        connection.connect()
        outbox = connection._outbox
        while outbox.stalled_since is None:
            connection.publish(commands.pub("t", bytes(100_000)))
            gevent.sleep(0)
        connection.finish(ID)
        nsqd.go.set()
        sink.block_until(outbox.sent_count)
        connection.close()
    assert sink.received.endswith(b"FIN " + ID + b"\n")


def test_a_hub_that_was_blocked_does_not_count_against_the_peer():
    """The peer lives in a thread of its own and sends heartbeats; the hub stands still for 2.5 s."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(1)
    server = plain.socket(fileno=listener.detach())
    server.setblocking(True)
    stop = threading.Event()

    def serve():
        sock, _ = server.accept()
        with sock:
            sock.recv(4096)
            sock.sendall(OK)
            while not stop.wait(0.25):
                sock.sendall(HEARTBEAT)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        connection = Connection("{}:{}".format(*server.getsockname()), ConnectionOptions(heartbeat_interval=1))
        connection.connect()
        time.sleep(2.5)  # blocks the hub, which is what this is about
        seen = connection.last_received_at
        with gevent.Timeout(PATIENCE):
            while connection.last_received_at == seen and connection.alive:
                gevent.sleep(0.01)
        gevent.sleep(1.1)  # past the next look at whether the peer is alive
        assert connection.alive
        connection.close()
    finally:
        stop.set()
        thread.join()
        server.close()


# -- publishing ---------------------------------------------------------------------------------------


def test_publishes_are_pipelined_and_answered_in_order(nsqd, watcher):
    connection, peer = connect(nsqd, watcher)
    replies = [connection.publish(commands.pub("t", b"%d" % number)) for number in range(3)]
    for number in range(3):
        assert peer.line() == b"PUB t"
        assert peer.body() == b"%d" % number
    assert connection.unanswered_count == 3
    assert connection.unanswered_bytes > 0
    peer.send(OK * 3)
    for reply in replies:
        reply.get(PATIENCE)
    assert (connection.unanswered_count, connection.unanswered_bytes) == (0, 0)
    assert watcher.answers >= 1
    connection.close()


def test_only_the_offender_is_refused_and_what_follows_was_not_executed(nsqd):
    connection, peer = connect(nsqd)
    first, offender, later = [connection.publish(commands.pub("t", b"x")) for _ in range(3)]
    peer.line()
    peer.send(OK)
    peer.error("E_BAD_MESSAGE PUB message too big 2 > 1")
    with pytest.raises(PublishRefused) as caught:
        offender.get(PATIENCE)
    assert caught.value.error.code == "E_BAD_MESSAGE"
    first.get(PATIENCE)
    with pytest.raises(NotSent):
        later.get(PATIENCE)


def test_a_publish_that_was_written_but_never_answered_is_unknown(nsqd):
    connection, peer = connect(nsqd)
    reply = connection.publish(commands.pub("t", b"x"))
    peer.line()
    peer.close()
    with pytest.raises(OutcomeUnknown) as caught:
        reply.get(PATIENCE)
    assert caught.value.address == nsqd.address


def test_a_publish_of_which_bytes_are_missing_was_not_sent(nsqd):
    connection, peer = connect(nsqd)
    sent = connection.publish(commands.pub("t", b"x"))
    cut = connection.publish(commands.mpub("t", [bytes(1_000_000)] * 20))
    peer.take(100_000)
    connection.close()
    assert isinstance(sent.error, OutcomeUnknown)
    assert isinstance(cut.error, NotSent)


def test_publish_never_switches(nsqd):
    connection, _ = connect(nsqd)
    ran = []
    greenlet = gevent.spawn(ran.append, True)
    for _ in range(100):
        connection.publish(commands.pub("t", bytes(100_000)))
    assert not ran
    greenlet.join()
    connection.close()


def test_nothing_is_left_running_after_the_end(nsqd, caplog):
    caplog.set_level(logging.DEBUG)
    connection, peer = connect(nsqd)
    peer.close()
    connection._reader.join(PATIENCE)
    assert connection._reader.dead
    assert not connection._liveness._timer.active


def test_closed_before_its_reader_ran(nsqd, watcher):
    connection, peer = Connection(nsqd.address, **watcher.callbacks()), None
    script = gevent.spawn(lambda: [(peer := nsqd.accept()), peer.identify(version="1.3.0")][0])
    connection.connect()
    connection.close()
    peer = script.get(timeout=PATIENCE)
    assert watcher.ends == [None]
    assert peer.ended()
