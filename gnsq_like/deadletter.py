"""Ready-made ``on_giving_up`` handlers, for messages that failed in all permitted deliveries.

::

    Reader("clicks", "archive", handler, on_giving_up=deadletter.ToTopic(producer, "clicks.dead"))
    Reader("clicks", "archive", handler, on_giving_up=deadletter.ToDirectory("/var/lib/clicks/dead"))
    Reader("clicks", "archive", handler, on_giving_up=deadletter.ToLog())

Each is called with the message. When it returns, the message has been stored, and the Reader finishes it. When it
raises (nsqd unreachable, disk full), the Reader requeues the message and reports the error, so nothing is lost. A
message is stored twice if its FIN does not reach nsqd.

An *envelope* is stored, a JSON object with the body, the message's origin, attempts and times, and the error of the
last delivery; :func:`open_envelope` reads it, and ``gnsq-like dlq`` and the admin show and replay it. With
``envelope=False``, the body alone is stored.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import errno
import hashlib
import json
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

from gnsq_like.errors import InvalidBody, InvalidOption, PublishRefused, UsageError
from gnsq_like.reader.message import Message
from gnsq_like.runtime.files import create_file
from gnsq_like.runtime.thread_pool import call_in_thread
from gnsq_like.runtime.user_code import in_one_line, place_of, summary, text_of, type_of
from gnsq_like.wire.names import encode_topic

__all__ = ["DeadLetter", "ToDirectory", "ToLog", "ToTopic", "make_envelope", "open_envelope", "pack_envelope"]

logger = logging.getLogger(__name__)

#: Longest address in a file name; a longer one (a unix path) is replaced by its hash.
_ADDRESS_LENGTH = 80
#: Files of one name; more are an error.
_MOST_COPIES = 1000
#: Fields that an envelope leaves out if they are empty.
_OPTIONAL = ("reason", "error_type", "error_text", "error_place")


class Publishes(Protocol):
    """The part of a Producer that is needed here."""

    def publish(self, topic: str, body: bytes, /) -> object: ...


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """The content of an envelope."""

    topic: str
    channel: str
    nsqd_address: str
    id: str
    #: Number of deliveries, including the one after which it was given up.
    attempts: int
    #: Time of publishing, in ns since the epoch.
    timestamp_ns: int
    #: Time of giving up, in ns since the epoch.
    given_up_ns: int
    body: bytes
    #: Why it was given up, in one line.
    reason: str = ""
    #: The exception of the last delivery: its type, its text, and the line that it was raised at or came through.
    error_type: str = ""
    error_text: str = ""
    error_place: str = ""


def make_envelope(message: Message, reason: str = "") -> bytes:
    """A message as an envelope; see :func:`pack_envelope`.

    :param reason: why it is a dead letter, as ``gnsq-like dlq list`` shows it; type and text of ``message.failure`` if
        it is empty
    """
    error = message.failure
    return pack_envelope(
        DeadLetter(
            topic=message.topic,
            channel=message.channel,
            nsqd_address=message.nsqd_address,
            id=message.id,
            attempts=message.attempts,
            timestamp_ns=message.timestamp_ns,
            given_up_ns=time.time_ns(),
            body=message.body,
            reason=reason or ("" if error is None else summary(error)),
            error_type="" if error is None else type_of(error),
            error_text="" if error is None else text_of(error),
            error_place="" if error is None else place_of(error),
        )
    )


def pack_envelope(letter: DeadLetter) -> bytes:
    """Encode a dead letter as one JSON object.

    If the body is UTF-8 and that form is no longer, the object has it as ``body``, otherwise as ``body_base64``. An
    empty reason or error is left out.
    """
    fields = {each.name: getattr(letter, each.name) for each in dataclasses.fields(letter)}
    body = fields.pop("body")
    fields = {name: value for name, value in fields.items() if value or name not in _OPTIONAL}
    coded = base64.b64encode(body).decode("ascii")
    fields["body_base64"] = coded
    with contextlib.suppress(UnicodeDecodeError):
        text = body.decode("utf-8")
        if len(json.dumps(text, ensure_ascii=False).encode("utf-8")) <= max(len(coded), 64):
            del fields["body_base64"]
            fields["body"] = text
    return json.dumps(fields, ensure_ascii=False).encode("utf-8")


def open_envelope(data: bytes) -> DeadLetter:
    """Decode an envelope made by :func:`pack_envelope`.

    :raises UsageError: if it is not an envelope
    """
    try:
        fields = json.loads(data)
        coded = fields.pop("body_base64", None)
        body = fields.pop("body").encode("utf-8") if coded is None else base64.b64decode(coded, validate=True)
        return DeadLetter(**fields, body=body)
    except (ValueError, TypeError, KeyError, AttributeError) as exc:
        raise UsageError(f"not the envelope of a dead letter: {exc!r}") from exc


class ToTopic:
    """Publishes to another topic.

    The producer's ``timeout`` limits the time this takes; it should be shorter than ``msg_timeout``.

    :param producer: a :class:`Producer`, or an object with its ``publish``
    :param topic: the topic, or a function of the message that returns it
    :param envelope: whether to publish :func:`make_envelope` instead of the body alone. It is larger by up to a third
        and about 2 kB; if nsqd refuses it for its size, the body alone is published
    :raises InvalidName: if nsqd would refuse the topic
    :raises InvalidOption: if the producer cannot publish
    """

    def __init__(self, producer: Publishes, topic: str | Callable[[Message], str], *, envelope: bool = True) -> None:
        if not callable(getattr(producer, "publish", None)):
            raise InvalidOption("producer", producer, "it must be a Producer, or have its method publish")
        if not callable(topic):
            encode_topic(topic)
        self._producer = producer
        self._topic = topic
        self._envelope = envelope

    def __call__(self, message: Message) -> None:
        """Publish the message. May switch.

        :raises PublishError: as the producer's publish
        :raises UsageError: if the message comes from this topic, because it would be delivered and given up for ever
        """
        topic = self._topic(message) if callable(self._topic) else self._topic
        if topic == message.topic:
            raise UsageError(f"the message comes from topic {topic} itself and would loop for ever; use another topic")
        if self._envelope:
            with contextlib.suppress(InvalidBody, PublishRefused):
                self._producer.publish(topic, make_envelope(message))
                return
        self._producer.publish(topic, message.body)


class ToDirectory:
    """Writes a file for each message, atomically, and synced before the message is finished.

    The file's name is made of nsqd's address, topic and id, which identify a message. An existing file is never
    overwritten: if it holds the same message it is kept, otherwise (the message was given up by another channel) the
    new name gets a number at its end. Files whose names begin with a dot are being written.

    Files are written in a thread, because a slow disk would block the hub.

    :param path: an existing directory
    :param envelope: whether to write :func:`make_envelope` instead of the body alone
    """

    def __init__(self, path: str | os.PathLike[str], *, envelope: bool = True) -> None:
        self._path = Path(path)
        self._envelope = envelope

    def __call__(self, message: Message) -> None:
        """Write the message. May switch.

        :raises OSError: if the file cannot be written (disk full, no such directory, no permission)
        """
        call_in_thread(self._write, message)

    def _write(self, message: Message) -> None:
        name = file_name(message)
        data = make_envelope(message) if self._envelope else message.body
        for number in range(1, _MOST_COPIES):
            path = self._path / (name if number == 1 else f"{name}.{number}")
            if create_file(path, data) or self._holds(path, message):
                return
        raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), str(self._path / name))

    def _holds(self, path: Path, message: Message) -> bool:
        """Whether an earlier try wrote this file for this message."""
        try:
            data = path.read_bytes()
        except OSError:
            return False
        if not self._envelope:
            return data == message.body
        try:
            letter = open_envelope(data)
        except UsageError:
            return False
        return (letter.channel, letter.timestamp_ns, letter.body) == (
            message.channel,
            message.timestamp_ns,
            message.body,
        )


def file_name(message: Message) -> str:
    """A file name made of nsqd's address, topic and id; different messages have different names."""
    # The first and the last underscore are the separators: they are quoted in addresses, and ids have none.
    address = quote(message.nsqd_address, safe=":[]").replace("_", "%5F")
    if len(address) > _ADDRESS_LENGTH:
        address = hashlib.sha256(message.nsqd_address.encode()).hexdigest()[:32]
    return f"{address}_{quote(message.topic, safe='')}_{quote(message.id, safe='')}"


class ToLog:
    """Logs the message and the beginning of its body; the rest of the body is lost.

    The Reader logs an ERROR besides, without the body.

    :param log: the logger; ``gnsq_like.deadletter`` by default
    :param level: a level of :mod:`logging`
    :param body_bytes: number of bytes of the body to log
    """

    def __init__(self, log: logging.Logger = logger, level: int = logging.WARNING, body_bytes: int = 1000) -> None:
        self._log = log
        self._level = level
        self._body_bytes = body_bytes

    def __call__(self, message: Message) -> None:
        """Log the message. Never switches."""
        body = message.body[: self._body_bytes]
        self._log.log(
            self._level,
            "gave up message %s of %s/%s from %s at delivery %d, published %.3f: %s: %r%s",
            message.id,
            message.topic,
            message.channel,
            message.nsqd_address,
            message.attempts,
            message.timestamp,
            None if message.failure is None else in_one_line(message.failure),
            body,
            "" if len(body) == len(message.body) else f"... ({len(message.body)} bytes)",
        )
