"""The Reader against scripted nsqds: what it sends, and when."""

import json
import time

import gevent
import pytest
from gevent.event import Event
from gevent.queue import Empty

from gnsq_like import Producer, Reader
from gnsq_like.errors import ConnectionFailed, InvalidAddress, InvalidName, InvalidOption, NotRunning
from tests.support.daemons import KINDS, running_nsqd, wait_for
from tests.support.peer import CLOSE_WAIT, HEARTBEAT, PATIENCE, free_port, scripted_nsqd

ID = b"0123456789abcde%d"


@pytest.fixture
def nsqd():
    with scripted_nsqd() as server:
        yield server


def reading(nsqds, handler=lambda message: None, **options):
    addresses = [nsqd.address for nsqd in nsqds]
    return Reader("t", "c", handler, nsqd_tcp_addresses=addresses, **options)


class Gate:
    """A handler that blocks until it is let go."""

    def __init__(self):
        self.open = Event()
        self.inside = 0
        self.most_inside = 0
        self.entered = Event()
        self.bodies = []

    def __call__(self, message):
        self.inside += 1
        self.most_inside = max(self.most_inside, self.inside)
        self.entered.set()
        self.bodies.append(message.body)
        try:
            self.open.wait()
        finally:
            self.inside -= 1


def test_nothing_happens_in_the_constructor(nsqd):
    Reader("t", "c", print, nsqd_tcp_addresses=nsqd.address, lookupd_http_addresses="127.0.0.1:1")
    with pytest.raises(Empty):
        nsqd.accept(timeout=0.05)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"topic": "bad topic"}, InvalidName),
        ({"channel": ""}, InvalidName),
        ({"nsqd_tcp_addresses": "nowhere"}, InvalidAddress),
        ({"nsqd_tcp_addresses": ()}, InvalidOption),
        ({"handler": "text"}, InvalidOption),
        ({"max_in_flight": -1}, InvalidOption),
        ({"max_in_flihgt": 3}, InvalidOption),
    ],
)
def test_what_is_wrong_is_said_at_once(arguments, error):
    given = {"topic": "t", "channel": "c", "handler": print, "nsqd_tcp_addresses": "127.0.0.1:1"} | arguments
    with pytest.raises(error):
        Reader(given.pop("topic"), given.pop("channel"), given.pop("handler"), **given)


def test_an_option_with_a_typing_error_is_told_with_the_right_name():
    with pytest.raises(InvalidOption, match="did you mean max_in_flight"):
        Reader("t", "c", print, nsqd_tcp_addresses="127.0.0.1:1", max_in_flihgt=3)


def test_g4_heartbeats_are_answered_while_every_handler_blocks(nsqd):
    gate = Gate()
    with reading([nsqd], gate, max_in_flight=3) as reader:
        peer = nsqd.accept()
        assert peer.subscribe() == b"SUB t c"
        assert peer.line().startswith(b"RDY ")
        peer.messages(ID % 1, ID % 2, ID % 3)
        wait_for(lambda: gate.inside == 3)
        for _ in range(20):
            peer.send(HEARTBEAT)
        lines = []
        while lines.count(b"NOP") < 20:
            lines.append(peer.line())
        assert not any(line.startswith((b"FIN", b"REQ")) for line in lines)
        gate.open.set()
        wait_for(lambda: reader.stats()["finished"] == 3)
        gevent.spawn(answer_cls, peer)


def answer_cls(peer):
    """Read on until CLS comes, and answer it; the lines before it."""
    lines = []
    while (line := peer.line()) != b"CLS":
        lines.append(line)
    peer.send(CLOSE_WAIT)
    return lines


def test_stopping_requeues_what_no_handler_began_and_lets_the_running_one_answer(nsqd):
    gate = Gate()
    reader = reading([nsqd], gate, max_in_flight=3, concurrency=1, adaptive_rdy=False)
    reader.start()
    peer = nsqd.accept()
    peer.subscribe()
    assert peer.line().startswith(b"RDY ")
    peer.messages(ID % 1, ID % 2, ID % 3)
    assert gate.entered.wait(PATIENCE)
    stopping = gevent.spawn(reader.stop)
    # Before it has seen CLS, nsqd might deliver here again what it got back.
    assert answer_cls(peer)[-1] == b"RDY 0"
    assert {peer.line(), peer.line()} == {b"REQ " + ID % 2 + b" 0", b"REQ " + ID % 3 + b" 0"}
    # What nsqd sent before it saw CLS goes back too.
    peer.messages(ID % 4)
    assert peer.line() == b"REQ " + ID % 4 + b" 0"
    gate.open.set()
    assert peer.line() == b"FIN " + ID % 1
    assert stopping.get(timeout=PATIENCE) == 0
    assert peer.ended()
    assert gate.bodies == [b"body"]
    assert reader.stop() == 0


def test_a_stop_that_runs_out_of_time_requeues_and_says_how_many(nsqd):
    gate = Gate()
    reader = reading([nsqd], gate, max_in_flight=2, adaptive_rdy=False)
    reader.start()
    peer = nsqd.accept()
    peer.subscribe()
    peer.line()
    peer.messages(ID % 1, ID % 2)
    wait_for(lambda: gate.inside == 2)
    stopping = gevent.spawn(reader.stop, 0.1)
    answer_cls(peer)
    assert {peer.line(), peer.line()} == {b"REQ " + ID % 1 + b" 0", b"REQ " + ID % 2 + b" 0"}
    assert stopping.get(timeout=PATIENCE) == 2
    assert gate.inside == 0
    assert peer.ended()


def test_a_stop_without_time_still_gives_back_what_nsqd_sent_before_it_saw_cls(nsqd):
    """Lost with its connection, a message would come again only after its timeout."""
    reader = reading([nsqd], Gate(), max_in_flight=2, adaptive_rdy=False)
    reader.start()
    peer = nsqd.accept()
    peer.subscribe()
    peer.line()
    stopping = gevent.spawn(reader.stop, 0)
    assert (peer.line(), peer.line()) == (b"RDY 0", b"CLS")
    peer.messages(ID % 1)
    peer.send(CLOSE_WAIT)
    assert peer.line() == b"REQ " + ID % 1 + b" 0"
    stopping.get(timeout=PATIENCE)
    assert peer.ended()


def test_a_second_stop_can_only_bring_the_end_forward(nsqd):
    gate = Gate()
    reader = reading([nsqd], gate, adaptive_rdy=False)
    reader.start()
    peer = nsqd.accept()
    peer.subscribe()
    peer.line()
    peer.messages(ID % 1)
    wait_for(lambda: gate.inside == 1)
    stopping = gevent.spawn(reader.stop, 100)
    answer_cls(peer)
    patient = gevent.spawn(reader.stop, 1000)
    with pytest.raises(gevent.Timeout):
        stopping.get(timeout=0.1)
    assert reader.stop(0.1) == 1
    assert peer.line() == b"REQ " + ID % 1 + b" 0"
    assert stopping.get(timeout=PATIENCE) == patient.get(timeout=PATIENCE) == 1


def test_a_handler_may_stop_its_reader(nsqd):
    reader = reading([nsqd], lambda message: reader.stop())
    reader.start()
    peer = nsqd.accept()
    peer.subscribe()
    peer.line()
    peer.messages(ID % 1)
    lines = answer_cls(peer)
    assert b"FIN " + ID % 1 in [*lines, peer.line() if b"FIN " + ID % 1 not in lines else b""]
    assert reader.wait(PATIENCE)


def test_a_reader_starts_once_at_a_time(nsqd):
    with reading([nsqd]) as reader, pytest.raises(NotRunning):
        reader.start()


def test_a_lost_connection_frees_its_share_and_drops_what_was_not_begun():
    gate = Gate()
    with (
        scripted_nsqd() as one,
        scripted_nsqd() as two,
        reading([one, two], gate, max_in_flight=10, concurrency=1, adaptive_rdy=False, max_redial_delay=60) as reader,
    ):
        first, second = one.accept(), two.accept()
        first.subscribe()
        second.subscribe()
        wait_for(lambda: [each["rdy"] for each in reader.stats()["connections"].values()] == [5, 5])
        first.messages(ID % 1, ID % 2, ID % 3)
        assert gate.entered.wait(PATIENCE)
        first.close()
        # One message is with a handler; the survivor gets the rest of the window at once.
        wait_for(lambda: [each["rdy"] for each in reader.stats()["connections"].values()] == [9])
        assert reader.stats()["waiting"] == 0
        gate.open.set()
        wait_for(lambda: [each["rdy"] for each in reader.stats()["connections"].values()] == [10])
        assert len(gate.bodies) == 1
        gevent.spawn(answer_cls, second)


def test_g9_a_mute_nsqd_does_not_hold_up_the_others(nsqd):
    with scripted_nsqd() as mute:
        got = Event()
        with reading([mute, nsqd], lambda message: got.set(), max_in_flight=2):
            mute.accept()
            peer = nsqd.accept()
            peer.subscribe()
            peer.line()
            peer.messages(ID % 1)
            assert got.wait(PATIENCE)
            gevent.spawn(answer_cls, peer)


def test_g10_a_fixed_nsqd_is_dialled_again_from_the_first_failure_on():
    errors = []
    came = Event()

    def on_error(address, error):
        errors.append((address, error))
        came.set()

    address = f"127.0.0.1:{free_port()}"
    reader = Reader("t", "c", print, nsqd_tcp_addresses=address, on_error=on_error, max_redial_delay=0.05)
    with reader:
        wait_for(lambda: len(errors) >= 3)
    assert all(where == address and isinstance(error, ConnectionFailed) for where, error in errors)


def test_a_lost_fixed_nsqd_is_dialled_again(nsqd):
    events = []
    reader = Reader(
        "t",
        "c",
        print,
        nsqd_tcp_addresses=nsqd.address,
        max_redial_delay=0.05,
        on_connect=lambda address: events.append(("connect", address)),
        on_disconnect=lambda address, error: events.append(("disconnect", address, type(error).__name__)),
    )
    with reader:
        first = nsqd.accept()
        first.subscribe()
        first.line()
        first.close()
        second = nsqd.accept()
        second.subscribe()
        assert second.line().startswith(b"RDY")
        gevent.spawn(answer_cls, second)
    assert events[:3] == [
        ("connect", nsqd.address),
        ("disconnect", nsqd.address, "ConnectionLost"),
        ("connect", nsqd.address),
    ]
    assert events[3] == ("disconnect", nsqd.address, "NoneType")


def test_an_nsqd_that_hangs_up_after_each_sub_is_dialled_less_and_less_often(nsqd):
    accepted = []
    with reading([nsqd]):
        for _ in range(3):
            peer = nsqd.accept()
            accepted.append(time.monotonic())
            peer.subscribe()
            assert peer.line().startswith(b"RDY")
            peer.close()
    assert accepted[1] - accepted[0] >= 0.49
    assert accepted[2] - accepted[1] >= 0.99  # 1 to 2 s; a loss after a lasting connection gives 0.5 to 1 s


def test_p5_nothing_is_dialled_after_a_stop(nsqd):
    reader = reading([nsqd], max_redial_delay=0.05)
    reader.start()
    peer = nsqd.accept()
    peer.subscribe()
    peer.line()
    stopping = gevent.spawn(reader.stop)
    answer_cls(peer)
    stopping.get(timeout=PATIENCE)
    with pytest.raises(Empty):
        nsqd.accept(timeout=0.3)


def test_p6_an_nsqd_named_twice_is_connected_once(nsqd):
    """Of two connections to one nsqd, the end of the one must not strike the other from the table."""
    reader = Reader("t", "c", print, nsqd_tcp_addresses=[nsqd.address, nsqd.address])
    with reader:
        peer = nsqd.accept()
        peer.subscribe()
        peer.line()
        with pytest.raises(Empty):
            nsqd.accept(timeout=0.2)
        assert len(reader.stats()["connections"]) == 1
        gevent.spawn(answer_cls, peer)


def test_a_message_beyond_max_attempts_is_given_up_not_handled(nsqd):
    handled, given_up = [], []
    reader = reading([nsqd], handled.append, max_attempts=3, on_giving_up=given_up.append)
    with reader:
        peer = nsqd.accept()
        peer.subscribe()
        peer.line()
        peer.messages(ID % 1, attempts=3)
        while (line := peer.line()) != b"FIN " + ID % 1:
            assert line.startswith(b"RDY")
        peer.messages(ID % 2, attempts=4)
        while (line := peer.line()) != b"FIN " + ID % 2:
            assert line.startswith(b"RDY")
        gevent.spawn(answer_cls, peer)
    assert [message.attempts for message in handled] == [3]
    assert [message.attempts for message in given_up] == [4]


def test_giving_up_that_fails_requeues_and_reports(nsqd):
    errors = []

    def on_giving_up(message):
        raise OSError("disk full")

    reader = reading(
        [nsqd], print, max_attempts=1, on_giving_up=on_giving_up, on_error=lambda _, error: errors.append(error)
    )
    with reader:
        peer = nsqd.accept()
        peer.subscribe()
        peer.line()
        peer.messages(ID % 1, attempts=2)
        while not (line := peer.line()).startswith(b"REQ"):
            assert line.startswith(b"RDY")
        assert line == b"REQ " + ID % 1 + b" 180000"
        gevent.spawn(answer_cls, peer)
    assert "disk full" in str(errors[0])
    assert reader.stats()["backoff_level"] == 0


def test_a_failed_fin_reaches_on_error_and_ends_nothing(nsqd):
    errors = []
    with reading([nsqd], on_error=lambda address, error: errors.append((address, error.code))):
        peer = nsqd.accept()
        peer.subscribe()
        peer.line()
        peer.error("E_FIN_FAILED FIN 0123456789abcde1 failed ID not in flight")
        wait_for(lambda: errors)
        peer.messages(ID % 1)
        while (line := peer.line()) != b"FIN " + ID % 1:
            assert line.startswith(b"RDY")
        gevent.spawn(answer_cls, peer)
    assert errors == [(nsqd.address, "E_FIN_FAILED")]


def test_run_raises_when_every_nsqd_refuses_for_good(nsqd):
    errors = []
    reader = reading([nsqd], on_error=lambda _, error: errors.append(error))
    running = gevent.spawn(reader.run)
    peer = nsqd.accept()
    peer.identify(version="1.3.0")
    peer.line()
    peer.error("E_UNAUTHORIZED AUTH failed for SUB")
    with pytest.raises(ConnectionFailed, match="E_UNAUTHORIZED"):
        running.get(timeout=PATIENCE)
    assert len(errors) == 1


def test_a_refused_default_of_ours_is_not_asked_for_again(nsqd):
    with reading([nsqd]):
        asked = {"output_buffer_timeout": 25, "output_buffer_size": 65536}
        for name, value in list(asked.items()):
            peer = nsqd.accept()
            peer.take(4)
            peer.line()
            fields = json.loads(peer.body())
            assert {each: fields[each] for each in fields if "buffer" in each} == asked
            peer.error(f"E_BAD_BODY IDENTIFY {name.replace('_', ' ')} ({value}) is invalid")
            del asked[name]
        peer = nsqd.accept()
        assert not [each for each in peer.identify(version="1.3.0") if "buffer" in each]
        peer.line()


@pytest.mark.parametrize("kind", KINDS)
def test_an_nsqd_that_takes_none_of_our_defaults(kind):
    options = {"min_output_buffer_timeout": 0.1, "max_output_buffer_size": 16384}
    with running_nsqd(kind, **options) as nsqd, Producer(nsqd.tcp_address) as producer:
        producer.publish("t", b"x")
        with Reader("t", "c", nsqd_tcp_addresses=nsqd.tcp_address) as messages:
            for message in messages:
                assert message.body == b"x"
                message.finish()
                break


def test_a_value_of_the_users_own_is_refused_for_good(nsqd):
    errors = []
    reader = reading([nsqd], on_error=lambda _, error: errors.append(error), output_buffer_size=70_000)
    running = gevent.spawn(reader.run)
    peer = nsqd.accept()
    peer.take(4)
    peer.line()
    peer.body()
    peer.error("E_BAD_BODY IDENTIFY output buffer size (70000) is invalid")
    with pytest.raises(ConnectionFailed, match="70000"):
        running.get(timeout=PATIENCE)


def test_one_failure_stops_everything_and_one_success_opens_again(nsqd):
    """Backoff on the wire: RDY 0 before the REQ, then RDY 1, then all of it."""
    fail = [True]
    levels = []

    def handler(message):
        if fail[0]:
            raise RuntimeError("meant")

    reader = reading(
        [nsqd],
        handler,
        max_in_flight=10,
        adaptive_rdy=False,
        backoff_multiplier=0.1,
        on_backoff=lambda level, seconds: levels.append(level),
    )
    with reader:
        peer = nsqd.accept()
        peer.subscribe()
        lines = [peer.line()]
        while lines[-1] != b"RDY 10":
            lines.append(peer.line())
        peer.messages(ID % 1)
        assert peer.line() == b"RDY 0"
        assert peer.line() == b"REQ " + ID % 1 + b" 90000"
        blocked = time.monotonic()
        assert peer.line() == b"RDY 1"
        assert time.monotonic() - blocked > 0.15
        fail[0] = False
        peer.messages(ID % 2)
        seen = [peer.line()]
        while seen[-1] != b"RDY 10":
            seen.append(peer.line())
        assert b"FIN " + ID % 2 in [*seen, peer.line()]
        gevent.spawn(answer_cls, peer)
    assert levels == [1, 0]


def test_an_nsqd_that_counts_rdy_down_is_renewed():
    """An old nsqd: every delivery uses up one RDY; without renewal the messages would stop."""
    handled = []
    with scripted_nsqd() as nsqd, reading([nsqd], handled.append, max_in_flight=8):
        peer = nsqd.accept()
        peer.identify()  # a plain OK
        peer.line()
        peer.send(b"\x00\x00\x00\x06\x00\x00\x00\x00OK")
        credit = 0
        sent = 0
        unanswered = 0
        while len(handled) < 100:
            while credit and sent < 100:
                credit -= 1
                sent += 1
                unanswered += 1
                peer.messages(b"%016d" % sent)
            line = peer.line()
            if line.startswith(b"RDY "):
                credit = int(line[4:])
                assert credit + unanswered <= 8
            elif line.startswith(b"FIN "):
                unanswered -= 1
        gevent.spawn(answer_cls, peer)
    assert len(handled) == 100


def test_an_nsqd_that_counts_rdy_down_is_renewed_beside_hung_handlers():
    """Two of four places hang past their deadlines; through the two others goes the rest."""
    gate = Event()
    handled = []

    def handler(message):
        if message.body == b"hang":
            gate.wait()
        handled.append(message.body)

    with scripted_nsqd() as nsqd, reading([nsqd], handler, max_in_flight=4) as reader:
        peer = nsqd.accept()
        peer.subscribe(version="0.2.31", msg_timeout=1000)
        peer.line()
        peer.messages(ID % 1, ID % 2, body=b"hang")
        wait_for(lambda: reader.stats()["connections"][nsqd.address]["share"] == 2)
        credit = sent = 0
        while len(handled) < 20:
            line = peer.line()
            if line.startswith(b"RDY "):
                credit = int(line[4:])
            while credit and sent < 20:
                credit -= 1
                sent += 1
                peer.messages(b"%016d" % sent)
        assert handled == [b"body"] * 20
        gate.set()
        gevent.spawn(answer_cls, peer)
