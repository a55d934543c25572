"""The setting ``NSQ``: read when it is first needed, and again when a test overrides it.

``gnsq_like.contrib.shared.settings`` describes its keys. It is imported late because it loads gevent, and an
application that patches must do so before.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured

from gnsq_like.errors import InvalidOption

if TYPE_CHECKING:
    from gnsq_like.contrib.opentelemetry import Tracing
    from gnsq_like.contrib.prometheus import Metrics
    from gnsq_like.contrib.shared.settings import Settings

_T = TypeVar("_T")

#: The metrics and the tracing of this process, once made, and the lock for making them.
_made: dict[object, Any] = {}
_making = threading.Lock()

#: The spelling of a key in errors.
LABEL = 'NSQ["{}"]'

#: Settings of this integration: default and types.
OWN: Mapping[str, tuple[object, tuple[type, ...]]] = {
    # Whether to record publishes in producer().outbox instead of sending them.
    "RECORD": (False, (bool,)),
    # Whether the readers and the Producer have Prometheus metrics; needs the extra [prometheus].
    "METRICS": (False, (bool,)),
    # Whether publishes and calls of handlers are spans of OpenTelemetry; needs the extra [otel].
    "TRACING": (False, (bool,)),
    # Topics whose messages are CloudEvents, which carry the trace: a list, names with commas, or True for all.
    "CLOUD_EVENTS": ((), (bool, str, list, tuple)),
    # Seconds for running handlers to end when the readers stop.
    "STOP_TIMEOUT": (30.0, (float,)),
    # Seconds for which the outbox keeps messages that are published; 0 deletes them at once.
    "OUTBOX_KEEP": (86400.0, (float,)),
    # Seconds between two polls of the outbox if no commit wakes the relay.
    "OUTBOX_POLL_INTERVAL": (0.5, (float,)),
}


def given() -> Mapping[str, Any]:
    """The setting ``NSQ``, unchecked; {} if it is missing.

    :raises ImproperlyConfigured: when it is not a dictionary
    """
    value = getattr(django_settings, "NSQ", {})
    if not isinstance(value, Mapping):
        raise ImproperlyConfigured(f"NSQ must be a dictionary, not {value!r}")
    return value


@lru_cache(maxsize=1)
def settings() -> Settings:
    """The settings, including those of the environment (``NSQ_…``).

    :raises ImproperlyConfigured: for a wrong setting
    """
    from gnsq_like.contrib.shared.settings import make_settings

    try:
        found = make_settings(given(), own=OWN, label=LABEL)
        if found.own["CLOUD_EVENTS"] and not found.own["TRACING"]:
            raise InvalidOption(LABEL.format("CLOUD_EVENTS"), found.own["CLOUD_EVENTS"], "it needs TRACING")
        if found.own["RECORD"] and not has_address(found.reader):
            # Tests need no address, but the system checks construct Readers, which do.
            found = replace(found, reader={**found.reader, "nsqd_tcp_addresses": ["127.0.0.1:4150"]})
        return found
    except InvalidOption as exc:
        raise ImproperlyConfigured(str(exc)) from exc


def has_address(options: Mapping[str, Any]) -> bool:
    """Whether these keyword arguments of a Producer or a Reader include an address."""
    return bool(options.get("nsqd_tcp_addresses") or options.get("lookupd_http_addresses"))


def metrics() -> Metrics | None:
    """The metrics of this process, in prometheus-client's default registry; None without the setting METRICS."""
    return _once("metrics", _metrics) if settings().own["METRICS"] else None


def tracing() -> Tracing | None:
    """The tracing of this process, by OpenTelemetry's global providers; None without the setting TRACING."""
    own = settings().own
    topics = own["CLOUD_EVENTS"]
    if isinstance(topics, str):
        topics = [topic.strip() for topic in topics.split(",") if topic.strip()]
    topics = topics if isinstance(topics, bool) else frozenset(topics)
    return _once(topics, partial(_tracing, topics)) if own["TRACING"] else None


def _once(key: object, make: Callable[[], _T]) -> _T:
    """The result of ``make`` for this key, which is called once, by the first thread. May block, or switch."""
    if key not in _made:
        with _making:  # not lru_cache, which lets two threads call it: names can be registered only once
            if key not in _made:
                _made[key] = make()
    made: _T = _made[key]
    return made


def _tracing(topics: bool | frozenset[str]) -> Tracing:
    from gnsq_like.contrib.opentelemetry import Tracing

    return Tracing(cloud_events=topics)


def _metrics() -> Metrics:
    from gnsq_like.contrib.prometheus import Metrics

    return Metrics()
