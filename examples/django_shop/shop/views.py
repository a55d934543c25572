"""The page: takes orders, and shows their states."""

from django.db import transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_http_methods

from gnsq_like.contrib.django import publish
from shop.forms import OrderForm
from shop.models import Order


@require_http_methods(["GET", "POST"])
def index(request: HttpRequest) -> HttpResponse:
    form = OrderForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        with transaction.atomic():
            order = form.save()
            # A row beside the order: both are there, or neither is, and the page works while nsqd is unreachable.
            publish("orders", {"order": order.pk}, outbox=True)
        return redirect("index")
    return render(request, "shop/index.html", {"form": form})


@require_GET
def orders(request: HttpRequest) -> JsonResponse:
    """The latest orders, for the list on the page."""
    return JsonResponse(
        {
            "orders": [
                {
                    "number": order.pk,
                    "what": order.what,
                    "customer": order.customer,
                    "state": order.state,
                    "label": order.get_state_display(),
                }
                for order in Order.objects.all()[:12]
            ]
        }
    )
