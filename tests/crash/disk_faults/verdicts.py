"""Checks the promises while a disk is in trouble, and after its recovery."""

from __future__ import annotations

import time
from typing import Final

import msgspec

from kill_points.colliding_pages import PAGES
from kill_points.operation import Operation
from kill_points.scene import SHORT_S, Scene, timed
from oracle.checker import Losses, findings
from oracle.journal import read_journals
from pagetier.shm.protocol import Flush, Save, Saved
from running_daemon import START_S, eventually

SLACK_S: Final = 1.5
"""The delay that a busy machine may add to a timeout, in seconds; a disk that hangs would add much more."""
_FEW: Final = 2
_BACK_S: Final = 5.0
_READ_S: Final = 5.0
_MENDED_S: Final = 40.0


def check_engines(scene: Scene, operation: Operation) -> None:
    """Checks that pages in memory are found and new pages are stored, without delay, whatever the disk does."""
    if operation.keeps_pages:
        verified, seconds = timed(lambda: scene.verify(operation.known))
        assert verified.loaded == len(operation.known), "a page in memory was not found"
        assert seconds < SLACK_S, f"a load from memory took {seconds:.3f} s"
    fresh = scene.numbers(_FEW)
    stored, seconds = timed(lambda: scene.store(fresh))
    assert stored == len(fresh), f"a store was rejected: {scene.header()}"
    assert seconds < SLACK_S, f"a store took {seconds:.3f} s"
    assert scene.verify(fresh).loaded == len(fresh), "a page that was just stored was not found"


def check_load_timeout(scene: Scene, operation: Operation) -> None:
    """Checks that a load of pages on disk ends within its timeout, with or without the pages."""
    _, seconds = timed(lambda: scene.verify(operation.on_disk(), SHORT_S))
    assert seconds < SHORT_S + SLACK_S, f"a load took {seconds:.3f} s from a disk that hangs"


def check_index(scene: Scene) -> None:
    """Checks that the daemon finds no inconsistency in the index."""
    found = scene.daemon.findings()
    assert found == [], found


def store_and_reload(scene: Scene) -> list[int]:
    """Stores pages, saves them to disk, evicts them from memory and loads them again.

    Returns:
        These pages, which were reported as on disk.
    """
    pages = _onto_disk(scene)
    assert pages, f"{scene.ask(Save(1))} {scene.daemon.log.read_text()}"
    assert _come_back(scene, pages), f"pages on disk could not be loaded: {scene.daemon.log.read_text()}"
    return pages


def recover(scene: Scene) -> list[int]:
    """Returns the same as store_and_reload(), for a disk that may still detect its fault and be rebuilt."""
    ends = time.monotonic() + _MENDED_S
    while time.monotonic() < ends:
        pages = _onto_disk(scene)
        if pages and _come_back(scene, pages):
            return pages
        scene.dropping()
        _in_memory(scene)  # pages that could not be saved would not fit on a small disk
    raise AssertionError(f"the disk tier did not recover: {scene.header()} {scene.daemon.log.read_text()}")


def _onto_disk(scene: Scene) -> list[int]:
    """Returns new pages after they were reported as on disk; none if they could not be written."""
    pages = scene.numbers(_FEW)
    assert eventually(lambda: scene.store(pages) == _FEW, START_S), "stores do not work again"
    saved = _saved(scene)
    return pages if saved.synced and not saved.trouble else []


def _come_back(scene: Scene, pages: list[int]) -> bool:
    assert eventually(lambda: not _in_memory(scene), START_S), scene.header()
    return eventually(lambda: scene.verify(pages, _READ_S).loaded == _FEW, _READ_S)


def _saved(scene: Scene) -> Saved:
    ends = time.monotonic() + START_S
    saved, number = Saved(0, 0, 0, synced=False), 0
    while not (saved.synced or saved.trouble) or number < 2:
        saved = scene.ask(Save(number))
        assert isinstance(saved, Saved)
        assert time.monotonic() < ends, f"{saved} {scene.daemon.log.read_text()}"
        number += 1
        time.sleep(0.01)
    return saved


def _in_memory(scene: Scene) -> int:
    scene.ask(Flush(1, None, "memory"))
    return scene.header().used_frames


class Begun(msgspec.Struct, frozen=True):
    """The state at the begin of a case; pages with numbers above `page` belong to it."""

    worker: int
    gone: int
    evicted: int
    page: int


def begun(scene: Scene) -> Begun:
    """Returns the current state."""
    return Begun(scene.worker(), _gone(scene), scene.header().evicted, scene.numbers(1)[0])


def _gone(scene: Scene) -> int:
    """Returns the number of pages that left both tiers by the daemon's counters, if the disk was open all the time."""
    header = scene.header()
    return header.disk_lost + header.disk_skipped + header.disk_evicted + header.disk_damaged


def settle(scene: Scene, since: Begun) -> None:
    """Ends a case: checks that nothing is pinned, all frames can be used, and each page that must be found is found."""
    scene.dismiss()
    assert eventually(lambda: scene.client.attached, START_S), scene.daemon.log.read_text()
    assert eventually(lambda: scene.quiet() and not scene.pins(), START_S), scene.header()
    full = scene.numbers(PAGES)
    # A page that is being written to disk cannot be evicted at this moment.
    assert eventually(lambda: scene.store(full) == PAGES, _BACK_S), (
        f"not all frames can be used: {scene.daemon.slots()} {scene.header()} {scene.daemon.log.read_text()}"
    )
    scene.until_disk_is_open()
    may_go = _may_go(scene, since)
    for number in range(since.page + 1, full[0]):
        scene.verify([number], _READ_S)
    found = findings(read_journals(scene.journals), may_go=may_go)
    assert found == [], [*map(str, found), scene.header(), scene.daemon.log.read_text()]
    check_index(scene)
    assert "Traceback" not in scene.daemon.log.read_text(), scene.daemon.log.read_text()


def _may_go(scene: Scene, since: Begun) -> Losses:
    """Returns the pages that may be lost. While no worker runs, pages on disk are missed and evicted pages are lost."""
    gone = _gone(scene) - since.gone
    if scene.worker() == since.worker:
        return Losses(at_most=max(0, gone))
    return Losses(at_most=max(0, gone + scene.header().evicted - since.evicted), since=time.monotonic_ns())
