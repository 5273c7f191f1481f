"""A store that hangs, in a worker's process whose time a test sets, as python://timed_store:timed_folder."""

from __future__ import annotations

from pathlib import Path

from faulty_store import HangingFolder, hanging_folder
from pagetier.shm import clock
from pagetier.tiers.fleet.object_store import StoreSettings
from virtual_clock import VirtualClock


def timed_folder(settings: StoreSettings) -> HangingFolder:
    """Opens the folder of the URL's parameter in a process whose time is the number of seconds in its file `time`."""
    file, virtual = Path(settings.parameters["folder"]) / "time", VirtualClock()
    began = virtual.now

    def is_stuck() -> bool:
        virtual.now = began + (float(file.read_text()) if file.exists() else 0.0)
        return False

    virtual.is_stuck = is_stuck
    vars(clock).update(now=lambda: virtual.now, sleep=virtual.sleep, wait=virtual.wait)
    return hanging_folder(settings)
