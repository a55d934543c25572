"""Results of tasks in their table; or none, in a project without it."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.apps import apps
from django.db.models import Q
from django.utils import timezone
from django.utils.crypto import get_random_string
from django.utils.module_loading import import_string

from gnsq_like.contrib.django.tasks.framework import TaskError, TaskResult, TaskResultDoesNotExist, TaskResultStatus

#: This process, in ``worker_ids``.
WORKER_ID = f"{socket.gethostname()[:40]}-{get_random_string(12)}"

#: Rows of one statement, which SQLite limits.
_PRUNED_AT_ONCE = 500

_FINISHED = (TaskResultStatus.SUCCESSFUL, TaskResultStatus.FAILED)


def has_table() -> bool:
    """Whether the project has the table."""
    return bool(apps.is_installed("gnsq_like.contrib.django.tasks"))


def _table(using: str) -> Any:
    from gnsq_like.contrib.django.tasks.models import TaskRecord

    return TaskRecord.objects.using(using)


def store(result: Any, using: str) -> object:
    """Insert a result that is enqueued, and return its row."""
    task = result.task
    return _table(using).create(
        id=result.id,
        module_path=task.module_path,
        backend=result.backend,
        queue_name=task.queue_name,
        run_after=task.run_after,
        args=result.args,
        kwargs=result.kwargs,
        status=result.status,
        enqueued_at=result.enqueued_at,
    )


def forget(number: str, using: str) -> None:
    """Delete the result of a task that was not sent."""
    _table(using).filter(pk=number).delete()


def prune(before: datetime, failed_before: datetime, using: str) -> int:
    """Delete the results of tasks that succeeded before one time, or failed before another.

    :returns: how many
    """
    succeeded = Q(status=TaskResultStatus.SUCCESSFUL, finished_at__lt=before)
    failed = Q(status=TaskResultStatus.FAILED, finished_at__lt=failed_before)
    count = 0
    # A few at a time: a worker that writes meanwhile does not wait long.
    while old := list(_table(using).filter(succeeded | failed).values_list("pk", flat=True)[:_PRUNED_AT_ONCE]):
        count += _table(using).filter(pk__in=old).delete()[0]
    return count


def is_finished(number: str, using: str) -> bool:
    """Whether the result of this id is final."""
    return bool(_table(using).filter(pk=number, status__in=_FINISHED).exists())


def begin(result: Any, using: str) -> None:
    """Note in the table, and in the result, that an attempt begins."""
    row = _table(using).filter(pk=result.id).values("started_at", "errors", "worker_ids").first()
    if row is not None:
        change(
            result,
            started_at=row["started_at"] or result.started_at,
            errors=[TaskError(**each) for each in row["errors"]],
            worker_ids=[*row["worker_ids"], WORKER_ID],
        )
        save(result, using)


def save(result: Any, using: str) -> None:
    """Write what has changed; a success is final."""
    _table(using).filter(pk=result.id).exclude(status=TaskResultStatus.SUCCESSFUL).update(
        status=result.status,
        started_at=result.started_at,
        last_attempted_at=result.last_attempted_at,
        finished_at=result.finished_at,
        errors=_plain(result.errors),
        worker_ids=result.worker_ids,
        return_value=result._return_value,
    )


def fail_unknown(number: str, errors: Sequence[object], using: str) -> None:
    """The task of this result cannot even be imported."""
    _table(using).filter(pk=number).exclude(status__in=_FINISHED).update(
        status=TaskResultStatus.FAILED, finished_at=timezone.now(), errors=_plain(errors)
    )


def load(number: str, using: str) -> object:
    """The result of this id.

    :raises TaskResultDoesNotExist: if there is none
    """
    row = _table(using).filter(pk=number).first()
    if row is None:
        raise TaskResultDoesNotExist(number)
    task = import_string(row.module_path).using(queue_name=row.queue_name, run_after=row.run_after, backend=row.backend)
    result = TaskResult(
        task=task,
        id=row.id,
        status=TaskResultStatus[row.status],
        enqueued_at=row.enqueued_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        last_attempted_at=row.last_attempted_at,
        args=row.args,
        kwargs=row.kwargs,
        backend=row.backend,
        errors=[TaskError(**each) for each in row.errors],
        worker_ids=row.worker_ids,
    )
    change(result, _return_value=row.return_value)
    return result


def change(result: object, **values: object) -> None:
    """Set attributes of a TaskResult, which is frozen for everybody but its backend."""
    for name, value in values.items():
        object.__setattr__(result, name, value)


def _plain(errors: Sequence[Any]) -> list[dict[str, str]]:
    return [{"exception_class_path": each.exception_class_path, "traceback": each.traceback} for each in errors]
