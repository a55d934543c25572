"""Tasks for the tests of the backend for tasks, in Django or its backport."""

from __future__ import annotations

import time
from importlib import import_module
from typing import Any

from gnsq_like.contrib.django.tasks.framework import PACKAGE
from tests.support.notes import note

task: Any = import_module(PACKAGE).task

#: What has run, in this process.
ran: list[Any] = []
#: Exceptions that the next calls of ``failing`` raise.
failures: list[BaseException] = []


@task
def add(one: int, two: int = 0) -> int:
    ran.append((one, two))
    return one + two


@task
async def add_later(one: int, two: int) -> int:
    ran.append((one, two))
    return one + two


@task
def failing(name: str) -> str:
    ran.append(name)
    if failures:
        raise failures.pop(0)
    return name


@task(takes_context=True)
def looking(context: Any) -> list[Any]:
    ran.append(context.attempt)
    if failures:
        raise failures.pop(0)
    return [context.attempt, context.task_result.id]


@task
def slow(seconds: float) -> None:
    time.sleep(seconds)
    ran.append(seconds)


@task
def unfit(kind: str) -> object:
    return object() if kind == "object" else [float(kind)]


@task(takes_context=True)
def noting(context: Any, name: str) -> str:
    """Fails once if the name ends in 7, and always if it ends in 99."""
    note("task_ran", name)
    if name.endswith("99") or (name.endswith("7") and context.attempt == 1):
        raise ValueError(name)
    return name


def no_task() -> None:
    ran.append("no task")
