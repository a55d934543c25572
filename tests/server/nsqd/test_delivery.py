"""The statements of docs/internals 8 about messages on their way, by their numbers.

Times are measured from before their cause, and only too early is an error: the machine may be busy, and a
real nsqd checks a new channel's deadlines only every 5 s (docs/internals 2.5).
"""

import contextlib
from time import monotonic

import pytest

from tests.support.daemons import Kind, Running, running_nsqd, wait_for
from tests.support.raw import ERROR, RESPONSE, Client, channel_stats, get, post, sized, topic_stats

#: Seconds by which something may seem early, by the clocks of two processes.
TOLERANCE = 0.02


def counts(nsqd: Running, topic: str, channel: str = "c") -> tuple[int, int, int]:
    """Depth, in flight, deferred."""
    found = channel_stats(nsqd.http_address, topic, channel)
    return found["depth"], found["in_flight_count"], found["deferred_count"]


def wait_for_counts(nsqd: Running, expected: tuple[int, int, int], topic: str, channel: str = "c") -> None:
    wait_for(lambda: counts(nsqd, topic, channel) == expected, f"{topic}: {expected}")


def test_07_rdy_is_compared_with_what_is_in_flight_and_never_counted_down(nsqd: Running) -> None:
    with Client(nsqd.tcp_address) as client:
        client.subscribe("t07", rdy=2)
        client.publish("t07", *[b"%d" % n for n in range(6)])
        messages = [client.message(), client.message()]
        for number in range(2, 6):
            wait_for_counts(nsqd, (6 - number, 2, 0), "t07")
            client.send(b"FIN %b\n" % messages.pop(0).id)
            messages.append(client.message())
            assert messages[-1].body == b"%d" % number
        client.barrier()


def test_07_rdy_0_stops_and_a_lowered_rdy_waits_for_answers(nsqd: Running) -> None:
    with Client(nsqd.tcp_address) as client:
        client.subscribe("t07low", rdy=3)
        client.publish("t07low", *[b"%d" % n for n in range(6)])
        ids = [client.message().id for _ in range(3)]
        client.send(b"RDY 1\nFIN %b\nFIN %b\n" % (ids[0], ids[1]))
        client.barrier()
        wait_for_counts(nsqd, (3, 1, 0), "t07low")
        client.send(b"RDY 0\nFIN %b\n" % ids[2])
        client.barrier()
        assert counts(nsqd, "t07low") == (3, 0, 0)
        client.send(b"RDY 1\n")
        assert client.message().body == b"3"


def test_13_a_timeout_is_not_told_and_redelivery_keeps_id_and_timestamp(nsqd: Running) -> None:
    with Client(nsqd.tcp_address) as client:
        client.identify(msg_timeout=1000)
        client.subscribe("t13", rdy=1)
        begin = monotonic()
        client.publish("t13", b"a")
        first = client.message()
        assert client.message() == first._replace(attempts=2)
        client.send(b"RDY 0\n")  # where that takes a second, it comes for the third time
        assert monotonic() - begin >= 1.0 - TOLERANCE
        assert channel_stats(nsqd.http_address, "t13")["timeout_count"] >= 1
        wait_for_counts(nsqd, (1, 0, 0), "t13")
        client.send(b"FIN %b\n" % first.id)
        assert client.frame_after_messages() == (ERROR, b"E_FIN_FAILED FIN %b failed ID not in flight" % first.id)


def test_13_a_message_that_another_has_by_now_is_not_ours(nsqd: Running) -> None:
    with Client(nsqd.tcp_address) as late, Client(nsqd.tcp_address) as other:
        late.identify(msg_timeout=1000)
        late.subscribe("t13b", rdy=1)
        late.publish("t13b", b"a")
        message = late.message()
        late.send(b"RDY 0\n")
        other.subscribe("t13b", rdy=1)
        assert other.message().id == message.id
        late.send(b"FIN %b\n" % message.id)
        error = b"E_FIN_FAILED FIN %b failed client does not own message" % message.id
        assert late.frame_after_messages() == (ERROR, error)  # it comes twice where RDY 0 takes a second


def test_14_touch_extends_by_the_own_timeout_but_not_beyond_the_cap(kind: Kind) -> None:
    with running_nsqd(kind, max_msg_timeout=5) as nsqd, Client(nsqd.tcp_address) as client:
        client.identify(msg_timeout=3000)  # longer than a busy machine lets it go without a TOUCH
        client.subscribe("t14", rdy=1)
        begin = monotonic()
        client.publish("t14", b"a")
        message_id = client.message().id
        client.sock.settimeout(0.3)
        while monotonic() - begin < 60:
            client.send(b"TOUCH %b\n" % message_id)
            try:
                frame = client.frame()
            except TimeoutError:
                continue
            assert monotonic() - begin >= 5.0 - TOLERANCE
            client.sock.settimeout(30)
            if frame[1].startswith(b"E_TOUCH_FAILED"):  # it came after the timeout, before the second delivery
                frame = client.frame()
            assert frame[1][8:10] == b"\0\2", frame
            return
        pytest.fail("no timeout")


def test_15_req_0_goes_to_the_tail_and_counts_an_attempt(nsqd: Running) -> None:
    with Client(nsqd.tcp_address) as client:
        client.subscribe("t15", rdy=1)
        client.publish("t15", b"a", b"b")
        first = client.message()
        client.send(b"REQ %b 0\n" % first.id)
        second = client.message()
        assert (second.body, second.attempts) == (b"b", 1)
        client.send(b"FIN %b\n" % second.id)
        assert client.message() == first._replace(attempts=2)
        assert channel_stats(nsqd.http_address, "t15")["requeue_count"] == 1


def test_15_req_with_a_delay_defers(nsqd: Running) -> None:
    with Client(nsqd.tcp_address) as client:
        client.subscribe("t15delay", rdy=1)
        client.publish("t15delay", b"long", b"short")
        client.send(b"REQ %b 60000\n" % client.message().id)
        first = client.message()
        assert counts(nsqd, "t15delay") == (0, 1, 1)
        begin = monotonic()
        client.send(b"REQ %b 300\n" % first.id)
        assert client.message() == first._replace(attempts=2)
        assert monotonic() - begin >= 0.3 - TOLERANCE


def test_16_req_is_lowered_to_the_maximum_and_dpub_is_refused(kind: Kind) -> None:
    with running_nsqd(kind, max_req_timeout=0.1) as nsqd, Client(nsqd.tcp_address) as client:
        client.subscribe("t16", rdy=1)
        client.publish("t16", b"a")
        first = client.message()
        client.send(b"REQ %b 3600000000\n" % first.id)
        assert client.message() == first._replace(attempts=2)
        client.send(b"DPUB t16 101\n", sized(b"a"))
        client.expect_fatal(b"E_INVALID DPUB timeout 101 out of range 0-100")


def test_17_cls_lets_the_client_finish_and_gives_nothing_new(nsqd: Running) -> None:
    with Client(nsqd.tcp_address) as client:
        client.identify(heartbeat_interval=1000)
        client.subscribe("t17", rdy=3)
        client.publish("t17", b"a", b"b", b"c")
        ids = [client.message().id for _ in range(3)]
        client.send(b"CLS\n")
        client.expect(b"CLOSE_WAIT")
        client.send(b"FIN %b\nTOUCH %b\nREQ %b 0\nNOP\nRDY 5\nRDY nonsense\n" % tuple(ids))
        client.barrier()
        assert counts(nsqd, "t17") == (1, 1, 0)
        assert channel_stats(nsqd.http_address, "t17")["clients"][0]["state"] == 4
        assert client.frame(heartbeats=True) == (RESPONSE, b"_heartbeat_")
        client.send(b"CLS\n")
        client.expect_fatal(b"E_INVALID cannot CLS in current state")


def test_18_after_a_disconnect_messages_come_back_when_they_time_out(nsqd: Running) -> None:
    with Client(nsqd.tcp_address) as client:
        client.identify(msg_timeout=1000)
        client.subscribe("t18", rdy=1)
        begin = monotonic()
        client.publish("t18", b"a")
        first = client.message()
    wait_for(lambda: channel_stats(nsqd.http_address, "t18")["client_count"] == 0)
    with Client(nsqd.tcp_address) as client:
        client.subscribe("t18", rdy=1)
        assert client.message() == first._replace(attempts=2)
        assert monotonic() - begin >= 1.0 - TOLERANCE
        assert channel_stats(nsqd.http_address, "t18")["timeout_count"] == 1


def test_19_a_client_without_a_whole_line_is_closed_after_two_heartbeat_intervals(nsqd: Running) -> None:
    with Client(nsqd.tcp_address) as client:
        begin = monotonic()
        client.identify(heartbeat_interval=1000)
        assert client.frame(heartbeats=True) == (RESPONSE, b"_heartbeat_")
        assert monotonic() - begin >= 1.0 - TOLERANCE
        client.send(b"NO")  # bytes, but no complete line
        ended = False
        while not ended:  # the second heartbeat races with the end
            data = client.sock.recv(100)
            assert data in (b"", b"\0\0\0\x0f\0\0\0\0_heartbeat_")
            ended = not data
        assert monotonic() - begin >= 2.0 - TOLERANCE


def test_19_any_complete_line_keeps_a_client_alive(nsqd: Running) -> None:
    with Client(nsqd.tcp_address) as client:
        client.identify(heartbeat_interval=1000)
        begin = monotonic()
        while monotonic() - begin < 2.9:
            assert client.frame(heartbeats=True) == (RESPONSE, b"_heartbeat_")
            client.send(b"NOP\n")
        client.barrier()


def test_26_channels_get_copies_of_the_same_id_and_later_ones_nothing_old(nsqd: Running) -> None:
    with Client(nsqd.tcp_address) as one, Client(nsqd.tcp_address) as two, Client(nsqd.tcp_address) as three:
        one.publish("t26", b"backlog")
        one.subscribe("t26", "one", rdy=1)
        backlog = one.message()
        assert backlog.body == b"backlog"
        two.subscribe("t26", "two", rdy=1)
        two.publish("t26", b"both")
        one.send(b"FIN %b\n" % backlog.id)
        assert one.message() == two.message()
        three.subscribe("t26", "three", rdy=1)
        three.barrier()
        assert counts(nsqd, "t26", "three") == (0, 0, 0)


def test_27_subscribing_makes_topic_and_channel_publishing_only_the_topic(nsqd: Running) -> None:
    with Client(nsqd.tcp_address) as client:
        client.publish("t27pub", b"a")
        client.subscribe("t27sub")
        assert topic_stats(nsqd.http_address, "t27pub")["channels"] == []
        assert topic_stats(nsqd.http_address, "t27pub")["depth"] == 1
        assert channel_stats(nsqd.http_address, "t27sub") is not None


def test_28_an_ephemeral_channel_goes_with_its_last_consumer_and_takes_its_topic(nsqd: Running) -> None:
    with Client(nsqd.tcp_address) as first:
        with Client(nsqd.tcp_address) as second:
            first.subscribe("t28#ephemeral", "c#ephemeral")
            second.subscribe("t28#ephemeral", "c#ephemeral")
        with Client(nsqd.tcp_address) as durable:
            durable.subscribe("t28", "c#ephemeral")
        wait_for(lambda: topic_stats(nsqd.http_address, "t28")["channels"] == [])
        wait_for(lambda: channel_stats(nsqd.http_address, "t28#ephemeral", "c#ephemeral")["client_count"] == 1)
    wait_for(lambda: topic_stats(nsqd.http_address, "t28#ephemeral") is None)
    assert topic_stats(nsqd.http_address, "t28") is not None


def latencies(nsqd: Running, topic: str, rdy: int, count: int, **fields: int) -> list[float]:
    """Publish messages one after the other; returns the seconds from each publish to its delivery."""
    found = []
    with Client(nsqd.tcp_address) as consumer, Client(nsqd.tcp_address) as publisher:
        consumer.identify(**fields)
        consumer.subscribe(topic, rdy=rdy)
        for _ in range(count):
            begin = monotonic()
            publisher.publish(topic, b"a")
            message = consumer.message()
            found.append(monotonic() - begin)
            consumer.send(b"FIN %b\n" % message.id)
    return found


def test_29_with_rdy_1_a_message_leaves_at_once(nsqd: Running) -> None:
    # Otherwise the client would give up before the ticker ticks.
    assert len(latencies(nsqd, "t29one", 1, 10, output_buffer_timeout=30_000)) == 10


def test_29_with_a_higher_rdy_it_may_wait_for_the_ticker(nsqd: Running) -> None:
    found = latencies(nsqd, "t29ten", 10, 6, output_buffer_timeout=300)
    # The ticker runs freely: the first message meets it anywhere in its period, the others right after a tick, or as
    # soon after it as this process has its turn.
    assert max(found) > 0.2


def test_29_a_response_pushes_buffered_messages_out_before_it(nsqd: Running) -> None:
    with Client(nsqd.tcp_address) as client:
        client.identify(output_buffer_timeout=30000)
        client.subscribe("t29push", rdy=10)
        client.send(b"PUB t29push\n", sized(b"a"))
        client.expect(b"OK")
        wait_for(lambda: counts(nsqd, "t29push") == (0, 1, 0))
        client.send(b"PUB barrier\n", sized(b"x"))
        assert client.message().body == b"a"
        client.expect(b"OK")


def test_29_what_does_not_fit_the_buffer_goes_out(nsqd: Running) -> None:
    with Client(nsqd.tcp_address) as client, Client(nsqd.tcp_address) as publisher:
        client.identify(output_buffer_timeout=30000, output_buffer_size=4096)
        client.subscribe("t29full", rdy=100)
        publisher.publish("t29full", *[b"x" * 1000] * 10)
        received = 0
        while received < 8192:
            received += len(client.sock.recv(65536))
        assert received < 10340
        client.send(b"RDY 0\n")  # with no room for more, the rest is flushed
        while received < 10340:
            received += len(client.sock.recv(65536))


def test_30_without_a_timeout_messages_wait_for_another_cause(nsqd: Running) -> None:
    with Client(nsqd.tcp_address) as client:
        begin = monotonic()
        client.identify(output_buffer_timeout=-1, heartbeat_interval=1000)
        client.subscribe("t30", rdy=10)
        client.publish("t30", b"a")
        assert client.message().body == b"a"
        assert monotonic() - begin >= 1.0 - TOLERANCE  # the heartbeat flushed it
        assert client.frame(heartbeats=True) == (RESPONSE, b"_heartbeat_")


def test_30_an_output_buffer_size_of_minus_1_sends_at_once(nsqd: Running) -> None:
    found = latencies(nsqd, "t30none", 10, 10, output_buffer_timeout=30_000, output_buffer_size=-1)
    assert len(found) == 10  # otherwise the client would give up before the ticker ticks


def test_37_sample_rate_drops_messages_for_good(nsqd: Running) -> None:
    with Client(nsqd.tcp_address) as client, Client(nsqd.tcp_address) as publisher:
        client.identify(sample_rate=20)
        client.subscribe("t37", rdy=2500)
        publisher.publish("t37", *[b"x"] * 2000)  # on another connection: its OK may come after the first messages
        wait_for(lambda: counts(nsqd, "t37")[0] == 0)
        found = channel_stats(nsqd.http_address, "t37")
        assert 300 < found["in_flight_count"] < 540
        assert found["message_count"] == 2000


def test_38_a_paused_channel_delivers_nothing_but_takes_answers(nsqd: Running) -> None:
    with Client(nsqd.tcp_address) as client:
        client.subscribe("t38", rdy=1)
        client.publish("t38", b"a", b"b")
        message_id = client.message().id
        assert post(nsqd.http_address, "/channel/pause?topic=t38&channel=c").status == 200
        client.send(b"FIN %b\n" % message_id)
        client.barrier()
        assert counts(nsqd, "t38") == (1, 0, 0)
        assert channel_stats(nsqd.http_address, "t38")["paused"] is True
        post(nsqd.http_address, "/channel/unpause?topic=t38&channel=c")
        assert client.message().body == b"b"


def test_38_a_paused_topic_keeps_its_messages(nsqd: Running) -> None:
    with Client(nsqd.tcp_address) as client:
        client.subscribe("t38t", rdy=1)
        assert post(nsqd.http_address, "/topic/pause?topic=t38t").status == 200
        client.publish("t38t", b"a")
        assert topic_stats(nsqd.http_address, "t38t")["depth"] == 1
        assert counts(nsqd, "t38t") == (0, 0, 0)
        post(nsqd.http_address, "/topic/unpause?topic=t38t")
        assert client.message().body == b"a"


@pytest.mark.parametrize("path", ["/topic/delete?topic=t39", "/channel/delete?topic=t39&channel=c"])
def test_39_deleting_a_channel_or_topic_closes_its_consumers(nsqd: Running, path: str) -> None:
    with Client(nsqd.tcp_address) as client:
        client.subscribe("t39", rdy=1)
        client.publish("t39", b"a")
        client.message()
        assert post(nsqd.http_address, path).status == 200
        client.expect_end()
    assert channel_stats(nsqd.http_address, "t39") is None


def test_40_emptying_a_channel_forgets_in_flight_and_deferred_and_frees_rdy(nsqd: Running) -> None:
    with Client(nsqd.tcp_address) as client:
        client.subscribe("t40", rdy=1)
        client.publish("t40", b"a", b"b")
        message_id = client.message().id
        client.send(b"DPUB t40 60000\n", sized(b"later"))
        client.expect(b"OK")
        wait_for_counts(nsqd, (1, 1, 1), "t40")
        assert post(nsqd.http_address, "/channel/empty?topic=t40&channel=c").status == 200
        assert counts(nsqd, "t40") == (0, 0, 0)
        client.publish("t40", b"new")
        assert client.message().body == b"new"
        client.send(b"FIN %b\n" % message_id)
        client.expect_error(b"E_FIN_FAILED FIN %b failed ID not in flight" % message_id)


def test_41_shutdown_closes_clients_without_close_wait(kind: Kind) -> None:
    with running_nsqd(kind) as nsqd, Client(nsqd.tcp_address) as client:
        client.subscribe("t41", rdy=1)
        nsqd.stop()
        client.expect_end()


def test_53_a_deferral_begins_when_the_message_reaches_the_channel(nsqd: Running) -> None:
    with Client(nsqd.tcp_address) as client:
        client.send(b"DPUB t53 200\n", sized(b"a"))
        client.expect(b"OK")
        begin = monotonic()
        wait_for(lambda: monotonic() - begin > 0.3)
        assert topic_stats(nsqd.http_address, "t53")["depth"] == 1
        begin = monotonic()
        client.subscribe("t53", rdy=1)
        assert client.message().body == b"a"
        assert monotonic() - begin >= 0.2 - TOLERANCE


def test_54_what_overflows_an_ephemeral_queue_is_dropped_and_published_ok(kind: Kind) -> None:
    with running_nsqd(kind, mem_queue_size=2) as nsqd, Client(nsqd.tcp_address) as client:
        client.subscribe("t54", "c#ephemeral")
        for number in range(10):
            client.publish("t54", b"%d" % number)
        wait_for(lambda: channel_stats(nsqd.http_address, "t54", "c#ephemeral")["message_count"] == 10)
        assert channel_stats(nsqd.http_address, "t54", "c#ephemeral")["depth"] == 2
        client.send(b"RDY 10\n")
        assert [client.message().body for _ in range(2)] == [b"0", b"1"]


def test_57_a_client_that_reads_nothing_is_cut_off(kind: Kind) -> None:
    with running_nsqd(kind) as nsqd, Client(nsqd.tcp_address) as client, Client(nsqd.tcp_address) as publisher:
        client.identify(heartbeat_interval=1000)
        client.subscribe("t57", rdy=2500)
        for _ in range(12):
            publisher.publish("t57", *[b"x" * 1_000_000] * 4)

        def is_gone() -> bool:
            if kind == "ours":  # it sends but does not read; the real one keeps it for as long as commands come
                with contextlib.suppress(ConnectionError):
                    client.send(b"NOP\n")
            return bool(channel_stats(nsqd.http_address, "t57")["client_count"] == 0)

        wait_for(is_gone)


def test_a_client_that_reads_late_gets_everything(nsqd: Running) -> None:
    with Client(nsqd.tcp_address) as client, Client(nsqd.tcp_address) as publisher:
        client.subscribe("late", rdy=100)
        for number in range(40):
            publisher.publish("late", b"%03d" % number * 300_000)
        for number in range(40):
            assert client.message().body == b"%03d" % number * 300_000
        client.barrier()


def test_one_consumer_gets_messages_in_the_order_of_publishing(nsqd: Running) -> None:
    with Client(nsqd.tcp_address) as client:
        client.subscribe("order", rdy=2500)
        for first in range(0, 1000, 100):
            client.send(b"".join(b"PUB order\n" + sized(b"%d" % n) for n in range(first, first + 100)))
        got: list[int] = []
        while len(got) < 1000:
            frame_type, payload = client.frame()
            if frame_type != RESPONSE:
                got.append(int(payload[26:]))
        assert got == list(range(1000))
        assert get(nsqd.http_address, "/ping").body == b"OK"
