"""A disk that is unavailable for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from disk_daemon import DiskDaemon


@contextmanager
def disk_away(daemon: DiskDaemon) -> Iterator[None]:
    """Replaces the folder of the disk tier by a file for the duration of the block."""
    restarts, folder = daemon.report().restarts, daemon.disk
    away = folder.rename(folder.with_name("away"))
    folder.write_text("a file")
    daemon.kill_worker()
    assert daemon.until(lambda disk: "is a file" in disk.trouble), daemon.reported()
    yield
    folder.unlink()
    away.rename(folder)
    daemon.wait_open(restarts + 1)
