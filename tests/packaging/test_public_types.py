"""Every public name has a type that any checker reads alike, down to the attributes: pyright's verifytypes says so."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.support.pages import PUBLIC_PACKAGES

pytestmark = [pytest.mark.package, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]


def public_names() -> set[str]:
    """The classes and functions that users import, by the module that defines them."""
    names: set[str] = set()
    for package in [*PUBLIC_PACKAGES, "gnsq_like.errors"]:
        module = import_module(package)
        for name in getattr(module, "__all__", dir(module)):
            value: Any = getattr(module, name)
            if inspect.isclass(value) or inspect.isfunction(value):
                names.add(f"{value.__module__}.{value.__qualname__}")
    return {name for name in names if name.startswith("gnsq_like.")}


def test_every_public_name_has_a_complete_type() -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable),
            *("--verifytypes", "gnsq_like", "--ignoreexternal", "--outputjson"),
        ],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    found = json.loads(done.stdout)["typeCompleteness"]
    names = public_names()
    assert len(names) > 50
    assert names <= {symbol["name"] for symbol in found["symbols"]}, "pyright has seen them all"
    incomplete = [
        f"{symbol['name']}: {'; '.join(each['message'] for each in symbol['diagnostics'])}"
        for symbol in found["symbols"]
        if (not symbol["isTypeKnown"] or symbol["isTypeAmbiguous"])
        and any(symbol["name"] == name or symbol["name"].startswith(f"{name}.") for name in names)
    ]
    assert incomplete == []
