"""The settings of single topics in a pipeline's configuration: ``[topics.NAME]``, and a table for each of them.

A pipeline reads all its topics in one query, and has one checkpoint, one stage, one table of rejected messages and one
of metrics. A topic may have its own channel, schema and table. For everything that concerns one table there is a
pipeline of that topic alone (``Pipeline.for_topic``), so nothing else has to know that there are several.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from gnsq_like.errors import InvalidOption, NSQError, did_you_mean
from gnsq_like.spark.format_options import SourceOptions
from gnsq_like.spark.pipeline.transform import check_given
from gnsq_like.spark.staging.offsets import TopicChannel
from gnsq_like.wire.names import encode_topic

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
        if not isinstance(given, Mapping):
            raise InvalidOption(f"topics.{topic}", given, f"it must be a table: [topics.{topic}]")
        for key, value in given.items():
            if key not in KEYS:
                hint = did_you_mean(key, KEYS) or f"; there are {', '.join(KEYS)}"
                if isinstance(value, Mapping):
                    hint = f'; a topic with a dot is written as [topics."{topic}.{key}"]'
                raise InvalidOption(f"topics.{topic}.{key}", value, f"there is no such key{hint}")
        transform = given.get("transform", {})
        if not isinstance(transform, Mapping):
            raise InvalidOption(
                f"topics.{topic}.transform", transform, "it must be a table with select, where or function"
            )
        check_given(transform, f"topics.{topic}.transform")


def with_topics(source: Mapping[str, str], topics: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """The source's options, which name these topics too, with their channels. Raises InvalidOption."""
    if not topics:
        return dict(source)
    rest = {name: value for name, value in source.items() if name.lower() not in {"topic", "topics"}}
    by_name = {name.lower(): value for name, value in source.items()}
    if "topic" in by_name:
        raise InvalidOption("source.topic", by_name["topic"], "give source.topics, or only the tables [topics.NAME]")
    named = {of.topic: of for of in map(TopicChannel.parse, _words(by_name.get("topics", "")))}
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


def options_of(table: Mapping[str, str], kind: str, title: str, topic: str) -> dict[str, str]:
    """The options of a topic's table, from those of all: in a catalog, each has a name of its own.

    :param kind: the format of the tables
    :param title: the pipeline's
    """
    if kind != "iceberg":
        return dict(table)
    whole = table.get(f"{OF_FORMAT}identifier") or f"nsq.{re.sub('[^0-9A-Za-z_]+', '_', title)}"
    # Topics may have characters that names in catalogs may not.
    own = re.sub("[^0-9A-Za-z_]", lambda found: f"_x{ord(found[0]):02x}", topic)
    return {**table, f"{OF_FORMAT}identifier": f"{whole}_{own}"}


def _words(value: str) -> list[str]:
    return [word.strip() for word in value.split(",") if word.strip()]
