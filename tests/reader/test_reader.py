"""A Reader against scripted nsqds: its arguments, and which nsqds it connects to."""

from __future__ import annotations

import json
import logging
from inspect import Parameter, signature
from typing import Any, get_type_hints

import gevent
import pytest
from gevent.event import Event
from gevent.queue import Empty

from gnsq_like import Connection, Producer, Reader, ReaderArguments
from gnsq_like.errors import (
    ConnectionFailed,
    HTTPError,
    InvalidAddress,
    InvalidName,
    InvalidOption,
    NotRunning,
    NSQError,
    UsageError,
)
from gnsq_like.options import ReaderOptionsDict
from tests.support.daemons import KINDS, running_nsqd, wait_for
from tests.support.lookupds import FAST, Lookupd
from tests.support.nsqds import identified
from tests.support.peer import OK, PATIENCE, scripted_nsqd
from tests.support.reading import ID, answer_cls, reading, serve, until


def test_nothing_happens_in_the_constructor(nsqd):
    Reader("t", "c", print, nsqd_tcp_addresses=nsqd.address, lookupd_http_addresses="127.0.0.1:1")
    # What it began would have come before this.
    connection = Connection(nsqd.address)
    script = gevent.spawn(identified, nsqd)
    connection.connect()
    script.get(timeout=PATIENCE)
    connection.close()
    with pytest.raises(Empty):
        nsqd.accept(timeout=0)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"topic": "bad topic"}, InvalidName),
        ({"channel": ""}, InvalidName),
        ({"nsqd_tcp_addresses": "nowhere"}, InvalidAddress),
        ({"nsqd_tcp_addresses": ()}, InvalidOption),
        ({"handler": "text"}, InvalidOption),
        ({"on_giving_up": 3}, InvalidOption),
        ({"on_error": "text"}, InvalidOption),
        ({"on_backoff": 0}, InvalidOption),
        ({"handler": lambda: None}, InvalidOption),
        ({"on_connect": lambda: None}, InvalidOption),
        ({"on_error": lambda address: None}, InvalidOption),
        ({"on_giving_up": lambda: None}, InvalidOption),
        ({"max_in_flight": -1}, InvalidOption),
    ],
)
def test_what_is_wrong_is_said_at_once(arguments, error):
    given: dict[str, Any] = {
        "topic": "t",
        "channel": "c",
        "handler": print,
        "nsqd_tcp_addresses": "127.0.0.1:1",
    } | arguments
    with pytest.raises(error):
        Reader(given.pop("topic"), given.pop("channel"), given.pop("handler"), **given)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"topic": b"clicks"}, "invalid topic name b'clicks': it must be of type str, not bytes"),
        ({"toopic": "clicks"}, "did you mean topic?"),
        ({"on_conect": print}, "did you mean on_connect?"),
        ({"batch": 500}, "batch=500: a handler of lists is a Batch"),
    ],
)
def test_mistakes_are_answered_with_what_to_do(arguments: dict[str, Any], text: str) -> None:
    given: dict[str, Any] = {"topic": "t", "nsqd_tcp_addresses": "127.0.0.1:1"} | arguments
    with pytest.raises(UsageError) as caught:
        Reader(given.pop("topic"), "c", print, **given)
    assert text in str(caught.value)


def test_an_option_with_a_typing_error_is_told_with_the_right_name():
    with pytest.raises(InvalidOption, match="did you mean max_in_flight"):
        Reader("t", "c", print, nsqd_tcp_addresses="127.0.0.1:1", max_in_flihgt=3)  # type: ignore[call-arg]


def test_a_stop_before_the_start_does_nothing(nsqd):
    reader = reading([nsqd])
    reader.begin_to_stop()
    assert reader.stop() == 0
    assert reader.stats()["state"] == "new"


def test_a_reader_starts_once_at_a_time(nsqd):
    with reading([nsqd]) as reader, pytest.raises(NotRunning):
        reader.start()


def test_the_handler_may_be_replaced_before_a_start():
    seen: list[bytes] = []
    with running_nsqd() as nsqd, Producer(nsqd.tcp_address) as producer:
        reader = Reader("replaced", "archive", print, nsqd_tcp_addresses=nsqd.tcp_address)
        assert reader.handler is print
        reader.handler = lambda message: seen.append(message.body)
        producer.publish("replaced", b"one")
        with reader:
            wait_for(lambda: seen, "the message")
    assert seen == [b"one"]


def test_a_handler_that_could_not_work_replaces_none():
    reader = Reader("t", "c", print, nsqd_tcp_addresses="127.0.0.1:1")
    with pytest.raises(InvalidOption, match="a generator function"):
        reader.handler = lambda message: (yield)  # type: ignore[misc]
    assert reader.handler is print


def test_a_misspelt_attribute_is_refused():
    reader = Reader("t", "c", print, nsqd_tcp_addresses="127.0.0.1:1")
    with pytest.raises(AttributeError, match="object has no attribute 'max_inflight'"):
        reader.max_inflight = 5  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="'msg_timeout'"):
        reader.msg_timeout = 5  # type: ignore[attr-defined]
    reader.max_in_flight = 5


def test_run_needs_a_handler():
    reader = Reader("t", "c", nsqd_tcp_addresses="127.0.0.1:1")
    with pytest.raises(InvalidOption, match="iterate over the Reader"):
        reader.run()
    assert reader.stats()["state"] == "new"


def test_timeouts_that_are_no_seconds_are_refused():
    reader = Reader("t", "c", print, nsqd_tcp_addresses="127.0.0.1:1")
    with pytest.raises(InvalidOption, match="stop_timeout='x'"):
        reader.run(stop_timeout="x")  # type: ignore[arg-type]
    assert reader.stats()["state"] == "new"
    with reader:
        for call in (reader.stop, reader.wait):
            with pytest.raises(InvalidOption, match="timeout='x': it must be a number of seconds"):
                call("x")  # type: ignore[arg-type]
        assert reader.stats()["state"] == "running"


def test_g9_a_mute_nsqd_does_not_hold_up_the_others(nsqd):
    with scripted_nsqd() as mute:
        got = Event()
        with reading([mute, nsqd], lambda message: got.set(), max_in_flight=2):
            mute.accept()
            peer = serve(nsqd)
            peer.messages(ID % 1)
            assert got.wait(PATIENCE)
            gevent.spawn(answer_cls, peer)


def test_a_lost_fixed_nsqd_is_dialled_again(nsqd):
    events: list[tuple[str, ...]] = []
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


def test_p6_an_nsqd_named_twice_is_connected_once(nsqd):
    """Of two connections to one nsqd, the end of the one must not strike the other from the table."""
    reader = Reader("t", "c", print, nsqd_tcp_addresses=[nsqd.address, nsqd.address])
    with reader:
        peer = serve(nsqd)
        peer.messages(ID % 1)  # a second connection would have been made beside the first
        until(peer, b"FIN")
        with pytest.raises(Empty):
            nsqd.accept(timeout=0)
        assert len(reader.stats()["connections"]) == 1
        gevent.spawn(answer_cls, peer)


@pytest.mark.parametrize("form", ["run", "iteration"])
def test_every_nsqd_refuses_for_good_and_that_is_raised(nsqd, form, caplog):
    caplog.set_level(logging.INFO, "gnsq_like")
    errors: list[NSQError] = []
    reader = reading([nsqd], None if form == "iteration" else print, on_error=lambda _, error: errors.append(error))
    running = gevent.spawn(list, reader) if form == "iteration" else gevent.spawn(reader.run)
    peer = nsqd.accept()
    peer.identify(version="1.3.0")
    peer.line()
    peer.error("E_UNAUTHORIZED AUTH failed for SUB")
    with pytest.raises(ConnectionFailed, match="E_UNAUTHORIZED"):
        running.get(timeout=PATIENCE)
    assert len(errors) == 1
    assert "the next try is in" not in caplog.text


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
    options: dict[str, Any] = {
        "min_output_buffer_timeout": 0.1,
        "max_output_buffer_size": 16384,
        "max_heartbeat_interval": 8,
    }
    with running_nsqd(kind, **options) as nsqd, Producer(nsqd.tcp_address) as producer:
        producer.publish("t", b"x")
        with Reader("t", "c", nsqd_tcp_addresses=nsqd.tcp_address) as messages:
            for message in messages:
                assert message.body == b"x"
                message.finish()
                break


def test_a_value_of_the_users_own_is_refused_for_good(nsqd):
    errors: list[NSQError] = []
    reader = reading([nsqd], on_error=lambda _, error: errors.append(error), output_buffer_size=70_000)
    running = gevent.spawn(reader.run)
    peer = nsqd.accept()
    peer.take(4)
    peer.line()
    peer.body()
    peer.error("E_BAD_BODY IDENTIFY output buffer size (70000) is invalid")
    with pytest.raises(ConnectionFailed, match="70000"):
        running.get(timeout=PATIENCE)


def test_a_refusal_right_behind_the_ok_to_sub_is_a_failed_try(nsqd):
    errors: list[NSQError] = []
    with reading([nsqd], max_redial_delay=0.05, on_error=lambda _, error: errors.append(error)) as reader:
        first = nsqd.accept()
        first.identify(version="1.3.0")
        first.line()
        first.send(OK + b"\x00\x00\x00\x0c\x00\x00\x00\x01E_BADNES")
        second = nsqd.accept()
        second.subscribe()
        second.line()
        wait_for(lambda: errors)
        assert len(reader.stats()["connections"]) == 1
        gevent.spawn(answer_cls, second)


def test_refusals_are_hopeless_only_when_all_is_known():
    """One nsqlookupd is slow, and the fast one lists an nsqd that refuses beside one that does not."""
    with scripted_nsqd() as bad, scripted_nsqd() as good, Lookupd() as fast, Lookupd() as slow:
        fast.nsqds = [bad, good]
        release = Event()
        slow.answer_after(release)
        reader = Reader("t", "c", print, lookupd_http_addresses=[fast.address, slow.address], **FAST)
        with reader:
            peer = bad.accept()
            peer.identify(version="1.3.0")
            peer.line()
            peer.error("E_UNAUTHORIZED AUTH failed")
            other = serve(good)
            assert peer.ended()
            release.set()
            wait_for(lambda: len(slow.asked) >= 2)
            assert reader.stats()["state"] == "running"
            gevent.spawn(answer_cls, other)


@pytest.mark.parametrize("address", ["ftp://somewhere:1", "nonsense", ["127.0.0.1:4161", ""]])
def test_a_wrong_address_of_a_nsqlookupd_is_said_at_once(address):
    with pytest.raises(InvalidAddress):
        Reader("t", "c", print, lookupd_http_addresses=address)
    with pytest.raises(InvalidAddress):
        Producer(lookupd_http_addresses=address)


def test_as_many_threads_as_anybody_asks_for(nsqd):
    with reading([nsqd], spawn="thread", max_in_flight=2**70):
        peer = serve(nsqd)
        gevent.spawn(answer_cls, peer)


def test_an_authorization_that_cannot_be_had_is_reported(nsqd):
    errors: list[NSQError] = []

    def authorization():
        raise RuntimeError("the vault is closed")

    with Lookupd() as lookupd:
        reader = Reader(
            "t",
            "c",
            print,
            lookupd_http_addresses=lookupd.address,
            lookupd_authorization=authorization,
            on_error=lambda _, error: errors.append(error),
            **FAST,
        )
        with reader:
            wait_for(lambda: errors)
    assert isinstance(errors[0], HTTPError)
    assert "the vault is closed" in str(errors[0])


def test_the_type_of_its_keyword_arguments_has_what_it_takes() -> None:
    parameters = signature(Reader.__init__).parameters.values()
    taken = {each.name: each.annotation for each in parameters if each.kind is Parameter.KEYWORD_ONLY}
    own = set(ReaderArguments.__annotations__) - set(ReaderOptionsDict.__annotations__)
    assert own == set(taken)
    hints = get_type_hints(Reader.__init__)
    assert {name: get_type_hints(ReaderArguments)[name] for name in own} == {name: hints[name] for name in own}
