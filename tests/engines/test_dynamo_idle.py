"""Dynamo's indexer promises nothing that an idle engine can no longer load: after flushes, moves and deaths."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from dynamo_router import PAGE, PROMPTS, Router, events_to, routed
from eventually import PATIENCE_S, Second, Stopwatch, eventually
from indexer import note, require_indexer
from one_host import ask, prompt
from router import wait_until_heard

require_indexer()

_REMOVALS = 10_000
_SMALL_PAGE = 32
_LONG = [prompt(3000 + number, 60 * _SMALL_PAGE + 7) for number in range(170)]
_FEW = PROMPTS[:20]
_LEASE_S = 1.0


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Router]:
    folder = tmp_path_factory.mktemp("idle")
    (folder / "fleet").mkdir()
    with routed(folder, "--set", f"remote.url=file://{folder}/fleet", events_lease=_LEASE_S) as router:
        yield router


def settled(router: Router) -> None:
    """Lets the engine answer prompts, and waits until their pages are on disk, too, and not on its GPU."""
    router.serve(*_FEW)
    router.scene.settle()
    assert router.scene.daemon.pagetier("flush", "--to-disk").exit_code == 0
    router.forget()
    assert all(one["cpu"] for one in router.agree(_FEW))


def flush_is_believed(router: Router, prompts: Sequence[list[int]]) -> bool:
    """Removes all pages, and returns whether the indexer believes it of these prompts within a second."""
    daemon = router.scene.daemon
    before = daemon.header().pages
    assert daemon.pagetier("flush", "--all", "--yes").exit_code == 0
    watch, second = Stopwatch(), Second(daemon, *{slot.pid for slot in daemon.slots()})
    believed = second.sees(lambda: not any(one["disk"] for one in router.indexer.reach(prompts, "1")))
    note(f"the removal of {before} pages of an idle engine was believed {1000 * watch.seconds:.0f} ms after the flush")
    return believed


@pytest.mark.wall_clock
def test_removals_are_believed_within_a_second(router: Router) -> None:
    settled(router)
    assert flush_is_believed(router, _FEW)


def test_pages_that_only_the_fleet_has_are_promised_by_nobody(router: Router) -> None:
    settled(router)
    daemon = router.scene.daemon
    assert eventually(lambda: daemon.snapshot().fleet.written >= sum(len(one) // PAGE for one in _FEW))
    assert daemon.pagetier("flush", "--all", "--tier", "memory", "--yes").exit_code == 0
    assert all(one["disk"] and not one["cpu"] for one in router.agree(_FEW))
    assert daemon.pagetier("flush", "--all", "--tier", "disk", "--yes").exit_code == 0
    assert not any(one["disk"] for one in router.agree(_FEW))


def test_a_daemon_that_is_killed_and_stays_away_is_believed_after_the_lease(router: Router) -> None:
    settled(router)
    router.scene.daemon.kill()
    assert eventually(lambda: not any(one["disk"] for one in router.indexer.reach(_FEW, "1")))
    router.scene.daemon.open()
    assert router.client.wait_attached(PATIENCE_S)
    assert all(one["disk"] for one in router.agree(_FEW))


def test_an_engine_that_is_killed_leaves_nothing_to_the_next_one(router: Router) -> None:
    """Dynamo forgets the worker that died. The next one announces what its own requests ask for."""
    settled(router)
    router.engine.kill()
    endpoint, settings = events_to(router.folder, 1)
    router.indexer.replace("1", endpoint, f"{endpoint}-replay")
    assert not any(one["disk"] for one in router.indexer.reach(_FEW, "1"))
    with router.scene.engine(engine=settings) as engine:
        wait_until_heard(router.indexer, engine, PAGE)
        ask(engine, *_FEW[:5], tokens=1)
        assert all(one["disk"] for one in router.agree(_FEW[:5]))
        assert not any(one["disk"] for one in router.indexer.reach(_FEW[5:], "1"))


@pytest.mark.wall_clock
def test_ten_thousand_removals_are_believed_within_a_second(tmp_path: Path) -> None:
    with routed(tmp_path, page=_SMALL_PAGE, frames=_REMOVALS + 1000) as router:
        router.serve(*_LONG)
        router.scene.settle()
        router.forget(_LONG)
        believed = router.agree(_LONG)
        assert sum(one["disk"] for one in believed) >= _REMOVALS * _SMALL_PAGE
        assert flush_is_believed(router, _LONG[::17])
        assert not any(one["disk"] for one in router.agree(_LONG))
