"""examples/photos in a real browser, as `make example` starts it, while shards move.

With SHARDCTL_SCREENSHOTS the tutorial's pictures go to docs/images.
"""

from __future__ import annotations

import os
import re
import shutil
import statistics
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from tests.fixtures.photos import ROOT, reading, started
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CLIENTS = 20
PATIENCE = 60.0  # seconds, for a page on a busy machine
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None or DRIVER is None, reason="this machine has no chromium"),
    pytest.mark.timeout(900),
]
TUTORIAL = (ROOT / "docs/tutorial.md").read_text()
LAYOUT_SHIFT = """
    const done = arguments[0]; let sum = 0;
    new PerformanceObserver((list) => list.getEntries().forEach((one) => sum += one.value))
        .observe({type: "layout-shift", buffered: true});
    setTimeout(() => done(sum), 500);
"""


@dataclass
class Example:
    """What `make example` has started."""

    address: str
    topology: Path

    def shardctl(self, *words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "shardctl", "--topology", str(self.topology), *words],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def example() -> Iterator[Example]:
    """Start the example, and see at the end that Ctrl-C leaves nothing."""
    with started() as (address, topology):
        yield Example(address, topology)


@pytest.fixture
def browser() -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    options.add_argument("--headless=new")
    options.add_argument("--no-sandbox")  # root has none
    options.add_argument("--disable-dev-shm-usage")
    options.add_argument("--hide-scrollbars")
    driver = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
    driver.implicitly_wait(PATIENCE)
    try:
        yield driver
    finally:
        driver.quit()


def look(browser: webdriver.Chrome, selector: str) -> Any:
    return browser.find_element(By.CSS_SELECTOR, selector)


def looks(browser: webdriver.Chrome, selector: str) -> list[Any]:
    return browser.find_elements(By.CSS_SELECTOR, selector)


def text_becomes(browser: webdriver.Chrome, selector: str, pattern: str) -> None:
    WebDriverWait(browser, PATIENCE).until(
        lambda _: re.search(pattern, look(browser, selector).text, re.DOTALL)
    )


def requests_come(browser: webdriver.Chrome, more: int) -> None:
    """Wait until the page, whose chart shows them, has made some more requests."""
    last = browser.execute_script("return requests.at(-1)?.at ?? 0")
    newer = "return requests.filter((one) => one.at > arguments[0]).length"
    WebDriverWait(browser, PATIENCE).until(lambda _: browser.execute_script(newer, last) >= more)


def sign_in(browser: webdriver.Chrome, example: Example, number: int) -> None:
    browser.get(f"{example.address}/")
    looks(browser, "[data-name]")[number].click()
    look(browser, "#news")


def as_seen(browser: webdriver.Chrome, *, phone: bool, dark: bool) -> None:
    width, height = (390, 844) if phone else (1100, 760)
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone}
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})


def picture(browser: webdriver.Chrome, name: str, otherwise: Path) -> None:
    wanted = os.environ.get("SHARDCTL_SCREENSHOTS") and f"images/{name}.png" in TUTORIAL
    place = ROOT / "docs/images" if wanted else otherwise
    browser.save_screenshot(str(place / f"{name}.png"))


@pytest.mark.parametrize(("phone", "dark"), [(True, True), (False, False)])
def test_the_page_fits_and_nothing_moves_as_it_loads(
    example: Example, browser: webdriver.Chrome, tmp_path: Path, phone: bool, dark: bool
) -> None:
    as_seen(browser, phone=phone, dark=dark)
    sign_in(browser, example, 1)
    text_becomes(browser, "#state", "64 shards")
    text_becomes(browser, "#latency", "median")
    requests_come(browser, 10)
    width = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert browser.execute_script(width) == 0
    assert browser.execute_async_script(LAYOUT_SHIFT) < 0.05
    log: Any = browser.get_log("browser")  # type: ignore[no-untyped-call]
    assert [one["message"] for one in log] == []
    name = f"photos-{'phone' if phone else 'desktop'}-{'dark' if dark else 'light'}"
    picture(browser, name, tmp_path)


def test_no_request_fails_while_shards_stream_and_a_node_is_split(
    example: Example, browser: webdriver.Chrome, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    as_seen(browser, phone=False, dark=False)
    with reading(example.address, CLIENTS, posts=True) as clients:
        wait_for(lambda: sum(len(one.took_ms) for one in clients) > 500, seconds=120)
        quiet = statistics.median(took for one in clients for took in one.took_ms)
        sign_in(browser, example, 2)
        example.shardctl("move-shards", "24-31", "--to", "b", "--keep-reverse", "0", "--yes")
        text_becomes(browser, "#node-a", "24 shards")
        text_becomes(browser, "#pause", "8 shards, a → b")
        example.shardctl("move-shards", "48-63", "--to", "c", "--yes")
        text_becomes(browser, "#node-c", "16 shards")
        text_becomes(browser, "#pause", r"16 shards, b → c: paused for \d+ ms")
        assert look(browser, "#node-d").text.endswith("spare")
        requests_come(browser, 5)
        picture(browser, "photos-moved", tmp_path)
    took = sorted(took for one in clients for took in one.took_ms)
    with capsys.disabled():
        print(  # noqa: T201  # what the documentation claims
            f"\n{len(took)} feed pages by {CLIENTS} clients: median {quiet:.0f} ms before the "
            f"moves, {statistics.median(took):.0f} ms in all, longest {took[-1]:.0f} ms"
        )
    assert [one.failed for one in clients if one.failed] == []
    assert browser.execute_script("return requests.filter((one) => one.failed).length") == 0
    assert browser.execute_script("return requests.length") > 10
