"""The table of results."""

from __future__ import annotations

from typing import ClassVar

from django.db import models


class TaskRecord(models.Model):
    """A task that was enqueued, with its state and result."""

    #: The result's id.
    id = models.CharField(primary_key=True, max_length=64)
    module_path = models.TextField()
    backend = models.CharField(max_length=100)
    queue_name = models.CharField(max_length=100)
    run_after = models.DateTimeField(null=True, blank=True)
    args = models.JSONField(default=list)
    kwargs = models.JSONField(default=dict)
    #: Of TaskResultStatus.
    status = models.CharField(max_length=10)
    enqueued_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True, blank=True)
    last_attempted_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)
    #: For each failed attempt: exception_class_path and traceback.
    errors = models.JSONField(default=list)
    worker_ids = models.JSONField(default=list)
    return_value = models.JSONField(null=True, blank=True)

    class Meta:
        app_label = "gnsq_like_tasks"
        verbose_name = "task"
        indexes: ClassVar = [models.Index(fields=["status", "finished_at"], name="nsq_tasks_status")]

    def __str__(self) -> str:
        return f"{self.module_path} {self.id} {self.status}"
