"""A task as a message, and running it: the handler of a Reader for a queue.

A message is JSON, which any worker of the project, or another program, can read.

An attempt that raises is requeued as any handler's message; the last one that ``max_attempts`` permits makes the result
FAILED, and so does a message that is delivered once more because workers died with it. A task whose result is final is
not run again, which needs the table.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from functools import partial
from inspect import iscoroutinefunction
from traceback import format_exception
from types import NoneType
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, Self

from asgiref.sync import async_to_sync
from django.conf import settings
from django.utils import timezone
from django.utils.module_loading import import_string

from gnsq_like.contrib.django.publishing import producer
from gnsq_like.contrib.django.tasks import records
from gnsq_like.contrib.django.tasks.framework import (
    Task,
    TaskContext,
    TaskError,
    TaskResultStatus,
    normalize_json,
    signals,
)
from gnsq_like.errors import DecodeError, Requeue

if TYPE_CHECKING:
    from gnsq_like import Message


#: Of a thread's hub, in which the greenlet of an executor that is gone ends: it takes two.
_ITERATIONS = 5


@dataclass(frozen=True)
class Call:
    """A task in a message."""

    #: Of the result.
    id: str
    module_path: str
    args: list[object]
    kwargs: dict[str, object]
    queue_name: str
    #: Seconds since the epoch; in JSON, ISO 8601.
    enqueued_at: float
    #: Not before this, likewise.
    run_after: float | None

    def encode(self) -> bytes:
        """The body of the message.

        :raises TypeError, ValueError: if the arguments are not JSON
        """
        times = {name: None if (at := getattr(self, name)) is None else _text(at) for name in _TIMES}
        return json.dumps(vars(self) | times, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()

    @classmethod
    def decode(cls, body: bytes) -> Self:
        """Read the body of a message.

        :raises DecodeError: if it is not a task
        """
        try:
            members = json.loads(body)
            found = {each.name: members[each.name] for each in fields(cls)}
            for name, kinds in _KINDS.items():
                if not isinstance(found[name], kinds):
                    raise TypeError(f"{name} is of the wrong type")
            for name in _TIMES:
                if found[name] is not None:
                    found[name] = datetime.fromisoformat(found[name]).timestamp()
            return cls(**found)
        except (ValueError, TypeError, KeyError) as exc:
            raise DecodeError("a task", body, repr(exc)) from exc


_TIMES = ("enqueued_at", "run_after")
#: The types that the members have in JSON.
_KINDS: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("id", "module_path", "queue_name", "enqueued_at"), str),
    **{"args": list, "kwargs": dict, "run_after": (str, NoneType)},
}


def _text(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


class GivenUpError(Exception):
    """In a result's errors: the message was delivered too often, and no attempt has come to its end."""


class Backend(Protocol):
    """The members of ``NSQBackend`` that a worker uses."""

    alias: str
    database: str
    max_defer: float

    @property
    def max_attempts(self) -> int:
        """Deliveries of a message; 0 for any number."""


class Worker:
    """Runs the tasks of a backend's queue.

    :param on_giving_up: called with the message of a task that has failed for good; if it raises, the message comes
        again
    """

    def __init__(self, backend: Backend, on_giving_up: Callable[[Message], object] | None) -> None:
        self._backend = backend
        self._call_hook = on_giving_up or bool

    def run(self, message: Message) -> None:
        """Run the task of a message. May block, or switch."""
        call = Call.decode(message.body)
        wait = 0.0 if call.run_after is None else call.run_after - time.time()
        if wait > 0:
            # As a new message: requeueing would use up its attempts.
            producer().publish(message.topic, message.body, defer=min(wait, self._backend.max_defer))
            return
        if records.is_finished(call.id, self._backend.database):
            return
        try:
            result = self._result(message, call)
        except Exception as exc:
            if not self._is_last(message):
                raise
            records.fail_unknown(call.id, _error(exc), self._backend.database)
            self._call_hook(message)
            return
        now = timezone.now()
        records.change(result, status=TaskResultStatus.RUNNING, started_at=now, last_attempted_at=now)
        result.worker_ids.append(records.WORKER_ID)
        records.begin(result, self._backend.database)
        signals.task_started.send(sender=type(self._backend), task_result=result)
        message.touch_until_answered()
        self._attempt(message, result)

    def give_up(self, message: Message) -> None:
        """Called instead of :meth:`run` for a message that was delivered too often: workers died with it, or it is not
        a task."""
        try:
            call = Call.decode(message.body)
        except DecodeError:
            # If this were raised, the message would return endlessly.
            self._call_hook(message)
            return
        if not records.is_finished(call.id, self._backend.database):
            reason = f"given up after {message.attempts - 1} deliveries"
            error = TaskError(exception_class_path=f"{__name__}.GivenUpError", traceback=reason)
            try:
                result = self._result(message, call)
            except Exception:
                records.fail_unknown(call.id, error, self._backend.database)
            else:
                records.begin(result, self._backend.database)
                result.errors.append(error)
                self._finish(result, TaskResultStatus.FAILED)
        self._call_hook(message)

    def _result(self, message: Message, call: Call) -> Any:
        """The result with the fields of the message; raises what importing the task raises."""
        task = import_string(call.module_path)
        if not isinstance(task, Task):
            raise TypeError(f"{call.module_path} is no task")
        task = task.using(queue_name=call.queue_name, backend=self._backend.alias)
        moment = datetime.fromtimestamp(call.enqueued_at, UTC)
        enqueued_at = moment if settings.USE_TZ else timezone.make_naive(moment)
        result = records.new_result(task, call.id, enqueued_at, call.args, call.kwargs, self._backend.alias)
        # Without the table, only how many there were is known.
        result.worker_ids.extend([""] * (message.attempts - 1))
        return result

    def _attempt(self, message: Message, result: Any) -> None:
        try:
            value = normalize_json(_called(result))
            json.dumps(value, allow_nan=False)  # NaN and infinity are not JSON
        except Exception as exc:
            is_requeue = isinstance(exc, Requeue)
            if not is_requeue:
                result.errors.append(_error(exc))
            if is_requeue or not self._is_last(message):
                records.change(result, status=TaskResultStatus.READY)
                records.save(result, self._backend.database)
                raise
            self._finish(result, TaskResultStatus.FAILED)
            self._call_hook(message)
        else:
            records.change(result, _return_value=value)
            self._finish(result, TaskResultStatus.SUCCESSFUL)

    def _is_last(self, message: Message) -> bool:
        return 0 < self._backend.max_attempts <= message.attempts

    def _finish(self, result: object, status: object) -> None:
        records.change(result, status=status, finished_at=timezone.now())
        records.save(result, self._backend.database)
        signals.task_finished.send(sender=type(self._backend), task_result=result)


def _called(result: Any) -> object:
    task = result.task
    first = [TaskContext(task_result=result)] if task.takes_context else []

    from gevent import get_hub, monkey

    if iscoroutinefunction(task.func) and monkey.is_module_patched("threading"):
        # asyncio has one running loop for a native thread, which all greenlets share.
        return get_hub().threadpool.apply(_called_there, (task.func, (*first, *result.args), result.kwargs))()
    return task.call(*first, *result.args, **result.kwargs)


def _called_there(function: Callable[..., Any], arguments: tuple[object, ...], options: dict[str, object]) -> object:
    """Call an async function in this native thread; returns a function that returns or raises the result.

    gevent would print an exception that left the thread. And its traceback would keep the executor of async_to_sync,
    whose thread is a greenlet of this one: the process waits for that at its end.
    """

    async def outcome() -> Callable[[], object]:
        try:
            value = await function(*arguments, **options)
        except BaseException as exc:
            return partial(_raise, exc)
        return lambda: value

    from gevent import sleep

    try:
        return async_to_sync(outcome)()
    finally:
        for _ in range(_ITERATIONS):
            sleep(0)


def _raise(error: BaseException) -> NoReturn:
    raise error


def _error(exc: BaseException) -> object:
    kind = type(exc)
    path = f"{kind.__module__}.{kind.__qualname__}"
    return TaskError(exception_class_path=path, traceback="".join(format_exception(exc)))
