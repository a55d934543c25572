"""Nine programs that a newcomer would write after reading README and the pages, with nothing else known.

Each file is written into an empty directory and run as a process against daemons of this test. What is confirmed must
be handled, whatever is killed meanwhile.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import gevent
import pytest
import requests
from gevent.pywsgi import WSGIServer

from gnsq_like.testing import RunningNsqd, running_nsqd, running_nsqlookupd
from tests.support.daemons import wait_for
from tests.support.pages import replaced
from tests.support.scripts import ROOT, run_beside
from tests.support.web import CONF, gunicorn, running

pytestmark = pytest.mark.commands

PATIENCE = 100
ENVIRONMENT = {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}


@pytest.fixture
def nsqd() -> Iterator[RunningNsqd]:
    with running_nsqd() as daemon:
        yield daemon


def write(directory: Path, name: str, text: str, *, nsqd: str = "", lookupd: str = "", **values: str) -> Path:
    """A file of the program, as on the pages; words in capitals are replaced, too."""
    text = replaced(text, {"127.0.0.1:4150": nsqd, "127.0.0.1:4161": lookupd, **values})
    path = directory / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return path


def run(directory: Path, *command: str) -> str:
    """A program that ends by itself; what it prints."""
    done = run_beside([sys.executable, *command], cwd=directory, env=os.environ | ENVIRONMENT)
    assert done.returncode == 0, done.stdout + done.stderr
    return str(done.stdout)


@contextmanager
def consuming(directory: Path, *command: str) -> Iterator[Path]:
    """A program that consumes, and ends in order at SIGTERM; the file with its output."""
    with running(list(command), directory, **ENVIRONMENT) as server:
        yield directory / "log"
        assert server.end(signal.SIGTERM) == 0, server.log


def post(port: int, count: int) -> set[str]:
    """Requests to /clicks, one after the other, as a client that tries again sends them; the pages that were taken."""
    taken = set()

    def ask(page: str) -> int:
        try:
            url = f"http://127.0.0.1:{port}/clicks"
            return int(requests.post(url, data={"page": page}, timeout=60).status_code)
        except requests.RequestException:
            return 0  # its worker was killed

    for number in range(count):
        page = f"/{number}"
        for _ in range(50):
            if gevent.get_hub().threadpool.apply(ask, (page,)) in (202, 204):
                taken.add(page)
                break
            gevent.sleep(0.1)
    return taken


def pages(path: Path) -> set[str]:
    """The pages that handlers have written, one a line."""
    return set(path.read_text().split()) if path.exists() else set()


def worker_of(pid: int) -> int:
    """A child of gunicorn's master."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(children[0])


def test_flask_under_gunicorn_whose_workers_are_killed(tmp_path: Path, nsqd: RunningNsqd) -> None:
    write(
        tmp_path,
        "clicks.py",
        """
        from flask import Flask, request
        from gnsq_like.contrib.flask import NSQ

        app = Flask(__name__)
        app.config["NSQ_NSQD_TCP_ADDRESSES"] = "127.0.0.1:4150"
        nsq = NSQ(app)

        @app.post("/clicks")
        def click():
            nsq.publish("clicks", {"page": request.form["page"]})
            return "", 202

        @nsq.reader("clicks", "archive", max_in_flight=10)
        def archive(message):
            with open("handled", "a") as file:
                file.write(message.json()["page"] + "\\n")
        """,
        nsqd=nsqd.tcp_address,
    )
    flags = ("-k", "gevent", "-w", "2")
    with gunicorn(tmp_path, *flags, conf=CONF, app="clicks:app", NSQ_MSG_TIMEOUT="2") as server:
        taken = post(server.port, 10)
        os.kill(worker_of(server.process.pid), signal.SIGKILL)
        taken |= post(server.port, 20)
        assert len(taken) == 20
        wait_for(lambda: pages(tmp_path / "handled") >= taken, "all clicks", PATIENCE)


def test_django_under_gunicorn_with_readers_that_are_killed(tmp_path: Path, nsqd: RunningNsqd) -> None:
    write(
        tmp_path,
        "settings.py",
        """
        SECRET_KEY, ROOT_URLCONF, ALLOWED_HOSTS = "secret", "urls", ["*"]
        INSTALLED_APPS = ["gnsq_like.contrib.django", "shop"]
        DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.sqlite3"}}
        NSQ = {"NSQD_TCP_ADDRESSES": "127.0.0.1:4150", "MAX_IN_FLIGHT": 5, "MSG_TIMEOUT": 2}
        """,
        nsqd=nsqd.tcp_address,
    )
    write(
        tmp_path,
        "urls.py",
        """
        from django.db import transaction
        from django.http import HttpResponse
        from django.urls import path
        from gnsq_like.contrib.django import publish

        def click(request):
            with transaction.atomic():
                publish("clicks", {"page": request.POST["page"]})
            return HttpResponse(status=204)

        urlpatterns = [path("clicks", click)]
        """,
    )
    write(tmp_path, "shop/__init__.py", "")
    write(
        tmp_path,
        "shop/nsq_readers.py",
        """
        from gnsq_like.contrib.django import reader

        @reader("clicks", "archive")
        def archive(message):
            with open("handled", "a") as file:
                file.write(message.json()["page"] + "\\n")
        """,
    )
    settings = {"DJANGO_SETTINGS_MODULE": "settings", "PYTHONPATH": f"{ROOT}:{tmp_path}"}
    command = ["-m", "django", "nsq_run"]
    app = "django.core.wsgi:get_wsgi_application()"
    with gunicorn(tmp_path, "-k", "gthread", "-w", "2", "--threads", "4", app=app, **settings) as server:
        with running(command, tmp_path, **settings) as readers:
            taken = post(server.port, 10)
            wait_for(lambda: pages(tmp_path / "handled"), "the first click", PATIENCE)
            readers.end(signal.SIGKILL)
        taken |= post(server.port, 20)
        assert len(taken) == 20
        with running(command, tmp_path, **settings) as readers:
            wait_for(lambda: pages(tmp_path / "handled") >= taken, "all clicks", PATIENCE)
            assert readers.end(signal.SIGTERM) == 0


def test_threads_that_share_a_producer_and_handlers_in_threads(tmp_path: Path, nsqd: RunningNsqd) -> None:
    write(
        tmp_path,
        "threads.py",
        """
        import threading
        from gnsq_like import Producer, Reader

        producer = Producer("127.0.0.1:4150")
        seen, lock = set(), threading.Lock()

        def publish(number):
            for click in range(50):
                producer.publish("clicks", b"%d" % (100 * number + click))

        def handler(message):
            with lock:
                seen.add(message.body)
            if len(seen) == 400:
                reader.begin_to_stop()

        threads = [threading.Thread(target=publish, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        options = {"max_in_flight": 20, "spawn": "thread"}
        reader = Reader("clicks", "archive", handler, nsqd_tcp_addresses="127.0.0.1:4150", **options)
        reader.run()
        for thread in threads:
            thread.join()
        producer.close()
        print(len(seen))
        """,
        nsqd=nsqd.tcp_address,
    )
    assert run(tmp_path, "threads.py") == "400\n"


def test_one_reader_of_ten_nsqds(tmp_path: Path) -> None:
    with ExitStack() as stack:
        lookupd = stack.enter_context(running_nsqlookupd())
        nsqds = [
            stack.enter_context(running_nsqd(lookupd_tcp_addresses=[lookupd.tcp_address], node_id=number))
            for number in range(10)
        ]
        for each in nsqds:
            each.publish("clicks", each.tcp_address.encode())
        write(
            tmp_path,
            "ten.py",
            """
            from gnsq_like import Reader

            seen = set()
            reader = Reader("clicks", "archive", lookupd_http_addresses="127.0.0.1:4161", max_in_flight=3)
            for message in reader:
                with message:
                    seen.add(message.body.decode())
                if len(seen) == 10:
                    reader.stop()
            print(*sorted(seen))
            """,
            lookupd=lookupd.http_address,
        )
        assert run(tmp_path, "ten.py").split() == sorted(each.tcp_address for each in nsqds)


def test_a_test_suite_of_ones_own(tmp_path: Path) -> None:
    write(
        tmp_path,
        "test_signups.py",
        """
        import pytest
        from gnsq_like import Producer, Reader

        def signup(name, address):
            with Producer(address) as producer:
                producer.publish("signups", name.encode())

        def test_signup_publishes(nsqd):
            signup("alice", nsqd.tcp_address)
            assert nsqd.messages("signups", "mail")[0].body == b"alice"

        @pytest.mark.nsqd(msg_timeout=1)
        def test_a_failing_mail_is_tried_again(nsqd):
            tries = []

            def mail(message):
                tries.append(message.attempts)
                assert message.attempts > 1

            signup("bob", nsqd.tcp_address)
            options = {"default_requeue_delay": 0, "max_backoff_duration": 0}
            with Reader("signups", "mail", mail, nsqd_tcp_addresses=nsqd.tcp_address, **options):
                nsqd.wait_until("signups", "mail", messages=1, left=0)
            assert tries == [1, 2]

        def test_a_lost_connection_loses_nothing(nsqd, nsq_proxy):
            proxy = nsq_proxy(nsqd)
            with Producer(proxy.address, retry_unknown=True) as producer:
                producer.publish("signups", b"carol")
                proxy.reset()
                producer.publish("signups", b"dave")
            assert {message.body for message in nsqd.messages("signups", count=2)} == {b"carol", b"dave"}
        """,
    )
    assert "3 passed" in run(tmp_path, "-m", "pytest", "-p", "no:cacheprovider", "-W", "error", "test_signups.py")


def test_slow_requests_run_side_by_side(tmp_path: Path, nsqd: RunningNsqd) -> None:
    """In a patched process, and in threads of an unpatched one: each waits until all 20 are there."""
    inside: set[str] = set()

    def slow(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        inside.add(environ["PATH_INFO"])
        wait_for(lambda: len(inside) >= 20, "all requests at once", PATIENCE)
        start_response("200 OK", [("Content-Length", "2")])
        return [b"OK"]

    server = WSGIServer(("127.0.0.1", 0), slow, log=None)
    server.start()
    program = """
        PATCH
        import requests
        from gnsq_like import Reader

        def handler(message):
            requests.post(f"http://127.0.0.1:PORT/{message.id}", timeout=90).raise_for_status()

        Reader("TOPIC", "archive", handler, nsqd_tcp_addresses="127.0.0.1:4150", max_in_flight=20, SPAWN).run()
    """
    ways = {
        "patched": ("from gevent import monkey; monkey.patch_all()", 'spawn="greenlet"'),
        "threads": ("", 'spawn="thread"'),
    }
    try:
        for topic, (patch, spawn) in ways.items():
            inside.clear()
            for _ in range(20):
                nsqd.publish(topic, b"x")
            values = {"PATCH": patch, "PORT": str(server.server_port), "TOPIC": topic, "SPAWN": spawn}
            write(tmp_path, "slow.py", program, nsqd=nsqd.tcp_address, **values)
            with consuming(tmp_path, "slow.py"):
                nsqd.wait_until(topic, "archive", messages=20, left=0, timeout=PATIENCE)
    finally:
        server.stop()


def test_batches_into_a_database(tmp_path: Path, nsqd: RunningNsqd) -> None:
    for number in range(250):
        nsqd.publish("clicks", b"%d" % number)
    write(
        tmp_path,
        "store.py",
        """
        import sqlite3
        from gnsq_like import Batch, Reader

        database = sqlite3.connect("clicks.db")
        database.execute("CREATE TABLE clicks (id TEXT PRIMARY KEY, body INTEGER)")

        def store(messages):
            with database:
                rows = [(message.id, int(message.body)) for message in messages]
                database.executemany("INSERT OR IGNORE INTO clicks VALUES (?, ?)", rows)

        batch = Batch(store, size=100, interval=0.5)
        Reader("clicks", "archive", batch, nsqd_tcp_addresses="127.0.0.1:4150", max_in_flight=200).run()
        """,
        nsqd=nsqd.tcp_address,
    )
    with consuming(tmp_path, "store.py"):
        nsqd.wait_until("clicks", "archive", messages=250, left=0, timeout=PATIENCE)
    [(count, total)] = sqlite3.connect(tmp_path / "clicks.db").execute("SELECT count(*), sum(body) FROM clicks")
    assert (count, total) == (250, sum(range(250)))


def test_sigterm_lets_handlers_finish_and_gives_the_rest_back(tmp_path: Path, nsqd: RunningNsqd) -> None:
    for number in range(10):
        nsqd.publish("clicks", b"%d" % number)
    write(
        tmp_path,
        "drain.py",
        """
        import pathlib, time
        from gevent import sleep
        from gnsq_like import Reader

        def handler(message):
            print("begun", flush=True)
            while not pathlib.Path("go on").exists():
                sleep(0.01)
            print("done", flush=True)

        options = {"max_in_flight": 5, "concurrency": 2}
        Reader("clicks", "archive", handler, nsqd_tcp_addresses="127.0.0.1:4150", **options).run()
        """,
        nsqd=nsqd.tcp_address,
    )
    with running(["drain.py"], tmp_path, **ENVIRONMENT) as server:
        wait_for(lambda: server.log.count("begun") == 2, "two handlers", PATIENCE)
        server.process.send_signal(signal.SIGTERM)
        wait_for(lambda: nsqd.topics()["clicks"].channels["archive"].in_flight == 2, "the rest to go back", PATIENCE)
        (tmp_path / "go on").touch()
        assert server.wait_for_end() == 0
        assert server.log.split() == ["begun", "begun", "done", "done"]
    channel = nsqd.topics()["clicks"].channels["archive"]
    assert (channel.in_flight, channel.left) == (0, 8)


def test_dead_letters_say_why_and_are_replayed(tmp_path: Path, nsqd: RunningNsqd) -> None:
    nsqd.create_channel("clicks.dead", "dead-letters")
    for body in (b'{"page": "/"}', b"{}"):
        nsqd.publish("clicks", body)
    program = """
        from gnsq_like import Producer, Reader, deadletter

        producer = Producer("127.0.0.1:4150")

        def handler(message):
            print(message.json()["page"] if STRICT else message.json(), flush=True)

        reader = Reader(
            "clicks",
            "archive",
            handler,
            nsqd_tcp_addresses="127.0.0.1:4150",
            max_attempts=2,
            default_requeue_delay=0,
            max_backoff_duration=0,
            on_giving_up=deadletter.ToTopic(producer, "clicks.dead"),
        )
        with producer:
            reader.run()
    """
    write(tmp_path, "strict.py", program, nsqd=nsqd.tcp_address, STRICT="True")
    write(tmp_path, "mended.py", program, nsqd=nsqd.tcp_address, STRICT="False")
    with consuming(tmp_path, "strict.py"):
        nsqd.wait_until("clicks", "archive", messages=2, left=0, timeout=PATIENCE)
        nsqd.wait_until("clicks.dead", "dead-letters", messages=1, timeout=PATIENCE)
    where = ("--nsqd-http-address", nsqd.http_address)
    [letter] = json.loads(run(tmp_path, "-m", "gnsq_like", "dlq", "list", "clicks.dead", "--json", *where))
    assert (letter["attempts"], letter["reason"], letter["body"]) == (2, "KeyError: 'page'", "{}")
    assert letter["error_place"].endswith("strict.py:7, in handler")
    assert "1 letter replayed" in run(tmp_path, "-m", "gnsq_like", "dlq", "replay", "clicks.dead", "--all", *where)
    with consuming(tmp_path, "mended.py") as log:
        wait_for(lambda: "{}" in log.read_text(), "the replayed message", PATIENCE)
        nsqd.wait_until("clicks", "archive", left=0, timeout=PATIENCE)
