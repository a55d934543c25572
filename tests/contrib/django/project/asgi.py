import os

from django.core.asgi import get_asgi_application

from gnsq_like.contrib.asgi import with_readers

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings")
application = get_asgi_application()
#: With the readers in the process of the server.
with_its_readers = with_readers(application, "gnsq_like.contrib.django:make_readers")
