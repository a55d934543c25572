"""Results of tasks in their table. In a project without it, nothing is written, and no task is known as finished."""

from __future__ import annotations

import socket
from datetime import datetime
from typing import Any

from django.apps import apps
from django.utils import timezone
from django.utils.crypto import get_random_string
from django.utils.module_loading import import_string

from gnsq_like.contrib.django.tasks.framework import TaskError, TaskResult, TaskResultDoesNotExist, TaskResultStatus

#: This process, in ``worker_ids``.
WORKER_ID = f"{socket.gethostname()[:40]}-{get_random_string(12)}"

_FINISHED = (TaskResultStatus.SUCCESSFUL, TaskResultStatus.FAILED)
#: Fields that rows and TaskResults share, and that attempts change.
_CHANGING = ("started_at", "last_attempted_at", "finished_at", "worker_ids")


def has_table() -> bool:
    """Whether the project has the table."""
    return bool(apps.is_installed("gnsq_like.contrib.django.tasks"))


def rows(using: str) -> Any:
    """All of the table."""
    from gnsq_like.contrib.django.tasks.models import TaskRecord

    return TaskRecord.objects.using(using)


def new_result(
    task: Any, number: str, enqueued_at: datetime, args: list[Any], kwargs: dict[str, Any], backend: str
) -> Any:
    """A TaskResult of which no attempt has begun."""
    return TaskResult(
        task=task,
        id=number,
        status=TaskResultStatus.READY,
        enqueued_at=enqueued_at,
        started_at=None,
        finished_at=None,
        last_attempted_at=None,
        args=args,
        kwargs=kwargs,
        backend=backend,
        errors=[],
        worker_ids=[],
    )


def change(result: object, **values: object) -> None:
    """Set attributes of a TaskResult, which is frozen except for its backend."""
    for name, value in values.items():
        object.__setattr__(result, name, value)


def store(result: Any, using: str) -> object:
    """Insert a result that is enqueued, and return its row."""
    of_task = {name: getattr(result.task, name) for name in ("module_path", "queue_name", "run_after")}
    of_result = {name: getattr(result, name) for name in ("id", "backend", "args", "kwargs", "status", "enqueued_at")}
    return rows(using).create(**of_task, **of_result)


def is_finished(number: str, using: str) -> bool:
    """Whether the result of this id is final."""
    return has_table() and bool(rows(using).filter(pk=number, status__in=_FINISHED).exists())


def begin(result: Any, using: str) -> None:
    """Note in the table, and in the result, that an attempt begins."""
    if has_table() and (row := rows(using).filter(pk=result.id).first()) is not None:
        change(
            result,
            started_at=row.started_at or result.started_at,
            errors=[TaskError(**each) for each in row.errors],
            worker_ids=[*row.worker_ids, WORKER_ID],
        )
        save(result, using)


def save(result: Any, using: str) -> None:
    """Write what has changed; a success is final."""
    if has_table():
        rows(using).filter(pk=result.id).exclude(status=TaskResultStatus.SUCCESSFUL).update(
            status=result.status,
            errors=_plain(result.errors),
            return_value=result._return_value,
            **{name: getattr(result, name) for name in _CHANGING},
        )


def fail_unknown(number: str, error: object, using: str) -> None:
    """The task of this result cannot even be imported."""
    if has_table():
        rows(using).filter(pk=number).exclude(status__in=_FINISHED).update(
            status=TaskResultStatus.FAILED, finished_at=timezone.now(), errors=_plain([error])
        )


def load(number: str, using: str) -> object:
    """The result of this id.

    :raises TaskResultDoesNotExist: if there is none
    """
    row = rows(using).filter(pk=number).first()
    if row is None:
        raise TaskResultDoesNotExist(number)
    task = import_string(row.module_path).using(queue_name=row.queue_name, run_after=row.run_after, backend=row.backend)
    result = new_result(task, row.id, row.enqueued_at, row.args, row.kwargs, row.backend)
    change(
        result,
        status=TaskResultStatus[row.status],
        errors=[TaskError(**each) for each in row.errors],
        _return_value=row.return_value,
        **{name: getattr(row, name) for name in _CHANGING},
    )
    return result


def _plain(errors: list[Any]) -> list[dict[str, str]]:
    return [{"exception_class_path": each.exception_class_path, "traceback": each.traceback} for each in errors]
