from django.db import transaction
from django.http import HttpResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

from gnsq_like.contrib.django import healthz, publish
from ledger.models import Line


@csrf_exempt
def order(request, topic, name):
    """A row and a message about it; names with "bad" in them are rolled back after the publish."""
    try:
        with transaction.atomic():
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


urlpatterns = [path("publish/<topic>/<name>", order), path("healthz", healthz), path("plain", plain)]
