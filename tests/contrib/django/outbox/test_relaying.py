"""nsq_relay and nsq_run --relay as processes; and the campaign of ``tests/support/outboxes.py``.

``GNSQ_LIKE_ORDERS=10000 pytest tests/contrib/django/outbox/test_relaying.py -m servers -k campaign`` is the full one.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.daemons import running_nsqd, wait_for
from tests.support.django_project import Project
from tests.support.outboxes import ORDERS, Campaign
from tests.support.web import Server, channel_of, get

pytestmark = [pytest.mark.servers, pytest.mark.timeout(900 + ORDERS // 5)]


def test_messages_are_relayed_and_reported(project: Project) -> None:
    with running_nsqd("process") as nsqd:
        environment: dict[str, Any] = {"NSQ_NSQD_TCP_ADDRESSES": nsqd.tcp_address, "NSQ_METRICS": "1"}
        assert project.manage("place_orders", "early", "20", **environment).returncode == 0
        done = project.manage("nsq_relay", "--once", **environment)
        assert (done.stdout, done.stderr) == ("Published 16\n", "")
        listening = r"health on http://127\.0\.0\.1:(\d+)/healthz"
        relay = project.running("nsq_relay", "--health", "127.0.0.1:0", listening=listening, **environment)
        with relay as server:
            assert project.manage("place_orders", "late", "20", **environment).returncode == 0
            committed = len(server.noted("committed"))
            wait_for(lambda: json.loads(get(server.port, "/healthz")[1])["outboxes"][0]["published"] == committed - 16)
            status, answer = get(server.port, "/healthz")
            assert (status, json.loads(answer)["status"]) == (200, "ok")
            nsqd.stop()
            assert project.manage("place_orders", "waiting", "20", **environment).returncode == 0
            wait_for(lambda: json.loads(get(server.port, "/healthz")[1])["status"] == "degraded")
            wait_for(lambda: 'nsq_outbox_waiting_messages{outbox="default"} 0.0' not in get(server.port, "/metrics")[1])
            nsqd.start()
            wait_for(lambda: json.loads(get(server.port, "/healthz")[1])["status"] == "ok")
            committed = len(server.noted("committed"))
            wait_for(
                lambda: (
                    f'nsq_outbox_published_messages_total{{outbox="default"}} {committed - 16}.0'
                    in get(server.port, "/metrics")[1]
                )
            )
            assert server.end() == 0


@pytest.mark.parametrize("patched", ["", "1"])
def test_readers_and_the_relay_in_one_process(project: Project, patched: str) -> None:
    with running_nsqd("process") as nsqd:
        environment: dict[str, Any] = {"NSQ_NSQD_TCP_ADDRESSES": nsqd.tcp_address, "PATCHED": patched}
        with project.running("nsq_run", "book", "--relay", **environment) as server:
            assert project.manage("place_orders", "some", "20", **environment).returncode == 0
            wait_for(lambda: len(project.lines("book")) == len(server.noted("committed")), "the readers")
            assert server.end() == 0
        assert channel_of(nsqd, "orders")["depth"] == 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["nsq_run", "--relay", "--processes", "2"], "--relay needs a single process"),
        (["nsq_relay", "--database", "none"], "There is no database 'none' in DATABASES."),
        (["nsq_relay", "--health", "nowhere"], "invalid address 'nowhere'"),
    ],
)
def test_what_is_wrong_is_said(project: Project, arguments: list[str], text: str) -> None:
    done = project.manage(*arguments, NSQ_NSQD_TCP_ADDRESSES="127.0.0.1:1")
    assert done.returncode == 1
    assert f"CommandError: {text}" in done.stderr


# -- the campaign ---------------------------------------------------------------------------------------


UNPUBLISHED = "SELECT count(*) FROM gnsq_like_outbox_outboxmessage WHERE published_at IS NULL"


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("kind", ["process", pytest.param("real", marks=pytest.mark.real_nsqd)])
def test_campaign(
    project: Project,
    database: tuple[dict[str, Any], Callable[[str], list[Any]]],
    kind: str,
    replicas: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    common, ask = database
    commands = {"relay": ["nsq_relay"], "orders": ["place_orders"]}

    def start(what: str, *arguments: str, **environment: str) -> Server:
        command = ["-u", "manage.py", *commands[what], *arguments]
        return Server(command, project.path, **environment, **common)

    campaign = Campaign(kind, start, lambda: ask(UNPUBLISHED)[0][0], seed=1, replicas=replicas)
    campaign.run()
    campaign.check()
    with capsys.disabled():
        print(f"\n{'postgresql' if common else 'sqlite'}, {kind}, replicas={replicas}: {campaign.report()}")
