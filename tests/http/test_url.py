"""Addresses of HTTP APIs."""

from __future__ import annotations

from typing import Any

import pytest

from gnsq_like.errors import InvalidAddress
from gnsq_like.http.url import BaseURL, check_addresses, parse_base_url


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("127.0.0.1:4161", "http://127.0.0.1:4161"),
        ("lookup-1.example:4161", "http://lookup-1.example:4161"),
        ("[::1]:4161", "http://[::1]:4161"),
        ("http://127.0.0.1:4161", "http://127.0.0.1:4161"),
        ("HTTPS://host:4161/", "https://host:4161"),
        ("http://host:4161/nsq/lookup//", "http://host:4161/nsq/lookup"),
        ("http://host/nsq", "http://host:80/nsq"),
        ("https://host", "https://host:443"),
        ("https://[::1]", "https://[::1]:443"),
        ("http://[::1]:4161/a", "http://[::1]:4161/a"),
    ],
)
def test_an_address_becomes_a_url(address: str, url: str) -> None:
    assert parse_base_url(address) == BaseURL(url)


@pytest.mark.parametrize(
    ("address", "authorization"),
    [
        ("http://me:secret@host:1", "Basic bWU6c2VjcmV0"),
        ("me:secret@host:1", "Basic bWU6c2VjcmV0"),
        ("http://me@host:1", "Basic bWU6"),
        ("http://m%40e:s%2Fe%3Acret@host:1", "Basic bUBlOnMvZTpjcmV0"),
        ("http://me:s@cret@host:1", "Basic bWU6c0BjcmV0"),
    ],
)
def test_credentials_are_taken_out_of_it(address: str, authorization: str) -> None:
    base = parse_base_url(address)
    assert base.url == "http://host:1"
    assert base.authorization == authorization
    assert authorization not in repr(base)


@pytest.mark.parametrize(
    "address",
    [
        "",
        "host",
        "host:",
        ":4161",
        "host:0",
        "host:65536",
        "host:http",
        "::1:4161",
        "[::1]",
        "[host]:4161",
        "ftp://host:1",
        "unix:/run/nsqd.sock",
        "http://",
        "http://host:1/a?b=c",
        "http://host:1/a#b",
        "http://ho st:1",
        "host:1\n",
        "host:1\r\nX: y",
        "http://host\\:1",
    ],
)
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(InvalidAddress) as caught:
        parse_base_url(address)
    assert caught.value.address == address
    assert str(caught.value).endswith('write "host:port", "[ipv6]:port" or "http(s)://host:port/path"')


@pytest.mark.parametrize("address", [None, b"host:1", 4161, ("host", 4161)])
def test_what_is_no_text_is_refused(address: object) -> None:
    with pytest.raises(InvalidAddress, match="not str"):
        parse_base_url(address)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "address",
    [
        "http://me:secret@host:http",
        "me:secret@host",
        "ftp://me:secret@host:1",
        "http://me:secret@host:1/?x",
        "http://me:80/secret@host:1",
        "http://me:sec?ret@host:1",
        "http://me:secret@@",
        "me:secret@unix:/run/x",
    ],
)
def test_a_refusal_does_not_show_credentials(address: str) -> None:
    with pytest.raises(InvalidAddress) as caught:
        parse_base_url(address)
    assert "sec" not in f"{caught.value} {caught.value!r} {caught.value.__cause__!r} {caught.value.address}"
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.mark.parametrize("given", [None, 4161, b"http://me:secret@host:1"])
def test_what_is_neither_one_nor_several_addresses_is_refused_without_its_secret(given: Any) -> None:
    with pytest.raises(InvalidAddress, match=f"of type {type(given).__name__}") as caught:
        check_addresses(given)
    assert "secret" not in str(caught.value)
