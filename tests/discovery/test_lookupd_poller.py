"""Discovery over scripted nsqlookupds: all asked at once, united, and none can hold up the others."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import gevent
import pytest
from gevent.event import Event

from gnsq_like import Message, NsqdNode, Reader
from gnsq_like.addresses import Address, parse_address
from gnsq_like.discovery import lookupd_poller
from gnsq_like.discovery.dialler import Lost, Round, Target
from gnsq_like.discovery.lookupd_poller import AllNsqds, LookupdPoller, TopicSearch, make_clients
from gnsq_like.errors import HTTPError, HTTPRequestFailed, NSQError
from gnsq_like.options import DiscoveryOptions
from gnsq_like.policy.delays import RELIST_AFTER
from tests.simulation import Cluster, simulated
from tests.support.daemons import running_nsqd, wait_for
from tests.support.lookupds import FAST, Lookupd
from tests.support.nsqds import nowhere
from tests.support.patient import LookupdClient, NsqdHTTPClient
from tests.support.peer import PATIENCE, ScriptedNsqd, scripted_nsqd
from tests.support.reading import answer_cls, ignore, serve


@pytest.fixture
def lookupd() -> Iterator[Lookupd]:
    with Lookupd() as server:
        yield server


@pytest.fixture
def nsqd() -> Iterator[ScriptedNsqd]:
    with scripted_nsqd() as server:
        yield server


def reading(
    lookupds: Iterable[Lookupd | str], handler: Callable[[Message], bool | None] = ignore, **options: Any
) -> Reader:
    addresses = [each if isinstance(each, str) else each.address for each in lookupds]
    return Reader("t", "c", handler, lookupd_http_addresses=addresses, **(FAST | options))


def test_the_answers_of_all_are_united_and_each_nsqd_is_connected_once(nsqd):
    with Lookupd() as one, Lookupd() as two, scripted_nsqd() as other:
        one.nsqds = [nsqd]
        two.nsqds = [nsqd, other]
        with reading([one, two], max_in_flight=2) as reader:
            peers = [serve(nsqd), serve(other)]
            wait_for(lambda: len(one.asked) >= 3 and len(two.asked) >= 3)
            assert len(reader.stats()["connections"]) == 2
            for peer in peers:
                gevent.spawn(answer_cls, peer)
        assert (one.asked[0].path, one.asked[0].query) == ("/lookup", {"topic": ["t"]})


@pytest.mark.parametrize("fault", ["refused", "mute", "status 500", "not JSON", "topic unknown"])
def test_one_nsqlookupd_that_fails_holds_up_nobody(lookupd, nsqd, fault):
    lookupd.nsqds = [nsqd]
    errors: list[tuple[str, NSQError]] = []
    with Lookupd() as broken:
        release = Event()

        def answer(environ, start_response):
            if fault == "mute":
                release.wait()
            status = {"status 500": "500 INTERNAL", "topic unknown": "404 NOT FOUND"}.get(fault, "200 OK")
            start_response(status, [("Content-Type", "application/json")])
            return [b'{"message":"TOPIC_NOT_FOUND"}' if fault == "topic unknown" else b"<html>"]

        broken.answer = answer
        address = nowhere() if fault == "refused" else broken.address
        reader = reading(
            [address, lookupd],
            lookupd_timeout=0.5 if fault == "mute" else 30,
            on_error=lambda where, error: errors.append((where, error)),
        )
        with reader:
            peer = serve(nsqd)
            if fault != "topic unknown":
                # Where this process stands still, the good one does not answer in time either.
                [error, *_] = wait_for(lambda: [error for where, error in errors if address in where])
                assert isinstance(error, HTTPError)
            else:
                wait_for(lambda: len(lookupd.asked) >= 3)
                assert not errors
            gevent.spawn(answer_cls, peer)
        release.set()


def test_a_mute_nsqlookupd_does_not_freeze_the_hub():
    errors: list[tuple[str, NSQError]] = []
    release = Event()
    with Lookupd() as mute:
        mute.answer_after(release)
        with reading([mute], lookupd_timeout=30, on_error=lambda *error: errors.append(error)):
            for _ in range(20):
                gevent.sleep(0.01)  # the hub's turn; a hub that is frozen comes back with the timeout's error
            assert errors == []
        release.set()


def test_a_topic_that_is_not_there_yet_is_asked_for_again_soon(lookupd, nsqd):
    with reading([lookupd], lookupd_poll_interval=60):
        wait_for(lambda: len(lookupd.asked) == 1)
        lookupd.nsqds = [nsqd]
        gevent.spawn(answer_cls, serve(nsqd))
    assert len(lookupd.asked) == 2


def test_the_authorization_is_sent_and_the_path_kept(lookupd, nsqd):
    lookupd.nsqds = [nsqd]
    with reading([f"http://{lookupd.address}/prefix"], lookupd_authorization=lambda: "Bearer fresh"):
        gevent.spawn(answer_cls, serve(nsqd))
    assert lookupd.asked[0].path == "/prefix/lookup"
    assert lookupd.asked[0].environ["HTTP_AUTHORIZATION"] == "Bearer fresh"


def test_the_filter_leaves_nsqds_out(lookupd, nsqd):
    with scripted_nsqd() as unwanted:
        lookupd.nsqds = [unwanted, nsqd]
        with reading([lookupd], discovery_filter=lambda node: node.tcp_address != unwanted.address) as reader:
            peer = serve(nsqd)
            wait_for(lambda: len(lookupd.asked) >= 3)
            assert list(reader.stats()["connections"]) == [nsqd.address]
            gevent.spawn(answer_cls, peer)


@pytest.mark.parametrize("form", ["mapping", "callable"])
def test_an_address_that_cannot_be_reached_is_mapped_to_one_that_can(lookupd, nsqd, form):
    with scripted_nsqd() as listed, scripted_nsqd() as other:
        lookupd.nsqds = [listed, other]
        mapping = {listed.address: nsqd.address}
        seen: list[str] = []

        def wanted(node: NsqdNode) -> bool:
            seen.append(node.tcp_address)
            return True

        address_map: Any = mapping if form == "mapping" else mapping.get
        with reading([lookupd], max_in_flight=2, address_map=address_map, discovery_filter=wanted) as reader:
            for server in (nsqd, other):
                gevent.spawn(answer_cls, serve(server))
            assert reader.stats()["known"] == sorted([nsqd.address, other.address])
        assert set(seen) == {listed.address, other.address}


def test_nsqds_that_are_mapped_to_one_address_are_dialled_once(lookupd, nsqd):
    with scripted_nsqd() as one, scripted_nsqd() as two:
        lookupd.nsqds = [one, two]
        with reading([lookupd], address_map=lambda address: nsqd.address) as reader:
            gevent.spawn(answer_cls, serve(nsqd))
            assert reader.stats()["known"] == [nsqd.address]


def test_an_nsqd_on_which_the_map_fails_is_left_out_and_reported(lookupd, nsqd):
    errors: list[tuple[str, NSQError]] = []
    with scripted_nsqd() as unknown, scripted_nsqd() as senseless:
        lookupd.nsqds = [nsqd, unknown, senseless]
        mapped = {nsqd.address: None, senseless.address: "nowhere"}
        with reading([lookupd], address_map=mapped.__getitem__, on_error=lambda *error: errors.append(error)) as reader:
            gevent.spawn(answer_cls, serve(nsqd))
            wait_for(lambda: len(lookupd.asked) >= 3)
            assert reader.stats()["known"] == [nsqd.address]
    texts = {address: str(error) for address, error in errors}
    assert texts.keys() == {unknown.address, senseless.address}
    assert "address_map raised KeyError" in texts[unknown.address]
    assert "invalid address 'nowhere'" in texts[senseless.address]
    assert [address for address, _ in errors].count(unknown.address) == 1


@pytest.mark.parametrize("fault", [gevent.Timeout(1), RuntimeError("meant"), asyncio.CancelledError("meant")])
def test_an_nsqd_on_which_the_filter_fails_is_left_out_and_reported_once(lookupd, nsqd, fault):
    errors: list[tuple[str, NSQError]] = []
    failing = True
    with scripted_nsqd() as other:

        def wanted(node: NsqdNode) -> bool:
            if node.tcp_address == other.address and failing:
                raise fault
            return True

        lookupd.nsqds = [other, nsqd]
        with reading([lookupd], discovery_filter=wanted, on_error=lambda *error: errors.append(error)) as reader:
            peer = serve(nsqd)
            wait_for(lambda: len(lookupd.asked) >= 3)
            assert list(reader.stats()["connections"]) == [nsqd.address]
            [(address, error)] = errors
            assert (address, error.__cause__) == (other.address, fault)
            failing = False
            gevent.spawn(answer_cls, serve(other))
            gevent.spawn(answer_cls, peer)


def test_an_nsqd_no_longer_listed_is_kept_while_it_lives_and_not_dialled_again(lookupd, nsqd):
    lookupd.nsqds = [nsqd]
    got = Event()
    with reading([lookupd], lambda message: got.set()) as reader:
        peer = serve(nsqd)
        lookupd.nsqds = []
        rounds = len(lookupd.asked)
        wait_for(lambda: len(lookupd.asked) >= rounds + 2)
        peer.messages(b"0123456789abcdef")
        assert got.wait(PATIENCE)
        peer.close()
        wait_for(lambda: not reader.stats()["connections"])
        rounds = len(lookupd.asked)
        wait_for(lambda: len(lookupd.asked) >= rounds + 2)
        assert not reader.stats()["connections"]


def test_the_jitter_is_drawn_anew_for_each_round(lookupd, monkeypatch):
    drawn: list[float] = []

    def draw() -> float:
        drawn.append(0.0)
        return 0.0

    monkeypatch.setattr(lookupd_poller, "draw", draw)
    poller = LookupdPoller(
        [LookupdClient(lookupd.address)],
        DiscoveryOptions(lookupd_poll_interval=0.05, lookupd_poll_jitter=1.0),
        AllNsqds(lambda *_: None),
        on_error=lambda *_: None,
    )
    poller.start()
    wait_for(lambda: len(lookupd.asked) >= 5)
    # Between a round and the next; the last round may be over by now.
    assert len(lookupd.asked) - 1 <= len(drawn) <= len(lookupd.asked)
    poller.stop()
    poller.stop()


def test_a_round_that_fails_is_followed_by_others_and_one_may_end_them(lookupd, caplog):
    rounds: list[bool] = []
    stopped: list[bool] = []

    def found(addresses: list[Address], of: Round) -> None:
        rounds.append(of.is_complete)
        if len(rounds) == 1:
            raise RuntimeError("meant")
        poller.stop()
        stopped.append(True)  # which has not ended this greenlet

    options = DiscoveryOptions(lookupd_poll_interval=0.05)
    poller = LookupdPoller(make_clients([lookupd.address], options), options, AllNsqds(found), on_error=lambda *_: None)
    poller.start()
    wait_for(lambda: len(lookupd.asked) == 2 and poller._greenlet is not None and poller._greenlet.dead)
    assert "discovery was interrupted" in caplog.text
    assert stopped


class Searched:
    """When a Reader asks, in virtual time and without jitter, if these ports are listed, and what it dials then.

    :param listed: of a time, the ports; None if nsqlookupd does not answer
    :param lost: the time when the connection to port 1 is lost
    :param interrupted: the time when a signal handler raises in the poller's greenlet
    """

    def __init__(
        self,
        cluster: Cluster,
        listed: Callable[[float], str | None],
        lost: float | None = None,
        seconds: float = 300.0,
        interrupted: float | None = None,
    ) -> None:
        self.rounds: list[float] = []
        self.dialled: list[float] = []
        lost_ones: Lost[Address] = Lost(RELIST_AFTER)
        first = parse_address("10.0.0.1:1")
        greenlets: set[Any] = set()

        class Listing:
            url = "http://lookupd:4161"

            def nodes(listing) -> list[NsqdNode]:
                self.rounds.append(round(cluster.now, 1))
                ports = listed(cluster.now)
                if ports is None:
                    raise HTTPRequestFailed(listing.url, "Connection refused")
                return [NsqdNode("10.0.0.1", int(port), 4151) for port in ports.split()]

            def close(listing) -> None:
                pass

        def found(addresses: list[Address], of: Round) -> float | None:
            greenlets.add(gevent.getcurrent())
            lost_at = lost_ones.found(set(addresses), of.began)
            if first in addresses and first not in lost_ones and cluster.now > (lost or 0.0):
                self.dialled.append(round(cluster.now, 1))
            return lost_at

        poller = LookupdPoller(
            [cast(LookupdClient, Listing())],
            DiscoveryOptions(lookupd_poll_interval=60.0, lookupd_poll_jitter=0.0),
            AllNsqds(found),
            on_error=lambda *_: None,
        )

        poller.start()
        if lost is not None:
            gevent.sleep(lost - cluster.now)
            lost_ones.add(first)
            poller.hurry()
        if interrupted is not None:
            gevent.sleep(interrupted - cluster.now)
            gevent.killall(greenlets, RuntimeError("meant"), block=False)
        gevent.sleep(seconds - cluster.now)
        poller.stop()


@simulated(nsqds=0)
def test_rounds_are_one_interval_apart(cluster: Cluster) -> None:
    assert Searched(cluster, lambda now: "1 2").rounds == [0, 60, 120, 180, 240]


@simulated(nsqds=0)
def test_a_round_begins_soon_after_an_exception_between_two(cluster: Cluster) -> None:
    assert Searched(cluster, lambda now: "1", interrupted=90.0).rounds == [0, 60, 90.5, 120, 180, 240]


@simulated(nsqds=0)
def test_rounds_that_find_nothing_are_closer(cluster: Cluster) -> None:
    rounds = Searched(cluster, lambda now: "1" if now > 10 else "").rounds
    assert rounds == [*(round(0.7 * n, 1) for n in range(16)), 60, 120, 180, 240]


@simulated(nsqds=0)
def test_a_lost_connection_makes_a_round_at_once_and_moves_no_regular_one(cluster: Cluster) -> None:
    searched = Searched(cluster, lambda now: "1 2", lost=70.0)
    assert searched.rounds == [0, 60, 70, 70.7, 120, 180, 240]
    assert searched.dialled[0] == 70.7, "the first round may not have heard of a deletion yet"


@pytest.mark.parametrize("back", [70.3, 75.0, 81.9])
@simulated(nsqds=0)
def test_a_restarted_nsqd_is_found_within_a_second_of_its_registration(cluster: Cluster, back: float) -> None:
    searched = Searched(cluster, lambda now: "1 2" if not 70.0 <= now < back else "2", lost=70.0)
    assert 0 <= searched.dialled[0] - back <= 0.8


@simulated(nsqds=0)
def test_a_deleted_topic_is_looked_for_less_and_less_often_and_never_dialled(cluster: Cluster) -> None:
    searched = Searched(cluster, lambda now: "1 2" if now < 70.0 else "2", lost=70.0, seconds=600.0)
    assert searched.dialled == []
    assert len([at for at in searched.rounds if 70 <= at < 85]) == 22
    assert len([at for at in searched.rounds if 85 <= at < 400]) <= 20
    assert len([at for at in searched.rounds if at >= 400]) <= 4


@simulated(nsqds=0)
def test_while_no_nsqlookupd_answers_the_last_known_nsqds_are_dialled(cluster: Cluster) -> None:
    searched = Searched(cluster, lambda now: "1 2" if now < 70.0 else None, lost=70.0)
    assert 73.0 <= searched.dialled[0] <= 74.0


@simulated(nsqds=0)
def test_an_nsqlookupd_that_is_restarted_and_knows_nothing_yet_leads_to_no_dial(cluster: Cluster) -> None:
    searched = Searched(cluster, lambda now: "1 2" if now < 69.0 else None if now < 72.0 else "", lost=70.0)
    assert searched.dialled == []


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
            options = DiscoveryOptions(**self.options)
            search = TopicSearch(
                re.compile("^t"),
                options,
                lambda targets, of: self.found.append((targets, of.is_complete)),
                on_gone=self.gone.extend,
                connected=lambda: [target for target in self.connected if target not in self.gone],
                is_doubtful=self.lost.__contains__,
            )
            clients = make_clients([lookupd.address for lookupd in self.lookupds], options)
            poller = LookupdPoller(clients, options, search, lambda url, error: self.errors.append(url))
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
