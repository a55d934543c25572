"""The pages: what they show, their buttons and forms, ETags, and who may use them."""

from __future__ import annotations

import html
import itertools
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from gnsq_like.admin.web.site import Site
from tests.admin.conftest import Daemons
from tests.support import raw
from tests.support.admins import client_of, site
from tests.support.daemons import Kind, wait_for

pytestmark = pytest.mark.commands

PATHS = ["/topics", "/nodes", "/counter", "/lookup", "/activity"]


@pytest.fixture
def made(ours: Daemons) -> Iterator[Site]:
    first = ours.nsqd_addresses[0]
    raw.post(first, "/topic/create?topic=clicks")
    raw.post(first, "/channel/create?topic=clicks&channel=archive")
    raw.post(first, "/pub?topic=clicks", b"x")
    raw.post(ours.nsqd_addresses[1], "/topic/create?topic=orders.dead")
    ours.wait_until_known("clicks", 1, channels=1)
    ours.wait_until_known("orders.dead", 1)
    wait_for(lambda: raw.channel_stats(first, "clicks", "archive")["depth"] == 1, "the message")
    with site(lookupd_http_addresses=ours.lookupd_addresses) as made:
        yield made


def text_of(page: str) -> str:
    """A page's text without tags."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())


def get(client: Any, path: str, status: int = 200, **headers: str) -> str:
    answer = client.get(path, headers=headers, follow_redirects=True)
    assert answer.status_code == status, answer.text
    return str(answer.text)


def token_of(page: str) -> str:
    found = re.search(r'name="token" value="([^"]+)"', page)
    assert found
    return found[1]


def act(client: Any, page: str, action: str, status: int = 303, **target: Any) -> str:
    """Press a button of a page; the page that it leads to."""
    form = {"token": token_of(get(client, page)), "action": action, **target}
    answer = client.post("/act", data=form, headers={"Origin": "http://localhost"})
    assert answer.status_code == status, answer.text
    return get(client, answer.headers["Location"]) if status == 303 else str(answer.text)


def test_the_list_of_topics(made: Site) -> None:
    page = get(client_of(made), "/")
    shown = text_of(page)
    assert "clicks" in shown and "orders.dead" in shown and "dead letters" in shown
    assert "no consumers" in shown
    assert re.search(r"Depth 1 ", shown)
    assert 'href="/topics/clicks"' in page


def test_search_sort_and_kinds(made: Site, ours: Daemons) -> None:
    client = client_of(made)

    def names(query: str) -> list[str]:
        return re.findall(r'href="/topics/([^"/?]+)"', get(client, f"/topics?{query}"))

    assert names("q=CLI") == ["clicks"]
    assert "matches “nothing”" in text_of(get(client, "/topics?q=nothing"))
    assert names("sort=depth") == ["clicks", "orders.dead"]
    assert names("sort=depth&order=up") == ["orders.dead", "clicks"]
    assert names("sort=name&order=down") == ["orders.dead", "clicks"]
    assert names("sort=;drop&page=-1&order=x") == ["clicks", "orders.dead"]
    assert names("show=trouble") == ["clicks"]
    assert names("show=dead") == ["orders.dead"]


def test_many_topics_are_on_several_pages(made: Site, ours: Daemons) -> None:
    for number in range(120):
        raw.post(ours.nsqd_addresses[0], f"/topic/create?topic=many{number:03}")
    made.core.run(made.core.clusters[""].shared.forget)
    client = client_of(made)
    assert len(re.findall(r'href="/topics/many', get(client, "/topics?q=many"))) == 100
    second = get(client, "/topics?q=many&page=2")
    assert len(re.findall(r'href="/topics/many', second)) == 20
    assert 'href="/topics?q=many&amp;page=1"' in second


def test_zones(made: Site, ours: Daemons) -> None:
    first, client = ours.nsqds[0], client_of(made)
    assert "Taken in the same" not in get(client, "/topics/clicks/archive")
    with raw.Client(first.tcp_address) as near, raw.Client(first.tcp_address) as far:
        for consumer, region, zone in ((near, "eu", "eu-1"), (far, "us", "us-1")):
            consumer.identify(topology_region=region, topology_zone=zone)
            consumer.subscribe("clicks", "archive", rdy=1)
            raw.post(first.http_address, "/pub?topic=clicks", b"x")
            consumer.message()
        made.core.run(made.core.clusters[""].shared.forget)
        channel = text_of(get(client, "/topics/clicks/archive"))
    assert "Taken in the same zone 50% 0% in the same region, 50% elsewhere" in channel
    assert "50% · 0% · 50%" in channel
    assert "eu / eu-1 same zone" in channel and "us / us-1" in channel
    assert re.findall(r"eu / eu-\d", text_of(get(client, "/nodes?sort=zone&order=down"))) == ["eu / eu-2", "eu / eu-1"]
    assert "Zone eu / eu-1" in text_of(get(client, f"/nodes/{first.http_address}"))


def test_a_topic(made: Site, ours: Daemons) -> None:
    with raw.Client(ours.nsqds[0].tcp_address) as publisher:
        publisher.identify(client_id="shop", user_agent="shop/1")
        publisher.publish("clicks", b"a", b"b")
        page = get(client_of(made), "/topics/clicks")
    shown = text_of(page)
    assert "archive" in shown and ours.nsqd_addresses[0] in shown
    assert "shop" in shown and "shop/1" in shown
    assert f"$ gnsq-like topic pause clicks --lookupd-http-address={ours.lookupd_addresses[0]}" in shown


def test_a_channel_and_its_consumers(made: Site, ours: Daemons) -> None:
    with raw.Client(ours.nsqds[0].tcp_address) as consumer:
        consumer.identify(client_id="worker", user_agent="worker/1", sample_rate=50)
        consumer.subscribe("clicks", "archive", rdy=1)
        shown = text_of(get(client_of(made), "/topics/clicks/archive"))
    assert "Consumers 1" in shown and "worker/1" in shown and "samples 50 %" in shown
    assert "gnsq-like channel pause clicks archive" in shown


def test_nodes_and_a_node(made: Site, ours: Daemons) -> None:
    client = client_of(made)
    shown = text_of(get(client, "/nodes"))
    assert all(address in shown for address in (*ours.nsqd_addresses, *ours.lookupd_addresses))
    node = text_of(get(client, f"/nodes/{ours.nsqd_addresses[0]}"))
    assert "clicks" in node and "archive" in node and "orders.dead" not in node


def test_what_is_missing_is_said(made: Site) -> None:
    client = client_of(made)
    assert "There is no topic “nope”" in text_of(get(client, "/topics/nope", 404))
    assert "There is no channel “nope”" in text_of(get(client, "/topics/clicks/nope", 404))
    assert "There is no node “127.0.0.1:9”" in text_of(get(client, "/nodes/127.0.0.1:9", 404))
    assert "There is no such page" in text_of(get(client, "/nope", 404))


def test_the_buttons(made: Site, ours: Daemons) -> None:
    client = client_of(made)
    first = ours.nsqd_addresses[0]
    channel: dict[str, Any] = {"topic": "clicks", "channel": "archive"}
    assert "archive is paused" in text_of(act(client, "/topics/clicks/archive", "pause_channel", **channel))
    assert raw.channel_stats(first, "clicks", "archive")["paused"]
    assert "Unpause" in text_of(get(client, "/topics/clicks/archive"))
    act(client, "/topics/clicks/archive", "unpause_channel", **channel)
    assert "archive is empty" in text_of(act(client, "/topics/clicks/archive", "empty_channel", **channel))
    assert raw.channel_stats(first, "clicks", "archive")["depth"] == 0
    assert "clicks is paused" in text_of(act(client, "/topics/clicks", "pause_topic", topic="clicks"))
    assert "runs again" in text_of(act(client, "/topics/clicks", "unpause_topic", topic="clicks"))
    assert "archive is deleted" in text_of(act(client, "/topics/clicks/archive", "delete_channel", **channel))
    second = ours.nsqd_addresses[1]
    told = act(client, "/topics/orders.dead", "tombstone_topic_producer", topic="orders.dead", node=second)
    assert "is tombstoned" in text_of(told)
    assert raw.topic_stats(second, "orders.dead") is None
    assert "clicks is deleted" in text_of(act(client, "/topics/clicks", "delete_topic", topic="clicks"))
    assert raw.topic_stats(first, "clicks") is None
    assert "made is registered" in text_of(act(client, "/lookup", "create", topic="made"))
    activity = text_of(get(client, "/activity"))
    assert "pause channel" in activity and "delete topic" in activity and "127.0.0.1" in activity


@pytest.mark.parametrize(
    ("action", "target"),
    [
        ("explode", {"topic": "clicks"}),
        ("delete_topic", {"topic": "no blanks"}),
        ("delete_topic", {}),
        ("delete_channel", {"topic": "clicks"}),
        ("delete_topic", {"topic": "clicks", "channel": "archive"}),
        ("tombstone_topic_producer", {"topic": "clicks"}),
    ],
)
def test_forms_that_make_no_sense(made: Site, action: str, target: dict[str, Any]) -> None:
    act(client_of(made), "/topics/clicks", action, 400, **target)


def test_an_action_that_fails_is_told(made: Site) -> None:
    shown = text_of(act(client_of(made), "/topics/clicks", "delete_channel", topic="clicks", channel="nope"))
    assert "That did not work: there is no channel clicks/nope" in shown
    assert "That did not work" not in text_of(get(client_of(made), "/topics/clicks"))


def test_a_channel_of_a_new_topic_and_its_first_message(made: Site, ours: Daemons) -> None:
    client = client_of(made)
    page = act(client, "/lookup", "create", topic="fresh", channel="archive")
    assert "fresh/archive is registered" in text_of(page) and "<h1>Lookup</h1>" in page
    # nsqlookupd alone knows the topic: any node may have its first message.
    page = get(client, "/topics/fresh")
    assert re.findall(r"<option>([^<]+)", page) == sorted(ours.nsqd_addresses)
    node = ours.nsqd_addresses[1]
    form = {"token": token_of(page), "node": node, "body": "first"}
    answer = client.post("/topics/fresh/-/publish", data=form, headers={"Origin": "http://localhost"})
    assert "Published to fresh" in text_of(get(client, answer.headers["Location"]))
    wait_for(lambda: raw.channel_stats(node, "fresh", "archive")["depth"] == 1, "the message in the channel")
    assert get(client, "/topics/fresh/archive")


def round_of(made: Site, number: int) -> None:
    """Let the recorder watch the cluster, as if each round were ten seconds after the one before it."""
    cluster = made.core.clusters[""]
    made.core.run(cluster.shared.forget)
    overview = made.core.run(cluster.overview)
    later = replace(overview, taken=overview.taken + 10 * number, at=overview.at + 10 * number)
    made.core.run(made.recorders[""].add, later)


def test_an_nsqd_that_crashed_is_an_alert_until_it_is_dismissed_or_returns(kind: Kind, daemons: Daemons) -> None:
    gone = daemons.nsqds[-1]
    with site(lookupd_http_addresses=daemons.lookupd_addresses, history=False) as made:
        client, rounds = client_of(made), itertools.count()

        def alerts() -> list[str]:
            return [alert.text for alert in made.recorders[""].alerts.present]

        def is_listed() -> bool:
            return gone.http_address in {each["broadcast_address"] + ":" + str(each["http_port"]) for each in listed()}

        def listed() -> Any:
            return client.get("/api/nodes").get_json()["nodes"]

        round_of(made, next(rounds))
        gone.kill()
        wait_for(lambda: not is_listed(), "nsqlookupd to forget it")
        for _ in range(2):
            round_of(made, next(rounds))
        text = f"nsqd {gone.http_address} has left: no nsqlookupd lists it, and it was not tombstoned"
        assert alerts() == [text]
        assert text in text_of(get(client, "/activity")) and "left at" in text_of(get(client, "/nodes"))
        page = act(client, "/activity", "dismiss_node", node=gone.http_address)
        assert alerts() == [] and f"{gone.http_address} is not missed any more." in text_of(page)
        page = act(client, "/lookup", "dismiss_node", node=gone.http_address)
        assert "none of those that left" in text_of(page)
        assert made.audit.recent()[-1]["action"] == "dismiss_node"
        # Once more, and it returns.
        gone.start()
        wait_for(is_listed, "it to register again")
        round_of(made, next(rounds))
        gone.kill()
        wait_for(lambda: not is_listed(), "nsqlookupd to forget it")
        for _ in range(2):
            round_of(made, next(rounds))
        assert alerts() == [text]
        gone.start()
        wait_for(is_listed, "it to register again")
        for _ in range(2):
            round_of(made, next(rounds))
        assert alerts() == []


def test_an_action_says_which_nsqd_it_did_not_reach(ours: Daemons) -> None:
    gone = ours.nsqds[-1]
    for each in (ours.nsqds[0], gone):
        raw.post(each.http_address, "/topic/create?topic=u")
        raw.post(each.http_address, "/channel/create?topic=u&channel=c")
    ours.wait_until_known("u", 2, 1)
    with site(lookupd_http_addresses=ours.lookupd_addresses, history=False) as made:
        round_of(made, 0)
        gone.kill()
        ours.wait_until_known("u", 1)
        client = client_of(made)
        replies = [
            client.post("/api/topics/u", json={"action": "pause"}),
            client.delete("/api/topics/u/c"),
            client.delete("/api/topics/u"),
        ]
        said = f"WARNING: {gone.http_address} has left with u, not reached"
        assert [each.get_json() for each in replies] == [{"message": said}] * 3


def test_what_is_copied_as_commands_names_all_daemons(ours: Daemons) -> None:
    for options in ({"lookupd_http_addresses": ours.lookupd_addresses}, {"nsqd_http_addresses": ours.nsqd_addresses}):
        with site(**options, history=False) as made:
            command = made.core.clusters[""].command("topic", "pause", "t")
        (addresses,) = options.values()
        assert [each.partition("=")[2] for each in command.split()[4:]] == [*addresses]


def test_an_nsqd_that_was_tombstoned_is_not_missed(ours: Daemons) -> None:
    gone = ours.nsqds[-1]
    raw.post(gone.http_address, "/topic/create?topic=t")
    ours.wait_until_known("t", 1)
    with site(lookupd_http_addresses=ours.lookupd_addresses, history=False) as made:
        round_of(made, 0)
        act(client_of(made), "/lookup", "tombstone_topic_producer", topic="t", node=gone.http_address)
        gone.kill()
        wait_for(lambda: len(client_of(made).get("/api/nodes").get_json()["nodes"]) == 1, "nsqlookupd to forget it")
        for number in (1, 2):
            round_of(made, number)
        assert not made.recorders[""].alerts.present


def test_a_form_needs_its_token(made: Site, ours: Daemons) -> None:
    client = client_of(made)
    page = get(client, "/topics/clicks")
    form = {"action": "delete_topic", "topic": "clicks", "token": token_of(page)}
    right = {"Origin": "http://localhost"}
    assert client.post("/act", data={**form, "token": "x" * 43}, headers=right).status_code == 403
    assert client.post("/act", data={**form, "token": ""}, headers=right).status_code == 403
    assert client.post("/act", data=form, headers={"Origin": "http://evil.test"}).status_code == 403
    assert client.post("/act", data=form, headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
    stranger = client_of(made)  # has no cookie
    assert stranger.post("/act", data=form, headers=right).status_code == 403
    assert client.get("/act").status_code in (404, 405)
    assert raw.topic_stats(ours.nsqd_addresses[0], "clicks") is not None


def test_publishing_by_the_form(made: Site, ours: Daemons) -> None:
    client, first = client_of(made), ours.nsqd_addresses[0]
    page = get(client, "/topics/clicks")

    def publish(**fields: str) -> str:
        form = {"token": token_of(page), "node": first, "body": "a\r\nb", **fields}
        answer = client.post("/topics/clicks/-/publish", data=form)
        assert answer.status_code == 303
        return text_of(get(client, answer.headers["Location"]))

    assert f"Published to clicks on {first}" in publish()
    wait_for(lambda: raw.channel_stats(first, "clicks", "archive")["depth"] == 2, "the message")
    assert "number of seconds" in publish(defer="soon")
    assert "number of seconds" in publish(defer="-1")
    assert "not be empty" in publish(body="")
    assert "INVALID_DEFER" in publish(defer="100000")
    assert "has no such topic" in publish(node="10.0.0.1:4151")
    publish(defer="100")
    wait_for(lambda: raw.channel_stats(first, "clicks", "archive")["deferred_count"] == 1, "the deferred message")
    assert made.audit.recent()[0]["action"] == "publish"
    assert "body" not in made.audit.recent()[0]


def test_who_may_only_look_sees_no_buttons(ours: Daemons, made: Site) -> None:
    with site(lookupd_http_addresses=ours.lookupd_addresses, read_only=True) as locked:
        client = client_of(locked)
        for path in (*PATHS, "/topics/clicks", "/topics/clicks/archive", f"/nodes/{ours.nsqd_addresses[0]}"):
            assert '<form method="post"' not in get(client, path), path
        assert client.post("/act", data={"action": "delete_topic", "topic": "clicks"}).status_code == 403
        assert client.post("/topics/clicks/-/messages").status_code == 403


def test_etags(made: Site) -> None:
    """Nothing is sent again that has not changed, and a token is no change."""
    client = client_of(made)

    def is_known(path: str) -> bool:
        etag = client.get(path).headers["ETag"]
        again = client_of(made).get(path, headers={"If-None-Match": etag})
        assert again.headers["X-As-Of"]
        return (again.status_code, again.data) == (304, b"")

    for path in ("/topics", "/lookup"):
        # Rates and graphs change once more when they begin to be known.
        wait_for(lambda path=path: is_known(path), path)  # type: ignore[misc]
    etag = client.get("/lookup").headers["ETag"]
    act(client, "/lookup", "create", topic="new")
    assert client.get("/lookup", headers={"If-None-Match": etag}).status_code == 200


def test_headers(made: Site) -> None:
    client = client_of(made)
    for path in (*PATHS, "/topics/clicks", "/nope", "/static/admin.js", "/api/topics", "/ping"):
        headers = client.get(path).headers
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "script-src 'self'" in policy and "unsafe" not in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["X-Frame-Options"] == "DENY"
    answer = client.get("/topics", headers={"Accept-Encoding": "gzip"})
    assert answer.headers["Content-Encoding"] == "gzip"
    cookie = client.get("/lookup").headers["Set-Cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie


def test_pages_are_whole_without_anything_from_elsewhere(made: Site) -> None:
    client = client_of(made)
    for path in (*PATHS, "/topics/clicks", "/topics/clicks/archive"):
        page = get(client, path)
        assert not re.search(r"""(?:src|href)=["'](?:https?:)?//""", page), path
        assert "<style" not in page and " style=" not in page and " onclick=" not in page
        for script in re.findall(r"<script[^>]*>(.*?)</script>", page, re.DOTALL):
            assert script == ""


@pytest.mark.parametrize("name", ["admin.css", "admin.js", "icon.svg"])
def test_static_files(name: str) -> None:
    with site(nsqd_http_addresses=("127.0.0.1:1",)) as made:
        answer = client_of(made).get(f"/static/{name}")
        assert answer.status_code == 200 and answer.data
        assert (
            client_of(made).get(f"/static/{name}", headers={"If-None-Match": answer.headers["ETag"]}).status_code == 304
        )


def test_below_a_path_and_in_an_application_of_ones_own(ours: Daemons, made: Site) -> None:
    from flask import Flask

    from gnsq_like.admin import AdminOptions, make_blueprint

    app = Flask("shop")
    app.register_blueprint(make_blueprint(AdminOptions(nsqd_http_addresses=ours.nsqd_addresses)), url_prefix="/ops/nsq")
    app.add_url_rule("/", "home", lambda: "the shop")
    client = app.test_client()
    page = get(client, "/ops/nsq/")
    assert 'href="/ops/nsq/topics/clicks"' in page
    assert client.get("/").text == "the shop"
    assert "Content-Security-Policy" not in client.get("/").headers
    assert client.get("/ops/nsq/api/topics").get_json()["topics"] == ["clicks", "orders.dead"]
    app.blueprints["nsq_admin"].site.core.stop()  # type: ignore[attr-defined]


def test_two_clusters_have_pages_each(ours: Daemons, made: Site) -> None:
    clusters = {"east": (f"nsqd:{ours.nsqd_addresses[1]}",)}
    with site(nsqd_http_addresses=ours.nsqd_addresses[:1], clusters=clusters) as both:
        client = client_of(both)
        main, east = get(client, "/topics"), get(client, "/clusters/east/topics")
        assert 'href="/topics/clicks"' in main and 'href="/clusters/east/topics"' in main
        assert 'href="/clusters/east/topics/orders.dead"' in east and "clicks" not in text_of(east)
        assert get(client, "/clusters/east/topics/orders.dead")


def test_a_node_that_is_down_is_a_warning_on_the_page(ours: Daemons, made: Site) -> None:
    client = client_of(made)
    get(client, "/topics")
    ours.nsqds[0].stop()
    made.core.run(made.core.clusters[""].shared.forget)
    # nsqlookupd may still list it, or may not.
    shown = text_of(get(client, "/nodes"))
    assert ours.nsqd_addresses[1] in shown
    with site(nsqd_http_addresses=ours.nsqd_addresses) as direct:
        shown = text_of(get(client_of(direct), "/nodes"))
        assert "Incomplete." in shown and "no answer" in shown and ours.nsqd_addresses[0] in shown
        assert "orders.dead" in text_of(get(client_of(direct), "/topics"))


def test_nobody_answers(ours: Daemons) -> None:
    with site(lookupd_http_addresses=("127.0.0.1:1",)) as lost:
        for path in PATHS:
            assert "Incomplete." in text_of(get(client_of(lost), path)), path
