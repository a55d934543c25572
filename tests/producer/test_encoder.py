"""What may be published, and what is refused before anything is sent."""

import os
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq_like import Producer, Reader
from gnsq_like.errors import InvalidAddress, InvalidBody, InvalidName, InvalidOption, NotRunning
from gnsq_like.options import ProducerOptions
from gnsq_like.producer.publish import Encoder
from gnsq_like.wire import commands
from tests.support.daemons import KINDS, running_nsqd, wait_for
from tests.support.scripts import ROOT, run_beside

ADDRESS = "127.0.0.1:4150"


def encoder(**options):
    return Encoder(ProducerOptions(**options))


@pytest.mark.parametrize(
    ("body", "words"),
    [("text", "not str"), (b"", "empty"), (None, "not NoneType"), (3, "not int"), (b"12345", "more than the limit")],
)
def test_wrong_bodies(body, words):
    producer = Producer(ADDRESS, max_msg_bytes=4)
    for publish in (
        lambda: producer.publish("t", body),
        lambda: producer.publish_async("t", body),
        lambda: producer.publish("t", body, defer=1),
        lambda: producer.multi_publish("t", [body]),
        lambda: producer.check("t", body),
    ):
        with pytest.raises(InvalidBody, match=words):
            publish()
    assert producer.stats()["state"] == "new"


@pytest.mark.parametrize("topic", ["", "two words", "line\n", "x" * 65, None, b"bytes", 3])
def test_wrong_topics(topic):
    producer = Producer(ADDRESS)
    for publish in (
        lambda: producer.publish(topic, b"x"),
        lambda: producer.publish(topic, b"x", defer=1),
        lambda: producer.multi_publish(topic, [b"x"]),
        lambda: producer.check(topic, b"x"),
        lambda: producer.check(topic, b"x", defer=1),
    ):
        with pytest.raises(InvalidName):
            publish()
    assert producer.stats()["state"] == "new"


@pytest.mark.parametrize("defer", [-1, float("inf"), float("nan"), 2**31, "1", True])
def test_wrong_defer(defer):
    with pytest.raises(InvalidOption, match="defer"):
        Producer(ADDRESS).publish("t", b"x", defer=defer)
    with pytest.raises(InvalidOption, match="defer"):
        Producer(ADDRESS).check("t", b"x", defer=defer)


def test_check_gives_what_would_be_sent():
    body = bytearray(b"x")
    checked = Producer(ADDRESS).check("t", body, defer=2.5)
    body[:] = b"y"
    assert checked == b"x"
    producer = Producer(ADDRESS, encoder="json")
    assert producer.check("t", {"user": 7}) == b'{"user":7}'
    assert producer.stats()["state"] == "new"


@pytest.mark.parametrize("timeout", [0, -1, float("inf"), float("nan"), "1", True])
def test_wrong_timeout(timeout):
    with pytest.raises(InvalidOption, match="timeout"):
        Producer(ADDRESS).publish("t", b"x", timeout=timeout)


def test_wrong_arguments():
    with pytest.raises(InvalidOption, match="lookupd_http_addresses"):
        Producer()
    with pytest.raises(InvalidAddress):
        Producer("http://127.0.0.1:4150")
    with pytest.raises(InvalidOption, match="did you mean timeout"):
        Producer(ADDRESS, timeoutt=3)  # type: ignore[call-overload]
    with pytest.raises(InvalidOption, match="json, msgpack"):
        Producer(ADDRESS, encoder="pickle")  # type: ignore[call-overload]


@pytest.mark.parametrize("body", [b"x", bytearray(b"x"), memoryview(b"x")])
def test_bytes_of_all_kinds(body):
    assert encoder().body(body) == b"x"


def test_json():
    assert encoder(encoder="json").body({"name": "Zoë", "n": [1, 2]}) == '{"name":"Zoë","n":[1,2]}'.encode()


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_numbers_that_json_does_not_have(number):
    with pytest.raises(InvalidBody, match="the encoder failed"):
        encoder(encoder="json").body({"n": number})


def test_msgpack():
    msgpack = pytest.importorskip("msgpack")
    assert msgpack.unpackb(encoder(encoder="msgpack").body({"n": [1, b"x"]})) == {"n": [1, b"x"]}


def test_msgpack_that_is_not_installed(tmp_path):
    """In a process that has all packages of this one but that."""
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.startswith("msgpack"):
            (tmp_path / entry.name).symlink_to(entry)
    code = "from gnsq_like import Producer; Producer('127.0.0.1:4150', encoder='msgpack')"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    done = run_beside([sys.executable, "-S", "-c", code], env=environment)
    last = done.stderr.splitlines()[-1]
    assert last.startswith("gnsq_like.errors.InvalidOption: ")
    assert "msgpack is not installed: pip install msgpack" in last


def test_an_encoder_of_ones_own():
    assert encoder(encoder=str.encode).body("text") == b"text"
    with pytest.raises(InvalidBody, match="the encoder failed on a body of type int") as caught:
        encoder(encoder=str.encode).body(3)
    assert isinstance(caught.value.__cause__, TypeError)
    with pytest.raises(InvalidBody, match="the encoder must return bytes, and returned str"):
        encoder(encoder=str).body(3)


def test_the_commands_are_those_of_wire():
    it = encoder()
    assert it.pub("t", b"body") == commands.pub("t", b"body")
    assert it.dpub("t", 1.5, b"body") == commands.dpub("t", 1500, b"body")
    assert it.mpub("t", [b"a", b"bc"]) == commands.mpub("t", [b"a", b"bc"])


def test_an_mpub_is_split_at_the_limit():
    it = encoder(max_body_bytes=4 + 3 * (4 + 10))
    bodies = [b"%010d" % number for number in range(8)]
    assert list(it.chunks(iter(bodies), atomic=False)) == [bodies[:3], bodies[3:6], bodies[6:]]
    assert list(it.chunks([], atomic=False)) == []
    with pytest.raises(InvalidBody, match="message 3"):
        list(it.chunks(bodies, atomic=True))
    with pytest.raises(InvalidBody, match="message 1: 50 bytes do not fit"):
        list(it.chunks([b"x", bytes(50)], atomic=False))


@pytest.mark.parametrize("bodies", ["text", b"bytes", 5, None])
def test_one_body_is_not_several(bodies):
    with pytest.raises(InvalidBody, match="an iterable of bodies"):
        Producer(ADDRESS).multi_publish("t", bodies)


def test_a_wrong_body_among_several_says_which():
    with pytest.raises(InvalidBody, match="message 2"):
        Producer(ADDRESS).multi_publish("t", [b"a", b"b", ""])  # type: ignore[list-item]


@pytest.mark.parametrize("kind", KINDS)
def test_the_largest_that_nsqd_takes(kind):
    """The options' defaults are nsqd's."""
    received = []
    with running_nsqd(kind) as nsqd, Producer(nsqd.tcp_address, timeout=30) as producer:
        producer.publish("t", bytes(producer.options.max_msg_bytes))
        producer.multi_publish("t", (bytes(100_000) for _ in range(120)), timeout=30)
        producer.multi_publish("u", [bytes(producer.options.max_body_bytes // 5 - 5)] * 5, atomic=True)
        with Reader("t", "c", lambda m: received.append(len(m.body)), nsqd_tcp_addresses=nsqd.tcp_address):
            wait_for(lambda: len(received) == 121)


def test_nothing_after_close():
    producer = Producer(ADDRESS)
    assert producer.close() is True
    for publish in (producer.publish, producer.publish_async):
        with pytest.raises(NotRunning):
            publish("t", b"x")
    with pytest.raises(NotRunning):
        producer.multi_publish("t", [b"x"])
    assert repr(producer) == "<Producer 127.0.0.1:4150 closed>"


@given(
    bodies=st.lists(st.one_of(st.binary(max_size=12), st.just(bytearray(b"x")), st.just("text")), max_size=12),
    max_msg_bytes=st.integers(1, 10),
    max_body_bytes=st.integers(20, 60),
    atomic=st.booleans(),
)
def test_a_list_is_checked_and_split_like_any_iterable(
    bodies: list[Any], max_msg_bytes: int, max_body_bytes: int, atomic: bool
) -> None:
    """There is a shorter way for a list that fits."""
    it = encoder(max_msg_bytes=max_msg_bytes, max_body_bytes=max_body_bytes)

    def chunks(of: Any) -> list[list[bytes]] | str:
        try:
            return list(it.chunks(of, atomic))
        except InvalidBody as exc:
            return str(exc)

    expected = chunks(iter(bodies))
    assert chunks(bodies) == expected
    assert chunks(tuple(bodies)) == expected
