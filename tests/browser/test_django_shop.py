"""The shop's page: an order is placed by a click, and the list shows its states."""

import pytest
from selenium.webdriver.common.by import By

from tests.support.browsing import click, lines, load_by, narrow, overflows, until
from tests.support.daemons import wait_for

pytestmark = pytest.mark.browser


def orders(browser):
    """Text and state of each order in the list, the newest first."""
    script = """
        return [...document.querySelectorAll("#orders li")].map(
            (row) => [row.querySelector(".text").textContent, row.querySelector(".state").textContent])
    """
    return [tuple(each) for each in browser.execute_script(script)]


def order(browser, item, count, customer):
    """Fill in the form, send it, and wait for the page that comes then."""
    browser.find_element(By.CSS_SELECTOR, f"input[value={item}]").click()
    field = browser.find_element(By.NAME, "count")
    field.clear()
    field.send_keys(str(count))
    browser.find_element(By.NAME, "customer").send_keys(customer)
    load_by(browser, lambda: click(browser.find_element(By.CSS_SELECTOR, "#order-form button")))


def test_orders_are_placed_by_clicks_and_followed_to_the_end(browser, example, tmp_path):
    with example("django_shop", SHOP_DATABASE=str(tmp_path / "shop.sqlite3")) as server:
        browser.get(f"http://127.0.0.1:{server.port}/")
        assert browser.title == "The corner shop"
        until(browser, lambda: browser.find_element(By.ID, "none").is_displayed())
        order(browser, "coffee", 2, "Grace <b>Hopper</b>")
        coffee = "#12 × Coffee beans, dark for Grace <b>Hopper</b>"
        until(browser, lambda: [text for text, _ in orders(browser)] == [coffee])
        assert not browser.find_element(By.ID, "none").is_displayed()
        order(browser, "tea", 1, "Ada")
        # Without a reload: the page polls, and the readers have packed and shipped meanwhile.
        until(browser, lambda: [state for _, state in orders(browser)] == ["on its way"] * 2)
        assert orders(browser)[0][0] == "#21 × Darjeeling, first flush for Ada"
        browser.save_screenshot(str(tmp_path / "shop.png"))
        narrow(browser)
        assert lines(browser, "#orders li") == [2, 2]
        assert not overflows(browser)
        browser.save_screenshot(str(tmp_path / "narrow.png"))
        # An open page polls, and would log errors while the server ends.
        browser.get("about:blank")
        server.end()
        wait_for(lambda: server.process.poll() == 0)


def test_a_wrong_field_is_reported_in_the_page(browser, example, tmp_path):
    with example("django_shop", SHOP_DATABASE=str(tmp_path / "shop.sqlite3")) as server:
        browser.get(f"http://127.0.0.1:{server.port}/")
        browser.execute_script("document.getElementById('order-form').noValidate = true")
        order(browser, "cocoa", 0, "Linus")
        error = browser.find_element(By.CSS_SELECTOR, ".errorlist")
        assert error.text == "Ensure this value is greater than or equal to 1."
        assert browser.find_element(By.NAME, "customer").get_attribute("value") == "Linus"
        assert orders(browser) == []
        browser.save_screenshot(str(tmp_path / "wrong.png"))
        browser.get("about:blank")
        browser.get("about:blank")
