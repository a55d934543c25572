"""Tasks while workers and relays are killed at random: each runs, and each result is right.

``GNSQ_LIKE_TASKS=5000 pytest tests/contrib/django/tasks/test_campaign.py -m servers`` is the full one.
"""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Callable
from typing import Any

import gevent
import pytest

from tests.support.daemons import running_nsqd, wait_for
from tests.support.django_project import Project
from tests.support.web import Server

#: Tasks in all.
TASKS = int(os.environ.get("GNSQ_LIKE_TASKS", "200"))
#: Seconds for the end; the machine may do other things.
_PATIENCE = 300.0 + TASKS / 5

pytestmark = [pytest.mark.servers, pytest.mark.timeout(900 + TASKS)]


def test_each_task_runs_and_has_its_result(
    project: Project, database: tuple[dict[str, Any], Callable[[str], list[Any]]], capsys: pytest.CaptureFixture[str]
) -> None:
    common, ask = database
    with running_nsqd("process") as nsqd:
        environment: dict[str, Any] = {**common, "TASKS": "1", "NSQ_NSQD_TCP_ADDRESSES": nsqd.tcp_address}
        migrated = project.manage("migrate", "--verbosity", "0", **environment)
        assert migrated.returncode == 0, migrated.stderr

        def start(*arguments: str) -> Server:
            return Server(["-u", "manage.py", *arguments], project.path, **environment)

        def worker() -> Server:
            return start("nsq_run", "tasks.default", "--relay")

        servers = [worker(), worker()]
        enqueueing = [start("enqueue_tasks", f"some{number}", str(TASKS // 2)) for number in range(2)]
        try:
            kills = _kill_until(lambda: all(each.process.poll() is not None for each in enqueueing), servers, worker)
            assert [each.process.returncode for each in enqueueing] == [0, 0], servers[0].log
            unfinished = "SELECT count(*) FROM gnsq_like_tasks_taskrecord WHERE finished_at IS NULL"
            wait_for(lambda: ask(unfinished)[0][0] == 0, "all results", _PATIENCE)
            # One that is still starting has no handler for the signal yet.
            assert {server.end() for server in servers} <= {0, -signal.SIGTERM}, servers[0].log
        finally:
            for server in [*servers, *enqueueing]:
                server.close()
    enqueued = dict(each.split() for each in servers[0].noted("enqueued"))
    assert len(enqueued) == TASKS
    ran = servers[0].noted("task_ran")
    assert set(ran) == set(enqueued.values())
    query = "SELECT id, status, return_value, errors, worker_ids FROM gnsq_like_tasks_taskrecord"
    decode = _same if common else _from_text
    rows = {number: (status, *map(decode, members)) for number, status, *members in ask(query)}
    assert set(rows) == set(enqueued)
    for number, (status, value, errors, worker_ids) in rows.items():
        name = enqueued[number]
        assert (status, value) == (("FAILED", None) if name.endswith("99") else ("SUCCESSFUL", name))
        assert worker_ids
        assert bool(errors) == name.endswith(("99", "7")) or len(worker_ids) > 1
    with capsys.disabled():
        figures = {"tasks": TASKS, "runs": len(ran), "workers killed": kills}
        print(f"\n{'postgresql' if common else 'sqlite'}: {json.dumps(figures)}")


def _same(member: Any) -> Any:
    """A JSON column of PostgreSQL, which its driver has decoded."""
    return member


def _from_text(member: str | None) -> Any:
    """A JSON column of SQLite."""
    return None if member is None else json.loads(member)


def _kill_until(is_done: Callable[[], bool], servers: list[Server], start: Callable[[], Server]) -> int:
    """Kill and replace workers until then, and at least three times; returns how often."""
    chance = random.Random(1)
    kills = 0
    while kills < 3 or not is_done():
        gevent.sleep(chance.uniform(0.1, 3.0))
        victim = chance.randrange(len(servers))
        servers[victim].end(signal.SIGKILL)
        servers[victim] = start()
        kills += 1
    return kills
