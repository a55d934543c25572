"""The jobs: ``dramatiq texts.jobs`` runs them, and views send them."""

import os

import django
import dramatiq
from django.apps import apps
from django.conf import settings
from django.db import close_old_connections

from gnsq_like.contrib.dramatiq import NSQBroker

if not apps.ready:  # in the worker; the server has set Django up
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "texts.settings")
    django.setup()

from texts.models import Text


class Connections(dramatiq.Middleware):
    """Does around each job what Django does around each request."""

    def before_process_message(self, broker, message):
        close_old_connections()

    def after_process_message(self, broker, message, *, result=None, exception=None):
        close_old_connections()


broker = NSQBroker(nsqd_tcp_addresses=settings.NSQD)
broker.add_middleware(Connections())
dramatiq.set_broker(broker)


@dramatiq.actor(max_retries=2, min_backoff=200, max_backoff=1000)
def count(number: int) -> None:
    """Runs at least once, so it must not matter if it runs twice."""
    text = Text.objects.get(pk=number)
    if not text.text:
        raise ValueError("an empty text")
    text.words = len(text.text.split())
    text.save()
