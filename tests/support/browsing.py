"""A browser and its pages: waiting for what a page shows, for the next page, and what a page was when a test failed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from selenium.common.exceptions import (
    ElementClickInterceptedException,
    ElementNotInteractableException,
    StaleElementReferenceException,
    WebDriverException,
)
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

#: Seconds for whatever a page must do on a busy machine.
PATIENCE = 30.0

#: The page has replaced or moved the element. What was to be clicked was not, then.
_MOVED = (StaleElementReferenceException, ElementClickInterceptedException, ElementNotInteractableException)
#: chromedriver's words where the next page was just coming, for which it has no error of its own.
_LEAVING = ("does not belong to the document", "aborted by navigation")

#: Characters of a page's source that a report shows.
_MOST_SOURCE = 30_000


def _is_leaving(exc: WebDriverException) -> bool:
    return any(words in str(exc.msg) for words in _LEAVING)


def until(browser: Any, condition: Callable[[], object]) -> None:
    """Wait until ``condition()`` is true, whatever the page does to its elements meanwhile."""

    def look(_: Any) -> object:
        try:
            return condition()
        except _MOVED:
            return False
        except WebDriverException as exc:
            if not _is_leaving(exc):
                raise
            return False

    WebDriverWait(browser, PATIENCE, poll_frequency=0.05).until(look)


def click(element: Any) -> None:
    """Click. It may load the next page, before which chromedriver may not be done with this one."""
    try:
        element.click()
    except WebDriverException as exc:
        if not _is_leaving(exc):
            raise


def load_by(browser: Any, act: Callable[[], object]) -> None:
    """Do what loads another page, such as a click at a form's button, and wait until the old page has gone.

    Without the wait, what comes next may still find the old page, which shows the same buttons, and may even show the
    effect, because it keeps itself fresh.
    """
    old = browser.find_element(By.TAG_NAME, "html")

    def has_gone() -> bool:
        try:
            old.is_enabled()
        except StaleElementReferenceException:
            return True
        return False

    act()
    until(browser, has_gone)


def description(browser: Any) -> str:
    """Address, text and source of the page, for the report of a test that failed."""
    parts = []
    for name, look in (
        ("address", lambda: browser.current_url),
        ("text", lambda: browser.find_element(By.TAG_NAME, "body").text),
        ("source", lambda: browser.page_source[:_MOST_SOURCE]),
        ("console", lambda: "\n".join(map(str, browser.get_log("browser")))),
    ):
        try:
            parts.append(f"{name}: {look()}")
        except WebDriverException as exc:
            parts.append(f"{name}: {exc}")
    return "\n".join(parts)


# -- a page in a browser as narrow as a telephone --------------------------------------------------

#: Pixels, of the page and not of the window.
WIDTH, HEIGHT = 400, 800


def narrow(browser: Any) -> None:
    """Show the page with this width, as a telephone does."""
    size = {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def overflows(browser: Any) -> bool:
    """Whether the page is wider than the screen."""
    return bool(browser.execute_script("return document.documentElement.scrollWidth > innerWidth"))


def lines(browser: Any, rows: str) -> list[int]:
    """The lines of text in each row that this selector finds."""
    script = """
        return [...document.querySelectorAll(arguments[0])].map((row) => {
            const range = document.createRange();
            range.selectNodeContents(row);
            const tops = [...range.getClientRects()].filter((box) => box.width).map((box) => box.top + box.height / 2);
            tops.sort((one, other) => one - other);
            return tops.filter((top, at) => at === 0 || top - tops[at - 1] > 8).length;
        });
    """
    return [int(each) for each in browser.execute_script(script, rows)]
