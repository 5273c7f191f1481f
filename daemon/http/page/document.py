"""Puts the page together: one document that refers to nothing else."""

from __future__ import annotations

import os

from pagetier.daemon.http.http_connection import Response
from pagetier.daemon.http.notable_events import NotableEvent
from pagetier.daemon.http.page.assets import HEADERS, SCRIPT, STYLE
from pagetier.daemon.http.page.html import Html, element, joined
from pagetier.daemon.http.page.sections import sections
from pagetier.daemon.http.page.token_history import TokenHistory
from pagetier.daemon.http.page.view import CacheView, LastHour, read_cache
from pagetier.daemon.metrics.numbers import DaemonNumbers
from pagetier.shm import clock
from pagetier.shm._core import Observer


def read_view(
    observer: Observer, numbers: DaemonNumbers, events: tuple[NotableEvent, ...], history: TokenHistory
) -> CacheView:
    """Returns what the page shows now.

    Args:
        observer: Reads the cache.
        numbers: What only the daemon knows.
        events: The last notable events, the latest first.
        history: The last hour.
    """
    cache = read_cache(observer, numbers.eviction.policy)
    per_day = history.written_per_day()
    return CacheView(
        host=os.uname().nodename,
        at=clock.date(),
        snapshot=cache.snapshot,
        others=cache.others,
        advice=cache.advice,
        hour=LastHour(began=history.began, minutes=history.minutes(), total=history.hour(), written_per_day=per_day),
        events=events,
    )


def page(view: CacheView) -> Response:
    """Returns the response with the page."""
    title = f"pagetier on {view.host}"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        element("style", Html(STYLE)),
    )
    body = element("body", _header(title), element("main", *sections(view)), element("script", Html(SCRIPT)))
    document = joined([Html("<!DOCTYPE html>\n"), element("html", head, body, lang="en")])
    return Response(document.markup.encode(), kind="text/html; charset=utf-8", headers=HEADERS)


def _header(title: str) -> Html:
    button = element("button", "Pause", id="pause", type="button", hidden="")
    state = element("span", id="state", role="status", class_="bad")
    return element("header", element("h1", title), button, state)
