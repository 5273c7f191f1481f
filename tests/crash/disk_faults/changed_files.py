"""Changes the files of an open tier: engines continue, and the tier restarts with the pages that can be verified."""

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
_LOGS_WITHIN_S: Final = 5.0


class OnDisk(WriteBehind):
    """Pages are on disk only, in both parts, and some in memory as well."""

    before = PAGES


def run_case(scene: Scene, change: Change, folder: Path) -> None:
    """Runs a case with a change of the files. Raises AssertionError if a promise is broken."""
    scene.begin()
    operation = OnDisk(scene)
    operation.prepare()
    lines = scene.daemon.log.read_text().count("\n")
    begun = verdicts.begun(scene)
    scene.dropping()  # the change may lose pages that are on disk only, but no byte may be wrong
    change.make(folder)
    verdicts.check_engines(scene, operation)
    verdicts.check_load_timeout(scene, operation)
    assert eventually(lambda: change.log_words in _since(scene, lines), _LOGS_WITHIN_S), _since(scene, lines)
    pages = verdicts.recover(scene)
    verdicts.check_index(scene)
    assert _since(scene, lines).count("no disk tier") <= _MOST_RESTARTS, _since(scene, lines)
    scene.renew()
    assert eventually(lambda: scene.verify(pages, START_S).loaded == len(pages), START_S), (
        f"pages that were reported as on disk are missing after a restart: {_since(scene, lines)}"
    )
    verdicts.settle(scene, begun)
    verdicts.store_and_reload(scene)


def _since(scene: Scene, lines: int) -> str:
    return "\n".join(scene.daemon.log.read_text().splitlines()[lines:])
