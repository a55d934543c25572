"""The outbox in Django's admin: shows the messages, and deletes refused ones."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import Q
from django.utils import timezone

from gnsq_like.contrib.django.outbox.models import OutboxMessage
from gnsq_like.contrib.django.read_only_admin import LookingAdmin

#: Characters of a body that are shown.
_SHOWN = 10_000


class StateFilter(admin.SimpleListFilter):
    """A filter by the state of a message for the relay."""

    title = "state"
    parameter_name = "state"

    def lookups(self, request: object, model_admin: object) -> list[tuple[str, str]]:
        """The choices."""
        return [
            ("due", "to be published"),
            ("refused", "refused"),
            ("deferred", "deferred"),
            ("published", "published"),
        ]

    def queryset(self, request: Any, queryset: Any) -> Any:
        """The messages of the chosen state."""
        deferred = Q(due_at__gt=timezone.now())
        chosen = {
            "due": Q(published_at=None) & ~deferred,
            "refused": Q(published_at=None, refused__isnull=False),
            "deferred": Q(published_at=None) & deferred,
            "published": Q(published_at__isnull=False),
        }.get(self.value() or "")
        return queryset if chosen is None else queryset.filter(chosen)


@admin.register(OutboxMessage)
class OutboxAdmin(LookingAdmin):
    """All messages. A message that nsqd refuses stays due, blocks later ones with its key, and may be deleted here."""

    list_display = ("id", "topic", "key", "sequence", "created_at", "due_at", "published_at", "refused")
    list_filter = (StateFilter, "topic")
    search_fields = ("topic", "key")
    date_hierarchy = "created_at"
    exclude = ("body", "shard")
    readonly_fields = ("content",)

    def content(self, message: Any) -> str:
        """The body as text."""
        return bytes(message.body).decode("utf-8", errors="replace")[:_SHOWN]
