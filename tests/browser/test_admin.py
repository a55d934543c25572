"""The admin's pages in Chromium, in front of our daemons: every page, every action, and how they look.

With GNSQ_LIKE_SCREENSHOTS=directory, pages are stored there at 1200 and 400 px, light and dark.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from gnsq_like.testing import RunningCluster, running_cluster
from tests.support import browsing, raw
from tests.support.web import Server, running

pytestmark = pytest.mark.browser

SCREENSHOTS = os.environ.get("GNSQ_LIKE_SCREENSHOTS", "")


#: What stands out at the right.
TOO_WIDE = """return [...document.querySelectorAll("#live *, header *")]
    .filter((each) => each.getBoundingClientRect().right > innerWidth && !each.closest(".scroll"))
    .map((each) => `${each.nodeName}.${each.className}`).slice(0, 5)"""


@pytest.fixture
def cluster() -> Iterator[RunningCluster]:
    with running_cluster(2, 1, kind="process") as cluster:
        first, second = cluster.nsqd_http_addresses
        for address in (first, second):
            raw.post(address, "/topic/create?topic=clicks")
            raw.post(address, "/channel/create?topic=clicks&channel=archive")
            raw.post(address, "/mpub?topic=clicks", b"\n".join(b"message %d" % number for number in range(100)))
        raw.post(first, "/pub?topic=orders.dead", b"x")
        raw.post(cluster.lookupd_http_addresses[0], "/topic/create?topic=left-over")
        yield cluster


@pytest.fixture
def admin(cluster: RunningCluster, tmp_path: Path) -> Iterator[Server]:
    flags = [f"--lookupd-http-address={address}" for address in cluster.lookupd_http_addresses]
    flags.append(f"--cluster=edge-frankfurt=nsqd:{cluster.nsqd_http_addresses[0]}")  # a second entry in the bar
    command = ["-m", "gnsq_like", "admin", "--http-address=127.0.0.1:0", *flags]
    with running(command, tmp_path, r"HTTP: listening on 127\.0\.0\.1:(\d+)") as server:
        yield server


class Visitor:
    """A person at the admin."""

    def __init__(self, browser: Any, port: int) -> None:
        self.browser = browser
        self.base = f"http://127.0.0.1:{port}"

    def go(self, path: str) -> None:
        self.browser.get(self.base + path)
        self._is_live()

    def _is_live(self) -> None:
        """Wait until the page is there, and its script runs."""
        self.until(lambda: "live" in self.find("#fresh").get_attribute("class"))

    def find(self, selector: str) -> Any:
        return self.browser.find_element(By.CSS_SELECTOR, selector)

    def press(self, label: str, has_script: bool = True) -> None:
        """Press a button, and wait for the page that it loads."""
        browsing.load_by(self.browser, lambda: self.until(lambda: self._click("button", label)))
        if has_script:
            self._is_live()

    def open(self, label: str) -> None:
        self.until(lambda: self._click("summary", label))

    def _click(self, selector: str, label: str) -> bool:
        found = [each for each in self.all(selector) if each.is_displayed() and each.text == label]
        for each in found[:1]:
            # Not below the bar at the top, as a person would scroll.
            self.browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", each)
            browsing.click(each)
        return bool(found)

    def all(self, selector: str) -> list[Any]:
        found: list[Any] = self.browser.find_elements(By.CSS_SELECTOR, selector)
        return found

    def until(self, condition: Callable[[], object]) -> None:
        browsing.until(self.browser, condition)

    def says(self, text: str) -> None:
        self.until(lambda: text in self.find("body").text)

    def look(self, name: str) -> None:
        """Check the page's width at each size, and store pictures of it where they are wanted."""
        for width in (1200, 400):
            for scheme in ("light", "dark"):
                media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
                self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
                size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
                self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
                wide = self.browser.execute_script("return document.documentElement.scrollWidth")
                assert wide <= width, f"{name} is {wide} px wide: {self.browser.execute_script(TOO_WIDE)}"
                if SCREENSHOTS:
                    high = self.browser.execute_script("return document.documentElement.scrollHeight")
                    self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {**size, "height": high})
                    self.browser.save_screenshot(f"{SCREENSHOTS}/{name}-{width}-{scheme}.png")
        self.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.fixture
def visitor(browser: Any, admin: Server) -> Iterator[Visitor]:
    yield Visitor(browser, admin.port)
    browser.get("about:blank")  # before the server ends: a refused request would be in the console


def test_every_page(visitor: Visitor, cluster: RunningCluster) -> None:
    node = cluster.nsqd_http_addresses[0]
    pages = {
        "topics": "/",
        "topic": "/topics/clicks",
        "channel": "/topics/clicks/archive",
        "nodes": "/nodes",
        "node": f"/nodes/{node}",
        "counter": "/counter",
        "lookup": "/lookup",
        "activity": "/activity",
    }
    for name, path in pages.items():
        visitor.go(path)
        assert visitor.find("h1").text
        visitor.look(name)


def test_every_action_of_a_topic_and_channel(visitor: Visitor, cluster: RunningCluster) -> None:
    first = cluster.nsqd_http_addresses[0]
    visitor.go("/topics/clicks/archive")
    visitor.press("Pause")
    visitor.says("archive is paused")
    assert raw.channel_stats(first, "clicks", "archive")["paused"]
    visitor.press("Unpause")
    visitor.says("archive runs again")
    visitor.open("Empty …")
    visitor.says("All 200 messages")
    visitor.look("empty")
    visitor.press("Empty the channel")
    visitor.says("archive is empty")
    visitor.open("Delete …")
    visitor.press("Delete archive")
    visitor.says("archive is deleted")
    visitor.press("Pause")
    visitor.says("clicks is paused")
    visitor.press("Unpause")
    visitor.says("clicks runs again")
    visitor.open("Empty …")
    visitor.press("Empty the topic")
    visitor.says("clicks is empty")
    visitor.find("#body").send_keys('{"hello": "browser"}')
    visitor.press("Publish")
    visitor.says("Published to clicks")
    visitor.open("Tombstone …")
    visitor.press("Tombstone here")
    visitor.says("is tombstoned")
    visitor.open("Delete …")
    visitor.press("Delete clicks")
    visitor.says("clicks is deleted")
    visitor.go("/activity")
    visitor.says("tombstone topic producer")
    visitor.look("activity-after")


def test_creating_and_what_is_left_over(visitor: Visitor) -> None:
    visitor.go("/lookup")
    visitor.find("#topic").send_keys("made")
    visitor.press("Create")
    visitor.says("made is registered")
    visitor.open("Delete …")
    visitor.press("Delete left-over")
    visitor.says("left-over is deleted")


def test_a_look_at_messages(visitor: Visitor, cluster: RunningCluster) -> None:
    visitor.go("/topics/clicks")
    visitor.press("Look for 30 s")
    visitor.says("Nothing has been published yet")
    address = cluster.nsqd_http_addresses[0]

    def consumed() -> bool:
        channels = raw.topic_stats(address, "clicks")["channels"]
        return any(
            channel["channel_name"].startswith("admin-peek-") and channel["client_count"] for channel in channels
        )

    visitor.until(consumed)
    raw.post(address, "/pub?topic=clicks", b'{"user": "ada", "page": "/home", "tags": ["a", "b"]}')
    visitor.says('"user": "ada"')
    visitor.look("messages")


def test_the_page_keeps_itself_fresh_and_leaves_what_one_does(visitor: Visitor, cluster: RunningCluster) -> None:
    visitor.go("/topics/clicks")
    visitor.find("#body").send_keys("half a mess")
    visitor.open("Empty …")
    raw.post(cluster.nsqd_http_addresses[0], "/channel/create?topic=clicks&channel=brand-new")
    visitor.says("brand-new")
    assert visitor.find("#body").get_attribute("value") == "half a mess"
    assert visitor.find("#c-empty").get_attribute("open")
    visitor.find("body").send_keys(Keys.ESCAPE)
    assert not visitor.find("#c-empty").get_attribute("open")


def test_what_an_action_says_stays_when_the_page_is_fresh(visitor: Visitor, cluster: RunningCluster) -> None:
    visitor.go("/topics/clicks")
    visitor.press("Pause")
    raw.post(cluster.nsqd_http_addresses[0], "/channel/create?topic=clicks&channel=brand-new")
    visitor.says("brand-new")
    assert "clicks is paused" in visitor.find("#note").text


def test_a_page_that_is_left_asks_for_nothing(visitor: Visitor) -> None:
    """It might ask for the topic that its form has just deleted, and show that there is none."""
    visitor.go("/topics/clicks")
    asked = visitor.browser.execute_async_script("""
        let asked = 0;
        const [done, original] = [arguments[0], window.fetch];
        window.fetch = (...all) => { asked += 1; return original(...all); };
        const form = document.querySelector("#c-delete form");
        form.addEventListener("submit", (event) => event.preventDefault());
        form.requestSubmit();
        setTimeout(() => done(asked), 1200 * document.getElementById("live").dataset.every);
    """)
    assert asked == 0


def test_the_keyboard(visitor: Visitor) -> None:
    visitor.go("/")
    visitor.find("body").send_keys("/")
    assert visitor.browser.switch_to.active_element.get_attribute("id") == "find"
    visitor.browser.switch_to.active_element.send_keys("orders")
    # The page searches while one types: for less than the word, too, if the keys come slowly.
    visitor.until(lambda: "q=orders" in visitor.browser.current_url and len(visitor.all("tbody tr")) == 1)
    assert "orders.dead" in visitor.find("tbody").text


def test_without_scripts_everything_works(visitor: Visitor) -> None:
    browser = visitor.browser
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.get(f"{visitor.base}/topics/clicks/archive")
        visitor.press("Pause", has_script=False)
        assert "archive is paused" in visitor.find("#live").text
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
