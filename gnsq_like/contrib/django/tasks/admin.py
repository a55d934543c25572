"""Tasks in Django's admin: to look at, and to delete."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.utils.html import format_html_join

from gnsq_like.contrib.django.read_only_admin import LookingAdmin
from gnsq_like.contrib.django.tasks.models import TaskRecord

if TYPE_CHECKING:
    from django.utils.safestring import SafeString


@admin.register(TaskRecord)
class TaskAdmin(LookingAdmin):
    """The state of each task, and the tracebacks of its attempts."""

    list_display = ("module_path", "status", "queue_name", "attempts", "enqueued_at", "finished_at")
    list_filter = ("status", "queue_name", "backend")
    search_fields = ("id", "module_path")
    date_hierarchy = "enqueued_at"
    exclude = ("errors",)
    readonly_fields = ("tracebacks",)

    def attempts(self, task: Any) -> int:
        """How often it began."""
        return len(task.worker_ids)

    def tracebacks(self, task: Any) -> SafeString:
        """One for each attempt that failed."""
        return format_html_join("", "<pre>{}</pre>", ((each["traceback"],) for each in task.errors))
