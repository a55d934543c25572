"""The app that Django loads for ``"gnsq_like.contrib.django"`` in INSTALLED_APPS."""

from __future__ import annotations

from django.apps import AppConfig
from django.core import checks
from django.core.signals import setting_changed


class NSQConfig(AppConfig):
    """Has no models; registers the system checks."""

    name = "gnsq_like.contrib.django"
    label = "gnsq_like"
    verbose_name = "NSQ"

    def ready(self) -> None:
        """Register the checks and the signal handler; creates nothing."""
        from gnsq_like.contrib.django.checks import check_readers, check_settings
        from gnsq_like.contrib.django.publishing import setting_has_changed

        checks.register(check_settings)
        checks.register(check_readers)
        setting_changed.connect(setting_has_changed)
