"""Bodies become values, or a DecodeError that shows what came."""

from __future__ import annotations

import json
from typing import Any

import gevent
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq_like import Batch, Message, Reader
from gnsq_like.errors import DecodeError, InvalidOption, NSQError
from gnsq_like.reader.message import decode_json, make_decoder
from tests.support.messages import Source, make_message
from tests.support.peer import ScriptedNsqd
from tests.support.reading import ID, answer_cls, reading, serve, until

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def fail(body: bytes) -> Any:
    raise KeyError("schema 7")


async def asynchronous(body: bytes) -> Any: ...


@given(VALUES)
def test_what_the_producer_encodes_is_decoded(value: Any) -> None:
    msgpack = pytest.importorskip("msgpack")
    decode = make_decoder("json")
    assert decode is not None
    assert decode(json.dumps(value).encode()) == value
    decode = make_decoder("msgpack")
    assert decode is not None
    assert decode(msgpack.packb(value)) == value


@given(st.binary())
def test_any_other_body_is_a_decode_error_and_nothing_else(body: bytes) -> None:
    for given_decoder in ("json", "msgpack"):
        if given_decoder == "msgpack":
            pytest.importorskip("msgpack")
        decode = make_decoder(given_decoder)
        assert decode is not None
        try:
            decode(body)
        except DecodeError as exc:
            assert exc.body == body
            assert repr(body[:80]) in str(exc)


def test_the_error_says_what_is_wrong_and_with_what() -> None:
    with pytest.raises(DecodeError, match=r"the body is not JSON: JSONDecodeError: .*; it is b'<xml/>'$") as caught:
        decode_json(b"<xml/>")
    assert (caught.value.decoder, caught.value.body) == ("JSON", b"<xml/>")
    assert isinstance(caught.value, ValueError)
    with pytest.raises(DecodeError, match=r"it has 5000 bytes and begins with b'x{80}'$"):
        decode_json(b"x" * 5000)
    with pytest.raises(DecodeError, match="RecursionError"):
        decode_json(b"[" * 200_000)
    decode = make_decoder(fail)
    assert decode is not None
    with pytest.raises(DecodeError, match=r"the body is not for fail: KeyError: 'schema 7'; it is b'x'") as caught:
        decode(b"x")
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_decoder_that_could_not_work_is_refused() -> None:
    for wrong in ("yaml", asynchronous, lambda: None):
        with pytest.raises(InvalidOption, match="decoder"):
            Reader("t", "c", print, nsqd_tcp_addresses="127.0.0.1:1", decoder=wrong)  # type: ignore[arg-type]
    decode = make_decoder(lambda body: asynchronous(body))
    assert decode is not None
    with pytest.raises(DecodeError, match="it returned a coroutine"):
        decode(b"x")


def test_a_message_is_decoded_once() -> None:
    calls: list[bytes] = []
    source = Source()
    source.decode = lambda body: calls.append(body)
    message = make_message(b"x", source=source)
    assert message.data is message.data is None
    assert calls == [b"x"]


def test_without_a_decoder_the_data_is_the_body() -> None:
    assert make_decoder(None) is None
    message = make_message(b'{"user": 7}')
    assert message.data == message.body
    assert message.json() == {"user": 7}
    with pytest.raises(DecodeError):
        make_message(b"\xff").json()


@pytest.mark.parametrize("form", ["handler", "thread", "batch", "batch in a thread"])
def test_a_body_that_cannot_be_decoded_fails_alone(nsqd: ScriptedNsqd, form: str, caplog: Any) -> None:
    seen: list[Any] = []
    handler: Any = lambda message: seen.append(message.data)  # noqa: E731
    if "batch" in form:
        handler = Batch(lambda messages: seen.extend(message.data for message in messages), size=2)
    spawn = "thread" if "thread" in form else "greenlet"
    options: dict[str, Any] = {"max_in_flight": 3, "max_backoff_duration": 0, "spawn": spawn}
    with reading([nsqd], handler, decoder="json", **options):
        peer = serve(nsqd)
        peer.messages(ID % 1, ID % 2, body=b"[1]")
        peer.messages(ID % 3, attempts=2, body=b"oops")
        lines: list[bytes] = []
        while sum(line.startswith((b"FIN", b"REQ")) for line in lines) < 3:
            lines += until(peer, b"")
        gevent.spawn(answer_cls, peer)
    assert seen == [[1], [1]]
    assert b"REQ " + ID % 3 + b" 180000" in lines
    assert "the body is not JSON" in caplog.text
    assert "b'oops'" in caplog.text


def test_an_iterated_reader_decodes_when_asked(nsqd: ScriptedNsqd) -> None:
    got: list[Any] = []

    def loop(reader: Reader) -> None:
        for message in reader:
            try:
                with message:
                    got.append(message.data)
            except NSQError as exc:
                got.append(type(exc))

    with reading([nsqd], None, decoder="json", max_backoff_duration=0) as reader:
        looping = gevent.spawn(loop, reader)
        peer = serve(nsqd)
        peer.messages(ID % 1, body=b"[1]")
        until(peer, b"FIN")
        peer.messages(ID % 2, body=b"oops")
        until(peer, b"REQ")
        gevent.spawn(answer_cls, peer)
    looping.get(timeout=60)
    assert got == [[1], DecodeError]


def test_a_message_given_up_need_not_be_decoded(nsqd: ScriptedNsqd) -> None:
    given_up: list[Message] = []
    options: dict[str, Any] = {"max_attempts": 1, "on_giving_up": given_up.append}
    with reading([nsqd], print, decoder="json", **options):
        peer = serve(nsqd)
        peer.messages(ID % 1, attempts=2, body=b"oops")
        until(peer, b"FIN")
        gevent.spawn(answer_cls, peer)
    assert [message.body for message in given_up] == [b"oops"]
