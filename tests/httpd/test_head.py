"""Heads of HTTP requests: what is taken, and what is refused with which status."""

import io

import pytest

from gnsq_like.httpd.head import MAX_HEAD_BYTES, BadRequest, Head, read_head


def head(data: bytes) -> Head:
    found = read_head(io.BytesIO(data).readline)
    assert found is not None
    return found


def get(*lines: bytes) -> Head:
    return head(b"\r\n".join([b"GET /ping?a=b?c HTTP/1.1", b"Host: x", *lines, b"", b""]))


def test_a_head_is_taken_apart() -> None:
    found = get(b"X-A:  one two ", b"x-a:3", b"Empty:")
    assert (found.method, found.target, found.path, found.query) == ("GET", "/ping?a=b?c", "/ping", "a=b?c")
    assert found.fields == [("host", "x"), ("x-a", "one two"), ("x-a", "3"), ("empty", "")]
    assert (found.minor_version, found.content_length, found.chunked) == (1, 0, False)
    assert not found.close and not found.expects_continue


@pytest.mark.parametrize(
    ("line", "values"),
    [
        (b"A: b\r\n c", "b c"),
        (b"A: b \r\n\t c \r\n d", "b c d"),
        (b"A:\r\n b", " b".strip()),
        (b"A: b\r\n  ", "b "),
        (b"A: b\n c", "b c"),
    ],
)
def test_folded_lines_are_joined(line: bytes, values: str) -> None:
    assert get(line).fields[1] == ("a", values)


def test_lines_may_end_in_a_bare_lf() -> None:
    assert head(b"GET / HTTP/1.1\nHost: x\nContent-Length: 4\n\n").content_length == 4


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        (b"/", "/", ""),
        (b"//a?", "//a", ""),
        (b"/a%20b", "/a%20b", ""),
        (b"*", "*", ""),
        (b"http://host:80/ping?x", "/ping", "x"),
        (b"http://user@[::1]:80", "", ""),
        (b"/\xe9", "/\xe9", ""),
    ],
)
def test_targets(target: bytes, path: str, query: str) -> None:
    found = head(b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % target)
    assert (found.path, found.query) == (path, query)


@pytest.mark.parametrize(
    "line",
    [
        b"GET /",
        b"GET  / HTTP/1.1",
        b"GET / HTTP/1.1 ",
        b" GET / HTTP/1.1",
        b"GET / http/1.1",
        b"GET / HTTP/1.10",
        b"GET / HTTP/1",
        b"G@T / HTTP/1.1",
        b"GET ping HTTP/1.1",
        b"GET ?a HTTP/1.1",
        b"GET /%6 HTTP/1.1",
        b"GET /%zz HTTP/1.1",
        b"GET /a\x01 HTTP/1.1",
        b"GET :x HTTP/1.1",
        b"GET mailto:x HTTP/1.1",
        b"CONNECT a b HTTP/1.1",
        b"\r",
    ],
)
def test_bad_request_lines(line: bytes) -> None:
    with pytest.raises(BadRequest) as refused:
        head(line + b"\r\nHost: x\r\n\r\n")
    assert refused.value.status_line == "400 Bad Request"


@pytest.mark.parametrize(
    ("line", "status_line"),
    [
        (b"Content-Length: +74", "400 Bad Request"),
        (b"Content-Length: 1_0", "400 Bad Request"),
        (b"Content-Length: -1", "400 Bad Request"),
        (b"Content-Length: 0x1", "400 Bad Request"),
        (b"Content-Length: 1 0", "400 Bad Request"),
        (b"Content-Length: 3, 3", "400 Bad Request"),
        (b"Content-Length: \xb2", "400 Bad Request"),
        (b"Content-Length: 9223372036854775808", "400 Bad Request"),
        (b"Content-Length: 3\r\nContent-Length: 4", "400 Bad Request"),
        (b"Content-Length: 3\r\nContent-Length: 03", "400 Bad Request"),
        (b"Content-Length : 3", "400 Bad Request: invalid header name"),
        (b"Transfer-Encoding : chunked", "400 Bad Request: invalid header name"),
        (b"Transfer-Encoding\t: chunked", "400 Bad Request"),
        (b"Transfer-Encoding: identity", "501 Not Implemented"),
        (b"Transfer-Encoding: gzip, chunked", "501 Not Implemented"),
        (b"Transfer-Encoding: chunked, chunked", "501 Not Implemented"),
        (b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", "501 Not Implemented"),
        (b"Transfer-Encoding: chunked\r\n ", "501 Not Implemented"),
        (b"Transfer-Encoding:", "501 Not Implemented"),
        (b"Host: y", "400 Bad Request"),
        (b"No colon", "400 Bad Request"),
        (b"A b: c", "400 Bad Request: invalid header name"),
        (b"A: b\0", "400 Bad Request"),
        (b"A: b\r", "400 Bad Request"),
        (b"Expect: 200-ok", "417 Expectation Failed"),
    ],
)
def test_bad_fields(line: bytes, status_line: str) -> None:
    with pytest.raises(BadRequest) as refused:
        get(line)
    assert refused.value.status_line == status_line


@pytest.mark.parametrize(
    ("data", "status_line"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "400 Bad Request: missing required Host header"),
        (b"GET / HTTP/1.0\r\nHost: a b\r\n\r\n", "400 Bad Request: malformed Host header"),
        (b"GET / HTTP/2.0\r\nHost: x\r\n\r\n", "505 HTTP Version Not Supported: unsupported protocol version"),
        (b"GET / HTTP/0.9\r\n\r\n", "505 HTTP Version Not Supported: unsupported protocol version"),
        (b"GET / HTTP/1.1\r\n Host: x\r\n\r\n", "400 Bad Request"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n", "400 Bad Request"),
        (b"GET / HTTP/1.1\r\nHost: x", "400 Bad Request"),
        (b"GET / HTT", "400 Bad Request"),
        (b"GET /" + b"x" * MAX_HEAD_BYTES, "431 Request Header Fields Too Large"),
        (b"GET / HTTP/1.1\r\nA: " + b"x" * MAX_HEAD_BYTES, "431 Request Header Fields Too Large"),
        (b"GET / HTTP/1.1\r\n" + b"A: x\r\n" * (MAX_HEAD_BYTES // 6), "431 Request Header Fields Too Large"),
    ],
)
def test_bad_heads(data: bytes, status_line: str) -> None:
    with pytest.raises(BadRequest) as refused:
        head(data)
    assert refused.value.status_line == status_line


def test_chunked_overrides_a_content_length() -> None:
    found = get(b"Content-Length: 5", b"Transfer-Encoding: Chunked")
    assert found.chunked and found.content_length == 0
    assert get(b"Content-Length: 5", b"Content-Length: 5").content_length == 5
    assert get(b"Content-Length:").content_length == 0


def test_http_1_0_knows_no_chunks_and_ends_the_connection() -> None:
    found = head(b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n")
    assert (found.minor_version, found.chunked, found.content_length, found.close) == (0, False, 5, True)
    assert not head(b"GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n").close
    assert head(b"GET / HTTP/1.0\r\nConnection: keep-alive, close\r\n\r\n").close


def test_the_client_may_end_the_connection_or_wait_for_100_continue() -> None:
    assert get(b"Connection: x, Close").close
    assert get(b"Connection: x", b"Connection: close").close
    assert not get(b"Connection: closed").close
    assert get(b"Expect: 100-Continue", b"Content-Length: 1").expects_continue
    assert not get(b"Expect: 100-continue").expects_continue


def test_line_breaks_after_a_post_are_skipped() -> None:
    data = b"\r\n\r\nGET / HTTP/1.0\r\n\r\n"
    found = read_head(io.BytesIO(data).readline, after_post=True)
    assert found is not None and found.method == "GET"
    with pytest.raises(BadRequest):
        read_head(io.BytesIO(data).readline)
    with pytest.raises(BadRequest):
        read_head(io.BytesIO(b"\n" * 5 + data).readline, after_post=True)
    assert read_head(io.BytesIO(b"").readline) is None
    assert read_head(io.BytesIO(b"\r\n").readline, after_post=True) is None
