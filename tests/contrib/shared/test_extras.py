"""The error for a missing package says how it is installed: by an extra, or alone."""

import subprocess
import sys

import pytest

from tests.support.web import ROOT

# Named among the apps, it is what is wanted where Django has tasks of its own too.
CONFIGURED = "from django.conf import settings as s; s.configure(INSTALLED_APPS=['django_tasks'])"
MSGPACK = "from gnsq_like.contrib.shared.settings import make_settings as m; m({'ENCODER': 'msgpack'}, own={})"


@pytest.mark.parametrize(
    ("package", "code", "wanted"),
    [
        ("flask", "import gnsq_like.contrib.flask.extension", "install the extra [flask]"),
        ("django", "import gnsq_like.contrib.django", "install the extra [django]"),
        ("django_tasks", f"{CONFIGURED}; import gnsq_like.contrib.django.tasks.framework", "pip install django-tasks"),
        ("sqlalchemy", "import gnsq_like.contrib.flask.outbox", "pip install sqlalchemy"),
        ("kombu", "import gnsq_like.contrib.celery", "install the extra [celery]"),
        ("dramatiq", "import gnsq_like.contrib.dramatiq", "install the extra [dramatiq]"),
        ("prometheus_client", "import gnsq_like.contrib.prometheus", "install the extra [prometheus]"),
        ("msgpack", f"{MSGPACK}.make_producer(repr)", "pip install msgpack"),
    ],
)
def test_a_missing_package_is_named_with_how_to_install_it(package, code, wanted):
    # With None there Python reports that the module cannot be imported.
    program = f"import sys; sys.modules[{package!r}] = None; {code}"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"{package} is not installed: {wanted}" in done.stderr.splitlines()[-1]
