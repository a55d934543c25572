"""A headless Chromium, driven as a person would; skipped where there is none."""

import os
import shutil

import pytest

from tests.support.web import ROOT, running

#: A bare browser: what it fetches on its own account would only fail in a closed network, and tell of errors.
FLAGS = [
    "--headless=new",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1100,800",
]


@pytest.fixture(scope="session")
def driver():
    chromium, chromedriver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (chromium and chromedriver):
        pytest.skip("no chromium and chromedriver on PATH (Debian: apt install chromium chromium-driver)")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in [*FLAGS, *(["--no-sandbox"] if os.geteuid() == 0 else [])]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(chromedriver))
    yield driver
    driver.quit()


@pytest.fixture
def browser(driver):
    """The browser; a test that leaves anything in its console, an error or a failed request, has failed."""
    driver.get("about:blank")
    driver.get_log("browser")
    yield driver
    assert driver.get_log("browser") == []


@pytest.fixture
def example(tmp_path):
    """Starts an application of examples/ by its one command; gives a context manager of the server, with its port."""

    def start(name, **environment):
        command = [str(ROOT / "examples" / name / "run.py"), "0"]
        return running(command, tmp_path, r"http://127\.0\.0\.1:(\d+)", PYTHONUNBUFFERED="1", **environment)

    return start
