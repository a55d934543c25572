"""The backend for tasks: with Django's own framework, or its backport on an older Django.

``test_django6.py`` runs this module with Django 6, where there is a Python for it.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.db import connections, transaction
from django.test import override_settings
from django.utils import timezone

from gnsq_like import Producer, ReaderGroup, Requeue
from gnsq_like.contrib.django import make_readers, readers, testing
from gnsq_like.contrib.django.management.commands import nsq_prune_tasks
from gnsq_like.contrib.django.outbox import relaying
from gnsq_like.contrib.django.readers import declared
from gnsq_like.contrib.django.tasks.framework import (
    InvalidTask,
    TaskResultDoesNotExist,
    TaskResultStatus,
    signals,
)
from gnsq_like.contrib.django.tasks.models import TaskRecord
from gnsq_like.contrib.django.tasks.running import Call
from gnsq_like.contrib.django.testing import deliver, recording
from gnsq_like.errors import DecodeError, NotSent
from gnsq_like.testing import RunningNsqd, running_nsqd
from tests.contrib.django.tasks import tasks_app
from tests.support.daemons import wait_for
from tests.support.patient import NsqdHTTPClient
from tests.support.postgres import migrated
from tests.support.scripts import run_script
from tests.support.web import PATIENT, channel_of

BACKEND = "gnsq_like.contrib.django.tasks.NSQBackend"
TABLE = "gnsq_like.contrib.django.tasks"
APPS = ["gnsq_like.contrib.django", "gnsq_like.contrib.django.outbox"]


@pytest.fixture(autouse=True)
def nothing_ran() -> Iterator[None]:
    tasks_app.ran.clear()
    tasks_app.failures.clear()
    yield
    relaying.made.clear()


@pytest.fixture
def using(tmp_path: Path) -> Iterator[str]:
    settings = {"ENGINE": "django.db.backends.sqlite3", "NAME": tmp_path / "tasks.sqlite3"}
    with (
        override_settings(INSTALLED_APPS=[*APPS, TABLE]),
        migrated("tasks", settings, "gnsq_like_outbox", "gnsq_like_tasks") as alias,
    ):
        yield alias


@pytest.fixture
def nsqd() -> Iterator[RunningNsqd]:
    with running_nsqd(max_req_timeout=3600.0) as daemon, nsq(daemon):
        yield daemon


def nsq(daemon: RunningNsqd, **more: Any) -> Any:
    settings = {"DEFAULT_REQUEUE_DELAY": 0, "MAX_BACKOFF_DURATION": 0, "MAX_ATTEMPTS": 3}
    return override_settings(NSQ={"NSQD_TCP_ADDRESSES": daemon.tcp_address, **PATIENT, **settings, **more})


def tasks(using: str = "default", queues: Any = ("default", "mail"), **options: Any) -> Any:
    backend = {"BACKEND": BACKEND, "QUEUES": list(queues), "OPTIONS": {"database": using, **options}}
    return override_settings(TASKS={"default": backend})


@contextmanager
def workers(*names: str) -> Iterator[None]:
    with ReaderGroup(*make_readers(*names), own_thread=True):
        yield
    readers.made.clear()


@contextmanager
def heard(signal: Any) -> Iterator[list[tuple[str, str]]]:
    """The ids and states in a signal."""
    found: list[tuple[str, str]] = []

    def receive(task_result: Any, **_: Any) -> None:
        found.append((task_result.id, str(task_result.status)))

    signal.connect(receive)
    try:
        yield found
    finally:
        signal.disconnect(receive)


def held(nsqd: RunningNsqd, topic: str = "tasks.default") -> int:
    with NsqdHTTPClient(nsqd.http_address) as client:
        return sum(each["message_count"] for each in client.stats(topic=topic)["topics"])


def test_a_task_goes_its_way(nsqd: RunningNsqd, using: str) -> None:
    with tasks(using), heard(signals.task_enqueued) as enqueued, heard(signals.task_started) as started:
        with heard(signals.task_finished) as finished, workers():
            result = tasks_app.add.enqueue(1, two=2)
            assert (result.status, result.args, result.kwargs) == (TaskResultStatus.READY, [1], {"two": 2})
            wait_for(lambda: tasks_app.add.get_result(result.id).is_finished, "the result")
        result.refresh()
        assert (result.return_value, result.attempts, result.errors) == (3, 1, [])
        assert result.enqueued_at <= result.started_at == result.last_attempted_at <= result.finished_at
    assert tasks_app.ran == [(1, 2)]
    assert (enqueued, started, finished) == (
        [(result.id, "READY")],
        [(result.id, "RUNNING")],
        [(result.id, "SUCCESSFUL")],
    )


def test_the_message_is_json_that_others_can_read(nsqd: RunningNsqd) -> None:
    with tasks(), recording() as published:
        after = timezone.now() + timedelta(seconds=50)
        result = tasks_app.add.using(run_after=after).enqueue(1, two=2)
    [message] = published
    body = message.json()
    assert datetime.fromisoformat(body.pop("run_after")) == after
    assert datetime.fromisoformat(body.pop("enqueued_at")) == result.enqueued_at
    assert body == {
        "id": result.id,
        "module_path": "tests.contrib.django.tasks.tasks_app.add",
        "args": [1],
        "kwargs": {"two": 2},
        "queue_name": "default",
    }
    assert message.topic == "tasks.default"
    assert message.defer is not None
    assert 40 < message.defer <= 50


def test_without_the_table_there_are_no_results(nsqd: RunningNsqd) -> None:
    with tasks(), workers():
        result = tasks_app.looking.enqueue()
        wait_for(lambda: tasks_app.ran, "the task")
        assert not result.task.get_backend().supports_get_result
        with pytest.raises(NotImplementedError):
            result.refresh()
    assert tasks_app.ran == [1]


@pytest.mark.parametrize("enqueue", ["enqueue", "aenqueue"])
def test_async_tasks(nsqd: RunningNsqd, using: str, enqueue: str) -> None:
    with tasks(using), workers():
        if enqueue == "enqueue":
            result = tasks_app.add_later.enqueue(1, 2)
        else:
            result = asyncio.run(tasks_app.add_later.aenqueue(1, 2))
        wait_for(lambda: tasks_app.add_later.get_result(result.id).is_finished, "the result")
        result.refresh()
        assert result.return_value == 3


def test_async_tasks_of_a_patched_process_print_nothing_and_let_it_end() -> None:
    """They run in threads of the hub's pool."""
    run_script(
        f"""
        from gevent import monkey
        monkey.patch_all()
        import django
        from django.conf import settings
        settings.configure(
            INSTALLED_APPS=["gnsq_like.contrib.django"],
            NSQ={{"NSQD_TCP_ADDRESSES": "127.0.0.1:1"}},
            TASKS={{"default": {{"BACKEND": "{BACKEND}"}}}},
            LOGGING_CONFIG=None,  # Django 6 logs the states of tasks
        )
        django.setup()
        from gnsq_like.contrib.django.testing import deliver, recording
        from tests.contrib.django.tasks import tasks_app

        with recording() as published:
            for one in (1, "one"):
                tasks_app.add_later.enqueue(one, 2)
            good, bad = published
            assert deliver([good])[0].answer == "FIN"
            try:
                deliver([bad])
            except TypeError:
                pass
            else:
                raise AssertionError("no exception")
        assert tasks_app.ran == [(1, 2), ("one", 2)]
        """
    )


def test_what_is_wrong_is_refused_at_once(nsqd: RunningNsqd) -> None:
    with tasks():
        with pytest.raises(InvalidTask, match="priority"):
            tasks_app.add.using(priority=5)
        with pytest.raises(InvalidTask, match="Queue 'other'"):
            tasks_app.add.using(queue_name="other")
        with pytest.raises(TypeError):
            tasks_app.add.enqueue(object())
        with pytest.raises(ValueError, match="JSON"):
            tasks_app.add.enqueue(float("nan"))
        with pytest.raises(TypeError):
            tasks_app.add.enqueue(two=timedelta(1))
    with tasks(queues=["two words"]), pytest.raises(InvalidTask, match="invalid topic name"):
        tasks_app.add.using(queue_name="two words").enqueue(1)
    with tasks(topic={"mail": "mails"}), pytest.raises(InvalidTask, match="no topic for queue 'default'"):
        tasks_app.add.enqueue(1)
    with tasks(outbocks=True), pytest.raises(ImproperlyConfigured, match="no option 'outbocks'; did you mean outbox"):
        tasks_app.add.enqueue(1)
    assert held(nsqd) == 0


def test_queues_have_topics(nsqd: RunningNsqd) -> None:
    def named() -> list[tuple[str, Any, str]]:
        return [(each.name, each.topic, each.channel) for each in declared() if each.name.startswith("tasks")]

    with tasks():
        assert named() == [("tasks.default", "tasks.default", "tasks"), ("tasks.mail", "tasks.mail", "tasks")]
    with tasks(topic="jobs", channel="shop"):
        assert named() == [("tasks.default", "jobs", "shop")]
    with tasks(queues=[], topic="jobs"), recording() as published:
        assert named() == [("tasks", "jobs", "tasks")]
        tasks_app.add.using(queue_name="any").enqueue(1)
        assert [each.topic for each in published] == ["jobs"]
    with tasks(topic={"default": "jobs", "mail": "mails"}), workers("tasks.mail"):
        tasks_app.add.using(queue_name="mail").enqueue(1)
        wait_for(lambda: tasks_app.ran, "the task")
    assert (held(nsqd, "mails"), held(nsqd, "jobs")) == (1, 0)


def test_checks(nsqd: RunningNsqd) -> None:
    def found() -> list[str]:
        from gnsq_like.contrib.django.readers import _task_backends

        return [each.msg for backend in _task_backends() for each in backend.check()]

    with tasks():
        assert found() == []
    with tasks(queues=[]):
        assert found() == ["TASKS['default'] takes any queue, so its topics are unknown."]
    with tasks(topic={"mail": "mails"}):
        assert found() == ["TASKS['default'] has no topic for queue 'default'."]
    with tasks(outbox=True), override_settings(INSTALLED_APPS=["gnsq_like.contrib.django"]):
        assert found() == ['TASKS[\'default\'] has "outbox", but "gnsq_like.contrib.django.outbox" is not installed.']


# -- transactions and run_after -------------------------------------------------------------------------


@pytest.mark.parametrize("outbox", [False, True])
def test_a_task_commits_with_its_transaction(nsqd: RunningNsqd, using: str, outbox: bool) -> None:
    with tasks(using, outbox=outbox), heard(signals.task_enqueued) as enqueued:
        with transaction.atomic(using=using):
            kept = tasks_app.add.enqueue(1)
            assert enqueued == []
        with pytest.raises(ZeroDivisionError), transaction.atomic(using=using):
            tasks_app.add.enqueue(1 // 0)
        with transaction.atomic(using=using):
            lost = tasks_app.add.enqueue(2)
            transaction.set_rollback(True, using=using)
        assert held(nsqd) == (0 if outbox else 1)
        if outbox:
            assert relaying.make_relay(using).run_once() == 1
        assert held(nsqd) == 1
        assert enqueued == [(kept.id, "READY")]
        assert tasks_app.add.get_result(kept.id).status == "READY"
        with pytest.raises(TaskResultDoesNotExist):
            tasks_app.add.get_result(lost.id)


def test_a_task_that_is_not_sent_leaves_no_result(nsqd: RunningNsqd, using: str) -> None:
    with tasks(using), override_settings(NSQ={"NSQD_TCP_ADDRESSES": "127.0.0.1:1"}), pytest.raises(NotSent):
        tasks_app.add.enqueue(1)
    assert not TaskRecord.objects.using(using).exists()


def test_run_after_waits(nsqd: RunningNsqd, using: str) -> None:
    with tasks(using, max_defer=0.2), workers():
        after = timezone.now() + timedelta(seconds=0.5)
        result = tasks_app.looking.using(run_after=after).enqueue()
        wait_for(lambda: tasks_app.looking.get_result(result.id).is_finished, "the result")
        result.refresh()
        assert result.started_at >= after
    assert tasks_app.ran == [1]


def test_run_after_may_be_later_than_nsqd_takes(nsqd: RunningNsqd, using: str) -> None:
    """The worker defers again and again, which uses up no attempts."""
    with tasks(using, max_defer=0.1, reader={"max_attempts": 2}), workers():
        result = tasks_app.looking.using(run_after=timezone.now() + timedelta(days=1)).enqueue()
        wait_for(lambda: held(nsqd) > 4, "more messages than attempts")
        result.refresh()
        assert result.status == TaskResultStatus.READY
    assert tasks_app.ran == []


def test_the_outbox_holds_what_runs_later(nsqd: RunningNsqd, using: str) -> None:
    with tasks(using, outbox=True):
        tasks_app.add.using(run_after=timezone.now() + timedelta(days=400)).enqueue(1)
        assert relaying.make_relay(using).run_once() == 0
        tasks_app.add.using(run_after=timezone.now() - timedelta(days=1)).enqueue(1)
        assert relaying.make_relay(using).run_once() == 1


# -- failures -------------------------------------------------------------------------------------------


def test_a_failure_is_tried_again(nsqd: RunningNsqd, using: str) -> None:
    tasks_app.failures += [ValueError("one"), ValueError("two")]
    with tasks(using), heard(signals.task_finished) as finished, workers():
        result = tasks_app.looking.enqueue()
        wait_for(lambda: tasks_app.looking.get_result(result.id).is_finished, "the result")
        result.refresh()
    assert result.status == TaskResultStatus.SUCCESSFUL
    assert result.return_value == [3, result.id]
    assert [each.exception_class for each in result.errors] == [ValueError, ValueError]
    assert "ValueError: two" in result.errors[1].traceback
    assert result.attempts == 3
    assert finished == [(result.id, "SUCCESSFUL")]
    assert tasks_app.ran == [1, 2, 3]


@pytest.mark.parametrize("with_table", [True, False])
def test_the_last_failure_is_final(
    nsqd: RunningNsqd, using: str, with_table: bool, request: pytest.FixtureRequest
) -> None:
    tasks_app.failures += [ValueError(str(number)) for number in range(9)]
    given_up: list[Any] = []
    apps = [*APPS, TABLE] if with_table else APPS
    reader = {"max_attempts": 2, "on_giving_up": given_up.append}
    with override_settings(INSTALLED_APPS=apps), tasks(using, reader=reader):
        with heard(signals.task_finished) as finished, workers():
            result = tasks_app.failing.enqueue("x")
            wait_for(lambda: given_up, "the end")
        assert finished == [(result.id, "FAILED")]
        if with_table:
            result.refresh()
            assert (result.status, len(result.errors)) == (TaskResultStatus.FAILED, 2)
    assert tasks_app.ran == ["x", "x"]


def test_a_task_may_ask_for_another_try(nsqd: RunningNsqd, using: str) -> None:
    tasks_app.failures += [Requeue(delay=0, backoff=False)]
    with tasks(using), workers():
        result = tasks_app.failing.enqueue("x")
        wait_for(lambda: tasks_app.failing.get_result(result.id).is_finished, "the result")
        result.refresh()
        assert (result.return_value, result.errors, result.attempts) == ("x", [], 2)


@pytest.mark.parametrize(("kind", "error"), [("object", "TypeError"), ("nan", "ValueError"), ("inf", "ValueError")])
def test_what_is_not_json_fails(nsqd: RunningNsqd, using: str, kind: str, error: str) -> None:
    with tasks(using, reader={"max_attempts": 1}), workers():
        result = tasks_app.unfit.enqueue(kind)
        wait_for(lambda: tasks_app.unfit.get_result(result.id).is_finished, "the result")
        result.refresh()
        assert result.status == TaskResultStatus.FAILED
        assert error in result.errors[0].traceback


@pytest.mark.parametrize("path", [f"{tasks_app.__name__}.gone", f"{tasks_app.__name__}.no_task", "os.getcwd"])
def test_what_is_no_task_is_not_called(nsqd: RunningNsqd, using: str, path: str) -> None:
    with tasks(using, reader={"max_attempts": 1}), workers():
        result = tasks_app.add.enqueue(1)
        done = TaskRecord.objects.using(using).filter(pk=result.id, status="SUCCESSFUL")
        wait_for(done.exists, "the task and its result")
        done.update(status="READY")
        call = Call(result.id, path, [], {}, "default", 0.0, None)
        with Producer(nsqd.tcp_address) as producer:
            producer.publish("tasks.default", call.encode())
        row = TaskRecord.objects.using(using).filter(pk=result.id, status="FAILED")
        wait_for(row.exists, "the failure")
    assert tasks_app.ran == [(1, 0)]


def test_a_final_result_is_not_made_again(nsqd: RunningNsqd, using: str) -> None:
    """nsqd may deliver a message again after the worker has finished its task."""
    with tasks(using), recording() as published:
        result = tasks_app.add.enqueue(1)
        assert [each.answer for each in deliver([*published, *published])] == ["FIN", "FIN"]
        assert tasks_app.ran == [(1, 0)]
        assert tasks_app.add.get_result(result.id).attempts == 1


def test_a_message_that_workers_died_with_is_given_up(nsqd: RunningNsqd, using: str) -> None:
    with tasks(using), recording() as published, heard(signals.task_finished) as finished:
        result = tasks_app.add.enqueue(1)
        [reader] = [each for each in declared() if each.name == "tasks.default"]
        message = testing._message("tasks.default", "tasks", published[0].body)
        reader.hooks["on_giving_up"](message)
        result.refresh()
        assert (result.status, finished) == (TaskResultStatus.FAILED, [(result.id, "FAILED")])
        assert result.errors[0].exception_class.__name__ == "GivenUpError"
    assert tasks_app.ran == []


def test_a_long_task_is_not_delivered_again() -> None:
    # It is touched when half of the time is over: the other half is for a machine that stands still.
    with running_nsqd(msg_timeout=4.0) as daemon, nsq(daemon), tasks(), workers():
        tasks_app.slow.enqueue(5.0)
        wait_for(lambda: tasks_app.ran, "the task")
        timeouts = channel_of(daemon, "tasks.default")["timeout_count"]
    assert timeouts == 0


@pytest.mark.parametrize(
    "body", [b"", b"17", b"{}", json.dumps({"id": 1}).encode(), Call("x", "y", [], {}, "z", 0.0, None).encode()[:-9]]
)
def test_other_messages_are_refused(body: bytes) -> None:
    with pytest.raises(DecodeError, match="not a task"):
        Call.decode(body)


def test_what_is_no_task_is_given_up(nsqd: RunningNsqd) -> None:
    given_up: list[bytes] = []
    options = {"on_giving_up": lambda message: given_up.append(message.body)}
    with tasks(reader=options), workers():
        tasks_app.add.enqueue(1)
        wait_for(lambda: tasks_app.ran == [(1, 0)], "a task")
        with Producer(nsqd.tcp_address) as producer:
            producer.publish("tasks.default", b"no task")
        wait_for(lambda: given_up, "the end of its attempts")
        wait_for(lambda: not channel_of(nsqd, "tasks.default")["in_flight_count"], "the FIN")
    assert given_up == [b"no task"]
    assert channel_of(nsqd, "tasks.default")["depth"] == 0


def test_a_call_comes_back() -> None:
    call = Call("id", "path.to.task", [1, "é"], {"a": None}, "mail", 1.5, 2_000_000_000.25)
    assert Call.decode(call.encode()) == call


def test_the_migration_is_complete(using: str) -> None:
    call_command("makemigrations", "gnsq_like_tasks", check=True, dry_run=True, verbosity=0)
    assert connections[using].vendor == "sqlite"


def test_old_results_are_deleted(using: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Those that succeeded after other times than those that failed; what waits or runs stays."""
    now = timezone.now()
    for status, days in itertools.product(("READY", "RUNNING", "SUCCESSFUL", "FAILED"), (1, 10, 100)):
        at = now - timedelta(days=days)
        ended = at if status in ("SUCCESSFUL", "FAILED") else None
        TaskRecord.objects.using(using).create(
            id=f"{status}-{days}", module_path="m", backend="default", status=status, enqueued_at=at, finished_at=ended
        )
    old = {"module_path": "m", "status": "SUCCESSFUL", "enqueued_at": at, "finished_at": at}
    TaskRecord.objects.using(using).bulk_create(TaskRecord(id=str(number), **old) for number in range(1000))
    call_command("nsq_prune_tasks", "--failed-days", "50", "--database", using)
    left = TaskRecord.objects.using(using).filter(finished_at__isnull=False).values_list("id", flat=True)
    assert sorted(left) == ["FAILED-1", "FAILED-10", "SUCCESSFUL-1"]
    assert TaskRecord.objects.using(using).count() == 9
    call_command("nsq_prune_tasks", "--days", "0", "--database", using)
    assert TaskRecord.objects.using(using).count() == 6
    assert capsys.readouterr().out == "Deleted 1003\nDeleted 3\n"
    for wrong in (["--days", "-1", "--database", using], ["--database", "nowhere"]):
        with pytest.raises(CommandError):
            call_command("nsq_prune_tasks", *wrong)


def test_there_may_be_nothing_to_delete_from() -> None:
    with override_settings(INSTALLED_APPS=APPS), pytest.raises(CommandError, match="no table of results"):
        nsq_prune_tasks.Command().handle(days=7.0, failed_days=None, database="default")
