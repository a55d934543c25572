"""NSQ in Flask applications: publishing in requests, and handlers that run in the application's context.

::

    nsq = NSQ()                                   # once, beside the application factory

    def create_app():
        app = Flask(__name__)
        app.config["NSQ_NSQD_TCP_ADDRESSES"] = "127.0.0.1:4150"
        nsq.init_app(app)
        return app

    @app.post("/click")
    def click():
        nsq.publish("clicks", {"button": request.form["button"]})
        return "", 204

    @nsq.reader("clicks", "archive", max_in_flight=100)
    def archive(message):
        db.session.add(Click(**json.loads(message.body)))
        db.session.commit()

``flask nsq run`` runs the readers as a process of their own. The settings and the Producer of an application are in
``app.extensions["nsq"]``; the declared readers belong to the ``NSQ``, and so to all its applications. Nothing here
connects before the first publish or the start of a reader.
"""

from __future__ import annotations

import functools
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from gnsq_like import Producer, Reader, ReaderGroup
from gnsq_like.contrib.shared.declared import Declared, Topic
from gnsq_like.contrib.shared.extras import missing

try:
    from flask import Blueprint, Flask, Response, current_app
    from flask.globals import app_ctx
    from werkzeug.serving import is_running_from_reloader
except ModuleNotFoundError as exc:
    raise missing(exc, "flask") from exc

from gnsq_like.contrib.flask.commands import make_commands
from gnsq_like.contrib.health import report
from gnsq_like.contrib.shared.settings import Settings, make_settings
from gnsq_like.errors import InvalidOption

if TYPE_CHECKING:
    from gnsq_like import ReaderArguments
    from gnsq_like.contrib.opentelemetry import Tracing
    from gnsq_like.contrib.prometheus import Metrics
    from gnsq_like.contrib.shared.outbox.relay import Relay
    from gnsq_like.testing import Published, RunningNsqd

_F = TypeVar("_F", bound=Callable[..., object])

#: Settings besides the options of Reader and Producer: default and types.
_OWN: Mapping[str, tuple[object, tuple[type, ...]]] = {
    # Whether to record publishes in nsq.outbox instead of sending them.
    "RECORD": (False, (bool,)),
    # Seconds for running handlers to end when the readers stop.
    "STOP_TIMEOUT": (30.0, (float,)),
    # Seconds for which an outbox keeps messages that are published; 0 deletes them at once.
    "OUTBOX_KEEP": (86400.0, (float,)),
    # Seconds between two polls of the outbox if no commit wakes the relay.
    "OUTBOX_POLL_INTERVAL": (0.5, (float,)),
}
#: Seconds for which ``consuming`` checks whether the reloader starts, which happens after the application's start.
_LOOKS_FOR_RELOADER = 60
_KEY = "nsq"
_PREFIX = "NSQ_"


class _State:
    """One application's settings, Producer and Readers."""

    def __init__(self, nsq: NSQ, app: Flask) -> None:
        self.nsq = nsq
        self.app = app
        given = {name.removeprefix(_PREFIX): value for name, value in app.config.items() if name.startswith(_PREFIX)}
        self.settings: Settings = make_settings(given, own=_OWN)
        #: None if no address is set.
        self.producer: Producer[Any] | None = self.make_producer()
        #: The Readers that were made last in this process.
        self.readers: list[Reader] = []
        #: The relay that was made last in this process, in a list.
        self.relays: list[Relay] = []

    def make_producer(self) -> Producer[Any] | None:
        if self.settings.own["RECORD"]:
            from gnsq_like.testing import RecordingProducer

            return self.settings.make_producer(self.encode, RecordingProducer)
        if not self.settings.has_producer_address:
            return None
        return self.make_sending_producer()

    def make_sending_producer(self) -> Producer[Any]:
        """One that connects.

        :raises InvalidOption: when no address is set
        """
        tracing = self.nsq.tracing
        return self.settings.make_producer(self.encode, Producer if tracing is None else tracing.producer)

    def make_readers(self) -> list[Reader]:
        """All Readers of this application, for ``gnsq_like.contrib.gunicorn``."""
        return self.nsq.make_readers(app=self.app)

    def encode(self, value: Any) -> bytes:
        """Encode with the application's own JSON provider, so that it can publish any value that it can return."""
        return self.app.json.dumps(value).encode()


class NSQ:
    """The extension: ``NSQ(app)``, or ``NSQ()`` and :meth:`init_app`, also for several applications.

    :param metrics: counts the messages of the readers and Producers of all these applications
    :param tracing: traces their publishes and handlers
    """

    #: The metrics that it was made with.
    metrics: Metrics | None
    #: The tracing that it was made with.
    tracing: Tracing | None

    def __init__(
        self, app: Flask | None = None, *, metrics: Metrics | None = None, tracing: Tracing | None = None
    ) -> None:
        self.metrics = metrics
        self.tracing = tracing
        self._declared: dict[str, Declared] = {}
        #: Makes the relay of the outbox, if there is one, from a Producer, OUTBOX_KEEP and OUTBOX_POLL_INTERVAL.
        self._relay_maker: Callable[[Producer[Any], float, float], Relay] | None = None
        #: Its applications, the newest last; for calls outside any application's context.
        self._apps: list[weakref.ref[Flask]] = []
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Read the settings ``NSQ_…`` from ``app.config``, and those missing there from the environment.

        :raises InvalidOption: for a wrong setting
        """
        if _KEY in app.extensions:
            raise RuntimeError(f"{app} has an NSQ already")
        state = _State(self, app)
        app.extensions[_KEY] = state
        app.cli.add_command(make_commands(self))
        self._apps = [*(each for each in self._apps if each() is not None), weakref.ref(app)]
        if self.metrics is not None and state.producer is not None:
            self.metrics.watch_producer(state.producer, app.name)

    def _state(self, app: Flask | None = None, *, last: bool = False) -> _State:
        """The state of ``app``, or of the application of this context; outside one, of the only or the ``last`` one."""
        if app is None and current_app:
            app = app_ctx.app
        if app is None:
            apps = [app for each in self._apps if (app := each()) is not None]
            if not apps:
                raise RuntimeError("this NSQ has no application: call nsq.init_app(app)")
            if len(apps) > 1 and not last:
                raise RuntimeError(
                    f"this NSQ has {len(apps)} applications: use it in a context of one (with app.app_context():)"
                )
            app = apps[-1]
        state: _State | None = app.extensions.get(_KEY)
        if state is None:
            raise RuntimeError(f"{app} has no NSQ: call nsq.init_app(app)")
        return state

    # -- publishing ---------------------------------------------------------------------------------

    @property
    def producer(self) -> Producer[Any]:
        """The application's Producer, one in each process; for ``publish_async`` and the like.

        No request closes it. It connects at its first publish, and again in each forked process.

        :raises InvalidOption: when no address is set
        """
        state = self._state()
        if state.producer is None:
            return state.make_sending_producer()  # raises, and names the missing setting
        if self.metrics is not None:
            self.metrics.keep_writing()
        return state.producer

    def publish(self, topic: str, body: Any, *, defer: float | None = None, timeout: float | None = None) -> None:
        """Publish one message and wait for nsqd's OK. From any thread. May switch, or block.

        :param body: bytes are sent unchanged; anything else is encoded by ``NSQ_ENCODER``, by default as the
            application's JSON
        :param defer: seconds until the message is delivered
        :param timeout: seconds in all; ``NSQ_PUBLISH_TIMEOUT`` (2) if not given
        :raises NSQError: as Producer.publish; at once while every nsqd is unreachable, unless ``NSQ_FAIL_FAST`` is
            false. A request that does not catch it answers 500, as it should
        """
        self.producer.publish(topic, body, defer=defer, timeout=timeout)

    async def apublish(
        self, topic: str, body: Any, *, defer: float | None = None, timeout: float | None = None
    ) -> None:
        """As :meth:`publish`, in an ``async def`` view: does not block its event loop. See Producer.apublish."""
        await self.producer.apublish(topic, body, defer=defer, timeout=timeout)

    def multi_publish(
        self, topic: str, bodies: Iterable[Any], *, atomic: bool = False, timeout: float | None = None
    ) -> None:
        """Publish several messages; see Producer.multi_publish. May switch, or block."""
        self.producer.multi_publish(topic, bodies, atomic=atomic, timeout=timeout)

    @property
    def outbox(self) -> list[Published]:
        """With ``NSQ_RECORD``: the published messages, the oldest first.

        Outside any context it is that of the newest application, so that a test finds its own.

        :raises RuntimeError: without ``NSQ_RECORD``
        """
        outbox: list[Published] | None = getattr(self._state(last=True).producer, "outbox", None)
        if outbox is None:
            raise RuntimeError("publishes are sent, not recorded: set NSQ_RECORD = True before init_app")
        return outbox

    # -- the outbox ---------------------------------------------------------------------------------

    @property
    def is_recording(self) -> bool:
        """The setting ``NSQ_RECORD``."""
        return bool(self._state().settings.own["RECORD"])

    def relay_by(self, make: Callable[[Producer[Any], float, float], Relay]) -> None:
        """Called by ``Outbox``: set the function that makes a relay."""
        self._relay_maker = make

    def make_relay(self, app: Flask | None = None) -> Relay:
        """The relay of the outbox, not started; ``flask nsq relay`` runs it.

        :raises InvalidOption: if there is no outbox, or no address is set
        """
        if self._relay_maker is None:
            raise InvalidOption("relay", None, "this NSQ has no Outbox (gnsq_like.contrib.flask.outbox)")
        state = self._state(app)
        own = state.settings.own
        with state.app.app_context():
            relay = self._relay_maker(self.producer, own["OUTBOX_KEEP"], own["OUTBOX_POLL_INTERVAL"])
        state.relays = [relay]
        if self.metrics is not None:
            self.metrics.watch_relay(relay)
        return relay

    # -- readers ------------------------------------------------------------------------------------

    def reader(
        self,
        topic: Topic,
        channel: str,
        *,
        name: str | None = None,
        batch: Mapping[str, Any] | None = None,
        **options: Unpack[ReaderArguments],
    ) -> Callable[[_F], _F]:
        """Declare the decorated function the handler of a reader, and return it unchanged.

        It is called with each message in a context of the application: ``current_app`` and resources of the context
        (such as database sessions) are available, and are torn down after each message.

        :param topic: topic name; or several, or a compiled pattern that follows nsqlookupd, as of :class:`Reader`
        :param name: for ``flask nsq run``; the function's name if not given
        :param batch: for a function that takes lists: the arguments of :class:`Batch`, ``{"size": 100}``
        :param options: arguments of :class:`Reader`, which override settings. Its hooks, such as ``on_giving_up`` and
            ``on_failure``, run in a context of the application, too
        :raises InvalidName, InvalidOption: at once, for wrong arguments
        """

        def declare(handler: _F) -> _F:
            declared = Declared(name or handler.__name__, topic, channel, handler, batch, options)
            if declared.name in self._declared:
                raise InvalidOption("name", declared.name, "there is a reader of this name already")
            declared.check()
            self._declared[declared.name] = declared
            return handler

        return declare

    @property
    def declared_readers(self) -> list[tuple[str, str, str]]:
        """Name, topic and channel of each declared reader."""
        return [(each.name, each.topic_text, each.channel) for each in self._declared.values()]

    def make_readers(self, names: Iterable[str] = (), app: Flask | None = None) -> list[Reader]:
        """A Reader for each of these declared names, or for all; not started.

        :raises InvalidOption: for a name that is not declared, and if no address is set
        """
        state = self._state(app)
        wanted = list(names) or list(self._declared)
        for name in wanted:
            if name not in self._declared:
                known = ", ".join(self._declared) or "none"
                raise InvalidOption("names", name, f"there is no reader of this name; there are: {known}")
        state.readers = [self._make_reader(state, self._declared[name]) for name in dict.fromkeys(wanted)]
        return state.readers

    def _make_reader(self, state: _State, declared: Declared) -> Reader:
        hooks = {name: _in_context(state.app, hook) for name, hook in declared.hooks.items()}
        handler = _in_context(state.app, declared.function)
        return declared.make_reader(state.settings, handler, hooks, self.metrics, self.tracing)

    @contextmanager
    def consuming(self, app: Flask | None = None, *names: str) -> Iterator[ReaderGroup]:
        """Run the readers during the block. May switch, or block, at both ends.

        If threading is patched they share the hub; otherwise they have a thread of their own. Flask's reloader has two
        processes: use this only in the child (``docs/web.rst``); the parent emits a warning.
        """
        state = self._state(app)
        timeout = state.settings.own["STOP_TIMEOUT"]
        ended = threading.Event()
        with ReaderGroup(*self.make_readers(names, state.app), stop_timeout=timeout, own_thread=True) as group:
            threading.Thread(target=_warn_about_the_reloader, args=(ended,), daemon=True).start()
            try:
                yield group
            finally:
                ended.set()

    @property
    def stop_timeout(self) -> float:
        """The setting ``NSQ_STOP_TIMEOUT``, in seconds."""
        return float(self._state().settings.own["STOP_TIMEOUT"])

    @contextmanager
    def embedded(self, app: Flask | None = None, *names: str) -> Iterator[RunningNsqd]:
        """For tests and development: during the block an nsqd in this process replaces all others.

        All addresses in settings and options are ignored. ``nsqd.wait_until(topic, channel, left=0)`` waits until the
        readers have answered all messages.
        """
        from gnsq_like.testing import running_nsqd

        state = self._state(app)
        settings, producer = state.settings, state.producer
        with running_nsqd() as nsqd:
            state.settings = settings.at(nsqd.tcp_address)
            state.producer = state.make_sending_producer()
            try:
                with self.consuming(state.app, *names):
                    yield nsqd
                state.producer.close()
            finally:
                state.settings, state.producer = settings, producer

    # -- looking ------------------------------------------------------------------------------------

    @property
    def metrics_app(self) -> Callable[..., Iterable[bytes]] | None:
        """A WSGI application with the metrics; None without metrics."""
        return None if self.metrics is None else self.metrics.wsgi_app()

    def health_blueprint(self, rule: str = "/healthz") -> Blueprint:
        """A blueprint that reports this process's readers and Producer; see ``gnsq_like.contrib.health``."""
        blueprint = Blueprint("nsq_health", __name__)

        @blueprint.get(rule)
        def healthz() -> Response:
            state = self._state()
            producers = () if state.producer is None else (state.producer,)
            healthy, answer = report(state.readers, producers, state.relays)
            return Response(
                current_app.json.dumps(answer),
                status=200 if healthy else 503,
                mimetype="application/json",
                headers={"Cache-Control": "no-store"},
            )

        return blueprint


def _warn_about_the_reloader(ended: threading.Event) -> None:
    """Warn if this process is the parent of Flask's reloader, which shows when Werkzeug imports the reloader's
    module."""
    for _ in range(_LOOKS_FOR_RELOADER):
        if "werkzeug._reloader" in sys.modules and not is_running_from_reloader():
            warnings.warn(  # not in the log, which a program under development has seldom configured
                "this process only watches files for Flask's reloader, and consumes with the code of its start beside "
                "the child that serves: consume only where werkzeug.serving.is_running_from_reloader() is true",
                RuntimeWarning,
                stacklevel=1,
            )
            return
        if ended.wait(1.0):
            return


def _in_context(app: Flask, function: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(function)
    def in_context(*given: Any) -> object:
        with app.app_context():
            return function(*given)

    return in_context
