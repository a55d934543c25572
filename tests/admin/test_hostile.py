"""Daemons that answer garbage, too much or never; names and bodies with scripts; files outside the static ones."""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from gnsq_like.cluster.rounds import IMPATIENT_SECONDS, Upstreams
from tests.support.admins import client_of, site
from tests.support.certificates import write_ca
from tests.support.daemons import running_nsqd, wait_for
from tests.support.patient import NsqdHTTPClient
from tests.support.scripted_http import Asked, Peer, Script, always, once, response, scripted

pytestmark = pytest.mark.commands

EVIL = "<script>alert('x')</script>"
PAGES = ["/topics", "/nodes", "/counter", "/lookup", "/activity", "/topics/t", "/topics/t/c", "/metrics", "/healthz"]

CLIENT = {
    **{"client_id": EVIL, "hostname": EVIL, "user_agent": '"><img src=x onerror=alert(1)>', "version": "V2"},
    **{"remote_address": "javascript:alert(1)", "connect_ts": 2**62, "ready_count": 1, "message_count": 1},
}
CHANNEL = {"channel_name": "c", "depth": 5, "backend_depth": 0, "clients": [CLIENT], "client_count": 1}
INFO = {"version": EVIL, "hostname": EVIL, "http_port": 1, "tcp_port": 1, "broadcast_address": "127.0.0.1"}


def nsqd(**stats: Any) -> Callable[[Asked], bytes]:
    """An nsqd with these stats."""

    def answer(asked: Asked) -> bytes:
        if "/info" in asked.line:
            _host, _, port = asked.headers["host"].partition(":")
            return response(json.dumps({**INFO, "http_port": int(port)}))
        topics = [{"topic_name": "t", "channels": [CHANNEL], "depth": 1, "message_count": 9}]
        producers = [{**CLIENT, "pub_counts": [{"topic": "t", "count": 4}]}]
        return response(
            json.dumps({"version": EVIL, "health": EVIL, "topics": topics, "producers": producers, **stats})
        )

    return answer


def test_text_of_daemons_is_text_on_every_page() -> None:
    names = [{"topic_name": EVIL, "channels": [{**CHANNEL, "channel_name": EVIL}], "depth": 1, "message_count": 1}]
    with ExitStack() as stack:
        fine, evil = (stack.enter_context(scripted(always(each))) for each in (nsqd(), nsqd(topics=names)))
        with site(nsqd_http_addresses=(fine.address, evil.address)) as made:
            client = client_of(made)
            pages = [path for path in PAGES if path not in ("/metrics", "/healthz")]
            for path in [*pages, f"/nodes/{fine.address}", f"/nodes/{evil.address}", f"/topics?q={EVIL}", f"/{EVIL}"]:
                page = client.get(path).text
                assert "<script>alert" not in page and "<img src=x" not in page, path
                assert not re.search(r'(?:href|src|action)="javascript:', page), path
            assert "&lt;script&gt;" in client.get("/topics").text
            api = client.get("/api/topics")
            assert EVIL in json.loads(api.text)["topics"]
            # No browser takes it for a page.
            assert api.headers["Content-Type"].startswith("application/json")
            assert api.headers["X-Content-Type-Options"] == "nosniff"


def test_a_text_of_megabytes_is_cut() -> None:
    long = "9" * 1_000_000
    with scripted(always(nsqd(version=long, health=long))) as peer:
        info = {**INFO, "version": long, "hostname": long}

        def answer(asked: Asked) -> bytes:
            if "/info" not in asked.line:
                return nsqd()(asked)
            return response(json.dumps({**info, "http_port": int(peer.address.rpartition(":")[2])}))

        with scripted(always(answer)) as other, site(nsqd_http_addresses=(other.address,)) as made:
            for path in PAGES:
                assert len(client_of(made).get(path).text) < 50_000, path


GARBAGE = {
    "not JSON": response("}{"),
    "a list": response("[]"),
    "topics of the wrong type": response('{"topics": "t"}'),
    "a depth that is text": response('{"topics": [{"topic_name": "t", "channels": [], "depth": "9"}]}'),
    "a depth beyond 64 bits": response(f'{{"topics": [{{"topic_name": "t", "channels": [], "depth": {10**30}}}]}}'),
    "a number of 5,000 digits": response('{"topics": [{"topic_name": "t", "depth": ' + "9" * 5000 + "}]}"),
    "half a surrogate": response('{"topics": [{"topic_name": "\\ud83d", "channels": [], "depth": 9}]}'),
    "no name": response('{"topics": [{"channels": []}]}'),
    "deep nesting": response("[" * 100_000),
    "a login page": response("<html>please log in</html>", "200 OK", "Content-Type: text/html"),
    "an error": response("oops", "500 Internal Server Error"),
    "a redirect elsewhere": response("", "302 Found", "Location: http://127.0.0.1:1/"),
    "no HTTP": b"SSH-2.0-OpenSSH\r\n\r\n",
    "nothing": b"",
    "half of it": b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{",
}


@pytest.mark.parametrize("answer", GARBAGE.values(), ids=GARBAGE)
def test_garbage_is_a_warning(answer: bytes) -> None:
    with ExitStack() as stack:
        bad, fine = (stack.enter_context(scripted(each)) for each in (once(answer), always(nsqd())))
        with site(nsqd_http_addresses=(bad.address, fine.address)) as made:
            client = client_of(made)
            for path in ("/topics", "/topics/t", "/topics/t/c"):
                answered = client.get(path)
                assert answered.status_code == 200, path
                assert "Incomplete." in answered.text and bad.address in answered.text, path
            topics = client.get("/api/topics").get_json()
            assert topics["topics"] == ["t"] and bad.address in topics["message"]
            assert bad.address in client.get("/nodes").text


@pytest.mark.parametrize("path", ["/topics/t", "/topics/t/c", "/api/topics/t", "/api/topics/t/c"])
def test_clients_that_are_garbage_are_a_warning(path: str) -> None:
    """Only some questions ask for clients."""
    garbage = [{"topic_name": "t", "channels": [{**CHANNEL, "clients": [{**CLIENT, "connect_ts": "now"}]}]}]
    with ExitStack() as stack:
        bad, fine = (stack.enter_context(scripted(always(each))) for each in (nsqd(topics=garbage), nsqd()))
        made = stack.enter_context(site(nsqd_http_addresses=(bad.address, fine.address)))
        answered = client_of(made).get(path)
        assert answered.status_code == 200
        assert bad.address in answered.text


def test_ten_megabytes_are_read_or_refused() -> None:
    many = [{"topic_name": f"t{number}", "channels": [], "note": "x" * 10_000} for number in range(1000)]
    with scripted(always(nsqd(topics=many))) as large, site(nsqd_http_addresses=(large.address,)) as made:
        assert len(client_of(made).get("/api/topics").get_json()["topics"]) == 1000

    def endless(peer: Peer) -> None:
        peer.request()
        peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            peer.send(b"10000\r\n" + b" " * 0x10000 + b"\r\n")

    with ExitStack() as stack:
        bad, fine = (stack.enter_context(scripted(each)) for each in (endless, always(nsqd())))
        with site(nsqd_http_addresses=(bad.address, fine.address)) as made:
            answered = client_of(made).get("/api/topics").get_json()
            assert answered["topics"] == ["t"] and "larger than" in answered["message"]


@pytest.mark.parametrize("script", [lambda peer: peer.hang(), lambda peer: peer.drip(b"HTTP/1.1 200 OK\r\n" * 1000)])
def test_a_daemon_that_never_answers_hangs_nothing(script: Script) -> None:
    with scripted(script) as silent, scripted(always(nsqd())) as fine:
        addresses = (silent.address, fine.address)
        with site(nsqd_http_addresses=addresses, http_client_request_timeout=2.0) as made:
            client = client_of(made)
            # On a busy machine, the other one may be late as well.
            wait_for(lambda: client.get("/api/topics").get_json()["topics"] == ["t"])
            page = wait_for(lambda: text if 'href="/topics/t"' in (text := client.get("/topics").text) else "")
            assert "Incomplete." in page and "no answer" in page and silent.address in page


def test_a_silent_daemon_is_asked_with_little_patience_until_it_answers() -> None:
    asked_with: list[float] = []
    answers = False

    def make(address: str, timeout: float) -> NsqdHTTPClient:
        asked_with.append(timeout)
        return NsqdHTTPClient(address, timeout)

    def script(peer: Peer) -> None:
        while peer.request():
            if not answers:
                peer.hang()
            peer.send(response("OK"))

    with scripted(script) as daemon:
        upstreams = Upstreams(make, 1.5)
        assert "no answer" in str(upstreams.ask([daemon.address], NsqdHTTPClient.ping).failures[daemon.address])
        assert asked_with == [1.5]
        assert upstreams.ask([daemon.address], NsqdHTTPClient.ping).failures
        assert asked_with == [1.5, IMPATIENT_SECONDS]
        answers = True
        # Its answer may come too late for so little patience, on a busy machine, and is asked for again.
        wait_for(lambda: upstreams.ask([daemon.address], NsqdHTTPClient.ping).answers == {daemon.address: "OK"})
        assert asked_with == [1.5, IMPATIENT_SECONDS]
        upstreams.close()


def test_all_are_asked_at_once() -> None:
    """Each answers when all have been asked."""
    arrived: list[Peer] = []

    def script(peer: Peer) -> None:
        peer.request()
        arrived.append(peer)
        deadline = time.monotonic() + 20
        while len(arrived) < 3 and time.monotonic() < deadline:
            peer.server.over.wait(0.01)
        peer.send(response("OK"))

    with scripted(script) as one, scripted(script) as two, scripted(script) as three:
        upstreams = Upstreams(NsqdHTTPClient, 20.0)
        found = upstreams.ask([one.address, two.address, three.address], NsqdHTTPClient.ping)
        assert len(found.answers) == 3 and found.warnings == []
        upstreams.close()


def test_nobody_answers() -> None:
    upstreams = Upstreams(NsqdHTTPClient, 5.0)
    found = upstreams.ask(["127.0.0.1:1"], NsqdHTTPClient.ping)
    with pytest.raises(match=r"^http://127\.0\.0\.1:1"):
        found.require_any("nsqd")


@pytest.mark.filterwarnings("ignore:Unverified HTTPS request")
def test_a_daemon_that_wants_https_gets_it(tmp_path: Path) -> None:
    with scripted(always(nsqd()), tls=True) as over_tls:
        refusal = response(json.dumps({"message": "TLS_REQUIRED", "https_port": over_tls.port}), "403 Forbidden")
        with scripted(always(refusal)) as plain:
            ca = write_ca(tmp_path)
            with site(nsqd_http_addresses=(plain.address,), http_client_tls_root_ca_file=ca, history=False) as made:
                for _ in range(2):
                    assert client_of(made).get("/api/topics").get_json() == {"topics": ["t"], "message": ""}
                # The second time it is asked over https at once.
                assert len(plain.asked) == 1
            with site(nsqd_http_addresses=(plain.address,)) as made:
                message = client_of(made).get("/api/topics").get_json()["message"]
                assert "certificate" in message
            with site(nsqd_http_addresses=(plain.address,), http_client_tls_insecure_skip_verify=True) as made:
                answer = client_of(made).get("/api/topics")
                assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    "path",
    [
        "/static/../web/app.py",
        "/static/..%2fapp.py",
        "/static/%2e%2e/app.py",
        "/static/....//app.py",
        "/static//etc/passwd",
        "/static/%00admin.css",
        "/static/admin.css%00.js",
        "/static/",
        "/fonts/../../../etc/passwd",
        "/static/..\\app.py",
    ],
)
def test_no_file_but_the_static_ones(path: str) -> None:
    with site(nsqd_http_addresses=("127.0.0.1:1",)) as made:
        answer = client_of(made).get(path)
        assert answer.status_code in (404, 308)
        assert "import" not in answer.text and "root:" not in answer.text


def test_bodies_that_are_too_large_or_no_object() -> None:
    with running_nsqd() as daemon, site(nsqd_http_addresses=(daemon.http_address,)) as made:
        client = client_of(made)
        assert client.post("/api/topics", data=b"x" * 9_000_000).status_code == 413
        assert client.post("/api/topics", data=b" " * 2_000_000).status_code == 413
        for body in (b"[]", b"5", b'"t"', b'{"topic": 5}', b"{", b"\xff\xfe", b"[" * 100_000):
            answer = client.post("/api/topics", data=body)
            assert answer.status_code == 400, body
            assert answer.get_json()["message"]
        assert client.get("/api/topics").get_json()["topics"] is None


def test_a_note_that_a_browser_made_up_is_text() -> None:
    note = base64.urlsafe_b64encode(json.dumps({"text": EVIL, "kind": '"><b>'}).encode()).decode()
    with site(nsqd_http_addresses=("127.0.0.1:1",)) as made:
        client = client_of(made)
        for value in (note, "junk", "W10=", "e30="):
            client.set_cookie("nsq_admin_note", value)
            page = client.get("/lookup").text
            assert "<script>alert" not in page and 'class="alert "><b>' not in page
