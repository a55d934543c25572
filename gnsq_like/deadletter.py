"""Ready-made ``on_giving_up`` handlers: what becomes of a message that failed too often.

::

    Reader("clicks", "archive", handler, on_giving_up=deadletter.ToTopic(producer, "clicks.dead"))
    Reader("clicks", "archive", handler, on_giving_up=deadletter.ToDirectory("/var/lib/clicks/dead"))
    Reader("clicks", "archive", handler, on_giving_up=deadletter.ToLog())

Each is called with the message. When it returns, the message is in its new place and the Reader finishes
it. When it raises (nsqd away, disk full), the Reader requeues the message without backoff and reports the
error: nothing is lost. A message can come twice to its new place, if its FIN does not reach nsqd.

The body is kept as it is. A topic keeps nothing else of the message; with ``envelope=True`` what is kept is
a JSON object with all that is known of the message, which :func:`open_envelope` reads.
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

from gnsq_like.durable_file import create_file
from gnsq_like.errors import UsageError
from gnsq_like.reader.message import Message
from gnsq_like.runtime.thread_pool import call_in_thread
from gnsq_like.wire.names import encode_topic

__all__ = ["DeadLetter", "ToDirectory", "ToLog", "ToTopic", "make_envelope", "open_envelope", "pack_envelope"]

logger = logging.getLogger(__name__)

#: Most characters of an address in a file name; a longer one (a unix path) is replaced by its hash.
_ADDRESS_LENGTH = 80
#: How often a name may be taken before something is wrong.
_MOST_COPIES = 1000


class Publishes(Protocol):
    """What is needed of a Producer."""

    def publish(self, topic: str, body: bytes, /) -> object: ...


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """What an envelope holds."""

    topic: str
    channel: str
    nsqd_address: str
    id: str
    #: Deliveries before it was given up, the last one (to the dead letters) included.
    attempts: int
    #: When it was published, in ns since the epoch.
    timestamp_ns: int
    #: When it was given up, in ns since the epoch.
    given_up_ns: int
    body: bytes
    #: Why, where that is known.
    reason: str = ""


def make_envelope(message: Message) -> bytes:
    """The message and what is known of it, as one JSON object; see :func:`pack_envelope`."""
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
        )
    )


def pack_envelope(letter: DeadLetter) -> bytes:
    """A dead letter as one JSON object.

    ``body`` is the text itself where the bytes are UTF-8 (and that is shorter), else ``body_base64`` is there;
    ``reason`` is left out where it is empty.
    """
    fields: dict[str, object] = {each.name: getattr(letter, each.name) for each in dataclasses.fields(letter)}
    body = letter.body
    del fields["body"]
    if not letter.reason:
        del fields["reason"]
    coded = base64.b64encode(body).decode("ascii")
    fields["body_base64"] = coded
    with contextlib.suppress(UnicodeDecodeError):
        text = body.decode("utf-8")
        if len(json.dumps(text, ensure_ascii=False).encode("utf-8")) <= max(len(coded), 64):
            del fields["body_base64"]
            fields["body"] = text
    return json.dumps(fields, ensure_ascii=False).encode("utf-8")


def open_envelope(data: bytes) -> DeadLetter:
    """What :func:`pack_envelope` packed.

    :raises UsageError: when it is no envelope
    """
    try:
        fields = json.loads(data)
        coded = fields.pop("body_base64", None)
        body = fields.pop("body").encode("utf-8") if coded is None else base64.b64decode(coded, validate=True)
        return DeadLetter(**fields, body=body)
    except (ValueError, TypeError, KeyError, AttributeError) as exc:
        raise UsageError(f"that is no envelope of a dead letter: {exc!r}") from exc


class ToTopic:
    """Publishes to another topic.

    The producer's own ``timeout`` bounds how long this takes; it should end before ``msg_timeout``.

    :param producer: a :class:`Producer`, or whatever has its ``publish``
    :param topic: the topic, or a function from the message to its name
    :param envelope: whether to publish :func:`make_envelope` in place of the bare body; it is larger than the
        body, by up to a third and some 300 bytes, and has to stay below nsqd's max-msg-size
    :raises InvalidName: for a topic that nsqd would refuse
    """

    def __init__(self, producer: Publishes, topic: str | Callable[[Message], str], *, envelope: bool = False) -> None:
        if not callable(topic):
            encode_topic(topic)
        self._producer = producer
        self._topic = topic
        self._envelope = envelope

    def __call__(self, message: Message) -> None:
        """May switch.

        :raises PublishError: as the producer's publish
        :raises UsageError: for the topic that the message comes from, where it would go round for ever
        """
        topic = self._topic(message) if callable(self._topic) else self._topic
        if topic == message.topic:
            raise UsageError(f"{topic} is where the message comes from: it would go round for ever")
        self._producer.publish(topic, make_envelope(message) if self._envelope else message.body)


class ToDirectory:
    """Writes a file for each message, complete or not at all, and safe on the disk before it is finished.

    The file's name is made of nsqd's address, topic and id, which tell a message from all others. A file that
    is there is never overwritten: what is the same message is left as it is, another one (the same message
    given up by another channel) gets a number at the end. Names that begin with a dot are files being written.

    The writing is done in a thread, for a slow disk must not block the hub.

    :param path: a directory that exists
    :param envelope: whether the file holds :func:`make_envelope` in place of the bare body
    """

    def __init__(self, path: str | os.PathLike[str], *, envelope: bool = False) -> None:
        self._path = Path(path)
        self._envelope = envelope

    def __call__(self, message: Message) -> None:
        """May switch.

        :raises OSError: when the file could not be written (disk full, no such directory, no permission)
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
        """Whether this file is what an earlier try wrote of this message."""
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
    """A file name made of nsqd's address, topic and id, different for messages that are not the same."""
    # The first and the last underscore are the separators: addresses have none left, ids never had one.
    address = quote(message.nsqd_address, safe=":[]").replace("_", "%5F")
    if len(address) > _ADDRESS_LENGTH:
        address = hashlib.sha256(message.nsqd_address.encode()).hexdigest()[:32]
    return f"{address}_{quote(message.topic, safe='')}_{quote(message.id, safe='')}"


class ToLog:
    """Logs the message, and nothing more: its body is gone, but for the beginning.

    :param log: the logger; ``gnsq_like.deadletter`` if not given
    :param level: as of :mod:`logging`
    :param body_bytes: how much of the body is logged
    """

    def __init__(self, log: logging.Logger = logger, level: int = logging.ERROR, body_bytes: int = 1000) -> None:
        self._log = log
        self._level = level
        self._body_bytes = body_bytes

    def __call__(self, message: Message) -> None:
        """Never switches."""
        body = message.body[: self._body_bytes]
        self._log.log(
            self._level,
            "gave up message %s of %s/%s from %s after %d deliveries, published %.3f: %r%s",
            message.id,
            message.topic,
            message.channel,
            message.nsqd_address,
            message.attempts - 1,
            message.timestamp,
            body,
            "" if len(body) == len(message.body) else f"... ({len(message.body)} bytes)",
        )
