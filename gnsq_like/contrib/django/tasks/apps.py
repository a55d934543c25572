"""The app that Django loads for ``"gnsq_like.contrib.django.tasks"`` in INSTALLED_APPS."""

from __future__ import annotations

from django.apps import AppConfig


class TasksConfig(AppConfig):
    """Has the table of results."""

    name = "gnsq_like.contrib.django.tasks"
    label = "gnsq_like_tasks"
    verbose_name = "NSQ tasks"
    default_auto_field = "django.db.models.BigAutoField"
