"""The page in a real browser: Debian's chromium, driven by Playwright."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sklearn.datasets

import apac
from apac.serve.model import Model
from served import LIMITS, Gate, mnist, running, wait_for

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


@contextmanager
def opened(browser: Any, server: Any, **options: Any) -> Iterator[Any]:
    """Open the page; errors of its scripts and of the content security policy fail the test."""
    context = browser.new_context(reduced_motion="reduce", **options)
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.goto(server.address)
    yield page
    context.close()
    assert not [problem for problem in problems if not problem.startswith("Failed to load resource")]


@pytest.fixture
def page(browser: Any, server: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    with opened(browser, server, **getattr(request, "param", {})) as page:
        playwright.expect(page.locator("#drawing")).to_be_visible()
        yield page


def seven_points(page: Any) -> list[tuple[float, float]]:
    """The stroke of a seven on the canvas."""
    playwright.expect(page.locator("#canvas")).to_be_visible()
    box = page.locator("#canvas").bounding_box()
    stroke = [(0.25 + 0.1 * step, 0.2) for step in range(6)] + [
        (0.75 - 0.06 * step, 0.2 + 0.13 * step) for step in range(6)
    ]
    return [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in stroke]


def draw_seven(page: Any) -> None:
    points = seven_points(page)
    page.mouse.move(*points[0])
    page.mouse.down()
    for point in points[1:]:
        page.mouse.move(*point)
    page.mouse.up()


def touch_seven(page: Any) -> None:
    session = page.context.new_cdp_session(page)
    points = [{"x": x, "y": y} for x, y in seven_points(page)]
    for kind, place in [
        ("touchStart", points[:1]),
        *(("touchMove", [point]) for point in points[1:]),
        ("touchEnd", []),
    ]:
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": place})


def write_seven(page: Any) -> None:
    """With a pen."""
    session = page.context.new_cdp_session(page)
    (x, y), *rest = seven_points(page)
    pen = {"button": "left", "buttons": 1, "clickCount": 1, "pointerType": "pen"}
    session.send("Input.dispatchMouseEvent", {"type": "mousePressed", "x": x, "y": y, **pen})
    for x, y in rest:
        session.send("Input.dispatchMouseEvent", {"type": "mouseMoved", "x": x, "y": y, **pen})
    session.send("Input.dispatchMouseEvent", {"type": "mouseReleased", "x": x, "y": y, **pen, "buttons": 0})


def drop(page: Any, content: bytes, name: str) -> None:
    transfer = page.evaluate_handle(
        """([bytes, name]) => {
            const transfer = new DataTransfer();
            transfer.items.add(new File([new Uint8Array(bytes)], name));
            return transfer;
        }""",
        [list(content), name],
    )
    page.dispatch_event("#drop", "drop", {"dataTransfer": transfer})


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
    drop(page, seven, "photo.png")
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


def test_closing_the_page_stops_the_work(browser):
    gate, limits = Gate(), replace(LIMITS, passes=16_384)
    with running(mnist(limits, network=gate), limits=limits) as server, opened(browser, server) as page:
        draw_seven(page)
        page.evaluate(
            """() => { const send = fetch; window.fetch = (url, options) => send(url + "&passes=16384", options) }"""
        )
        gate.closes_at = gate.passes + 512
        page.get_by_role("button", name="Classify the drawing").click()
        playwright.expect(page.locator("#passes")).not_to_be_empty(timeout=20_000)
        wait_for(lambda: not gate.open.is_set())
        page.close()
        left = {"route": "/classify", "status": "499"}
        wait_for(lambda: server.guard.metrics.registry.get_sample_value("apac_requests_total", left))
        gate.open.set()
        server.wait_until_idle()
        assert gate.passes < 2048


def test_without_the_server_the_page_says_so(page):
    page.route("**/classify*", lambda route: route.abort())
    draw_seven(page)
    page.get_by_role("button", name="Classify the drawing").click()
    playwright.expect(page.get_by_role("alert")).to_have_text("The server does not answer; try again.")


POINTERS: dict[str, Any] = {"touch": touch_seven, "pen": write_seven}


@pytest.mark.parametrize("pointer", POINTERS)
@pytest.mark.parametrize("page", [PHONE], indirect=True, ids=["phone"])
def test_a_finger_and_a_pen_draw_a_seven_without_scrolling(page, pointer):
    kinds = page.evaluate_handle("window.kinds = []")
    page.evaluate('document.getElementById("canvas").addEventListener("pointerdown", (e) => kinds.push(e.pointerType))')
    page.locator("#canvas").scroll_into_view_if_needed()
    before = page.evaluate("scrollY")
    POINTERS[pointer](page)
    assert page.evaluate("scrollY") == before
    assert kinds.json_value() == [pointer]
    page.get_by_role("button", name="Classify the drawing").click()
    expect_settled(page, "7")


@pytest.mark.parametrize("page", [{"permissions": ["clipboard-read", "clipboard-write"]}], indirect=True, ids=[""])
def test_a_picture_that_is_pasted_settles(page, seven):
    page.evaluate(
        """async (bytes) => {
            const blob = new Blob([new Uint8Array(bytes)], { type: "image/png" });
            await navigator.clipboard.write([new ClipboardItem({ "image/png": blob })]);
        }""",
        list(seven),
    )
    page.keyboard.press("Control+V")
    expect_settled(page, "7")


def test_a_photo_that_is_dropped_is_decided_by_the_chosen_model(browser, unprepared):
    photo = Path(sklearn.datasets.__file__).parent / "images" / "flower.jpg"
    colors = Model("cifar10-cnn", apac.load("cifar10-cnn"), LIMITS)
    with running(mnist(), colors) as server, opened(browser, server) as page:
        page.get_by_label("Model").select_option("cifar10-cnn")
        playwright.expect(page.locator("#drawing")).to_be_hidden()
        drop(page, photo.read_bytes(), "flower.jpg")
        playwright.expect(page.locator("#status")).to_contain_text("settled after", timeout=30_000)
        assert page.locator("#classes th").all_inner_texts() == list(colors.run.classes)
        assert page.locator("#samples img").first.evaluate("image => image.naturalWidth") == 32
        assert page.locator("#plain").inner_text()


def test_a_server_with_a_token_asks_for_it_and_says_if_it_is_wrong(browser, seven, unprepared):
    with running(mnist(), token=b"a token of this test") as server, opened(browser, server) as page:
        field = page.get_by_label("This server asks for a token")
        playwright.expect(field).to_be_focused()
        field.fill("not the token of this test")
        field.press("Enter")
        playwright.expect(page.get_by_role("alert")).to_have_text("The server refused this token; check it.")
        field.fill("a token of this test")
        field.press("Enter")
        playwright.expect(page.locator("#drawing")).to_be_visible()
        playwright.expect(field).to_be_hidden()
        playwright.expect(page.get_by_role("link", name="Description of the interface")).to_be_hidden()
        drop(page, seven, "seven.png")
        expect_settled(page, "7")
