"""Settings for development on one machine."""

import os
from pathlib import Path

SECRET_KEY = "for development only"
DEBUG = True
ALLOWED_HOSTS = ["127.0.0.1", "localhost", "testserver"]
INSTALLED_APPS = ["texts"]
ROOT_URLCONF = "texts.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
TIME_ZONE = "UTC"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("TEXTS_DATABASE", Path(__file__).resolve().parent.parent / "texts.sqlite3"),
        # Seconds to wait for a lock: the pages and the worker write into the same file.
        "OPTIONS": {"timeout": 20},
    }
}

NSQD = os.environ.get("NSQD", "127.0.0.1:4150")
