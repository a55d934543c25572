"""``gnsq-like nodes``, ``node``, ``lookup`` and ``ping``, against daemons of both kinds."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.daemons import KINDS, Running, running_nsqd, running_nsqlookupd, wait_for
from tests.support.patient import LookupdClient, NsqdHTTPClient
from tests.support.scripted_http import Asked, always, response, scripted
from tests.support.tools import NOBODY, failed, fill, invoke, printed

pytestmark = pytest.mark.commands

both = pytest.mark.parametrize("kind", KINDS)


@contextmanager
def cluster(kind: Any) -> Iterator[tuple[list[Running], Running]]:
    """Two nsqds that have the topic "clicks", and their nsqlookupd."""
    with running_nsqlookupd(kind) as lookupd:
        options = {"lookupd_tcp_addresses": [lookupd.tcp_address], "broadcast_address": "127.0.0.1"}
        with running_nsqd(kind, **options) as one, running_nsqd(kind, **options) as two:
            for nsqd in (one, two):
                fill(nsqd, "clicks", [b"1", b"2"], "archive")
            with LookupdClient(lookupd.http_address) as client:

                def is_known() -> bool:
                    found = client.lookup("clicks", missing_ok=True)
                    return len(found.producers) == 2 and len(found.channels) == 1

                wait_for(is_known)
            yield [one, two], lookupd


def topics_of(nsqd: Running) -> list[str]:
    with NsqdHTTPClient(nsqd.http_address) as http:
        return [each["topic_name"] for each in http.stats()["topics"]]


@both
def test_a_topic_is_taken_off_one_of_two_nsqds(kind: Any) -> None:
    with cluster(kind) as ([one, two], lookupd):
        where = f"--lookupd-http-address={lookupd.http_address}"
        nodes = json.loads(printed("nodes", "--json", where))
        assert {each["http_address"]: each["topics"] for each in nodes} == {
            one.http_address: {"clicks": False},
            two.http_address: {"clicks": False},
        }
        assert all(each["lookupds"] == [lookupd.http_address] for each in nodes)
        assert {each["tcp_address"] for each in nodes} == {one.tcp_address, two.tcp_address}
        heading, *rows = printed("nodes", where).splitlines()
        assert heading.split() == ["NSQD", "TCP", "HOST", "VERSION", "TOPICS", "TOMBSTONED", "NSQLOOKUPDS"]
        assert sorted(row.split()[0] for row in rows) == sorted([one.http_address, two.http_address])
        assert all(row.split()[-3:] == ["1", "0", "1"] for row in rows)

        found = json.loads(printed("lookup", "clicks", "--json", where))
        assert (found["channels"], len(found["nodes"])) == (["archive"], 2)
        assert "clicks: channels archive" in printed("lookup", "clicks", where)

        question = failed("node", "tombstone", one.http_address, "clicks", where, data=b"n\n")
        assert f"Delete topic clicks with its channels and all their messages on {one.http_address}?" in question
        assert topics_of(one) == ["clicks"]
        done = printed("node", "tombstone", one.http_address, "clicks", "--yes", where)
        assert done == f"topic clicks: tombstoned on {one.http_address} at 1 nsqd and 1 nsqlookupd\n"
        assert (topics_of(one), topics_of(two)) == ([], ["clicks"])
        [left] = json.loads(printed("lookup", "clicks", "--json", where))["nodes"]
        assert left["http_address"] == two.http_address
        error = failed("node", "tombstone", NOBODY, "clicks", "--yes", where)
        assert f"there is no nsqd {NOBODY}" in error
        assert "there is no topic other" in failed("lookup", "other", where)


@both
def test_daemons_that_answer_and_one_that_does_not(kind: Any) -> None:
    with cluster(kind) as ([one, _], lookupd):
        where = f"-lookupd-http-address={lookupd.http_address}"
        found = json.loads(printed("ping", "--json", where))
        assert [each["kind"] for each in found] == ["nsqlookupd", "nsqd", "nsqd"]
        assert all(each["seconds"] > 0 and each["version"] and not each["problem"] for each in found)
        assert all(line.endswith(" OK") for line in printed("ping", where).splitlines()[1:])
        # The address of an nsqd is asked once, also if it is given and known.
        again = json.loads(printed("ping", "--json", where, f"--nsqd-http-address={one.http_address}"))
        assert len(again) == 3

        done = invoke("ping", where, f"--nsqd-http-address={NOBODY}")
        assert (done.exit_code, done.stderr) == (1, "Error: 1 daemon of 4 not well\n")
        [line] = [each for each in done.stdout.splitlines() if NOBODY in each]
        assert "refused" in line.lower()


def test_an_nsqd_that_answers_that_it_is_not_well() -> None:
    def answer(asked: Asked) -> bytes:
        if asked.line.startswith("GET /ping "):
            return response("NOK - failed to write message: disk full", "500 Internal Server Error")
        return response('{"version": "1.3.0"}')

    with scripted(always(answer)) as server:
        done = invoke("ping", "--json", f"--nsqd-http-address={server.address}")
    [found] = json.loads(done.stdout)
    assert (found["problem"], found["version"]) == ("NOK - failed to write message: disk full", "1.3.0")
    assert found["seconds"] > 0
    assert (done.exit_code, done.stderr) == (1, "Error: 1 daemon of 1 not well\n")


def test_an_nsqd_that_is_not_given_by_a_lookupd() -> None:
    with running_nsqd() as nsqd:
        fill(nsqd, "clicks", [b"1"], "archive")
        where = f"--nsqd-http-address={nsqd.http_address}"
        [node] = json.loads(printed("nodes", "--json", where))
        assert (node["http_address"], node["tcp_address"]) == (nsqd.http_address, nsqd.tcp_address)
        done = invoke("nodes", "--json", where, f"--nsqd-http-address={NOBODY}")
        assert (done.exit_code, len(json.loads(done.stdout))) == (0, 1)
        assert done.stderr.startswith(f"Warning: http://{NOBODY}/")
        done = invoke("node", "tombstone", nsqd.http_address, "other", "--yes", where)
        assert "there is no topic other on" in done.stderr
        printed("node", "tombstone", nsqd.http_address, "clicks", "-y", where)
        assert topics_of(nsqd) == []


@pytest.mark.parametrize("arguments", [["nodes"], ["lookup", "clicks"], ["node", "tombstone", "a:1", "clicks", "-y"]])
def test_nobody_answers(arguments: list[str]) -> None:
    error = failed(*arguments, f"--lookupd-http-address={NOBODY}")
    assert error.startswith(f"Error: http://{NOBODY}/")
    assert len(error.splitlines()) == 1
