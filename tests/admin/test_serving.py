"""The admin as a server of its own: HTTPS."""

from __future__ import annotations

import re
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from gnsq_like.admin import AdminOptions, AdminServer
from gnsq_like.errors import InvalidOption
from tests.support.certificates import client_context, write_certificate
from tests.support.daemons import Running, running_nsqd
from tests.support.tools import fill, running_tool

NSQDS = ("127.0.0.1:1",)


@pytest.fixture
def nsqd() -> Iterator[Running]:
    with running_nsqd("process") as nsqd:
        fill(nsqd, "clicks", [b"1"], "archive")
        yield nsqd


@pytest.mark.commands
def test_pages_and_forms_over_tls(nsqd: Running, tmp_path: Path) -> None:
    cert, key = write_certificate(tmp_path)
    flags = ["--http-address=127.0.0.1:0", "--https-address=127.0.0.1:0", f"--tls-cert={cert}", f"--tls-key={key}"]
    with running_tool("admin", *flags, f"--nsqd-http-address={nsqd.http_address}") as admin:
        admin.wait_for_line(r"open https://.*\n")
        urls = dict(re.findall(r"open (https?)://(\S+?)/\n", admin.err))
        opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=client_context()))
        for scheme, address in urls.items():
            with opener.open(f"{scheme}://{address}/topics/clicks") as answer:
                page, cookie = answer.read().decode(), answer.headers["Set-Cookie"]
            assert ("Secure" in cookie) == (scheme == "https")
            [token] = set(re.findall(r'name="token" value="([^"]+)"', page))
            form = {"token": token, "action": "pause_channel", "topic": "clicks", "channel": "archive"}
            headers = {"Cookie": cookie.partition(";")[0], "Origin": f"{scheme}://{address}"}
            request = urllib.request.Request(
                f"{scheme}://{address}/act", urllib.parse.urlencode(form).encode(), headers
            )
            with opener.open(request) as answer:  # follows to the page of the channel
                assert answer.status == 200
                assert answer.url.startswith(f"{scheme}://{address}/")
        assert sorted(urls) == ["http", "https"]
        assert admin.end() == 0


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"https_address": "127.0.0.1:0"}, "needs --tls-cert"),
        ({"tls_cert": "c", "tls_key": "k"}, "needs --tls-cert"),
        ({"https_address": "127.0.0.1:0", "tls_cert": "c"}, "--tls-key must be specified with --tls-cert"),
        ({"https_address": "nowhere", "tls_cert": "c", "tls_key": "k"}, "nowhere"),
    ],
)
def test_wrong_options(given: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        AdminOptions(nsqd_http_addresses=NSQDS, **given)  # type: ignore[arg-type]


def test_a_certificate_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "cert.pem").write_text("no certificate")
    path = str(tmp_path / "cert.pem")
    options = AdminOptions(nsqd_http_addresses=NSQDS, https_address="127.0.0.1:0", tls_cert=path, tls_key=path)
    with pytest.raises(InvalidOption, match=r"cert\.pem"):
        AdminServer(options)
