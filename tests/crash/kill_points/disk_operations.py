"""The operations with a disk: what is in memory is written to it at once, unless it is said otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Final

from kill_points.colliding_pages import FRAME, PAGE, PAGES, SEED, key_of
from kill_points.operation import KNOWN, Operation, Role
from oracle.page_contents import words
from pagetier.shm.protocol import Flush
from running_daemon import START_S, eventually

_FEW: Final = 4
SMALL: Final = "1MiB"
"""12 frames, 6 in each part."""
_HEAD: Final = 32


class WithDisk(Operation):
    """pages: on disk alone before it begins, and still there after everything, where `stays` says so."""

    has_disk = True
    roles: ClassVar[tuple[Role, ...]] = (Role.DAEMON, Role.TIER)
    size: ClassVar[str] = "16MiB"
    rule: ClassVar[str] = "through"
    entries: ClassVar[int] = 256
    before: ClassVar[int] = _FEW
    stays: ClassVar[bool] = True

    @classmethod
    def flags(cls, folder: Path) -> tuple[str, ...]:
        disk = "--disk-path", str(folder / "disk"), "--disk-size", cls.size, "--disk-environments", "2"
        return *disk, "--disk-write", cls.rule, "--index-entries", str(cls.entries)

    def prepare(self) -> None:
        self.pages = self.put_on_disk(self.before)
        super().prepare()
        if self.rule == "through":
            self.until_on_disk(self.before + KNOWN)

    def put_on_disk(self, count: int) -> list[int]:
        """So many pages, which are nowhere else then."""
        pages = self.scene.numbers(count)
        if count:
            assert self.scene.store(pages) == count
            self.until_on_disk(count)
            assert eventually(self._leave_memory), self.scene.header()
        return pages

    def until_on_disk(self, count: int) -> None:
        """All the pages that there are."""
        assert eventually(lambda: self.scene.quiet() and self.scene.header()["disk_pages"] >= count), (
            self.scene.header()
        )

    def verify(self) -> bool:
        """What a dead engine was storing again is found as soon as it is let go of."""
        return not self.stays or eventually(lambda: self.scene.look(self.pages, START_S).loaded == len(self.pages))

    def on_disk(self) -> list[int]:
        return self.pages

    def lost(self) -> int:
        """Who looks while the disk is away finds less."""
        return len(self.pages) + KNOWN

    def _leave_memory(self) -> bool:
        self.scene.ask(Flush(1, None, "memory"))
        return not self.scene.header()["used_frames"]


class WriteBehind(WithDisk):
    """Pages are stored, and written."""

    def act(self) -> None:
        assert self.engine is not None
        self.fresh = self.scene.numbers(_FEW)
        self.engine.order("store", self.fresh)

    def done(self) -> bool:
        return super().done() and self.scene.header()["disk_pages"] >= len(self.pages) + KNOWN + _FEW


class Prefetch(WithDisk):
    """Pages come in from disk."""

    roles: ClassVar[tuple[Role, ...]] = (Role.ENGINE, Role.DAEMON, Role.TIER)

    def act(self) -> None:
        assert self.engine is not None
        self.engine.order("prefetch", self.pages)


class LoadFromDisk(Prefetch):
    """The same within a load."""

    def act(self) -> None:
        assert self.engine is not None
        self.engine.order("look", [*self.known[:1], *self.pages], START_S)


class StoreAgain(WithDisk):
    """What is on disk alone is stored again."""

    roles = (Role.ENGINE, Role.DAEMON)

    def act(self) -> None:
        assert self.engine is not None
        self.engine.order("store", self.pages)


class GiveUpAgain(StoreAgain):
    """The same, but it is given up: the copy on disk stays."""

    def prepare(self) -> None:
        super().prepare()
        assert self.engine is not None
        assert self.engine.do("open", self.pages) == len(self.pages)

    def act(self) -> None:
        assert self.engine is not None
        self.engine.order("abandon")


class StoreInAnotherSize(StoreAgain):
    """What is on disk has to go for it."""

    stays = False

    def act(self) -> None:
        assert self.engine is not None
        self.scene.dropping()
        self.engine.order("resize", self.pages, FRAME)


class ReadDamaged(Prefetch):
    """A page on disk has other bytes than were written: it is a miss."""

    roles = (Role.DAEMON, Role.TIER)
    stays = False

    def prepare(self) -> None:
        super().prepare()
        self.scene.dropping()
        self._damage(self.pages[0])

    def _damage(self, number: int) -> None:
        wanted = words(key_of(number), SEED, PAGE)[:4].tobytes()
        for path in (self.scene.folder / "disk").glob("*/data.mdb"):
            at = path.read_bytes().find(wanted)
            if at >= 0:
                with path.open("r+b") as file:
                    file.seek(at + _HEAD)
                    file.write(b"damaged!")
                return
        raise AssertionError("the page is not in any file")


class EvictToDisk(WithDisk):
    """What leaves memory is found on disk."""

    roles = (Role.DAEMON,)
    before = 0
    keeps = False

    def prepare(self) -> None:
        super().prepare()
        more = self.scene.numbers(PAGES - KNOWN)
        assert self.scene.store(more) == len(more)
        self.until_on_disk(PAGES)
        self.pages = [*self.known, *more]

    def act(self) -> None:
        assert self.engine is not None
        self.engine.order("store", self.scene.numbers(_FEW))


class FillDisk(WithDisk):
    """More is stored than there is room for: the coldest leave the disk."""

    size = SMALL
    before = 2
    stays = False

    def act(self) -> None:
        assert self.engine is not None
        self.engine.order("store", self.scene.numbers(_FEW))

    def done(self) -> bool:
        return super().done() and self.scene.header()["disk_evicted"] > self.evicted

    def prepare(self) -> None:
        super().prepare()
        self.evicted = self.scene.header()["disk_evicted"]


class FillDiskBadly(WithDisk):
    """Room for a page is there, but in two parts that are each too small: the tier has less room than it said."""

    size = SMALL
    before = 0
    stays = False

    def prepare(self) -> None:
        self.scene.renew()
        self.pages = []
        self.keep = self.scene.header()["disk_frames"]
        self.engine = self.scene.engine()

    keeps = False

    def act(self) -> None:
        assert self.engine is not None
        self.engine.order("fill", self.scene.numbers(3), 4 * FRAME)

    def done(self) -> bool:
        return super().done() and self.scene.header()["disk_frames"] < self.keep


class FillIndex(WithDisk):
    """More is stored than the index has entries for."""

    entries = PAGES + KNOWN
    before = PAGES
    stays = False
    keeps = False

    def act(self) -> None:
        assert self.engine is not None
        self.engine.order("store", self.scene.numbers(_FEW))


class SaveAll(WithDisk):
    """An administrator has everything written; else only what leaves memory is."""

    rule = "evict"
    before = 0

    def prepare(self) -> None:
        """A daemon that was asked to goes on with it for a while."""
        self.scene.renew()
        super().prepare()

    def act(self) -> None:
        assert self.engine is not None
        self.engine.order("save")


class FlushDisk(WithDisk):
    """An administrator drops all pages, on disk or in both tiers."""

    keeps = False
    stays = False

    def act(self) -> None:
        assert self.engine is not None
        self.scene.dropping()
        self.engine.order("flush")


PAGES_ON_DISK: Final = (
    WriteBehind,
    Prefetch,
    LoadFromDisk,
    StoreAgain,
    GiveUpAgain,
    StoreInAnotherSize,
    ReadDamaged,
    EvictToDisk,
    FillDisk,
    FillDiskBadly,
    FillIndex,
    SaveAll,
    FlushDisk,
)
