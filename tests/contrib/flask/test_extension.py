"""The Flask extension in one process: settings, publishing, recording, handlers, the embedded nsqd."""

import asyncio
import json
import re
import threading
import uuid

import gevent
import pytest
from flask import Flask, current_app

from gnsq_like.contrib.flask.extension import NSQ
from gnsq_like.deadletter import ToTopic
from gnsq_like.errors import InvalidName, InvalidOption, NotSent
from tests.support.daemons import running_nsqd, wait_for
from tests.support.web import PATIENT

#: The applications of the test's NSQs, which do not keep them alive.
_apps: list[Flask] = []


def make_app(nsq: NSQ, name: str = "shop", **config) -> Flask:
    app = Flask(name)
    _apps.append(app)
    app.config.update({f"NSQ_{name}": value for name, value in PATIENT.items()} | config)
    nsq.init_app(app)

    @app.post("/click")
    def click():
        nsq.publish("clicks", {"button": "red"}, defer=1.5)
        return "", 204

    return app


# -- recording --------------------------------------------------------------------------------------


def test_recorded_messages_are_in_the_outbox():
    nsq = NSQ()
    app = make_app(nsq, NSQ_RECORD=True)
    assert app.test_client().post("/click").status_code == 204
    nsq.multi_publish("many", [b"1", {"two": 2}])
    nsq.producer.publish_async("later", b"3").get()
    assert [(each.topic, each.body, each.defer) for each in nsq.outbox] == [
        ("clicks", b'{"button": "red"}', 1.5),
        ("many", b"1", None),
        ("many", b'{"two": 2}', None),
        ("later", b"3", None),
    ]
    assert nsq.outbox[0].json() == {"button": "red"}
    nsq.outbox.clear()
    assert nsq.outbox == []


def test_there_is_no_outbox_if_messages_are_sent():
    nsq = NSQ()
    make_app(nsq, NSQ_NSQD_TCP_ADDRESSES="127.0.0.1:1")
    with pytest.raises(RuntimeError, match="NSQ_RECORD"):
        nsq.outbox  # noqa: B018


def test_asynchronous_views_publish():
    nsq = NSQ()
    app = make_app(nsq)
    with nsq.embedded(app) as nsqd:
        call = gevent.get_hub().threadpool.spawn(lambda: asyncio.run(nsq.apublish("clicks", {"button": "red"})))
        call.get(timeout=60)
        [message] = nsqd.messages("clicks", "look", count=1)
    assert message.body == b'{"button": "red"}'


# -- bodies -----------------------------------------------------------------------------------------


def test_anything_but_bytes_becomes_the_applications_json():
    nsq = NSQ()
    make_app(nsq, NSQ_RECORD=True)
    number = uuid.UUID(int=7)
    for body in (b"\x00raw", bytearray(b"array"), memoryview(b"view"), "text", [1], {"id": number}, None):
        nsq.publish("t", body)
    assert [each.body for each in nsq.outbox[:3]] == [b"\x00raw", b"array", b"view"]
    assert [each.json() for each in nsq.outbox[3:]] == ["text", [1], {"id": str(number)}, None]


@pytest.mark.parametrize("encoder", ["msgpack", lambda value: repr(value).encode()])
def test_another_encoder(encoder):
    expected = pytest.importorskip("msgpack").packb([1]) if encoder == "msgpack" else b"[1]"
    nsq = NSQ()
    make_app(nsq, NSQ_RECORD=True, NSQ_ENCODER=encoder)
    nsq.publish("t", [1])
    nsq.publish("t", b"raw")
    assert [each.body for each in nsq.outbox] == [expected, b"raw"]


# -- applications -----------------------------------------------------------------------------------


def test_several_applications_each_with_its_own_producer():
    nsq = NSQ()
    first, second = make_app(nsq, "first", NSQ_RECORD=True), make_app(nsq, "second", NSQ_RECORD=True)
    for app, count in ((first, 1), (second, 2)):
        for _ in range(count):
            app.test_client().post("/click")
    for app, count in ((first, 1), (second, 2)):
        with app.app_context():
            assert len(nsq.outbox) == count
    assert len(nsq.outbox) == 2  # of the last one
    with pytest.raises(RuntimeError, match="2 applications"):
        nsq.publish("t", b"x")


def test_outside_a_context_the_only_application_is_used_in_any_thread():
    nsq = NSQ()
    make_app(nsq, NSQ_RECORD=True)
    thread = threading.Thread(target=nsq.publish, args=("t", b"x"))
    thread.start()
    thread.join()
    assert len(nsq.outbox) == 1


def test_use_before_init_app_is_an_error():
    nsq = NSQ()
    with pytest.raises(RuntimeError, match="no application: call nsq"):
        nsq.publish("t", b"x")
    with Flask("other").app_context(), pytest.raises(RuntimeError, match="init_app"):
        nsq.publish("t", b"x")
    app = Flask("twice")
    nsq.init_app(app)
    with pytest.raises(RuntimeError, match="already"):
        nsq.init_app(app)


def test_wrong_settings_are_errors_of_init_app():
    with pytest.raises(InvalidOption, match="did you mean NSQ_MAX_IN_FLIGHT"):
        make_app(NSQ(), NSQ_MAX_INFLIGHT=3)
    with pytest.raises(InvalidOption, match="NSQ_RECORD"):
        make_app(NSQ(), NSQ_RECORD=3)


def test_without_an_address_an_application_starts_and_a_publish_names_the_setting():
    nsq = NSQ()
    make_app(nsq)
    with pytest.raises(InvalidOption, match="NSQ_NSQD_TCP_ADDRESSES"):
        nsq.publish("t", b"x")


def test_a_publish_that_fails_is_an_error_of_the_request():
    nsq = NSQ()
    app = make_app(nsq, NSQ_NSQD_TCP_ADDRESSES="127.0.0.1:1", NSQ_TIMEOUT=0.2)
    assert app.test_client().post("/click").status_code == 500
    with pytest.raises(NotSent):
        nsq.publish("t", b"x")
    nsq.producer.close()


# -- readers ----------------------------------------------------------------------------------------


def test_a_wrong_declaration_is_an_error_at_once():
    nsq = NSQ()
    with pytest.raises(InvalidName):
        nsq.reader("no topic", "c")(print)
    with pytest.raises(InvalidOption, match="max_in_flight"):
        nsq.reader("t", "c", max_inflight=3)(print)  # type: ignore[call-arg]
    with pytest.raises(InvalidOption, match="size"):
        nsq.reader("t", "c", batch={"size": 0})(print)
    with pytest.raises(InvalidOption, match="a Batch has no argument 'sizes'; did you mean size"):
        nsq.reader("t", "c", batch={"sizes": 5})(print)
    with pytest.raises(InvalidOption, match="batch=500: it must be the arguments of a Batch"):
        nsq.reader("t", "c", batch=500)(print)  # type: ignore[arg-type]
    nsq.reader("t", "c")(print)
    with pytest.raises(InvalidOption, match="already"):
        nsq.reader("t", "d")(print)
    nsq.reader("t", "d", name="other")(print)
    assert nsq.declared_readers == [("print", "t", "c"), ("other", "t", "d")]


def test_a_reader_of_several_topics():
    nsq = NSQ()
    consumed = []
    nsq.reader((name for name in ("t", "u")), "c", name="two")(lambda message: consumed.append(message.topic))
    nsq.reader(re.compile("^event"), "c", name="events")(print)
    with pytest.raises(InvalidName):
        nsq.reader(["t", "no topic"], "c", name="wrong")(print)
    assert nsq.declared_readers == [("two", "t,u", "c"), ("events", "^event", "c")]
    with running_nsqd() as nsqd:
        app = make_app(nsq, NSQ_NSQD_TCP_ADDRESSES=nsqd.tcp_address)
        with app.app_context():
            for topic in ("t", "u"):
                nsq.publish(topic, b"x")
        with nsq.make_readers(["two"])[0]:
            wait_for(lambda: sorted(consumed) == ["t", "u"])
        nsq.producer.close()


def test_settings_and_options_of_readers():
    nsq = NSQ()
    nsq.reader("t", "plain")(lambda message: None)
    nsq.reader("t", "own", name="own", max_in_flight=3, spawn="greenlet", nsqd_tcp_addresses="127.0.0.1:2")(print)
    app = make_app(nsq, NSQ_LOOKUPD_HTTP_ADDRESSES="127.0.0.1:1", NSQ_MAX_IN_FLIGHT=7)
    plain, own = nsq.make_readers()
    assert (plain.max_in_flight, plain.options.spawn) == (7, "thread")  # nothing is patched here
    assert (own.max_in_flight, own.options.spawn) == (3, "greenlet")
    assert own.stats()["known"] == []
    assert [each.channel for each in nsq.make_readers(["own"], app)] == ["own"]
    with pytest.raises(InvalidOption, match="there are: <lambda>, own"):
        nsq.make_readers(["nobody"])


def test_the_decorated_function_is_returned_unchanged():
    nsq = NSQ()

    def handler(message):
        return message

    assert nsq.reader("t", "c")(handler) is handler


def test_handlers_run_in_a_context_of_their_own_each():
    nsq = NSQ()
    seen: list[tuple[str, int]] = []
    torn_down: list[BaseException | None] = []

    @nsq.reader("clicks", "archive", max_in_flight=5)
    def archive(message):
        seen.append((current_app.name, json.loads(message.body)))

    app = make_app(nsq)
    app.teardown_appcontext(torn_down.append)
    with nsq.embedded(app) as nsqd:
        for number in range(10):
            nsq.publish("clicks", number)
        nsqd.wait_until("clicks", "archive", left=0)
    assert sorted(seen) == [("shop", number) for number in range(10)]
    assert torn_down == [None] * 10


def test_a_handler_may_publish_and_batches_and_other_hooks_have_a_context_too():
    nsq = NSQ()
    batches, given_up, expired = [], [], []

    @nsq.reader("first", "c")
    def forward(message):
        nsq.publish("second", message.body)

    @nsq.reader("second", "c", batch={"size": 3, "interval": 0.2}, max_in_flight=10)
    def store(messages):
        batches.append((current_app.name, sorted(message.body for message in messages)))

    @nsq.reader("third", "c", max_attempts=1, on_giving_up=lambda message: given_up.append(current_app.name))
    def fail(message):
        message.requeue(delay=0, backoff=False)

    nsq.reader("old", "c", max_age=1e-6, on_expired=lambda message: expired.append(current_app.name))(print)
    app = make_app(nsq, NSQ_NSQD_TCP_ADDRESSES="127.0.0.1:1")
    with nsq.embedded(app):
        nsq.multi_publish("first", [b"a", b"b", b"c"])
        nsq.publish("third", b"x")
        nsq.publish("old", b"x")
        wait_for(lambda: sum(len(bodies) for _, bodies in batches) == 3 and given_up and expired, "all")
    assert {name for name, _ in batches} | set(given_up) | set(expired) == {"shop"}
    # After the block the settings are as before.
    with pytest.raises(NotSent):
        nsq.publish("first", b"d", timeout=0.1)
    nsq.producer.close()


def test_dead_letters_go_through_the_application():
    nsq = NSQ()
    dead = []

    @nsq.reader("clicks", "c", max_attempts=1, on_giving_up=ToTopic(nsq, "clicks.dead", envelope=False))
    def fail(message):
        message.requeue(delay=0, backoff=False)

    nsq.reader("clicks.dead", "c")(lambda message: dead.append(message.body))
    with nsq.embedded(make_app(nsq)):
        nsq.publish("clicks", b"x")
        wait_for(lambda: dead, "the dead letter")
    assert dead == [b"x"]


def test_consuming_goes_on_while_the_main_thread_blocks():
    nsq = NSQ()
    came = threading.Event()
    nsq.reader("clicks", "archive")(lambda message: came.set())
    with running_nsqd("process") as nsqd:
        app = make_app(nsq, NSQ_NSQD_TCP_ADDRESSES=nsqd.tcp_address)
        with nsq.consuming(app) as group:
            nsq.publish("clicks", b"x")
            assert came.wait(60)  # a native lock: no greenlet of this thread runs meanwhile
            assert [reader.stats()["state"] for reader in group.readers] == ["running"]
        assert [reader.stats()["state"] for reader in group.readers] == ["stopped"]
        nsq.producer.close()


def test_the_health_blueprint_reports_the_readers_of_this_process():
    nsq = NSQ()
    nsq.reader("clicks", "archive")(print)
    app = make_app(nsq, NSQ_NSQD_TCP_ADDRESSES="127.0.0.1:1")
    app.register_blueprint(nsq.health_blueprint())
    client = app.test_client()
    answer = client.get("/healthz").get_json()
    assert (answer["status"], answer["readers"]) == ("ok", [])
    assert [each["problem"] for each in answer["producers"]] == [None]
    with nsq.embedded(app):
        wait_for(lambda: client.get("/healthz").status_code == 200, "a connection")
        assert json.loads(client.get("/healthz").text)["readers"][0]["problem"] is None
    answer = client.get("/healthz")
    assert (answer.status_code, json.loads(answer.text)["readers"][0]["problem"]) == (503, "stopped")


# -- commands ---------------------------------------------------------------------------------------


@pytest.fixture
def command():
    """Runs ``flask nsq ...`` in an application of these settings; gives its outcome."""

    def run(*arguments: str, nsq: NSQ | None = None, input: bytes | None = None, **config):
        return make_app(nsq or NSQ(), **config).test_cli_runner().invoke(args=["nsq", *arguments], input=input)

    return run


@pytest.mark.parametrize(
    ("arguments", "input", "bodies", "defer"),
    [
        (("gr\u00fc\u00df dich\n",), None, ["gr\u00fc\u00df dich\n".encode()], None),
        ((), b"from\x00stdin\n\ntwo", [b"from\x00stdin", b"two"], None),
        (("-", "--defer", "2.5"), b"x\ny\n", [b"x", b"y"], 2.5),
    ],
)
def test_flask_nsq_publish(command, arguments, input, bodies, defer):
    nsq = NSQ()
    done = command("publish", "t", *arguments, nsq=nsq, input=input, NSQ_RECORD=True)
    assert (done.exit_code, done.output) == (0, "")
    assert [(each.topic, each.body, each.defer) for each in nsq.outbox] == [("t", body, defer) for body in bodies]


def test_flask_nsq_list(command):
    nsq = NSQ()
    nsq.reader("clicks", "archive", name="keep")(print)
    nsq.reader("clicks", "mail")(print)
    assert command("list", nsq=nsq).output == "keep clicks archive\nprint clicks mail\n"


@pytest.mark.parametrize(
    ("arguments", "config", "error"),
    [
        (
            ("run", "prnit"),
            {},
            "Error: invalid option names='prnit': there is no reader of this name; there are: print",
        ),
        (
            ("run", "nobody", "--processes=2"),
            {"NSQ_NSQD_TCP_ADDRESSES": "127.0.0.1:1"},
            "Error: invalid option names='nobody'",
        ),
        (("run", "--processes=0"), {}, "Error: Invalid value for '--processes'"),
        (("run",), {}, "Error: invalid option NSQ_NSQD_TCP_ADDRESSES"),
        (
            ("run", "--health", "nowhere"),
            {"NSQ_NSQD_TCP_ADDRESSES": "127.0.0.1:1"},
            "'nowhere': the host or the port is missing",
        ),
        (("publish", "t", "x"), {}, "Error: invalid option NSQ_NSQD_TCP_ADDRESSES"),
        (("publish", "no topic", "x"), {"NSQ_RECORD": True}, "Error: invalid topic name"),
        (
            ("publish", "t", "x"),
            {"NSQ_NSQD_TCP_ADDRESSES": "127.0.0.1:1", "NSQ_TIMEOUT": 0.1},
            "Error: every nsqd is unreachable",
        ),
    ],
)
def test_errors_are_printed_without_a_traceback(command, arguments, config, error):
    nsq = NSQ()
    nsq.reader("clicks", "archive")(print)
    done = command(*arguments, nsq=nsq, **config)
    assert done.exit_code in (1, 2)
    assert error in done.output
    assert isinstance(done.exception, SystemExit)


def test_there_is_nothing_to_run(command):
    done = command("run", NSQ_NSQD_TCP_ADDRESSES="127.0.0.1:1")
    assert (done.exit_code, done.output) == (1, "Error: this application declares no readers (@nsq.reader)\n")
