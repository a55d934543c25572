"""``manage.py nsq_publish``: publish from the command line."""

from __future__ import annotations

import sys
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser

from gnsq_like.contrib.django.publishing import producer
from gnsq_like.errors import NSQError


class Command(BaseCommand):
    """See ``help``."""

    help = "Publishes a message to a topic, and ends when nsqd has confirmed it."

    def add_arguments(self, parser: CommandParser) -> None:
        """The topic, the body and the delay."""
        parser.add_argument("topic")
        parser.add_argument("body", nargs="?", default="-", help="Sent unchanged, as UTF-8; - is standard input.")
        parser.add_argument("--defer", type=float, metavar="SECONDS", help="Deliver it later.")

    def handle(self, *, topic: str, body: str, defer: float | None, **_: Any) -> None:
        """Publish; a CommandError gives the reason for a failure."""
        data = sys.stdin.buffer.read() if body == "-" else body.encode()
        try:
            producer().publish(topic, data, defer=defer)
        except (NSQError, ImproperlyConfigured) as exc:
            raise CommandError(str(exc)) from exc
