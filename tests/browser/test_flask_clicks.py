"""The page of the clicks: a click goes to NSQ and comes back to every open page."""

import pytest
from selenium.webdriver.common.by import By

from tests.support.browsing import lines, narrow, overflows, until

pytestmark = pytest.mark.browser


def shown(browser):
    """Name and colour of each click in the list, the newest first."""
    script = """
        return [...document.querySelectorAll("#clicks li")].map(
            (row) => [row.querySelector("strong").textContent, row.querySelector("span").textContent])
    """
    return [tuple(each) for each in browser.execute_script(script)]


def test_clicks_come_back_to_every_open_page(browser, example, tmp_path):
    with example("flask_clicks") as server:
        first = browser.current_window_handle
        browser.switch_to.new_window("tab")
        second = browser.current_window_handle
        for window in (first, second):
            browser.switch_to.window(window)
            browser.get(f"http://127.0.0.1:{server.port}/")
            until(browser, lambda: browser.find_element(By.ID, "state").text.lower() == "live")
        assert shown(browser) == []
        browser.find_element(By.NAME, "name").send_keys("Ada <i>")
        clicked: list[tuple[str, str]] = []
        for colour in ("sky", "mint", "sky"):
            browser.find_element(By.CSS_SELECTOR, f"button[value={colour}]").click()
            clicked.insert(0, ("Ada <i>", colour))
            until(browser, lambda: len(shown(browser)) == len(clicked))
        for window in (second, first):
            browser.switch_to.window(window)
            until(browser, lambda: len(shown(browser)) == len(clicked))
            assert shown(browser) == clicked
            assert browser.find_element(By.CSS_SELECTOR, "[data-count=sky]").text == "2"
            assert not browser.find_element(By.ID, "problem").is_displayed()
        browser.save_screenshot(str(tmp_path / "clicks.png"))
        narrow(browser)
        assert lines(browser, "#clicks li") == [2, 2, 2]
        assert not overflows(browser)
        browser.save_screenshot(str(tmp_path / "narrow.png"))
        # The streams end before the server does, because refused connections would be logged in the console.
        for window in (second, first):
            browser.switch_to.window(window)
            browser.get("about:blank")
        browser.switch_to.window(second)
        browser.close()
        browser.switch_to.window(first)
        assert server.end() == 0
