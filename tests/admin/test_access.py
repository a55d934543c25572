"""Who may do what: users, passwords, proxies, and requests that other sites make a browser send."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from werkzeug.security import generate_password_hash

from gnsq_like.admin import AdminOptions
from gnsq_like.admin.admin_options import read_network
from gnsq_like.admin.web.identity import is_within
from gnsq_like.admin.web.passwords import SESSION_SECONDS, TRIES, Passwords, TooManyTries, Tries, password_line
from gnsq_like.admin.web.site import Site
from gnsq_like.errors import InvalidOption
from tests.admin.conftest import Daemons
from tests.support import raw
from tests.support.admins import client_of, running_admin, site
from tests.support.daemons import wait_for
from tests.support.scripted_http import Asked, always, response, scripted

pytestmark = pytest.mark.commands

FAR = {"REMOTE_ADDR": "10.9.8.7"}


def pause(client: Any, headers: dict[str, str] | None = None, environ: dict[str, str] | None = None) -> int:
    """The status of pausing a topic that does not exist: 502 where it is allowed."""
    answer = client.post(
        "/api/topics/nope", json={"action": "pause"}, headers=headers or {}, environ_overrides=environ or {}
    )
    return int(answer.status_code)


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"}


def test_only_admin_users_may_change(ours: Daemons) -> None:
    with site(lookupd_http_addresses=ours.lookupd_addresses, admin_users=("ada",)) as made:
        client = client_of(made)
        assert pause(client) == 403
        assert pause(client, {"X-Forwarded-User": "bob"}) == 403
        assert pause(client, {"X-Forwarded-User": "ada"}) == 502
        assert client.get("/api/topics").status_code == 200
        assert client.post("/api/topics", json={"topic": "t"}).get_json() == {"message": "FORBIDDEN"}
        assert client.delete("/api/topics/t").status_code == 403
        assert client.delete("/api/nodes/n:1", json={"topic": "t"}).status_code == 403


def test_a_header_from_elsewhere_is_not_believed(ours: Daemons) -> None:
    options: dict[str, Any] = {"lookupd_http_addresses": ours.lookupd_addresses, "admin_users": ("ada",)}
    forged = {"X-Forwarded-User": "ada"}
    with site(**options) as made:
        assert pause(client_of(made), forged, FAR) == 403
    with site(**options, trusted_proxies=("10.0.0.0/8",)) as made:
        assert pause(client_of(made), forged, FAR) == 502
        assert pause(client_of(made), forged) == 403
    with site(**options, acl_http_header="X-User", trusted_proxies=("127.0.0.1",)) as made:
        assert pause(client_of(made), forged) == 403
        assert pause(client_of(made), {"X-User": "ada"}) == 502


def test_read_only(ours: Daemons) -> None:
    with site(lookupd_http_addresses=ours.lookupd_addresses, read_only=True) as made:
        client = client_of(made)
        assert pause(client) == 403
        assert client.put("/config/log_level", data="debug").status_code == 403
        assert client.get("/api/topics").status_code == 200


def test_passwords(ours: Daemons, tmp_path: Path) -> None:
    path = tmp_path / "passwords"
    path.write_text(f"# users\n\n{password_line('ada', 'ré:1')}\n{password_line('bob', 'b')}\n")
    options = {"lookupd_http_addresses": ours.lookupd_addresses, "password_file": str(path), "admin_users": ("ada",)}
    with site(**options) as made:
        client = client_of(made)
        for headers in ({}, basic("ada", "wrong"), basic("eve", "b"), {"X-Forwarded-User": "ada"}):
            answer = client.get("/api/topics", headers=headers)
            assert (answer.status_code, answer.headers["WWW-Authenticate"][:5]) == (401, "Basic")
        for wrong in ("Basic", "Basic !", "Basic YQ==", "Bearer x"):
            assert client.get("/api/topics", headers={"Authorization": wrong}).status_code == 401
        for _ in range(2):  # the second time without a hash
            assert client.get("/api/topics", headers=basic("bob", "b")).status_code == 200
        assert pause(client, basic("bob", "b")) == 403
        assert pause(client, basic("ada", "ré:1")) == 502
        assert client.get("/ping").data == b"OK"
        assert client.get("/config/password_file", headers=basic("ada", "ré:1")).status_code == 400


@pytest.fixture
def passwords(tmp_path: Path) -> dict[str, Any]:
    """Options with two users; there are no daemons, which these tests do not need."""
    path = tmp_path / "passwords"
    path.write_text(
        "".join(f"{user}:{generate_password_hash(user[0], 'pbkdf2:sha256:1')}\n" for user in ("ada", "bob"))
    )
    return {"nsqd_http_addresses": ("127.0.0.1:1",), "password_file": str(path), "history": False}


def status(client: Any, headers: dict[str, str] | None = None, address: str = "10.9.8.7") -> int:
    answer = client.get("/activity", headers=headers or {}, environ_overrides={"REMOTE_ADDR": address})
    return int(answer.status_code)


def test_a_request_without_a_password_costs_no_hash(passwords: dict[str, Any]) -> None:
    with site(**passwords) as made:
        client = client_of(made)
        for headers in ({}, {"Authorization": "Bearer x"}, basic("", "a")):
            assert [status(client, headers) for _ in range(100)] == [401] * 100
        # A hash would have used up a try, and been recorded.
        assert made.audit.recent() == []
        assert status(client, basic("ada", "a")) == 200


def test_after_a_right_password_a_cookie_is_enough(passwords: dict[str, Any]) -> None:
    with site(**passwords, admin_users=("ada",)) as made:
        client = client_of(made)
        answer = client.get("/activity", headers=basic("ada", "a"))
        (cookie,) = (each for each in answer.headers.getlist("Set-Cookie") if each.startswith("nsq_admin_session="))
        assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and f"Max-Age={SESSION_SECONDS}" in cookie
        assert pause(client) == 502  # it may try, because ada is an admin
        assert status(client, basic("bob", "wrong")) == 401  # a cookie is of its own user only
        assert pause(client, basic("bob", "b")) == 403
        other = client_of(made)
        for session in ("", "x", "AAAA", cookie.partition(";")[0].partition("=")[2][:-4]):
            other.set_cookie("nsq_admin_session", session)
            assert status(other) == 401


def test_a_session_ends_and_is_of_this_process_only(passwords: dict[str, Any]) -> None:
    now = [1000.0]
    with site(**passwords) as made, site(**passwords) as other:
        ours = Passwords(passwords["password_file"], made.core, lambda: now[0])
        session = ours.session("ada")
        assert ours.user_of(session) == "ada"
        assert Passwords(passwords["password_file"], other.core, lambda: now[0]).user_of(session) is None
        now[0] += SESSION_SECONDS
        assert ours.user_of(session) is None


def test_tries_are_limited_by_address_and_by_user() -> None:
    tries = Tries()

    def count(pairs: Iterable[tuple[str, str]], now: float = 0.0) -> int:
        """How many of these tries are allowed."""
        allowed = 0
        for address, user in pairs:
            with suppress(TooManyTries):
                tries.take(address, user, now)
                allowed += 1
        return allowed

    by_address, seconds = TRIES["address"]
    by_user, _ = TRIES["user"]
    assert count(("1.1.1.1", f"user{number}") for number in range(99)) == by_address
    assert count((f"2.2.2.{number}", "ada") for number in range(99)) == by_user
    assert count((f"2.2.3.{number}", "bob") for number in range(5)) == 5
    assert count(("1.1.1.1", f"user{number}") for number in range(200, 299)) == 0
    assert count((("1.1.1.1", "eve") for _ in range(9)), now=2 * seconds) == 2
    tries.give_back("1.1.1.1", "eve")
    assert count((("1.1.1.1", "eve") for _ in range(9)), now=2 * seconds) == 1


def count_refusals(made: Site, headers: dict[str, str], address: str) -> int:
    """Guess until no more tries are allowed; how many passwords were looked at."""
    count = 0
    while (found := status(client_of(made), headers, address)) == 401:
        count += 1
    assert found == 429
    return count


def test_who_guesses_is_refused_recorded_and_keeps_nobody_out(
    passwords: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    most, _ = TRIES["address"]
    with site(**passwords) as made:
        client = client_of(made)
        assert status(client, basic("ada", "a"), "10.0.0.1") == 200
        tried = count_refusals(made, basic("ada", "x"), "10.9.8.7")
        assert tried >= most
        # This password was right before, and is remembered; the cookie is known; and others are not counted with it.
        assert status(client_of(made), basic("ada", "a")) == 200
        assert status(client) == 200
        assert status(client_of(made), basic("bob", "b"), "10.0.0.2") == 200
        found = made.audit.recent()
        assert {(each["action"], each["user"], each["remote_ip"]) for each in found} == {("log_in", "ada", "10.9.8.7")}
        # Further tries without a look are not recorded one by one.
        assert [each["error"] for each in found] == ["too many tries", *["wrong password"] * tried]
        assert "log-in of 'ada' from 10.9.8.7 refused: wrong password" in caplog.text
        page = client.get("/activity").get_data(as_text=True)
        assert "log in" in page and "too many tries" in page


def test_a_trusted_proxy_says_who_guesses(passwords: dict[str, Any]) -> None:
    most, _ = TRIES["address"]
    with site(**passwords) as made:
        wrong = basic("ada", "x") | {"X-Forwarded-For": "10.1.1.1, 10.1.1.2"}
        assert count_refusals(made, wrong, "127.0.0.1") >= most
        assert status(client_of(made), basic("ada", "a") | {"X-Forwarded-For": "10.1.1.1"}, "127.0.0.1") == 200
        for number in range(most):  # believed from a proxy only
            assert status(client_of(made), basic("bob", "x") | {"X-Forwarded-For": f"10.1.1.{number}"}) == 401
        assert count_refusals(made, basic("bob", "x") | {"X-Forwarded-For": "10.1.1.99"}, "10.9.8.7") < most


@pytest.mark.parametrize("line", ["ada", "ada:plain", ":scrypt:x"])
def test_a_wrong_password_file(tmp_path: Path, line: str) -> None:
    path = tmp_path / "passwords"
    path.write_text(line)
    with (
        pytest.raises(InvalidOption, match="line 1"),
        site(nsqd_http_addresses=("h:1",), password_file=str(path)),
    ):
        pass


@pytest.mark.parametrize(
    ("host", "is_right"),
    [
        ("127.0.0.1:4171", True),
        ("localhost", True),
        ("[::1]:80", True),
        ("10.1.2.3", True),
        ("admin.example.com", True),
        ("a.nsq.test:80", True),
        ("evil.example.com", False),
        ("nsq.test.evil.com", False),
        ("", False),
        ("a b", False),
        ("localhost:x", False),
    ],
)
def test_the_host_must_be_ours(host: str, is_right: bool) -> None:
    with site(nsqd_http_addresses=("127.0.0.1:1",), allowed_hosts=("admin.example.com", ".nsq.test")) as made:
        answer = client_of(made).get("/ping", headers={"Host": host})
        assert answer.status_code == (200 if is_right else 421)


@pytest.mark.parametrize(
    ("headers", "is_right"),
    [
        ({}, True),
        ({"Origin": "http://localhost"}, True),
        ({"Origin": "https://localhost"}, True),
        ({"Origin": "http://localhost", "Sec-Fetch-Site": "same-origin"}, True),
        ({"Sec-Fetch-Site": "none"}, True),
        ({"Origin": "https://nsq.example.com"}, True),
        ({"Origin": "http://evil.example.com"}, False),
        ({"Origin": "http://localhost:81"}, False),
        ({"Origin": "null"}, False),
        ({"Origin": "http://localhost.evil.com"}, False),
        ({"Origin": "http://["}, False),
        ({"Sec-Fetch-Site": "cross-site"}, False),
        ({"Sec-Fetch-Site": "same-site"}, False),
        ({"Origin": "http://localhost", "Sec-Fetch-Site": "cross-site"}, False),
    ],
)
def test_a_change_must_come_from_this_site(ours: Daemons, headers: dict[str, str], is_right: bool) -> None:
    hosts = ("nsq.example.com",)
    with site(lookupd_http_addresses=ours.lookupd_addresses, allowed_hosts=hosts) as made:
        client = client_of(made)
        assert pause(client, headers) == (502 if is_right else 403)
        assert client.delete("/api/topics/nope", headers=headers).status_code == (502 if is_right else 403)
        assert client.get("/api/topics", headers=headers).status_code == 200


def test_a_script_written_for_nsqadmin_goes_on(ours: Daemons) -> None:
    """curl -d sends JSON as a form, and nsqadmin reads it."""
    with running_admin(lookupd_http_addresses=ours.lookupd_addresses) as admin:
        form = {"Content_Type": "application/x-www-form-urlencoded", "User_Agent": "curl/8"}
        assert admin.ask("POST", "/api/topics", {"topic": "made"}, **form) == (200, {"message": ""})
        assert admin.get("/api/topics")["topics"] == ["made"]


def test_config_is_for_some_networks_only() -> None:
    with site(nsqd_http_addresses=("127.0.0.1:1",)) as made:
        client = client_of(made)
        assert client.get("/config/base_path").data == b"/"
        answer = client.get("/config/base_path", environ_overrides=FAR)
        assert (answer.status_code, answer.get_json()) == (403, {"message": "FORBIDDEN"})
        assert client.get("/config/base_path", environ_overrides={"REMOTE_ADDR": ""}).status_code == 400
    with site(nsqd_http_addresses=("127.0.0.1:1",), allow_config_from_cidr="") as made:
        assert client_of(made).get("/config/base_path", environ_overrides=FAR).status_code == 200


def test_networks() -> None:
    networks = [read_network("o", "127.0.0.1/8"), read_network("o", "fd00::/8")]
    assert (
        is_within("127.9.9.9", networks) and is_within("::ffff:127.0.0.1", networks) and is_within("fd00::1", networks)
    )
    assert not is_within("10.0.0.1", networks) and not is_within("junk", networks) and not is_within("", networks)
    with pytest.raises(InvalidOption):
        read_network("o", "nonsense")


def test_a_changed_password_file_is_read_again(ours: Daemons, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "passwords"
    path.write_text(f"{password_line('ada', 'old')}\n{password_line('bob', 'b')}\n")
    with site(lookupd_http_addresses=ours.lookupd_addresses, password_file=str(path)) as made:
        client = client_of(made)

        def status(user: str, password: str) -> int:
            return int(client_of(made).get("/api/topics", headers=basic(user, password)).status_code)

        assert (status("ada", "old"), status("bob", "b")) == (200, 200)
        client.get("/api/topics", headers=basic("ada", "old"))  # has a cookie now
        path.write_text(f"{password_line('ada', 'new')}\n{password_line('bob', 'b')}\n")
        assert (status("ada", "old"), status("ada", "new"), status("bob", "b")) == (401, 200, 200)
        assert client.get("/api/topics").status_code == 401
        path.write_text("nonsense\n")
        assert status("ada", "new") == 200
        assert "the users stay as they were" in caplog.text
        path.write_text(f"{password_line('bob', 'b')}\n")
        assert (status("ada", "new"), status("bob", "b")) == (401, 200)


def test_an_audit_log_that_cannot_be_written_is_an_error_at_the_start(ours: Daemons, tmp_path: Path) -> None:
    with (
        pytest.raises(InvalidOption, match="audit_log"),
        site(lookupd_http_addresses=ours.lookupd_addresses, audit_log=str(tmp_path / "nowhere" / "audit")),
    ):
        pass


def test_passwords_in_addresses_are_shown_nowhere(ours: Daemons, caplog: pytest.LogCaptureFixture) -> None:
    with scripted(always(response("no", "401 Unauthorized"))) as refusing:
        lookupds = tuple(f"http://ada:S3CRET@{each}" for each in (*ours.lookupd_addresses, refusing.address))
        nsqds = tuple(f"ada:S3CRET@{each.http_address}" for each in ours.nsqds)
        options: dict[str, Any] = {
            "clusters": {"fixed": tuple(f"nsqd:{each}" for each in (*nsqds, f"ada:S3CRET@{refusing.address}"))},
            "notification_http_endpoint": f"http://ada:S3CRET@{refusing.address}/S3CRET",
        }
        with site(lookupd_http_addresses=lookupds, read_only=True, **options) as made:
            client = client_of(made)
            for rule in client.application.url_map.iter_rules():
                if "GET" not in rule.methods or "static" in rule.endpoint:
                    continue
                filled = {"topic": "t", "channel": "c", "name": "log_level", "node": ours.nsqds[0].http_address}
                path = rule.build({each: filled.get(each, "x") for each in rule.arguments}, append_unknown=False)[1]
                for cluster in ("", "fixed"):
                    reply = client.get(path, query_string={"cluster": cluster} if cluster else {})
                    assert "S3CRET" not in reply.get_data(as_text=True), path
            for name in AdminOptions.__dataclass_fields__:
                assert "S3CRET" not in client.get(f"/config/{name}").get_data(as_text=True), name
            lookups = client.get("/config/nsqlookupd_http_addresses").get_json()
            assert lookups == [f"http://{each}" for each in (*ours.lookupd_addresses, refusing.address)]
            assert "/nodes" in {rule.rule for rule in client.application.url_map.iter_rules()}
        assert any("authorization" in each.headers for each in refusing.asked)
    assert "S3CRET" not in caplog.text
    with pytest.raises(InvalidOption) as caught:
        AdminOptions(lookupd_http_addresses=lookupds, nsqd_http_addresses=nsqds)
    assert "S3CRET" not in str(caught.value)


def test_the_audit_log_and_the_notification(ours: Daemons, tmp_path: Path) -> None:
    audit = tmp_path / "audit"
    with scripted(always(response())) as endpoint:
        options: dict[str, Any] = {
            "lookupd_http_addresses": ours.lookupd_addresses,
            "audit_log": str(audit),
            "notification_http_endpoint": f"http://{endpoint.address}/hook?key=1",
        }
        with site(**options) as made:
            client = client_of(made)
            user = {"X-Forwarded-User": "ada", "User-Agent": "test/1"}
            client.post("/api/topics", json={"topic": "t", "channel": "c"}, headers=user)
            pause(client, user)
            client.post("/api/topics", json={"topic": "u#ephemeral"})
            client.delete("/api/topics/u%23ephemeral?x=%23")
            client.delete("/api/topics/t/c", headers=basic("unchecked", ""))
            wait_for(lambda: len(endpoint.asked) == 6, "the notifications")
    sent = [json.loads(each.body) for each in endpoint.asked]
    ephemeral = sent.pop(4)
    assert ephemeral["url"] == "http://localhost/api/topics/u%23ephemeral?x=%23"
    assert sent.pop(3)["topic"] == ephemeral["topic"] == "u#ephemeral"
    assert {each.line for each in endpoint.asked} == {"POST /hook?key=1 HTTP/1.1"}
    assert endpoint.asked[0].headers["content-type"] == "application/json"
    assert [each["action"] for each in sent] == ["create_topic", "create_channel", "pause_topic", "delete_channel"]
    created = sent[1]
    assert {*created} == {
        *("action", "topic", "channel", "timestamp", "user", "remote_ip", "user_agent", "url", "via"),
    }
    assert (created["topic"], created["channel"], created["user"], created["user_agent"]) == ("t", "c", "ada", "test/1")
    assert created["url"] == "http://localhost/api/topics"
    assert "channel" not in sent[0] and "node" not in sent[0]
    assert sent[3]["user"] == "unchecked"
    entries = [json.loads(line) for line in audit.read_text().splitlines() if "#ephemeral" not in line]
    # nsqlookupd knows the channel, and no node has it.
    assert [(each["action"], each["result"]) for each in entries] == [
        ("create_channel", "ok"),
        ("pause_topic", "failed"),
        ("delete_channel", "ok"),
    ]
    assert "user" not in entries[2]
    assert made.audit.recent()[0]["action"] == "delete_channel"


def test_an_endpoint_that_fails_stops_nothing(ours: Daemons) -> None:
    def answer(asked: Asked) -> bytes:
        return response(b"", "500 Oops") if b'"first"' in asked.body else response()

    with scripted(always(answer)) as endpoint:
        url = f"http://{endpoint.address}"
        with site(lookupd_http_addresses=ours.lookupd_addresses, notification_http_endpoint=url) as made:
            for topic in ("first", "second"):
                assert client_of(made).post("/api/topics", json={"topic": topic}).status_code == 200
            wait_for(lambda: len(endpoint.asked) == 2, "the notifications")


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({}, "--nsqd-http-address or --lookupd-http-address required"),
        ({"nsqd_http_addresses": ("h:1",), "lookupd_http_addresses": ("h:2",)}, "not both"),
        ({"nsqd_http_addresses": ("h:1",), "http_client_tls_cert": "x"}, "--http-client-tls-key must be specified"),
        ({"nsqd_http_addresses": ("h:1",), "http_client_tls_key": "x"}, "--http-client-tls-cert must be specified"),
        ({"nsqd_http_addresses": ("h:1",), "allow_config_from_cidr": "x"}, "such as 10.0.0.0/8"),
        ({"nsqd_http_addresses": ("h:1",), "trusted_proxies": ("x",)}, "such as 10.0.0.0/8"),
        ({"nsqd_http_addresses": ("h:1",), "base_path": '/"x'}, "plain path"),
        ({"nsqd_http_addresses": ("h:1",), "log_level": "loud"}, "one of debug"),
        ({"nsqd_http_addresses": ("h:1",), "http_client_request_timeout": 0.0}, "above 0"),
        ({"nsqd_http_addresses": ("h:1",), "notification_http_endpoint": "ftp://x"}, "http://"),
        ({"clusters": {"a/b": ("h:1",)}}, "letters"),
        ({"clusters": {"a": ("nsqd:h:1", "h:2")}}, "nsqlookupds, or of nsqds"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], part: str) -> None:
    with pytest.raises(ValueError, match=part):
        AdminOptions(**options)


def test_a_base_path(ours: Daemons) -> None:
    assert AdminOptions(nsqd_http_addresses=("h:1",), base_path="nsq/x/").base_path == "/nsq/x"
    with site(lookupd_http_addresses=ours.lookupd_addresses, base_path="/nsq/") as made:
        client = client_of(made)
        assert client.get("/nsq/api/topics").get_json() == {"topics": None, "message": ""}
        assert client.get("/nsq/ping").status_code == 200
        assert client.get("/api/topics").status_code == 404


def test_further_clusters(ours: Daemons) -> None:
    raw.post(ours.nsqd_addresses[1], "/topic/create?topic=second")
    clusters = {"other": (f"nsqd:{ours.nsqd_addresses[1]}",)}
    with site(nsqd_http_addresses=ours.nsqd_addresses[:1], clusters=clusters) as made:
        client = client_of(made)
        assert client.get("/api/topics").get_json()["topics"] is None
        assert client.get("/clusters/other/api/topics").get_json()["topics"] == ["second"]
        assert client.get("/clusters/nope/api/topics").status_code == 404
