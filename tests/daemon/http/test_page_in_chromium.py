"""Looks at the page in a headless Chromium, if there is one: nothing is cut, blocked or run that should not be.

Each of these tests refutes mutants of the page, which daemons with a copy of the product serve.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from chromium import CHROMIUM, Tab, chromium
from free_ports import free_ports
from http_calls import request
from lookup_advice import advice_after, serve
from own_host import ROOT
from pagetier.client import Namespace
from running_daemon import RunningDaemon

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")

TOKEN = "a-token-of-this-test"
LEAST_TEXT = 1000
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

# Labels of one line between which there is less room than between two words.
TOUCHING = """[...document.querySelectorAll("svg.chart")].flatMap((chart) => {
  const labels = [...chart.querySelectorAll("text")].map((label) => [label.textContent, label.getBoundingClientRect()]);
  return labels.flatMap(([one, left]) => labels.filter(([two, right]) => one !== two && left.left <= right.left
    && Math.abs(left.top - right.top) < left.height / 2 && right.left - left.right < left.height / 2)
    .map(([two]) => `${one} ${two}`));
})"""
CUT_TABLES = """[...document.querySelectorAll(".scroll")].filter((each) => each.scrollWidth > each.clientWidth)
  .map((each) => each.id)"""
ALLOWED = """new Promise((resolve) => {
  const blocked = [];
  document.addEventListener("securitypolicyviolation", (event) => blocked.push(event.effectiveDirective));
  document.body.append(Object.assign(document.createElement("script"), { textContent: "window.ran = true" }));
  document.body.append(Object.assign(document.createElement("img"), { src: "/healthz" }));
  document.body.setAttribute("onclick", "window.ran = true");
  document.body.click();
  fetch("http://127.0.0.2:9/").catch(() => 0).then(() => setTimeout(() => resolve([...blocked.sort(), !window.ran])));
})"""
BLOCKED = ["connect-src", "img-src", "script-src-attr", "script-src-elem"]


@contextmanager
def page_of_a_daemon(folder: Path) -> Iterator[str]:
    """Yields the address of the page of a daemon with some lookups and hostile names; `folder` is for its token."""
    (file := folder / "token").write_text(TOKEN)
    file.chmod(0o600)
    (port,) = free_ports(1)
    flags = ("--set", f"http.listen={port}", "--set", f"http.token_file={file}")
    with RunningDaemon("8MiB", "64KiB", *flags) as daemon, daemon.client(name="<b>engine</b>") as client:
        assert request(port, "GET", "/healthz").status == 200, "the last hour begins with the process that answers"
        for _ in range(2):
            serve(client, SPACE.keys(range(16 * 4)))
        advice_after(daemon, 2)
        yield f"http://127.0.0.1:{port}/"


@contextmanager
def tab_of(address: str) -> Iterator[Tab]:
    """Yields a tab with the page."""
    with chromium() as opened:
        opened.open(address, "anyone", TOKEN)
        yield opened


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yields the address of a page."""
    with page_of_a_daemon(tmp_path_factory.mktemp("page")) as served:
        yield served


@pytest.fixture(scope="module")
def tab(address: str) -> Iterator[Tab]:
    """Yields a tab with that page."""
    with tab_of(address) as opened:
        yield opened


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1600])
def test_nothing_is_cut(tab: Tab, width: int, scheme: str) -> None:
    tab.show(width, scheme)
    assert tab.evaluate("document.documentElement.scrollWidth") == width
    assert tab.evaluate(CUT) == []
    assert tab.evaluate(CUT_TABLES) == []


@pytest.mark.parametrize("width", [400, 1600])
def test_no_two_labels_touch(tab: Tab, width: int) -> None:
    tab.show(width, "light")
    assert tab.evaluate(TOUCHING) == []


def look_at_labels(tab: Tab) -> None:
    """Looks whether labels of a picture touch each other."""
    test_no_two_labels_touch(tab, 400)


def look_at_a_phone(tab: Tab) -> None:
    """Looks whether something is cut on a phone."""
    test_nothing_is_cut(tab, 400, "light")


def test_the_style_and_the_script_run_and_names_of_clients_do_not(tab: Tab) -> None:
    assert tab.evaluate("getComputedStyle(document.querySelector('main')).display") == "grid"
    assert tab.evaluate("document.getElementById('pause').hidden") is False
    assert tab.evaluate("document.title").startswith("pagetier on ")
    assert tab.evaluate("document.querySelectorAll('script, bdi > *').length") == 1
    assert tab.complaints == [], "the policy blocks nothing of the page's own"


def test_the_policy_blocks_all_that_is_not_the_page_s_own(address: str) -> None:
    with tab_of(address) as tab:
        assert_foreign_things_are_blocked(tab)


def assert_foreign_things_are_blocked(tab: Tab) -> None:
    """Asserts that the browser refuses a script, a handler, a picture and a request to another host."""
    assert tab.evaluate(ALLOWED) == [*BLOCKED, True]


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


class Mutant(NamedTuple):
    """A page with an error: `old` becomes `new` in a file of daemon/http/page, and `look` must find it."""

    file: str
    old: str
    new: str
    look: Callable[[Tab], None]


MUTANTS = {
    "names are markup": Mutant(
        "html.py", "return escape(", "return str(", test_the_style_and_the_script_run_and_names_of_clients_do_not
    ),
    "no policy": Mutant("assets.py", '"Content-Security-Policy",', '"X-Policy",', assert_foreign_things_are_blocked),
    "a policy that allows every script": Mutant(
        "assets.py", "script-src {_digest(SCRIPT)};", "script-src 'unsafe-inline';", assert_foreign_things_are_blocked
    ),
    "a policy with the digest of another script": Mutant(
        "assets.py",
        "{_digest(SCRIPT)}",
        "{_digest(STYLE)}",
        test_the_style_and_the_script_run_and_names_of_clients_do_not,
    ),
    "a label beyond its picture": Mutant(
        "charts.py", "_FIRST_LABEL: Final = 4", "_FIRST_LABEL: Final = 12", look_at_a_phone
    ),
    "labels that touch": Mutant("charts.py", "_LABEL_EVERY: Final = 16", "_LABEL_EVERY: Final = 8", look_at_labels),
    "tables that stay wide": Mutant("assets.py", "(max-width: 38rem)", "(max-width: 3rem)", look_at_a_phone),
    "a refresh that loses the focus": Mutant(
        "assets.py", "if (focused) document", "if (!focused) document", test_it_refreshes_itself_and_keeps_the_focus
    ),
    "tables that keys do not reach": Mutant(
        "html.py", "aria_label=about, tabindex=0", "aria_label=about", test_keys_reach_the_button_and_the_tables
    ),
}


@contextmanager
def tab_of_a_copy(folder: Path, mutant: Mutant | None) -> Iterator[Tab]:
    """Yields a tab with the page of a copy of the product, with or without an error."""
    copy_product(folder)
    if mutant:
        file = folder / "pagetier/daemon/http/page" / mutant.file
        text = file.read_text()
        assert text.count(mutant.old) == 1
        file.write_text(text.replace(mutant.old, mutant.new))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder))
        with page_of_a_daemon(folder) as address, tab_of(address) as tab:
            assert len(tab.evaluate("document.querySelector('main').textContent")) > LEAST_TEXT
            yield tab


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_a_page_with_an_error_is_found(mutant: Mutant, tmp_path: Path) -> None:
    with tab_of_a_copy(tmp_path, mutant) as tab, pytest.raises(AssertionError):
        mutant.look(tab)


def test_a_copy_without_an_error_is_accepted(tmp_path: Path) -> None:
    with tab_of_a_copy(tmp_path, None) as tab:
        for mutant in MUTANTS.values():
            if mutant.look is not assert_foreign_things_are_blocked:
                mutant.look(tab)
        assert_foreign_things_are_blocked(tab)


def copy_product(folder: Path) -> None:
    """Copies the daemon's modules to a folder, with the rest of the product beside them."""
    (packages := folder / "pagetier").mkdir()
    for path in (ROOT / "src/pagetier").iterdir():
        (packages / path.name).symlink_to(path.resolve())
    (packages / "daemon").unlink()
    shutil.copytree(ROOT / "daemon", packages / "daemon", ignore=shutil.ignore_patterns("__pycache__"))
