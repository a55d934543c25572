from django.db import transaction
from django.http import HttpResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from opentelemetry import trace

from gnsq_like.contrib.django import apublish, healthz, publish
from ledger.models import Line
from tests.support.notes import SUBJECT

tracer = trace.get_tracer("tests")


@csrf_exempt
def order(request, topic, name):
    """A row and a message about it; names with "bad" in them are rolled back after the publish."""
    try:
        with tracer.start_as_current_span("request", attributes={SUBJECT: name}), transaction.atomic():
            Line.objects.create(writer="request", name=name)
            publish(topic, name.encode())
            if "bad" in name:
                raise RuntimeError("meant")
    except RuntimeError:
        return HttpResponse("rolled back", status=409)
    return HttpResponse("ok")


def plain(request):
    """A page that publishes nothing."""
    return HttpResponse("plain")


async def published(request, topic, name):
    """A message from an asynchronous view."""
    await apublish(topic, name.encode())
    return HttpResponse("ok")


urlpatterns = [
    path("publish/<topic>/<name>", order),
    path("apublish/<topic>/<name>", published),
    path("healthz", healthz),
    path("plain", plain),
]
