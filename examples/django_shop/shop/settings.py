"""The shop's settings, for development on one machine."""

import os
from pathlib import Path

HOME = Path(__file__).resolve().parent.parent

SECRET_KEY = "for development only"
DEBUG = True
ALLOWED_HOSTS = ["127.0.0.1", "localhost", "testserver"]

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "gnsq_like.contrib.django",
    "gnsq_like.contrib.django.outbox",
    "shop",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
ROOT_URLCONF = "shop.urls"
STATIC_URL = "static/"
USE_TZ = True
TIME_ZONE = "UTC"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("SHOP_DATABASE", HOME / "shop.sqlite3"),
        # Seconds to wait for a lock: the server and the readers write into the same file.
        "OPTIONS": {"timeout": 20},
    }
}

# Then manage.py sets OpenTelemetry up, by this and its other variables.
IS_TRACED = "OTEL_TRACES_EXPORTER" in os.environ

# Each handler has a thread and a database connection, so every reader has up to four of each.
NSQ = {
    "NSQD_TCP_ADDRESSES": os.environ.get("NSQ_NSQD_TCP_ADDRESSES", "127.0.0.1:4150"),
    "MAX_IN_FLIGHT": 4,
    "DEFAULT_REQUEUE_DELAY": 5,
    "TRACING": IS_TRACED,
    "CLOUD_EVENTS": IS_TRACED,
}
