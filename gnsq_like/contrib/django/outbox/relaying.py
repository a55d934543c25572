"""The relay of the project's outbox, with the settings of ``NSQ``."""

from __future__ import annotations

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured

from gnsq_like.contrib.django import conf
from gnsq_like.contrib.django.publishing import producer
from gnsq_like.contrib.shared.outbox.relay import Relay
from gnsq_like.contrib.shared.outbox.store import SQLStore

#: The relays that were made in this process, for ``healthz``.
made: list[Relay] = []


def make_relay(using: str = "default") -> Relay:
    """A relay for the outbox in this database, which uses the process's Producer; not started.

    :raises ImproperlyConfigured: for wrong settings
    """
    if not apps.is_installed("gnsq_like.contrib.django.outbox"):
        raise ImproperlyConfigured('add "gnsq_like.contrib.django.outbox" to INSTALLED_APPS, and migrate')
    from gnsq_like.contrib.django.outbox.database import DjangoDatabase

    own = conf.settings().own
    store = SQLStore(DjangoDatabase(using), float(own["OUTBOX_KEEP"]))
    relay = Relay(store, producer(), poll_interval=float(own["OUTBOX_POLL_INTERVAL"]), name=using)
    made[:] = [relay]
    if (metrics := conf.metrics()) is not None:
        metrics.watch_relay(relay)
    return relay
