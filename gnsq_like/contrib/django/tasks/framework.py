"""``django.tasks``, or the backport where Django is older or the project uses it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from django import VERSION
from django.conf import settings

from gnsq_like.contrib.shared.extras import missing

#: The name of the package: with both there, the one that the project has among its apps.
_has_backport = any(each.partition(".")[0] == "django_tasks" for each in settings.INSTALLED_APPS)
PACKAGE = "django_tasks" if VERSION < (6, 0) or _has_backport else "django.tasks"

try:
    _base: Any = import_module(f"{PACKAGE}.base")
except ModuleNotFoundError as exc:
    raise missing(exc, distribution="django-tasks") from exc
_exceptions: Any = import_module(f"{PACKAGE}.exceptions")
signals: Any = import_module(f"{PACKAGE}.signals")

BaseTaskBackend: Any = import_module(f"{PACKAGE}.backends.base").BaseTaskBackend
Task: Any = _base.Task
TaskContext: Any = _base.TaskContext
TaskError: Any = _base.TaskError
TaskResult: Any = _base.TaskResult
TaskResultStatus: Any = _base.TaskResultStatus
normalize_json: Any = _base.normalize_json

InvalidTask: Any = getattr(_exceptions, "InvalidTask", None) or _exceptions.InvalidTaskError
TaskResultDoesNotExist: Any = _exceptions.TaskResultDoesNotExist
