"""The processing of orders: ``manage.py nsq_run --relay`` calls these functions, and publishes the outbox.

A message may be delivered twice. So each function changes an order only if it is in the preceding state, and does so in
one statement.
"""

import json
import time

from django.db import transaction

from gnsq_like.contrib.django import publish, reader
from shop.models import Order

#: Seconds that the work takes.
PACKING = 1.0
SHIPPING = 1.0


@reader("orders", "pack")
def pack(message):
    number = json.loads(message.body)["order"]
    time.sleep(PACKING)
    with transaction.atomic():
        if Order.objects.filter(pk=number, state=Order.State.PLACED).update(state=Order.State.PACKED):
            publish("parcels", {"order": number}, outbox=True)


@reader("parcels", "ship")
def ship(message):
    time.sleep(SHIPPING)
    number = json.loads(message.body)["order"]
    Order.objects.filter(pk=number, state=Order.State.PACKED).update(state=Order.State.SHIPPED)
