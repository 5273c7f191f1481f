"""Looks at the page in a headless Chromium, if there is one: nothing is cut, blocked or run that should not be."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from chromium import CHROMIUM, Tab, chromium
from free_ports import free_ports
from lookup_advice import advice_after, serve
from pagetier.client import Namespace
from running_daemon import RunningDaemon

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")

TOKEN = "a-token-of-this-test"
SPACE = Namespace(model="<script>document.title = 'run'", dtype="float32", page_tokens=16)
REFRESHED = """new Promise((resolve) => {
  new MutationObserver(() => resolve(document.querySelector("main").id)).observe(document.body, { childList: true });
  document.querySelector("main").id = "old";
  button.click();
  button.click();
})"""
CUT = """[...document.querySelectorAll("svg text")].filter((label) => {
  const own = label.getBoundingClientRect(), around = label.ownerSVGElement.getBoundingClientRect();
  return own.left < around.left || own.right > around.right || own.top < around.top || own.bottom > around.bottom;
}).map((label) => label.textContent)"""


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Yields the port of a daemon with some lookups."""
    (file := tmp_path_factory.mktemp("page") / "token").write_text(TOKEN)
    Path(file).chmod(0o600)
    (port,) = free_ports(1)
    flags = ("--http-listen", str(port), "--http-token-file", str(file))
    with RunningDaemon("8MiB", "64KiB", *flags) as daemon, daemon.client(name="<b>engine</b>") as client:
        for _ in range(2):
            serve(client, SPACE.keys(range(16 * 4)))
        advice_after(daemon, 2)
        yield port


@pytest.fixture(scope="module")
def tab(port: int) -> Iterator[Tab]:
    """Yields a tab with the page."""
    with chromium() as opened:
        opened.open(f"http://127.0.0.1:{port}/", "anyone", TOKEN)
        yield opened


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1600])
def test_nothing_is_cut(tab: Tab, width: int, scheme: str) -> None:
    tab.show(width, scheme)
    assert tab.evaluate("document.documentElement.scrollWidth") == width
    assert tab.evaluate(CUT) == []


def test_the_style_and_the_script_run_and_names_of_clients_do_not(tab: Tab) -> None:
    assert tab.evaluate("getComputedStyle(document.querySelector('main')).display") == "grid"
    assert tab.evaluate("document.getElementById('pause').hidden") is False
    assert tab.evaluate("document.title").startswith("pagetier on ")
    assert tab.evaluate("document.querySelectorAll('script, bdi > *').length") == 1
    assert tab.complaints == [], "the policy blocks nothing of the page's own"


def test_it_refreshes_itself_and_keeps_the_focus(tab: Tab) -> None:
    tab.evaluate("document.querySelector('.scroll').focus()")
    focused = tab.evaluate("document.activeElement.id")
    assert tab.evaluate(REFRESHED) == ""
    assert focused and tab.evaluate("document.activeElement.id") == focused


def test_keys_reach_the_button_and_the_tables(tab: Tab) -> None:
    reached = {press_tab(tab) for _ in range(4)}
    assert {"pause", "namespaces-by-bytes-table", "engines-and-what-they-pin-table"} <= reached


def press_tab(tab: Tab) -> str:
    """Returns the ID of the element that has the focus after the tabulator key."""
    for kind in ("rawKeyDown", "keyUp"):
        tab.call("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)
    return str(tab.evaluate("document.activeElement.id"))
