"""What must be so while a disk is in trouble, and what again when it is not."""

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
"""What a crowded machine may add to a deadline; a disk that hangs would add all of its time."""
_FEW: Final = 2
_BACK_S: Final = 5.0
_READ_S: Final = 5.0
_MENDED_S: Final = 40.0


def goes_on(scene: Scene, operation: Operation) -> None:
    """Whatever the disk does: what is in memory is found, new pages are stored, and neither waits."""
    if operation.keeps:
        looked, seconds = timed(lambda: scene.look(operation.known))
        assert looked.loaded == len(operation.known), "what is in memory is not found"
        assert seconds < SLACK_S, f"a load from memory took {seconds:.3f} s"
    fresh = scene.numbers(_FEW)
    stored, seconds = timed(lambda: scene.store(fresh))
    assert stored == len(fresh), f"a store is refused: {scene.header()}"
    assert seconds < SLACK_S, f"a store took {seconds:.3f} s"
    assert scene.look(fresh).loaded == len(fresh), "what was just stored is not found"


def answers_in_time(scene: Scene, operation: Operation) -> None:
    """A load of what is on disk takes no longer than its deadline, whether it comes or not."""
    _, seconds = timed(lambda: scene.look(operation.on_disk(), SHORT_S))
    assert seconds < SHORT_S + SLACK_S, f"a load took {seconds:.3f} s from a disk that hangs"


def is_sound(scene: Scene) -> None:
    """The index says so itself."""
    found = scene.daemon.findings()
    assert found == [], found


def works_again(scene: Scene) -> list[int]:
    """There and back: what is stored goes to disk when an administrator says so, leaves memory, and is loaded.

    Those pages, which were said to be on disk.
    """
    pages = _onto_disk(scene)
    assert pages, f"{scene.ask(Save(1))} {scene.daemon.log.read_text()}"
    assert _come_back(scene, pages), f"what was on disk does not come back: {scene.daemon.log.read_text()}"
    return pages


def comes_to_work(scene: Scene) -> list[int]:
    """The same of a disk that may still be finding out what is wrong with it, and begins anew."""
    ends = time.monotonic() + _MENDED_S
    while time.monotonic() < ends:
        pages = _onto_disk(scene)
        if pages and _come_back(scene, pages):
            return pages
        scene.dropping()
        _in_memory(scene)  # pages that could not be saved would be more than fit onto a small disk
    raise AssertionError(f"the disk tier is never well again: {scene.header()} {scene.daemon.log.read_text()}")


def _onto_disk(scene: Scene) -> list[int]:
    """New pages, once they are said to be there; none if they can not be."""
    pages = scene.numbers(_FEW)
    assert eventually(lambda: scene.store(pages) == _FEW, START_S), "no stores any more"
    told = _saved(scene)
    return pages if told.synced and not told.trouble else []


def _come_back(scene: Scene, pages: list[int]) -> bool:
    assert eventually(lambda: not _in_memory(scene), START_S), scene.header()
    return eventually(lambda: scene.look(pages, _READ_S).loaded == _FEW, _READ_S)


def _saved(scene: Scene) -> Saved:
    ends = time.monotonic() + START_S
    told, number = Saved(0, 0, 0, synced=False), 0
    while not (told.synced or told.trouble) or number < 2:
        told = scene.ask(Save(number))
        assert isinstance(told, Saved)
        assert time.monotonic() < ends, f"{told} {scene.daemon.log.read_text()}"
        number += 1
        time.sleep(0.01)
    return told


def _in_memory(scene: Scene) -> int:
    scene.ask(Flush(1, None, "memory"))
    return scene.header()["used_frames"]


class Begun(msgspec.Struct, frozen=True):
    """How all stood when a case began. page: pages with higher numbers are its own."""

    worker: int
    gone: int
    evicted: int
    page: int


def begun(scene: Scene) -> Begun:
    """As it is now."""
    return Begun(scene.worker(), _gone(scene), scene.header()["evicted"], scene.numbers(1)[0])


def _gone(scene: Scene) -> int:
    """Pages that the daemon's own counters say have left both tiers, where the disk was there all the time."""
    header = scene.header()
    return sum(header[name] for name in ("disk_lost", "disk_spared", "disk_evicted", "disk_damaged"))


def settle(scene: Scene, since: Begun) -> None:
    """The end of a case: nobody holds anything, all memory is of use, and each page that must be there is."""
    scene.dismiss()
    assert eventually(lambda: scene.client.attached, START_S), scene.daemon.log.read_text()
    assert eventually(lambda: scene.quiet() and not scene.pins(), START_S), scene.header()
    full = scene.numbers(PAGES)
    # a page that is being written to disk can not leave in this moment
    assert eventually(lambda: scene.store(full) == PAGES, _BACK_S), (
        f"not all memory is of use: {scene.daemon.slots()} {scene.header()} {scene.daemon.log.read_text()}"
    )
    scene.until_disk_is_open()
    may_go = _may_go(scene, since)
    for number in range(since.page + 1, full[0]):
        scene.look([number], _READ_S)
    found = findings(read_journals(scene.journals), may_go=may_go)
    assert found == [], [*map(str, found), scene.header(), scene.daemon.log.read_text()]
    is_sound(scene)
    assert "Traceback" not in scene.daemon.log.read_text(), scene.daemon.log.read_text()


def _may_go(scene: Scene, since: Begun) -> Losses:
    """While a worker is away nothing is found on disk, and what leaves memory then is nowhere."""
    gone = _gone(scene) - since.gone
    if scene.worker() == since.worker:
        return Losses(at_most=max(0, gone))
    return Losses(at_most=max(0, gone + scene.header()["evicted"] - since.evicted), since=time.monotonic_ns())
