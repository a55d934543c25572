"""A transactional outbox in Django: an app of its own, so that a project without it has no table.

::

    INSTALLED_APPS = [..., "gnsq_like.contrib.django", "gnsq_like.contrib.django.outbox"]

    with transaction.atomic():
        order = Order.objects.create(...)
        publish("orders", {"order": order.pk}, outbox=True, key=str(order.customer_id))

``manage.py nsq_relay`` publishes what has committed; so does ``manage.py nsq_run --relay``, beside the readers.
"""
