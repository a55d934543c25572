"""``manage.py nsq_publish``: publish from the command line, or standard input line by line."""

from __future__ import annotations

import sys
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser

from gnsq_like.contrib.django.publishing import producer
from gnsq_like.contrib.shared.standard_input import publish_input
from gnsq_like.errors import NSQError


class Command(BaseCommand):
    """See ``help``."""

    help = (
        "Publishes a message to a topic, or each line of standard input, empty ones left out, and ends when nsqd has "
        "confirmed all. Lines are published as they come; if one cannot be published, those before it have been."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """The topic, the body, the delay, and how standard input is divided."""
        parser.add_argument("topic")
        parser.add_argument("body", nargs="?", default="-", help="Sent unchanged, as UTF-8; - is standard input.")
        parser.add_argument("--defer", type=float, metavar="SECONDS", help="Deliver it later.")
        parser.add_argument("--null", action="store_true", help="Messages of standard input end with a NUL byte.")
        parser.add_argument("--whole", action="store_true", help="All of standard input is one message.")

    def handle(self, *, topic: str, body: str, defer: float | None, null: bool, whole: bool, **_: Any) -> None:
        """Publish; a CommandError gives the reason for a failure."""
        if (null or whole) and body != "-":
            raise CommandError("--null and --whole are for standard input, and there is a body")
        try:
            if body == "-":
                publish_input(sys.stdin.buffer, producer(), topic, defer=defer, null=null, whole=whole)
            else:
                producer().publish(topic, body.encode(), defer=defer)
        except (NSQError, ImproperlyConfigured) as exc:
            raise CommandError(str(exc)) from exc
