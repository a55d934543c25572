"""Readers in Django: the declarations in the apps' ``nsq_readers`` modules, and the Readers made from them.

A declaration creates nothing. The modules are imported when readers are needed: by a system check, ``nsq_run`` or a
test, but not by a web process.

Each call of a handler is treated like a request: database connections that are too old or broken are closed before and
after it, caches after it. An activated language or time zone ends with it, because its thread is used again. A database
connection belongs to a thread (to a greenlet, if threading is patched), and its transaction with it. Handlers in
greenlets of one unpatched thread would share both; so there ``Settings.make_reader`` makes ``spawn="thread"`` the
default.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from django import db
from django.apps import apps
from django.conf import settings
from django.core.cache import close_caches
from django.dispatch import Signal
from django.urls import set_urlconf
from django.utils import timezone, translation
from django.utils.module_loading import autodiscover_modules

from gnsq_like.contrib.django import conf, signals
from gnsq_like.contrib.shared.declared import Declared as DeclaredReader
from gnsq_like.contrib.shared.declared import Topic

if TYPE_CHECKING:
    from gnsq_like import Message, Reader, ReaderArguments
    from gnsq_like.contrib.opentelemetry import Tracing
    from gnsq_like.contrib.prometheus import Metrics

_F = TypeVar("_F", bound=Callable[..., object])

#: The module of each app that declares readers.
MODULE = "nsq_readers"

#: Signals sent when a Reader calls these functions instead of the handler.
_SIGNALS = {"on_giving_up": signals.message_given_up, "on_expired": signals.message_expired}


class Declared(DeclaredReader):
    """One ``@reader``, with Django's cleanup and signals around each call of its function."""

    @property
    def place(self) -> str:
        """The function's full name."""
        return f"{self.function.__module__}.{getattr(self.function, '__qualname__', self.function)}"

    def make(self, metrics: Metrics | None = None, tracing: Tracing | None = None) -> Reader:
        """The Reader, not started; watched by ``metrics``, and traced.

        :raises UsageError: for wrong settings or arguments
        """
        handler = self.handle if self.batch is None else self.handle_many
        hooks: dict[str, Callable[..., object]] = {name: _as_requests(hook) for name, hook in self.hooks.items()}
        for name, signal in _SIGNALS.items():
            hooks[name] = partial(self._call_instead, signal, self.hooks.get(name))
        return self.make_reader(conf.settings(), handler, hooks, metrics, tracing)

    # -- handling messages --------------------------------------------------------------------------

    def handle(self, message: Message) -> object:
        """Call the handler with one message, as a Reader does. May block, or switch."""
        return self._call(message, [message])

    def handle_many(self, messages: list[Message]) -> object:
        """Call the handler with a batch, as a Reader does. May block, or switch."""
        return self._call(messages, messages)

    def _call(self, argument: object, messages: list[Message]) -> object:
        with _as_a_request():
            self._send(signals.message_started, messages)
            began = time.monotonic()
            try:
                result = self.function(argument)
            except BaseException as exc:
                self._send(signals.message_failed, messages, seconds=time.monotonic() - began, exception=exc)
                raise
            seconds = time.monotonic() - began
            if result is False:
                self._send(signals.message_failed, messages, seconds=seconds, exception=None)
            else:
                self._send(signals.message_handled, messages, seconds=seconds)
            return result

    def _call_instead(self, signal: Signal, hook: Callable[[Message], object] | None, message: Message) -> object:
        """Call ``on_giving_up`` or ``on_expired``. May block, or switch."""
        with _as_a_request():
            self._send(signal, [message])
            return None if hook is None else hook(message)

    def _send(self, signal: Signal, messages: Iterable[Message], **more: object) -> None:
        if signal.has_listeners(self.function):
            for message in messages:
                signal.send_robust(self.function, message=message, reader=self.name, **more)


@contextmanager
def _as_a_request() -> Iterator[None]:
    """Do what Django and its middleware do at the start and end of a request."""
    db.reset_queries()
    db.close_old_connections()
    try:
        yield
    finally:
        translation.deactivate()
        timezone.deactivate()
        set_urlconf(None)
        close_caches()
        db.close_old_connections()


def _as_requests(hook: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(hook)
    def as_a_request(*given: object) -> object:
        with _as_a_request():
            return hook(*given)

    return as_a_request


#: The Readers that were made last in this process, for ``healthz``.
made: list[Reader] = []

#: All declarations; two may have the same name, which the system check reports.
_all: list[Declared] = []


def reader(
    topic: Topic,
    channel: str,
    *,
    name: str | None = None,
    batch: Mapping[str, object] | None = None,
    **options: Unpack[ReaderArguments],
) -> Callable[[_F], _F]:
    """Declare the decorated function a handler, which ``manage.py nsq_run`` calls for each message.

    The function is returned unchanged.

    :param topic: topic name; or several, or a compiled pattern that follows nsqlookupd, as of :class:`gnsq_like.Reader`
    :param channel: channel name
    :param name: its name for ``nsq_run`` and the log; the function's name if not given
    :param batch: for a function that takes lists: the arguments of :class:`gnsq_like.Batch`, ``{"size": 100}``
    :param options: of :class:`gnsq_like.Reader`; they override the settings
    """

    def declare(function: _F) -> _F:
        known_as = getattr(function, "__name__", "") if name is None else name
        _all.append(Declared(known_as, topic, channel, function, batch, options))
        return function

    return declare


def declared() -> list[Declared]:
    """All readers of the installed apps, and of the backends for tasks; imports the ``nsq_readers`` modules."""
    autodiscover_modules(MODULE)
    return [*_all, *(each for backend in _task_backends() for each in getattr(backend, "declared_readers", list)())]


def _task_backends() -> Iterable[Any]:
    """The backends in the setting TASKS, of Django or its backport."""
    if not getattr(settings, "TASKS", None):
        return []
    names = ["django_tasks"] if apps.is_installed("django_tasks") else ["django.tasks", "django_tasks"]
    for name in names:
        with suppress(ModuleNotFoundError):
            backends: Iterable[Any] = import_module(name).task_backends.all()
            return backends
    return []


def make_readers(*names: str) -> list[Reader]:
    """Readers for the handlers of these names, or for all; not started.

    Call it to run readers in your own processes, such as gunicorn's workers.

    :raises LookupError: for an unknown name
    :raises UsageError, ImproperlyConfigured: for wrong options and settings
    """
    made[:] = [each.make(conf.metrics(), conf.tracing()) for each in chosen(names)]
    return list(made)


def chosen(names: Iterable[str]) -> list[Declared]:
    """The declared readers of these names, or all; raises LookupError."""
    known = {each.name: each for each in declared()}
    names = list(dict.fromkeys(names))
    if unknown := [name for name in names if name not in known]:
        raise LookupError(
            f"there is no reader {', '.join(map(repr, unknown))}; "
            + (f"there are {', '.join(sorted(known))}" if known else f"no app declares one in its {MODULE}.py")
        )
    return [known[name] for name in names or known]


def threading_is_patched() -> bool:
    """Whether gevent has patched threading, which gives each greenlet its own database connections."""
    from gevent import monkey

    return bool(monkey.is_module_patched("threading"))


def unpatched_greenlets(readers: Iterable[Declared]) -> dict[str, int]:
    """The readers whose handlers would run in greenlets of one unpatched thread, and how many of them at once.

    :raises UsageError: for a reader with wrong arguments
    """
    if threading_is_patched():
        return {}
    made = {each.name: each.make().options for each in readers}
    return {
        name: options.concurrency or max(1, options.max_in_flight)
        for name, options in made.items()
        if options.spawn == "greenlet"
    }
