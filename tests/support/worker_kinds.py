"""gunicorn's workers as parameters of tests. Needs gunicorn, which not all environments of the tests have."""

from importlib.metadata import version

import pytest

from tests.support.web import thorough

#: gthread, where its workers drop no requests when they stop.
GTHREAD = pytest.param(
    "gthread",
    marks=pytest.mark.skipif(
        int(version("gunicorn").split(".")[0]) < 25,
        reason="gthread workers of gunicorn before 25 drop accepted requests when they stop",
    ),
)
#: For parameters: gevent, and gthread for all kinds that are not patched; sync differs little from it.
WORKER_KINDS = ["gevent", GTHREAD, pytest.param("sync", marks=thorough)]
