"""The app that Django loads for ``"gnsq_like.contrib.django.outbox"`` in INSTALLED_APPS."""

from __future__ import annotations

from django.apps import AppConfig


class OutboxConfig(AppConfig):
    """Has the tables of the outbox."""

    name = "gnsq_like.contrib.django.outbox"
    label = "gnsq_like_outbox"
    verbose_name = "NSQ outbox"
    default_auto_field = "django.db.models.BigAutoField"
