"""Discovery for several topics, at scripted nsqlookupds that answer round by round."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from gnsq_like import NsqdHTTPClient
from gnsq_like.addresses import parse_address
from gnsq_like.discovery.redial import Target
from gnsq_like.discovery.topics import make_topics_poller
from gnsq_like.options import DiscoveryOptions
from tests.support.daemons import running_nsqd, wait_for
from tests.support.lookupds import Lookupd

ONE, TWO = (Target(parse_address(f"127.0.0.1:{port}"), "t") for port in (1, 2))


def node(port: int, *topics: str, hidden: Sequence[str] = (), http_port: int = 9) -> dict[str, Any]:
    return {
        "broadcast_address": "127.0.0.1",
        "tcp_port": port,
        "http_port": http_port,
        "topics": list(topics),
        "tombstones": [topic in hidden for topic in topics],
    }


class Rounds:
    """The poller of a pattern, at one nsqlookupd for each list of rounds; an answer of None is an error.

    The last answers are repeated.
    """

    def __init__(self, *answers: Sequence[list[dict[str, Any]] | None], connected: Sequence[Target] = ()) -> None:
        self.found: list[tuple[list[Target], bool]] = []
        self.gone: list[Target] = []
        self.errors: list[str] = []
        self.connected = list(connected)
        self.lost: list[Target] = []
        self.options: dict[str, Any] = {"lookupd_poll_interval": 0.02, "lookupd_poll_jitter": 0.0}
        self.lookupds = [self._scripted(each) for each in answers]

    @staticmethod
    def _scripted(answers: Sequence[list[dict[str, Any]] | None]) -> Lookupd:
        left = list(answers)
        lookupd = Lookupd()

        def answer(environ: dict[str, Any], start_response: Any) -> list[bytes]:
            assert environ["PATH_INFO"] == "/nodes"
            nodes = left.pop(0) if len(left) > 1 else left[0]
            start_response("200 OK" if nodes is not None else "500 No", [("Content-Type", "application/json")])
            return [json.dumps({"producers": nodes or []}).encode()]

        lookupd.answer = answer
        return lookupd

    @property
    def complete(self) -> list[list[Target]]:
        return [targets for targets, complete in self.found if complete]

    @contextmanager
    def polled(self) -> Iterator[None]:
        with ExitStack() as stack:
            for lookupd in self.lookupds:
                stack.enter_context(lookupd)
            poller = make_topics_poller(
                [lookupd.address for lookupd in self.lookupds],
                re.compile("^t"),
                DiscoveryOptions(**self.options),
                lambda targets, complete, _: self.found.append((targets, complete)),
                lambda url, error: self.errors.append(url),
                on_gone=self.gone.extend,
                connected=lambda: [target for target in self.connected if target not in self.gone],
                is_lost=self.lost.__contains__,
            )
            poller.start()
            yield
            poller.stop()


def test_the_topics_of_all_nsqlookupds_are_united_and_tombstoned_ones_left_out() -> None:
    rounds = Rounds([[node(1, "t", "other", "t.hidden", hidden=["t.hidden"])]], [[node(1, "t2"), node(2, "t")]])
    with rounds.polled():
        wait_for(lambda: rounds.complete)
    assert rounds.complete[0] == [Target(ONE.address, "t"), Target(ONE.address, "t2"), TWO] or rounds.complete[0] == [
        Target(ONE.address, "t2"),
        Target(ONE.address, "t"),
        TWO,
    ]


def test_a_topic_is_gone_when_its_nsqd_was_listed_without_it_twice_in_a_row() -> None:
    here, without = [node(1, "t"), node(2, "t")], [node(1), node(2, "t")]
    rounds = Rounds([here, without, here, without, without, without], connected=[ONE, TWO])
    with rounds.polled():
        wait_for(lambda: len(rounds.complete) >= 6)
    assert rounds.gone == [ONE]
    assert rounds.complete[3] == [TWO]


def test_an_nsqlookupd_that_lost_its_memory_makes_no_topic_gone() -> None:
    """First it lists nothing, then an nsqd before that has registered its topics."""
    here: list[dict[str, Any]] = [node(1, "t")]
    rounds = Rounds([here, [], [], [], [node(1)], here], connected=[ONE])
    with rounds.polled():
        wait_for(lambda: len(rounds.complete) >= 7)
    assert rounds.gone == []


def test_no_topic_is_gone_while_an_nsqlookupd_does_not_answer() -> None:
    rounds = Rounds([[node(1)]], [None], connected=[ONE])
    with rounds.polled():
        wait_for(lambda: len(rounds.complete) >= 4)
    assert rounds.gone == []
    assert rounds.errors


@pytest.mark.parametrize("topics", [("t",), ("t", "t2")], ids=["one", "several"])
def test_an_nsqd_that_was_lost_is_asked_whether_it_has_the_topic(topics: tuple[str, ...]) -> None:
    """nsqlookupd may list a deleted topic for good, from an nsqd that registered while it deleted the topic."""
    with running_nsqd() as nsqd, NsqdHTTPClient(nsqd.http_address) as client:
        port, http_port = (int(each.rpartition(":")[2]) for each in (nsqd.tcp_address, nsqd.http_address))
        lost = [Target(parse_address(nsqd.tcp_address), topic) for topic in topics]
        rounds = Rounds([[node(port, *topics, "t3", http_port=http_port)]])
        rounds.lost = list(lost)
        kept = Target(parse_address(nsqd.tcp_address), "t3")
        with rounds.polled():
            wait_for(lambda: len(rounds.complete) >= 3)
            assert all(targets == [kept] for targets in rounds.complete)
            for topic in topics:
                client.create_topic(topic)
            wait_for(lambda: rounds.complete[-1] == [*lost, kept])


@pytest.mark.parametrize("why", ["its HTTP API does not answer", "its address is mapped"])
def test_nsqlookupd_is_believed_where_the_nsqd_cannot_be_asked(why: str) -> None:
    with running_nsqd() as nsqd:
        http_port = int(nsqd.http_address.rpartition(":")[2]) if "mapped" in why else 9
        rounds = Rounds([[node(1, "t", http_port=http_port)]])
        rounds.lost = [ONE]
        if "mapped" in why:
            rounds.options["address_map"] = {}
        with rounds.polled():
            wait_for(lambda: rounds.complete)
        assert rounds.complete[0] == [ONE]
