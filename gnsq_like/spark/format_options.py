"""The options of ``format("nsq")``: each once, with its unit, default, bounds and the function that reads its text.

Spark passes all options that the user gave in one mapping, as strings under lower-case names. A class of options is a
frozen dataclass whose fields are made by :func:`option`; :func:`parse_options` reads the mapping, and refuses an
unknown name with a hint at the nearest known one. A user's name is the field's, and a bare number has its unit:
seconds, bytes.

``nsq.<name>`` options belong to our own Connection (:class:`gnsq_like.options.ConnectionOptions`), which checks them;
``storage.<name>`` options go to fsspec.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypeVar

from gnsq_like import Connection, LookupdClient, NsqdHTTPClient
from gnsq_like.errors import InvalidOption, UsageError, did_you_mean
from gnsq_like.options import ConnectionOptions, make_options
from gnsq_like.options.text import parse_duration, read_size, read_text
from gnsq_like.spark.staging.offsets import TopicChannel
from gnsq_like.tools.client_options import parse_value, text_options
from gnsq_like.wire.names import encode_channel, encode_topic

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


_T = TypeVar("_T")


#: The longest that a segment may take to fill, as a share of the time-out of messages: those that came first must be
#: staged and finished in good time.
_SLOW = 1 / 8
#: A pause after which a partition ends, as a share of the same: whoever expects longer pauses sets a longer time-out.
_IDLE = 1 / 100
_LEAST_IDLE = 0.15

#: Options of Kafka's source that NSQ cannot honour, and former ones, with the remedy.
_REFUSED = {
    "dedupe": "dedupe_within replaces it: the time for which ids are remembered, such as 10m",
    "dedupewindow": "it is called dedupe_within now",
    "startingoffsets": "NSQ has no offsets: a channel has the messages since it was created",
    "endingoffsets": "NSQ has no offsets: a query reads all that the channel has",
    "subscribe": "it is called topic, or topics for several, and a channel belongs to it",
    "subscribepattern": "it is called topics_pattern",
    "maxoffsetspertrigger": "it is called max_messages",
}

#: Connection options that the source sets itself, with the options to use instead.
_OWN_NSQ = {"msg_timeout": "give msg_timeout instead"}


# -- reading text ---------------------------------------------------------------------------------------
#
# Each function raises UsageError with a text that says what would be right.


def text(value: str) -> str:
    """Any text that is not empty."""
    if not value.strip():
        raise UsageError("it is empty")
    return value.strip()


def number(minimum: int = 0) -> Callable[[str], int]:
    """A whole number."""

    def read(value: str) -> int:
        result = read_text(value, (int,))
        if result < minimum:
            raise UsageError(f"it must be at least {minimum}")
        return result

    return read


def duration(value: str) -> float:
    """A duration such as "500ms", "30s", "15m" or "7d", as seconds; a bare number is seconds."""
    return parse_duration(value, default_unit="s")


def duration_from(least: str) -> Callable[[str], float]:
    """A duration that is not below this one."""

    def read(value: str) -> float:
        result = duration(value)
        if result < duration(least):
            raise UsageError(f"it must be at least {least}")
        return result

    return read


def size(minimum: int = 1) -> Callable[[str], int]:
    """A size such as "32m" or "1g", as bytes; a bare number is bytes."""

    def read(value: str) -> int:
        result = read_size(value)
        if result < minimum:
            raise UsageError(f"it must be at least {minimum} bytes")
        return result

    return read


def boolean(value: str) -> bool:
    """ "true" or "false", and other words for them."""
    return read_text(value, (bool,))


def choice(*choices: str) -> Callable[[str], str]:
    """One of these words."""

    def read(value: str) -> str:
        lowered = value.strip().lower()
        if lowered not in choices:
            raise UsageError(f"it must be one of {', '.join(choices)}")
        return lowered

    return read


#: The unit of a TIMESTAMP that is a number.
timestamp_unit = choice("s", "ms", "us", "ns")


def words(value: str) -> tuple[str, ...]:
    """Words separated by commas."""
    result = tuple(word.strip() for word in value.split(",") if word.strip())
    if not result:
        raise UsageError("it is empty")
    return result


def addresses(value: str) -> tuple[str, ...]:
    """TCP addresses of nsqds, each in the form that ``nsqd_address`` has in messages."""
    return tuple(dict.fromkeys(Connection(each).address for each in words(value)))


def topics(value: str) -> tuple[TopicChannel, ...]:
    """Topics such as "clicks, views/other": each alone, or with its channel."""
    result = tuple(dict.fromkeys(TopicChannel.parse(word) for word in words(value)))
    for each in result:
        encode_topic(each.topic)
        if each.channel:
            encode_channel(each.channel)
    named = [each.topic for each in result]
    for name in named:
        if named.count(name) > 1:
            raise UsageError(f"topic {name} is there twice; one query reads one channel of it")
    return result


def pattern(value: str) -> str:
    """A regular expression."""
    try:
        re.compile(value)
    except re.error as exc:
        raise UsageError(f"it is no regular expression: {exc}") from None
    return text(value)


# -- a class of options ---------------------------------------------------------------------------------


def option(read: Callable[[str], Any], default: Any) -> Any:
    """A field of a class of options.

    :param read: makes the value from the text; raises UsageError
    """
    return field(default=default, metadata={"read": read})


def named_options(cls: type[Any]) -> dict[str, Field[Any]]:
    """The options of a class, by the name that users write."""
    return {each.name: each for each in fields(cls) if "read" in each.metadata}


def parse_options(cls: type[_T], given: Mapping[str, str], ignored: Iterable[str] = ()) -> _T:
    """Make an object of a class of options from the user's options, whose names may be in any case.

    :param ignored: lower-case names that are not options of this class
    :raises InvalidOption: an unknown name, or a wrong value
    """
    known = named_options(cls)
    prefixes = {each.metadata["prefix"]: each.name for each in fields(cls) if "prefix" in each.metadata}  # type: ignore[arg-type]
    values: dict[str, Any] = {name: {} for name in prefixes.values()}
    for key, value in given.items():
        lowered = key.lower()
        prefix, dot, rest = lowered.partition(".")
        if dot and prefix + dot in prefixes:
            values[prefixes[prefix + dot]][rest] = value
        elif lowered in known:
            values[lowered] = _read(known[lowered], value)
        elif lowered not in ignored:
            raise _unknown(key, value, list(known))
    return cls(**values)


def _read(known: Field[Any], value: str) -> Any:
    try:
        return known.metadata["read"](str(value))
    except UsageError as exc:
        raise InvalidOption(known.name, value, str(exc)) from exc


def _unknown(key: str, value: str, names: list[str]) -> InvalidOption:
    bare = key.lower().replace("_", "")
    if bare in _REFUSED:
        return InvalidOption(key, value, _REFUSED[bare])
    now = next((name for name in names if name.replace("_", "") == bare), None)
    hint = f"; it is called {now}" if now else did_you_mean(key, names)
    return InvalidOption(key, value, f"there is no such option{hint}")


def _in_name(topic: str) -> str:
    """A topic as part of a column's name."""
    return re.sub(r"\W", "_", topic)


# -- columns --------------------------------------------------------------------------------------------

#: The source's columns, with their types in Spark's DDL, and whether they are among the default ones.
COLUMNS: dict[str, tuple[str, bool]] = {
    "id": ("STRING", True),
    "body": ("BINARY", True),
    "timestamp": ("TIMESTAMP", True),
    "attempts": ("INT", True),
    "topic": ("STRING", True),
    "channel": ("STRING", True),
    "nsqd_address": ("STRING", True),
    "timestamp_ns": ("BIGINT", False),
    "seen_at": ("TIMESTAMP", False),
    "size": ("INT", False),
}
#: Those that are there besides if bodies are parsed.
PARSED = {"raw": "BINARY", "reason": "STRING"}
#: The types of columns that are no parsed bodies.
_PLAIN_TYPES = {kind for kind, _ in COLUMNS.values()}


def columns(value: str) -> tuple[str, ...]:
    """Names of columns, such as "id, body"; or "all"."""
    return tuple(dict.fromkeys(word.lower() for word in words(value)))


def struct_of(ddl: str) -> str:
    """The type of a struct of these fields, in Spark's DDL."""
    return ddl if re.match(r"\s*struct\s*<", ddl, re.IGNORECASE) else f"STRUCT<{ddl}>"


# -- the source's options -------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """Options for reading, as a stream and in batches; each kind ignores options that concern only the other."""

    #: The topic; or several, each with the channel or as "topic/channel"; or a regular expression that whole names of
    #: topics match.
    topic: str = option(text, "")
    topics: tuple[TopicChannel, ...] = option(topics, ())
    topics_pattern: str = option(pattern, "")
    #: The channel of all topics that do not have one of their own.
    channel: str = option(text, "")
    #: The nsqlookupds through which the topic's nsqds are found: "host:port" or URLs.
    lookupd_http_addresses: tuple[str, ...] = option(words, ())
    #: Or the TCP addresses of the nsqds; a message's ``nsqd_address`` is one of these.
    nsqd_tcp_addresses: tuple[str, ...] = option(addresses, ())
    #: Their HTTP addresses, in the same order.
    nsqd_http_addresses: tuple[str, ...] = option(words, ())
    #: Where executors store received messages; the driver and all executors reach it. A path or a URL for fsspec.
    staging_location: str = option(text, "")
    #: The largest number of messages in a batch. Larger batches are hardly faster; each takes longer to repeat.
    max_messages: int = option(number(1), 500_000)
    #: The approximate limit on the bytes of bodies in a batch.
    max_bytes: int = option(size(1), 256 << 20)
    #: A batch waits until nsqd has this many messages, or ``max_trigger_delay`` seconds have passed since the last one.
    min_messages: int = option(number(1), 1)
    #: The least number of partitions, as a hint: nsqds' shares are split to reach it.
    min_partitions: int = option(number(1), 1)
    #: Seconds after which nsqd delivers unanswered messages again, such as those of a crashed task.
    msg_timeout: float = option(duration_from("1s"), 15.0)
    #: Seconds for which ids are remembered, so that copies are dropped: messages that nsqd delivers again although they
    #: were staged. 0: only those whose FIN may not have been executed.
    dedupe_within: float = option(duration, 600.0)
    #: Whether the query fails if staged messages that it must deliver are missing.
    fail_on_data_loss: bool = option(boolean, True)
    #: How a new query treats a log that another query left unfinished when its checkpoint was deleted.
    unfinished_log: str = option(choice("refuse", "adopt"), "refuse")
    #: Whether an AvailableNow run waits for messages that crashed tasks left in flight, for little more than
    #: msg_timeout at its start and before its end.
    wait_in_flight: bool = option(boolean, False)
    #: The columns of the rows, in this order; the usual ones if none are named.
    columns: tuple[str, ...] = option(columns, ())
    #: The fields of the JSON objects that bodies are, as Spark's DDL: ``body`` is a struct of them then.
    schema: str = option(text, "")
    #: The unit of numbers in TIMESTAMP fields, which count from 1970.
    timestamp_unit: str = option(timestamp_unit, "s")
    #: Whether ``raw`` has the bytes of all bodies, and not only of those that do not fit the schema.
    keep_raw: bool = option(boolean, False)
    #: The schema and the unit of single topics, by the topic in lower case, as Spark passes it. With an empty schema,
    #: the topic's bodies are bytes.
    schemas: Mapping[str, str] = field(default_factory=dict, metadata={"prefix": "schema."})
    timestamp_units: Mapping[str, str] = field(default_factory=dict, metadata={"prefix": "timestamp_unit."})
    #: Options of the connections.
    nsq: Mapping[str, str] = field(default_factory=dict, repr=False, metadata={"prefix": "nsq."})
    #: Options of fsspec's file system.
    storage: Mapping[str, str] = field(default_factory=dict, repr=False, metadata={"prefix": "storage."})

    # Constants, which only tests change: nobody has needed another value.

    #: A segment is complete with this many messages; it takes all that have arrived by then. Half of nsqd's default
    #: limit for messages in flight on a connection, so that nsqd sends the next segment while one is staged.
    segment_messages: int = 1250
    #: Or with this many bytes of bodies.
    segment_bytes: int = 32 << 20
    #: Seconds after the last batch when the next one waits for ``min_messages`` no longer.
    max_trigger_delay: float = 900.0

    def __post_init__(self) -> None:
        self._check_topics()
        if bool(self.lookupd_http_addresses) == bool(self.nsqd_tcp_addresses):
            reason = "give either lookupd_http_addresses, or nsqd_tcp_addresses with nsqd_http_addresses"
            raise InvalidOption("nsqd_tcp_addresses", ",".join(self.nsqd_tcp_addresses), reason)
        if len(self.nsqd_http_addresses) != len(self.nsqd_tcp_addresses):
            reason = "it must name the HTTP address of each of nsqd_tcp_addresses, in the same order"
            raise InvalidOption("nsqd_http_addresses", ",".join(self.nsqd_http_addresses), reason)
        self.connection_options()
        for address in self.lookupd_http_addresses:
            LookupdClient(address)
        for address in self.nsqd_http_addresses:
            NsqdHTTPClient(address)
        self._check_schemas()
        self._check_columns()

    def _check_columns(self) -> None:
        if self.columns == ("all",):
            return
        for name in self.columns:
            if name not in self._all_columns:
                reason = f"there is no column {name}; there are {', '.join(self._all_columns)}"
                raise InvalidOption("columns", ",".join(self.columns), reason)
        bodies = {name for name in self._all_columns if name.startswith("body")}
        if PARSED.keys() & set(self.columns) and not bodies <= set(self.columns):
            reason = f"raw and reason are only there together with {', '.join(sorted(bodies))}"
            raise InvalidOption("columns", ",".join(self.columns), reason)

    def _check_schemas(self) -> None:
        topics = [of.topic.lower() for of in self.named]
        bodies = [f"body_{_in_name(topic)}" for topic in self.schemas]
        for prefix, given in (("schema", self.schemas), ("timestamp_unit", self.timestamp_units)):
            for topic, value in given.items():
                if topics.count(topic) != 1:
                    reason = "it must name one of the topics, and no two that differ in case alone"
                    raise InvalidOption(f"{prefix}.{topic}", value, reason)
        for topic, body in zip(self.schemas, bodies, strict=True):
            if bodies.count(body) > 1:
                raise InvalidOption(f"schema.{topic}", self.schemas[topic], f"two topics have the column {body}")
        for topic, unit in self.timestamp_units.items():
            try:
                timestamp_unit(unit)
            except UsageError as exc:
                raise InvalidOption(f"timestamp_unit.{topic}", unit, str(exc)) from None

    def _check_topics(self) -> None:
        given = [name for name, value in (("topics", self.topics), ("topics_pattern", self.topics_pattern)) if value]
        if self.topic and given:
            raise InvalidOption("topic", self.topic, f"give either it or {given[0]}")
        if not self.topic and not given:
            raise InvalidOption("topic", None, "it must be given, or topics, or topics_pattern")
        if self.topic:
            encode_topic(self.topic)
        if not self.channel and not (self.topics and not self.topics_pattern and all(of.channel for of in self.topics)):
            raise InvalidOption("channel", None, "it must be given")
        if self.channel:
            encode_channel(self.channel)

    @property
    def fetch_max_wait(self) -> float:
        """Seconds that a segment may take to fill; one that takes longer is the last of its partition."""
        return _SLOW * self.msg_timeout

    @property
    def fetch_idle(self) -> float:
        """Seconds without a message after which a partition ends."""
        return max(_LEAST_IDLE, _IDLE * self.msg_timeout)

    @property
    def named(self) -> tuple[TopicChannel, ...]:
        """All topics that have a name in the options, with their channels."""
        if self.topic:
            return (TopicChannel(self.topic, self.channel),)
        return tuple(TopicChannel(of.topic, of.channel or self.channel) for of in self.topics)

    def channel_of(self, topic: str) -> str | None:
        """The channel of a topic; None if the topic is not to be read."""
        for of in self.named:
            if of.topic == topic:
                return of.channel
        if self.topics_pattern and re.fullmatch(self.topics_pattern, topic):
            return self.channel
        return None

    @property
    def is_parsed(self) -> bool:
        """Whether bodies are parsed, of some topics at least."""
        return bool(self.schema or self.schemas)

    def body_of(self, topic: str) -> str:
        """The column of a topic's bodies."""
        return f"body_{_in_name(topic.lower())}" if topic.lower() in self.schemas else "body"

    def unit_of(self, topic: str) -> str:
        """The unit of a topic's times that are numbers."""
        return self.timestamp_units.get(topic.lower(), self.timestamp_unit).lower()

    @property
    def _all_columns(self) -> dict[str, str]:
        """All columns that there are, with their types in Spark's DDL."""
        found = {name: kind for name, (kind, _) in COLUMNS.items()}
        if self.schema:
            found["body"] = struct_of(self.schema)
        for topic, ddl in self.schemas.items():
            found[self.body_of(topic)] = struct_of(ddl) if ddl else "BINARY"
        return found | PARSED if self.is_parsed else found

    @property
    def column_types(self) -> dict[str, str]:
        """The columns of the rows in their order, with their types in Spark's DDL."""
        every = self._all_columns
        usual = [name for name in every if name not in COLUMNS or COLUMNS[name][1]]
        chosen = list(every) if self.columns == ("all",) else list(self.columns) or usual
        return {name: every[name] for name in chosen}

    @property
    def plain_columns(self) -> tuple[str, ...]:
        """The columns of the rows before bodies are parsed."""
        plain = [name for name in self.column_types if name in COLUMNS and (name != "body" or not self.is_parsed)]
        return (*plain, "body") if self.is_parsed else tuple(plain)

    def connection_options(self) -> ConnectionOptions:
        """The options of a connection to nsqd; raises InvalidOption."""
        return connection_options(self.nsq, msg_timeout=self.msg_timeout)


def connection_options(given: Mapping[str, str], **own: object) -> ConnectionOptions:
    """Connection options from the user's ``nsq.`` options and from our own, which users may not set."""
    values: dict[str, object] = {}
    known = text_options(ConnectionOptions)
    for name, value in given.items():
        if name in own:
            raise InvalidOption(f"nsq.{name}", value, _OWN_NSQ.get(name, "the source sets it itself"))
        if name not in known:
            # Without the value, which may be a secret under a misspelt name.
            raise _unknown(f"nsq.{name}", "<hidden>", [f"nsq.{each}" for each in known])
        try:
            values[name] = parse_value(ConnectionOptions, name, value, default_unit="s")
        except InvalidOption as exc:
            raise InvalidOption(f"nsq.{name}", exc.value, exc.reason) from None
    return make_options(ConnectionOptions, values | own)


# -- schema ---------------------------------------------------------------------------------------------


class WrongSchema(UsageError):
    """The user gave a schema that differs from the source's."""


def ddl_of(options: SourceOptions) -> str:
    """The columns that the options ask for, as Spark's DDL."""
    return ", ".join(f"{name} {kind}" for name, kind in options.column_types.items())


def check_schema(schema: StructType, options: SourceOptions) -> None:
    """Raise WrongSchema if the schema is another one: Spark accepts any and then fails at the first row."""
    expected = options.column_types
    found = {field.name: field.dataType.simpleString() for field in schema.fields}
    wanted = {
        name: found.get(name)
        if kind not in _PLAIN_TYPES and found.get(name, "").startswith("struct<")
        else kind.lower()
        for name, kind in expected.items()
    }
    if list(found.items()) != list(wanted.items()):
        columns = ", ".join(f"{name} {kind}" for name, kind in expected.items())
        raise WrongSchema(f"the columns are {columns}: leave .schema() out, and choose columns with columns")
