"""The host in a Host header."""

from __future__ import annotations

import pytest

from gnsq_like.httpd.host_header import host_of, is_ip


@pytest.mark.parametrize(
    ("header", "host"),
    [
        ("Example.com:80", "example.com"),
        ("example.com.", "example.com"),
        ("127.0.0.1:4171", "127.0.0.1"),
        ("[::1]:4171", "::1"),
        ("", None),
        ("a b", None),
        ("[::1", None),
        ("example.com:port", None),
        ("user@example.com", None),
    ],
)
def test_the_host(header: str, host: str | None) -> None:
    assert host_of(header) == host


def test_addresses() -> None:
    assert is_ip("127.0.0.1") and is_ip("::1")
    assert not is_ip("localhost") and not is_ip("127.0.0")
