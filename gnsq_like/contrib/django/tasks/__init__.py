"""A backend for ``django.tasks`` (Django 6), and for its backport ``django-tasks`` on older ones.

::

    TASKS = {"default": {"BACKEND": "gnsq_like.contrib.django.tasks.NSQBackend", "QUEUES": ["default", "mail"]}}

Tasks are messages, which ``manage.py nsq_run`` runs beside the readers of the project. As an app in INSTALLED_APPS,
this package adds a table of results.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gnsq_like._lazy import lazy_names

if TYPE_CHECKING:
    from gnsq_like.contrib.django.tasks.backend import NSQBackend
    from gnsq_like.contrib.django.tasks.running import GivenUpError

__all__ = ["GivenUpError", "NSQBackend"]

if not TYPE_CHECKING:  # type checkers would accept any name
    # Imported late: Django imports this package before any application is ready.
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "NSQBackend": "gnsq_like.contrib.django.tasks.backend",
            "GivenUpError": "gnsq_like.contrib.django.tasks.running",
        },
    )
