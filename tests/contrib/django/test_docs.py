"""docs/django.rst is right; and the example shop's own tests pass."""

import re
import subprocess
import sys

import pytest

from gnsq_like.contrib.django import checks, conf, signals
from tests.support.pages import blocks, page
from tests.support.web import ROOT

PAGE = page("django.rst")
BLOCKS = blocks(PAGE)


@pytest.mark.parametrize("source", BLOCKS)
def test_the_code_compiles(source):
    code = compile(source, "docs/django.rst", "exec")
    assert code.co_names or code.co_consts


@pytest.mark.parametrize("line", sorted(set(re.findall(r"^ *(from gnsq_like.* import .*)$", "\n".join(BLOCKS), re.M))))
def test_what_it_imports_is_there(line):
    names: dict[str, object] = {}
    exec(line, names)
    assert len(names) > 1


def test_every_setting_of_our_own_is_in_the_table():
    rows = dict(re.findall(r"^``([A-Z_]+)`` +``([^`]+)``", PAGE, re.MULTILINE))
    assert rows == {name: repr(default) for name, (default, _) in conf.OWN.items()}


def test_every_check_is_in_both_tables():
    used = set(re.findall(r'id="(gnsq_like\.[EW]\d+)"', (ROOT / "gnsq_like/contrib/django/checks.py").read_text()))
    assert used
    assert set(re.findall(r"^``(gnsq_like\.[EW]\d+)``  ", PAGE, re.MULTILINE)) == used
    assert set(re.findall(r"^(gnsq_like\.[EW]\d+)  ", checks.__doc__, re.MULTILINE)) == used


def test_every_signal_is_named():
    names = [name for name in vars(signals) if name.startswith("message_")]
    assert len(names) == 5
    assert all(f"``{name}``" in PAGE for name in names)


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


def test_the_shops_migrations_are_complete(tmp_path):
    command = [sys.executable, str(ROOT / "examples/django_shop/manage.py"), "makemigrations", "--check"]
    environment = {"PATH": "", "PYTHONPATH": str(ROOT), "SHOP_DATABASE": str(tmp_path / "shop.sqlite3")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "No changes detected\n"
