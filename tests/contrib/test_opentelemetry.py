"""Spans and metrics of real publishes and handlers, in an SDK that keeps them in memory."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from typing import Any

import gevent
import pytest
from opentelemetry.semconv._incubating.attributes import messaging_attributes
from opentelemetry.semconv._incubating.metrics import messaging_metrics
from opentelemetry.semconv.attributes import error_attributes, server_attributes
from opentelemetry.semconv.schemas import Schemas
from opentelemetry.trace import SpanKind, StatusCode

from gnsq_like import Batch, Message, Producer, Reader, Requeue, deadletter
from gnsq_like.contrib.opentelemetry import Tracing
from gnsq_like.contrib.shared.envelope import unpack
from gnsq_like.contrib.shared.telemetry import SCHEMA_URL
from gnsq_like.errors import InvalidBody, InvalidOption, NotSent, PublishRefused
from tests.support.daemons import KINDS, Running, running_nsqd, wait_for
from tests.support.peer import scripted_nsqd
from tests.support.spans import Seen, parent_id, span_id, trace_id

SENT = "messaging.client.sent.messages"
CONSUMED = "messaging.client.consumed.messages"
OPERATION = "messaging.client.operation.duration"
PROCESS = "messaging.process.duration"


@pytest.fixture(scope="module", params=KINDS)
def nsqd(request: pytest.FixtureRequest) -> Iterator[Running]:
    with running_nsqd(request.param) as running:
        yield running


@pytest.fixture
def seen() -> Seen:
    return Seen()


def host_and_port(address: str) -> dict[str, Any]:
    host, _, port = address.rpartition(":")
    return {"server.address": host, "server.port": int(port)}


def consumed(tracing: Tracing, nsqd: Running, topic: str, count: int, handler: Any = None, **options: Any) -> list[Any]:
    """The messages of a topic, as a traced handler gets them."""
    found: list[Any] = []

    def keep(given: Any) -> Any:
        found.append(given)
        return None if handler is None else handler(given)

    wrapped = Batch(keep, **options.pop("batch")) if "batch" in options else keep
    with tracing.reader(topic, "c", wrapped, nsqd_tcp_addresses=nsqd.tcp_address, **options) as reader:
        wait_for(lambda: reader.stats()["finished"] + reader.stats()["requeued"] >= count, "the messages")
    return found


# -- one message ------------------------------------------------------------------------------------


def test_a_request_its_publish_and_its_handler_are_one_trace(nsqd: Running, seen: Seen) -> None:
    tracing = Tracing(cloud_events=["orders"], source="the shop", **seen.providers)
    tracer = seen.tracer_provider.get_tracer("test")
    with tracing.producer(nsqd.tcp_address, encoder="json") as producer:
        with tracer.start_as_current_span("request"):
            producer.publish("orders", {"order": 7})

        def handler(message: Message) -> None:
            with tracer.start_as_current_span("query"):
                assert message.json() == {"order": 7}

        [message] = consumed(tracing, nsqd, "orders", 1, handler)
    [request], [send] = seen.spans("request"), seen.spans("send orders")
    [process], [query] = seen.spans("process orders"), seen.spans("query")
    assert {trace_id(span) for span in (request, send, process, query)} == {trace_id(request)}
    assert [parent_id(span) for span in (send, process, query)] == [span_id(span) for span in (request, send, process)]
    assert [link.context.span_id for link in process.links] == [span_id(send)]
    assert (send.kind, process.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert message.body == b'{"order":7}'


def test_the_attributes(nsqd: Running, seen: Seen) -> None:
    tracing = Tracing(cloud_events=["named"], source="the shop", **seen.providers)
    with tracing.producer(nsqd.tcp_address) as producer:
        producer.publish("named", b"four")
    [message] = consumed(tracing, nsqd, "named", 1)
    [send], [process] = seen.spans("send named"), seen.spans("process named")
    common = {"messaging.system": "nsq", "messaging.destination.name": "named", **host_and_port(nsqd.tcp_address)}
    sent, received = dict(send.attributes or {}), dict(process.attributes or {})
    size = sent.pop("messaging.message.envelope.size")
    assert sent == {
        **common,
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.message.body.size": 4,
    }
    assert received == {
        **common,
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.consumer.group.name": "c",
        "messaging.message.id": message.id,
        "messaging.message.body.size": 4,
        "messaging.message.envelope.size": size,
        "messaging.nsq.attempts": 1,
    }
    for span in (send, process):
        assert span.instrumentation_scope is not None
        assert span.instrumentation_scope.schema_url == SCHEMA_URL


def test_the_metrics(nsqd: Running, seen: Seen) -> None:
    tracing = Tracing(**seen.providers)
    with tracing.producer(nsqd.tcp_address) as producer:
        producer.publish("counted", b"1")
        producer.multi_publish("counted", [b"2", b"3"])
    assert len(consumed(tracing, nsqd, "counted", 3)) == 3
    server = host_and_port(nsqd.tcp_address)
    common = {"messaging.system": "nsq", "messaging.destination.name": "counted", **server}
    send = {**common, "messaging.operation.name": "send", "messaging.operation.type": "send"}
    process = {**common, "messaging.operation.name": "process", "messaging.operation.type": "process"}
    process["messaging.consumer.group.name"] = "c"
    assert seen.metric(SENT) == [(send, 3)]
    assert seen.metric(OPERATION) == [(send, 2)]
    assert seen.metric(CONSUMED) == [(process, 3)]
    assert seen.metric(PROCESS) == [(process, 3)]


def test_a_topic_whose_messages_are_no_events_has_spans_in_traces_of_their_own(nsqd: Running, seen: Seen) -> None:
    tracing = Tracing(cloud_events=["other"], **seen.providers)
    with tracing.producer(nsqd.tcp_address) as producer:
        producer.publish("plain", b"as it is")
    [message] = consumed(tracing, nsqd, "plain", 1)
    [send], [process] = seen.spans("send plain"), seen.spans("process plain")
    assert message.body == b"as it is"
    assert trace_id(send) != trace_id(process)
    assert (parent_id(process), list(process.links)) == (None, [])


def test_a_handler_is_not_a_child_of_what_started_its_reader(nsqd: Running, seen: Seen) -> None:
    tracing = Tracing(**seen.providers)
    with Producer(nsqd.tcp_address) as producer:
        producer.publish("started", b"x")
    with seen.tracer_provider.get_tracer("test").start_as_current_span("start"):
        consumed(tracing, nsqd, "started", 1)
    [process] = seen.spans("process started")
    assert process.parent is None


# -- bodies -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [{"n": [1.10, None]}, "text", 7], ids=repr)
def test_values_become_the_json_of_an_event(nsqd: Running, value: Any) -> None:
    with Tracing(cloud_events=True).producer(nsqd.tcp_address, encoder="json") as producer:
        producer.publish("json", value)
    with Reader("json", "c", nsqd_tcp_addresses=nsqd.tcp_address) as reader:
        message = next(iter(reader))
        message.finish()
    assert json.loads(message.body)["data"] == value
    event = unpack(message.body)
    assert event is not None
    assert json.loads(event.data) == value


def test_what_check_returns_is_published_as_json(nsqd: Running, seen: Seen) -> None:
    """Django checks a message when it is published, and sends it after the commit."""
    tracing = Tracing(cloud_events=["checked"], **seen.providers)

    def encode(value: Any) -> bytes:
        return value if isinstance(value, bytes) else json.dumps(value).encode()

    with tracing.producer(nsqd.tcp_address, encoder=encode) as producer:
        producer.publish("checked", producer.check("checked", {"a": 1}))
        producer.publish("checked", producer.check("checked", b'{"a": 1}'))
    with Reader("checked", "c", nsqd_tcp_addresses=nsqd.tcp_address, max_in_flight=2) as reader:
        bodies = []
        for message in reader:
            message.finish()
            bodies.append(json.loads(message.body))
            if len(bodies) == 2:
                break
    assert sorted("data" in body for body in bodies) == [False, True]


def test_readers_accept_other_bodies(nsqd: Running, seen: Seen) -> None:
    tracing = Tracing(cloud_events=["mixed"], **seen.providers)
    event = {"type": "t", "data": {"n": 1}, "source": "s", "id": "1", "specversion": "1.0"}  # of another program
    bodies = [b"plain", json.dumps(event).encode()]
    with Producer(nsqd.tcp_address) as producer:
        producer.multi_publish("mixed", bodies)
    messages = consumed(tracing, nsqd, "mixed", 2)
    assert sorted(message.body for message in messages) == sorted(bodies)


@pytest.mark.parametrize("method", ["publish", "multi_publish"])
def test_an_event_is_published_unchanged(nsqd: Running, seen: Seen, method: str) -> None:
    """So that a dead letter, or what an outbox has kept, continues its trace."""
    tracing = Tracing(cloud_events=["again"], **seen.providers)
    with seen.tracer_provider.get_tracer("test").start_as_current_span("request") as request:
        kept = tracing.event("again", b'{"order":7}', is_json=True)
    assert tracing.event("elsewhere", b"x") == b"x"
    with tracing.producer(nsqd.tcp_address) as producer:
        getattr(producer, method)("again", [kept] if method == "multi_publish" else kept)
    [message] = consumed(tracing, nsqd, "again", 1)
    assert message.body == b'{"order":7}'
    [send], [process] = seen.spans("send again"), seen.spans("process again")
    assert parent_id(process) == request.get_span_context().span_id
    assert parent_id(send) is None
    assert [link.context.span_id for link in send.links] == [request.get_span_context().span_id]


@pytest.mark.parametrize("decoder", ["json", json.loads], ids=["name", "function"])
def test_a_decoder_gets_the_data(nsqd: Running, decoder: Any) -> None:
    tracing = Tracing(cloud_events=["decoded"])
    with tracing.producer(nsqd.tcp_address) as producer:
        producer.publish("decoded", b"[1]")
    [message] = consumed(tracing, nsqd, "decoded", 1, decoder=decoder)
    assert (message.data, message.body) == ([1], b"[1]")


@pytest.mark.parametrize("body", ["text", b"", b"x" * 2000, 7])
def test_local_errors_are_those_of_a_plain_producer_and_no_spans(seen: Seen, body: Any) -> None:
    options: dict[str, Any] = {"max_msg_bytes": 1000}
    plain = Producer("127.0.0.1:1", **options)
    traced = Tracing(cloud_events=True, **seen.providers).producer("127.0.0.1:1", **options)
    for method in ("publish", "publish_async", "check"):
        with pytest.raises(InvalidBody) as expected:
            getattr(plain, method)("t", body)
        with pytest.raises(InvalidBody) as found:
            getattr(traced, method)("t", body)
        assert str(found.value) == str(expected.value)
    assert seen.spans() == []
    for bodies in ([b"fine", body], body):
        with pytest.raises(InvalidBody) as expected:
            plain.multi_publish("t", bodies)
        with pytest.raises(InvalidBody) as found:
            traced.multi_publish("t", bodies)
        assert str(found.value) == str(expected.value)
    assert seen.metric(SENT) == []


# -- several messages -------------------------------------------------------------------------------


def test_a_batch_is_one_span_with_links(nsqd: Running, seen: Seen) -> None:
    tracing = Tracing(cloud_events=["batched"], **seen.providers)
    with tracing.producer(nsqd.tcp_address) as producer:
        producer.multi_publish("batched", [b"1", b"2"])
        producer.publish("batched", b"3")
    with Producer(nsqd.tcp_address) as plain:
        plain.publish("batched", b"4")
    [batch] = consumed(tracing, nsqd, "batched", 4, batch={"size": 4, "interval": 50}, max_in_flight=5)
    assert sorted(message.body for message in batch) == [b"1", b"2", b"3", b"4"]
    many, one = seen.spans("send batched")
    assert (many.attributes or {})["messaging.batch.message_count"] == 2
    [process] = seen.spans("process batched")
    attributes = process.attributes or {}
    assert attributes["messaging.batch.message_count"] == 4
    assert "messaging.message.id" not in attributes
    assert process.parent is None
    linked = {str((link.attributes or {})["messaging.message.id"]): link.context.span_id for link in process.links}
    assert sorted(linked.values()) == sorted([span_id(many), span_id(many), span_id(one)])
    assert set(linked) == {message.id for message in batch if message.body != b"4"}
    [(_, count)] = seen.metric(CONSUMED)
    assert count == 4


def test_a_loop_over_a_reader(nsqd: Running, seen: Seen) -> None:
    tracing = Tracing(cloud_events=["looped"], **seen.providers)
    with tracing.producer(nsqd.tcp_address) as producer:
        producer.publish("looped", b"x")
    for message in (reader := tracing.reader("looped", "c", nsqd_tcp_addresses=nsqd.tcp_address)):
        with message, tracing.processing(message):
            assert message.body == b"x"
        reader.stop()
    reader.wait()
    [send], [process] = seen.spans("send looped"), seen.spans("process looped")
    assert parent_id(process) == span_id(send)


# -- failures ---------------------------------------------------------------------------------------


def failing(message: Message) -> bool | None:
    if message.body == b"false":
        return False
    if message.body == b"later":
        raise Requeue(delay=1000)
    raise ValueError("as it should")


@pytest.mark.parametrize(
    ("body", "status", "error"),
    [
        (b"raise", StatusCode.ERROR, "ValueError"),
        (b"false", StatusCode.ERROR, "returned_false"),
        (b"later", StatusCode.UNSET, None),
    ],
)
def test_a_handler_that_fails(nsqd: Running, seen: Seen, body: bytes, status: StatusCode, error: str | None) -> None:
    tracing = Tracing(**seen.providers)
    topic = f"failing_{body.decode()}"
    with tracing.producer(nsqd.tcp_address) as producer:
        producer.publish(topic, body)
    consumed(tracing, nsqd, topic, 1, failing, default_requeue_delay=1000)
    [process] = seen.spans(f"process {topic}")
    assert (process.status.status_code, (process.attributes or {}).get("error.type")) == (status, error)
    [(attributes, count)] = seen.metric(CONSUMED)
    assert (attributes.get("error.type"), count) == (error, 1)
    events = {"raise": ["exception"], "false": [], "later": ["requeue"]}
    assert [event.name for event in process.events] == events[body.decode()]


def failing_later(message: Message) -> None:
    """As a handler that has given a message to other greenlets."""
    message.enable_async()
    gevent.spawn(message.fail, ValueError("as it should"))


@pytest.mark.parametrize("handler", [failing, lambda message: False, failing_later], ids=["raises", "False", "later"])
def test_a_message_that_is_given_up_keeps_its_trace(nsqd: Running, seen: Seen, handler: Any) -> None:
    topic = f"hopeless_{random.getrandbits(32)}"
    tracing = Tracing(cloud_events=[topic], **seen.providers)
    with tracing.producer(nsqd.tcp_address) as producer:
        producer.publish(topic, b"x")
        reader = tracing.reader(
            topic,
            "c",
            handler,
            nsqd_tcp_addresses=nsqd.tcp_address,
            max_attempts=1,
            default_requeue_delay=0,
            max_backoff_duration=0,
            on_giving_up=deadletter.ToTopic(producer, f"{topic}.dead", envelope=False),
        )
        with reader:
            wait_for(lambda: reader.stats()["given_up"] == 1, "the end")
        with Reader(f"{topic}.dead", "c", nsqd_tcp_addresses=nsqd.tcp_address) as dead:
            letter = next(iter(dead))
            letter.finish()
    [send], [dead_send] = seen.spans(f"send {topic}"), seen.spans(f"send {topic}.dead")
    [giving_up] = seen.spans(f"give_up {topic}")
    assert parent_id(giving_up) == span_id(send)
    assert parent_id(dead_send) == span_id(giving_up)
    event = unpack(letter.body)
    assert event is not None
    assert event.data == b"x"


@pytest.mark.parametrize("how", ["publish", "publish_async", "multi_publish", "apublish"])
def test_a_publish_that_is_refused(seen: Seen, how: str) -> None:
    with (
        scripted_nsqd() as nsqd,
        Tracing(**seen.providers).producer(nsqd.address, timeout=60, own_thread=True) as producer,
    ):

        def publish() -> None:
            if how == "apublish":
                asyncio.run(producer.apublish("t", b"x"))
                return
            result = getattr(producer, how)("t", [b"x"] if how == "multi_publish" else b"x")
            if result is not None:
                result.get()

        call = gevent.get_hub().threadpool.spawn(publish)
        peer = nsqd.accept()
        peer.identify(version="1.3.0")
        peer.line()
        peer.body()
        peer.error("E_BAD_TOPIC no such thing")
        with pytest.raises(PublishRefused):
            call.get(timeout=60)
        wait_for(lambda: seen.spans("send t"), "the span")
        [send] = seen.spans("send t")
        assert send.status.status_code is StatusCode.ERROR
        assert (send.attributes or {})["error.type"] == "E_BAD_TOPIC"
        [(attributes, count)] = seen.metric(SENT)
        assert (attributes["error.type"], count) == ("E_BAD_TOPIC", 1)
        assert attributes.items() >= host_and_port(nsqd.address).items()


def test_a_publish_that_is_not_sent(seen: Seen) -> None:
    with (
        Tracing(**seen.providers).producer(["127.0.0.1:1", "127.0.0.1:2"], timeout=0.1) as producer,
        pytest.raises(NotSent),
    ):
        producer.publish("t", b"x")
    [(attributes, count)] = seen.metric(SENT)
    assert (attributes["error.type"], count) == ("gnsq_like.errors.NotSent", 1)
    assert "server.address" not in attributes


def test_a_span_of_publish_async_ends_with_the_answer(nsqd: Running, seen: Seen) -> None:
    with Tracing(**seen.providers).producer(nsqd.tcp_address, own_thread=True) as producer:
        producer.publish_async("unwaited", b"x")
        wait_for(lambda: seen.spans("send unwaited"), "the span, though nobody waits for the result")
        wait_for(lambda: seen.metric(SENT), "the metric, which is recorded after the span")
        assert seen.metric(SENT)[0][1] == 1


# -- the rest ---------------------------------------------------------------------------------------


def test_functions_that_cannot_work_are_refused_as_by_a_plain_reader() -> None:
    async def handler(message: Message) -> None: ...

    tracing = Tracing()
    wrong: list[tuple[Any, dict[str, Any]]] = [
        (handler, {}),
        (lambda: None, {}),
        (print, {"on_giving_up": lambda: None}),
    ]
    for function, options in wrong:
        with pytest.raises(InvalidOption):
            tracing.reader("t", "c", function, nsqd_tcp_addresses="127.0.0.1:1", **options)


def test_addresses_may_come_in_an_iterator(nsqd: Running) -> None:
    tracing = Tracing()
    with tracing.producer(iter([nsqd.tcp_address])) as producer:
        producer.publish("iterated", b"x")
    with tracing.reader(iter(["iterated"]), "c", nsqd_tcp_addresses=iter([nsqd.tcp_address])) as reader:
        message = next(iter(reader))
        message.finish()
    assert message.body == b"x"


@pytest.mark.parametrize("wrong", ["orders", 7, None])
def test_topics_that_are_none(wrong: Any) -> None:
    with pytest.raises(InvalidOption, match="cloud_events"):
        Tracing(cloud_events=wrong)


def test_without_an_sdk_messages_are_events_without_a_trace(nsqd: Running) -> None:
    with Tracing(cloud_events=["untraced"]).producer(nsqd.tcp_address) as producer:
        producer.publish("untraced", b"x")
    [message] = consumed(Tracing(cloud_events=["untraced"]), nsqd, "untraced", 1)
    assert message.body == b"x"


def test_the_names_are_those_of_opentelemetry(nsqd: Running, seen: Seen) -> None:
    assert Schemas.V1_37_0.value == SCHEMA_URL
    known = {
        value
        for module in (messaging_attributes, error_attributes, server_attributes)
        for value in vars(module).values()
        if isinstance(value, str)
    }
    tracing = Tracing(cloud_events=True, **seen.providers)
    with tracing.producer(nsqd.tcp_address) as producer:
        producer.multi_publish("names", [b"1", b"2"])
    consumed(tracing, nsqd, "names", 2, failing, default_requeue_delay=1000, max_in_flight=2)
    used = {name for span in seen.spans() for name in span.attributes or {}}
    assert {name for name in used if not name.startswith("messaging.nsq.")} <= known
    names = {value for name, value in vars(messaging_metrics).items() if name.startswith("MESSAGING_")}
    assert {SENT, CONSUMED, OPERATION, PROCESS} <= names
    assert all(seen.metric(name) for name in (SENT, CONSUMED, OPERATION, PROCESS))
