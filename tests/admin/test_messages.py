"""Looking at messages: nothing of the backlog is taken, nobody notices, and dead letters are never lost."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from gnsq_like.admin.web.site import Site
from gnsq_like.deadletter import DeadLetter, pack_envelope
from tests.admin.conftest import Daemons
from tests.support import raw
from tests.support.admins import client_of, site
from tests.support.auth_server import running_auth_server
from tests.support.certificates import stranger, write_ca, write_certificate
from tests.support.daemons import Kind, running_nsqd, wait_for

pytestmark = pytest.mark.commands


@pytest.fixture
def daemons(kind: Kind) -> Iterator[Daemons]:
    """nsqds without nsqlookupds: they would give a new topic the channels that it has elsewhere."""
    with ExitStack() as stack:
        nsqds = [stack.enter_context(running_nsqd(kind, node_id=number)) for number in (1, 2, 3)]
        yield Daemons(kind, [], nsqds)


@pytest.fixture
def made(daemons: Daemons) -> Iterator[Site]:
    """A topic with a channel and a backlog on the first node, and without any on the second."""
    first, second, _ = daemons.nsqd_addresses
    for address in (first, second):
        raw.post(address, "/topic/create?topic=clicks")
    raw.post(first, "/channel/create?topic=clicks&channel=archive")
    for _ in range(20):
        raw.post(first, "/pub?topic=clicks", b"old")
        raw.post(second, "/pub?topic=clicks", b"old")
    wait_for(lambda: raw.channel_stats(first, "clicks", "archive")["depth"] == 20, "the messages")
    with site(nsqd_http_addresses=daemons.nsqd_addresses) as made:
        yield made


def post(made: Site, path: str, status: int = 303, **form: str) -> Any:
    client = client_of(made)
    client.get("/lookup")
    token = client.get_cookie("nsq_admin_token").value
    answer = client.post(path, data={"token": token, **form})
    assert answer.status_code == status, answer.text
    return client.get(answer.headers["Location"]).text if status == 303 else answer.text


def peek_channels(address: str, topic: str = "clicks") -> list[str]:
    found = raw.topic_stats(address, topic)
    names = [channel["channel_name"] for channel in found["channels"]]
    return [name for name in names if name.startswith("admin-peek-")]


def test_a_look_shows_what_comes_now(made: Site, daemons: Daemons) -> None:
    first, second, _ = daemons.nsqd_addresses
    page = post(made, "/topics/clicks/-/messages")
    assert "Nothing has been published yet" in page and second in page
    wait_for(lambda: peek_channels(first), "the channel")
    [channel] = peek_channels(first)
    assert channel.endswith("#ephemeral")
    # On a node without a channel it would have taken the backlog, and lost it.
    assert peek_channels(second) == []
    assert raw.topic_stats(second, "clicks")["depth"] == 20

    def consuming() -> bool:
        return bool(raw.channel_stats(first, "clicks", channel)["client_count"])

    wait_for(consuming, "the look's consumer")
    raw.post(first, "/pub?topic=clicks", b'{"b": "<script>alert(1)</script>"}')
    client = client_of(made)
    wait_for(lambda: "alert(1)" in client.get("/topics/clicks/-/messages").text, "the message")
    page = client.get("/topics/clicks/-/messages").text
    assert "<script>alert" not in page and "&lt;script&gt;alert(1)" in page
    assert "old" not in page.partition('<ol class="messages">')[2].partition("</ol>")[0]
    # Of the two channels the look's may have it first.
    wait_for(lambda: raw.channel_stats(first, "clicks", "archive")["depth"] == 21, "the message in the other channel")
    # Our lists leave the channel out, and the API, which is NSQ's, does not.
    assert channel not in client.get("/topics/clicks").text
    assert channel in client.get("/api/topics/clicks").text
    assert made.audit.recent()[0]["action"] == "look_at_messages"
    made.core.run(made.peeks.stop)
    wait_for(lambda: peek_channels(first) == [], "the end of the channel")


def test_a_look_ends_after_fifty_messages(made: Site, daemons: Daemons) -> None:
    first = daemons.nsqd_addresses[0]
    post(made, "/topics/clicks/-/messages")
    wait_for(lambda: peek_channels(first), "the channel")
    raw.post(first, "/mpub?topic=clicks", b"\n".join(b"new %d" % number for number in range(80)))
    client = client_of(made)
    wait_for(lambda: "ended" in client.get("/topics/clicks/-/messages").text, "the end")
    assert client.get("/topics/clicks/-/messages").text.count("<pre>") == 50
    wait_for(lambda: peek_channels(first) == [], "the end of the channel")
    wait_for(lambda: raw.channel_stats(first, "clicks", "archive")["depth"] == 100, "all messages in the other channel")


def test_no_look_at_a_topic_without_a_channel(made: Site, daemons: Daemons) -> None:
    third = daemons.nsqd_addresses[2]
    raw.post(third, "/pub?topic=alone", b"x")
    assert "No look: alone has no channel yet" in post(made, "/topics/alone/-/messages")
    assert raw.topic_stats(third, "alone")["channels"] == []
    assert raw.topic_stats(third, "alone")["depth"] == 1


def test_looks_may_be_switched_off(daemons: Daemons) -> None:
    addresses = daemons.nsqd_addresses
    for options in ({"peek": False}, {"read_only": True}, {"admin_users": ("ada",)}):
        with site(nsqd_http_addresses=addresses, **options) as closed:
            for path in ("/topics/clicks/-/messages", "/topics/x.dead/-/letters"):
                assert client_of(closed).get(path).status_code == 403
                assert client_of(closed).post(path).status_code == 403


def bury(address: str, number: int, topic: str = "orders") -> None:
    now, body = time.time_ns(), b"order %d" % number
    letter = DeadLetter(
        topic, "billing", address, "0" * 16, 6, now, now, body, "no <such> one", error_place="handlers.py:7, in store"
    )
    raw.post(address, "/pub?topic=orders.dead", pack_envelope(letter))


@pytest.fixture
def buried(made: Site, daemons: Daemons) -> Site:
    first = daemons.nsqd_addresses[0]
    raw.post(first, "/topic/create?topic=orders")
    raw.post(first, "/channel/create?topic=orders&channel=billing")
    for number in range(3):
        bury(first, number)
    return made


def letters_of(made: Site) -> list[str]:
    page = client_of(made).get("/topics/orders.dead/-/letters").text
    return re.findall(r'<li id="m-([^"]+)">', page)


def test_letters_are_read_replayed_dropped_and_given_back(buried: Site, daemons: Daemons) -> None:
    first, path = daemons.nsqd_addresses[0], "/topics/orders.dead/-/letters"
    assert letters_of(buried) == []
    post(buried, path, action="open")
    wait_for(lambda: len(letters_of(buried)) == 3, "the letters")
    page = client_of(buried).get(path).text
    assert (
        "no &lt;such&gt; one" in page
        and "handlers.py:7, in store" in page
        and "order 1" in page
        and "Publish to orders again" in page
    )
    one, two, three = letters_of(buried)
    assert "Published again" in post(buried, path, action="replay", id=one)
    wait_for(lambda: raw.channel_stats(first, "orders", "billing")["depth"] == 1, "the replayed message")
    assert "not held any more" in post(buried, path, action="replay", id=one)
    assert raw.channel_stats(first, "orders", "billing")["depth"] == 1
    assert "Dropped" in post(buried, path, action="drop", id=two)
    assert letters_of(buried) == [three]
    assert "given back" in post(buried, path, action="release")

    def left() -> bool:
        channel = raw.channel_stats(first, "orders.dead", "dead-letters")
        return (channel["depth"], channel["in_flight_count"]) == (1, 0)

    wait_for(left, "the letter to be given back")
    actions = [entry["action"] for entry in buried.audit.recent()]
    assert actions[::-1] == ["read_letters", "replay_letter", "replay_letter", "drop_letter", "release_letters"]
    post(buried, path, 400, action="burn")


def test_all_letters_are_published_again_but_those_that_cannot_be(buried: Site, daemons: Daemons) -> None:
    first, path = daemons.nsqd_addresses[0], "/topics/orders.dead/-/letters"
    raw.post(first, "/pub?topic=orders.dead", b"no envelope")
    post(buried, path, action="open")
    wait_for(lambda: len(letters_of(buried)) == 4, "the letters")
    assert "In part: it is no envelope" in post(buried, path, action="replay_all")
    assert len(letters_of(buried)) == 1
    wait_for(lambda: raw.channel_stats(first, "orders", "billing")["depth"] == 3, "the replayed messages")
    assert buried.audit.recent()[0]["action"] == "replay_letters"


def test_a_letter_whose_topic_is_gone_stays(buried: Site, daemons: Daemons) -> None:
    first, path = daemons.nsqd_addresses[0], "/topics/orders.dead/-/letters"
    raw.post(first, "/topic/empty?topic=orders.dead")
    bury(first, 9, topic="vanished")
    raw.post(first, "/pub?topic=orders.dead", b"no envelope")
    post(buried, path, action="open")
    wait_for(lambda: len(letters_of(buried)) == 2, "the letters")
    for letter in letters_of(buried):
        assert "That did not work" in post(buried, path, action="replay", id=letter)
    assert len(letters_of(buried)) == 2


@pytest.mark.parametrize("grants", [True, False])
def test_nsqds_with_tls_and_auth(kind: Kind, grants: bool, tmp_path: Path) -> None:
    cert, key = write_certificate(tmp_path)
    options = {"tls_cert": cert, "tls_key": key, "tls_required": "tcp-https"}
    with (
        running_auth_server(good="ada") as auth,
        running_nsqd(kind, **options, auth_http_addresses=(auth.address,)) as nsqd,
    ):
        address = nsqd.http_address
        raw.post(address, "/topic/create?topic=clicks")
        raw.post(address, "/channel/create?topic=clicks&channel=archive")
        raw.post(address, "/topic/create?topic=orders")
        bury(address, 1)
        own: dict[str, Any] = {"nsqd_http_addresses": (address,), "nsqd_tls_v1": True, "nsqd_auth_secret": "good"}
        own["nsqd_tls_root_ca_file"] = write_ca(tmp_path, None if grants else stranger())
        with site(**own) as made:
            client, path = client_of(made), "/topics/orders.dead/-/letters"
            assert "good" not in repr(made.options)
            assert client.get("/config/nsqd_auth_secret").status_code == 400
            post(made, path, action="open")
            post(made, "/topics/clicks/-/messages")
            if not grants:
                wait_for(lambda: "certificate" in client.get(path).text.lower(), "the reason")
                wait_for(lambda: "certificate" in client.get("/topics/clicks/-/messages").text.lower(), "it again")
                return
            wait_for(lambda: len(letters_of(made)) == 1, "the letter")
            assert "Published again" in post(made, path, action="replay", id=letters_of(made)[0])
            assert raw.topic_stats(address, "orders")["message_count"] == 1
            [channel] = wait_for(lambda: peek_channels(address), "the look's channel")
            wait_for(lambda: raw.channel_stats(address, "clicks", channel)["client_count"], "the look's consumer")
            raw.post(address, "/pub?topic=clicks", b"one of now")
            look = "/topics/clicks/-/messages"
            wait_for(lambda: "one of now" in client.get(look).text, "the message")
