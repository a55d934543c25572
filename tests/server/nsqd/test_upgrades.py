"""What IDENTIFY negotiates: TLS, snappy and deflate, to the byte, and TLS required (docs/internals 1.2, 1.3, 3.1)."""

import json
import ssl
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic

import gevent
import pytest
from gevent import socket

from gnsq_like.server.shared.tls import HANDSHAKE_TIMEOUT
from tests.support.certificates import (
    certificate,
    client_context,
    stranger,
    write_ca,
    write_certificate,
)
from tests.support.daemons import Kind, Process, Running, running_nsqd, wait_for
from tests.support.raw import ERROR, TIMEOUT, Client, channel_stats, get, post, sized, stats
from tests.support.upgraded import TLS, Deflate, Snappy, Split, negotiate, upgrade

#: More than one TLS record, and than one chunk of snappy.
BIG = bytes(range(256)) * 1024
NOT_TLS = b"E_IDENTIFY_FAILED IDENTIFY failed tls: first record does not look like a TLS handshake"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The options for an nsqd with a certificate."""
    cert, key = write_certificate(tmp_path_factory.mktemp("certificates"))
    return {"tls_cert": cert, "tls_key": key}


@pytest.fixture(scope="module")
def nsqd(kind: Kind, files: dict[str, str]) -> Iterator[Running]:
    with running_nsqd(kind, **files) as running:
        yield running


def https(address: str, target: str, context: ssl.SSLContext | None = None) -> bytes:
    """The whole response to a GET over TLS."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), TIMEOUT) as plain:
        sock = TLS(plain, context or client_context())
        sock.sendall(f"GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        answer = b""
        while piece := sock.recv(65536):
            answer += piece
        return answer


# -- the way up ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize(
    ("codec", "level"), [("", 6), ("snappy", 6), ("deflate", 1), ("deflate", 4), ("deflate", 6), ("deflate", 9)]
)
def test_32_commands_and_messages_go_through_what_was_negotiated(
    nsqd: Running, tls: bool, codec: str, level: int
) -> None:
    topic = f"t32.{tls}.{codec}.{level}"
    with Client(nsqd.tcp_address) as client:
        answer = upgrade(client, client_context() if tls else None, codec, level)
        assert [answer[name] for name in ("tls_v1", "snappy", "deflate")] == [
            tls,
            codec == "snappy",
            codec == "deflate",
        ]
        assert (answer["deflate_level"], answer["max_deflate_level"]) == (min(level, 6), 6)
        client.subscribe(topic)
        bodies = [b"a", BIG, b"c" * 100_000]
        client.publish(topic, *bodies)
        client.send(b"RDY 100\n")  # not before: NSQ's may deliver before it says OK
        messages = [client.message() for _ in bodies]
        assert [message.body for message in messages] == bodies
        (shown,) = channel_stats(nsqd.http_address, topic)["clients"]
        assert (shown["tls"], shown["snappy"], shown["deflate"]) == (tls, codec == "snappy", codec == "deflate")
        client.send(*[b"FIN %b\n" % message.id for message in messages])
        client.barrier()
    assert channel_stats(nsqd.http_address, topic)["in_flight_count"] == 0


def test_the_first_bytes_of_snappy_and_deflate(nsqd: Running) -> None:
    with Client(nsqd.tcp_address) as client:
        negotiate(client, snappy=True)
        ok = bytes.fromhex("ff060000734e61507059 010e0000 26982bcf 00000006 00000000 4f4b")
        assert client._bytes(len(ok)) == ok
    with Client(nsqd.tcp_address) as client:
        negotiate(client, deflate=True)
        data = unpacked = b""
        while len(unpacked) < 10 or not data.endswith(b"\x00\x00\xff\xff"):  # the end of a flush
            data += client.sock.recv(100)
            unpacked = zlib.decompressobj(-15).decompress(data)
        assert unpacked == b"\x00\x00\x00\x06\x00\x00\x00\x00OK"


@pytest.mark.parametrize(
    ("asked", "level"), [({"deflate_level": 0}, 6), ({"deflate_level": -3}, 6), ({"deflate_level": 99}, 6), ({}, 6)]
)
def test_a_deflate_level_is_never_refused(nsqd: Running, asked: dict[str, int], level: int) -> None:
    with Client(nsqd.tcp_address) as client:
        assert negotiate(client, deflate=True, **asked)["deflate_level"] == level


def test_the_level_is_capped_also_where_deflate_is_not_asked_for(kind: Kind) -> None:
    with running_nsqd(kind, max_deflate_level=3) as nsqd:
        for wanted, level in (({}, 3), ({"deflate": True, "deflate_level": 2}, 2), ({"deflate_level": 2}, 3)):
            with Client(nsqd.tcp_address) as client:
                answer = negotiate(client, **wanted)
                assert (answer["deflate_level"], answer["max_deflate_level"]) == (level, 3)
        assert get(nsqd.http_address, "/info").json()["max_deflate_level"] == 3


def test_31_both_codecs_are_fatal(nsqd: Running) -> None:
    with Client(nsqd.tcp_address) as client:
        client.send(b"IDENTIFY\n", sized(b'{"feature_negotiation":true,"snappy":true,"deflate":true}'))
        client.expect_fatal(b"E_IDENTIFY_FAILED cannot enable both deflate and snappy compression")


def test_without_negotiation_nothing_is_upgraded(nsqd: Running) -> None:
    with Client(nsqd.tcp_address) as client:
        client.identify(tls_v1=True, snappy=True)
        client.barrier()


@pytest.mark.parametrize("codec", ["", "snappy", "deflate"])
@pytest.mark.parametrize("tls", [False, True])
def test_bytes_one_by_one(nsqd: Running, tls: bool, codec: str) -> None:
    topic = f"split.{tls}.{codec}"
    with Client(nsqd.tcp_address) as client:
        client.sock = Split(client.sock)
        upgrade(client, client_context() if tls else None, codec)
        client.subscribe(topic, rdy=1)
        client.publish(topic, b"a", b"b" * 300)
        assert client.message().body == b"a"


def test_32_bytes_behind_an_identify_that_upgrades_are_lost(nsqd: Running) -> None:
    asked = b"IDENTIFY\n" + sized(b'{"feature_negotiation":true,"snappy":true}')
    with Client(nsqd.tcp_address) as client:
        client.send(asked, b"NO_SUCH_COMMAND\n")
        assert json.loads(client.frame()[1])["snappy"] is True
        client.sock = Snappy(client.sock)
        client.expect(b"OK")
        client.barrier()


@pytest.mark.parametrize("codec", ["", "snappy", "deflate"])
def test_what_comes_along_with_the_handshakes_last_bytes_is_not_lost(nsqd: Running, codec: str) -> None:
    with Client(nsqd.tcp_address) as client:
        negotiate(client, tls_v1=True, **({codec: True} if codec else {}))
        client.sock = TLS(client.sock, client_context())
        outer = client.sock
        if codec:
            client.sock = Snappy(outer) if codec == "snappy" else Deflate(outer)
        client.send(b"PUB early\n", sized(b"a"))
        inner, client.sock = client.sock, outer
        client.expect(b"OK")
        client.sock = inner
        if codec:
            client.expect(b"OK")
        client.expect(b"OK")


def test_an_identify_may_be_repeated_over_a_codec_and_over_tls(nsqd: Running) -> None:
    with Client(nsqd.tcp_address) as client:
        upgrade(client, client_context(), "snappy")
        client.identify(client_id="again")
        client.sock.bite = 1
        tls = client.sock.sock
        negotiate(client, deflate=True)
        client.sock = Deflate(tls)
        client.expect(b"OK")
        client.subscribe("again", rdy=1)
        client.publish("again", b"a")
        assert client.message().body == b"a"


def test_tls_anew_begins_on_the_bare_socket_and_takes_the_codec_away(nsqd: Running) -> None:
    with Client(nsqd.tcp_address) as client:
        upgrade(client, client_context(), "snappy")
        bare = client.sock.sock.sock
        negotiate(client, tls_v1=True)
        client.sock = TLS(bare, client_context())
        client.expect(b"OK")
        client.barrier()


def test_stats_tell_of_tls(nsqd: Running, kind: Kind) -> None:
    modern, older = client_context(), client_context()
    older.maximum_version = ssl.TLSVersion.TLSv1_2
    shown = []
    for context in (modern, older):
        with Client(nsqd.tcp_address) as client:
            upgrade(client, context)
            client.publish("tlsstats", b"a")
            (found,) = stats(nsqd.http_address, "topic=tlsstats")["producers"]
            shown.append({name: value for name, value in found.items() if name.startswith("tls")})
        wait_for(lambda: not stats(nsqd.http_address, "topic=tlsstats")["producers"])
    same = {"tls": True, "tls_negotiated_protocol": "", "tls_negotiated_protocol_is_mutual": True}
    # nsqd has names only for the suites of TLS 1.2.
    suites = [one.pop("tls_cipher_suite") for one in shown]
    assert shown == [{**same, "tls_version": "TLS1.3"}, {**same, "tls_version": "TLS1.2"}]
    assert suites[0].startswith("TLS_" if kind == "ours" else "Unknown ")
    assert suites[1].startswith("TLS_ECDHE_" if kind == "ours" else ("TLS_ECDHE_", "Unknown "))


def test_heartbeats_come_through_all_layers(nsqd: Running) -> None:
    with Client(nsqd.tcp_address) as client:
        negotiate(client, tls_v1=True, snappy=True, heartbeat_interval=1000)
        client.sock = TLS(client.sock, client_context())
        client.expect(b"OK")
        client.sock = Snappy(client.sock)
        client.expect(b"OK")
        for _ in range(2):
            assert client.frame(heartbeats=True)[1] == b"_heartbeat_"
            client.send(b"NOP\n")


# -- what goes wrong -------------------------------------------------------------------------------------


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\n\r\n", b"PUB t\n\x00\x00\x00\x01a", b"\x00" * 100])
def test_bytes_that_are_no_handshake_get_an_error_in_plain_text(nsqd: Running, garbage: bytes) -> None:
    with Client(nsqd.tcp_address) as client:
        assert negotiate(client, tls_v1=True)["tls_v1"] is True
        client.send(garbage)
        client.expect_fatal(NOT_TLS)


def test_a_broken_handshake_gets_an_error_in_plain_text_after_tlss_alert(nsqd: Running) -> None:
    with Client(nsqd.tcp_address) as client:
        negotiate(client, tls_v1=True)
        client.send(b"\x16\x03\x01\x00\x05hello")
        data = b""
        while piece := client.sock.recv(1000):
            data += piece
    alert, _, error = data.partition(b"E_IDENTIFY_FAILED IDENTIFY failed tls: ")
    assert alert[:1] == b"\x15" and error


def test_a_handshake_has_five_seconds(nsqd: Running, kind: Kind) -> None:
    with Client(nsqd.tcp_address) as client:
        asked = monotonic()
        negotiate(client, tls_v1=True, heartbeat_interval=1000)
        frame_type, payload = client.frame(heartbeats=True)
        if kind == "real" and payload == b"_heartbeat_":
            # NSQ's own may send a heartbeat that was due meanwhile, before or after the error.
            frame_type, payload = client.frame(heartbeats=True)
        assert monotonic() - asked >= HANDSHAKE_TIMEOUT - 0.02  # clocks of two processes
        assert frame_type == ERROR
        assert payload.startswith(b"E_IDENTIFY_FAILED IDENTIFY failed ") and payload.endswith(b"i/o timeout")
        rest = client.sock.recv(1000)
        assert rest == b"" or (kind == "real" and rest.endswith(b"_heartbeat_"))


def test_a_client_that_leaves_during_the_handshake_is_forgotten(nsqd: Running) -> None:
    with Client(nsqd.tcp_address) as client:
        negotiate(client, tls_v1=True)
        client.send(b"\x16\x03\x01")
    if nsqd.daemon is not None:
        wait_for(lambda: not nsqd.daemon.clients)
    assert get(nsqd.http_address, "/ping").body == b"OK"


@pytest.mark.parametrize("codec", ["snappy", "deflate"])
@pytest.mark.parametrize("tls", [False, True])
def test_bytes_that_cannot_be_decoded_end_the_connection(nsqd: Running, tls: bool, codec: str) -> None:
    with Client(nsqd.tcp_address) as client:
        upgrade(client, client_context() if tls else None, codec)
        client.sock.sock.sendall(b"\xff" * 100)
        client.expect_end()


def test_a_broken_tls_record_ends_the_connection(nsqd: Running) -> None:
    with Client(nsqd.tcp_address) as client:
        upgrade(client, client_context())
        plain = client.sock.sock
        plain.sendall(b"\x17\x03\x03\x00\x20" + b"x" * 32)
        said = b""
        while piece := plain.recv(1000):
            said += piece
        assert said  # an alert
        assert get(nsqd.http_address, "/ping").body == b"OK"


def test_a_fatal_error_comes_through_all_layers(nsqd: Running) -> None:
    with Client(nsqd.tcp_address) as client:
        upgrade(client, client_context(), "snappy")
        client.send(b"NO_SUCH\n")
        client.expect_fatal(b"E_INVALID invalid command NO_SUCH")


def test_tls_ends_with_a_goodbye_behind_a_fatal_error(files: dict[str, str]) -> None:
    # Without it, TLS libraries report the end as a possible attack, and may drop what came before.
    with running_nsqd("ours", **files) as nsqd, Client(nsqd.tcp_address) as client:
        upgrade(client, client_context())
        tls = client.sock
        client.send(b"NO_SUCH\n")
        client.expect_fatal(b"E_INVALID invalid command NO_SUCH")
        assert isinstance(tls, TLS) and tls.goodbye


def peak_memory(nsqd: Running) -> int:
    """The process's peak memory in bytes."""
    assert isinstance(nsqd, Process) and nsqd.process is not None
    for line in Path(f"/proc/{nsqd.process.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmHWM")


@pytest.mark.parametrize("codec", ["snappy", "deflate"])
def test_a_decompression_bomb_is_never_unpacked_at_once(codec: str) -> None:
    """100 MB through each codec: as messages, which are handled one by one, and as a line without an end."""
    packer = Snappy(None) if codec == "snappy" else Deflate(None, 9)
    wire = packer.encode((b"PUB bomb#ephemeral\n" + sized(bytes(1_000_000))) * 100)
    line = packer.encode(bytes(20_000_000))
    assert len(wire) < 6_000_000
    with running_nsqd("process", mem_queue_size=1) as nsqd, Client(nsqd.tcp_address) as client:
        upgrade(client, None, codec)
        client.publish("bomb#ephemeral", b"a")  # the memory that a first message needs
        before = peak_memory(nsqd)
        client.sock.sock.sendall(wire)
        for _ in range(100):
            client.expect(b"OK")
        client.sock.sock.sendall(line)
        client.expect_end()
        grown = peak_memory(nsqd) - before
    assert grown < 40_000_000


@pytest.mark.parametrize("codec", ["snappy", "deflate"])
def test_others_have_their_turn_while_a_decompression_bomb_is_executed(codec: str) -> None:
    packer = Snappy(None) if codec == "snappy" else Deflate(None, 9)
    bomb = packer.encode(b"NOP\n" * 1_000_000 + b"PUB last\n" + sized(b"x"))
    with running_nsqd("ours") as nsqd, Client(nsqd.tcp_address) as busy, Client(nsqd.tcp_address) as other:
        upgrade(busy, None, codec)
        busy.sock.sock.settimeout(None)
        ended = gevent.spawn(busy.expect, b"OK")
        busy.sock.sock.sendall(bomb)
        for _ in range(5):
            other.publish("quick", b"x")
        assert not ended.ready()
        ended.get()


# -- TLS required ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command", ["NOP", "PUB t", "FIN 0123456789abcdef", "SUB t c", "AUTH", "NO_SUCH x", "RDY 1", "CLS"]
)
def test_52_nothing_but_identify_comes_before_required_tls(kind: Kind, files: dict[str, str], command: str) -> None:
    with running_nsqd(kind, tls_required="tcp-https", **files) as nsqd, Client(nsqd.tcp_address) as client:
        client.send(command.encode() + b"\n")
        error = f"E_INVALID cannot {command.split()[0]} in current state (TLS required)"
        client.expect_fatal(error.encode())


def test_52_with_tls_everything_goes(kind: Kind, files: dict[str, str]) -> None:
    with running_nsqd(kind, tls_required=True, **files) as nsqd:
        with Client(nsqd.tcp_address) as client:
            assert negotiate(client)["tls_v1"] is False
            client.send(b"PUB t\n", sized(b"a"))
            client.expect_fatal(b"E_INVALID cannot PUB in current state (TLS required)")
        with Client(nsqd.tcp_address) as client:
            upgrade(client, client_context())
            client.barrier()


@pytest.mark.parametrize(("required", "status"), [("true", 403), ("tcp-https", 200), ("false", 200)])
def test_plain_http_where_tls_is_required(kind: Kind, files: dict[str, str], required: str, status: int) -> None:
    with running_nsqd(kind, tls_required=required, **files) as nsqd:
        answers = [get(nsqd.http_address, "/ping"), get(nsqd.http_address, "/no/such")]
        answers.append(post(nsqd.http_address, "/pub?topic=t", b"body"))
        for answer in answers:
            if status == 403:
                port = nsqd.https_address.rpartition(":")[2]
                assert answer.status == 403
                assert answer.body == b'{"message": "TLS_REQUIRED", "https_port": %b}' % port.encode()
                assert answer.headers["x-nsq-content-type"] == "nsq; version=1.0"
                assert answer.headers["content-type"] == "application/json; charset=utf-8"
            else:
                assert answer.status in (200, 404)
        assert b"\r\n\r\nOK" in https(nsqd.https_address, "/ping")


def test_https_serves_on_whatever_is_sent_to_it(nsqd: Running, capfd: pytest.CaptureFixture[str]) -> None:
    host, _, port = nsqd.https_address.rpartition(":")
    for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x00\x05hello", b""):
        with socket.create_connection((host, int(port)), TIMEOUT) as sock:
            sock.sendall(garbage)
            sock.shutdown(socket.SHUT_WR)
            with suppress(ConnectionResetError):
                while sock.recv(1000):
                    pass
    with pytest.raises(ssl.SSLCertVerificationError):
        https(nsqd.https_address, "/ping", client_context(stranger()))
    assert b'"tcp_port":' in https(nsqd.https_address, "/info")
    assert "Traceback" not in capfd.readouterr().err


def test_no_certificate_no_https(kind: Kind) -> None:
    with running_nsqd(kind) as nsqd:
        assert nsqd.https_address == ""
        with Client(nsqd.tcp_address) as client:
            assert negotiate(client, tls_v1=True)["tls_v1"] is False
            client.barrier()


@pytest.mark.parametrize("policy", ["require", "require-verify"])
def test_client_certificates(kind: Kind, files: dict[str, str], tmp_path: Path, policy: str) -> None:
    known, unknown = client_context(), client_context()
    certificate("client.example").configure_cert(known)
    stranger().issue_cert("client.example").configure_cert(unknown)
    options = {**files, "tls_root_ca_file": write_ca(tmp_path), "tls_client_auth_policy": policy}
    with running_nsqd(kind, **options) as nsqd:
        with Client(nsqd.tcp_address) as client:
            upgrade(client, known)
            client.barrier()
            assert b"\r\n\r\nOK" in https(nsqd.https_address, "/ping", known)
        refused = [client_context()]
        if policy == "require-verify" or kind == "ours":  # here "require" verifies, too
            refused.append(unknown)
        for context in refused:
            context.maximum_version = ssl.TLSVersion.TLSv1_2  # so that the client's handshake fails, not what follows
            with Client(nsqd.tcp_address) as client, pytest.raises(ssl.SSLError, match="ALERT"):
                upgrade(client, context)
        with Client(nsqd.tcp_address) as client:
            client.send(b"NOP\n")
            client.expect_fatal(b"E_INVALID cannot NOP in current state (TLS required)")


def test_the_least_version_of_tls(kind: Kind, files: dict[str, str]) -> None:
    older = client_context()
    older.maximum_version = ssl.TLSVersion.TLSv1_2
    with running_nsqd(kind, tls_min_version="tls1.3", **files) as nsqd:
        with Client(nsqd.tcp_address) as client, pytest.raises(ssl.SSLError, match="PROTOCOL_VERSION"):
            upgrade(client, older)
        with Client(nsqd.tcp_address) as client:
            upgrade(client, client_context())
            client.barrier()


def test_one_client_in_a_handshake_delays_no_other(nsqd: Running) -> None:
    with Client(nsqd.tcp_address) as slow, Client(nsqd.tcp_address) as other:
        negotiate(slow, tls_v1=True)
        other.barrier()
        assert upgrade(other, client_context())["tls_v1"] is True
        slow.sock.setblocking(False)
        with pytest.raises(BlockingIOError):  # no error yet: its handshake has not ended
            slow.sock.recv(1)
