"""A store in this process's memory whose calls can be made to fail, as python://faulty_store:DictStore."""

from __future__ import annotations

import errno
import math
import os
import threading
from array import array
from collections.abc import Callable, Sequence
from typing import ClassVar

import msgspec

from eventually import eventually
from pagetier.tiers.fleet.folder_object_store import FolderObjectStore
from pagetier.tiers.fleet.object_store import ABSENT, StoreSettings


class DictStore:
    """Objects in a dictionary that all instances share."""

    objects: ClassVar[dict[str, bytes]] = {}

    def __init__(self, options: StoreSettings) -> None:
        self.options = options

    def exists(self, names: Sequence[str]) -> list[bool]:
        return [name in self.objects for name in names]

    def sizes(self, names: Sequence[str]) -> array[int]:
        return array("Q", [len(self.objects.get(name, b"")) for name in names])

    def put(self, name: str, data: memoryview) -> bool:
        return self.objects.setdefault(name, copy := bytes(data)) is copy

    def get(self, name: str, into: memoryview) -> int | memoryview:
        if (found := self.objects.get(name)) is None:
            return ABSENT
        count = min(len(found), len(into))
        into[:count] = found[:count]
        return len(found)

    def remove(self, name: str) -> None:
        self.objects.pop(name, None)

    def close(self) -> None:
        return


class OwnMemoryStore(DictStore):
    """A store whose library has each object in memory of its own, as obstore has."""

    def get(self, name: str, into: memoryview) -> int | memoryview:
        found = self.objects.get(name)
        if found is None or len(found) > len(into):
            return ABSENT if found is None else len(found)
        return memoryview(found)


class FaultyStore(DictStore):
    """A store whose calls run `before`, with the name of the call, and hang while `hangs` names them.

    Attributes:
        hanging: How many calls hang.
    """

    before: ClassVar[list[Callable[[str], None]]] = []
    hangs: ClassVar[set[str]] = set()
    released: ClassVar[threading.Event] = threading.Event()
    hanging: ClassVar[int] = 0
    _counting: ClassVar[threading.Lock] = threading.Lock()

    def _at(self, call: str) -> None:
        for function in self.before:
            function(call)
        if call in self.hangs:
            self._count(1)
            self.released.wait()
            self._count(-1)

    def _count(self, by: int) -> None:
        with self._counting:
            FaultyStore.hanging += by

    def exists(self, names: Sequence[str]) -> list[bool]:
        self._at("exists")
        return super().exists(names)

    def sizes(self, names: Sequence[str]) -> array[int]:
        self._at("sizes")
        return super().sizes(names)

    def put(self, name: str, data: memoryview) -> bool:
        self._at("put")
        return super().put(name, data)

    def get(self, name: str, into: memoryview) -> int | memoryview:
        self._at("get")
        return super().get(name, into)

    def remove(self, name: str) -> None:
        self._at("remove")
        super().remove(name)


class SlowToOpen(DictStore):
    """A store whose opening does not end."""

    def __init__(self, options: StoreSettings) -> None:
        super().__init__(options)
        threading.Event().wait()


class FailsToOpen(DictStore):
    """A store that cannot be opened."""

    def __init__(self, options: StoreSettings) -> None:
        raise RuntimeError("no such thing\nas a store")


class HangingFolder(FolderObjectStore):
    """A folder whose get() and sizes() hang while there is a file `hang` in it: for the worker's process.

    From the first call that hangs there is a file `hangs`.
    """

    def get(self, name: str, into: memoryview) -> int:
        self._hang()
        return super().get(name, into)

    def sizes(self, names: Sequence[str]) -> array[int]:
        self._hang()
        return super().sizes(names)

    def _hang(self) -> None:
        if (self._folder / "hang").exists():
            (self._folder / "hangs").touch()
        eventually(lambda: not (self._folder / "hang").exists(), math.inf)


class UnreadableFolder(FolderObjectStore):
    """A folder whose get() fails while there is a file `unreadable` in it, and put() while there is `unwritable`."""

    def get(self, name: str, into: memoryview) -> int:
        if (self._folder / "unreadable").exists():
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().get(name, into)

    def put(self, name: str, data: memoryview) -> bool:
        if (self._folder / "unwritable").exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().put(name, data)


def unreadable_folder(settings: StoreSettings) -> UnreadableFolder:
    """Opens the folder of the URL's parameter."""
    return UnreadableFolder(msgspec.structs.replace(settings, netloc="", path=settings.parameters["folder"]))


def hanging_folder(settings: StoreSettings) -> HangingFolder:
    """Opens the folder of the URL's parameter; python:// has no path of its own."""
    return HangingFolder(msgspec.structs.replace(settings, netloc="", path=settings.parameters["folder"]))
