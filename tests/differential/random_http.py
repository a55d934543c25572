"""Random HTTP requests for nsqd and nsqlookupd: mostly sensible, often odd, sometimes broken.

What NSQ's daemons and ours answer differently on purpose is not generated: requests whose body breaks off where NSQ's
executes them all the same, and chunks whose lines end in a bare LF (docs/internals 3.1); null for a list in /config,
which NSQ's shows as null from then on.
"""

from __future__ import annotations

import struct
from random import Random
from typing import NamedTuple
from urllib.parse import quote


class Route(NamedTuple):
    method: str
    path: str
    parameters: tuple[str, ...] = ()
    #: Whether NSQ's reads the body before it does anything.
    reads_body: bool = False
    #: Whether the bodies of responses can be compared.
    has_stable_response: bool = True


NSQD = [
    Route("POST", "/pub", ("topic", "defer"), True),
    Route("POST", "/pub", ("topic",), True),
    Route("POST", "/mpub", ("topic", "binary")),
    Route("POST", "/mpub", ("topic",)),
    Route("POST", "/topic/create", ("topic",)),
    Route("POST", "/channel/create", ("topic", "channel"), True),
    *(Route("POST", f"/topic/{verb}", ("topic",), True) for verb in ("delete", "empty", "pause", "unpause")),
    *(
        Route("POST", f"/channel/{verb}", ("topic", "channel"), True)
        for verb in ("delete", "empty", "pause", "unpause")
    ),
    Route("GET", "/ping"),
    Route("GET", "/info", has_stable_response=False),
    Route("GET", "/stats", ("format", "topic", "channel", "include_clients"), True, False),
    *(Route("GET", f"/config/{name}") for name in ("max_msg_size", "msg_timeout", "nsqlookupd_tcp_addresses", "nope")),
    Route("PUT", "/config/nsqlookupd_tcp_addresses", (), True),
    Route("PUT", "/config/log_level", (), True),
    Route("PUT", "/config/msg_timeout", (), True),
    Route("GET", "/nope"),
]
NSQLOOKUPD = [
    *(Route("POST", f"/topic/{verb}", ("topic",), True) for verb in ("create", "delete")),
    *(Route("POST", f"/channel/{verb}", ("topic", "channel"), True) for verb in ("create", "delete")),
    Route("POST", "/topic/tombstone", ("topic", "node"), True),
    *(Route("GET", path) for path in ("/ping", "/info", "/topics", "/nodes", "/debug", "/nope")),
    Route("GET", "/lookup", ("topic",), True),
    Route("GET", "/channels", ("topic",), True),
]

_NAMES = ["a", "b", "c", "d.e", "f_g-h", "x" * 64, "e#ephemeral"]
_BAD_NAMES = ["", "x" * 65, "two words", "é", "a#b", "a/b", "a\n", "#ephemeral", "\0"]
_VALUES = {
    "defer": ["0", "3600000", "3600001", "-1", "+7", "x", "", "1.5", "1_0", "99999999999999999999"],
    "binary": ["true", "false", "1", "0", "", "yes"],
    "format": ["json", "text", ""],
    "include_clients": ["true", "false", "x"],
    "node": ["h:1", "", "127.0.0.1:4151"],
}
_ODD_PAIRS = ["%zz", "a=%4", "topic", "=x", "a;b=c", "a=b=c", "+", "", "to%70ic=a", "unknown=1", "%00=%ff"]
_ODD_METHODS = ["GET", "POST", "PUT", "HEAD", "OPTIONS", "DELETE", "PATCH", "TRACE", "get", "P!ST"]
_BAD_VERSIONS = ["HTTP/2.0", "HTTP/0.9", "http/1.1", "HTTP/1", "HTTP/1.10", "HTTP/1.1 ", "", "HTTP/x.1", "HTTP/3.1"]
_FIELDS = [
    "X-A: b", "Accept: */*", "X-Empty:", "X-Folded: a\r\n b", "X-Tab:\tc", "User-Agent: é",
    "Connection: keep-alive", "Connection: Upgrade", "Cookie: a=b", "Content-Type: text/x", "X-Twice: 1\r\nX-Twice: 2",
    "x_y: z", "Trailer: X-A", "Upgrade: h2c",
]  # fmt: skip
_BAD_FIELDS = [
    "Content-Length: 0\r\nContent-Length: 1",
    "Content-Length: 1_0", "Content-Length: +3", "Content-Length: -3", "Content-Length: 3, 3",
    "Content-Length : 3", "Content-Length: 18446744073709551616", "Content-Length: 0x3",
    "Transfer-Encoding : chunked", "Transfer-Encoding: identity", "Transfer-Encoding: gzip, chunked",
    "Transfer-Encoding:", "Transfer-Encoding: xchunked",
    "Host: second", "No colon", " Leading: space", "A b: c", "X-Nul: \0", "X-Cr: a\rb", "X-Del: \x7f", "é: x",
    "Expect: x", "Expect: 100-continued", ": nameless", "Host:", "X: " + "y" * 3000,
]  # fmt: skip
_BAD_CHUNKS = [
    b"2\r\nxxx\r\n0\r\n\r\n",
    b"2\r\nx\r\n0\r\n\r\n",
    b"0x2\r\nxx\r\n0\r\n\r\n",
    b"+2\r\nxx\r\n0\r\n\r\n",
    b"2 ;x\r\nxx\r\n0\r\n\r\n",
    b" 2\r\nxx\r\n0\r\n\r\n",
    b"11111111111111111\r\nxx\r\n0\r\n\r\n",
    b"2\r\nxx\r\n0\r\nno colon\r\n\r\n",
    b"2\r\nxx\r\n0\r\n",
    b"2\r\nxx\r\n",
    b"2\r\nx",
    b"2",
    b"g\r\n",
]


class Exchange(NamedTuple):
    """Requests of one connection."""

    sent: bytes
    #: Those of the requests.
    methods: list[str]
    #: For each response, whether its body can be compared.
    stable: list[bool]
    #: Whether what the responses say about the end of the connection can be compared.
    has_stable_end: bool


def exchange(random: Random, routes: list[Route]) -> Exchange:
    """One to three requests; nothing follows one after which a daemon may end the connection at any moment."""
    made = []
    for _ in range(random.choice([1, 1, 1, 2, 3])):
        made.append(_request(random, routes))
        if made[-1].is_last:
            break
    return Exchange(
        b"".join(each.sent for each in made),
        [each.method for each in made],
        [each.is_stable for each in made],
        all(each.has_stable_end for each in made),
    )


class _Request(NamedTuple):
    sent: bytes
    method: str
    is_stable: bool
    has_stable_end: bool = True
    is_last: bool = False


def _request(random: Random, routes: list[Route]) -> _Request:
    route = random.choice(routes)
    method, path = route.method, route.path
    is_odd = random.random() < 0.15
    if is_odd and random.random() < 0.5:
        method = random.choice(_ODD_METHODS)
    elif is_odd:
        path = _odd_path(random, path)
    query = _query(random, route)
    target = f"{path}?{query}" if query else path
    if not is_odd and random.random() < 0.03:
        target = f"http://host:80{target}"
    version = random.choice(["HTTP/1.1"] * 9 + ["HTTP/1.0"])
    fields = random.sample(_FIELDS, random.choice([0, 0, 1, 2]))
    random.shuffle(fields)
    body = _body(random, route) if method != "GET" or random.random() < 0.1 else b""
    head = [f"{method} {target} {version}", *(["Host: x"] if random.random() < 0.97 else []), *fields]
    framed = _framed(random, head, body, version)
    choice = random.random() if method != "HEAD" else 1.0
    if choice < 0.12:
        return _spoilt(random, head, framed, method)
    if choice < 0.17 and route.reads_body and not is_odd and version == "HTTP/1.1":
        return _broken(random, head, body, method)
    if choice < 0.20 and route.reads_body and not is_odd:
        return _Request(
            _head([*framed[0], "Expect: 100-Continue"]) + framed[1], method, route.has_stable_response, False, True
        )
    return _Request(_head(framed[0], random) + framed[1], method, route.has_stable_response)


def _head(lines: list[str], random: Random | None = None) -> bytes:
    end = "\n" if random is not None and random.random() < 0.05 else "\r\n"
    return "".join(line + end for line in [*lines, ""]).encode("latin-1")


def _query(random: Random, route: Route) -> str:
    pairs = []
    for name in route.parameters:
        known = _VALUES.get(name) or (_NAMES if random.random() < 0.85 else _BAD_NAMES)
        if random.random() < 0.93:
            pairs.append(f"{name}={quote(random.choice(known))}")
    if random.random() < 0.1:
        pairs.insert(random.randint(0, len(pairs)), random.choice(_ODD_PAIRS))
    if pairs and random.random() < 0.05:
        pairs.append(random.choice(pairs))
    return "&".join(pairs)


def _odd_path(random: Random, path: str) -> str:
    at = random.randrange(len(path))
    return random.choice(
        [
            path + "/",
            path + "//",
            "/" + path,
            path.upper(),
            path.title(),
            path.replace("/", "//"),
            path.replace("/", "/./"),
            "/x/.." + path,
            "/.." + path,
            path + "/..",
            path + "x",
            path[:-1],
            path[:at] + f"%{ord(path[at]):02x}" + path[at + 1 :],
            path + "%",
            path[1:],
            "/",
            "//",
            "/é",
        ]
    )


def _body(random: Random, route: Route) -> bytes:
    if route.path.startswith("/config/") and random.random() < 0.8:
        return random.choice([b"[]", b"{}", b"nope", b"[1]", b'""', b"INFO", b"info ", b"[", b" [] "])
    size = random.choice([0, 1, 2, 10, 100])
    if random.random() < 0.4:
        bodies = [random.randbytes(random.choice([0, 1, 5])) for _ in range(random.randint(0, 4))]
        count = len(bodies) + random.choice([0, 0, 0, 1, -1])
        packed = struct.pack(">i", count) + b"".join(struct.pack(">i", len(each)) + each for each in bodies)
        return packed[: len(packed) - random.choice([0, 0, 0, 1])]
    return bytes(random.choice(b"ab\n\r\0") for _ in range(size))


def _framed(random: Random, head: list[str], body: bytes, version: str) -> tuple[list[str], bytes]:
    """The head with a length, and the body as it is sent."""
    if not body and random.random() < 0.5:
        return head, b""
    if version == "HTTP/1.1" and random.random() < 0.35:
        lines = [*head, random.choice(["Transfer-Encoding: chunked", "transfer-encoding:  CHUNKED"])]
        if random.random() < 0.2:
            lines.append("Content-Length: 3")
        return lines, _chunked(random, body)
    lines = [*head, f"Content-Length: {random.choice(['', '', '0'])}{len(body)}"]
    if random.random() < 0.05:
        lines.append(lines[-1])
    return lines, body


def _chunked(random: Random, body: bytes) -> bytes:
    sent, at = b"", 0
    while at < len(body):
        size = random.randint(1, len(body) - at)
        extension = random.choice(["", "", "", ";x", ';x="y;z"', " "])
        sent += f"{size:{random.choice(['x', 'X', '04x'])}}{extension}\r\n".encode() + body[at : at + size] + b"\r\n"
        at += size
    return sent + random.choice([b"0\r\n\r\n", b"0\r\n\r\n", b"000;x\r\n\r\n", b"0\r\nX-A: b\r\n\r\n"])


def _spoilt(random: Random, head: list[str], framed: tuple[list[str], bytes], method: str) -> _Request:
    """A request that is odd in its head, and mostly refused."""
    lines, body = framed
    choice = random.random()
    if choice < 0.2:
        lines = [lines[0].rpartition(" HTTP/")[0] + f" {random.choice(_BAD_VERSIONS)}", *lines[1:]]
    elif choice < 0.25:
        lines = [lines[0].replace(" ", random.choice(["  ", "\t", ""]), 1), *lines[1:]]
    elif choice < 0.35:
        whole = _head(lines)
        return _Request(whole[: random.randrange(1, len(whole) - 1)], method, False, False, True)
    else:
        bad = random.choice(_BAD_FIELDS)
        lines = [*lines]
        lines.insert(1 if bad.startswith(" ") else random.randint(1, len(lines)), bad)
    return _Request(_head(lines) + body, method, False, False, True)


def _broken(random: Random, head: list[str], body: bytes, method: str) -> _Request:
    """A request whose body is cut off or malformed."""
    if random.random() < 0.5:
        sent = _head([*head, "Transfer-Encoding: chunked"]) + random.choice(_BAD_CHUNKS)
    else:
        sent = _head([*head, f"Content-Length: {len(body) + random.choice([1, 100])}"]) + body
    return _Request(sent, method, True, False, True)
