"""The readers of a Django project in the processes of a supervisor."""

from __future__ import annotations

import django
from django.core.exceptions import ImproperlyConfigured

from gnsq_like import Reader
from gnsq_like.workers.plan import CannotLoad

#: For ``Plan.loader``.
LOADER = f"{__name__}:load"


def load(*names: str) -> list[Reader]:
    """Set Django up, and return the readers of these names, or all.

    :raises CannotLoad: for an unknown name, and for wrong settings
    """
    django.setup()
    from gnsq_like.contrib.django.readers import make_readers

    try:
        return make_readers(*names)
    except (LookupError, ImproperlyConfigured) as exc:
        raise CannotLoad(str(exc)) from exc
