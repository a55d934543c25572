"""Django 6, run by a newer Python: the backend for tasks with Django's own framework, and the outbox.

Its environment is below ``.venv``, made at first use. Skipped where no Python 3.12 or newer is found.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.web import ROOT

pytestmark = [pytest.mark.servers, pytest.mark.timeout(900)]

VERSIONS = ("3.12", "3.13", "3.14")
REQUIREMENTS = ("django>=6", "pytest>=8.2", "pytest-timeout", "hypothesis", "psycopg[binary]", "flask", "sqlalchemy")
HOME = ROOT / ".venv" / "django6"


def _pythons() -> Iterator[str]:
    """Commands that may be a newer Python: on PATH, and those that pyenv keeps."""
    for version in VERSIONS:
        yield f"python{version}"
        for path in sorted(Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob(f"versions/{version}.*")):
            yield str(path / "bin" / "python")


def _works(python: str) -> bool:
    if shutil.which(python) is None:
        return False
    done = subprocess.run([python, "-c", "import venv, ensurepip, sqlite3"], capture_output=True, check=False)
    return done.returncode == 0


@pytest.fixture(scope="module")
def python() -> str:
    """A Python with Django 6 and what the tests need."""
    made = HOME / "bin" / "python"
    stamp = HOME / f"installed {' '.join(REQUIREMENTS)}".replace("/", "")
    if not stamp.exists():
        found = next(filter(_works, _pythons()), None)
        if found is None:
            pytest.skip("no Python 3.12 or newer for Django 6")
        shutil.rmtree(HOME, ignore_errors=True)
        subprocess.run([found, "-m", "venv", HOME], check=True, timeout=300)
        # gnsq_like, too, for what it needs; the tests import that of PYTHONPATH.
        pip = [str(made), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
        done = subprocess.run([*pip, *REQUIREMENTS, ROOT], capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr
        stamp.touch()
    return str(made)


def test_with_django_6(python: str) -> None:
    modules = ["tests/contrib/django/tasks/test_tasks.py", "tests/contrib/shared/outbox/test_databases.py"]
    done = subprocess.run(
        [python, "-m", "pytest", "-p", "no:cacheprovider", *modules, "-k", "not flask"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr
