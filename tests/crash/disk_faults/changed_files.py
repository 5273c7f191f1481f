"""Files of an open tier that somebody changes: engines go on, and the tier begins anew with what can be proven."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from disk_faults import verdicts
from disk_faults.file_changes import Change
from kill_points.colliding_pages import PAGES
from kill_points.disk_operations import WriteBehind
from kill_points.scene import Scene
from running_daemon import START_S, eventually

_MOST_RESTARTS: Final = 6
_TELLS_S: Final = 5.0


class OnDisk(WriteBehind):
    """Pages on disk alone, in both parts, and some in memory as well."""

    before = PAGES


def meet(scene: Scene, change: Change, folder: Path) -> None:
    """Raises AssertionError where a promise is broken."""
    scene.begin()
    operation = OnDisk(scene)
    operation.prepare()
    lines = scene.daemon.log.read_text().count("\n")
    begun = verdicts.begun(scene)
    scene.dropping()  # what is on disk alone is somebody else's fault now; no byte may be wrong for that
    change.make(folder)
    verdicts.goes_on(scene, operation)
    verdicts.answers_in_time(scene, operation)
    assert eventually(lambda: change.told in _since(scene, lines), _TELLS_S), _since(scene, lines)
    pages = verdicts.comes_to_work(scene)
    verdicts.is_sound(scene)
    assert _since(scene, lines).count("no disk tier") <= _MOST_RESTARTS, _since(scene, lines)
    scene.renew()
    assert eventually(lambda: scene.look(pages, START_S).loaded == len(pages), START_S), (
        f"what was said to be on disk is not there after a restart: {_since(scene, lines)}"
    )
    verdicts.settle(scene, begun)
    verdicts.works_again(scene)


def _since(scene: Scene, lines: int) -> str:
    return "\n".join(scene.daemon.log.read_text().splitlines()[lines:])
