"""Tests the page of a real daemon: that its HTML and SVG are well formed, what it says, and that it is small."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import cast

import pytest

from crowded_segments import ENGINES, NAMESPACES, crowded_segments
from disk_daemon import FRAME, write_through
from free_ports import free_ports
from http_calls import call, request
from lookup_advice import advice_after, serve
from page_document import Document, parsed
from pagetier.client import Namespace
from pagetier.client.adapters import count_lookup
from pagetier.client.group_match import Lookup
from pagetier.daemon.http.notable_events import MOST, NotableEvent
from pagetier.daemon.http.page.disk_and_fleet import _wear
from pagetier.daemon.http.page.document import page
from pagetier.daemon.http.page.token_history import MINUTES, Totals
from pagetier.daemon.http.page.view import MOST_NAMESPACES, CacheView, LastHour, read_cache
from pagetier.daemon.status.disk_report import DiskReport
from pagetier.shm._core import NamespaceRecord, Observer
from pagetier.shm.segment_files import observe_and_close
from running_daemon import RunningDaemon, namespace

HOSTILE = "<script>alert(1)<img src=x onerror=alert(2)>"
TOKEN = "a-token-of-this-test"
MOST_BYTES = 200_000


def basic(password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"anyone:{password}".encode()).decode()}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("page") / "http.sock"


@pytest.fixture(scope="module")
def served(place: Path) -> Iterator[Document]:
    """Yields the page of a daemon with a disk, an engine with a hostile name, and lookups."""
    flags = ("--set", f"http.listen={place}", "--set", "disk.budget=1GiB")
    with write_through(*flags) as daemon, daemon.client(name=HOSTILE[:30]) as client:
        daemon.wait_open()
        assert request(place, "GET", "/").status == 200, "the last hour begins with the process that answers"
        spaces = namespace(), Namespace(model=HOSTILE, dtype="float32", page_tokens=16)
        for space in spaces:
            serve(client, space.keys(range(16 * 4)))
            serve(client, space.keys(range(16 * 4)))
        daemon.until_written()
        advice_after(daemon, 4)
        yield parsed(request(place, "GET", "/"))


def test_it_is_one_document_that_refers_to_nothing_else(served: Document) -> None:
    assert served.status == 200 and served.headers["content-type"] == "text/html; charset=utf-8"
    assert not served.attributes & {"src", "href", "action", "style"}
    assert not {name for name in served.attributes if name.startswith("on")}
    assert not served.elements.keys() & {"a", "form", "iframe", "img", "link", "object"}
    assert not re.search("https?://", served.text)
    assert len(served.vectors) > len(served.pictures), "bars are pictures that a text stands beside"


def test_only_its_own_style_and_script_are_allowed(served: Document) -> None:
    policy = dict(part.strip().split(" ", 1) for part in served.headers["content-security-policy"].split(";"))
    assert policy.pop("style-src") == digest_of(served.contents("style"))
    assert policy.pop("script-src") == digest_of(served.contents("script"))
    nothing = dict.fromkeys(("default-src", "base-uri", "form-action", "frame-ancestors"), "'none'")
    assert policy == nothing | {"connect-src": "'self'"}


def digest_of(contents: list[str]) -> str:
    (text,) = contents
    return f"'sha256-{base64.b64encode(sha256(text.encode()).digest()).decode()}'"


def test_names_of_clients_are_text(served: Document) -> None:
    assert [name for name in served.contents("bdi") if name.startswith("<script>alert(1)<img")], "of the namespace"
    assert HOSTILE[:30] in served.contents("bdi"), "of the engine"
    assert served.elements["script"] == 1 and "img" not in served.elements


def test_every_section_and_picture_has_a_name(served: Document) -> None:
    titles = served.contents("h2")
    assert titles == [
        *("Tiers", "Hits by tier in the last hour", "Hit ratio by size", "Why tokens were not found"),
        *("Disk", "Fleet", "Namespaces", "Engines", "Last events"),
    ]
    assert len(served.pictures) == 2 and all(served.pictures), "the hour and the curve"
    assert all(served.scrolled), "a table that is scrolled can be reached by keyboard"


def test_it_says_how_the_cache_is(served: Document) -> None:
    for words in (
        "predicted without a disk, at least (LRU)",
        "now: 50.0% of the prompts' tokens",
        "Of the tokens that engines lacked, since ",
        "Prompts count whole here: also tokens that engines had in their own caches.",
        "100.0% never stored",
        f"{4 * FRAME // 1024}.0 KiB",
        "of 1.0 GiB a day may be written now",
        "No fleet is configured.",
        "ready on ",
    ):
        assert words in served.words, (words, served.words)


def test_tokens_that_are_computed_although_a_tier_has_them_are_a_reason(tmp_path: Path) -> None:
    place = tmp_path / "http.sock"
    with RunningDaemon("1MiB", "64KiB", "--set", f"http.listen={place}") as daemon, daemon.client() as client:
        assert "No lookup missed a page." in parsed(request(place, "GET", "/")).words
        count_lookup(client.session, Lookup(0, 0, 0, 0, 16, disk_slower_tokens=16))
        assert "100.0% computed because loading is slower" in parsed(request(place, "GET", "/")).words
        serve(client, namespace().keys(range(16 * 4)))
        advice_after(daemon, 1)
        words = parsed(request(place, "GET", "/")).words
    assert "80.0% never stored" in words and "20.0% computed because loading is slower" in words


def test_with_lru_the_curve_is_no_lower_bound(tmp_path: Path) -> None:
    place, keys = tmp_path / "http.sock", namespace().keys(range(16 * 4))
    flags = ("--set", f"http.listen={place}", "--set", "evict.policy=lru")
    with RunningDaemon("1MiB", "64KiB", *flags) as daemon, daemon.client() as client:
        assert "Nothing is predicted before lookups that stores follow." in parsed(request(place, "GET", "/")).words
        serve(client, keys)
        serve(client, keys)
        advice_after(daemon, 2)
        words = parsed(request(place, "GET", "/")).words
    assert "predicted without a disk, LRU" in words and "at least" not in words


def test_the_last_hour_begins_with_the_process(tmp_path: Path) -> None:
    place, keys = tmp_path / "http.sock", namespace().keys(range(16 * 4))
    with RunningDaemon("1MiB", "64KiB", "--set", f"http.listen={place}") as daemon, daemon.client() as client:
        before = parsed(request(place, "GET", "/")).words
        assert "No lookup was counted." in before
        assert "0 B of 1.0 MiB (0%), no page" in before, "how many fit is not known before the first page"
        serve(client, keys)
        serve(client, keys)
        words = parsed(request(place, "GET", "/")).words
    assert " of 16 pages" in words
    assert "memory 50.0%, 64 tokens" in words and "not found 50.0%, 64 tokens" in words


@pytest.mark.parametrize(
    ("minutes", "span"),
    [(2, "since the start (1 minute)"), (13, "since the start (12 minutes)"), (MINUTES, "of the last hour")],
)
def test_a_rate_says_how_long_it_was_counted(minutes: int, span: str) -> None:
    hour = LastHour(began=0.0, minutes=[Totals()] * minutes, total=Totals(), written_per_day=3e9)
    assert _wear(DiskReport(cap=10**9), hour) == f"; at the rate {span} 2.8 GiB a day, 3.0 times its size"


def test_a_warning_of_the_log_is_shown_with_what_to_do(tmp_path: Path) -> None:
    place = tmp_path / "http.sock"
    (configured := RunningDaemon("1MiB", "64KiB", "--set", f"http.listen={place}")).config.write_text("")
    with configured as daemon:
        daemon.reload("[evict]\npolicy = 'much'\n", "event=reload_refused")
        words = parsed(request(place, "GET", "/")).words
    assert "error reload_refused" in words
    assert "What to do: Correct the configuration (pagetierd --check), and reload the daemon." in words


def test_a_port_asks_a_browser_for_the_token(tmp_path: Path) -> None:
    (file := tmp_path / "token").write_text(TOKEN)
    file.chmod(0o600)
    (port,) = free_ports(1)
    flags = ("--set", f"http.listen={port}", "--set", f"http.token_file={file}")
    with RunningDaemon("1MiB", "64KiB", *flags):
        for headers in (
            {},
            basic(""),
            basic(TOKEN[1:]),
            {"Authorization": "Basic ?"},
            {"Authorization": f"Basic {TOKEN}"},
        ):
            refused = request(port, "GET", "/", headers=headers)
            asked = refused.headers["www-authenticate"]
            assert (refused.status, asked.split()[0]) == (401, "Basic"), headers
            start = "the password is wrong: " if headers == basic(TOKEN[1:]) else "the token is missing: "
            assert json.loads(refused.body)["error"].startswith(start), headers
        for headers in (basic(TOKEN), {"Authorization": f"Bearer {TOKEN}"}):
            assert request(port, "GET", "/", headers=headers).status == 200
        for method, path in (("POST", "/v1/hint"), ("POST", "/v1/prefetch"), ("GET", "/v1/stats")):
            assert call(port, method, path, headers=basic(TOKEN))[0] == 401, "other sites' pages can send it, too"
        assert call(port, "POST", "/", headers=basic(TOKEN))[0] == 405


@pytest.fixture
def crowded() -> Iterator[Observer]:
    """Yields the observer of an index with as many namespaces as it has room for, and of 56 engines."""
    with crowded_segments() as taken:
        yield observe_and_close(taken.read_only_descriptors())


def test_the_page_of_many_namespaces_and_engines_is_small(crowded: Observer) -> None:
    cache = read_cache(crowded, "cadence")
    assert (len(cache.snapshot.namespaces), cache.others.number) == (MOST_NAMESPACES, NAMESPACES - MOST_NAMESPACES)
    assert (cache.others.bytes, len(cache.snapshot.clients)) == ((NAMESPACES - MOST_NAMESPACES) * 4096, ENGINES)
    many = 1 << 60
    hour = LastHour(
        began=0.0,
        minutes=[Totals(many, many, many, many, many)] * MINUTES,
        total=Totals(1, 1, 1, 1),
        written_per_day=1e18,
    )
    event = NotableEvent("disk_trouble", "error", "<" * 400, 1e9, many)
    view = CacheView(
        host="<" * 64,
        at=1e9,
        snapshot=cache.snapshot,
        others=cache.others,
        advice=cache.advice,
        hour=hour,
        events=(event,) * MOST,
    )
    body = page(view).body
    assert len(body) < MOST_BYTES
    assert (body.count(b"<bdi"), body.count(b'class="event"')) == (MOST_NAMESPACES + ENGINES, MOST)


def test_namespaces_are_listed_once_and_only_few_are_read(crowded: Observer) -> None:
    """The time that a page takes follows from these."""

    class Counting:
        """An observer that counts how often namespaces are listed."""

        listed = 0

        def spaces(self) -> list[NamespaceRecord]:
            self.listed += 1
            return crowded.spaces()

        def __getattr__(self, name: str) -> object:
            return getattr(crowded, name)

    counting = Counting()
    read_cache(cast("Observer", counting), "cadence")
    assert counting.listed == 1
