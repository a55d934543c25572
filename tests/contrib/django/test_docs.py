"""docs/django.rst is right; and the example shop's own tests pass."""

import re
import subprocess
import sys

import pytest

from tests.support.pages import blocks, page
from tests.support.web import ROOT

PAGE = page("django.rst")
BLOCKS = blocks(PAGE)


@pytest.mark.parametrize("line", sorted(set(re.findall(r"^ *(from gnsq_like.* import .*)$", "\n".join(BLOCKS), re.M))))
def test_what_it_imports_is_there(line):
    names: dict[str, object] = {}
    exec(line, names)
    assert len(names) > 1


@pytest.mark.servers
def test_the_shops_own_tests(tmp_path):
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples/django_shop/manage.py"), "test", "shop"],
        cwd=tmp_path,
        env={"PATH": "", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Ran 3 tests" in done.stderr


@pytest.mark.servers
def test_the_shops_migrations_are_complete(tmp_path):
    command = [sys.executable, str(ROOT / "examples/django_shop/manage.py"), "makemigrations", "--check"]
    environment = {"PATH": "", "PYTHONPATH": str(ROOT), "SHOP_DATABASE": str(tmp_path / "shop.sqlite3")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "No changes detected\n"
