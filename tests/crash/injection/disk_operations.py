"""Operations with a disk. Unless a class says otherwise, stored pages are written at once, to a tier in LMDB."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Final

from disk_daemon import IN_FILES, IN_LMDB
from eventually import PATIENCE_S, eventually
from file_changes import write_at
from injection.colliding_pages import FRAME, PAGE, PAGES, SEED, key_of
from injection.injector import Role
from injection.operation import FEW, KNOWN, Operation
from oracle.page_contents import words

SMALL: Final = "1MiB"
"""12 frames in LMDB, 6 in each part."""
SMALL_IN_FILES: Final = "860KiB"
"""As many in files."""
_HEAD: Final = 32


class WithDisk(Operation):
    """An operation with a disk.

    `pages` are on disk only before it begins, and are still found at the end if `pages_stay` is set.
    """

    roles: ClassVar[tuple[Role, ...]] = (Role.DAEMON, Role.TIER)
    size: ClassVar[str] = "16MiB"
    rule: ClassVar[str] = "through"
    entries: ClassVar[int] = 256
    before: ClassVar[int] = FEW
    pages_stay: ClassVar[bool] = True

    @classmethod
    def flags_in(cls, folder: Path) -> tuple[str, ...]:
        disk = "--disk-path", str(folder / "disk"), "--disk-size", cls.size, "--constant", "disk.environments=2"
        return *disk, *IN_LMDB, "--set", f"disk.write={cls.rule}", "--set", f"index.entries={cls.entries}"

    def prepare(self) -> None:
        self.pages = self.put_on_disk(self.before)
        super().prepare()
        if self.rule == "through":
            self.until_on_disk(self.before + KNOWN)

    def put_on_disk(self, count: int) -> list[int]:
        """Stores `count` pages, writes them to disk and evicts them from memory; returns their numbers."""
        pages = self.scene.numbers(count)
        if count:
            assert self.scene.store(pages) == count
            self.until_on_disk(count)
            assert eventually(lambda: not self.scene.flush("memory")), self.scene.header()
        return pages

    def until_on_disk(self, count: int) -> None:
        """Waits until `count` pages are on disk. The worker has a low priority, so a busy machine delays its writes."""

        def written() -> bool:
            return self.scene.quiet() and self.scene.header().disk_pages >= count

        assert eventually(written), self.scene.header()

    def verify(self) -> bool:
        """Returns whether the pages are found, also those that a dead engine was storing again."""
        return not self.pages_stay or eventually(
            lambda: self.scene.verify(self.pages, PATIENCE_S).loaded == len(self.pages)
        )

    def on_disk(self) -> list[int]:
        return self.pages

    def lost(self) -> int:
        """Returns the number of pages that are missed while the disk is not open."""
        return len(self.pages) + KNOWN


class WriteBehind(WithDisk):
    """Pages are stored, and then written to disk."""

    def act(self) -> None:
        self.send("store", self.scene.numbers(FEW))

    def done(self) -> bool:
        return super().done() and self.scene.header().disk_pages >= len(self.pages) + KNOWN + FEW


class WriteToFiles(WriteBehind):
    """The same in the files store."""

    @classmethod
    def flags_in(cls, folder: Path) -> tuple[str, ...]:
        return *super().flags_in(folder), *IN_FILES


class Prefetch(WithDisk):
    """Pages are prefetched from disk."""

    roles: ClassVar[tuple[Role, ...]] = (Role.ENGINE, Role.DAEMON, Role.TIER)

    def act(self) -> None:
        self.send("prefetch", self.pages)


class LoadFromDisk(Prefetch):
    """A load reads pages from disk."""

    def act(self) -> None:
        self.send("verify", [*self.known[:1], *self.pages], PATIENCE_S)


class StoreAgain(WithDisk):
    """Pages that are on disk only are stored again."""

    roles = (Role.ENGINE, Role.DAEMON)

    def act(self) -> None:
        self.send("store", self.pages)


class GiveUpAgain(StoreAgain):
    """Pages that are on disk only are reserved and abandoned: the copy on disk stays."""

    def prepare(self) -> None:
        super().prepare()
        assert self.first().do("open", self.pages) == len(self.pages)

    def act(self) -> None:
        self.send("abandon")


class StoreInAnotherSize(StoreAgain):
    """Pages are stored in another size, for which the copies on disk must be dropped."""

    pages_stay = False

    def act(self) -> None:
        self.scene.dropping()
        self.send("resize", self.pages, FRAME)


class ReadDamaged(Prefetch):
    """A page is corrupt on disk: reading it is a miss."""

    roles = (Role.DAEMON, Role.TIER)
    pages_stay = False

    def prepare(self) -> None:
        super().prepare()
        self.scene.dropping()
        self._damage(self.pages[0])

    def _damage(self, number: int) -> None:
        wanted = words(key_of(number), SEED, PAGE)[:4].tobytes()
        for path in (self.scene.folder / "disk").glob("*/*"):
            at = path.read_bytes().find(wanted)
            if at >= 0:
                return write_at(path, at + _HEAD, b"damaged!")
        raise AssertionError("no file contains the page")


class EvictToDisk(WithDisk):
    """Pages that are evicted from memory are found on disk."""

    roles = (Role.DAEMON,)
    before = 0
    keeps_pages = False

    def prepare(self) -> None:
        super().prepare()
        more = self.scene.numbers(PAGES - KNOWN)
        assert self.scene.store(more) == len(more)
        self.until_on_disk(PAGES)
        self.pages = [*self.known, *more]

    def act(self) -> None:
        self.send("store", self.scene.numbers(FEW))


class FillDisk(WithDisk):
    """More pages are stored than the disk holds: the coldest are evicted from disk."""

    size = SMALL
    before = 2
    pages_stay = False

    def act(self) -> None:
        self.send("store", self.scene.numbers(FEW))

    def done(self) -> bool:
        return super().done() and self.scene.header().disk_evicted > self.evicted

    def prepare(self) -> None:
        super().prepare()
        self.evicted = self.scene.header().disk_evicted


class FillDiskBadly(WithDisk):
    """A page fits on the disk only across two parts, each too small: the tier has less room than it reported."""

    size = SMALL
    before = 0
    pages_stay = False
    keeps_pages = False

    def prepare(self) -> None:
        self.scene.renew()
        self.pages = []
        self.keep = self.scene.header().disk_frames
        self.engine = self.scene.engine()

    def act(self) -> None:
        self.send("fill", self.scene.numbers(3), 4 * FRAME)

    def done(self) -> bool:
        return super().done() and self.scene.header().disk_frames < self.keep


class FillIndex(WithDisk):
    """More pages are stored than the index has entries."""

    entries = PAGES + KNOWN
    before = PAGES
    pages_stay = False
    keeps_pages = False

    def act(self) -> None:
        self.send("store", self.scene.numbers(FEW))


class SaveAll(WithDisk):
    """An administrator saves all pages; without that, only evicted pages are written."""

    rule = "evict"
    before = 0

    def prepare(self) -> None:
        """Starts a new daemon, because one that was asked to save continues to do so for a while."""
        self.scene.renew()
        super().prepare()

    def act(self) -> None:
        self.send("save")


class FlushDisk(WithDisk):
    """An administrator flushes all pages, on disk or in both tiers."""

    keeps_pages = False
    pages_stay = False

    def act(self) -> None:
        self.scene.dropping()
        self.send("flush")
