"""Addresses: valid ones are parsed and written back unchanged; all others are refused with a reason."""

import string
from ipaddress import IPv4Address, IPv6Address
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gnsq_like.addresses import Address, check_base_urls, join_host_port, parse_address, parse_addresses, parse_base_url
from gnsq_like.errors import InvalidAddress

ports = st.integers(1, 65535)
names = st.from_regex(r"[a-z0-9]([a-z0-9_-]{0,20}[a-z0-9])?(\.[a-z0-9]{1,10}){0,3}\.?", fullmatch=True)
v4 = st.ip_addresses(v=4).map(str)
v6 = st.ip_addresses(v=6).map(str)


@given(st.one_of(names, v4, v6), ports)
def test_host_and_port_come_back(host: str, port: int) -> None:
    address = parse_address(join_host_port(host, port))
    assert address == Address(host, port)
    assert parse_address(str(address)) == address


@given(v6, ports)
def test_ipv6_stands_in_brackets(host: str, port: int) -> None:
    assert str(Address(host, port)) == f"[{host}]:{port}"
    with pytest.raises(InvalidAddress, match="brackets"):
        parse_address(f"{host}:{port}")


@pytest.mark.parametrize("path", ["/run/nsqd.sock", "./nsqd", "run/nsqd", "nsqd.sock"])
def test_a_path_needs_no_prefix(path: str) -> None:
    assert parse_address(path) == parse_address(path, to_listen=True) == Address("", 0, path)


@given(st.text(min_size=1).filter(lambda path: "\0" not in path))
def test_unix_paths_come_back(path: str) -> None:
    address = parse_address(f"unix:{path}")
    assert address == Address("", 0, path)
    assert str(address) == f"unix:{path}"


@given(st.text(alphabet=string.printable, max_size=40))
def test_any_text_is_an_address_or_refused(text: str) -> None:
    try:
        address = parse_address(text)
    except InvalidAddress as exc:
        assert repr(text) in str(exc)
        return
    assert parse_address(str(address)) == address
    assert address.path or 1 <= address.port <= 65535


@given(names, st.one_of(st.integers(max_value=0), st.integers(min_value=65536)))
def test_ports_out_of_range_are_refused(host: str, port: int) -> None:
    with pytest.raises(InvalidAddress):
        parse_address(f"{host}:{port}")


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("", "missing"),
        ("localhost", "missing"),
        (":4150", "missing"),
        ("localhost:", "port"),
        ("localhost:http", "port"),
        ("localhost:\u0664\u0661\u0665\u0660", "port"),
        ("localhost:+4150", "port"),
        ("localhost: 4150", "port"),
        ("localhost:4150\n", "port"),
        ("http://localhost:4150", "no scheme"),
        ("tcp://[::1]:4150", "no scheme"),
        ("[localhost]:4150", "only an IPv6"),
        ("[::1]", "brackets"),
        ("::1:4150", "brackets"),
        (" localhost:4150", "invalid host name"),
        ("user@localhost:4150", "invalid host name"),
        ("localhost/path:4150", "invalid host name"),
        ("unix:", "path is missing"),
        (4150, "type int"),
        (None, "type NoneType"),
        (b"localhost:4150", "type bytes"),
        ("one:4150,two:4150", "must be a list"),
    ],
)
def test_what_is_refused_and_why(given: Any, reason: str) -> None:
    with pytest.raises(InvalidAddress, match=reason) as caught:
        parse_address(given)
    assert caught.value.address == given
    assert "host:port" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:0", Address("127.0.0.1", 0)),
        ("[::1]:80", Address("::1", 80)),
        (":4150", Address("", 4150)),
        (":0", Address("", 0)),
        ("unix:/a b", Address("", 0, "/a b")),
    ],
)
def test_to_listen_the_host_may_be_empty_and_the_port_0(text: str, address: Address) -> None:
    assert parse_address(text, to_listen=True) == address


@pytest.mark.parametrize(
    "text", ["", "host", "host:", "host:x", "host:-1", "host:65536", "::1:80", "[]:80", "unix:", "host:²", "a/b:80"]
)
def test_what_cannot_be_listened_on(text: str) -> None:
    with pytest.raises(InvalidAddress):
        parse_address(text, to_listen=True)


@given(st.lists(st.tuples(v4, ports), max_size=10))
def test_several_come_each_once_in_their_order(pairs: list[tuple[str, int]]) -> None:
    texts = [join_host_port(*pair) for pair in pairs]
    assert parse_addresses(texts) == tuple(dict.fromkeys(Address(*pair) for pair in pairs))
    assert parse_addresses(iter(texts)) == parse_addresses(texts)


@pytest.mark.parametrize("given", [None, 4150, b"localhost:4150"])
def test_what_is_neither_one_nor_several_is_shown_whole(given: Any) -> None:
    with pytest.raises(InvalidAddress, match=f"of type {type(given).__name__}") as caught:
        parse_addresses(given)
    assert caught.value.address == given


def test_one_may_stand_alone() -> None:
    assert parse_addresses("[::1]:4150") == (Address("::1", 4150),)
    assert parse_addresses(()) == ()


@given(st.one_of(v4.map(IPv4Address), v6.map(IPv6Address)), ports)
def test_addresses_sort_and_hash(ip: IPv4Address | IPv6Address, port: int) -> None:
    address = Address(str(ip), port)
    assume(port > 1)
    assert address != Address(str(ip), port - 1)
    assert len({address, parse_address(str(address))}) == 1


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
    assert parse_base_url(address) == (url, None)


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
    assert parse_base_url(address) == ("http://host:1", authorization)


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
def test_what_is_no_address_of_an_http_api_is_refused(address: str) -> None:
    with pytest.raises(InvalidAddress) as caught:
        parse_base_url(address)
    assert caught.value.address == address
    assert str(caught.value).endswith('write "host:port", "[ipv6]:port" or "http(s)://host:port/path"')


@pytest.mark.parametrize("address", [None, b"host:1", 4161, ("host", 4161)])
def test_an_address_of_an_http_api_that_is_no_text_is_refused(address: object) -> None:
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
        check_base_urls(given)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("pair", [("127.0.0.1", 4150), ["127.0.0.1", 4150]])
def test_a_pair_of_host_and_port_is_answered_with_how_to_write_it(pair: Any) -> None:
    with pytest.raises(InvalidAddress, match=r'a host and its port are one string; write "127\.0\.0\.1:4150"$'):
        parse_addresses(pair)
    with pytest.raises(InvalidAddress, match="a host and its port are one string"):
        check_base_urls(pair)
