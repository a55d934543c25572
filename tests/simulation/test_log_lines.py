"""What the log says over time, and how often."""

from __future__ import annotations

import logging
import re

import pytest

from gnsq_like import Message
from tests.simulation import Cluster, simulated

_PACKAGE = logging.getLogger("gnsq_like")


class Lines(logging.Handler):
    """Collects lines: the level, and the text."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []
        _PACKAGE.addHandler(self)
        _PACKAGE.setLevel(logging.INFO)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.levelname} {record.getMessage()}")

    def about(self, word: str) -> list[str]:
        """The lines with this word."""
        return [line for line in self.lines if word in line]


def ignore(message: Message) -> None:
    """A handler that does nothing."""


@pytest.mark.parametrize(
    ("topic", "missing", "what"),
    [
        ("clikcs", ["clikcs"], "topic 'clikcs'; nearest: 'clicks'; waiting for it"),
        (["clicks", "orders"], ["orders"], "topic 'orders'; waiting for it"),
        (re.compile("^order"), ["^order"], "a topic that matches '^order'; waiting for it"),
    ],
    ids=["misspelt", "one of two", "pattern"],
)
@simulated(nsqlookupds=1)
def test_a_topic_that_no_nsqd_has_is_named_once(
    cluster: Cluster, topic: str | list[str] | re.Pattern[str], missing: list[str], what: str
) -> None:
    log = Lines()
    cluster.publish("clicks", b"x")
    cluster.sleep(1.0)
    reader = cluster.reader(topic, "archive", ignore)
    cluster.sleep(9.0)
    assert reader.stats()["missing"] == missing
    assert log.about("no nsqd that") == []
    cluster.sleep(120.0)
    [line] = log.about("no nsqd that")
    url = f"http://{cluster.nsqlookupds[0].http_address}"
    assert line.startswith("WARNING ")
    assert line.endswith(f"/archive: no nsqd that nsqlookupd at {url} knows has {what}")
    cluster.publish("order" if "^order" in missing else missing[0], b"x")
    cluster.wait(lambda: reader.stats()["missing"] == [], 120.0)
    cluster.sleep(1.0)
    [found] = log.about("has been found")
    assert found.startswith("INFO ")
    assert repr(missing[0]) in found
    cluster.sleep(60.0)
    assert len(log.about("no nsqd that")) == 1


@simulated(nsqlookupds=1)
def test_a_topic_that_is_made_in_time_is_not_named(cluster: Cluster) -> None:
    log = Lines()
    reader = cluster.reader("clicks", "archive", ignore)
    cluster.sleep(8.0)
    cluster.publish("clicks", b"x")
    cluster.wait(lambda: reader.stats()["finished"] == 1)
    cluster.sleep(30.0)
    assert log.about("no nsqd that") == log.about("has been found") == []
