"""What a pipeline is, as a dataclass and as a TOML file.

The tables ``[source]`` and ``[dead_letters]`` hold the options of ``format("nsq")`` under their own names
(docs/spark.rst), and are checked here by the classes that the source and the sink use themselves. So a wrong
configuration is refused before a Java was started.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gnsq_like.errors import InvalidOption, UsageError
from gnsq_like.spark.options import SourceOptions, Wrong, duration, parse_options
from gnsq_like.spark.sink.publishing import SinkOptions
from gnsq_like.suggestion import did_you_mean

#: How a table may be kept.
FORMATS = ("parquet", "delta")

#: What the source needs and the dead letters take over when they name no nsqd of their own.
_ADDRESSES = ("nsqdTcpAddresses", "lookupdHttpAddresses")
#: The tables of the file, and the fields that they are.
_TABLES = {"source": "source", "dead_letters": "dead_letters", "spark": "spark"}
#: The fields that stand in the table [parse].
_PARSE = ("schema", "stop_above")


class BadPipelineFile(UsageError):
    """A file that is no pipeline; the text says which file and why."""


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """A topic, what its messages look like, and where they go.

    :raises InvalidOption: from the constructor, for what cannot be
    """

    #: Options of the source: topic, channel, nsqdTcpAddresses and nsqdHttpAddresses or lookupdHttpAddresses, ...
    source: Mapping[str, str]
    #: Where all is kept that has no place of its own: a path that all machines share, or a URL of Spark's.
    location: str
    #: The fields of the JSON objects, as Spark's DDL; "" to keep the bodies as they are.
    schema: str = ""
    #: Options of the sink for what does not fit; without a topic it is only kept in ``rejected``.
    dead_letters: Mapping[str, str] = field(default_factory=dict)
    #: If more than this share of a batch of some size does not fit, it is the schema that is wrong: the run ends
    #: before anything of that batch is written. 1 never ends it.
    stop_above: float = 0.9
    #: How the table is kept: "parquet" or "delta".
    format: str = "parquet"
    #: Seconds for which messages are remembered, so that a copy is dropped; 0 for not at all.
    dedupe_within: float = 600.0
    #: Seconds between the starts of two batches; 0 for as soon as the one before is done.
    trigger: float = 10.0
    #: Whether a run ends when all is written that was there at its start.
    available_now: bool = False
    #: What Spark shows for it.
    name: str = ""
    #: Places, where they are not below ``location``: the table, what did not fit, the metrics, Spark's checkpoint.
    data: str = ""
    rejected: str = ""
    metrics: str = ""
    checkpoint: str = ""
    #: Settings of Spark, for a session that the run makes.
    spark: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.location:
            raise InvalidOption("location", self.location, "it must be given: a directory, or a URL of Spark's")
        for name in ("location", "data", "rejected", "metrics", "checkpoint"):
            if getattr(self, name):
                _check_place(name, getattr(self, name))
        if self.format not in FORMATS:
            raise InvalidOption("format", self.format, f"it must be one of {', '.join(FORMATS)}")
        if not 0 < self.stop_above <= 1:
            raise InvalidOption("parse.stop_above", self.stop_above, "it must be above 0, and at most 1")
        for name in ("dedupe_within", "trigger"):
            if getattr(self, name) < 0:
                raise InvalidOption(name, getattr(self, name), "it cannot be negative")
        options = self.source_options
        if urlsplit(options.staging_location).scheme in {"hdfs", "s3a", "dbfs"}:
            reason = "the stage must be reachable from Python: a shared path, s3://, gs:// or abfs://"
            raise InvalidOption("source.stagingLocation", options.staging_location, reason)
        _check_columns(options)
        self.sink_options  # noqa: B018

    @property
    def source_options(self) -> SourceOptions:
        """The source's options, read; raises InvalidOption."""
        return _parsed(SourceOptions, self.source_given, "source")

    @property
    def source_given(self) -> dict[str, str]:
        """The source's options as Spark gets them."""
        given = dict(self.source)
        if not any(name.lower() == "staginglocation" for name in given):
            given["stagingLocation"] = _below(self.location, "stage").removeprefix("file://")
        return given

    @property
    def sink_options(self) -> SinkOptions | None:
        """The dead letters' options, read; None where they have no topic. Raises InvalidOption."""
        if not self.dead_letters:
            return None
        options = _parsed(SinkOptions, self.dead_letters_given, "dead_letters")
        if options.topic is None:
            raise InvalidOption("dead_letters.topic", None, "it must be given, or leave the table out")
        if options.topic == self.source_options.topic:
            raise InvalidOption(
                "dead_letters.topic", options.topic, "that is the source's: dead letters would come back for ever"
            )
        return options

    @property
    def dead_letters_given(self) -> dict[str, str]:
        """The dead letters' options as Spark gets them; the source's nsqds, where no others are named."""
        given = dict(self.dead_letters)
        named = {name.lower() for name in given}
        if not any(name.lower() in named for name in _ADDRESSES):
            theirs = {name.lower(): value for name, value in self.source.items()}
            given.update({name: theirs[name.lower()] for name in _ADDRESSES if name.lower() in theirs})
        return given

    @property
    def title(self) -> str:
        """Its name, or its topic."""
        return self.name or self.source_options.topic

    def place(self, what: str) -> str:
        """Where "data", "rejected", "metrics" or "checkpoint" is, as a URL."""
        given: str = getattr(self, what)
        return _url(given) if given else _below(self.location, what)


def load_pipeline(path: str | Path) -> Pipeline:
    """The pipeline of a TOML file. Relative paths in it are below the file's directory.

    :raises BadPipelineFile: it cannot be read, is no TOML, or names what does not exist
    :raises InvalidOption: a value that cannot be
    """
    try:
        with open(path, "rb") as file:
            found = tomllib.load(file)
    except OSError as exc:
        raise BadPipelineFile(f"cannot read {path}: {exc.strerror or exc}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise BadPipelineFile(f"{path} is no TOML: {exc}") from None
    return Pipeline(**_values(str(path), found, Path(path).resolve().parent))


def _values(path: str, found: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    """The fields' values from what the file says."""
    values: dict[str, Any] = {}
    flat = {each.name: each for each in fields(Pipeline) if each.name not in {*_TABLES, *_PARSE}}
    for name, value in found.items():
        if name in _TABLES:
            values[_TABLES[name]] = {key: _text(f"{name}.{key}", each) for key, each in _flattened(name, value)}
        elif name == "parse":
            _only(path, "parse.", _table(name, value), _PARSE)
            values |= {key: _checked(f"parse.{key}", each, Pipeline, key) for key, each in value.items()}
        elif name in flat:
            values[name] = _checked(name, value, Pipeline, name)
        else:
            _only(path, "", {name: value}, [*flat, *_TABLES, "parse"])
    for required in ("source", "location"):
        if required not in values:
            raise BadPipelineFile(f"{path}: {required} is missing")
    for place in ("location", "data", "rejected", "metrics", "checkpoint"):
        if place in values and not urlsplit(values[place]).scheme:
            values[place] = str(directory / values[place])
    return values


def _only(path: str, prefix: str, given: Mapping[str, Any], known: Any) -> None:
    for name in given:
        if name not in known:
            hint = did_you_mean(name, known, prefix + "{}") or f"; there are {', '.join(known)}"
            raise BadPipelineFile(f"{path}: there is no {prefix}{name}{hint}")


def _table(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InvalidOption(name, value, f"it must be a table: [{name}]")
    return value


def _flattened(name: str, value: Any) -> list[tuple[str, Any]]:
    """Keys with dots are tables to TOML: ``nsq.client_id``, ``spark.executor.memory``."""
    result: list[tuple[str, Any]] = []
    for key, each in _table(name, value).items():
        if isinstance(each, dict):
            result += [(f"{key}.{rest}", inner) for rest, inner in _flattened(f"{name}.{key}", each)]
        else:
            result.append((key, each))
    return result


def _text(name: str, value: Any) -> str:
    """An option's value as Spark takes it: a text; lists with commas."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ",".join(_text(name, each) for each in value)
    if isinstance(value, str | int | float):
        return str(value)
    raise InvalidOption(name, value, "it must be a text, a number, true or false, or a list of texts")


def _checked(name: str, value: Any, cls: type, attribute: str) -> Any:
    """A value of the kind that the field's default has; a duration may be a text such as "10s"."""
    default = next((each.default for each in fields(cls) if each.name == attribute), "")
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise InvalidOption(name, value, "it must be true or false")
    elif isinstance(default, float):
        if isinstance(value, str) and attribute != "stop_above":
            try:
                return duration(value)
            except Wrong as exc:
                raise InvalidOption(name, value, str(exc)) from None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidOption(name, value, "it must be a number")
        return float(value)
    elif not isinstance(value, str):
        raise InvalidOption(name, value, "it must be a text")
    return value


def _parsed(cls: Any, given: Mapping[str, str], table: str) -> Any:
    try:
        return parse_options(cls, given)
    except InvalidOption as exc:
        raise InvalidOption(f"{table}.{exc.option}", exc.value, exc.reason) from None


def _check_columns(options: SourceOptions) -> None:
    missing = {"id", "body", "timestamp", "attempts", "topic", "channel", "nsqd_address"} - set(options.columns)
    if missing:
        reason = f"the pipeline needs all of the usual columns; {', '.join(sorted(missing))} is missing"
        raise InvalidOption("source.includeColumns", ",".join(options.columns), reason)


def _check_place(name: str, value: str) -> None:
    if not urlsplit(value).scheme and not Path(value).is_absolute():
        raise InvalidOption(name, value, "it must be an absolute path, for executors run elsewhere; or a URL")


def _url(place: str) -> str:
    # Spark would look for a bare path in the cluster's default file system, which may be another one.
    return place if urlsplit(place).scheme else f"file://{place}"


def _below(location: str, what: str) -> str:
    return f"{_url(location).rstrip('/')}/{what}"
