"""The project under test; tests set the rest in the environment."""

import os
from pathlib import Path

SECRET_KEY = "tests"
DEBUG = bool(os.environ.get("DEBUG"))
ALLOWED_HOSTS = ["*"]
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "gnsq_like.contrib.django",
    "gnsq_like.contrib.django.outbox",
    "ledger",
]
SILENCED_SYSTEM_CHECKS = ["admin.E403", "admin.E408", "admin.E409", "admin.E410"]
MIDDLEWARE = ["django.middleware.common.CommonMiddleware"]  # gives answers their Content-Length
ROOT_URLCONF = "ledger.urls"
USE_TZ = True
TIME_ZONE = "UTC"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": Path(__file__).parent / "ledger.sqlite3",
        "OPTIONS": {"timeout": 60},
    }
}
if os.environ.get("NSQ_TRACING"):
    from tests.support.notes import note_spans

    note_spans()
if "TASKS" in os.environ:
    INSTALLED_APPS.append("gnsq_like.contrib.django.tasks")
    options = {"reader": {"max_attempts": 20, "max_in_flight": 8}, "outbox": True}
    TASKS = {"default": {"BACKEND": "gnsq_like.contrib.django.tasks.NSQBackend", "OPTIONS": options}}
if "POSTGRES" in os.environ:
    HOST, NAME = os.environ["POSTGRES"].split(",")
    DATABASES = {"default": {"ENGINE": "django.db.backends.postgresql", "HOST": HOST, "NAME": NAME, "USER": "tests"}}
NSQ = {"DEFAULT_REQUEUE_DELAY": 0, "MAX_BACKOFF_DURATION": 0}
if "NSQ_MAX_IN_FLIGHT" not in os.environ:  # the environment does not override what settings have
    NSQ["MAX_IN_FLIGHT"] = 8
