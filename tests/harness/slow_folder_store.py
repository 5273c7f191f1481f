"""A folder of objects whose calls wait as a file beside it says, as python://slow_folder_store:SlowFolder/FOLDER."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from pathlib import Path

import msgspec

from eventually import eventually
from pagetier.tiers.fleet.folder_object_store import FolderObjectStore
from pagetier.tiers.fleet.object_store import StoreSettings


class SlowFolder(FolderObjectStore):
    """A folder; each call takes as many seconds more as the file `delay` in the folder says at its begin.

    The file `delay-get` says it of get() alone.
    """

    def __init__(self, options: StoreSettings) -> None:
        self._delay = Path(options.path) / "delay"
        self._delay_get = Path(options.path) / "delay-get"
        super().__init__(msgspec.structs.replace(options, netloc=""))

    def _wait(self) -> None:
        _wait_as(self._delay)

    def exists(self, names: Sequence[str]) -> list[bool]:
        self._wait()
        return super().exists(names)

    def sizes(self, names: Sequence[str]) -> array[int]:
        self._wait()
        return super().sizes(names)

    def put(self, name: str, data: memoryview) -> bool:
        self._wait()
        return super().put(name, data)

    def get(self, name: str, into: memoryview) -> int:
        self._wait()
        _wait_as(self._delay_get)
        return super().get(name, into)


def _wait_as(says: Path) -> None:
    eventually(lambda: not says.exists(), float(says.read_text()) if says.exists() else 0.0)
