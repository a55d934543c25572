"""Messages that were given up: where they go, and that none is lost when they cannot go there."""

import json
import logging
import os
from pathlib import Path

import gevent
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq_like import Message, Producer, Reader, deadletter
from gnsq_like.deadletter import ToDirectory, ToLog, ToTopic, file_name, make_envelope, open_envelope
from gnsq_like.errors import InvalidName, InvalidOption, NotSent, PublishRefused, UsageError
from tests.support.daemons import KINDS, running_nsqd, wait_for
from tests.support.files import files_no_larger_than
from tests.support.messages import Source, make_message
from tests.support.peer import PATIENCE
from tests.support.reading import channel_stats, finished


def message(
    body: bytes = b"body", message_id: bytes = b"0123456789abcdef", attempts: int = 6, **source: str
) -> Message:
    return make_message(body, message_id, attempts, Source(**source))


class Published(list):
    def publish(self, topic, body):
        self.append((topic, body))


# -- envelopes --------------------------------------------------------------------------------------


@given(st.binary(max_size=300))
def test_an_envelope_keeps_everything(body):
    letter = open_envelope(make_envelope(message(body), reason="no page"))
    assert letter.reason == "no page"
    assert letter.body == body
    assert (letter.topic, letter.channel, letter.nsqd_address) == ("t", "c", "127.0.0.1:4150")
    assert (letter.id, letter.attempts, letter.timestamp_ns) == ("0123456789abcdef", 6, 1_500_000_000_123_456_789)
    assert letter.given_up_ns > 1_600_000_000 * 10**9


@given(st.text(max_size=1000))
def test_text_is_readable_in_it_and_it_is_never_much_larger_than_base64(text):
    body = text.encode()
    data = make_envelope(message(body))
    assert len(data) <= len(body) * 4 / 3 + 350
    assert open_envelope(data).body == body
    if text.isalnum() and text.isascii():
        assert json.loads(data)["body"] == text


@pytest.mark.parametrize("data", [b"", b"text", b"[]", b"5", b"{}", b'{"body": 5}', b"\xff", b'{"body_base64": "!"}'])
def test_what_is_no_envelope_is_refused(data):
    with pytest.raises(UsageError, match="not the envelope"):
        open_envelope(data)


# -- to a topic -------------------------------------------------------------------------------------


def test_to_a_topic_as_it_is_or_in_an_envelope():
    published = Published()
    ToTopic(published, "t.dead", envelope=False)(message(b"\x00\xff"))
    ToTopic(published, lambda message: f"{message.topic}.{message.channel}.dead", envelope=False)(message())
    ToTopic(published, "t.dead")(message(b"text"))
    assert published[:2] == [("t.dead", b"\x00\xff"), ("t.c.dead", b"body")]
    assert open_envelope(published[2][1]).body == b"text"


@pytest.mark.parametrize("size", [600, 900])
def test_an_envelope_that_is_too_large_for_nsqd_is_left_out(size):
    with running_nsqd("ours", max_msg_size=700) as nsqd, Producer(nsqd.tcp_address) as producer:
        bury = ToTopic(producer, "t.dead")
        if size > 700:
            with pytest.raises(PublishRefused):
                bury(message(bytes(size)))
        else:
            bury(message(bytes(size)))
            with Reader("t.dead", "c", nsqd_tcp_addresses=nsqd.tcp_address) as reader:
                found = reader.get(timeout=PATIENCE)
                assert found is not None
                assert found.body == bytes(size)
                found.finish()


def test_a_topic_is_checked_at_once_and_must_not_be_the_messages_own():
    with pytest.raises(InvalidName):
        ToTopic(Published(), "no topic")
    with pytest.raises(InvalidOption, match="producer=3: it must be a Producer"):
        ToTopic(3, "t")  # type: ignore[arg-type]
    published = Published()
    with pytest.raises(UsageError, match="loop for ever"):
        ToTopic(published, "t")(message())
    assert published == []


# -- to a directory ---------------------------------------------------------------------------------


def test_a_file_for_each_message_and_nothing_else(tmp_path):
    bury = ToDirectory(tmp_path, envelope=False)
    bury(message(b"one"))
    bury(message(b"two", b"fedcba9876543210"))
    bury(message(b"", b"0000000000000000"))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        "127.0.0.1:4150_t_0123456789abcdef": b"one",
        "127.0.0.1:4150_t_fedcba9876543210": b"two",
        "127.0.0.1:4150_t_0000000000000000": b"",
    }


@pytest.mark.parametrize("envelope", [False, True])
def test_nothing_is_overwritten_and_the_same_message_is_written_once(tmp_path, envelope):
    bury = ToDirectory(str(tmp_path), envelope=envelope)
    bury(message(b"one"))
    bury(message(b"one", attempts=7))  # its FIN did not arrive
    assert len(list(tmp_path.iterdir())) == 1
    bury(message(b"two"))
    bury(message(b"three"))
    bury(message(b"two", attempts=8))
    name = "127.0.0.1:4150_t_0123456789abcdef"
    bodies = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    if envelope:
        bodies = {key: open_envelope(data).body for key, data in bodies.items()}
    assert bodies == {name: b"one", f"{name}.2": b"two", f"{name}.3": b"three"}


def test_an_envelope_of_another_channel_is_another(tmp_path):
    bury = ToDirectory(tmp_path)
    (tmp_path / file_name(message())).write_bytes(b"what somebody else put there")
    bury(message(channel="a"))
    bury(message(channel="b"))
    bury(message(channel="a"))
    assert len(list(tmp_path.iterdir())) == 3


def test_a_name_that_is_only_a_link_is_not_followed(tmp_path):
    target = tmp_path / "elsewhere"
    (tmp_path / file_name(message())).symlink_to(target)
    ToDirectory(tmp_path, envelope=False)(message())
    assert not target.exists()
    assert (tmp_path / f"{file_name(message())}.2").read_bytes() == b"body"


texts = st.text(st.characters(codec="latin-1"), max_size=16)


@given(
    st.tuples(texts, st.from_regex(r"[a-zA-Z0-9._-]{1,54}(#ephemeral)?", fullmatch=True), st.binary(max_size=16)),
    st.tuples(texts, st.from_regex(r"[a-zA-Z0-9._-]{1,54}(#ephemeral)?", fullmatch=True), st.binary(max_size=16)),
)
def test_names_differ_for_different_messages_and_stay_in_the_directory(one, two):
    names = [file_name(message(message_id=each[2], topic=each[1], address=each[0] + ":4150")) for each in (one, two)]
    for name in names:
        assert "/" not in name
        assert "\0" not in name
        assert name not in (".", "..")
        assert len(name.encode()) <= 230
    if "_" not in str(one[2] + two[2], "latin-1"):
        assert (names[0] == names[1]) == (one == two)


def test_long_addresses_are_abridged():
    names = {file_name(message(address=f"unix:/{'x' * 100}/{number}")) for number in range(3)}
    assert len(names) == 3
    assert max(map(len, names)) < 60


def test_the_writing_blocks_no_greenlet(tmp_path):
    """What is there under the message's name is read first; this one is read only when its other end is written."""
    fifo = tmp_path / file_name(message())
    os.mkfifo(fifo)
    writing = gevent.spawn(ToDirectory(tmp_path, envelope=False), message())

    def other_end() -> int | None:
        try:
            return os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            return None  # nothing reads yet

    descriptor = wait_for(other_end)
    assert descriptor is not None
    assert not writing.ready()
    os.write(descriptor, b"body")
    os.close(descriptor)
    writing.get(timeout=30)
    assert os.listdir(tmp_path) == [fifo.name]


def test_a_full_disk_raises_and_leaves_nothing_half_written(tmp_path):
    with pytest.raises(OSError, match="too large"), files_no_larger_than(10):
        ToDirectory(tmp_path)(message(bytes(100)))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("envelope", [False, True])
def test_a_directory_that_is_none_raises(tmp_path, envelope):
    with pytest.raises(FileNotFoundError):
        ToDirectory(tmp_path / "missing", envelope=envelope)(message())
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(NotADirectoryError):
        ToDirectory(tmp_path / "file", envelope=envelope)(message())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_unwritable_directory_raises(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(PermissionError):
        ToDirectory(tmp_path)(message())


# -- to a log ---------------------------------------------------------------------------------------


def test_to_the_log(caplog):
    caplog.set_level(logging.INFO)
    failed = message(b"x" * 50)
    failed.failure = ValueError("meant")
    ToLog()(failed)
    [record] = caplog.records
    assert (record.name, record.levelno) == ("gnsq_like.deadletter", logging.WARNING)
    text = record.getMessage()
    for part in (
        "0123456789abcdef",
        "t/c",
        "127.0.0.1:4150",
        "at delivery 6",
        "ValueError: meant",
        "b'" + "x" * 50 + "'",
    ):
        assert part in text
    caplog.clear()
    ToLog(logging.getLogger("mine"), logging.INFO, body_bytes=10)(message(b"x" * 50))
    [record] = caplog.records
    assert (record.name, record.levelno) == ("mine", logging.INFO)
    assert record.getMessage().endswith("b'" + "x" * 10 + "'... (50 bytes)")


# -- in a Reader ------------------------------------------------------------------------------------


@pytest.fixture(params=KINDS)
def nsqd(request):
    with running_nsqd(request.param) as daemon:
        yield daemon


def failing_reader(nsqd, on_giving_up, **options):
    def handler(message):
        raise RuntimeError("meant")

    options |= {"max_attempts": 2, "default_requeue_delay": 0.001, "max_requeue_delay": 0.001}
    options |= {"max_backoff_duration": 0, "max_in_flight": 5}
    return Reader("t", "c", handler, nsqd_tcp_addresses=nsqd.tcp_address, on_giving_up=on_giving_up, **options)


def test_a_reader_buries_what_it_gives_up_in_another_topic(nsqd):
    dead: list[Message] = []
    with Producer(nsqd.tcp_address) as producer:
        producer.multi_publish("t", [b"%d" % number for number in range(10)])
        with (
            failing_reader(nsqd, deadletter.ToTopic(producer, "t.dead")) as reader,
            Reader("t.dead", "c", dead.append, nsqd_tcp_addresses=nsqd.tcp_address),
        ):
            wait_for(lambda: len(dead) == 10)
            wait_for(lambda: reader.stats()["finished"] == 10)
            wait_for(lambda: finished(nsqd))
    letters = [open_envelope(each.body) for each in dead]
    assert {letter.body for letter in letters} == {b"%d" % number for number in range(10)}
    assert {(letter.topic, letter.channel, letter.attempts) for letter in letters} == {("t", "c", 2)}
    assert {letter.reason for letter in letters} == {"RuntimeError: meant"}


def test_what_cannot_be_buried_is_requeued_until_it_can_and_reported(nsqd, tmp_path):
    directory, errors = tmp_path / "later", []
    bury = failing_reader(
        nsqd, ToDirectory(directory, envelope=False), on_error=lambda address, error: errors.append(error)
    )
    with Producer(nsqd.tcp_address) as producer, bury as reader:
        producer.multi_publish("t", [b"%d" % number for number in range(5)])
        wait_for(lambda: len(errors) >= 10)
        assert reader.stats()["finished"] == 0
        assert reader.stats()["backoff_level"] == 0
        assert isinstance(errors[0].__cause__, FileNotFoundError)
        directory.mkdir()
        wait_for(lambda: reader.stats()["finished"] == 5)
        wait_for(lambda: finished(nsqd))
    assert {path.read_bytes() for path in Path(directory).iterdir()} == {b"%d" % number for number in range(5)}


def test_a_dead_letter_topic_that_cannot_be_reached_loses_nothing(nsqd):
    class Away:
        def publish(self, topic, body):
            raise NotSent("away")

    with Producer(nsqd.tcp_address) as producer:
        producer.publish("t", b"x")
        with failing_reader(nsqd, ToTopic(Away(), "t.dead")) as reader:
            wait_for(lambda: reader.stats()["requeued"] > 5)
            assert reader.stats()["finished"] == 0
        wait_for(lambda: channel_stats(nsqd)["depth"] + channel_stats(nsqd)["deferred_count"] == 1)
