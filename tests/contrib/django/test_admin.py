"""The integration's tables in Django's admin, in a project with the parts that it needs."""

from __future__ import annotations

import pytest

from tests.support.scripts import run_script

pytestmark = pytest.mark.servers

SITE = """
import django
from datetime import timedelta
from django.conf import settings

APPS = ["admin", "auth", "contenttypes", "messages", "sessions"]
settings.configure(
    SECRET_KEY="x", ROOT_URLCONF="__main__", USE_TZ=True, ALLOWED_HOSTS=["*"],
    INSTALLED_APPS=[*(f"django.contrib.{each}" for each in APPS), "django_tasks",
                    "gnsq_like.contrib.django.outbox", "gnsq_like.contrib.django.tasks"],
    MIDDLEWARE=["django.contrib.sessions.middleware.SessionMiddleware",
                "django.contrib.auth.middleware.AuthenticationMiddleware",
                "django.contrib.messages.middleware.MessageMiddleware"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    TEMPLATES=[{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True,
                "OPTIONS": {"context_processors": ["django.template.context_processors.request",
                                                   "django.contrib.auth.context_processors.auth",
                                                   "django.contrib.messages.context_processors.messages"]}}],
)
django.setup()

from django.contrib import admin
from django.contrib.auth.models import User
from django.core.management import call_command
from django.test import Client
from django.urls import path
from django.utils import timezone

from gnsq_like.contrib.django.outbox.models import OutboxMessage
from gnsq_like.contrib.django.tasks.models import TaskRecord

urlpatterns = [path("admin/", admin.site.urls)]
call_command("migrate", verbosity=0)
call_command("check")
client = Client()
client.force_login(User.objects.create_superuser("root"))


def page(path, data=None):
    answer = client.get(f"/admin/{path}") if data is None else client.post(f"/admin/{path}", data, follow=True)
    assert answer.status_code == 200, (path, answer.status_code)
    return answer.content.decode()


now = timezone.now()
"""


def test_tasks_can_be_looked_at_and_deleted() -> None:
    run_script(
        SITE
        + """
TaskRecord.objects.create(
    id="abc", module_path="shop.tasks.thank", backend="default", queue_name="mail", status="FAILED", enqueued_at=now,
    args=[7], errors=[{"exception_class_path": "x", "traceback": "ValueError: <none>"}], worker_ids=["a", "b"],
)
listed = page("gnsq_like_tasks/taskrecord/?status=FAILED&q=thank")
assert "shop.tasks.thank" in listed and "Add task" not in listed
shown = page("gnsq_like_tasks/taskrecord/abc/change/")
assert "<pre>ValueError: &lt;none&gt;</pre>" in shown and 'name="_save"' not in shown
page("gnsq_like_tasks/taskrecord/abc/delete/", {"post": "yes"})
assert not TaskRecord.objects.exists()
"""
    )


def test_the_outbox_can_be_looked_at_and_messages_be_deleted() -> None:
    run_script(
        SITE
        + """
hour = timedelta(hours=1)
for topic, more in (("due", {}), ("late", {"due_at": now + hour}), ("sent", {"published_at": now})):
    OutboxMessage.objects.create(topic=f"topic-{topic}", shard=0, body=b"the body \\xff", **more)
OutboxMessage.objects.create(topic="topic-bad", shard=0, body=b"x", refused="E_BAD_MESSAGE too large")
states = {"due": ["due", "bad"], "refused": ["bad"], "deferred": ["late"], "published": ["sent"]}
for state, topics in states.items():
    rows = page(f"gnsq_like_outbox/outboxmessage/?state={state}").partition("<tbody>")[2].partition("</tbody>")[0]
    assert [each for each in ("due", "late", "sent", "bad") if f"topic-{each}" in rows] == topics, rows
    assert ("E_BAD_MESSAGE too large" in rows) == ("bad" in topics)
assert "topic-sent" in page("gnsq_like_outbox/outboxmessage/").partition("<tbody>")[2]
assert "the body \\ufffd" in page("gnsq_like_outbox/outboxmessage/1/change/")
page("gnsq_like_outbox/outboxmessage/1/delete/", {"post": "yes"})
assert OutboxMessage.objects.count() == 3
"""
    )
