"""What the tests of the package share: the distributions, built once."""

from pathlib import Path

import pytest

from tests.support.built import ROOT, build


@pytest.fixture(scope="session")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("dist")
    build(ROOT, directory)
    return directory


@pytest.fixture(scope="session")
def wheel(distributions: Path) -> Path:
    [found] = distributions.glob("*.whl")
    return found
