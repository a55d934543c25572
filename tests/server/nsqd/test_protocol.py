"""The statements of docs/internals 8 about commands, states and errors, by their numbers."""

import json
import re

import pytest

from tests.support.daemons import Kind, Running, has_topology, running_nsqd, wait_for
from tests.support.raw import ERROR, RESPONSE, Client, channel_stats, mpub_body, sized, stats, topic_stats

MISSING_ID = b"0000000000000000"


def test_01_a_wrong_magic_gets_exactly_the_error_code_and_then_the_end(nsqd: Running) -> None:
    with Client(nsqd.tcp_address, magic=b"  V3") as client:
        client.expect_fatal(b"E_BAD_PROTOCOL")


def test_02_nothing_is_sent_after_a_good_magic_until_a_command_comes(nsqd: Running) -> None:
    with Client(nsqd.tcp_address) as client:
        client.send(b"NOP\n", b"NOP\n")
        client.barrier()


def test_03_identify_without_negotiation_answers_ok_and_json_with_it(kind: Kind, nsqd: Running) -> None:
    with Client(nsqd.tcp_address) as client:
        client.identify(client_id="x")
        client.send(b"IDENTIFY\n", sized(b'{"feature_negotiation":true}'))
        frame_type, payload = client.frame()
    assert frame_type == RESPONSE
    expected = (
        rb'{"max_rdy_count":2500,"version":"1.3.0","max_msg_timeout":900000,"msg_timeout":60000,"tls_v1":false,'
        rb'"deflate":false,"deflate_level":6,"max_deflate_level":6,"snappy":false,"sample_rate":0,'
        rb'"auth_required":false,"output_buffer_size":16384,"output_buffer_timeout":250'
    )
    assert payload == expected + (rb',"topology_region":"","topology_zone":""}' if has_topology(kind) else b"}")


def test_03_the_answer_shows_what_was_negotiated(nsqd: Running) -> None:
    wanted = b'{"feature_negotiation":true,"output_buffer_size":-1,"sample_rate":7,"msg_timeout":2000}'
    with Client(nsqd.tcp_address) as client:
        client.send(b"IDENTIFY\n", sized(wanted))
        answer = json.loads(client.frame()[1])
    assert (answer["output_buffer_size"], answer["output_buffer_timeout"]) == (1, 0)
    assert (answer["sample_rate"], answer["msg_timeout"]) == (7, 2000)


def test_04_identify_may_be_repeated_before_sub_and_is_fatal_after(nsqd: Running) -> None:
    with Client(nsqd.tcp_address) as client:
        client.identify()
        client.identify()
        client.subscribe("t04")
        client.send(b"IDENTIFY\n", sized(b"{}"))
        client.expect_fatal(b"E_INVALID cannot IDENTIFY in current state")


def test_05_without_identify_stats_show_the_remote_ip(nsqd: Running) -> None:
    with Client(nsqd.tcp_address) as client:
        client.subscribe("t05")
        (shown,) = channel_stats(nsqd.http_address, "t05")["clients"]
    assert (shown["client_id"], shown["hostname"], shown["state"]) == ("127.0.0.1", "127.0.0.1", 3)


@pytest.mark.parametrize(("line", "ready"), [(b"RDY\n", 1), (b"RDY \n", 0), (b"RDY 007\n", 7), (b"RDY 2500 x\n", 2500)])
def test_06_rdy_gets_no_response(nsqd: Running, line: bytes, ready: int) -> None:
    with Client(nsqd.tcp_address) as client:
        client.subscribe("t06")
        assert channel_stats(nsqd.http_address, "t06")["clients"][0]["ready_count"] == 0
        client.send(line)
        client.barrier()
        assert channel_stats(nsqd.http_address, "t06")["clients"][0]["ready_count"] == ready
    wait_for(lambda: not channel_stats(nsqd.http_address, "t06")["clients"])


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (b"RDY 2501\n", b"E_INVALID RDY count 2501 out of range 0-2500"),
        (b"RDY -1\n", b"E_INVALID RDY could not parse count -1"),
        (b"RDY x y\n", b"E_INVALID RDY could not parse count x"),
        (b"RDY 18446744073709551615\n", b"E_INVALID RDY count -1 out of range 0-2500"),
    ],
)
def test_08_a_bad_rdy_is_fatal(nsqd: Running, line: bytes, error: bytes) -> None:
    with Client(nsqd.tcp_address) as client:
        client.subscribe("t08")
        client.send(line)
        client.expect_fatal(error)


def test_08_a_count_wraps_at_64_bits(nsqd: Running) -> None:
    with Client(nsqd.tcp_address) as client:
        client.subscribe("t08wrap")
        client.send(b"RDY 18446744073709551617\n")
        client.barrier()
        assert channel_stats(nsqd.http_address, "t08wrap")["clients"][0]["ready_count"] == 1


def test_09_fin_req_and_touch_fail_without_ending_the_connection(nsqd: Running) -> None:
    with Client(nsqd.tcp_address) as client:
        client.subscribe("t09")
        client.send(b"FIN %b\nREQ %b 0\nTOUCH %b\n" % (MISSING_ID, MISSING_ID, b"\x01\xff\"'x" + b"." * 11))
        client.expect_error(b"E_FIN_FAILED FIN 0000000000000000 failed ID not in flight")
        client.expect_error(b"E_REQ_FAILED REQ 0000000000000000 failed ID not in flight")
        client.expect_error(b"E_TOUCH_FAILED TOUCH \x01\xff\"'x........... failed ID not in flight")
        client.publish("t09", b"a")
        client.send(b"RDY 1\n")
        message = client.message()
        client.send(b"TOUCH %b\nREQ %b 0\n" % (message.id, message.id))
        assert client.message() == message._replace(attempts=2)
        client.send(b"FIN %b\n" % message.id)
        client.barrier()


@pytest.mark.parametrize("command", [b"FIN %b", b"REQ %b 0", b"TOUCH %b"])
def test_10_only_the_owner_may_answer_a_message(nsqd: Running, command: bytes) -> None:
    topic = f"t10{command[:3].decode()}"
    with Client(nsqd.tcp_address) as owner, Client(nsqd.tcp_address) as other:
        owner.subscribe(topic, rdy=1)
        other.subscribe(topic)
        other.publish(topic, b"a")
        message = owner.message()
        other.send(command % message.id, b"\n")
        frame_type, payload = other.frame()
        assert frame_type == ERROR
        assert payload.endswith(b" %b failed client does not own message" % message.id)
        owner.send(b"FIN %b\n" % message.id)
        owner.barrier()


@pytest.mark.parametrize("line", [b"FIN 123\n", b"REQ 01234567890123456 0\n", b"TOUCH \n", b"FIN  \n"])
def test_11_an_id_of_another_length_than_16_is_fatal(nsqd: Running, line: bytes) -> None:
    with Client(nsqd.tcp_address) as client:
        client.subscribe("t11")
        client.send(line)
        client.expect_fatal(b"E_INVALID invalid message ID")


def test_12_the_second_fin_of_a_message_fails(nsqd: Running) -> None:
    with Client(nsqd.tcp_address) as client:
        client.subscribe("t12", rdy=1)
        client.publish("t12", b"a")
        message_id = client.message().id
        client.send(b"FIN %b\nFIN %b\n" % (message_id, message_id))
        client.expect_error(b"E_FIN_FAILED FIN %b failed ID not in flight" % message_id)


def test_20_without_heartbeats_one_may_publish_but_not_subscribe(nsqd: Running) -> None:
    with Client(nsqd.tcp_address) as client:
        client.identify(heartbeat_interval=-1)
        client.publish("t20", b"a")
        client.send(b"SUB t20 c\n")
        client.expect_fatal(b"E_INVALID cannot SUB with heartbeats disabled")


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (b"PUB t21\n\0\0\0\0", b"E_BAD_MESSAGE PUB invalid message body size 0"),
        (b"PUB t21\n\xff\xff\xff\xff", b"E_BAD_MESSAGE PUB invalid message body size -1"),
        (b"DPUB t21 0\n\0\0\0\0", b"E_BAD_MESSAGE DPUB invalid message body size 0"),
        (b"PUB t21\n\0\x10\0\x01", b"E_BAD_MESSAGE PUB message too big 1048577 > 1048576"),
        (b"DPUB t21 0\n\0\x10\0\x01", b"E_BAD_MESSAGE DPUB message too big 1048577 > 1048576"),
        (b"PUB\n", b"E_INVALID PUB insufficient number of parameters"),
        (b"DPUB t21\n", b"E_INVALID DPUB insufficient number of parameters"),
        (b"PUB t\x01\xff\n", b'E_BAD_TOPIC PUB topic name "t\\x01\\xff" is not valid'),
        (b"PUB #ephemeral\n", b'E_BAD_TOPIC PUB topic name "#ephemeral" is not valid'),
        (b"DPUB t21 -1\n", b"E_INVALID DPUB could not parse timeout -1"),
        (b"DPUB t21 3600001\n", b"E_INVALID DPUB timeout 3600001 out of range 0-3600000"),
    ],
)
def test_21_22_a_bad_pub_is_fatal_and_makes_no_topic(nsqd: Running, sent: bytes, error: bytes) -> None:
    with Client(nsqd.tcp_address) as client:
        client.send(sent)
        client.expect_fatal(error)
    assert topic_stats(nsqd.http_address, "t21") is None


def test_22_a_body_of_exactly_the_maximum_is_fine(nsqd: Running) -> None:
    with Client(nsqd.tcp_address) as client:
        client.send(b"PUB t22\n", sized(b"x" * 1048576))
        client.expect(b"OK")


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (b"\0\0\0\0", b"E_BAD_BODY MPUB invalid body size 0"),
        (b"\0\x50\0\x01", b"E_BAD_BODY MPUB body too big 5242881 > 5242880"),
        (b"\0\0\0\x08\0\0\0\0", b"E_BAD_BODY MPUB invalid message count 0"),
        (b"\0\0\0\x08\0\x10\0\0", b"E_BAD_BODY MPUB invalid message count 1048576"),
        (mpub_body(b"a", b"", b"c"), b"E_BAD_MESSAGE MPUB invalid message(1) body size 0"),
        (b"\0\0\0\x99\0\0\0\x02\0\0\0\x01a\0\x10\0\x01", b"E_BAD_MESSAGE MPUB message too big 1048577 > 1048576"),
    ],
)
def test_23_an_mpub_is_all_or_nothing_but_makes_its_topic(nsqd: Running, sent: bytes, error: bytes) -> None:
    with Client(nsqd.tcp_address) as client:
        client.send(b"MPUB t23\n", sent)
        client.expect_fatal(error)
    assert topic_stats(nsqd.http_address, "t23")["message_count"] == 0


def test_23_what_an_mpub_holds_says_where_it_ends_and_not_its_size(nsqd: Running) -> None:
    inner = mpub_body(b"a", b"bc")[4:]
    with Client(nsqd.tcp_address) as client:
        client.send(b"MPUB t23size\n", b"\0\0\0\x01", inner, b"MPUB t23size\n", b"\0\0\x99\x99", inner)
        client.expect(b"OK")
        client.expect(b"OK")
        client.barrier()
    assert topic_stats(nsqd.http_address, "t23size")["message_count"] == 4


def test_24_a_bad_topic_of_mpub_gets_the_code_twice(nsqd: Running) -> None:
    with Client(nsqd.tcp_address) as client:
        client.send(b"MPUB t!\n")
        client.expect_fatal(b'E_BAD_TOPIC E_BAD_TOPIC MPUB topic name "t!" is not valid')


def test_25_pipelined_publishes_are_answered_in_order_one_ok_each(nsqd: Running) -> None:
    with Client(nsqd.tcp_address) as client:
        one = b"PUB t25\n" + sized(b"a") + b"MPUB t25\n" + mpub_body(b"b", b"c") + b"DPUB t25 9\n" + sized(b"d")
        client.send(one * 100, b"PUB t25\n", sized(b""))
        for _ in range(300):
            client.expect(b"OK")
        client.expect_fatal(b"E_BAD_MESSAGE PUB invalid message body size 0")
    assert topic_stats(nsqd.http_address, "t25")["message_count"] == 400


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (b"PUB t\n\0\0", b"E_BAD_MESSAGE PUB failed to read message body size"),
        (b"PUB t\n\0\0\0\x05ab", b"E_BAD_MESSAGE PUB failed to read message body"),
        (b"MPUB t\n\0", b"E_BAD_BODY MPUB failed to read body size"),
        (b"MPUB t\n\0\0\0\x09\0", b"E_BAD_BODY MPUB failed to read message count"),
        (b"MPUB t\n\0\0\0\x09\0\0\0\x02\0\0\0\x01a\0", b"E_BAD_MESSAGE MPUB failed to read message(1) body size"),
        (b"MPUB t\n\0\0\0\x09\0\0\0\x02\0\0\0\x01a\0\0\0\x01", b"E_BAD_MESSAGE MPUB failed to read message body"),
        (b"IDENTIFY\n\0\0", b"E_BAD_BODY IDENTIFY failed to read body size"),
        (b"IDENTIFY\n\0\0\0\x05{}", b"E_BAD_BODY IDENTIFY failed to read body"),
    ],
)
def test_a_client_that_leaves_in_the_middle_is_told_where(nsqd: Running, sent: bytes, error: bytes) -> None:
    with Client(nsqd.tcp_address) as client:
        client.send(sent)
        client.sock.shutdown(1)
        client.expect_fatal(error)


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (b"[]", b"failed to decode JSON body"),
        (b"{} x", b"failed to decode JSON body"),
        (b'{"heartbeat_interval":2000.0}', b"failed to decode JSON body"),
        (b'{"heartbeat_interval":2e3}', b"failed to decode JSON body"),
        (b'{"heartbeat_interval":"2000"}', b"failed to decode JSON body"),
        (b'{"sample_rate":3000000000}', b"failed to decode JSON body"),
        (b'{"snappy":1}', b"failed to decode JSON body"),
        (b'{"client_id":1}', b"failed to decode JSON body"),
        (b'{"x":NaN}', b"failed to decode JSON body"),
        (b'{"heartbeat_interval":999}', b"heartbeat interval (999) is invalid"),
        (b'{"heartbeat_interval":60001}', b"heartbeat interval (60001) is invalid"),
        (b'{"heartbeat_interval":-2,"msg_timeout":1}', b"heartbeat interval (-2) is invalid"),
        (b'{"output_buffer_timeout":24,"output_buffer_size":1}', b"output buffer timeout (24) is invalid"),
        (b'{"output_buffer_timeout":30001}', b"output buffer timeout (30001) is invalid"),
        (b'{"output_buffer_size":63,"sample_rate":100}', b"output buffer size (63) is invalid"),
        (b'{"output_buffer_size":65537}', b"output buffer size (65537) is invalid"),
        (b'{"sample_rate":100,"msg_timeout":1}', b"sample rate (100) is invalid"),
        (b'{"sample_rate":-1}', b"sample rate (-1) is invalid"),
        (b'{"msg_timeout":999}', b"msg timeout (999) is invalid"),
        (b'{"msg_timeout":900001}', b"msg timeout (900001) is invalid"),
        (b'{"msg_timeout":-1}', b"msg timeout (-1) is invalid"),
    ],
)
def test_51_an_identify_that_is_refused(nsqd: Running, body: bytes, detail: bytes) -> None:
    with Client(nsqd.tcp_address) as client:
        client.send(b"IDENTIFY\n", sized(body))
        client.expect_fatal(b"E_BAD_BODY IDENTIFY " + detail)


@pytest.mark.parametrize(
    "body",
    [
        b"null",
        b'{"HEARTBEAT_interval":null,"unknown":{"x":[1e5]}}',
        b'{"client_id":"\xff\\ud800","feature_negotiation":false}',
        b'{"heartbeat_interval":1000,"output_buffer_timeout":25,"output_buffer_size":64,"sample_rate":99}',
        b'{"heartbeat_interval":60000,"output_buffer_timeout":30000,"output_buffer_size":65536,"msg_timeout":900000}',
        b'{"deflate_level":-3}',
    ],
)
def test_51_an_identify_that_is_taken(nsqd: Running, body: bytes) -> None:
    with Client(nsqd.tcp_address) as client:
        client.send(b"IDENTIFY\n", sized(body))
        client.expect(b"OK")


def test_the_names_in_an_identify_match_in_any_case(nsqd: Running) -> None:
    body = b'{"client_id":"a","CLIENT_ID":"b","HostName":"\\ud800","user_agent":null}'
    with Client(nsqd.tcp_address) as client:
        client.send(b"IDENTIFY\n", sized(body))
        client.expect(b"OK")
        client.subscribe("folded")
        (shown,) = channel_stats(nsqd.http_address, "folded")["clients"]
        assert (shown["client_id"], shown["hostname"]) == ("b", "\ufffd")


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (b"IDENTIFY\n\0\0\0\0", b"E_BAD_BODY IDENTIFY invalid body size 0"),
        (b"IDENTIFY\n\x7f\0\0\0", b"E_BAD_BODY IDENTIFY body too big 2130706432 > 5242880"),
        (b"SUB t\n", b"E_INVALID SUB insufficient number of parameters"),
        (b"SUB t  c\n", b'E_BAD_CHANNEL SUB channel name "" is not valid'),
        (b"SUB t\tc d\n", b'E_BAD_TOPIC SUB topic name "t\\tc" is not valid'),
        (b"SUB " + b"x" * 65 + b" c\n", b'E_BAD_TOPIC SUB topic name "' + b"x" * 65 + b'" is not valid'),
        (b"RDY 1\n", b"E_INVALID cannot RDY in current state"),
        (b"FIN\n", b"E_INVALID cannot FIN in current state"),
        (b"FIN 0123456789abcdef\n", b"E_INVALID cannot FIN in current state"),
        (b"REQ\n", b"E_INVALID cannot REQ in current state"),
        (b"TOUCH\n", b"E_INVALID cannot TOUCH in current state"),
        (b"CLS\n", b"E_INVALID cannot CLS in current state"),
        (b"nop\n", b"E_INVALID invalid command nop"),
        (b"\n", b"E_INVALID invalid command "),
        (b" NOP\n", b"E_INVALID invalid command "),
        (b"GET / HTTP/1.1\r\n", b"E_INVALID invalid command GET"),
    ],
)
def test_a_command_that_is_refused_before_sub(nsqd: Running, sent: bytes, error: bytes) -> None:
    with Client(nsqd.tcp_address) as client:
        client.send(sent)
        client.expect_fatal(error)


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (b"SUB t2 c\n", b"E_INVALID cannot SUB in current state"),
        (b"FIN\n", b"E_INVALID FIN insufficient number of params"),
        (b"REQ 0123456789abcdef\n", b"E_INVALID REQ insufficient number of params"),
        (b"TOUCH\n", b"E_INVALID TOUCH insufficient number of params"),
        (b"REQ 0123456789abcdef 1.5\n", b"E_INVALID REQ could not parse timeout 1.5"),
    ],
)
def test_a_command_that_is_refused_after_sub(nsqd: Running, sent: bytes, error: bytes) -> None:
    with Client(nsqd.tcp_address) as client:
        client.subscribe("tsub")
        client.send(sent)
        client.expect_fatal(error)


def test_33_what_is_not_offered_is_reported_false_and_no_error(kind: Kind) -> None:
    with running_nsqd(kind, snappy=False, deflate=False) as nsqd, Client(nsqd.tcp_address) as client:
        client.send(b"IDENTIFY\n", sized(b'{"feature_negotiation":true,"tls_v1":true,"snappy":true,"deflate":true}'))
        answer = json.loads(client.frame()[1])
        assert (answer["tls_v1"], answer["snappy"], answer["deflate"]) == (False, False, False)
        client.barrier()


def test_49_a_channel_has_no_more_consumers_than_allowed(kind: Kind) -> None:
    with running_nsqd(kind, max_channel_consumers=2) as nsqd:
        clients = [Client(nsqd.tcp_address) for _ in range(3)]
        for client in clients[:2]:
            client.subscribe("mcc")
        clients[2].send(b"SUB mcc c\n")
        clients[2].expect_fatal(b"E_SUB_FAILED SUB failed consumers for mcc:c exceeds limit of 2")
        for client in clients:
            client.sock.close()


def test_50_lines_may_end_in_crlf(nsqd: Running) -> None:
    with Client(nsqd.tcp_address) as client:
        client.send(b"NOP\r\nPUB t50\r\n", sized(b"a"))
        client.expect(b"OK")
        client.send(b"NOP\r\r\n")
        client.expect_fatal(b"E_INVALID invalid command NOP\r")


def test_50_a_line_of_16_kib_without_an_end_closes_silently(nsqd: Running) -> None:
    with Client(nsqd.tcp_address) as client:
        client.send(b"N" * 16384)
        client.expect_end()
    with Client(nsqd.tcp_address) as client:
        client.send(b"N" * 16383, b"\n")
        client.expect_fatal(b"E_INVALID invalid command " + b"N" * 16383)


def test_a_message_id_is_hex_and_made_of_time_and_node_id(kind: Kind) -> None:
    with running_nsqd(kind, node_id=5) as nsqd, Client(nsqd.tcp_address) as client:
        client.publish("ids", b"a", b"b", b"c")
        client.subscribe("ids", rdy=3)
        messages = [client.message() for _ in range(3)]
    for message in messages:
        assert re.fullmatch(rb"[0-9a-f]{16}", message.id)
        assert (int(message.id, 16) >> 12) & 1023 == 5
        # The upper bits are the time of publishing in ticks of 2**20 ns, minus nsqd's epoch.
        assert abs((int(message.id, 16) >> 22) + 1288834974288 - (message.timestamp_ns >> 20)) <= 1
    assert len({message.id for message in messages}) == 3


def test_a_publisher_appears_among_the_producers_of_the_stats(nsqd: Running) -> None:
    with Client(nsqd.tcp_address) as client:
        client.identify(client_id="me", hostname="here", user_agent="ua/1")
        client.publish("pubs", b"a", b"b")
        producers = [each for each in stats(nsqd.http_address)["producers"] or [] if each["client_id"] == "me"]
        assert [each["pub_counts"] for each in producers] == [[{"topic": "pubs", "count": 2}]]
        assert producers[0]["user_agent"] == "ua/1"
