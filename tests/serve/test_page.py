"""The page in a real browser: Debian's chromium, driven by Playwright."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium")
SCREENSHOTS = os.environ.get("APAC_SCREENSHOTS")  # a folder: how the pictures of the documentation are made


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Any, server: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    """The page; errors of its scripts and of the content security policy fail the test."""
    context = browser.new_context(reduced_motion="reduce", **getattr(request, "param", {}))
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.goto(server.address)
    playwright.expect(page.locator("#drawing")).to_be_visible()
    yield page
    context.close()
    assert not [problem for problem in problems if not problem.startswith("Failed to load resource")]


def draw_seven(page: Any) -> None:
    box = page.locator("#canvas").bounding_box()

    def at(x: float, y: float) -> tuple[float, float]:
        return box["x"] + x * box["width"], box["y"] + y * box["height"]

    page.mouse.move(*at(0.25, 0.2))
    page.mouse.down()
    page.mouse.move(*at(0.75, 0.2), steps=5)
    page.mouse.move(*at(0.45, 0.85), steps=5)
    page.mouse.up()


def expect_settled(page: Any, name: str) -> None:
    playwright.expect(page.locator("#status")).to_contain_text(f"{name}: settled after ", timeout=20_000)


def screenshot(page: Any, name: str) -> None:
    if SCREENSHOTS:
        page.screenshot(path=Path(SCREENSHOTS) / f"serve-{name}.png", full_page=True)


def test_a_drawn_seven_settles_and_its_passes_are_shown(page):
    draw_seven(page)
    page.get_by_role("button", name="Classify the drawing").click()
    expect_settled(page, "7")
    assert page.locator("#classes tr").count() == 10
    assert page.locator("#classes tr.leader th").inner_text() == "7"
    assert page.locator("#samples img").count() >= 8
    assert int(page.locator("#passes").inner_text()) >= 16
    assert page.locator("#plain").inner_text().startswith("7")
    # read aloud: the state is announced, and every interval has a text
    assert page.locator("#status").get_attribute("aria-live") == "polite"
    assert "plus or minus" in page.locator("#classes tr").first.text_content()
    screenshot(page, "light")


@pytest.mark.parametrize("page", [{"color_scheme": "dark"}], indirect=True, ids=["dark"])
def test_the_keyboard_alone_draws_and_classifies_a_one_in_the_dark(page):
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == "rgb(22, 22, 26)"
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    for _ in range(14):
        page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect_settled(page, "1")
    screenshot(page, "dark")


PHONE = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}


@pytest.mark.parametrize("page", [PHONE], indirect=True, ids=["phone"])
def test_a_picture_that_is_dropped_settles_on_a_phone(page, seven):
    transfer = page.evaluate_handle(
        """bytes => {
            const transfer = new DataTransfer();
            transfer.items.add(new File([new Uint8Array(bytes)], "photo.png", { type: "image/png" }));
            return transfer;
        }""",
        list(seven),
    )
    page.dispatch_event("#drop", "drop", {"dataTransfer": transfer})
    expect_settled(page, "7")
    assert page.locator("#given").evaluate("image => image.naturalWidth") == 200
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    screenshot(page, "phone")


def test_a_request_that_fails_shows_a_sentence_and_the_next_one_works(page, seven):
    page.set_input_files("#file", {"name": "broken.png", "mimeType": "image/png", "buffer": b"not an image"})
    playwright.expect(page.get_by_role("alert")).to_contain_text("The image cannot be read; send a picture as")
    page.set_input_files("#file", {"name": "seven.png", "mimeType": "image/png", "buffer": seven})
    expect_settled(page, "7")
    playwright.expect(page.get_by_role("alert")).to_be_hidden()


def test_closing_the_page_stops_the_work(page, server):
    draw_seven(page)
    # A request that never settles: the server has nothing under way soon after the page is closed.
    page.evaluate(
        """() => { const send = fetch; window.fetch = (url, options) => send(url + "&passes=2048", options) }"""
    )
    page.get_by_role("button", name="Classify the drawing").click()
    playwright.expect(page.locator("#passes")).not_to_be_empty(timeout=20_000)
    page.close()
    server.wait_until_idle()


def test_without_the_server_the_page_says_so(page):
    page.route("**/classify*", lambda route: route.abort())
    draw_seven(page)
    page.get_by_role("button", name="Classify the drawing").click()
    playwright.expect(page.get_by_role("alert")).to_have_text("The server does not answer; try again.")
