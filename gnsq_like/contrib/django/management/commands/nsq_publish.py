"""``manage.py nsq_publish``: publish from the command line, or standard input line by line."""

from __future__ import annotations

import sys
from functools import partial

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser

from gnsq_like.contrib.django.publishing import producer
from gnsq_like.contrib.shared.standard_input import publish_lines
from gnsq_like.errors import NSQError


class Command(BaseCommand):
    """See ``help``."""

    help = (
        "Publishes a message to a topic, or each line of standard input, empty ones left out, and ends when nsqd has "
        "confirmed all. Lines are published as they come; if one cannot be published, those before it have been."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """The topic, the body and the delay."""
        parser.add_argument("topic")
        parser.add_argument("body", nargs="?", default="-", help="Sent unchanged, as UTF-8; - is standard input.")
        parser.add_argument("--defer", type=float, metavar="SECONDS", help="Deliver it later.")

    def handle(self, *, topic: str, body: str, defer: float | None, **_: object) -> None:
        """Publish; a CommandError gives the reason for a failure."""
        try:
            publish = partial(producer().publish, topic, defer=defer)
            if body == "-":
                publish_lines(sys.stdin.buffer, publish)
            else:
                publish(body.encode())
        except (NSQError, ImproperlyConfigured) as exc:
            raise CommandError(str(exc)) from exc
