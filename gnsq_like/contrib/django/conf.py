"""The setting ``NSQ``: read when it is first needed, and again when a test overrides it.

``gnsq_like.contrib.shared.settings`` says what may stand there. It is imported late, for it loads gevent, and an
application that patches must have done so by then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured

from gnsq_like.errors import InvalidOption

if TYPE_CHECKING:
    from gnsq_like.contrib.prometheus import Metrics
    from gnsq_like.contrib.shared.settings import Settings

#: How a key of the setting is spelled in errors.
LABEL = 'NSQ["{}"]'

#: Settings of this integration: default and types.
OWN: Mapping[str, tuple[object, tuple[type, ...]]] = {
    # Whether publishes are recorded in producer().outbox, and not sent.
    "RECORD": (False, (bool,)),
    # Whether what readers and the Producer count is told to Prometheus; needs gnsq-like[prometheus].
    "METRICS": (False, (bool,)),
    # Seconds that running handlers get when the readers stop.
    "STOP_TIMEOUT": (30.0, (float,)),
}


def given() -> Mapping[str, Any]:
    """The setting as it stands there; {} where there is none.

    :raises ImproperlyConfigured: when it is no dictionary
    """
    value = getattr(django_settings, "NSQ", {})
    if not isinstance(value, Mapping):
        raise ImproperlyConfigured(f"NSQ must be a dictionary, not {value!r}")
    return value


@lru_cache(maxsize=1)
def settings() -> Settings:
    """What is set, with what the environment (``NSQ_…``) adds.

    :raises ImproperlyConfigured: for what is wrong
    """
    from gnsq_like.contrib.shared.settings import make_settings

    try:
        found = make_settings(given(), own=OWN, label=LABEL)
        if found.own["RECORD"] and not has_address(found.reader):
            # For tests nothing needs to be set, but Readers are made for the system checks.
            found = replace(found, reader={**found.reader, "nsqd_tcp_addresses": ["127.0.0.1:4150"]})
        return found
    except InvalidOption as exc:
        raise ImproperlyConfigured(str(exc)) from exc


def has_address(options: Mapping[str, Any]) -> bool:
    """Whether these keyword arguments of a Producer or a Reader say where to connect to."""
    return bool(options.get("nsqd_tcp_addresses") or options.get("lookupd_http_addresses"))


def metrics() -> Metrics | None:
    """What counts for Prometheus in this process, in its default registry; None without the setting METRICS."""
    return _metrics() if settings().own["METRICS"] else None


@lru_cache(maxsize=1)
def _metrics() -> Metrics:
    from gnsq_like.contrib.prometheus import Metrics

    return Metrics()
