"""``gnsq-like dlq``, against daemons of both kinds."""

import json
import time
from functools import partial
from typing import Any

import pytest

from gnsq_like.deadletter import DeadLetter, pack_envelope
from tests.support import tools
from tests.support.daemons import KINDS, Running, running_nsqd, running_nsqlookupd, wait_for
from tests.support.patient import NsqdHTTPClient
from tests.support.tools import (
    NOBODY,
    counts,
    fill,
    invoke,
    running_tool,
    taken,
    unfinished,
    wait_until_in_channels,
)

pytestmark = pytest.mark.commands

both = pytest.mark.parametrize("kind", KINDS)
DEAD = "orders.dead"


def letter(number: int, reason: str = "no such account", topic: str = "orders") -> bytes:
    now = time.time_ns()
    body = b"order %06d" % number
    return pack_envelope(
        DeadLetter(
            topic, "billing", "10.0.0.1:4150", "0" * 16, 6, now, now, body, reason, error_place="orders.py:7, in bill"
        )
    )


def where(*nsqds: Running) -> list[str]:
    return [f"--nsqd-http-address={each.http_address}" for each in nsqds]


printed = partial(tools.printed, "dlq")
failed = partial(tools.failed, "dlq")


def listed(*arguments: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(printed("list", DEAD, "--json", *arguments))
    return sorted(found, key=lambda each: each.get("body", ""))


@both
def test_letters_are_listed_shown_replayed_and_dropped(kind: Any) -> None:
    with running_nsqd(kind) as one, running_nsqd(kind) as two:
        addresses = where(one, two)
        fill(one, "orders", [], "billing")
        fill(one, DEAD, [letter(1), letter(2, "the card\x1b[2J is\nexpired")])
        fill(two, DEAD, [letter(3, "too late"), b"no envelope \xff"])

        found = listed(*addresses)
        assert [(each.get("body"), each.get("reason"), each.get("topic")) for each in found] == [
            (None, None, None),
            ("order 000001", "no such account", "orders"),
            ("order 000002", "the card\x1b[2J is\nexpired", "orders"),
            ("order 000003", "too late", "orders"),
        ]
        assert {each["nsqd"] for each in found} == {one.tcp_address, two.tcp_address}
        # All are given back, to the channel that keeps them.
        assert unfinished(one, DEAD, "dead-letters") == unfinished(two, DEAD, "dead-letters") == 2
        table = printed("list", DEAD, *addresses)
        assert table.splitlines()[0].split()[:3] == ["ID", "FROM", "ATTEMPTS"]
        assert "\x1b" not in table and "the card\\x1b[2J is expired" in table
        assert len(listed("-n", "1", *addresses)) == 1
        assert [each["body"] for each in listed("--reason=^too", *addresses)] == ["order 000003"]

        text = printed("show", DEAD, found[1]["id"], *addresses)
        assert (
            "reason: no such account" in text
            and "error place: orders.py:7, in bill" in text
            and text.endswith("\norder 000001\n")
        )
        name = f"{found[1]['nsqd']}/{found[1]['id']}"
        assert "there is no letter 1234" in failed("show", DEAD, "1234", *addresses)

        assert printed("replay", DEAD, name, *addresses) == "1 letter replayed\n"
        wait_until_in_channels(one, "orders")
        assert counts(one, "orders", "billing")["depth"] == 1
        assert unfinished(one, DEAD, "dead-letters") == 1

        question = failed("drop", DEAD, found[3]["id"], *addresses, data=b"n\n")
        assert f"Drop 1 dead letter of topic {DEAD}?" in question
        assert printed("drop", DEAD, found[3]["id"], "--yes", *addresses) == "1 letter dropped\n"
        assert unfinished(two, DEAD, "dead-letters") == 1

        done = invoke("dlq", "replay", DEAD, "--all", *addresses)
        assert (done.exit_code, done.stdout) == (1, "1 letter replayed\n")
        assert "it is no envelope" in done.stderr
        assert printed("replay", DEAD, "--all", "--to=orders", *addresses) == "1 letter replayed\n"
        bodies = taken(one, "orders", 3, "billing")
        assert sorted(bodies) == [b"no envelope \xff", b"order 000001", b"order 000002"]
        assert listed(*addresses) == []


@both
def test_what_cannot_be_published_stays(kind: Any) -> None:
    with running_nsqlookupd(kind) as lookupd:
        options = {"lookupd_tcp_addresses": [lookupd.tcp_address], "broadcast_address": "127.0.0.1"}
        with running_nsqd(kind, **options) as nsqd:
            fill(nsqd, DEAD, [letter(1, topic="gone"), letter(2, topic=DEAD)])
            address = f"--lookupd-http-address={lookupd.http_address}"
            wait_for(lambda: invoke("lookup", DEAD, address).exit_code == 0)
            error = failed("replay", DEAD, "--all", address)
            assert "there is no topic gone" in error
            assert "it came from this topic itself" in error
            assert error.splitlines()[-1] == "Error: 2 letters not replayed"
            assert unfinished(nsqd, DEAD, "dead-letters") == 2
            assert [each["reason"] for each in listed(address)] == ["no such account"] * 2


@both
def test_letters_are_held_for_as_long_as_nsqd_permits(kind: Any) -> None:
    with running_nsqd(kind, msg_timeout=2, max_msg_timeout=4) as nsqd:
        fill(nsqd, DEAD, [letter(1)])
        assert [each["body"] for each in listed(*where(nsqd))] == ["order 000001"]


def test_the_channel_of_a_topic_that_has_others() -> None:
    with running_nsqd() as nsqd:
        fill(nsqd, DEAD, [letter(1)], "archive", "other")
        error = failed("list", DEAD, *where(nsqd))
        assert f"topic {DEAD} has no channel dead-letters; choose one of its own: archive, other" in error
        with NsqdHTTPClient(nsqd.http_address) as http:
            channels = http.stats(DEAD)["topics"][0]["channels"]
        assert [each["channel_name"] for each in channels] == ["archive", "other"]
        assert len(listed("--channel=archive", *where(nsqd))) == 1
        assert f"there is no channel {DEAD}/mails" in failed("list", DEAD, "--channel=mails", *where(nsqd))
        printed("drop", DEAD, "--all", "--yes", "--channel=archive", *where(nsqd))
        assert unfinished(nsqd, DEAD, "archive") == 0
        assert unfinished(nsqd, DEAD, "other") == 1


def test_a_channel_that_is_paused_ends_the_command() -> None:
    with running_nsqd() as nsqd:
        fill(nsqd, DEAD, [letter(1)], "dead-letters")
        with NsqdHTTPClient(nsqd.http_address) as http:
            wait_for(lambda: http.stats(DEAD)["topics"][0]["channels"][0]["depth"] == 1)
            http.pause_channel(DEAD, "dead-letters")
        done = invoke("dlq", "list", DEAD, "--json", *where(nsqd))
        assert (done.exit_code, json.loads(done.stdout)) == (0, [])
        assert "1 letter could not be read: the channel is paused" in done.stderr


def test_a_signal_in_the_middle_of_a_replay_loses_nothing() -> None:
    count = 3000
    with running_nsqd() as nsqd:
        fill(nsqd, "orders", [], "billing")
        fill(nsqd, DEAD, [letter(each) for each in range(count)], "dead-letters")
        with running_tool("dlq", "replay", DEAD, "--all", *where(nsqd)) as tool:
            wait_for(lambda: counts(nsqd, "orders", "billing")["message"] > 20)
            assert tool.end() == 130
            assert b" letters replayed\n" in tool.out
        wait_for(lambda: counts(nsqd, DEAD, "dead-letters")["in_flight"] == 0)
        wait_until_in_channels(nsqd, "orders")
        replayed = counts(nsqd, "orders", "billing")["message"]
        left = unfinished(nsqd, DEAD, "dead-letters")
        # One may have been published and not yet finished.
        assert count <= replayed + left <= count + 1
        printed("replay", DEAD, "--all", *where(nsqd))
        assert {*taken(nsqd, "orders", count, "billing")} == {b"order %06d" % each for each in range(count)}


def test_failures_are_one_line() -> None:
    with running_nsqd() as nsqd:
        for command in (["list", DEAD], ["replay", DEAD, "--all"], ["drop", DEAD, "--all", "--yes"]):
            error = failed(*command, *where(nsqd))
            assert f"there is no topic {DEAD}" in error
            error = failed(*command, f"--nsqd-http-address={NOBODY}")
            assert error.startswith(f"Error: http://{NOBODY}/")
            assert len(error.splitlines()) == 1
