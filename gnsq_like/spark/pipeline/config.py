"""The configuration of a pipeline, as a dataclass and as a TOML file.

The tables ``[source]`` and ``[dead_letters]`` hold options of ``format("nsq")`` under their own names
(docs/spark.rst). The classes that the source and the sink use check them here, too. So a wrong configuration is
refused before Java is started.

A pipeline reads all its topics in one query, and has one checkpoint, one stage, one table of rejected messages and one
of metrics. A topic may have its own channel, schema and table (``[topics.NAME]``). For everything that concerns one
table there is a pipeline of that topic alone (``Pipeline.for_topic``), so nothing else has to know that there are
several.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

from gnsq_like.addresses import parse_address
from gnsq_like.errors import InvalidOption, NSQError, UsageError
from gnsq_like.options.text import read_text
from gnsq_like.spark.format_options import (
    SourceOptions,
    boolean,
    choice,
    duration,
    duration_from,
    named_options,
    option,
    parse_options,
    size,
    timestamp_unit,
    words,
)
from gnsq_like.spark.pipeline.transform import KEPT, check_given, check_keys
from gnsq_like.spark.sink import SinkOptions
from gnsq_like.spark.staging.offsets import TopicChannel
from gnsq_like.wire.names import encode_topic


@dataclass(frozen=True, slots=True)
class TableOptions:
    """The table [table]. Durations are in seconds; None: the format's default, or for ever."""

    #: How often a run does maintenance; 0: never.
    maintain_every: float = option(duration, 0.0)
    #: Delta: the size of a compacted file.
    target_size: int = option(size(1 << 20), 128 << 20)
    #: Delta: how long an hour must be over before it is compacted.
    compact_after: float = option(duration, 3600.0)
    #: How long older versions of the table can be read: a query that takes longer may fail. By default 7 days for
    #: Delta, and 6 hours for Iceberg.
    keep_versions: float | None = option(duration, None)
    #: How long rows are kept, by ``seen_at``; by default for ever.
    keep_data: float | None = option(duration_from("1d"), None)
    keep_rejected: float | None = option(duration_from("1d"), None)
    keep_metrics: float | None = option(duration_from("1d"), None)
    keep_archive: float | None = option(duration_from("1d"), None)


# -- the whole ------------------------------------------------------------------------------------------


#: The possible formats of the table, and what lies in the place of one.
FORMATS = {"parquet": "date=*/hour=*/batch=*", "delta": "_delta_log", "iceberg": "metadata/*.metadata.json"}

_Options = TypeVar("_Options")

#: The options that dead letters take from the source unless they name an nsqd of their own.
_ADDRESSES = ("nsqd_tcp_addresses", "lookupd_http_addresses")
#: The fields that are tables of the file.
_TABLES = ("source", "transform", "dead_letters", "table", "spark")
#: The fields that are in the table [parse].
_PARSE = ("schema", "timestamp_unit", "stop_above")


class BadPipelineFile(UsageError):
    """A file does not describe a pipeline; the text says which file and why."""


def place(value: str) -> str:
    """A path that all machines share, or a URL."""
    if not urlsplit(value).scheme and not Path(value).is_absolute():
        raise UsageError("it must be an absolute path, since executors run elsewhere, or a URL")
    return value


def share(value: str) -> float:
    """A part of the whole."""
    result = read_text(value, (float,))
    if not 0 <= result <= 1:
        raise UsageError("it must be a number from 0 to 1, as 0.05 for 5 %")
    return result


def listening_address(value: str) -> str:
    """An address to listen at."""
    if value and parse_address(value, to_listen=True).path:
        raise UsageError('it must be "host:port"')
    return value


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """Topics, the schemas of their messages, and where they go.

    :raises InvalidOption: from the constructor, for a wrong value
    """

    #: Options of the source: topic, channel, nsqd_tcp_addresses and nsqd_http_addresses or lookupd_http_addresses, ...
    source: Mapping[str, str]
    #: Where everything is kept that has no place of its own: a path that all machines share, or a URL for Spark.
    location: str = option(place, MISSING)
    #: Topics with a channel, schema, stop_above, timestamp_unit, transform or place ("data") of their own, by name.
    #: Missing keys are the pipeline's. Each topic has a table of its own then.
    topics: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    #: Whether each topic has a table of its own, below ``data``, although ``topics`` does not say so.
    table_by_topic: bool = option(boolean, False)
    #: The fields of the JSON objects, as Spark's DDL; "" to keep the bodies as they are.
    schema: str = option(str, "")
    #: The transformation of each message between its parsing and the table: "select", "where", "function"
    #: (``transform``).
    transform: Mapping[str, Any] = field(default_factory=dict)
    #: Options of the sink for rejected messages; if empty, these are only kept in ``rejected``.
    dead_letters: Mapping[str, str] = field(default_factory=dict)
    #: The unit of numbers in TIMESTAMP fields, which count from 1970: "s", "ms", "us" or "ns".
    timestamp_unit: str = option(timestamp_unit, "s")
    #: The share of messages that do not fit, in a batch of at least 100 messages, beyond which the schema must be
    #: wrong, and the run ends before it writes any of that batch; 1: never.
    stop_above: float = option(share, 0.9)
    #: The format of the table, one of FORMATS.
    format: str = option(choice(*FORMATS), "parquet")
    #: How the tables are maintained, and how often (``maintenance``); under "options.NAME" options of the format, by
    #: the names of its library: of Delta's object store, or of Iceberg's catalog.
    table: Mapping[str, str] = field(default_factory=dict)
    #: The source's, in seconds.
    dedupe_within: float = option(duration, 600.0)
    #: Seconds between the starts of two batches; 0 to start one when the last one is done.
    trigger: float = option(duration, 10.0)
    #: Whether a run ends when it has written the messages that were there at its start.
    available_now: bool = option(boolean, False)
    #: The name that Spark shows.
    name: str = option(str, "")
    #: Places that are not below ``location``: of the table, rejected messages, metrics, and Spark's checkpoint.
    data: str = option(place, "")
    rejected: str = option(place, "")
    metrics: str = option(place, "")
    checkpoint: str = option(place, "")
    #: Where a run serves its metrics for Prometheus: "host:port" (port 0: any free one).
    http_address: str = option(listening_address, "")
    #: The place where every message is kept unchanged, for replays; "" for none.
    archive: str = option(place, "")
    #: Settings of Spark, if the run starts a session of its own.
    spark: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, known in named_options(Pipeline).items():
            if (value := getattr(self, name)) != known.default:
                object.__setattr__(self, name, _read(name, value, f"parse.{name}" if name in _PARSE else name))
        if self.format_options and self.format == "parquet":
            reason = "only the formats delta and iceberg have options"
            raise InvalidOption("table.options", ", ".join(self.format_options), reason)
        check_given(self.transform, "transform")
        check_topics(self.topics)
        options = self.source_options
        self._check_tables()
        if urlsplit(options.staging_location).scheme in {"hdfs", "s3a", "dbfs"}:
            reason = "the stage must be reachable from Python: a shared path, s3://, gs:// or abfs://"
            raise InvalidOption("source.staging_location", options.staging_location, reason)
        _check_columns(options)
        self.sink_options, self.table_options  # noqa: B018

    @property
    def table_options(self) -> TableOptions:
        """How the tables are maintained, read; raises InvalidOption."""
        given = {name: value for name, value in self.table.items() if not name.startswith(OF_FORMAT)}
        found = _parsed(TableOptions, given, "table")
        for name in ("target_size", "compact_after"):
            if self.format == "parquet" and name in given:
                reason = 'plain files are not compacted, because readers could miss rows: use format = "delta"'
                raise InvalidOption(f"table.{name}", given[name], reason)
        return found

    @property
    def format_options(self) -> dict[str, str]:
        """The options of the format."""
        named = {name: value for name, value in self.table.items() if name.startswith(OF_FORMAT)}
        usual = {"identifier": f"nsq.{re.sub('[^0-9A-Za-z_]+', '_', self.title)}"} if self.format == "iceberg" else {}
        return usual | {name.removeprefix(OF_FORMAT): value for name, value in named.items()}

    def table_named(self, name: str) -> dict[str, str]:
        """``table`` for a further table: in a catalog, it has a name of its own."""
        if self.format != "iceberg":
            return dict(self.table)
        # Topics may have characters that names in catalogs may not.
        own = re.sub("[^0-9A-Za-z_]", lambda found: f"_x{ord(found[0]):02x}", name)
        return {**self.table, f"{OF_FORMAT}identifier": f"{self.format_options['identifier']}_{own}"}

    def _check_tables(self) -> None:
        places: dict[str, str] = {}

        def note(option: str, place: str, what: str) -> None:
            if place.rstrip("/") in places:
                raise InvalidOption(option, place, f"that is {places[place.rstrip('/')]}: give each its own")
            places[place.rstrip("/")] = what

        for topic in self.topics:
            note(f"topics.{topic}.data", self.for_topic(topic).place("data"), f"the table of topic {topic}")
        if not self.is_by_topic:
            note("data", self.place("data"), "the table of the pipeline")

    @property
    def is_by_topic(self) -> bool:
        """Whether each topic has a table of its own."""
        return self.table_by_topic or bool(self.topics)

    def for_topic(self, topic: str) -> Pipeline:
        """The pipeline of one topic: its schema and its table. If all topics share a table, it is this pipeline."""
        if not self.is_by_topic:
            return self
        given = {key: value for key, value in self.topics.get(topic, {}).items() if key != "channel"}
        for key, value in given.items():
            if key != "transform":
                given[key] = _read(key, value, f"topics.{topic}.{key}")
        return replace(
            self,
            **{
                "source": of_one(self.source, self.source_options, topic),
                "topics": {},
                "table_by_topic": False,
                "name": self.title,
                "table": self.table_named(topic),
                "data": place_of(self.place("data"), topic),
                **given,
            },
        )

    @property
    def source_options(self) -> SourceOptions:
        """The source's options, read; raises InvalidOption."""
        return _parsed(SourceOptions, self.source_given, "source")

    @property
    def source_given(self) -> dict[str, str]:
        """The source's options as they are passed to Spark."""
        given = with_topics(self.source, self.topics)
        if not any(name.lower() == "staging_location" for name in given):
            given["staging_location"] = _below(self.location, "stage").removeprefix("file://")
        given.setdefault("dedupe_within", str(self.dedupe_within))
        return given

    @property
    def parsed_options(self) -> SourceOptions:
        """The source's options for rows whose bodies it parses. Raises InvalidOption."""
        return _parsed(SourceOptions, self.parsed_given, "source")

    @property
    def parsed_given(self) -> dict[str, str]:
        """These options as they are passed to Spark. Each topic with settings of its own has its own bodies."""
        given = {**self.source_given, "timestamp_unit": self.timestamp_unit}
        if self.schema:
            given["schema"] = self.schema
        for topic in self.topics:
            own = self.for_topic(topic)
            if (own.schema, own.timestamp_unit) != (self.schema, self.timestamp_unit):
                given |= {f"schema.{topic}": own.schema, f"timestamp_unit.{topic}": own.timestamp_unit}
        options = _parsed(SourceOptions, given, "source")
        bodies = ["body", *map(options.body_of, self.topics)]
        columns = [*KEPT, "size", *dict.fromkeys(bodies), *(["raw", "reason"] if options.is_parsed else [])]
        return {**given, "columns": ",".join(columns), "keep_raw": str(bool(self.archive)).lower()}

    @property
    def sink_options(self) -> SinkOptions | None:
        """The dead letters' options, read; None if there are none. Raises InvalidOption."""
        if not self.dead_letters:
            return None
        options = _parsed(SinkOptions, self.at_source(self.dead_letters), "dead_letters")
        if options.topic is None:
            raise InvalidOption("dead_letters.topic", None, "it must be given, or leave the table out")
        if self.source_options.channel_of(options.topic) is not None:
            raise InvalidOption(
                "dead_letters.topic", options.topic, "that is the source's: dead letters would come back forever"
            )
        return options

    def at_source(self, given: Mapping[str, str]) -> dict[str, str]:
        """A sink's options, with the source's nsqds and how it connects to them, if they name no nsqds."""
        given = {name.lower(): value for name, value in given.items()}
        if any(name in given for name in _ADDRESSES):
            return given
        theirs = {name.lower(): value for name, value in self.source.items()}
        return {name: value for name, value in theirs.items() if name in _ADDRESSES or name.startswith("nsq.")} | given

    @property
    def title(self) -> str:
        """The pipeline's name, or its topics."""
        options = self.source_options
        topics = [of.topic for of in options.named] + [options.topics_pattern] * bool(options.topics_pattern)
        return self.name or ", ".join(topics)

    def place(self, what: str) -> str:
        """The URL of "data", "rejected", "metrics", "checkpoint" or "archive"."""
        given: str = getattr(self, what)
        return url_of(given) if given else _below(self.location, what)


def load_pipeline(path: str | Path) -> Pipeline:
    """Load a pipeline from a TOML file. Relative paths in it are relative to the file's directory.

    :raises BadPipelineFile: it cannot be read, is not TOML, or lacks what is needed
    :raises InvalidOption: it has an unknown key, or a wrong value
    """
    try:
        with open(path, "rb") as file:
            found = tomllib.load(file)
    except OSError as exc:
        raise BadPipelineFile(f"cannot read {path}: {exc.strerror or exc}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise BadPipelineFile(f"{path} is not TOML: {exc}") from None
    return Pipeline(**_values(str(path), found, Path(path).resolve().parent))


def _values(path: str, found: Mapping[str, object], directory: Path) -> dict[str, Any]:
    """The values of the fields, from the content of the file."""
    values: dict[str, Any] = {}
    flat = [name for name in named_options(Pipeline) if name not in _PARSE]
    check_keys(found, [*flat, *_TABLES, "topics", "parse"], "")
    for name, value in found.items():
        if name == "transform":
            values[name] = dict(_table(name, value))
        elif name in _TABLES:
            values[name] = {key: _text(f"{name}.{key}", each) for key, each in _flattened(name, value)}
        elif name == "parse":
            check_keys(table := _table(name, value), _PARSE, "parse.")
            values |= table
        elif name == "topics":
            values[name] = {key: dict(_table(f"{name}.{key}", each)) for key, each in _table(name, value).items()}
        else:
            values[name] = value
    for required in ("source", "location"):
        if required not in values:
            raise BadPipelineFile(f"{path}: {required} is missing")
    places = [name for name, known in named_options(Pipeline).items() if known.metadata["read"] is place]
    for given in (values, *values.get("topics", {}).values()):
        for name in places:
            if isinstance(given.get(name), str) and not urlsplit(given[name]).scheme:
                given[name] = str(directory / given[name])
    return values


def _table(name: str, value: object) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise InvalidOption(name, value, f"it must be a table: [{name}]")
    return value


def _flattened(name: str, value: object) -> list[tuple[str, object]]:
    """The items of a table. TOML reads keys with dots, such as ``nsq.client_id``, as tables in tables."""
    result: list[tuple[str, object]] = []
    for key, each in _table(name, value).items():
        if isinstance(each, dict):
            result += [(f"{key}.{rest}", inner) for rest, inner in _flattened(f"{name}.{key}", each)]
        else:
            result.append((key, each))
    return result


def _text(name: str, value: object) -> str:
    """The value of an option as Spark wants it: as text, lists with commas."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ",".join(_text(name, each) for each in value)
    if isinstance(value, str | int | float):
        return str(value)
    raise InvalidOption(name, value, "it must be text, a number, true or false, or a list of texts")


def _read(name: str, value: object, given_as: str) -> Any:
    """The value of a field of Pipeline, from the file or from Python.

    :param given_as: its name in the file
    """
    try:
        return named_options(Pipeline)[name].metadata["read"](_text(given_as, value))
    except UsageError as exc:
        raise InvalidOption(given_as, value, exc.reason if isinstance(exc, InvalidOption) else str(exc)) from None


def _parsed(cls: type[_Options], given: Mapping[str, str], table: str) -> _Options:
    try:
        return parse_options(cls, given)
    except InvalidOption as exc:
        raise InvalidOption(f"{table}.{exc.option}", exc.value, exc.reason) from None


def _check_columns(options: SourceOptions) -> None:
    if options.is_parsed:
        raise InvalidOption("source.schema", options.schema, "give parse.schema, or the schema of [topics.NAME]")
    if options.columns:
        raise InvalidOption("source.columns", ",".join(options.columns), "the pipeline chooses the columns itself")


def url_of(place: str) -> str:
    """The URL of a place."""
    # Spark would look for a bare path in the cluster's default file system, which may be another one.
    return place if urlsplit(place).scheme else f"file://{place}"


def _below(location: str, what: str) -> str:
    return f"{url_of(location).rstrip('/')}/{what}"


# -- single topics --------------------------------------------------------------------------------------


#: The keys of [topics.NAME].
KEYS = ("channel", "schema", "stop_above", "timestamp_unit", "data", "transform")

#: The prefix of the format's options in [table].
OF_FORMAT = "options."

#: The source's options that name topics, in lower case.
_NAMING = {"topic", "topics", "topics_pattern"}


def check_topics(topics: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise InvalidOption for names that cannot be topics, and for unknown keys."""
    for topic, given in topics.items():
        try:
            encode_topic(topic)
        except NSQError as exc:
            raise InvalidOption("topics", topic, str(exc)) from None
        for key, value in given.items():
            if key not in KEYS and isinstance(value, Mapping):
                reason = f'a topic with a dot is written as [topics."{topic}.{key}"]'
                raise InvalidOption(f"topics.{topic}.{key}", value, reason)
        check_keys(given, KEYS, f"topics.{topic}.")
        name = f"topics.{topic}.transform"
        check_given(_table(name, given.get("transform", {})), name)


def with_topics(source: Mapping[str, str], topics: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """The source's options, which name these topics too, with their channels. Raises InvalidOption."""
    if not topics:
        return dict(source)
    rest = {name: value for name, value in source.items() if name.lower() not in {"topic", "topics"}}
    by_name = {name.lower(): value for name, value in source.items()}
    if "topic" in by_name:
        raise InvalidOption("source.topic", by_name["topic"], "give source.topics, or only the tables [topics.NAME]")
    named = {of.topic: of for of in map(TopicChannel.parse, words(by_name["topics"]) if by_name.get("topics") else ())}
    for topic, given in topics.items():
        of = named.get(topic) or TopicChannel(topic, "")
        named[topic] = TopicChannel(topic, str(given.get("channel") or of.channel))
    rest["topics"] = ",".join(f"{of.topic}/{of.channel}" if of.channel else of.topic for of in named.values())
    return rest


def of_one(source: Mapping[str, str], options: SourceOptions, topic: str) -> dict[str, str]:
    """The source's options for one of its topics.

    :param options: the same, read
    """
    rest = {name: value for name, value in source.items() if name.lower() not in _NAMING | {"channel"}}
    return {**rest, "topic": topic, "channel": options.channel_of(topic) or options.channel}


def place_of(data: str, topic: str) -> str:
    """The place of a topic's table below that of all.

    :raises InvalidOption: the topic is named "." or ".."
    """
    if topic in (".", ".."):  # some libraries read %2E%2E like ..
        raise InvalidOption("source.topics", topic, "its table would be in another directory; leave this topic out")
    return f"{data.rstrip('/')}/{quote(topic, safe='')}"
