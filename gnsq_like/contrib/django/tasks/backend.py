"""``NSQBackend``: the setting TASKS names it. Its OPTIONS:

================  ======================================================================================================
``outbox``        True: a task is a row of the transaction that enqueues it, see ``docs/outbox.rst``; default: it is
                  published when that has committed
``topic``         the topic of a queue: text with ``{queue}`` in it, default ``"tasks.{queue}"``; text without it for
                  all queues; or a dictionary from queue to topic
``channel``       the channel of the workers, default ``"tasks"``
``database``      the database of transactions, the outbox and results, default ``"default"``
``max_defer``     the longest ``run_after`` that nsqd takes at once, in seconds: its max-req-timeout, default 3600.0
``reader``        options of the Readers, such as ``{"max_in_flight": 10, "max_attempts": 3}``
================  ======================================================================================================
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from django.apps import apps
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import transaction
from django.utils import timezone
from django.utils.crypto import get_random_string

from gnsq_like.contrib.django import conf
from gnsq_like.contrib.django.publishing import producer, publish
from gnsq_like.contrib.django.readers import Declared
from gnsq_like.contrib.django.tasks import records
from gnsq_like.contrib.django.tasks.framework import BaseTaskBackend, InvalidTask, signals
from gnsq_like.contrib.django.tasks.running import Call, Worker
from gnsq_like.errors import InvalidName, PublishError, did_you_mean
from gnsq_like.options import ReaderOptions

_DEFAULTS: Mapping[str, object] = {
    "outbox": False,
    "topic": "tasks.{queue}",
    "channel": "tasks",
    "database": "default",
    "max_defer": 3600.0,
    "reader": {},
}


class NSQBackend(BaseTaskBackend):
    """Sends tasks as messages, which ``nsq_run`` runs."""

    supports_defer = True
    supports_async_task = True
    supports_priority = False

    def __init__(self, alias: str, params: Mapping[str, object]) -> None:
        super().__init__(alias, params)
        for name in self.options:
            if name not in _DEFAULTS:
                hint = did_you_mean(name, _DEFAULTS, "{}")
                raise ImproperlyConfigured(f"TASKS[{alias!r}]: there is no option {name!r}{hint}")
        options: dict[str, Any] = {**_DEFAULTS, **self.options}
        self.database: str = options["database"]
        self.max_defer = float(options["max_defer"])
        self._outbox = bool(options["outbox"])
        self._topic: str | Mapping[str, str] = options["topic"]
        self._channel: str = options["channel"]
        self._reader: dict[str, Any] = dict(options["reader"])

    # -- what Django asks for -----------------------------------------------------------------------

    @property
    def supports_get_result(self) -> bool:
        """Whether the project has the table of results."""
        return records.has_table()

    def validate_task(self, task: Any) -> None:
        """Raise Django's error for a task that cannot run here."""
        super().validate_task(task)
        try:
            self.topic_of(task.queue_name)
        except KeyError:
            raise InvalidTask(f"TASKS[{self.alias!r}] has no topic for queue {task.queue_name!r}") from None

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Send a task when the open transaction has committed, or as a part of it; without one, now.

        :raises PublishError: as :func:`gnsq_like.contrib.django.publish`
        """
        self.validate_task(task)
        result = records.new_result(task, get_random_string(32), timezone.now(), list(args), dict(kwargs), self.alias)
        call = Call(
            id=result.id,
            module_path=task.module_path,
            args=result.args,
            kwargs=result.kwargs,
            queue_name=task.queue_name,
            enqueued_at=result.enqueued_at.timestamp(),
            run_after=None if task.run_after is None else task.run_after.timestamp(),
        )
        try:
            producer().check(self.topic_of(task.queue_name), call.encode())
        except InvalidName as exc:
            raise InvalidTask(str(exc)) from exc
        if self.supports_get_result:
            self._store_and_send(call, result)
        else:
            self._send(call, result)
        return result

    def get_result(self, result_id: str) -> Any:
        """The result in the table.

        :raises NotImplementedError: without the table
        """
        return records.load(result_id, self.database) if self.supports_get_result else super().get_result(result_id)

    def check(self, **_: object) -> list[checks.CheckMessage]:
        """Errors in OPTIONS."""
        found: list[tuple[str, str]] = []
        if self._outbox and not apps.is_installed("gnsq_like.contrib.django.outbox"):
            found.append(
                ('has "outbox", but "gnsq_like.contrib.django.outbox" is not installed', "Add it to INSTALLED_APPS.")
            )
        if not self.queues and (not isinstance(self._topic, str) or "{queue}" in self._topic):
            hint = 'List QUEUES, or set OPTIONS = {"topic": "tasks"}.'
            found.append(("takes any queue, so its topics are unknown", hint))
        for queue in self.queues:
            try:
                self.topic_of(queue)
            except KeyError:
                found.append((f"has no topic for queue {queue!r}", "It is missing in OPTIONS."))
        name = f"TASKS[{self.alias!r}]"
        return [checks.Error(f"{name} {text}.", hint=hint, id="gnsq_like.tasks.E001") for text, hint in found]

    # -- sending ------------------------------------------------------------------------------------

    def topic_of(self, queue: str) -> str:
        """The topic of a queue. Raises KeyError."""
        return self._topic.format(queue=queue) if isinstance(self._topic, str) else self._topic[queue]

    def _store_and_send(self, call: Call, result: Any) -> None:
        is_outermost = not transaction.get_connection(self.database).in_atomic_block
        try:
            with transaction.atomic(using=self.database):
                records.store(result, self.database)
                self._send(call, result)
        except PublishError:
            if is_outermost:
                records.rows(self.database).filter(pk=result.id).delete()
            raise

    def _send(self, call: Call, result: object) -> None:
        topic, body = self.topic_of(call.queue_name), call.encode()
        wait = 0.0 if call.run_after is None else max(0.0, call.run_after - time.time())
        if self._outbox:
            publish(topic, body, outbox=True, defer=wait or None, using=self.database)
        else:
            publish(topic, body, defer=min(wait, self.max_defer) or None, using=self.database)
        announce = partial(signals.task_enqueued.send, type(self), task_result=result)
        connection = transaction.get_connection(self.database)
        if connection.in_atomic_block:
            connection.on_commit(announce)  # after the publish
        else:
            announce()

    # -- running ------------------------------------------------------------------------------------

    @property
    def max_attempts(self) -> int:
        """Deliveries of a message before its task is FAILED; 0 for any number."""
        given = {**conf.settings().reader, **self._reader}
        return int(given.get("max_attempts", ReaderOptions().max_attempts))

    def declared_readers(self) -> list[Declared]:
        """A reader for each queue, for ``nsq_run``."""
        options = dict(self._reader)
        worker = Worker(self, options.pop("on_giving_up", None))
        options["on_giving_up"] = worker.give_up
        prefix = "tasks" if self.alias == "default" else f"tasks.{self.alias}"
        topics: dict[str, str] = {}
        for queue in sorted(self.queues):
            topics.setdefault(self.topic_of(queue), f"{prefix}.{queue}")
        return [
            Declared(name, topic, self._channel, _handler(worker.run, name), None, options)
            for topic, name in (topics or {self.topic_of(""): prefix}).items()
        ]


def _handler(run: Callable[[Any], None], name: str) -> Callable[[Any], None]:
    def handler(message: object) -> None:
        run(message)

    handler.__name__ = handler.__qualname__ = name
    return handler
