"""Prompts of which pagetier has a part: what another engine stores later, and pages without their window or state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

from disk_daemon import DiskDaemon
from running_daemon import RunningDaemon
from sglang_engine import SglangEngine
from sglang_model import Restored, Spec, computed, whole

pytest_plugins = ("sglang_daemon",)
PAGES: Final = 8
HALF: Final = PAGES // 2
REST: Final = [Restored(64, 64, equal=True, failed=False)]


@pytest.fixture
def without_disk() -> Iterator[RunningDaemon]:
    """Runs a daemon without a disk, where a lookup that a request repeats takes another way."""
    with RunningDaemon("64MiB", "4KiB") as running:
        yield running


@pytest.mark.parametrize(
    ("kind", "fixture"), [("mha", "daemon"), ("swa", "daemon"), ("mha", "without_disk"), ("mamba", "without_disk")]
)
def test_a_waiting_request_finds_what_another_engine_stores(
    request: pytest.FixtureRequest, kind: str, fixture: str
) -> None:
    spec, socket = Spec(kind, 16), request.getfixturevalue(fixture).socket
    with SglangEngine(spec, socket, lease=600.0) as engine, SglangEngine(spec, socket) as other:
        assert engine.match_only("waiting", 1, PAGES) == [0]
        for pages in (HALF, PAGES):
            other.insert(1, pages)
            assert engine.match_only("waiting", 1, PAGES) == [16 * pages]
        assert engine.load_matched("waiting") == whole(spec, PAGES)


@pytest.mark.parametrize(("kind", "layout"), [("mha", ""), ("swa", ""), ("swa", "page_first"), ("mamba", "page_first")])
def test_what_another_engine_stores_after_a_lookup_is_found(daemon: DiskDaemon, kind: str, layout: str) -> None:
    spec, other_door = Spec(kind, 16, layout=layout), Spec(kind, 16, layout="" if layout else "page_first")
    with SglangEngine(spec, daemon.socket) as engine, SglangEngine(other_door, daemon.socket) as other:
        assert engine.restore(1, PAGES) == computed(spec)
        engine.insert(1, HALF)
        assert not engine.restore(1, PAGES)[0].loaded
        other.insert(1, PAGES)
        assert engine.restore(1, PAGES) == REST, "the GPU has the first half"


def longest(kind: str, pages: int) -> int:
    """Returns the longest legal prefix of so many pages, if a part of the second half is gone."""
    if kind == "swa":
        return min(pages, HALF)
    return HALF if pages >= HALF else 0


@pytest.mark.parametrize("layout", ["", "page_first"])
@pytest.mark.parametrize(("kind", "lost"), [("swa", "swa"), ("mamba", "mamba"), ("swa", "kv"), ("mamba", "kv")])
def test_a_prefix_is_restored_only_where_all_of_its_parts_are(
    daemon: DiskDaemon, kind: str, lost: str, layout: str
) -> None:
    spec = Spec(kind, 16, ranks=1 if layout else 2, layout=layout)
    with SglangEngine(spec, daemon.socket) as engine:
        engine.insert(1, PAGES)
        engine.reset()
        assert all(engine.drop(lost))
        assert engine.restore(1, PAGES) == computed(spec)
        engine.insert(1, HALF)
        for pages in range(1, PAGES + 1):
            engine.reset()
            legal = longest(kind, pages)
            assert engine.restore(1, pages) == (whole(spec, legal) if legal else computed(spec)), pages


@pytest.mark.parametrize("layout", ["", "page_first"])
@pytest.mark.parametrize(("kind", "legal"), [("swa", 0), ("mamba", HALF)])
def test_a_rank_that_finds_less_shortens_to_a_legal_prefix(
    daemon: DiskDaemon, kind: str, legal: int, layout: str
) -> None:
    spec = Spec(kind, 16, ranks=2, layout=layout)
    with SglangEngine(spec, daemon.socket) as engine:
        engine.insert(1, HALF)
        if kind == "swa":
            assert all(engine.drop("swa"))  # windows end at 7 and 8 pages only, and states at 4 and 8
        engine.insert(1, PAGES)
        engine.reset()
        assert engine.restore(1, PAGES) == whole(spec, PAGES)
        engine.reset()
        engine.find_at_most(1, PAGES - 2)
        assert engine.restore(1, PAGES) == (whole(spec, legal) if legal else computed(spec))
