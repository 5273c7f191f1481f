"""Tests which lines of the log the page shows, and that what to do is said for events that exist."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from pagetier.daemon.http.notable_events import MOST, NotableEvents
from pagetier.daemon.http.page.remedies import REMEDIES, remedy
from pagetier.shm.log_format import event

DOCS = Path(__file__).parents[3] / "docs/monitoring.md"


@pytest.fixture
def events() -> NotableEvents:
    return NotableEvents()


@pytest.fixture
def log(events: NotableEvents) -> logging.Logger:
    """Returns a logger whose lines only these events see."""
    alone = logging.Logger("of this test")
    alone.addHandler(events)
    return alone


def test_lines_of_one_kind_are_counted_and_the_last_is_shown(events: NotableEvents, log: logging.Logger) -> None:
    log.warning("first %d", 1, extra=event("disk_trouble"))
    log.info("ready", extra=event("ready"))
    log.error("second", extra=event("disk_trouble"))
    shown = [(one.event, one.level, one.text, one.count) for one in events.latest()]
    assert shown == [("disk_trouble", "error", "second", 2), ("ready", "info", "ready", 1)]


def test_a_kind_that_comes_often_leaves_room_for_others(events: NotableEvents, log: logging.Logger) -> None:
    for number in range(MOST + 3):
        log.warning("peer", extra=event("peer_refused"))
        log.info("line", extra=event(f"kind {number}"))
    kinds = [one.event for one in events.latest()]
    assert kinds == [f"kind {MOST + 2}", "peer_refused", *(f"kind {number}" for number in range(MOST + 1, 3, -1))]


def test_routine_is_not_notable(events: NotableEvents, log: logging.Logger) -> None:
    log.info("half", extra=event("progress"))
    log.info("without a kind")
    log.debug("detail", extra=event("ready"))
    assert events.latest() == ()
    log.error("without a kind")
    assert [one.event for one in events.latest()] == [""]


def test_a_long_text_is_cut(events: NotableEvents, log: logging.Logger) -> None:
    log.warning("x" * 10_000, extra=event("peer_refused"))
    assert len(events.latest()[0].text) <= 400


def test_what_to_do_is_said_for_events_that_are_documented() -> None:
    page = DOCS.read_text()
    assert {name for name in REMEDIES if f"`{name}`" not in page} == set()
    assert remedy("disk_down", "error") == REMEDIES["disk_down"]
    assert remedy("of tomorrow", "warning"), "the log says more"
    assert remedy("ready", "info") == ""
