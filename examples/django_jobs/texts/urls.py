"""The page: takes texts, and shows how many words they have."""

from functools import partial

from django.db import transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_http_methods

from texts.jobs import count
from texts.models import Text


@csrf_exempt
@require_http_methods(["GET", "POST"])
def index(request: HttpRequest) -> HttpResponse:
    if request.method == "POST":
        with transaction.atomic():
            text = Text.objects.create(text=request.POST["text"])
            # Before the commit, a worker would not find the text.
            transaction.on_commit(partial(count.send, text.pk))
        return HttpResponse(status=202)
    return JsonResponse([{"text": each.text, "words": each.words} for each in Text.objects.order_by("pk")], safe=False)


urlpatterns = [path("", index)]
