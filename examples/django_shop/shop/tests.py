"""The shop without an nsqd: published messages are recorded, and delivered to the readers."""

from django.test import TestCase

from gnsq_like.contrib.django.testing import NSQTestMixin
from shop.models import Order

TEA = {"item": "tea", "count": 2, "customer": "Ada"}


class OrderTests(NSQTestMixin, TestCase):
    def order(self, **changes):
        with self.captureOnCommitCallbacks(execute=True):
            return self.client.post("/", {**TEA, **changes})

    def test_an_order_is_packed_and_shipped(self):
        self.assertRedirects(self.order(), "/")
        order = Order.objects.get()
        self.assertPublished("orders", {"order": order.pk}, count=1)
        for topic, state in [("orders", Order.State.PACKED), ("parcels", Order.State.SHIPPED)]:
            with self.captureOnCommitCallbacks(execute=True):
                [message] = self.deliver(topic)
            order.refresh_from_db()
            self.assertEqual((message.answer, order.state), ("FIN", state))

    def test_a_wrong_order_is_not_stored(self):
        self.assertEqual(self.order(count=0).status_code, 200)
        self.assertNothingPublished()
        self.assertFalse(Order.objects.exists())

    def test_the_list(self):
        self.order()
        self.order(customer="Grace", item="coffee", count=1)
        shown = self.client.get("/orders/").json()["orders"]
        self.assertEqual((shown[0]["what"], shown[0]["customer"]), ("1 × Coffee beans, dark", "Grace"))
        self.assertEqual({each["label"] for each in shown}, {"placed"})
