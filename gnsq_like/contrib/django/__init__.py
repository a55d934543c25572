"""NSQ in Django: an app for ``INSTALLED_APPS``, configured by the setting ``NSQ``.

::

    from gnsq_like.contrib.django import publish, reader

    publish("orders", {"id": order.id})      # when the transaction has committed, and not if it rolls back

    @reader("orders", "mail")                # in an app's nsq_readers.py
    def mail(message): ...

``manage.py nsq_run`` runs the readers; ``healthz`` is a view with the state of a process. There are also the modules
``signals`` and ``testing``. Importing this, or starting Django, creates nothing: the Producer is made at the first
publish, Readers when they are run.
"""

from gnsq_like.contrib.shared.extras import missing

try:
    from gnsq_like.contrib.django.publishing import apublish, multi_publish, producer, publish
    from gnsq_like.contrib.django.readers import make_readers, reader
    from gnsq_like.contrib.django.views import healthz
except ModuleNotFoundError as exc:
    raise missing(exc, "django") from exc

__all__ = ["apublish", "healthz", "make_readers", "multi_publish", "producer", "publish", "reader"]
