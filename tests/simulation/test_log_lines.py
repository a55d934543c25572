"""What the log says over time, and how often."""

from __future__ import annotations

import logging
import re

import pytest

from gnsq_like import Message
from gnsq_like.errors import NSQError
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


@simulated(nsqlookupds=1)
def test_an_nsqlookupd_that_is_away_has_a_line_a_minute(cluster: Cluster) -> None:
    log = Lines()
    reader = cluster.reader("clicks", "archive", ignore)
    cluster.publish("clicks", b"x")
    cluster.wait(lambda: reader.stats()["finished"] == 1)
    [lookupd] = cluster.nsqlookupds
    lookupd.stop()
    cluster.nsqds[0].stop()  # or nobody would ask
    cluster.sleep(150.0)
    first, *others = log.about(f"http://{lookupd.http_address}")
    assert first.startswith("WARNING clicks/archive: ")
    assert re.search(r"; the next try is in \d+\.\d s$", first)
    assert [re.search(r"failures since the last line: \d+; the next try", line) is not None for line in others] == [
        True
    ] * 2
    lookupd.start()
    cluster.nsqds[0].start()
    cluster.publish("clicks", b"y")
    cluster.wait(lambda: reader.stats()["finished"] == 2, 120.0)
    cluster.sleep(120.0)  # until it is asked again
    back = log.about("is reached again, after")
    assert [line.partition(",")[0] for line in back if lookupd.http_address in line] == [
        f"INFO clicks/archive: http://{lookupd.http_address} is reached again"
    ]


@simulated()
def test_an_nsqd_that_is_away_has_a_line_a_minute(cluster: Cluster) -> None:
    """In a Reader and in a Producer, which tries for each publish."""
    log = Lines()
    cluster.reader("clicks", "archive", ignore)
    [nsqd] = cluster.nsqds
    producer = cluster.producer(timeout=1.0)
    producer.publish("clicks", b"x")
    cluster.sleep(10.0)
    nsqd.stop()
    for _ in range(150):
        with pytest.raises(NSQError):
            producer.publish("clicks", b"y")
    lines = [line for line in log.about(nsqd.tcp_address) if line.startswith("WARNING")]
    for name in ("clicks/archive", "Producer"):
        own = [line for line in lines if line.startswith(f"WARNING {name}: ")]
        assert 2 <= len(own) <= 4, own
        assert "the next try is in" in own[0] or name == "Producer"
    nsqd.start()
    producer.publish("clicks", b"z", timeout=30.0)
    cluster.sleep(10.0)
    assert len(log.about(f"{nsqd.tcp_address} is reached again")) == 2


@simulated()
def test_a_connection_that_is_back_at_once_is_one_line(cluster: Cluster) -> None:
    log = Lines()
    reader = cluster.reader("clicks", "archive", ignore)
    cluster.wait(lambda: reader.stats()["connections"])
    cluster.sleep(10.0)
    cluster.nsqds[0].restart()
    cluster.wait(lambda: reader.stats()["reconnects"] == 1)
    cluster.sleep(5.0)
    assert len([line for line in log.lines if line.startswith("WARNING")]) == 1, log.lines


@pytest.mark.parametrize("begins_with", [2, 3])
@simulated(nsqds=3)
def test_a_max_in_flight_below_the_number_of_connections_is_named_once(cluster: Cluster, begins_with: int) -> None:
    log = Lines()
    reader = cluster.reader("t", "c", ignore, nsqd_tcp_addresses=cluster.tcp_addresses, max_in_flight=begins_with)
    cluster.sleep(5.0)
    assert len(log.about("max_in_flight")) == (begins_with < 3)
    for most in (2, 3, 1):
        reader.max_in_flight = most
        cluster.sleep(5.0)
    [line] = log.about("max_in_flight")
    text = "max_in_flight=2 is less than the number of connections: they take turns, so messages may wait"
    assert line == f"WARNING {text}"
