"""Publishing the records of a stream: cutting it into records, choosing topics, pace."""

import os
from collections.abc import Iterator

import gevent
import pytest
from gevent.event import Event
from hypothesis import given
from hypothesis import strategies as st

from gnsq_like.cluster.rounds import Unreachable
from gnsq_like.tools.publishing import (
    BadRecord,
    Progress,
    Targets,
    publish_records,
    read_chunks,
    split_records,
    topic_by_field,
)
from tests.support.daemons import running_nsqd, wait_for

BODIES = st.lists(st.binary(max_size=6).filter(lambda body: b"\n" not in body), max_size=6)


@given(BODIES, st.integers(1, 9), st.booleans())
def test_records_do_not_depend_on_how_the_stream_is_cut(bodies: list[bytes], size: int, ended: bool) -> None:
    stream = b"\n".join(bodies) + (b"\n" if ended and bodies else b"")
    chunks = [stream[start : start + size] for start in range(0, len(stream), size)]
    assert list(split_records(chunks, b"\n")) == [body for body in bodies if body]


def test_the_last_record_needs_no_delimiter_and_keeps_its_last_byte() -> None:
    assert list(split_records([b"x,y,,zz"], b",")) == [b"x", b"y", b"zz"]
    assert list(split_records([b"a\r", b"\nb\r\n"], b"\r\n")) == [b"a", b"b"]


def test_a_record_is_given_as_soon_as_it_is_complete() -> None:
    asked: list[bytes] = []

    def chunks() -> Iterator[bytes]:
        for chunk in (b"one\ntw", b"o\n"):
            asked.append(chunk)
            yield chunk

    records = split_records(chunks(), b"\n")
    assert next(records) == b"one"
    assert len(asked) == 1


@given(st.binary(max_size=30), st.sampled_from([b"a", b"ab", b"aa", b"aba"]), st.integers(1, 5))
def test_a_delimiter_may_be_cut_anywhere(stream: bytes, delimiter: bytes, size: int) -> None:
    stream = bytes(b"abc"[byte % 3] for byte in stream)
    chunks = [stream[start : start + size] for start in range(0, len(stream), size)]
    assert list(split_records(chunks, delimiter)) == [each for each in stream.split(delimiter) if each]


class Counted(bytes):
    """A chunk that counts the bytes that are copied to stand before it."""

    copied = 0

    def __radd__(self, before: bytes) -> bytes:
        Counted.copied += len(before)
        return bytes(before) + bytes(self)


def test_input_without_the_delimiter_is_not_copied_for_each_chunk() -> None:
    Counted.copied = 0
    chunks = [Counted(b"x" * 1000)] * 100
    assert list(split_records(chunks, b"--")) == [b"x" * 100_000]
    assert Counted.copied < 1000


@pytest.mark.parametrize("before", [[], [b"one\ntwo\n"]])
def test_a_record_that_is_too_long_is_an_error_before_its_end(before: list[bytes]) -> None:
    asked = 0

    def chunks() -> Iterator[bytes]:
        nonlocal asked
        yield from before
        while True:
            asked += 1
            yield b"x" * 1000

    records = split_records(chunks(), b"\n", 5000)
    for wanted in b"".join(before).split():
        assert next(records) == wanted
    with pytest.raises(ValueError, match="more bytes than the limit of 5000"):
        next(records)
    assert asked == 6
    assert list(split_records([b"x" * 5000], b"\n", 5000)) == [b"x" * 5000]


def test_what_was_read_before_a_record_that_is_too_long_is_published() -> None:
    with running_nsqd() as nsqd:
        targets = Targets([nsqd.tcp_address], options={"max_msg_bytes": 3})
        progress = Progress()
        records = split_records([b"one\ntwo\nth", b"ree"], b"\n", targets.longest)
        with pytest.raises(BadRecord, match=r"record 3: .* limit of 3") as caught:
            publish_records(records, targets, lambda record: "t", progress=progress)
        targets.close()
        assert (caught.value.number, progress.published) == (3, 2)


def test_a_field_names_the_topic() -> None:
    topic_of = topic_by_field("kind")
    assert topic_of(b'{"kind": "clicks"}') == "clicks"
    assert topic_by_field("kind", "other")(b"{}") == "other"


@pytest.mark.parametrize(
    ("record", "reason"),
    [(b"{", "not JSON"), (b"[1]", "not a JSON object"), (b"{}", "missing"), (b'{"kind": 1}', "not a string")],
)
def test_a_record_that_names_no_topic(record: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        topic_by_field("kind")(record)


def test_reading_ends_with_the_pipe_or_with_stop() -> None:
    ours, theirs = os.pipe()
    os.write(theirs, b"abc")
    stop = Event()
    chunks = read_chunks(ours, stop)
    assert next(chunks) == b"abc"
    waiting = gevent.spawn(list, chunks)
    wait_for(lambda: not waiting.ready() and waiting.started)
    stop.set()
    assert waiting.get(timeout=30) == []
    os.write(theirs, b"d")
    os.close(theirs)
    assert list(read_chunks(ours, Event())) == [b"d"]
    os.close(ours)


def test_a_bad_record_stops_the_rest_and_those_before_it_are_confirmed() -> None:
    with running_nsqd() as nsqd:
        targets = Targets([nsqd.tcp_address])
        progress = Progress()
        records = [b"a", b"b", b"c", b"d"]
        topics = {b"a": "t", b"b": "t", b"c": "?"}
        with pytest.raises(BadRecord, match="record 3: invalid topic name") as caught:
            publish_records(records, targets, topics.__getitem__, progress=progress)
        targets.close()
        assert (caught.value.number, progress.published) == (3, 2)
        assert nsqd.daemon.broker.topics["t"].message_count == 2


def test_all_or_one() -> None:
    with running_nsqd() as one, running_nsqd() as two:
        addresses = [one.tcp_address, two.tcp_address]
        for to_one, wanted in ((False, [10, 10]), (True, [5, 5])):
            topic = f"to-one-{to_one}"
            targets = Targets(addresses, to_one=to_one, options={"batching": False})
            assert publish_records([b"x"] * 10, targets, {b"x": topic}.__getitem__) == 10
            targets.close()
            assert [nsqd.daemon.broker.topics[topic].message_count for nsqd in (one, two)] == wanted


def test_nobody_listens() -> None:
    targets = Targets(["127.0.0.1:1"])
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1:1"):
        publish_records([b"x"], targets, lambda record: "t")
    targets.close()
