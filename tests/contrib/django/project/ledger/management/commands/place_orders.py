"""Places orders, as a site would: each is a row and a message in a transaction; one in five is rolled back."""

import random

from django.core.management.base import BaseCommand
from django.db import transaction

from gnsq_like.contrib.django import publish
from ledger.models import Line
from tests.support.notes import note

#: How many keys there are.
KEYS = 12


class RollsBackError(Exception):
    pass


class Command(BaseCommand):
    def add_arguments(self, parser):
        parser.add_argument("name")
        parser.add_argument("count", type=int)

    def handle(self, *, name, count, **_):
        chance = random.Random(name)
        for number in range(count):
            order = f"{name}.{number}"
            key = f"customer-{chance.randrange(KEYS)}" if chance.random() < 0.8 else None
            try:
                with transaction.atomic():
                    Line.objects.create(writer="request", name=order)
                    publish("orders", {"order": order}, outbox=True, key=key, envelope=True)
                    if chance.random() < 0.2:
                        raise RollsBackError
            except RollsBackError:
                continue
            note("committed", order)
        note("placed", name)
